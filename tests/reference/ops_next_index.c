/* tests/reference/ops_next_index.c: by index, in order, over dimensions, in other
 * shapes; of family ops-next.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

static ds_tensor *x_of(OpRun *run) { return op_input(run, "input"); }
static int dim_of(OpRun *run) { return (int)op_int(run, "dim", 0); }

static ds_tensor *gather(OpRun *run)
{
    return ds_gather(x_of(run), dim_of(run), op_input(run, "index"));
}

static ds_tensor *index_select(OpRun *run)
{
    return ds_index_select(x_of(run), dim_of(run), op_input(run, "index"));
}

static ds_tensor *index_add(OpRun *run)
{
    return ds_index_add(x_of(run), dim_of(run), op_input(run, "index"), op_input(run, "source"),
                        op_number(run, "alpha", 1));
}

static ds_tensor *scatter(OpRun *run)
{
    ds_tensor *x = x_of(run), *index = op_input(run, "index"), *src = op_input(run, "src");
    const char *reduce = reference_text(run->attrs, "reduce", "");
    if (op_has(run, "value"))
        src = ds_full(ds_dtype_of(x), ds_shape_of(index), op_number(run, "value", 0));
    if (!strcmp(reduce, "add")) return ds_scatter_add(x, dim_of(run), index, src);
    if (!strcmp(reduce, "multiply")) return ds_scatter_multiply(x, dim_of(run), index, src);
    return ds_scatter(x, dim_of(run), index, src);
}

static ds_tensor *scatter_add(OpRun *run)
{
    return ds_scatter_add(x_of(run), dim_of(run), op_input(run, "index"), op_input(run, "src"));
}

/* ---- order ------------------------------------------------------------------------------------------- */

static ds_tensor *argmax(OpRun *run)
{
    ds_tensor *x = x_of(run);
    bool keepdim = op_bool(run, "keepdim", false);
    if (op_has(run, "dim")) {
        ds_tensor *y = ds_argmax(x, dim_of(run));
        return keepdim && ds_ndim(x) ? ds_unsqueeze(y, dim_of(run)) : y;
    }
    ds_dims ones = {.n = keepdim ? ds_ndim(x) : 0};
    for (int i = 0; i < ones.n; i++) ones.d[i] = 1;
    return ds_reshape(ds_argmax(ds_flatten(x, 0), 0), ones);
}

static ds_tensor *max(OpRun *run)
{
    ds_tensor *x = x_of(run);
    bool keepdim = op_bool(run, "keepdim", false);
    if (!op_has(run, "dim")) return ds_amax(x);
    ds_tensor *y = ds_max(x, dim_of(run), keepdim), *at = NULL;
    if (y) at = ds_argmax(ds_dtype_of(x) == DS_BOOL ? ds_cast(x, DS_I64) : x, dim_of(run));
    op_output(run, "indices", keepdim && ds_ndim(x) ? ds_unsqueeze(at, dim_of(run)) : at);
    return y;
}

static ds_tensor *sort(OpRun *run)
{
    ds_tensor *indices;
    ds_tensor *y = ds_sort(x_of(run), (int)op_int(run, "dim", -1),
                           op_bool(run, "descending", false), &indices);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *topk(OpRun *run)
{
    ds_tensor *indices;
    ds_tensor *y = ds_topk(x_of(run), op_int(run, "k", 1), (int)op_int(run, "dim", -1),
                           !op_bool(run, "largest", true), &indices);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *cumsum(OpRun *run) { return ds_cumsum(x_of(run), dim_of(run)); }
static ds_tensor *cumprod(OpRun *run) { return ds_cumprod(x_of(run), dim_of(run)); }

static ds_tensor *embedding_bag(OpRun *run)
{
    static const char *const modes[] = {"mean", "sum", "max"};
    const char *name = reference_text(run->attrs, "mode", "mean");
    ds_tensor *weight = op_input(run, "weight");
    int64_t padding = op_int(run, "padding_idx", -1);
    if (padding < 0 && op_has(run, "padding_idx")) padding += ds_size(weight, 0);
    int mode = 0;
    while (mode < 3 && strcmp(name, modes[mode]) != 0) mode++;
    return ds_embedding_bag(weight, x_of(run), padding, op_input(run, "offsets"),
                            .per_sample_weights = op_input(run, "per_sample_weights"),
                            .mode = (ds_bag_mode)mode,
                            .include_last_offset = op_bool(run, "include_last_offset", false),
                            .scale_grad_by_freq = op_bool(run, "scale_grad_by_freq", false));
}

/* ---- over dimensions --------------------------------------------------------------------------------- */

static ds_tensor *sum(OpRun *run) { return ds_sum_with(x_of(run), op_reduce(run)); }
static ds_tensor *prod(OpRun *run) { return ds_prod_with(x_of(run), op_reduce(run)); }
static ds_tensor *logsumexp(OpRun *run) { return ds_logsumexp(x_of(run), op_reduce(run)); }

static ds_var_opts var_opts(OpRun *run)
{
    ds_reduce_opts o = op_reduce(run);
    bool biased = !op_bool(run, "unbiased", true);
    return (ds_var_opts){.dims = o.dims,
                         .keepdim = o.keepdim,
                         .correction = biased ? DS_ZERO : op_option(run, "correction")};
}

static ds_tensor *var(OpRun *run) { return ds_var_with(x_of(run), var_opts(run)); }
static ds_tensor *standard(OpRun *run) { return ds_std_with(x_of(run), var_opts(run)); }

static ds_tensor *norm(OpRun *run)
{
    ds_reduce_opts o = op_reduce(run);
    double p = strcmp(reference_text(run->attrs, "p", ""), "fro") != 0 ? op_option(run, "p") : 2;
    return ds_norm_with(x_of(run), (ds_norm_opts){.p = p, .dims = o.dims, .keepdim = o.keepdim});
}

static ds_tensor *einsum(OpRun *run)
{
    ds_tensor *in[8];
    return ds_einsum(reference_text(run->attrs, "equation", ""), in, op_inputs(run, in, 8));
}

/* ---- other shapes ------------------------------------------------------------------------------------ */

/* Sets output1, output2, ...; the first part is the result under its own name,
 * output0. */
static ds_tensor *parts(OpRun *run, ds_tensor **part, int n)
{
    for (int i = 0; i < n; i++) {
        char name[24];
        snprintf(name, sizeof name, "output%d", i);
        op_output(run, name, part[i]);
    }
    return n ? part[0] : NULL;
}

#define PARTS 100

static ds_tensor *split(OpRun *run)
{
    ds_tensor *part[PARTS];
    const json_t *size = json_object_get(run->attrs, "split_size");
    int64_t sizes[PARTS];
    int n = (int)json_array_size(size);
    if (n > PARTS) n = PARTS;
    for (int i = 0; i < n; i++) sizes[i] = json_integer_value(json_array_get(size, (size_t)i));
    n = json_is_array(size)
            ? ds_split_sizes(x_of(run), n, sizes, dim_of(run), part)
            : ds_split_size(x_of(run), json_integer_value(size), dim_of(run), part, PARTS);
    return parts(run, part, n);
}

static ds_tensor *chunk(OpRun *run)
{
    ds_tensor *part[PARTS];
    return parts(run, part, ds_chunk(x_of(run), (int)op_int(run, "chunks", 1), dim_of(run), part));
}

static ds_tensor *flip(OpRun *run)
{
    return ds_flip(x_of(run), reference_dims(run->attrs, "dims"));
}

static ds_tensor *roll(OpRun *run)
{
    return ds_roll(x_of(run), reference_dims(run->attrs, "shifts"),
                   reference_dims(run->attrs, "dims"));
}

static ds_tensor *repeat(OpRun *run)
{
    return ds_repeat(x_of(run), reference_dims(run->attrs, "repeats"));
}

static ds_tensor *repeat_interleave(OpRun *run)
{
    ds_tensor *x = x_of(run), *repeats = op_input(run, "repeats");
    if (!op_has(run, "dim")) x = ds_flatten(x, 0);
    if (repeats) return ds_repeat_interleave_tensor(x, repeats, dim_of(run));
    return ds_repeat_interleave(x, op_int(run, "repeats", 1), dim_of(run));
}

static ds_tensor *pad(OpRun *run)
{
    static const char *const modes[] = {"constant", "reflect", "replicate", "circular"};
    const char *name = reference_text(run->attrs, "mode", "constant");
    int mode = 0;
    while (mode < 3 && strcmp(name, modes[mode]) != 0) mode++;
    return ds_pad_with(
        x_of(run), reference_dims(run->attrs, "pad"),
        (ds_pad_opts){.mode = (ds_pad_mode)mode, .value = op_number(run, "value", 0)});
}

static ds_tensor *tril(OpRun *run) { return ds_tril(x_of(run), op_int(run, "diagonal", 0)); }
static ds_tensor *triu(OpRun *run) { return ds_triu(x_of(run), op_int(run, "diagonal", 0)); }

static const OpRow rows[] = {
    {"gather", gather, "dim sparse_grad"},
    {"index_select", index_select, "dim"},
    {"index_add", index_add, "dim alpha"},
    {"scatter", scatter, "dim value reduce"},
    {"scatter_add", scatter_add, "dim"},
    {"argmax", argmax, "dim keepdim"},
    {"max", max, "dim keepdim"},
    {"sort", sort, "dim descending stable"},
    {"topk", topk, "k dim largest sorted"},
    {"cumsum", cumsum, "dim"},
    {"cumprod", cumprod, "dim"},
    {"embedding_bag", embedding_bag,
     "mode padding_idx include_last_offset max_norm scale_grad_by_freq"},
    {"prod", prod, "dim keepdim"},
    {"sum", sum, "dim keepdim"},
    {"logsumexp", logsumexp, "dim keepdim"},
    {"var", var, "dim correction keepdim unbiased"},
    {"std", standard, "dim correction keepdim unbiased"},
    {"norm", norm, "p dim keepdim"},
    {"einsum", einsum, "equation"},
    {"split", split, "split_size dim"},
    {"chunk", chunk, "chunks dim"},
    {"flip", flip, "dims"},
    {"roll", roll, "shifts dims"},
    {"repeat", repeat, "repeats"},
    {"repeat_interleave", repeat_interleave, "repeats dim output_size"},
    {"pad", pad, "pad mode value"},
    {"tril", tril, "diagonal"},
    {"triu", triu, "diagonal"},
};

static void ops_next(void **state)
{
    (void)state;
    CHECK_INT(reference_ops_next("index", rows, sizeof rows / sizeof *rows), 0);
}

TEST_MAIN(cmocka_unit_test(ops_next))
