/* engine/gradient_accumulation.c: where an update ends, by count or by the
 * program; batch sizes that change during training.
 *
 * Invariants: micro steps are counted from the last update on, not modulo
 * gradient_accumulation_steps as in DeepSpeed: after a change of that number,
 * or an update that the program ended early, the next group is complete.
 * SPDX-License-Identifier: MIT */
#include "engine.h"

bool ds_engine_is_gradient_accumulation_boundary(const ds_engine *e)
{
    if (!e) return false;
    if (e->ends != DSI_ENDS_COUNTED) return e->ends == DSI_ENDS_NOW;
    return e->accumulated + 1 >= e->config->gradient_accumulation_steps;
}

void ds_engine_set_gradient_accumulation_boundary(ds_engine *e, bool boundary)
{
    dsi_graph_forbid_call("engine_set_gradient_accumulation_boundary");
    if (e && e->ends == DSI_ENDS_STEP)
        dsi_fail(DS_ESTATE, "engine_set_gradient_accumulation_boundary: with "
                            "\"managed_gradient_accumulation\": false ds_engine_step is the "
                            "boundary: leave the call out");
    else if (e)
        e->ends = boundary ? DSI_ENDS_NOW : DSI_ENDS_LATER;
}

/* Gradients that have been accumulated were divided by the old number. */
static ds_status batch_check_between_updates(const ds_engine *e, const char *op)
{
    if (!e->went_backward && !e->accumulated) return DS_OK;
    return dsi_fail(DS_ESTATE,
                    "%s: %lld of %lld micro steps of an update are done: batch sizes change after "
                    "the step that updates",
                    op, (long long)(e->accumulated + e->went_backward),
                    (long long)e->config->gradient_accumulation_steps);
}

/* The configuration has the current sizes: loaders made later use them. */
static ds_status batch_set_sizes(ds_engine *e, const char *op, int64_t micro, int64_t accumulate)
{
    dsi_config *c = e->config;
    dsi_graph_forbid_call(op);
    if (batch_check_between_updates(e, op) != DS_OK) return ds_error_status();
    if (c->zero.deterministic)
        return dsi_fail(DS_ESTATE,
                        "%s: zero_optimization.deterministic cuts the data by the batch sizes of "
                        "the configuration: they cannot change",
                        op);
    c->train_micro_batch_size_per_gpu = micro;
    c->gradient_accumulation_steps = accumulate;
    c->train_batch_size = micro * accumulate * ds_comm_size(e->comm);
    e->throughput.batch_size = c->train_batch_size;
    return DS_OK;
}

ds_status ds_engine_set_train_batch_size(ds_engine *e, int64_t n)
{
    static const char op[] = "engine_set_train_batch_size";
    if (!dsi_live(e, op)) return dsi_null_argument(op);
    int64_t micro = e->config->train_micro_batch_size_per_gpu, ranks = ds_comm_size(e->comm);
    if (n >= 1 && n % (micro * ranks) == 0)
        return batch_set_sizes(e, op, micro, n / (micro * ranks));
    return dsi_fail(DS_EINVAL,
                    "%s: %lld is no multiple of %lld (train_micro_batch_size_per_gpu) * %lld "
                    "(ranks)",
                    op, (long long)n, (long long)micro, (long long)ranks);
}

ds_status ds_engine_set_train_micro_batch_size(ds_engine *e, int64_t n)
{
    static const char op[] = "engine_set_train_micro_batch_size";
    if (!dsi_live(e, op)) return dsi_null_argument(op);
    if (n >= 1 && n <= INT32_MAX)
        return batch_set_sizes(e, op, n, e->config->gradient_accumulation_steps);
    return dsi_fail(DS_EINVAL, "%s: %lld: expected 1 to %d samples", op, (long long)n, INT32_MAX);
}
