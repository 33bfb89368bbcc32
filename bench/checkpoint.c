/* bench/checkpoint.c: saves and loads a large state dict, compared with dd on
 * the same disk and with torch.save and torch.load, in alternating rounds.
 *
 *     bench_checkpoint [MiB (1024)] [FOLDER (.)] [ROUNDS (3)]
 *
 * Written: a new file, until it is on the disk (with fsync, also for PyTorch,
 * which does not call it). Read: until every byte was read once; cold: after
 * the file was dropped from the page cache. The best of the rounds is printed,
 * because others use the disk too. Memory: the additional memory at the peak,
 * without pages of mapped files, which belong to the page cache.
 * $DS_PEER_PYTHON: a python with torch (python3).
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"

#include <deepspeed.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TENSORS    64
#define MAX_ROUNDS 9

enum { WRITE, COLD, WARM, COLUMNS };
enum { DD, PTH, SAFETENSORS, TORCH, ROWS };
static const char *const rows[ROWS] = {"dd", ".pth", ".safetensors", "torch"};
static const char *const files[ROWS] = {"dd.bin", "x.pth", "x.safetensors", "torch.pth"};

/* A line of /proc/self/status in MiB: "VmHWM:", "RssAnon:". */
static double status_mib(const char *key)
{
    char line[200];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) kib = strtod(line + strlen(key), NULL);
    if (f) fclose(f);
    return kib / 1024;
}

static void reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f) fputs("5", f), fclose(f);
}

static void drop_cache(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0) return;
    fsync(fd);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* Seconds of a command; -1 if it failed. */
static double command(const char *format, const char *a, const char *b, long n)
{
    char text[2000];
    snprintf(text, sizeof text, format, a, b, n);
    double begin = dsi_now();
    return system(text) == 0 ? dsi_now() - begin : -1;
}

static ds_state *state_of(int64_t mib)
{
    ds_state *state = ds_state_new();
    int64_t n = mib * (1 << 20) / TENSORS / 4;
    for (int i = 0; i < TENSORS; i++) {
        char name[32];
        ds_scope *scope = ds_scope_open();
        snprintf(name, sizeof name, "layer%d.weight", i);
        ds_state_set(state, name, ds_rand(DS_F32, ds_shape(n / 256, 256)));
        ds_scope_close(scope);
    }
    return state;
}

/* The sum of all words, so that every byte is read. */
static uint64_t look_at(ds_state *state)
{
    uint64_t sum = 0;
    for (int i = 0; i < ds_state_len(state); i++) {
        const uint64_t *p = ds_data(ds_state_at(state, i));
        int64_t n = p ? ds_numel(ds_state_at(state, i)) / 2 : 0;
        for (int64_t k = 0; k < n; k++) sum += p[k];
    }
    return sum;
}

static double saved_mib, loaded_mib; /* the most memory that one took */

static double save(ds_state *state, const char *path)
{
    reset_peak();
    double before = status_mib("VmRSS:"), begin = dsi_now();
    if (ds_save(state, path) != DS_OK) return -1;
    double seconds = dsi_now() - begin, more = status_mib("VmHWM:") - before;
    if (more > saved_mib) saved_mib = more;
    return seconds;
}

static double load(const char *path)
{
    double before = status_mib("RssAnon:"), begin = dsi_now();
    ds_state *state = ds_load(path);
    if (!state) return -1;
    bool checked = strstr(path, ".pth") != NULL; /* every byte went into its check sum */
    volatile uint64_t sum = checked ? 0 : look_at(state);
    (void)sum;
    double seconds = dsi_now() - begin, more = status_mib("RssAnon:") - before;
    if (more > loaded_mib) loaded_mib = more;
    ds_state_free(state);
    return seconds;
}

/* One of PyTorch's seconds, of its own clock. */
static double torch(const char *what, const char *path, const char *out)
{
    static const char script[] = "import os, sys, time, torch\n"
                                 "what, path, like, out = sys.argv[1:]\n"
                                 "torch.set_num_threads(1)\n"
                                 "d = torch.load(like) if what == 'save' else None\n"
                                 "if d: d = {k: v.clone() for k, v in d.items()}\n"
                                 "t = time.perf_counter()\n"
                                 "if what == 'save':\n"
                                 "    with open(path, 'wb') as f:\n"
                                 "        torch.save(d, f); f.flush(); os.fsync(f.fileno())\n"
                                 "else:\n"
                                 "    d = torch.load(path)\n"
                                 "print(time.perf_counter() - t, file=open(out, 'w'))\n";
    const char *python = getenv("DS_PEER_PYTHON");
    char text[3000];
    double seconds = -1;
    snprintf(text, sizeof text, "'%s' - %s '%s' x.pth '%s' <<'END' 2>/dev/null\n%sEND\n",
             python && *python ? python : "python3", what, path, out, script);
    if (system(text) != 0) return -1;
    FILE *f = fopen(out, "r");
    if (f && fscanf(f, "%lf", &seconds) != 1) seconds = -1;
    if (f) fclose(f);
    return seconds;
}

static double measure(int row, int column, ds_state *state, long mib)
{
    const char *path = files[row];
    if (column == COLD) drop_cache(path);
    if (row == DD)
        return column == WRITE ? command("dd if=%s of=%s bs=1M count=%ld conv=fsync 2>/dev/null",
                                         "/dev/zero", path, mib)
                               : command("dd if=%s of=%s bs=1M 2>/dev/null", path, "/dev/null", 0);
    if (row == TORCH) return torch(column == WRITE ? "save" : "load", path, "torch.out");
    return column == WRITE ? save(state, path) : load(path);
}

static double best(const double *x, int n)
{
    double least = x[0];
    for (int i = 1; i < n; i++)
        if (x[i] < least) least = x[i];
    return least;
}

int main(int argc, char **argv)
{
    long mib = argc > 1 ? strtol(argv[1], NULL, 10) : 1024;
    int rounds = argc > 3 ? atoi(argv[3]) : 3;
    if (mib < 1 || rounds < 1 || rounds > MAX_ROUNDS || (argc > 2 && chdir(argv[2]) != 0)) {
        fprintf(stderr, "usage: bench_checkpoint [MiB] [FOLDER] [ROUNDS]\n");
        return 2;
    }
    static double seconds[ROWS][COLUMNS][MAX_ROUNDS];
    ds_state *state = state_of(mib);
    for (int r = 0; r < rounds; r++)
        for (int column = 0; column < COLUMNS; column++)
            for (int row = 0; row < ROWS; row++) {
                if (column == WRITE) unlink(files[row]);
                sync(); /* what the others left to be written does not count */
                seconds[row][column][r] = measure(row, column, state, mib);
            }
    printf("%ld MiB in %d tensors, MiB/s (of dd), best of %d\n", mib, TENSORS, rounds);
    printf("%-14s %18s %18s %18s\n", "", "write", "read, cold", "read, cached");
    for (int row = 0; row < ROWS; row++) {
        printf("%-14s", rows[row]);
        for (int column = 0; column < COLUMNS; column++) {
            double s = best(seconds[row][column], rounds), dd = best(seconds[DD][column], rounds);
            if (s > 0)
                printf(" %9.0f (%5.2f)", (double)mib / s, dd / s);
            else
                printf(" %17s", "-");
        }
        printf("\n");
        unlink(files[row]);
    }
    unlink("torch.out");
    printf("peak memory beside the tensors: saving %.1f MiB, loading %.1f MiB (and the file's "
           "pages)\n",
           saved_mib, loaded_mib);
    ds_state_free(state);
    return ds_error() != NULL;
}
