/* tests/optim/state_dict.c: state dicts of torch.optim's shape: what is saved
 * and loaded continues bit for bit; what does not fit is refused and changes
 * nothing. tests/checkpoint/peer.c loads PyTorch's own files.
 * SPDX-License-Identifier: MIT */
#include "folder.h"
#include "given.h"

static const char *const types[][2] = {
    {"SGD", "{\"lr\": 0.1, \"momentum\": 0.9, \"dampening\": 0.1}"},
    {"SGD", "{\"lr\": 0.1}"},
    {"Adam", "{\"lr\": 0.1, \"adam_w_mode\": false}"},
    {"AdamW", "{\"lr\": 0.1, \"weight_decay\": 0.1}"},
    {"Adagrad", "{\"lr\": 0.1}"},
    {"RMSprop", "{\"lr\": 0.1, \"momentum\": 0.5, \"centered\": true}"},
    {"Adadelta", "{\"lr\": 1.0}"},
    {"Adamax", "{\"lr\": 0.1}"},
    {"NAdam", "{\"lr\": 0.1}"},
    {"RAdam", "{\"lr\": 0.1}"},
    {"Lion", "{\"lr\": 0.1}"},
    {"Lamb", "{\"lr\": 0.1}"},
    {"Muon", "{\"lr\": 0.1}"}};
#define N_TYPES (sizeof types / sizeof *types)

static void steps(ds_module *m, ds_optim *o, int from, int to)
{
    for (int i = from; i < to; i++) {
        given_grad(given_w(m), 0.5 - 0.25 * i);
        given_grad(given_b(m), 1.0 / (1 + i));
        CHECK_INT(ds_optim_step(o), DS_OK);
    }
}

static void same_bytes(ds_tensor *a, ds_tensor *b, const char *what)
{
    if (memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(a) * 4) != 0) fail_msg("%s differs", what);
}

static void goes_on(void **unused)
{
    (void)unused;
    folder_make();
    for (size_t t = 0; t < N_TYPES; t++) {
        ds_scope *scope = ds_scope_open();
        ds_module *a = given_new(DS_F32), *b = given_new(DS_F32);
        ds_optim *x = ds_optim_by_name(a, types[t][0], types[t][1]);
        ds_optim *y = ds_optim_by_name(b, types[t][0], "{\"lr\": 0.5}");
        CHECK(x && y);
        steps(a, x, 0, 3);
        ds_value *v = ds_optim_state_dict(x);
        CHECK_INT(ds_value_save(v, folder_path("optim.pth")), DS_OK);
        ds_value_free(v);
        v = ds_value_load(folder_path("optim.pth"));
        CHECK(v != NULL);
        CHECK_INT(ds_optim_load_state_dict(y, v), DS_OK);
        ds_value_free(v);
        CHECK_INT(ds_copy(given_w(b), given_w(a)), DS_OK);
        CHECK_INT(ds_copy(given_b(b), given_b(a)), DS_OK);
        steps(a, x, 3, 6);
        steps(b, y, 3, 6);
        same_bytes(given_w(a), given_w(b), types[t][0]);
        same_bytes(given_b(a), given_b(b), types[t][0]);
        ds_optim_free(x);
        ds_optim_free(y);
        ds_module_free(a);
        ds_module_free(b);
        ds_scope_close(scope);
    }
    folder_remove();
}

static bool is_bias(void *arg, const char *path, const ds_tensor *p)
{
    (void)arg;
    (void)p;
    return !strcmp(path, "b");
}

/* Parameters are numbered group by group. */
static void shape_of_it(void **unused)
{
    (void)unused;
    ds_module *m = given_new(DS_F32);
    ds_optim *o = ds_optim_adamw(m, 0.1, .weight_decay = 0.2, .amsgrad = true);
    CHECK_INT(ds_optim_add_group(o, is_bias, NULL), 1);
    ds_optim_set_group_lr(o, 1, 0.5);
    given_grad(given_b(m), 1);
    CHECK_INT(ds_optim_step(o), DS_OK);
    ds_value *v = ds_optim_state_dict(o);
    int64_t i = 0;
    double x = 0;
    bool b = false;
    ds_tensor *moment = NULL;
    CHECK_INT(ds_value_len(ds_value_get(v, "state")), 1); /* only b was updated */
    CHECK_INT(ds_value_read_int(v, "state/1/step", &i), DS_OK);
    CHECK_INT(i, 1);
    CHECK_INT(ds_value_read_tensor(v, "state/1/max_exp_avg_sq", &moment), DS_OK);
    CHECK_INT(ds_numel(moment), 2);
    CHECK_INT(ds_value_read_float(v, "param_groups/1/lr", &x), DS_OK);
    CHECK_CLOSE(x, 0.5, 0);
    CHECK_INT(ds_value_read_float(v, "param_groups/0/betas/1", &x), DS_OK);
    CHECK_CLOSE(x, 0.999, 0);
    CHECK_INT(ds_value_read_bool(v, "param_groups/0/amsgrad", &b), DS_OK);
    CHECK(b);
    CHECK_INT(ds_value_read_int(v, "param_groups/1/params/0", &i), DS_OK);
    CHECK_INT(i, 1);
    ds_value_free(v);
    ds_optim_free(o);
    ds_module_free(m);
}

/* The state dict of a trained Adam, for tests to spoil. */
static ds_value *of_adam(ds_module *m)
{
    ds_optim *o = ds_optim_adam(m, 0.25);
    steps(m, o, 0, 2);
    ds_value *v = ds_optim_state_dict(o);
    ds_optim_free(o);
    return v;
}

static void refused(void **unused)
{
    (void)unused;
    ds_module *m = given_new(DS_F32);
    ds_optim *adam = ds_optim_adam(m, 0.5), *sgd = ds_optim_sgd(m, 0.5, .momentum = 0.9);
    ds_value *v = of_adam(m);

    CHECK_INT(ds_optim_load_state_dict(sgd, v), DS_EINVAL);
    CHECK_ERROR("sgd has no exp_avg, which the state of w has");
    CHECK_CLOSE(ds_optim_lr(sgd), 0.5, 0); /* as it was */
    CHECK_INT(ds_optim_load_state_dict(adam, ds_value_get(v, "state")), DS_EINVAL);
    CHECK_ERROR("wants \"state\" and \"param_groups\"");

    ds_value *row = ds_value_find(v, "state/0");
    CHECK_INT(ds_value_set(row, "exp_avg", ds_value_tensor(ds_ones(DS_F32, ds_shape(7)))), DS_OK);
    CHECK_INT(ds_optim_load_state_dict(adam, v), DS_EINVAL);
    CHECK_ERROR("exp_avg.w is [7]: expected [2, 3]");
    CHECK_INT(ds_value_set(row, "exp_avg", ds_value_none()), DS_OK);
    CHECK_INT(ds_optim_load_state_dict(adam, v), DS_EINVAL);
    CHECK_ERROR("the state has no exp_avg.w");
    CHECK_INT(ds_value_set(ds_value_find(v, "param_groups/0"), "lr", ds_value_float(NAN)), DS_OK);
    CHECK_INT(ds_optim_load_state_dict(adam, v), DS_EINVAL);
    CHECK_ERROR("lr is nan");
    CHECK_INT(ds_value_append(ds_value_find(v, "param_groups/0/params"), ds_value_int(2)), DS_OK);
    CHECK_INT(ds_value_set(ds_value_find(v, "param_groups/0"), "lr", ds_value_string("x")), DS_OK);
    CHECK_INT(ds_optim_load_state_dict(adam, v), DS_EINVAL);
    CHECK_ERROR("lr is of class str: expected a float");
    CHECK_INT(ds_value_set(ds_value_find(v, "param_groups/0"), "lr", ds_value_float(1)), DS_OK);
    CHECK_INT(ds_optim_load_state_dict(adam, v), DS_EINVAL);
    CHECK_ERROR("group 0 has 3 parameters there, 2 here");
    CHECK_INT(ds_value_append(ds_value_get(v, "param_groups"), ds_value_dict()), DS_OK);
    CHECK_INT(ds_optim_load_state_dict(adam, v), DS_EINVAL);
    CHECK_ERROR("2 groups there, 1 here");
    CHECK_CLOSE(ds_optim_lr(adam), 0.5, 0);
    ds_value_free(v);
    ds_optim_free(adam);
    ds_optim_free(sgd);
    ds_module_free(m);
}

static void schedules(void **unused)
{
    (void)unused;
    static const char *const all[][2] = {
        {"WarmupLR", "{\"warmup_num_steps\": 5, \"warmup_max_lr\": 0.1}"},
        {"StepLR", "{\"step_size\": 2}"},
        {"CosineAnnealingLR", "{\"T_max\": 9}"}};
    for (int k = 0; k < 3; k++) {
        ds_module *m = given_new(DS_F32);
        ds_optim *o = ds_optim_sgd(m, 0.5), *p = ds_optim_sgd(m, 0.5);
        ds_schedule *s = ds_schedule_by_name(o, all[k][0], all[k][1]);
        ds_schedule *t = ds_schedule_by_name(p, all[k][0], all[k][1]);
        for (int i = 0; i < 3; i++) ds_schedule_step(s);
        ds_value *v = ds_schedule_state_dict(s);
        int64_t last = 0;
        CHECK_INT(ds_value_read_int(v, k ? "last_epoch" : "last_batch_iteration", &last), DS_OK);
        CHECK_INT(last, k ? 3 : 2); /* torch is at epoch 3 after as many steps */
        CHECK_INT(ds_schedule_load_state_dict(t, v), DS_OK);
        CHECK_CLOSE(ds_schedule_lr(t, 0), ds_schedule_lr(s, 0), 0);
        ds_schedule_step(s);
        ds_schedule_step(t);
        CHECK_CLOSE(ds_schedule_lr(t, 0), ds_schedule_lr(s, 0), 0);
        CHECK_INT(ds_schedule_load_state_dict(t, ds_value_get(v, "_last_lr")), DS_EINVAL);
        ds_error_clear();
        ds_value_free(v);
        ds_schedule_free(s);
        ds_schedule_free(t);
        ds_optim_free(o);
        ds_optim_free(p);
        ds_module_free(m);
    }
}

TEST_MAIN(cmocka_unit_test(goes_on), cmocka_unit_test(shape_of_it), cmocka_unit_test(refused),
          cmocka_unit_test(schedules))
