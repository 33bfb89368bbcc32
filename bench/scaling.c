/* bench/scaling.c: what a training step costs a rank as ranks are added: the
 * measurements that bench/scaling fits its model to.
 *
 * Ranks are threads of this process, so its processor time counts the work of
 * all of them, whatever else the machine does. A line for each number of ranks
 * and stage: ranks, stage, parameters, processor microseconds a rank and step,
 * the median over RUNS.
 * SPDX-License-Identifier: MIT */
#include "median.h"

#include <deepspeed.h>

#include <stdio.h>
#include <time.h>

enum { RUNS = 5, STEPS = 10, LAYERS = 4 };

typedef struct Job {
    int hidden, stage;
    double took[RUNS]; /* seconds of all ranks, a step */
} Job;

static double process_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static ds_status train(void *arg)
{
    Job *job = arg;
    char config[300], name[8];
    ds_comm *c = ds_world();
    snprintf(
        config, sizeof config,
        "{\"train_batch_size\": %d, \"steps_per_print\": 0, \"optimizer\": {\"type\": \"AdamW\", "
        "\"params\": {\"lr\": 0.001}}, \"zero_optimization\": {\"stage\": %d}}",
        ds_comm_size(c), job->stage);
    ds_module *m = ds_nn_sequential(NULL, "net");
    for (int i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof name, "%d", i);
        ds_nn_linear(m, name, job->hidden, job->hidden);
    }
    ds_engine *e = ds_initialize(.model = m, .config = config);
    for (int run = -1; run < RUNS && !ds_error(); run++) {
        ds_barrier(c);
        double begun = process_time();
        ds_barrier(c);
        for (int i = 0; i < STEPS; i++) {
            ds_scope *scope = ds_scope_open();
            ds_tensor *x = ds_full(DS_F32, ds_shape(1, job->hidden), 0.5);
            ds_engine_backward(e, ds_mean(ds_engine_forward(e, x)));
            ds_engine_step(e);
            ds_scope_close(scope);
        }
        ds_barrier(c);
        if (run >= 0 && !ds_comm_rank(c)) job->took[run] = (process_time() - begun) / STEPS;
        ds_barrier(c);
    }
    ds_engine_free(e);
    return ds_error_status();
}

int main(void)
{
    static const int hidden[] = {64, 128, 256};
    for (int h = 0; h < 3; h++)
        for (int stage = 0; stage <= 3; stage++)
            for (int ranks = 2; ranks <= 64; ranks *= 2) {
                Job job = {.hidden = hidden[h], .stage = stage};
                if (ds_run_ranks(ranks, train, &job) != DS_OK) {
                    fprintf(stderr, "bench_scaling: %s\n", ds_error());
                    return 1;
                }
                printf("%d %d %d %.1f\n", ranks, stage, LAYERS * hidden[h] * (hidden[h] + 1),
                       median(job.took, RUNS) / ranks * 1e6);
                fflush(stdout);
            }
    return 0;
}
