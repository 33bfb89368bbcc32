/* tests/reference/launcher.c: hostfiles, filters, lists of cores and command
 * lines, compared with DeepSpeed's launcher; resources of each rank.
 *
 * Resources and world_info are the same, and so is what is refused. Commands
 * are those of other runners, so what corresponds is compared: ranks, hosts,
 * options of the start of a rank, the program's words, Slurm's choice of nodes,
 * --launcher_args, forwarded variables. Where we differ on purpose is listed
 * below and in docs/launcher.md.
 *
 * Each command line is decided in a process of its own, in a folder with
 * stand-ins for ssh and the runners; ssh answers as it did when the values were
 * made. Nothing is started.
 * SPDX-License-Identifier: MIT */
#include "check.h"
#include "folder.h"
#include "reference.h"

#include "cores.h"
#include "plan.h"
#include "rank.h"
#include "select.h"

#include "base/mem.h"
#include "base/text.h"

#include <ctype.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- lists: hostfiles, filters, cores ------------------------------------------------------------------------ */

/* [["worker-0", 4]] or [["worker-0", [0, 1, 2, 3]]] */
static bool same_hosts(const ds_hosts *h, const json_t *want)
{
    bool same = (size_t)h->n == json_array_size(want);
    for (int i = 0; same && i < h->n; i++) {
        const json_t *pair = json_array_get(want, (size_t)i), *slots = json_array_get(pair, 1);
        const char *name = json_string_value(json_array_get(pair, 0));
        same = name && !strcmp(name, h->at[i].name);
        if (json_is_number(
                slots)) { /* a real one where a number of the file has more than 64 bits */
            same = same && json_number_value(slots) == h->at[i].n_slots;
            continue;
        }
        same = same && json_array_size(slots) == (size_t)h->at[i].n_slots;
        for (int k = 0; same && k < h->at[i].n_slots; k++)
            same = json_number_value(json_array_get(slots, (size_t)k)) == h->at[i].slots[k];
    }
    return same;
}

/* More slots than any host has are refused. */
static bool has_too_many(const json_t *hosts)
{
    bool found = false;
    for (size_t i = 0; i < json_array_size(hosts); i++) {
        const json_t *slots = json_array_get(json_array_get(hosts, i), 1);
        found = found || json_number_value(slots) > MOST_SLOTS;
    }
    return found;
}

static void compare_hosts(Reference *r, const json_t *c, size_t i, ds_status status,
                          const ds_hosts *h)
{
    const json_t *want = json_object_get(c, "resources");
    const char *refused = reference_text(c, "message", NULL);
    char *got = hosts_json(h->at, h->n);
    if (refused && status == DS_OK)
        reference_fail(r, "case %zu: %s, want a refusal: %s", i, got, refused);
    else if (!refused && status != DS_OK && !has_too_many(want))
        reference_fail(r, "case %zu: refused: %s", i, ds_error());
    else if (!refused && status == DS_OK && !same_hosts(h, want))
        reference_fail(r, "case %zu: got %s", i, got);
    dsi_free(got);
    ds_error_clear();
}

static ds_status parse(ds_hosts *h, const json_t *c)
{
    const json_t *text = json_object_get(c, "hostfile");
    return hosts_parse(h, "hostfile", json_string_value(text), json_string_length(text));
}

static void hostfile(Reference *r, const json_t *c, size_t i)
{
    ds_hosts h = {0};
    ds_status status = parse(&h, c);
    compare_hosts(r, c, i, status, &h);
    hosts_free(&h);
}

static void filter(Reference *r, const json_t *c, size_t i)
{
    ds_hosts h = {0};
    ds_status status = parse(&h, c);
    if (status == DS_OK)
        status = select_hosts(&h, reference_text(c, "include", ""),
                              reference_text(c, "exclude", ""));
    if (status == DS_OK)
        select_counts(&h, (int)reference_int(c, "num_nodes", -1),
                      (int)reference_int(c, "num_gpus", -1));
    compare_hosts(r, c, i, status, &h);
    const char *want = reference_text(c, "world_info", NULL);
    char *got = hosts_encode(h.at, h.n);
    if (want && status == DS_OK && strcmp(want, got) != 0)
        reference_fail(r, "case %zu: world_info %s, want %s", i, got, want);
    dsi_free(got);
    hosts_free(&h);
}

/* "+1" and "1_0" are numbers in Python; processors beyond CPUS are none. */
enum { CPUS = 8192 };

static void core_list(Reference *r, const json_t *c, size_t i)
{
    const json_t *want = json_object_get(c, "cores");
    const char *list = reference_text(c, "list", "");
    cores got;
    dsi_text why = {0};
    bool good = cores_parse(list, &got, &why);
    bool same = good == (want != NULL) && (size_t)(good ? got.n : 0) == json_array_size(want);
    for (int k = 0; good && same && k < got.n; k++)
        same = json_integer_value(json_array_get(want, (size_t)k)) == got.at[k];
    bool pythons = strpbrk(list, "+_") || json_number_value(json_array_get(want, 0)) >= CPUS;
    if (!same && !pythons)
        reference_fail(r, "case %zu: \"%s\" %s", i, list, good ? "differs" : why.s);
    dsi_list_free(&got);
    dsi_text_free(&why);
}

/* ---- command lines: where we differ on purpose --------------------------------------------------------------- */

/* Jobs that DeepSpeed refuses: any choice of hosts and counts with any MPI;
 * CUDA_VISIBLE_DEVICES with --num_nodes 1; comments in .deepspeed_env. */
static bool may_accept(const char *message)
{
    static const char *const reasons[] = {
        "does not support limiting", "does not support worker", "same number of devices",
        "Cannot specify num_nodes/gpus with include/exclude", "not enough values to unpack"};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strstr(message, reasons[i])) return true;
    return false;
}

/* Jobs that only we refuse: options about Python, Intel's MPI, a misspelt
 * launcher that is not used, a given hostfile that is not there. */
static bool may_refuse(const char *message)
{
    static const char *const reasons[] = {
        "--module:",     "--venv_script:",        "--launcher ",    "--hostfile:",
        "--autotuning:", "(--min_elastic_nodes)", "no slot is left"};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (strstr(message, reasons[i])) return true;
    return false;
}

/* ---- command lines: running one ------------------------------------------------------------------------------ */

static void write_file(const char *path, const char *text, mode_t mode)
{
    FILE *f = fopen(path, "w");
    if (!f || fputs(text, f) < 0 || fclose(f) != 0 || chmod(path, mode) != 0)
        fail_msg("%s: cannot be written", path);
}

static void write_program(const char *folder, const char *name, const char *text)
{
    char path[700];
    const char *slash = strrchr(name, '/');
    snprintf(path, sizeof path, "%s/%s", folder, slash ? slash + 1 : name);
    write_file(path, text, 0755);
}

/* The case's folder: stand-ins in bin/, programs, hostfile, .deepspeed_env. */
static void prepare(const json_t *c, const char *folder)
{
    static const char *const engines[] = {"mpirun", "pdsh", "srun", "mpiname", "mpiexec"};
    char bin[600];
    snprintf(bin, sizeof bin, "%s/bin", folder);
    mkdir(bin, 0700);
    if (!reference_bool(c, "backend_missing", false)) {
        for (int i = 0; i < 5; i++) write_program(bin, engines[i], "#!/bin/sh\n");
        write_program(bin, "mpiexec.hydra", "#!/bin/sh\n");
    }
    write_program(bin, "ssh",
                  reference_bool(c, "ssh_fails", false)
                      ? "#!/bin/sh\necho no route; exit 255\n"
                      : "#!/bin/sh\necho '10.1.2.3 192.168.0.7 '\n");
    size_t i;
    json_t *word;
    json_array_foreach(json_object_get(c, "argv"), i, word)
    {
        const char *name = json_string_value(word);
        bool program = isalnum((unsigned char)*name) || !strncmp(name, "./", 2);
        if (program && strcmp(name, "HOSTFILE") != 0) write_program(folder, name, "#!/bin/sh\n");
    }
    char path[600];
    const char *hosts = reference_text(c, "hostfile", NULL),
               *env = reference_text(c, "deepspeed_env", NULL);
    snprintf(path, sizeof path, "%s/HOSTFILE", folder);
    if (hosts) write_file(path, hosts, 0600);
    snprintf(path, sizeof path, "%s/.deepspeed_env", folder);
    if (env) write_file(path, env, 0600);
}

static void set_environment(const json_t *c, const char *folder)
{
    char bin[600], devices[20];
    const char *name;
    json_t *value;
    snprintf(bin, sizeof bin, "%s/bin", folder);
    snprintf(devices, sizeof devices, "%d", (int)reference_int(c, "devices", 4));
    clearenv();
    setenv("LOCAL_SIZE", devices, 1);
    setenv("RES_OPTIONS", "timeout:1 attempts:1", 1); /* no server knows worker-0 */
    json_object_foreach(json_object_get(c, "env"), name, value)
        setenv(name, json_string_value(value), 1);
    setenv("PATH", bin, 1);
}

/* In the child: returns its status; its output is in the files out and err. */
static int decide(const json_t *c, const char *folder)
{
    static char hostfile[] = "--hostfile=HOSTFILE"; /* may be written to */
    char *argv[64] = {(char *)"deepspeed"};
    int argc = 1;
    size_t i;
    json_t *word;
    set_environment(c, folder);
    if (chdir(folder) || !freopen("out", "w", stdout) || !freopen("err", "w", stderr)) return 99;
    if (json_object_get(c, "hostfile")) argv[argc++] = hostfile;
    json_array_foreach(json_object_get(c, "argv"), i, word) if (argc < 63)
        argv[argc++] = (char *)json_string_value(word);
    launch_plan p;
    options o;
    args_read(&o, argc, argv);
    int status = plan_decide(&p, &o);
    if (!status) status = plan_reach(&p);
    if (!status) status = plan_print(&p);
    plan_free(&p);
    return status;
}

static char *slurp(const char *name)
{
    static char text[2][1 << 16]; /* [out, err] */
    char *t = text[!strcmp(name, "err")];
    FILE *f = fopen(folder_path(name), "r");
    size_t n = f ? fread(t, 1, sizeof text[0] - 1, f) : 0;
    if (f) fclose(f);
    t[n] = 0;
    return t;
}

/* ---- command lines: comparing -------------------------------------------------------------------------------- */

typedef struct Case {
    Reference *r;
    size_t i;
    const json_t *want;           /* the case */
    const json_t *plan, *command; /* what we print */
} Case;

#define FAIL(c, ...) case_fail(c, __VA_ARGS__)
static void case_fail(const Case *c, const char *format, ...) DS_PRINTF(2, 3);
static void case_fail(const Case *c, const char *format, ...)
{
    char text[1000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    reference_fail(c->r, "case %zu: %s", c->i, text);
}

static const char *at(const json_t *words, size_t i)
{
    const char *s = json_string_value(json_array_get(words, i));
    return s ? s : "";
}

/* The place of a word, or of two that follow each other; -1: nowhere. */
static int find(const json_t *words, const char *word, const char *next)
{
    for (size_t i = 0; i < json_array_size(words); i++)
        if (!strcmp(at(words, i), word) && (!next || !strcmp(at(words, i + 1), next)))
            return (int)i;
    return -1;
}

/* Options of the start of a rank, and pairs of words for srun: ours has them
 * where DeepSpeed has. */
static void compare_options(const Case *c, const json_t *want)
{
    static const char *const same[] = {
        "--world_info=",        "--master_addr=",    "--master_port=", "--no_local_rank",
        "--bind_cores_to_rank", "--bind_core_list=", "--log_level=",   "--quiet"};
    static const char *const pairs[] = {"--nodelist", "--nodes", "--gpus-per-node"};
    for (size_t i = 0; i < json_array_size(want); i++) {
        const char *word = at(want, i);
        bool compared = !strncmp(word, "--enable_each_rank_log=", 23) &&
                        strcmp(word, "--enable_each_rank_log=None") != 0;
        for (size_t k = 0; k < sizeof same / sizeof *same; k++)
            compared = compared || !strncmp(word, same[k], strlen(same[k]));
        if (compared && find(c->command, word, NULL) < 0) FAIL(c, "there is no %s", word);
        for (size_t k = 0; k < 3; k++)
            if (!strcmp(word, pairs[k]) && find(c->command, word, at(want, i + 1)) < 0)
                FAIL(c, "there is no %s %s", word, at(want, i + 1));
        bool count = !strcmp(word, "-n") || !strcmp(word, "-np");
        const char *ranks = at(want, i + 1);
        if (count && strcmp(at(want, 0), "pdsh") != 0 && find(c->command, "-n", ranks) < 0 &&
            find(c->command, "-np", ranks) < 0)
            FAIL(c, "there are not %s ranks", ranks);
        if (!strcmp(word, "-w") || !strcmp(word, "-hosts")) {
            const char *name;
            json_t *slots;
            dsi_text hosts = {0};
            json_object_foreach(json_object_get(c->plan, "resources"), name, slots)
                dsi_text_add(&hosts, "%s%s", hosts.n ? "," : "", name);
            if (strcmp(hosts.s, ranks) != 0) FAIL(c, "hosts %s, want %s", hosts.s, ranks);
            dsi_text_free(&hosts);
        }
    }
}

/* The words behind "--" are the last words of the command line, as many as
 * DeepSpeed passes on. */
static void compare_program(const Case *c, const json_t *want)
{
    const json_t *typed = json_object_get(c->want, "argv");
    int dashes = find(c->command, "--", NULL);
    size_t first = (size_t)(dashes + 1), n = json_array_size(c->command) - first;
    size_t skip = json_array_size(typed) - n;
    int place = find(want, at(c->command, first), NULL);
    if (dashes < 0 || n > json_array_size(typed)) {
        FAIL(c, "there is no program");
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (strcmp(at(c->command, first + i), at(typed, skip + i)) != 0)
            FAIL(c, "word %zu of the program is %s, want %s", i, at(c->command, first + i),
                 at(typed, skip + i));
    if (place < 0 || json_array_size(want) - (size_t)place != n)
        FAIL(c, "the program is %s with %zu words in all", at(c->command, first), n);
}

/* Whether DeepSpeed's command forwards a variable: export, -x or -genv NAME. */
static bool is_forwarded(const json_t *want, const char *name)
{
    dsi_text entry = {0};
    dsi_text_add(&entry, "%s=", name);
    bool found = false;
    for (size_t i = 0; i < json_array_size(want); i++) {
        const char *word = strstr(at(want, i), entry.s);
        found = found || (word && (word == at(want, i) || strchr(" ,", word[-1]))) ||
                !strcmp(at(want, i), name);
    }
    dsi_text_free(&entry);
    return found;
}

static void compare_variable(const Case *c, const char *name, const char *value)
{
    const char *got = reference_text(json_object_get(c->plan, "environment"), name, NULL);
    if (!got || strcmp(got, value) != 0)
        FAIL(c, "variable %s is %s, want %s", name, got ? got : "absent", value);
}

static void compare_environment(const Case *c, const json_t *want)
{
    const char *name;
    json_t *value;
    json_object_foreach(json_object_get(c->want, "env"), name, value) if (is_forwarded(want, name))
        compare_variable(c, name, json_string_value(value));
    for (size_t i = 0; i + 2 < json_array_size(want); i++)
        if (!strncmp(at(want, i + 1), "MASTER_", 7) && !strcmp(at(want, i), "-genv"))
            compare_variable(c, at(want, i + 1), at(want, i + 2));
    const char *lines = reference_text(c->want, "deepspeed_env", "");
    while (*lines) {
        size_t n = strcspn(lines, "\n"), equals = strcspn(lines, "=");
        char *line = dsi_alloc(n + 1);
        memcpy(line, lines, n);
        if (equals < n) {
            line[equals] = 0;
            dsi_text later = {0};
            dsi_text_add(&later, "\n%s=", line);
            if (is_forwarded(want, line) && !strstr(lines + n, later.s))
                compare_variable(c, line, line + equals + 1);
            dsi_text_free(&later);
        }
        dsi_free(line);
        lines += n + (lines[n] == '\n');
    }
}

/* The words of --launcher_args, those without quotes, follow each other. */
static void compare_launcher_args(const Case *c)
{
    const json_t *typed = json_object_get(c->want, "argv");
    for (size_t i = 0; i < json_array_size(typed); i++) {
        char words[500], *rest = words, *word;
        const char *value = strstr(at(typed, i), "--launcher_args=");
        if (value != at(typed, i)) continue;
        snprintf(words, sizeof words, "%s", value + strlen("--launcher_args="));
        int place = -1;
        for (int k = 0; (word = strtok_r(rest, " ", &rest)); k++) {
            if (strpbrk(word, "'\"\\")) break; /* what a quote holds may be several words */
            if (!k) place = find(c->command, word, NULL);
            bool there = place >= 0;
            while (there && strcmp(at(c->command, (size_t)(place + k)), word) != 0) {
                int more = place + 1; /* the first word may be elsewhere too */
                while (strcmp(at(c->command, (size_t)more), at(c->command, (size_t)place)) != 0 &&
                       *at(c->command, (size_t)more))
                    more++;
                there = *at(c->command, (size_t)more) != 0;
                place = more;
            }
            if (!there) FAIL(c, "--launcher_args: %s is not passed on", word);
        }
    }
}

static void compare_command(const Case *c, const json_t *want)
{
    bool slurm = !strcmp(at(want, 0), "srun");
    const char *world = reference_text(c->plan, "world_info", ""), *starter = at(c->command, 0);
    if (!slurm && !strcmp(starter, "srun") && !json_object_get(c->want, "hostfile"))
        return; /* --launcher slurm means it, where DeepSpeed starts ranks on this machine */
    for (size_t i = 0; i < json_array_size(want); i++)
        if (!strncmp(at(want, i), "--world_info=", 13) && strcmp(at(want, i) + 13, world) != 0)
            FAIL(c, "world_info is %s, want %s", world, at(want, i) + 13);
    if (!c->command) return; /* another node than the first: it joins */
    if (slurm != !strcmp(starter, "srun")) FAIL(c, "it is started by %s", starter);
    compare_options(c, want);
    compare_program(c, want);
    compare_environment(c, want);
    compare_launcher_args(c);
}

static void command(Reference *r, const json_t *c, size_t i)
{
    const char *folder = folder_make(), *refused = reference_text(c, "message", NULL);
    if (reference_int(c, "exit", 0)) refused = reference_text(c, "usage_error", "");
    prepare(c, folder);
    fflush(NULL);
    pid_t child = fork();
    if (!child) exit(decide(c, folder));
    int status = -1;
    waitpid(child, &status, 0);
    status = WIFEXITED(status) ? WEXITSTATUS(status) : 255;
    const char *said = slurp("err");
    json_t *plan = json_loads(slurp("out"), 0, NULL);
    Case one = {r, i, c, plan, json_array_get(json_object_get(plan, "commands"), 0)};
    if (status > 2 || (status && !*said))
        FAIL(&one, "status %d: %s", status, said);
    else if (refused && !status && !may_accept(refused))
        FAIL(&one, "want a refusal: %s", refused);
    else if (!refused && status && !may_refuse(said))
        FAIL(&one, "refused: %s", said);
    else if (!refused && !status && plan)
        compare_command(&one, json_object_get(c, "command"));
    else if (!status && !plan && json_object_get(c, "command"))
        FAIL(&one, "what is printed is no JSON: %s", slurp("out"));
    json_decref(plan);
    folder_remove();
}

/* ---- the processes of a node --------------------------------------------------------------------------------- */

/* In the child: becomes rank k of n of its node, as if Open MPI started it. */
static int become(const json_t *c, int k, int n, const char *folder)
{
    char *argv[64] = {(char *)"deepspeed", (char *)"--rank_start"}, number[20];
    int argc = 2;
    size_t i;
    json_t *word;
    dsi_text info = {0};
    clearenv();
    setenv("PATH", "/usr/bin:/bin", 1);
    snprintf(number, sizeof number, "%d", k);
    setenv("OMPI_COMM_WORLD_RANK", number, 1);
    setenv("OMPI_COMM_WORLD_LOCAL_RANK", number, 1);
    snprintf(number, sizeof number, "%d", n);
    setenv("OMPI_COMM_WORLD_SIZE", number, 1);
    if (chdir(folder) || !freopen("out", "w", stdout) || !freopen("err", "w", stderr)) return 99;
    dsi_text_add(&info, "--world_info=%s", reference_text(c, "world_info", ""));
    argv[argc++] = info.s;
    json_array_foreach(json_object_get(c, "options"), i, word)
        argv[argc++] = (char *)json_string_value(word);
    argv[argc++] = (char *)"--";
    argv[argc++] = (char *)"./script";
    json_array_foreach(json_object_get(c, "script_args"), i, word) if (argc < 63)
        argv[argc++] = (char *)json_string_value(word);
    return rank_start(argc, argv);
}

/* The next line of what was said; NULL at the end. */
static const char *next_line(char **rest)
{
    char *line = *rest, *end = strchr(line, '\n');
    if (!end) return NULL;
    *end = 0;
    *rest = end + 1;
    return line;
}

/* DeepSpeed counts LOCAL_RANK modulo the local count: with unequal nodes it
 * does not begin with 0. Ours does. */
static void compare_process(Reference *r, size_t i, const json_t *want, int k, char *said)
{
    const char *name;
    json_t *value;
    char expected[300];
    json_object_foreach(json_object_get(want, "env"), name, value)
    {
        const char *text = json_is_string(value) ? json_string_value(value) : "absent";
        snprintf(expected, sizeof expected, "%s=%s", name, text);
        if (!strcmp(name, "LOCAL_RANK")) snprintf(expected, sizeof expected, "LOCAL_RANK=%d", k);
        const char *got = next_line(&said);
        if (!got || strcmp(got, expected) != 0)
            reference_fail(r, "case %zu: process %d: %s, want %s", i, k, got ? got : "nothing",
                           expected);
    }
    size_t n;
    json_array_foreach(json_object_get(want, "argv"), n, value)
    {
        const char *got = next_line(&said), *text = json_string_value(value);
        bool own = !strncmp(text, "--local_rank=", 13);
        snprintf(expected, sizeof expected, "--local_rank=%d", k);
        if (!got || strcmp(got, own ? expected : text) != 0)
            reference_fail(r, "case %zu: process %d: word %s, want %s", i, k, got ? got : "nothing",
                           own ? expected : text);
    }
    if (*said) reference_fail(r, "case %zu: process %d has more words: %s", i, k, said);
}

static void node(Reference *r, const json_t *c, size_t i)
{
    json_t *processes = json_object_get(c, "processes"), *want, *value;
    size_t k;
    bool python = false;
    json_array_foreach(json_object_get(c, "options"), k, value)
        python = python || !strcmp(json_string_value(value), "--module");
    if (python || reference_text(c, "target", NULL))
        return; /* python's modules, and missing scripts */
    json_array_foreach(processes, k, want)
    {
        const char *name, *folder = folder_make();
        dsi_text script = {0};
        dsi_text_add(&script, "#!/bin/sh\n");
        json_object_foreach(json_object_get(want, "env"), name, value)
            dsi_text_add(&script, "echo \"%s=${%s-absent}\"\n", name, name);
        dsi_text_add(&script, "printf '%%s\\n' \"$@\"\n");
        write_program(folder, "script", script.s);
        dsi_text_free(&script);
        fflush(NULL);
        pid_t child = fork();
        if (!child) exit(become(c, (int)k, (int)json_array_size(processes), folder));
        int status = -1;
        waitpid(child, &status, 0);
        if (status)
            reference_fail(r, "case %zu: process %zu: status %d: %s", i, k, status, slurp("err"));
        else
            compare_process(r, i, want, (int)k, slurp("out"));
        folder_remove();
    }
}

/* ---- files --------------------------------------------------------------------------------------------------- */

static void run(Reference *r)
{
    static const struct {
        const char *id;
        void (*run)(Reference *r, const json_t *c, size_t i);
    } kinds[] = {{"hostfiles", hostfile},
                 {"filters", filter},
                 {"core_lists", core_list},
                 {"commands", command},
                 {"nodes", node}};
    json_t *cases = json_object_get(r->json, "cases"), *c;
    size_t i;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (!strcmp(reference_text(r->json, "id", ""), kinds[k].id)) {
            json_array_foreach(cases, i, c) kinds[k].run(r, c, i);
            if (!json_array_size(cases)) reference_fail(r, "there are no cases");
            return;
        }
    reference_skip(r, "it is of no kind that is known here");
}

static void launcher(void **state)
{
    (void)state;
    CHECK_INT(reference_each("launcher", run), 0);
}

TEST_MAIN(cmocka_unit_test(launcher))
