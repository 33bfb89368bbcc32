/* tests/reference/ops_more.c: activations, margins, pools and places of images,
 * beside PyTorch's values (make_ops.py writes them).
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "reference_ops.h"

static ds_tensor *in(OpRun *run) { return op_input(run, "input"); }
static ds_tensor *target(OpRun *run) { return op_input(run, "target"); }

/* ---- activations ------------------------------------------------------------------------------------- */

static ds_tensor *softsign(OpRun *run) { return ds_softsign(in(run)); }
static ds_tensor *tanhshrink(OpRun *run) { return ds_tanhshrink(in(run)); }
static ds_tensor *hardshrink(OpRun *run) { return ds_hardshrink(in(run), op_option(run, "lambd")); }
static ds_tensor *softshrink(OpRun *run) { return ds_softshrink(in(run), op_option(run, "lambd")); }
static ds_tensor *softmin(OpRun *run) { return ds_softmin(in(run), (int)op_int(run, "dim", 0)); }
static ds_tensor *glu(OpRun *run) { return ds_glu(in(run), (int)op_int(run, "dim", -1)); }

static ds_tensor *threshold(OpRun *run)
{
    return ds_threshold(in(run), op_number(run, "threshold", 0), op_number(run, "value", 0));
}

static ds_tensor *normalize(OpRun *run)
{
    return ds_normalize(in(run), op_option(run, "p"), (int)op_int(run, "dim", 1),
                        op_option(run, "eps"));
}

static ds_tensor *local_response_norm(OpRun *run)
{
    return ds_local_response_norm(in(run), (int)op_int(run, "size", 0),
                                  .alpha = op_option(run, "alpha"), .beta = op_option(run, "beta"),
                                  .k = op_option(run, "k"));
}

/* ---- losses ------------------------------------------------------------------------------------------ */

static ds_tensor *hinge_embedding(OpRun *run)
{
    return ds_hinge_embedding_loss(in(run), target(run), op_option(run, "margin"),
                                   op_reduction(run));
}

static ds_tensor *margin_ranking(OpRun *run)
{
    return ds_margin_ranking_loss(op_input(run, "input1"), op_input(run, "input2"), target(run),
                                  op_option(run, "margin"), op_reduction(run));
}

static ds_tensor *cosine_embedding(OpRun *run)
{
    return ds_cosine_embedding_loss(op_input(run, "input1"), op_input(run, "input2"), target(run),
                                    op_option(run, "margin"), op_reduction(run));
}

static ds_tensor *soft_margin(OpRun *run)
{
    return ds_soft_margin_loss(in(run), target(run), op_reduction(run));
}

static ds_tensor *triplet_margin(OpRun *run)
{
    ds_triplet_margin_loss_opts o = {.margin = op_option(run, "margin"),
                                     .p = op_option(run, "p"),
                                     .eps = op_option(run, "eps"),
                                     .swap = op_bool(run, "swap", false),
                                     .reduction = op_reduction(run)};
    return ds_triplet_margin_loss(op_input(run, "anchor"), op_input(run, "positive"),
                                  op_input(run, "negative"), o);
}

static ds_tensor *multi_margin(OpRun *run)
{
    return ds_multi_margin_loss(in(run), target(run),
                                (ds_multi_margin_loss_opts){.p = (int)op_int(run, "p", 0),
                                                            .margin = op_option(run, "margin"),
                                                            .weight = op_input(run, "weight"),
                                                            .reduction = op_reduction(run)});
}

static ds_tensor *multilabel_margin(OpRun *run)
{
    return ds_multilabel_margin_loss(in(run), target(run), op_reduction(run));
}

static ds_tensor *multilabel_soft_margin(OpRun *run)
{
    return ds_multilabel_soft_margin_loss(in(run), target(run), op_input(run, "weight"),
                                          op_reduction(run));
}

static ds_tensor *gaussian_nll(OpRun *run)
{
    ds_gaussian_nll_loss_opts o = {op_bool(run, "full", false), op_option(run, "eps"),
                                   op_reduction(run)};
    return ds_gaussian_nll_loss(in(run), target(run), op_input(run, "var"), o);
}

static ds_tensor *poisson_nll(OpRun *run)
{
    ds_poisson_nll_loss_opts o = {!op_bool(run, "log_input", true), op_bool(run, "full", false),
                                  op_option(run, "eps"), op_reduction(run)};
    return ds_poisson_nll_loss(in(run), target(run), o);
}

static ds_tensor *pairwise_distance(OpRun *run)
{
    return ds_pairwise_distance(op_input(run, "input1"), op_input(run, "input2"),
                                op_option(run, "p"), op_option(run, "eps"),
                                op_bool(run, "keepdim", false));
}

static ds_tensor *ctc(OpRun *run)
{
    ds_ctc_loss_opts o = {op_int(run, "blank", 0), op_bool(run, "zero_infinity", false),
                          op_reduction(run)};
    return ds_ctc_loss(ds_log_softmax(in(run), -1), target(run), op_input(run, "input_lengths"),
                       op_input(run, "target_lengths"), o);
}

/* ---- pools ------------------------------------------------------------------------------------------- */

static ds_pool3d_opts pool3d(OpRun *run)
{
    return (ds_pool3d_opts){.kernel = reference_dims(run->attrs, "kernel_size"),
                            .stride = reference_dims(run->attrs, "stride"),
                            .padding = reference_dims(run->attrs, "padding"),
                            .dilation = reference_dims(run->attrs, "dilation"),
                            .ceil_mode = op_bool(run, "ceil_mode", false),
                            .exclude_pad = !op_bool(run, "count_include_pad", true),
                            .divisor = (int)op_int(run, "divisor_override", 0)};
}

static ds_tensor *max_pool3d(OpRun *run)
{
    ds_tensor *indices;
    ds_pool3d_opts o = pool3d(run);
    o.indices = &indices;
    ds_tensor *y = ds_max_pool3d_with(in(run), o);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *avg_pool3d(OpRun *run) { return ds_avg_pool3d_with(in(run), pool3d(run)); }

static ds_dims output_size(OpRun *run) { return reference_dims(run->attrs, "output_size"); }

static ds_tensor *adaptive_avg_pool1d(OpRun *run)
{
    return ds_adaptive_avg_pool1d(in(run), output_size(run).d[0]);
}

static ds_tensor *adaptive_max_pool1d(OpRun *run)
{
    ds_tensor *indices, *y = ds_adaptive_max_pool1d(in(run), output_size(run).d[0], &indices);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *adaptive_avg_pool3d(OpRun *run)
{
    ds_dims d = output_size(run);
    return ds_adaptive_avg_pool3d(in(run), d.d[0], d.d[1], d.d[2]);
}

static ds_tensor *adaptive_max_pool3d(OpRun *run)
{
    ds_dims d = output_size(run);
    ds_tensor *indices, *y = ds_adaptive_max_pool3d(in(run), d.d[0], d.d[1], d.d[2], &indices);
    op_output(run, "indices", indices);
    return y;
}

static ds_tensor *max_unpool(OpRun *run)
{
    return ds_max_unpool(in(run), op_input(run, "indices"), output_size(run));
}

/* ---- places ------------------------------------------------------------------------------------------ */

static ds_tensor *pixel_shuffle(OpRun *run)
{
    return ds_pixel_shuffle(in(run), op_int(run, "upscale_factor", 0));
}

static ds_tensor *pixel_unshuffle(OpRun *run)
{
    return ds_pixel_unshuffle(in(run), op_int(run, "downscale_factor", 0));
}

static ds_tensor *channel_shuffle(OpRun *run)
{
    return ds_channel_shuffle(in(run), op_int(run, "groups", 0));
}

static ds_unfold_opts unfold_opts(OpRun *run)
{
    ds_unfold_opts o = {0};
    op_pair(run, "kernel_size", &o.kernel, &o.kernel_w);
    op_pair(run, "dilation", &o.dilation, &o.dilation_w);
    op_pair(run, "padding", &o.padding, &o.padding_w);
    op_pair(run, "stride", &o.stride, &o.stride_w);
    return o;
}

static ds_tensor *unfold(OpRun *run) { return ds_unfold_with(in(run), unfold_opts(run)); }

static ds_tensor *fold(OpRun *run)
{
    ds_dims size = output_size(run);
    return ds_fold_with(in(run), size.d[0], size.d[1], unfold_opts(run));
}

static ds_tensor *unflatten(OpRun *run)
{
    return ds_unflatten(in(run), (int)op_int(run, "dim", 0), reference_dims(run->attrs, "sizes"));
}

static ds_tensor *grid_sample(OpRun *run)
{
    const char *padding = reference_text(run->attrs, "padding_mode", "zeros");
    ds_grid_sample_opts o = {.nearest = !strcmp(reference_text(run->attrs, "mode", ""), "nearest"),
                             .padding_mode = !strcmp(padding, "zeros")    ? DS_GRID_ZEROS
                                             : !strcmp(padding, "border") ? DS_GRID_BORDER
                                                                          : DS_GRID_REFLECTION,
                             .align_corners = op_bool(run, "align_corners", false)};
    return ds_grid_sample_with(in(run), op_input(run, "grid"), o);
}

static ds_tensor *affine_grid(OpRun *run)
{
    ds_dims size = reference_dims(run->attrs, "size");
    return ds_affine_grid(in(run), size.d[0], size.d[1], op_bool(run, "align_corners", false));
}

static const OpRow rows[] = {
    {"softsign", softsign, ""},
    {"tanhshrink", tanhshrink, ""},
    {"hardshrink", hardshrink, "lambd"},
    {"softshrink", softshrink, "lambd"},
    {"threshold", threshold, "threshold value"},
    {"glu", glu, "dim"},
    {"softmin", softmin, "dim"},
    {"normalize", normalize, "p dim eps"},
    {"local_response_norm", local_response_norm, "size alpha beta k"},
    {"hinge_embedding_loss", hinge_embedding, "margin reduction"},
    {"margin_ranking_loss", margin_ranking, "margin reduction"},
    {"cosine_embedding_loss", cosine_embedding, "margin reduction"},
    {"soft_margin_loss", soft_margin, "reduction"},
    {"triplet_margin_loss", triplet_margin, "margin p eps swap reduction"},
    {"multi_margin_loss", multi_margin, "p margin reduction"},
    {"multilabel_margin_loss", multilabel_margin, "reduction"},
    {"multilabel_soft_margin_loss", multilabel_soft_margin, "reduction"},
    {"gaussian_nll_loss", gaussian_nll, "full eps reduction"},
    {"poisson_nll_loss", poisson_nll, "log_input full eps reduction"},
    {"pairwise_distance", pairwise_distance, "p eps keepdim"},
    {"ctc_loss", ctc, "blank zero_infinity reduction"},
    {"max_pool3d", max_pool3d, "kernel_size stride padding dilation ceil_mode"},
    {"avg_pool3d", avg_pool3d,
     "kernel_size stride padding ceil_mode count_include_pad divisor_override"},
    {"adaptive_avg_pool1d", adaptive_avg_pool1d, "output_size"},
    {"adaptive_max_pool1d", adaptive_max_pool1d, "output_size"},
    {"adaptive_avg_pool3d", adaptive_avg_pool3d, "output_size"},
    {"adaptive_max_pool3d", adaptive_max_pool3d, "output_size"},
    {"max_unpool", max_unpool, "output_size"},
    {"pixel_shuffle", pixel_shuffle, "upscale_factor"},
    {"pixel_unshuffle", pixel_unshuffle, "downscale_factor"},
    {"channel_shuffle", channel_shuffle, "groups"},
    {"unfold", unfold, "kernel_size dilation padding stride"},
    {"fold", fold, "output_size kernel_size dilation padding stride"},
    {"unflatten", unflatten, "dim sizes"},
    {"grid_sample", grid_sample, "mode padding_mode align_corners"},
    {"affine_grid", affine_grid, "size align_corners"},
};

static void one(Reference *r) { reference_op(r, rows, sizeof rows / sizeof *rows); }

static void ops_more(void **state)
{
    (void)state;
    CHECK_INT(reference_each("ops-more", one), 0);
}

TEST_MAIN(cmocka_unit_test(ops_more))
