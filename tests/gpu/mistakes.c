/* tests/gpu/mistakes.c: mistakes that kernels and their callers make, planted in
 * small kernels (mistakes/mistakes.cu): each must be seen by a mode of the
 * emulator, and the same kernel without it by none.
 *
 *     ORDERS     other values in another order of blocks, warps and lanes
 *     NUMBERS    NaN, with which shared memory is filled
 *     STOPS      the emulator names threads that wait for ever
 *     SANITIZER  AddressSanitizer or UndefinedBehaviorSanitizer stops it
 *     LAZY       queued work is done at a synchronisation, and not before
 *
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "emulated.h"

#include "device/cuda/driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ORDERS = 1, NUMBERS = 2, STOPS = 4, SANITIZER = 8 };

static const struct Mistake {
    const char *name;
    int seen_by; /* at least */
} mistakes[] = {
    {"sum_without_barrier", ORDERS},
    {"tile_read_before_written", ORDERS | NUMBERS},
    {"stage_written_while_read", ORDERS},
    {"barrier_in_a_branch", STOPS},
    {"result_read_before_the_sum_is_whole", ORDERS | NUMBERS},
    {"reversed_in_place", ORDERS},
    {"neighbour_without_syncwarp", ORDERS | NUMBERS},
    {"shuffle_in_a_branch", STOPS},
    {"shuffle_from_a_lane_outside", NUMBERS},
    {"shared_not_written", NUMBERS},
    {"tail_of_a_tile_not_zero", NUMBERS},
    {"shared_one_too_far", SANITIZER},
    {"dynamic_shared_too_small", SANITIZER},
    {"edge_not_checked", SANITIZER},
    {"padding_read", SANITIZER},
    {"vector_not_aligned", SANITIZER},
    {"sum_by_arrival", ORDERS},
    {"scatter_of_the_last_writer", ORDERS},
    {"block_waits_for_no_one", ORDERS},
    {"copy_not_waited_for", ORDERS | NUMBERS},
    {"one_group_too_few", ORDERS | NUMBERS},
    {"copy_into_less_aligned_memory", STOPS},
    {"copy_from_beyond_the_end", SANITIZER},
    {"zeros_copied_beyond_the_end", SANITIZER},
    {"group_copy_not_fenced", STOPS},
    {"group_sums_not_fenced", STOPS},
    {"group_not_committed", STOPS},
    {"group_not_waited_for", ORDERS},
    {"group_operand_overwritten", ORDERS},
    {"group_stride_doubled", STOPS},
};

/* The first line that a kernel's program prints; false if it does not end well. */
static bool kernel_output(const char *program, const char *order, const char *name,
                          const char *version, char line[64])
{
    char command[512];
    snprintf(command, sizeof command,
             "CUDA_ON_CPU_ORDER=%s ASAN_OPTIONS=detect_leaks=0 %s %s_%s 2>/dev/null", order,
             program, name, version);
    FILE *out = popen(command, "r");
    CHECK(out);
    bool read = fgets(line, 64, out) != NULL;
    return pclose(out) == 0 && read;
}

/* The modes that see something. */
static int kernel_seen_by(const char *name, const char *version)
{
    static const char *const orders[] = {"forward", "backward", "1"};
    char first[64] = "", line[64];
    int seen = 0;
    for (int i = 0; i < 3; i++) {
        if (!kernel_output(MISTAKES, orders[i], name, version, line)) return STOPS;
        if (strstr(line, "nan")) seen |= NUMBERS;
        if (i && strcmp(line, first) != 0) seen |= ORDERS;
        if (!i) strcpy(first, line);
    }
    return seen;
}

static void each_is_seen(void **state)
{
    (void)state;
    char line[64];
    bool sanitizers = access(MISTAKES_SANITIZED, X_OK) == 0;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        const struct Mistake *m = &mistakes[i];
        bool only = m->seen_by == SANITIZER;
        if (only && !sanitizers) continue;
        int seen = only ? 0 : kernel_seen_by(m->name, "wrong");
        if (only && !kernel_output(MISTAKES_SANITIZED, "forward", m->name, "wrong", line))
            seen = SANITIZER;
        if ((seen & m->seen_by) != m->seen_by)
            fprintf(stderr, "%s: seen by %d, want %d\n", m->name, seen, m->seen_by);
        CHECK((seen & m->seen_by) == m->seen_by);
        CHECK_INT(kernel_seen_by(m->name, "right"), 0);
        if (only) CHECK(kernel_output(MISTAKES_SANITIZED, "forward", m->name, "right", line));
    }
}

/* ---- callers, on a GPU that does queued work as late as it may ---- */

typedef struct Caller {
    dsi_device *d;
    const dsi_cuda_driver *f;
    CUdeviceptr there;
    int *pinned;
} Caller;

/* Reads what a copy from the GPU gives before it has arrived. */
static bool result_read_early(Caller *c, bool right)
{
    int seven = 7;
    c->d->type->copy_in(&c->d->stream, (void *)(uintptr_t)c->there, &seven, sizeof seven);
    *c->pinned = 0;
    c->f->copy_out(c->pinned, c->there, sizeof(int), c->d->stream.handle);
    if (right) c->f->stream_sync(c->d->stream.handle);
    return *c->pinned == 7;
}

/* Writes to the source of a copy that has not been made. */
static bool source_reused_early(Caller *c, bool right)
{
    int got = 0;
    *c->pinned = 7;
    c->f->copy_in(c->there, c->pinned, sizeof(int), c->d->stream.handle);
    if (right) c->f->stream_sync(c->d->stream.handle);
    *c->pinned = 8;
    c->d->type->copy_out(&c->d->stream, &got, (void *)(uintptr_t)c->there, sizeof got);
    return got == 7;
}

static void callers_are_seen_lazily(void **state)
{
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("FAKE_CUDA_LAZY", "1", 1);
        Caller c = {.d = dsi_device_get((ds_device){DS_CUDA, 0}), .f = dsi_cuda_open()};
        c.pinned = c.d->type->alloc_host(c.d, 64);
        c.there = (CUdeviceptr)(uintptr_t)dsi_cache_alloc(c.d, 64);
        bool good = result_read_early(&c, true) && source_reused_early(&c, true);
        bool seen = !result_read_early(&c, false);
        c.f->stream_sync(c.d->stream.handle);
        seen = seen && !source_reused_early(&c, false);
        _exit(!good ? 2 : !seen ? 3 : 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK_INT(WEXITSTATUS(status), 0); /* 2: the right callers failed, 3: a mistake was not seen */
}

int main(void)
{
    int skip = skip_without_emulator();
    if (skip) return skip;
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_is_seen),
                                       cmocka_unit_test(callers_are_seen_lazily)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
