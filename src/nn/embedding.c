/* nn/embedding.c: Embedding, EmbeddingBag.
 * SPDX-License-Identifier: MIT */
#include <deepspeed/autograd.h>
#include <deepspeed/nn.h>

typedef struct Embedding {
    ds_tensor *weight; /* [count, dim] */
    int64_t padding_idx;
    ds_embedding_opts opts;
} Embedding;

/* indices int64 of any shape [...] -> [...,dim]; an index outside of the table
 * is found by the op, on a GPU at the next synchronisation. */
static ds_tensor *embedding_forward(void *self, ds_tensor *indices)
{
    Embedding *e = self;
    return ds_embedding_with(e->weight, indices, e->padding_idx, e->opts);
}

static void embedding_describe(void *self, FILE *to)
{
    Embedding *e = self;
    fprintf(to, "%lld, %lld", (long long)ds_size(e->weight, 0), (long long)ds_size(e->weight, 1));
    if (e->padding_idx >= 0) fprintf(to, ", padding_idx=%lld", (long long)e->padding_idx);
    if (e->opts.scale_grad_by_freq) fputs(", scale_grad_by_freq=True", to);
}

/* weight [count, dim] from N(0, 1); the row padding_idx is 0 and gets no
 * gradient. padding_idx -1: none. */
static ds_tensor *embedding_weight(ds_module *m, int64_t count, int64_t dim, int64_t padding_idx)
{
    if (count <= 0 || dim <= 0 || padding_idx >= count) {
        ds_fail(DS_EINVAL,
                "%s %s: count = %lld, dim = %lld, padding_idx = %lld: expected at least 1, 1, and "
                "-1 or a row",
                ds_module_type_of(m)->name, ds_module_name(m), (long long)count, (long long)dim,
                (long long)padding_idx);
        return NULL;
    }
    ds_tensor *weight = ds_module_param(m, "weight", ds_empty(DS_F32, ds_shape(count, dim)));
    ds_init_normal(weight, 0, 1);
    if (padding_idx >= 0) ds_init_constant(ds_select(ds_detach(weight), 0, padding_idx), 0);
    return weight;
}

ds_module *ds_nn_embedding_with(ds_module *parent, const char *name, int64_t count, int64_t dim,
                                int64_t padding_idx, ds_embedding_opts opts)
{
    static const ds_module_type type = {"Embedding", sizeof(Embedding),
                                        .forward = embedding_forward,
                                        .describe = embedding_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    Embedding *e = ds_self(m);
    e->padding_idx = padding_idx < 0 ? -1 : padding_idx, e->opts = opts;
    e->weight = embedding_weight(m, count, dim, padding_idx);
    return m;
}

ds_module *ds_nn_embedding(ds_module *parent, const char *name, int64_t count, int64_t dim,
                           int64_t padding_idx)
{
    return ds_nn_embedding_with(parent, name, count, dim, padding_idx, (ds_embedding_opts){0});
}

/* ---- EmbeddingBag ------------------------------------------------------------------------------------ */

typedef struct EmbeddingBag {
    Embedding table;
    ds_bag_mode mode;
    bool include_last_offset;
} EmbeddingBag;

/* indices [M], offsets, per_sample_weights; or indices [B,L], per_sample_weights */
static ds_tensor *embedding_bag_forward(void *self, ds_tensor **in, int n)
{
    EmbeddingBag *e = self;
    if (n < 1 || n > 3)
        return ds_fail(DS_EINVAL, "EmbeddingBag: %d inputs: expected 1 to 3", n), NULL;
    bool rows = ds_ndim(in[0]) == 2 && n < 3;
    ds_tensor *offsets = n > 1 && !rows ? in[1] : NULL, *each = n > 1 && rows ? in[1] : NULL;
    return ds_embedding_bag(e->table.weight, in[0], e->table.padding_idx, offsets,
                            .per_sample_weights = n > 2 ? in[2] : each, .mode = e->mode,
                            .include_last_offset = e->include_last_offset,
                            .scale_grad_by_freq = e->table.opts.scale_grad_by_freq);
}

static void embedding_bag_describe(void *self, FILE *to)
{
    EmbeddingBag *e = self;
    embedding_describe(&e->table, to);
    static const char *const modes[] = {"mean", "sum", "max"};
    fprintf(to, ", mode='%s'", modes[e->mode]);
}

ds_module *ds_nn_embedding_bag_with(ds_module *parent, const char *name, int64_t count, int64_t dim,
                                    ds_nn_embedding_bag_opts o)
{
    static const ds_module_type type = {"EmbeddingBag", sizeof(EmbeddingBag),
                                        .forward_n = embedding_bag_forward,
                                        .describe = embedding_bag_describe};
    ds_module *m = ds_module_new(parent, name, &type);
    EmbeddingBag *e = ds_self(m);
    e->mode = o.mode, e->include_last_offset = o.include_last_offset;
    e->table.padding_idx = o.padding_idx < 0 ? -1 : o.padding_idx;
    e->table.opts.scale_grad_by_freq = o.scale_grad_by_freq;
    if ((unsigned)o.mode <= DS_BAG_MAX)
        e->table.weight = embedding_weight(m, count, dim, o.padding_idx);
    else
        ds_fail(DS_EINVAL, "EmbeddingBag %s: there is no mode %d", ds_module_name(m), (int)o.mode);
    return m;
}

ds_module *ds_nn_embedding_bag(ds_module *parent, const char *name, int64_t count, int64_t dim,
                               ds_bag_mode mode, int64_t padding_idx)
{
    ds_nn_embedding_bag_opts o = {.mode = mode, .padding_idx = padding_idx};
    return ds_nn_embedding_bag_with(parent, name, count, dim, o);
}
