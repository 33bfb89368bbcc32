/* tests/launcher/dry.h: deepspeed's plan for a command line, decided in a
 * process of its own.
 *
 * The process starts in a folder of the test, with nothing in its environment
 * but PATH (the folder's bin, where dry_program puts stand-ins for ssh and the
 * runners) and what dry_set adds.
 * SPDX-License-Identifier: MIT */
#pragma once

#include "check.h"
#include "folder.h"

#include "plan.h"

#include <jansson.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct Dry {
    int status; /* of the command */
    char err[8192];
    json_t *json; /* what it prints; NULL if that is no JSON */
} Dry;

enum { DRY_VARIABLES = 16 };
static struct {
    const char *name, *value;
} dry_environment[DRY_VARIABLES];

static inline void dry_set(const char *name, const char *value)
{
    for (int i = 0; i < DRY_VARIABLES; i++)
        if (!dry_environment[i].name || !strcmp(dry_environment[i].name, name)) {
            dry_environment[i].name = name;
            dry_environment[i].value = value;
            return;
        }
}

static inline void dry_write(const char *name, const char *text, mode_t mode)
{
    const char *path = folder_path(name);
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0 || chmod(path, mode) != 0)
        fail_msg("%s: cannot be written", path);
}

/* A program in bin/ whose text after #!/bin/sh is that. */
static inline void dry_program(const char *name, const char *text)
{
    char path[100], script[600];
    snprintf(path, sizeof path, "bin/%s", name);
    snprintf(script, sizeof script, "#!/bin/sh\n%s\n", text);
    dry_write(path, script, 0755);
}

/* The test's folder, with a program `train` and every runner. */
static inline int dry_begin(void **state)
{
    static const char *const runner_programs[] = {"mpirun",  "pdsh",          "srun", "mpiname",
                                                  "mpiexec", "mpiexec.hydra", "ssh"};
    (void)state;
    folder_make();
    mkdir(folder_path("bin"), 0700);
    for (size_t i = 0; i < sizeof runner_programs / sizeof *runner_programs; i++)
        dry_program(runner_programs[i], "");
    dry_write("train", "#!/bin/sh\n", 0755);
    memset(dry_environment, 0, sizeof dry_environment);
    return 0;
}

static inline int dry_end(void **state)
{
    (void)state;
    folder_remove();
    return 0;
}

/* In the child: the folder, the environment, and files for what is printed. */
static inline int dry_enter(void)
{
    clearenv();
    setenv("PATH", folder_path("bin"), 1);
    setenv("HOME", folder_path("home"), 1);
    setenv("RES_OPTIONS", "timeout:1 attempts:1", 1);
    for (int i = 0; i < DRY_VARIABLES && dry_environment[i].name; i++)
        setenv(dry_environment[i].name, dry_environment[i].value, 1);
    return chdir(folder_path("")) || !freopen("out", "w", stdout) || !freopen("err", "w", stderr);
}

static inline int dry_plan(launch_plan *p, int argc, char **argv)
{
    options o;
    for (int i = 0; i < argc; i++) argv[i] = strdup(argv[i]); /* may be written to */
    args_read(&o, argc, argv);
    return plan_decide(p, &o);
}

/* As for a restart: fewer hosts will do. */
static inline int dry_reach_some(launch_plan *p)
{
    ds_hosts all = {0};
    for (int i = 0; i < p->n_hosts; i++) hosts_add_copy(&all, &p->hosts[i]);
    int status = plan_reach_some(p, &all, plan_begin_asking(p, &all));
    hosts_free(&all);
    return status;
}

static inline int dry_child(int argc, char **argv, bool reach)
{
    if (dry_enter()) return 99;
    launch_plan p;
    int status = dry_plan(&p, argc, argv);
    if (!status && reach) status = p.o.max_restarts ? dry_reach_some(&p) : plan_reach(&p);
    if (!status) status = plan_print(&p);
    plan_free(&p);
    return status;
}

static inline Dry dry_words(bool reach, const char *const *words)
{
    Dry d = {0};
    char *argv[64] = {(char *)"deepspeed"};
    int argc = 1, status = 0;
    while (*words && argc < 63) argv[argc++] = (char *)*words++;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) exit(dry_child(argc, argv, reach));
    waitpid(pid, &status, 0);
    d.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    d.json = json_load_file(folder_path("out"), 0, NULL);
    FILE *f = fopen(folder_path("err"), "r");
    if (f && fread(d.err, 1, sizeof d.err - 1, f) == 0) d.err[0] = 0;
    if (f) fclose(f);
    return d;
}

/* dry("--num_gpus", "2", "train"): what --dry_run would print; reached(...):
 * after ssh was asked. */
#define dry(...)     dry_words(false, (const char *const[]){__VA_ARGS__, NULL})
#define reached(...) dry_words(true, (const char *const[]){__VA_ARGS__, NULL})

/* It ends with status 2 (1 where other machines are the cause), one line with
 * `part` in it on stderr, and nothing on stdout. argp adds a line that names
 * --help. */
#define REFUSED(part, ...) dry_refused(dry(__VA_ARGS__), part, __LINE__)
static inline void dry_refused(Dry d, const char *part, int line)
{
    if (!d.status || d.json || !strstr(d.err, part) || strncmp(d.err, "deepspeed: ", 11) != 0)
        fail_msg("line %d: status %d, \"%s\", want a refusal with \"%s\"", line, d.status, d.err,
                 part);
    const char *second = strchr(d.err, '\n');
    if (!second || (second[1] && !strstr(second, "Try `deepspeed --help'")))
        fail_msg("line %d: more than one line: %s", line, d.err);
    json_decref(d.json);
}

/* The words of the command with blanks between them, in a buffer that the next
 * call overwrites; frees d. */
static inline const char *dry_command(Dry d)
{
    static char text[16384];
    size_t i;
    json_t *word;
    if (d.status || !d.json) fail_msg("status %d: %s", d.status, d.err);
    *text = 0;
    json_array_foreach(json_array_get(json_object_get(d.json, "commands"), 0), i, word)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? " " : "",
                 json_string_value(word));
    json_decref(d.json);
    return text;
}

#define HAS(text, part)     dry_has(text, part, true, __LINE__)
#define HAS_NOT(text, part) dry_has(text, part, false, __LINE__)
static inline void dry_has(const char *text, const char *part, bool wanted, int line)
{
    if ((strstr(text, part) != NULL) != wanted)
        fail_msg("line %d: %s \"%s\" in: %s", line, wanted ? "no" : "an unwanted", part, text);
}

/* {"worker-0": [0]} of the plan as text; frees d. */
static inline const char *dry_resources(Dry d)
{
    static char text[4096];
    if (d.status || !d.json) fail_msg("status %d: %s", d.status, d.err);
    char *json = json_dumps(json_object_get(d.json, "resources"), JSON_ENSURE_ASCII);
    snprintf(text, sizeof text, "%s", json);
    free(json);
    json_decref(d.json);
    return text;
}
