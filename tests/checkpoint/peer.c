/* tests/checkpoint/peer.c: files that go to PyTorch and come from it,
 * optimizers too: peer.py is the other half.
 *
 * Runs with $DS_PEER_PYTHON, or python3; without torch in it, it is skipped.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"

#include <sys/wait.h>

#define SKIPPED 77

static const char *const optimizers[][2] = {
    {"SGD", "{\"lr\": 0.1, \"momentum\": 0.9}"},
    {"Adam", "{\"lr\": 0.1, \"adam_w_mode\": false}"},
    {"AdamW", "{\"lr\": 0.1, \"weight_decay\": 0.1}"},
    {"Adagrad", "{\"lr\": 0.1}"},
    {"RMSprop", "{\"lr\": 0.1, \"momentum\": 0.5, \"centered\": true}"},
    {"Adadelta", "{\"lr\": 1.0}"},
    {"Adamax", "{\"lr\": 0.1}"},
    {"NAdam", "{\"lr\": 0.1}"},
    {"RAdam", "{\"lr\": 0.1}"}};
#define N_OPTIMIZERS (sizeof optimizers / sizeof *optimizers)

/* peer.py's status. */
static int peer(const char *what, const char *folder)
{
    const char *python = getenv("DS_PEER_PYTHON");
    char command[1200];
    snprintf(command, sizeof command, "'%s' '%s/tests/checkpoint/peer.py' %s '%s' 1>&2",
             python && *python ? python : "python3", DS_SOURCE_DIR, what, folder);
    int status = system(command);
    if (!python && WIFEXITED(status) && WEXITSTATUS(status) == 127)
        return SKIPPED; /* there is none */
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- what both sides have -------------------------------------------------------------------------------- */

/* The tensors w [2,3] and b [2]. */
static ds_module *module_new(void)
{
    static const ds_module_type type = {.name = "Given"};
    const float w[] = {1, -2, 3, -4, 5, -6}, b[] = {0.5f, -0.5f};
    ds_module *m = ds_module_new(NULL, "given", &type);
    ds_module_param(m, "w", ds_from_data(DS_F32, ds_shape(2, 3), w));
    ds_module_param(m, "b", ds_from_data(DS_F32, ds_shape(2), b));
    return m;
}

static void steps(ds_module *m, ds_optim *o, int from, int to)
{
    ds_tensor *w = ds_module_param_at(m, 0, NULL), *b = ds_module_param_at(m, 1, NULL);
    for (int i = from; i < to; i++) {
        ds_set_grad_of(w, ds_like(w, 0.5 - 0.25 * i));
        ds_set_grad_of(b, ds_like(b, 1.0 / (1 + i)));
        CHECK_INT(ds_optim_step(o), DS_OK);
    }
}

static ds_value *copies(ds_module *m)
{
    ds_value *list = ds_value_list();
    for (int i = 0; i < 2; i++)
        ds_value_append(list, ds_value_tensor(ds_clone(ds_module_param_at(m, i, NULL))));
    return list;
}

static ds_value *zoo(void)
{
    ds_value *v = ds_value_dict(), *nested = ds_value_list(), *pair = ds_value_tuple();
    ds_value_set(v, "epoch", ds_value_int(7));
    ds_value_set(v, "loss", ds_value_float(0.125));
    ds_value_set(v, "name", ds_value_string("ü✓"));
    ds_value_set(v, "none", ds_value_none());
    ds_value_set(v, "flag", ds_value_bool(true));
    ds_value_set(v, "big", ds_value_int((int64_t)1 << 40));
    ds_value_set(v, "bytes", ds_value_bytes("\0\xff", 2));
    ds_value_append(pair, ds_value_int(2));
    ds_value_append(pair, ds_value_string("x"));
    ds_value *inner = ds_value_dict();
    ds_value_set(inner, "a", ds_value_tensor(ds_ones(DS_F32, ds_shape(2))));
    ds_value_append(nested, ds_value_int(1));
    ds_value_append(nested, pair);
    ds_value_append(nested, inner);
    ds_value_set(v, "nested", nested);
    ds_tensor *flat = ds_arange(DS_F32, 0, 24, 1);
    ds_value_set(v, "flat", ds_value_tensor(flat));
    ds_value_set(v, "tail", ds_value_tensor(ds_slice(flat, 0, 20, 24)));
    ds_value_set(v, "t", ds_value_tensor(ds_transpose(ds_reshape(flat, ds_shape(4, 6)), 0, 1)));
    for (int d = 0; d < DS_DTYPES; d++) {
        ds_tensor *x = ds_reshape(ds_arange(DS_F32, 0, 6, 1), ds_shape(2, 3));
        ds_value_set(v, ds_dtype_name((ds_dtype)d), ds_value_tensor(ds_cast(x, (ds_dtype)d)));
    }
    return v;
}

/* ---- there and back ---------------------------------------------------------------------------------------- */

static void save_optimizer(const char *const *row)
{
    char name[40];
    ds_module *m = module_new();
    ds_optim *o = ds_optim_by_name(m, row[0], row[1]);
    CHECK(o != NULL);
    steps(m, o, 0, 3);
    ds_value *v = ds_value_dict();
    /* moments are changed in place by what follows */
    snprintf(name, sizeof name, "%s.pth", row[0]);
    ds_value_set(v, "optim", ds_optim_state_dict(o));
    CHECK_INT(ds_value_save(v, folder_path("half.pth")), DS_OK);
    ds_value_free(v);
    v = ds_value_load(folder_path("half.pth"));
    ds_value_set(v, "before", copies(m));
    steps(m, o, 3, 6);
    ds_value_set(v, "after", copies(m));
    CHECK_INT(ds_value_save(v, folder_path(name)), DS_OK);
    ds_value_free(v);
    ds_optim_free(o);
    ds_module_free(m);
}

static void torch_reads_ours(void **unused)
{
    (void)unused;
    const char *folder = folder_make();
    ds_value *v = zoo();
    CHECK_INT(ds_value_save(v, folder_path("zoo.pth")), DS_OK);
    ds_value_free(v);
    ds_state *state = ds_state_new();
    ds_state_set(state, "w", ds_randn(DS_F32, ds_shape(3, 5)));
    ds_state_set(state, "n", ds_scalar(DS_I64, 3));
    CHECK_INT(ds_save(state, folder_path("state.pth")), DS_OK);
    CHECK_INT(ds_save(state, folder_path("state.safetensors")), DS_OK);
    ds_state_free(state);
    v = ds_value_load(DS_GOLDEN "/objects/known.pth");
    CHECK_INT(ds_value_save(v, folder_path("known.pth")), DS_OK);
    ds_value_free(v);
    for (size_t i = 0; i < N_OPTIMIZERS; i++) save_optimizer(optimizers[i]);
    int status = peer("read", folder);
    folder_remove();
    if (status == SKIPPED) skip();
    CHECK_INT(status, 0);
}

static void same(const ds_value *got, const ds_value *want, const char *key)
{
    if (strcmp(ds_value_class(got), ds_value_class(want)) != 0 ||
        ds_value_len(got) != ds_value_len(want))
        fail_msg("%s is a %s of %lld, want a %s of %lld", key, ds_value_class(got),
                 (long long)ds_value_len(got), ds_value_class(want), (long long)ds_value_len(want));
    if (ds_value_text(want)) {
        CHECK(!memcmp(ds_value_text(got), ds_value_text(want), (size_t)ds_value_len(want)));
    } else if (ds_value_kind_of(want) == DS_VALUE_TENSOR) {
        ds_tensor *a = NULL, *b = NULL;
        CHECK_INT(ds_value_read_tensor(got, "", &a), DS_OK);
        CHECK_INT(ds_value_read_tensor(want, "", &b), DS_OK);
        CHECK_INT(ds_dtype_of(a), ds_dtype_of(b));
        CHECK_INT(ds_numel(a), ds_numel(b));
        CHECK(!memcmp(ds_data(a), ds_data(b), (size_t)ds_numel(b) * ds_dtype_size(ds_dtype_of(b))));
    } else if (ds_value_len(want)) {
        for (int64_t i = 0; i < ds_value_len(want); i++) {
            const ds_value *name = ds_value_key_at(want, i);
            const ds_value *item = name ? ds_value_get(got, ds_value_text(name))
                                        : ds_value_at(got, i);
            same(item, ds_value_at(want, i), name ? ds_value_text(name) : key);
        }
    } else if (ds_value_kind_of(want) == DS_VALUE_INT || ds_value_kind_of(want) == DS_VALUE_FLOAT) {
        double x = 0, y = 1;
        CHECK_INT(ds_value_read_float(got, "", &x), DS_OK);
        CHECK_INT(ds_value_read_float(want, "", &y), DS_OK);
        CHECK_CLOSE(x, y, 0);
    }
}

static void load_optimizer(const char *const *row)
{
    char name[40];
    snprintf(name, sizeof name, "%s.pth", row[0]);
    ds_value *v = ds_value_load(folder_path(name));
    ds_module *m = module_new();
    ds_optim *o = ds_optim_by_name(m, row[0], "{\"lr\": 0.5}");
    CHECK(v && o);
    CHECK_INT(ds_optim_load_state_dict(o, ds_value_get(v, "optim")), DS_OK);
    ds_tensor *want[2] = {0}, *before = NULL;
    for (int i = 0; i < 2; i++) {
        ds_value_read_tensor(v, i ? "before/1" : "before/0", &before);
        ds_value_read_tensor(v, i ? "after/1" : "after/0", &want[i]);
        CHECK_INT(ds_copy(ds_module_param_at(m, i, NULL), before), DS_OK);
    }
    steps(m, o, 3, 6);
    for (int i = 0; i < 2; i++) {
        const float *x = ds_data(ds_module_param_at(m, i, NULL)), *y = ds_data(want[i]);
        for (int64_t k = 0; k < ds_numel(want[i]); k++)
            if (fabsf(x[k] - y[k]) > 1e-6f + 1e-5f * fabsf(y[k]))
                fail_msg("%s continues differently: %.8g, want %.8g", row[0], x[k], y[k]);
    }
    ds_value_free(v);
    ds_optim_free(o);
    ds_module_free(m);
}

/* Compares the values of objects() of peer.py. */
static void check_objects(const ds_value *v)
{
    static const char *const texts[][2] = {{"path", "/a/b"},
                                           {"dt", "2024-05-01T12:34:56.000789+00:00"},
                                           {"dec", "1.50"},
                                           {"str_", "hi"}};
    static const struct {
        const char *path;
        double want;
    } numbers[] = {{"ns/lr", 0.5}, {"sns/lr", 0.5}, {"cplx/1", 2}, {"td", 60},
                   {"deque/1", 2}, {"range/2", 2},  {"frac/0", 1}};
    const char *text = "";
    double x = 0;
    ds_tensor *t = NULL;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (ds_value_read_string(v, texts[i][0], &text) != DS_OK || strcmp(text, texts[i][1]) != 0)
            fail_msg("%s is \"%s\"", texts[i][0], text);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (ds_value_read_float(v, numbers[i].path, &x) != DS_OK || x != numbers[i].want)
            fail_msg("%s is %g", numbers[i].path, x);
    CHECK(ds_value_read_tensor(v, "u16", &t) == DS_OK && ((const int32_t *)ds_data(t))[1] == 65535);
    CHECK(ds_value_read_tensor(v, "np", &t) == DS_OK && ((const int64_t *)ds_data(t))[2] == 2);
    CHECK(ds_value_read_tensor(v, "module/_parameters/weight", &t) == DS_OK && ds_numel(t) == 2);
    CHECK(!strcmp(ds_value_class(ds_value_get(v, "frac")), "fractions.Fraction"));
    CHECK_INT(ds_value_kind_of(ds_value_get(v, "f8")), DS_VALUE_OBJECT);
}

static void we_read_torchs(void **unused)
{
    (void)unused;
    static const char *const zoos[] = {"zoo.pth", "zoo_old.pth", "zoo3.pth", "zoo4.pth",
                                       "zoo5.pth"};
    const char *folder = folder_make();
    int status = peer("write", folder);
    if (status == SKIPPED) {
        folder_remove();
        skip();
    }
    CHECK_INT(status, 0);
    ds_value *want = zoo();
    for (int i = 0; i < 5; i++) {
        ds_value *v = ds_value_load(folder_path(zoos[i]));
        CHECK(v != NULL);
        same(v, want, zoos[i]);
        ds_value_free(v);
    }
    ds_value_free(want);
    for (int protocol = 2; protocol <= 5; protocol++) {
        char name[20];
        snprintf(name, sizeof name, "objects%d.pth", protocol);
        ds_value *v = ds_value_load(folder_path(name), .objects = true);
        if (!v) fail_msg("%s: %s", name, ds_error());
        check_objects(v);
        ds_value_free(v);
    }
    for (size_t i = 0; i < N_OPTIMIZERS; i++) load_optimizer(optimizers[i]);
    folder_remove();
}

TEST_MAIN(cmocka_unit_test(torch_reads_ours), cmocka_unit_test(we_read_torchs))
