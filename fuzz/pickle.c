/* fuzz/pickle.c: any bytes as a pickle, or as a file of torch.save: no crash,
 * no leak, nothing read outside, no more memory than the input's size allows;
 * and what is loaded can be saved, and is loaded again as much.
 *
 * The first byte chooses: 0, the rest is a pickle, whose storages are made up;
 * else a file; from 2 on with objects that are not known, 2 as 0. scripts/fuzz
 * pickle 300
 * SPDX-License-Identifier: MIT */
#include "kernels.h"

#include "checkpoint/resolve.h"

#define MOST_ELEMENTS 4096 /* of a storage that is made up */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void walk(const ds_value *v, int depth)
{
    ds_tensor *x = NULL;
    must(depth <= DSI_VALUE_DEPTH + 1 && ds_value_class(v));
    if (ds_value_kind_of(v) == DS_VALUE_TENSOR && ds_value_read_tensor(v, "", &x) == DS_OK)
        touch(x);
    if (ds_value_text(v))
        must(!ds_value_text(v)[ds_value_len(v)]);
    else
        for (int64_t i = 0; i < ds_value_len(v); i++) walk(ds_value_at(v, i), depth + 1);
}

static void make_up(dsi_unpickler *u)
{
    for (int i = 0; i < u->storages.n; i++) {
        dsi_pickle_storage *s = u->storages.at[i];
        ds_dtype dtype;
        dtype = DS_U8; /* of untyped bytes */
        if ((s->dtype && !dsi_torch_dtype_named(s->dtype, &dtype)) || s->numel > MOST_ELEMENTS)
            continue;
        ds_scope *scope = ds_scope_open();
        s->flat = dsi_ref(
            dsi_new_on(dsi_device_get((ds_device){DS_CPU, 0}), dtype, ds_shape(s->numel)));
        if (s->flat && s->numel)
            memset(ds_data_mut(s->flat), 0, (size_t)s->numel * ds_dtype_size(dtype));
        ds_scope_close(scope);
    }
}

static ds_value *unpickle(const uint8_t *data, size_t n, bool objects)
{
    dsi_unpickler u = {.what = "fuzz", .p = data, .bytes = n, .objects = objects};
    ds_value *v = dsi_unpickle(&u);
    if (v) make_up(&u);
    if (v && !dsi_resolve_tensors("fuzz", v, n, objects)) {
        u.failed = true;
        ds_value_free(v);
        v = NULL;
    }
    dsi_unpickler_free(&u);
    return v;
}

/* v as a pickle, and that as a value. */
static void again(ds_value *v)
{
    dsi_save_plan stored;
    dsi_text text = {0};
    bool plain = dsi_save_plan_make(&stored, "fuzz", v);
    must(plain || strstr(ds_error(), "an object of"));
    ds_error_clear();
    if (plain && dsi_pickle_write(&text, "fuzz", v, &stored)) {
        ds_value *w = unpickle((const uint8_t *)text.s, text.n, false);
        must(w || strstr(ds_error(), "its own size"));
        if (w) must(ds_value_len(w) == ds_value_len(v));
        ds_value_free(w);
    } else if (plain) {
        must_say();
    }
    dsi_text_free(&text);
    dsi_save_plan_free(&stored);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!n) return 0;
    bool objects = data[0] >= 2, pickle = !data[0] || data[0] == 2;
    ds_value *v = pickle ? unpickle(data + 1, n - 1, objects)
                         : ds_value_load(file_of(data + 1, n - 1), .objects = objects);
    if (v) {
        walk(v, 0);
        again(v);
    } else {
        must_say();
    }
    ds_value_free(v);
    must(!ds_live_tensors());
    return 0;
}
