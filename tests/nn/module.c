/* tests/nn/module.c: the tree of modules: names, ownership, call, state dicts,
 * bad input.
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "nn/module.h"

typedef struct Pair {
    ds_module *a, *b;
} Pair;

static ds_tensor *pair_forward(void *self, ds_tensor *x)
{
    Pair *p = self;
    return ds_call(p->b, ds_relu(ds_call(p->a, x)));
}

static ds_module *pair(const char *second, int width)
{
    static const ds_module_type type = {"Pair", sizeof(Pair), .forward = pair_forward};
    ds_module *m = ds_module_new(NULL, "net", &type);
    Pair *p = ds_self(m);
    p->a = ds_nn_linear(m, "a", 5, 4);
    p->b = ds_nn_linear(m, second, width, 3, .no_bias = true);
    return m;
}

static void names_and_numbers(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 4);
    const char *path;
    CHECK_INT(ds_module_params(m), 3);
    CHECK_INT(ds_module_numel(m), 5 * 4 + 4 + 4 * 3);
    ds_tensor *w = ds_module_param_at(m, 2, &path);
    CHECK(!strcmp(path, "b.weight") && ds_requires_grad(w));
    CHECK(!ds_module_param_at(m, 3, &path) && !path);
    ds_state *d = ds_module_state(m);
    CHECK_INT(ds_state_len(d), 3);
    CHECK(!strcmp(ds_state_name(d, 1), "a.bias"));
    CHECK(ds_state_at(d, 2) == w);
    ds_state_free(d);
    CHECK(ds_module_of(ds_self(m)) == m);
    ds_module_free(m);
    ds_scope_close(s);
}

static void call_leaves_one_tensor(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 4);
    ds_tensor *x = ds_ones(DS_F32, ds_shape(2, 5));
    bool was = ds_set_grad(false);
    int64_t before = ds_live_tensors();
    ds_tensor *y = ds_call(m, x);
    CHECK_INT(ds_live_tensors() - before, 1);
    CHECK(ds_size(y, 0) == 2 && ds_size(y, 1) == 3);
    ds_set_grad(was);
    ds_module_free(m);
    ds_scope_close(s);
}

static void a_wrong_width_names_the_module(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 7);
    CHECK(!ds_call(m, ds_ones(DS_F32, ds_shape(2, 5))));
    CHECK(!strncmp(ds_error(), "net.b: linear: ", 15));
    ds_error_clear();
    CHECK(!ds_call(m, NULL));
    ds_error_clear();
    CHECK(!ds_call(m, ds_ones(DS_F32, ds_shape(2, 5)), ds_ones(DS_F32, ds_shape(2, 5))));
    CHECK_ERROR("net: Pair takes one tensor: it was given 2");
    ds_module_free(m);
    ds_scope_close(s);
}

static void bad_names(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("a", 4);
    CHECK_ERROR("net: \"a\" cannot be a name here: a child has it already");
    ds_module_free(m);
    m = pair("b.c", 4);
    CHECK_ERROR("expected one word without a dot");
    ds_module_free(m);
    m = pair("b", 4);
    ds_nn_linear(m, "c", 0, 3);
    CHECK_ERROR("Linear c: in = 0, out = 3");
    ds_nn_conv2d(m, "d", 3, 6, 5, .groups = 2);
    CHECK_ERROR("Conv2d d:");
    ds_module_free(m);
    ds_scope_close(s);
}

static void loading_is_all_or_nothing(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 4);
    ds_state *d = ds_state_new();
    ds_state_set(d, "a.weight", ds_ones(DS_F32, ds_shape(4, 5)));
    ds_state_set(d, "a.bias", ds_ones(DS_F32, ds_shape(9)));
    ds_state_set(d, "x", ds_ones(DS_F32, ds_shape(1)));
    CHECK(ds_module_load(m, d) != DS_OK);
    CHECK(strstr(ds_error(), "a.bias is [9], expected [4]"));
    CHECK(strstr(ds_error(), "missing b.weight [3, 4]") && strstr(ds_error(), "unknown x"));
    ds_error_clear();
    ds_state *mine = ds_module_state(m);
    CHECK(((const float *)ds_data(ds_state_get(mine, "a.weight")))[0] != 1);
    ds_module *other = pair("b", 4);
    CHECK_INT(ds_module_load(other, mine), DS_OK);
    ds_state_free(mine);
    ds_state_free(d);
    ds_module_free(m);
    ds_module_free(other);
    ds_scope_close(s);
}

/* Another model's weights: some of each kind are named, the others counted. */
static void much_that_does_not_fit(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "net"), *other = ds_nn_sequential(NULL, "other");
    for (int i = 0; i < 10; i++) {
        char name[8], low[8];
        snprintf(name, sizeof name, "%d", i);
        snprintf(low, sizeof low, "a%d", i);
        ds_nn_linear(m, name, 2, 3, .no_bias = true);
        ds_nn_linear(other, low, 2, 3, .no_bias = true);
        ds_nn_linear(other, name, 2, 4, .no_bias = true);
    }
    ds_state *d = ds_module_state(other), *less = ds_state_new();
    CHECK(ds_module_load(m, d) != DS_OK);
    CHECK(strstr(ds_error(), "5.weight is [4, 2], expected [3, 2]; 4 more of other shapes"));
    CHECK_ERROR("unknown a5.weight; 4 more unknown");
    ds_state_set(less, "x", ds_ones(DS_F32, ds_shape(1)));
    CHECK(ds_module_load(m, less) != DS_OK);
    CHECK(!strstr(ds_error(), "missing 6.weight"));
    CHECK_ERROR("missing 5.weight [3, 2]; 4 more missing; unknown x");
    ds_state_free(d);
    ds_state_free(less);
    ds_module_free(m);
    ds_module_free(other);
    ds_scope_close(s);
}

/* Of a tree only the root can be freed, and a module without a type is one that
 * cannot be called. */
static ds_tensor *gives_no_result(void *self, ds_tensor *x)
{
    (void)self, (void)x;
    return NULL;
}

static void not_ones_own(void **state)
{
    (void)state;
    ds_module *m = pair("b", 4);
    ds_module_free(ds_module_child(m, 0));
    CHECK_ERROR("module_free: net.a belongs to net, which frees it");
    CHECK_INT(ds_module_children(m), 2);
    ds_module_free(m);
    m = ds_module_new(NULL, "none", NULL);
    CHECK_ERROR("module_new: an operand is NULL");
    CHECK(m && !ds_call(m, ds_ones(DS_F32, ds_shape(1))));
    CHECK_ERROR("has no forward");
    ds_module_free(m);
    m = ds_module_make(NULL, "absent", "Absent", .forward = gives_no_result);
    CHECK(!ds_call(m, ds_ones(DS_F32, ds_shape(1))));
    CHECK_ERROR("absent: forward returned NULL");
    ds_module_free(m);
}

/* Names of DistributedDataParallel's, and of a module that is wrapped in
 * another one. */
static void prefixes_are_named(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 4), *outer = ds_nn_sequential(NULL, "outer");
    ds_nn_linear(ds_nn_sequential(outer, "module"), "a", 5, 4);
    ds_state *d = ds_module_state(m);
    CHECK_INT(ds_state_add_prefix(d, "module."), DS_OK);
    CHECK(!strcmp(ds_state_name(d, 0), "module.a.weight"));
    CHECK(ds_module_load(m, d) != DS_OK);
    CHECK_ERROR("net: the state dict does not fit: all its names begin with \"module.\", as "
                "DistributedDataParallel and DataParallel save them");
    CHECK(ds_module_load(m, d) != DS_OK);
    CHECK_ERROR("ds_state_strip_prefix(state, \"module.\") takes it off");
    CHECK_INT(ds_state_strip_prefix(d, "module."), DS_OK);
    CHECK_INT(ds_state_strip_prefix(d, "module."), DS_OK); /* there is none */
    CHECK_INT(ds_module_load(m, d), DS_OK);
    ds_state_add_prefix(d, "_orig_mod.");
    CHECK(ds_module_load(m, d) != DS_OK);
    CHECK_ERROR("begin with \"_orig_mod.\", those of the module do not");
    ds_state_set(d, "x", ds_ones(DS_F32, ds_shape(1))); /* not all of them */
    CHECK(ds_module_load(m, d) != DS_OK);
    CHECK_ERROR("missing a.weight");
    ds_state_free(d);

    d = ds_module_state(outer);
    CHECK_INT(ds_state_strip_prefix(d, "module."), DS_OK);
    CHECK(ds_module_load(outer, d) != DS_OK);
    CHECK_ERROR("ds_state_add_prefix(state, \"module.\") puts it there");
    ds_state_set(d, "module.a.bias", ds_ones(DS_F32, ds_shape(1)));
    CHECK(ds_state_strip_prefix(d, "module.") != DS_OK);
    CHECK_ERROR("without \"module.\" two tensors are called a.bias");
    CHECK(ds_state_strip_prefix(d, "a.weight") != DS_OK);
    CHECK_ERROR("\"a.weight\" is the whole name of a tensor");
    CHECK_INT(ds_state_len(d), 3);
    ds_state_free(d);
    ds_module_free(outer);
    ds_module_free(m);
    ds_scope_close(s);
}

static void modes_reach_all(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_batch_norm2d(m, "0", 3);
    ds_nn_dropout(m, "1", 0.5);
    ds_tensor *x = ds_randn(DS_F32, ds_shape(4, 3, 2, 2));
    CHECK(ds_call(m, x));
    ds_module_train(m, false);
    CHECK(!ds_module_training(ds_module_child(m, 1)));
    ds_tensor *y = ds_call(m, x), *z = ds_call(m, x);
    CHECK(!memcmp(ds_data(y), ds_data(z), 48 * sizeof(float)));
    ds_state *d = ds_module_state(m);
    CHECK_CLOSE(ds_item(ds_state_get(d, "0.num_batches_tracked")), 1, 0);
    CHECK_INT(ds_state_len(d), 5);
    CHECK_INT(ds_module_params(m), 2);
    ds_state_free(d);
    ds_module_free(m);
    ds_scope_close(s);
}

/* ---- hooks around calls -------------------------------------------------------------------------------- */

typedef struct Calls {
    char text[128];
    const char *refuse; /* the module whose hook fails, */
    bool after;         /* after its forward */
} Calls;

static ds_status before_call(void *arg, ds_module *m)
{
    Calls *c = arg;
    sprintf(c->text + strlen(c->text), "<%s", ds_module_name(m));
    bool refuse = !c->after && c->refuse && !strcmp(c->refuse, ds_module_name(m));
    return refuse ? ds_fail(DS_EIO, "no %s today", c->refuse) : DS_OK;
}

static ds_status after_call(void *arg, ds_module *m, ds_tensor *y)
{
    Calls *c = arg;
    sprintf(c->text + strlen(c->text), "%s%s>", y ? "" : "!", ds_module_name(m));
    bool refuse = c->after && c->refuse && !strcmp(c->refuse, ds_module_name(m));
    return refuse ? ds_fail(DS_EIO, "no more %s", c->refuse) : DS_OK;
}

static void hooks_stand_around_each_call(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    Calls calls = {0};
    dsi_call_hooks hooks = {&calls, before_call, after_call};
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_linear(m, "0", 5, 4);
    dsi_module_set_hooks(m, &hooks);
    ds_nn_relu(m, "1"); /* made later */
    ds_tensor *x = ds_ones(DS_F32, ds_shape(2, 5));
    CHECK(ds_call(m, x));
    CHECK(!strcmp(calls.text, "<net<00><11>net>"));

    calls = (Calls){.refuse = "1"};
    CHECK(!ds_call(m, x));
    CHECK_ERROR("net.1: no 1 today");
    CHECK(!strcmp(calls.text, "<net<00><1!net>"));
    calls = (Calls){.refuse = "0", .after = true};
    CHECK(!ds_call(m, x));
    CHECK_ERROR("net.0: no more 0");
    CHECK(!strcmp(calls.text, "<net<00>!net>"));

    calls = (Calls){0};
    dsi_module_set_hooks(m, NULL);
    CHECK(ds_call(m, x));
    CHECK(!*calls.text);
    ds_module_free(m);
    ds_scope_close(s);
}

/* ---- another dtype ------------------------------------------------------------------------------------- */

static void to_another_dtype_handles_stay(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "net");
    ds_nn_conv2d(m, "0", 2, 3, 3);
    ds_nn_batch_norm2d(m, "1", 3);
    ds_tensor *w = ds_module_param_at(m, 0, NULL), *x = ds_randn(DS_F32, ds_shape(4, 2, 5, 5));
    ds_tensor *was = ds_clone(w), *y = ds_call(m, x);
    CHECK_INT(ds_backward(ds_mean(ds_mul(y, y))), DS_OK);

    CHECK_INT(ds_module_to(m, DS_BF16), DS_OK);
    CHECK(ds_module_param_at(m, 0, NULL) == w && ds_requires_grad(w));
    CHECK_INT(ds_dtype_of(w), DS_BF16);
    CHECK_INT(ds_dtype_of(ds_grad(w)), DS_BF16);
    ds_tensor *rounded = ds_cast(was, DS_BF16);
    CHECK(!memcmp(ds_data(w), ds_data(rounded), (size_t)ds_numel(w) * 2));
    ds_state *d = ds_module_state(m);
    CHECK_INT(ds_dtype_of(ds_state_get(d, "1.running_var")), DS_BF16);
    CHECK_INT(ds_dtype_of(ds_state_get(d, "1.num_batches_tracked")), DS_I64);
    ds_state_free(d);
    y = ds_call(m, ds_cast(x, DS_BF16));
    CHECK_INT(ds_dtype_of(y), DS_BF16);
    ds_module_zero_grad(m);
    CHECK_INT(ds_backward(ds_mean(y)), DS_OK);
    CHECK_INT(ds_dtype_of(ds_grad(w)), DS_BF16);

    CHECK(!ds_call(m, x));
    ds_error_clear();
    CHECK(ds_module_to(m, DS_I64) != DS_OK);
    CHECK_ERROR("module_to: int64: expected a floating-point dtype");
    CHECK(ds_module_to(NULL, DS_F16) != DS_OK);
    ds_error_clear();
    ds_module_free(m);
    ds_scope_close(s);
}

/* Also where the module was made in a scope that stays: nothing else may hold
 * the wide values. */
static void to_half_the_memory(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    int64_t start = (int64_t)ds_memory_allocated(ds_current_device());
    ds_module *m = ds_nn_linear(NULL, "fc", 1024, 1024, .no_bias = true);
    int64_t wide = (int64_t)ds_memory_allocated(ds_current_device()) - start;
    CHECK_INT(ds_module_to(m, DS_F16), DS_OK);
    int64_t narrow = (int64_t)ds_memory_allocated(ds_current_device()) - start;
    CHECK_INT(wide, 2 * narrow);
    ds_module_free(m);
    ds_scope_close(s);
}

/* ---- paths, ties, partial state dicts ------------------------------------------------------------------ */

static ds_tensor *tied_forward(void *self, ds_tensor *ids)
{
    return ds_call_child(self, "head",
                         ds_call_child(self, "body", ds_call_child(self, "tok", ids)));
}

/* tok [7,4], body.0 [4,4], body.1 a ReLU, head tied to tok */
static ds_module *tied_new(void)
{
    ds_module_type type = {"Tied", .forward = tied_forward}; /* a temporary is enough */
    ds_module *m = ds_module_new(NULL, "net", &type);
    ds_nn_embedding(m, "tok", 7, 4, -1);
    ds_module *body = ds_nn_sequential(m, "body");
    ds_nn_linear(body, NULL, 4, 4);
    ds_nn_relu(body, NULL);
    ds_nn_linear(m, "head", 4, 7, .no_bias = true, .tied = ds_parameter(m, "tok.weight"));
    return m;
}

static void paths_and_numbers(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = tied_new();
    CHECK(ds_submodule(m, "body.1") == ds_module_child(ds_module_child(m, 1), 1));
    CHECK(!strcmp(ds_module_name(ds_submodule(m, "body.0")), "0"));
    CHECK(ds_submodule(m, "") == m);
    CHECK(ds_parameter(m, "body.0.bias") == ds_module_param_at(m, 2, NULL));
    CHECK(!ds_submodule(m, "body.2"));
    CHECK_ERROR("submodule: body (Sequential) has no \"2\": expected one of: 0, 1");
    CHECK(!ds_parameter(m, "body.0.gain"));
    CHECK_ERROR("parameter: 0 (Linear) has no \"gain\": expected one of: weight, bias");
    ds_module *empty = ds_nn_relu(NULL, "relu");
    CHECK(!ds_submodule(empty, "fc"));
    CHECK_ERROR("has no \"fc\": it has neither children nor parameters");
    ds_module_free(empty);
    CHECK(!ds_parameter(m, "tail.weight"));
    CHECK_ERROR("parameter: net (Tied) has no \"tail.weight\"");
    CHECK(!ds_submodule(NULL, "a") && !ds_parameter(m, NULL));
    ds_error_clear();
    CHECK(!strcmp(ds_module_type_of(m)->name, "Tied"));
    ds_module_free(m);
    ds_scope_close(s);
}

/* Under both names in the state dict, trained once, loaded by either name. */
static void tied_weights(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = tied_new(), *other = tied_new();
    CHECK_INT(ds_module_params(m), 3);
    CHECK_INT(ds_module_numel(m), 7 * 4 + 4 * 4 + 4);
    ds_state *d = ds_module_state(m);
    CHECK_INT(ds_state_len(d), 4);
    CHECK(!strcmp(ds_state_name(d, 3), "head.weight") && ds_state_at(d, 3) == ds_state_at(d, 0));
    ds_tensor *ids = ds_from_data(DS_I64, ds_shape(2), (int64_t[]){1, 5});
    CHECK_INT(ds_backward(ds_sum(ds_call(m, ids))), DS_OK);
    CHECK_INT(ds_size(ds_grad(ds_state_at(d, 3)), 0), 7);
    CHECK_INT(ds_module_to(m, DS_F64), DS_OK);
    CHECK_INT(ds_dtype_of(ds_parameter(m, "head.weight")), DS_F64);
    for (int i = 0; i < 2; i++) { /* as files of safetensors have them: one name */
        ds_state *one = ds_state_new();
        ds_state_set(one, i ? "tok.weight" : "head.weight", ds_full(DS_F32, ds_shape(7, 4), 2 + i));
        ds_state_set(one, "body.0.weight", ds_state_at(d, 1));
        ds_state_set(one, "body.0.bias", ds_state_at(d, 2));
        CHECK_INT(ds_module_load(other, one), DS_OK);
        CHECK_CLOSE(ds_item(ds_mean(ds_parameter(other, "tok.weight"))), 2 + i, 1e-6);
        ds_state_free(one);
    }
    ds_state_free(d);
    CHECK(!ds_module_tie(m, "w", ds_mul(ds_parameter(m, "tok.weight"), ds_scalar(DS_F64, 2))));
    CHECK_ERROR("module_tie: w is the result of an op");
    ds_nn_linear(m, "wrong", 5, 7, .tied = ds_parameter(m, "tok.weight"));
    CHECK_ERROR("Linear wrong: the tied weight does not have the shape [7, 5]");
    ds_module_free(m);
    ds_module_free(other);
    ds_scope_close(s);
}

static void partial_loading_lists_the_rest(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = pair("b", 4);
    ds_state *d = ds_state_new(), *missing, *unexpected;
    ds_state_set(d, "a.weight", ds_full(DS_F32, ds_shape(4, 5), 3));
    ds_state_set(d, "c.weight", ds_ones(DS_F32, ds_shape(1)));
    CHECK_INT(ds_module_load_partial(m, d, &missing, &unexpected), DS_OK);
    CHECK_CLOSE(ds_item(ds_mean(ds_parameter(m, "a.weight"))), 3, 0);
    CHECK_INT(ds_state_len(missing), 2);
    CHECK(!strcmp(ds_state_name(missing, 0), "a.bias") && ds_state_get(missing, "b.weight"));
    CHECK_INT(ds_state_len(unexpected), 1);
    CHECK(!strcmp(ds_state_name(unexpected, 0), "c.weight"));
    ds_state_free(missing), ds_state_free(unexpected);

    ds_state_set(d, "a.weight", ds_ones(DS_F32, ds_shape(4, 5)));
    ds_state_set(d, "b.weight", ds_ones(DS_F32, ds_shape(1)));
    CHECK(ds_module_load_partial(m, d, NULL, NULL) != DS_OK);
    CHECK_ERROR("net: the state dict does not fit: b.weight is [1], expected [3, 4]");
    CHECK_CLOSE(ds_item(ds_mean(ds_parameter(m, "a.weight"))), 3, 0);
    CHECK(ds_module_load_partial(NULL, d, &missing, &unexpected) != DS_OK);
    ds_error_clear();
    ds_state_free(missing), ds_state_free(unexpected);
    ds_state_free(d);
    ds_module_free(m);
    ds_scope_close(s);
}

/* ---- forward hooks ------------------------------------------------------------------------------------- */

static ds_status double_input(void *arg, ds_module *m, ds_tensor **x, int n)
{
    ++*(int *)arg;
    CHECK(n == 1 && !strcmp(ds_module_name(m), "0"));
    x[0] = ds_scale(x[0], 2);
    return DS_OK;
}

static ds_tensor *add_input(void *arg, ds_module *m, ds_tensor **x, int n, ds_tensor *y)
{
    (void)m, (void)n;
    ++*(int *)arg;
    return ds_add(y, x[0]);
}

static ds_tensor *refuse_output(void *arg, ds_module *m, ds_tensor **x, int n, ds_tensor *y)
{
    (void)m, (void)x, (void)n, (void)y;
    ds_fail(DS_ESTATE, "hook %s", (const char *)arg);
    return NULL;
}

static ds_tensor *drop_output(void *arg, ds_module *m, ds_tensor **x, int n, ds_tensor *y)
{
    (void)arg, (void)m, (void)x, (void)n, (void)y;
    return NULL;
}

static ds_status refuse_input(void *arg, ds_module *m, ds_tensor **x, int n)
{
    (void)arg, (void)m, (void)x, (void)n;
    return DS_EIO;
}

/* relu(2 x) + 2 x + 2 x; the caller's array keeps its tensors */
static void forward_hooks(void **state)
{
    (void)state;
    ds_scope *s = ds_scope_open();
    ds_module *m = ds_nn_sequential(NULL, "net"), *relu = ds_nn_relu(m, NULL);
    int calls = 0;
    ds_tensor *x = ds_full(DS_F32, ds_shape(2), 1), *in[] = {x};
    int before = ds_register_forward_pre_hook(relu, double_input, &calls);
    int first = ds_register_forward_hook(relu, add_input, &calls);
    int second = ds_register_forward_hook(relu, add_input, &calls);
    CHECK(before >= 0 && first != before && second != first);
    CHECK_CLOSE(ds_item(ds_mean(ds_call_n(m, in, 1))), 6, 0);
    CHECK(in[0] == x && calls == 3);
    CHECK_CLOSE(ds_item(ds_mean(ds_call_n(relu, in, 1))), 6, 0);
    CHECK(in[0] == x);
    ds_remove_forward_hook(relu, before);
    ds_remove_forward_hook(relu, second);
    CHECK_CLOSE(ds_item(ds_mean(ds_call(m, x))), 2, 0);
    ds_remove_forward_hook(relu, 9);
    CHECK_ERROR("remove_forward_hook: 0 has no hook 9");
    CHECK(ds_register_forward_hook(NULL, add_input, NULL) < 0);
    CHECK_ERROR("register_forward_hook");
    int silent = ds_register_forward_hook(relu, drop_output, NULL);
    CHECK(!ds_call(m, x));
    CHECK_ERROR("net.0: a forward_hook returned NULL");
    ds_remove_forward_hook(relu, silent);
    silent = ds_register_forward_pre_hook(relu, refuse_input, NULL);
    CHECK(!ds_call(m, x));
    CHECK_INT(ds_error_status(), DS_EIO);
    CHECK_ERROR("net.0: a forward_pre_hook failed and did not say why");
    ds_remove_forward_hook(relu, silent);
    char name[] = "7";
    ds_register_forward_hook(relu, refuse_output, name);
    CHECK(!ds_call(m, x));
    CHECK_ERROR("net.0: hook 7");
    ds_module_free(m);
    ds_scope_close(s);
}

TEST_MAIN(cmocka_unit_test(names_and_numbers), cmocka_unit_test(call_leaves_one_tensor),
          cmocka_unit_test(a_wrong_width_names_the_module), cmocka_unit_test(bad_names),
          cmocka_unit_test(loading_is_all_or_nothing), cmocka_unit_test(much_that_does_not_fit),
          cmocka_unit_test(not_ones_own), cmocka_unit_test(prefixes_are_named),
          cmocka_unit_test(modes_reach_all), cmocka_unit_test(hooks_stand_around_each_call),
          cmocka_unit_test(to_another_dtype_handles_stay), cmocka_unit_test(to_half_the_memory),
          cmocka_unit_test(paths_and_numbers), cmocka_unit_test(tied_weights),
          cmocka_unit_test(partial_loading_lists_the_rest), cmocka_unit_test(forward_hooks))
