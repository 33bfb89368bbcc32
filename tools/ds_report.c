/* tools/ds_report.c: what this build and this machine can do.
 *
 *     ds_report [--hide_operator_status] [--hide_errors_and_warnings]
 *     ds_report --gpu_selftest [--quick] [--only NAME] [--json]
 *
 * In the form of DeepSpeed's report: parts, whether they are installed here and
 * whether they work on this machine; then versions, devices and limits.
 * Warnings are about what makes training fail or slow later.
 * SPDX-License-Identifier: MIT */
#include "local_host.h"
#include "parse_options.h"
#include "program.h"
#include "selftest/selftest.h"

#include "base/library.h"
#include "base/mem.h"
#include "base/terminal.h"
#include "base/text.h"
#include "comm/mpi_open.h"
#include "comm/nccl.h"
#include "device/cpu/cpu.h"
#include "device/device.h"

#include <deepspeed.h>

#include <argp.h>
#include <dirent.h>
#include <errno.h>
#include <gnu/libc-version.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define DOTS  23 /* DeepSpeed's columns */
#define DOTS2 11
#define VALUE (DOTS + 2)
#define LINE  "--------------------------------------------------"
#define MB    (1024.0 * 1024.0)
#define GB    (1024.0 * MB)

enum { LEAST_SHARED_MB = 512, LEAST_FILES = 4096, LEAST_LOCKED_KB = 64 };

typedef struct report {
    bool hide_parts, hide_warnings, colors;
    bool selftest;
    selftest_options selftest_options;
    dsi_text warnings; /* each ends with a new line */
} report;

/* ---- the form -------------------------------------------------------------------------------------------- */

static const char *report_mark(const report *r, bool good, const char *yes)
{
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "%s[%s]%s",
             !r->colors ? ""
             : good     ? "\033[92m"
                        : "\033[93m",
             good ? yes : "NO", r->colors ? "\033[0m" : "");
    return text;
}

static void print_dots(const char *name, int columns)
{
    printf("%s ", name);
    for (int i = (int)strlen(name); i < columns; i++) putchar('.');
    putchar(' ');
}

static void report_part(const report *r, const char *name, bool installed, bool compatible)
{
    print_dots(name, DOTS);
    fputs(report_mark(r, installed, "YES"), stdout);
    putchar(' ');
    for (int i = installed ? 5 : 4; i < 9 + DOTS2 - 9 + 4; i++) putchar('.');
    printf(" %s\n", report_mark(r, compatible, "OKAY"));
}

static void print_fact(const char *name, const char *format, ...) DS_PRINTF(2, 3);
static void print_fact(const char *name, const char *format, ...)
{
    va_list args;
    dsi_text value = dsi_text_of("%s", "");
    va_start(args, format);
    dsi_text_add_args(&value, format, args);
    va_end(args);
    print_dots(name, DOTS);
    dsi_print_wrapped(value.s, VALUE, VALUE);
    dsi_text_free(&value);
}

static void report_warn(report *r, const char *format, ...) DS_PRINTF(2, 3);
static void report_warn(report *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    dsi_text_add_args(&r->warnings, format, args);
    va_end(args);
    dsi_text_add(&r->warnings, "\n");
}

static void print_warnings(const report *r)
{
    static const char mark[] = "[WARNING] ";
    for (char *s = r->warnings.s, *end; s && (end = strchr(s, '\n')); s = end + 1) {
        *end = 0;
        fputs(mark, stdout);
        dsi_print_wrapped(s, sizeof mark - 1, sizeof mark - 1);
    }
}

/* ---- asking ---------------------------------------------------------------------------------------------- */

/* The text behind "Key:   ", or the whole line. */
static const char *after_key(const char *text)
{
    const char *colon = strchr(text, ':');
    const char *s = colon ? colon + 1 : text;
    return s + strspn(s, " \t");
}

/* The line of the command's output that holds `with` (NULL: the first); "" if
 * there is none. */
static const char *line_of(const char *command, const char *with)
{
    static _Thread_local char line[300];
    char text[300];
    *line = 0;
    FILE *f = popen(command, "r");
    while (f && fgets(text, sizeof text, f)) {
        text[strcspn(text, "\n")] = 0;
        if (!*line && (!with || strstr(text, with)))
            snprintf(line, sizeof line, "%s", after_key(text));
    }
    if (f) pclose(f);
    return line;
}

/* The text behind the key and its colon in a file of /proc; "" if it is not
 * there. */
static const char *value_in(const char *path, const char *key)
{
    static _Thread_local char line[4096];
    FILE *f = fopen(path, "r");
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) found = !strncmp(line, key, strlen(key));
    if (f) fclose(f);
    const char *colon = found ? strchr(line, ':') : NULL;
    line[strcspn(line, "\n")] = 0;
    return colon ? colon + 1 + strspn(colon + 1, " \t") : "";
}

static bool on_path(const char *program)
{
    char *path = program_on_path(program);
    dsi_free(path);
    return path != NULL;
}

static int count_nodes(void)
{
    int n = 0;
    DIR *d = opendir("/sys/devices/system/node");
    for (struct dirent *e; d && (e = readdir(d));)
        n += !strncmp(e->d_name, "node", 4) && e->d_name[4] >= '0' && e->d_name[4] <= '9';
    if (d) closedir(d);
    return n ? n : 1;
}

/* ---- parts ----------------------------------------------------------------------------------------------- */

/* Each set that the kernels are compiled for, and whether this processor has
 * it. */
static void report_kernels(const report *r)
{
    static const char *const sets[] = {"generic", "avx2", "avx512", "avx512_bf16", "amx"};
#if defined(__x86_64__)
    const int n = (int)(sizeof sets / sizeof *sets);
#else
    const int n = 1;
#endif
    for (int i = 0; i < n; i++) {
        char name[40];
        snprintf(name, sizeof name, "kernels %s", sets[i]);
        report_part(r, name, true, dsi_cpu_table_of(sets[i]) != NULL);
    }
}

/* NULL if the library opens, else why not. In a process of its own: MPI
 * libraries start threads, take signals, and conflict with each other. */
static const char *try_open(const char *library)
{
    static _Thread_local char why[600];
    int end[2], status;
    fflush(stdout);
    if (pipe(end)) return strerror(errno);
    int child = fork();
    if (child == 0) {
        const char *text = dsi_mpi_open(library) ? "" : ds_error();
        _exit(write(end[1], text, strlen(text)) < 0);
    }
    close(end[1]);
    ssize_t n = read(end[0], why, sizeof why - 1);
    why[n > 0 ? n : 0] = 0;
    close(end[0]);
    bool ended = waitpid(child, &status, 0) == child && WIFEXITED(status);
    return !ended ? "it ends the program" : *why ? why : NULL;
}

static void report_mpi(report *r, const char *library, const char *starter)
{
    char name[40];
    const char *why = try_open(library);
    bool opened = !why, started = on_path(starter);
    snprintf(name, sizeof name, "ranks %s", library);
    report_part(r, name, opened, opened && started);
    if (opened && !started)
        report_warn(r, "libdeepspeed_%s.so is here, but not %s, which starts its ranks", library,
                    starter);
    if (!opened && started)
        report_warn(r, "%s is here, but libdeepspeed_%s.so cannot be opened: %s", starter, library,
                    why);
}

/* Optimizer states in files (zero_optimization.offload_optimizer): without it
 * they are read by threads. */
static void report_uring(report *r)
{
    static const char *const names[] = {"liburing.so.2", "liburing.so.1", NULL};
    static const char *const function = "io_uring_queue_init";
    void *found;
    bool opened = dsi_library_open("ds_report", names, "liburing2", &function, 1, &found);
    report_part(r, "files io_uring", opened, opened);
    ds_error_clear();
}

static void report_parts(report *r)
{
    puts(LINE);
    puts("deepspeed.c part report");
    puts(LINE);
    print_dots("part name", DOTS);
    fputs("installed ", stdout);
    for (int i = 9; i < DOTS2; i++) putchar('.');
    puts(" compatible");
    puts(LINE);
    report_kernels(r);
    report_part(r, "ranks thread", true, true);
    report_mpi(r, "openmpi", "mpirun");
    report_mpi(r, "mpich", "mpiexec.hydra");
    report_uring(r);
    report_part(r, "nccl", dsi_nccl_open()->version > 0,
                dsi_nccl_open()->version > 0 && ds_device_count(DS_CUDA) > 0);
    report_part(r, "cuda kernels", dsi_device_built(DS_CUDA), ds_device_count(DS_CUDA) > 0);
    puts(LINE);
}

/* ---- facts ----------------------------------------------------------------------------------------------- */

static void report_build(void)
{
    char *self = local_host_program();
    char *slash = self ? strrchr(self, '/') : NULL;
    if (slash) *slash = 0;
    print_fact("deepspeed.c version", "%s", DS_VERSION);
    print_fact("deepspeed.c path", "%s", self ? self : "?");
#if defined(__clang__)
    print_fact("compiler", "%s", __VERSION__);
#else
    print_fact("compiler", "gcc %s", __VERSION__);
#endif
    print_fact("C library", "glibc %s", gnu_get_libc_version());
    dsi_free(self);
}

static void report_processor(report *r)
{
    struct utsname u;
    cpu_set_t set;
    const char *isa = dsi_cpu_isa();
    if (!uname(&u)) print_fact("system", "%s %s %s", u.sysname, u.release, u.machine);
    print_fact("processor", "%s", value_in("/proc/cpuinfo", "model name"));
    print_fact("instruction set", "%s", isa ? isa : ds_error());
    /* It refuses wrong values of the environment, as it does for a program. */
    if (isa && !dsi_device_get((ds_device){0})) report_warn(r, "%s", ds_error());
    ds_error_clear();
    print_fact("processors", "%ld, of which this shell may use %d; %d NUMA node%s",
               sysconf(_SC_NPROCESSORS_ONLN),
               sched_getaffinity(0, sizeof set, &set) ? 0 : CPU_COUNT(&set), count_nodes(),
               count_nodes() == 1 ? "" : "s");
    double total = atof(value_in("/proc/meminfo", "MemTotal")) * 1024;
    double free_now = atof(value_in("/proc/meminfo", "MemAvailable")) * 1024;
    print_fact("memory", "%.1f GB, %.1f GB of it available", total / GB, free_now / GB);
    if (free_now < GB) report_warn(r, "less than 1 GB of memory is available");
}

static void report_limit(const char *name, int which, double unit, const char *unit_name)
{
    struct rlimit l;
    if (getrlimit((__rlimit_resource_t)which, &l)) return;
    if (l.rlim_cur == RLIM_INFINITY)
        print_fact(name, "unlimited");
    else
        print_fact(name, "%.0f%s", (double)l.rlim_cur / unit, unit_name);
}

static void report_limits(report *r)
{
    struct statvfs s;
    struct rlimit l;
    if (!statvfs("/dev/shm", &s)) {
        double size = (double)s.f_blocks * (double)s.f_frsize;
        print_fact("/dev/shm", "%.2f GB, %.2f GB of it free", size / GB,
                   (double)s.f_bavail * (double)s.f_frsize / GB);
        if (size < LEAST_SHARED_MB * MB)
            report_warn(r,
                        "/dev/shm has less than %d MB, and ranks of one machine meet there; in a "
                        "container, "
                        "start it with --shm-size=1g or --ipc=host",
                        LEAST_SHARED_MB);
    } else {
        report_warn(r, "there is no /dev/shm, where ranks of one machine meet");
    }
    report_limit("locked memory", RLIMIT_MEMLOCK, 1024, " KB");
    report_limit("open files", RLIMIT_NOFILE, 1, "");
    report_limit("processes", RLIMIT_NPROC, 1, "");
    if (!getrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur < LEAST_FILES)
        report_warn(r, "%d open files are few for many ranks: ulimit -n %d", (int)l.rlim_cur,
                    LEAST_FILES);
    if (!getrlimit(RLIMIT_MEMLOCK, &l) && l.rlim_cur < LEAST_LOCKED_KB * 1024)
        report_warn(
            r,
            "so little memory can be locked that fast networks will not work: ulimit -l unlimited");
}

/* srun says its version only where it finds a cluster's configuration. */
static const char *slurm(void)
{
    if (!on_path("srun")) return "none";
    const char *version = line_of("srun --version 2>/dev/null", NULL);
    return *version ? version : "srun is here, but no configuration of a cluster";
}

static void report_programs(void)
{
    print_fact("Open MPI", "%s",
               on_path("mpirun") ? line_of("mpirun --version 2>&1", "MPI") : "none");
    print_fact("MPICH", "%s",
               on_path("mpiexec.hydra") ? line_of("mpiexec.hydra --version 2>&1", "Version:")
                                        : "none");
    print_fact("Slurm", "%s", slurm());
    print_fact("pdsh, ssh", "%s, %s", on_path("pdsh") ? "here" : "none",
               on_path("ssh") ? "here" : "none");
}

/* As this build sees them; and the driver's version, which its own command
 * knows. NCCL is opened by the same rules as when ranks first need it. */
static void report_gpus(report *r)
{
    char text[200] = "";
    bool untested = false;
    int n = ds_device_count(DS_CUDA);
    const dsi_nccl_library *nccl = dsi_nccl_open();
    const char *smi = "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>&1";
    print_fact("NVIDIA driver", "%s", on_path("nvidia-smi") ? line_of(smi, NULL) : "none");
    if (!n) print_fact("GPUs", "none: %s", dsi_device_why_none(DS_CUDA));
    for (int i = 0; i < n; i++) {
        ds_device gpu = {DS_CUDA, i};
        bool known = dsi_device_describe(gpu, text, sizeof text) == DS_OK;
        print_fact(ds_device_name(gpu), "%s", known ? text : ds_error());
        untested = untested || !strstr(text, "H200");
        ds_error_clear();
    }
    if (nccl->version)
        print_fact("NCCL", "%d.%d.%d", nccl->version / 10000, nccl->version / 100 % 100,
                   nccl->version % 100);
    else
        print_fact("NCCL", "none: %s", nccl->why);
    if (untested)
        report_warn(r, "kernels have run on an NVIDIA H200 and on an emulator: on another GPU, run "
                       "ds_report --gpu_selftest once");
}

static error_t report_parse_option(int key, char *arg, struct argp_state *state)
{
    report *r = state->input;
    if (key == 'o') r->hide_parts = true;
    if (key == 'w') r->hide_warnings = true;
    if (key == 's') r->selftest = true;
    if (key == 'j') r->selftest_options.json = true;
    if (key == 'q') r->selftest_options.quick = true;
    if (key == 'n') r->selftest_options.only = arg;
    if (key == ARGP_KEY_ARG) argp_error(state, "\"%s\": expected no argument", arg);
    if (key == ARGP_KEY_END && !r->selftest &&
        (r->selftest_options.json || r->selftest_options.quick || r->selftest_options.only))
        argp_error(state, "--json, --only and --quick belong to --gpu_selftest");
    return key > 0 && key < 128 && strchr("owsjqn", key) ? 0 : ARGP_ERR_UNKNOWN;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"hide_operator_status", 'o', NULL, 0, "Leave out which parts there are", 0},
        {"hide_errors_and_warnings", 'w', NULL, 0, "Leave out warnings", 0},
        {"gpu_selftest", 's', NULL, 0,
         "Run each kernel on the first GPU beside the CPU, and nothing else; exit status 0: all "
         "agree, "
         "1: not all, 2: no GPU",
         0},
        {"quick", 'q', NULL, 0, "With --gpu_selftest: small sizes, two repeats, no times", 0},
        {"only", 'n', "NAME", 0,
         "With --gpu_selftest: only rows with NAME in the name of the kernel or the case", 0},
        {"json", 'j', NULL, 0, "With --gpu_selftest: print one JSON object", 0},
        {0}};
    const struct argp argp = {options, report_parse_option,
                              "",      "Says what this build and this machine can do.",
                              NULL,    NULL,
                              NULL};
    report r = {.colors = isatty(STDOUT_FILENO) == 1};
    argp_program_version = "ds_report (deepspeed.c) " DS_VERSION;
    if (parse_options(&argp, argc, argv, 0, &r)) return 2;
    if (r.selftest) return selftest_gpu(r.selftest_options);
    if (!r.hide_parts) report_parts(&r);
    puts("deepspeed.c general environment info:");
    report_build();
    report_processor(&r);
    report_limits(&r);
    report_programs();
    report_gpus(&r);
    if (!r.hide_warnings) print_warnings(&r);
    dsi_text_free(&r.warnings);
    return EXIT_SUCCESS;
}
