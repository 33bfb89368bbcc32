/* examples/common/parse_options.c: argp, with the nearest option for a misspelt
 * one, and one rank that speaks; stdout that is closed or full, files that may
 * not grow.
 * SPDX-License-Identifier: MIT */
#include "parse_options.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define LONGEST 64 /* of an option's name; longer words are compared in part */

static char normal(char c) { return c == '_' ? '-' : c; }

/* How many letters have to be changed, added or left out to make the option
 * `name` of the n letters of `word`: Levenshtein's distance. */
static int distance(const char *word, int n, const char *name)
{
    int row[LONGEST + 1];
    for (int j = 0; j <= n; j++) row[j] = j;
    for (; *name; name++) {
        int diagonal = row[0]++;
        for (int j = 1; j <= n; j++) {
            int changed = diagonal + (normal(word[j - 1]) != normal(*name));
            diagonal = row[j];
            int least = row[j] < row[j - 1] ? row[j] + 1 : row[j - 1] + 1;
            row[j] = changed < least ? changed : least;
        }
    }
    return row[n];
}

typedef struct Search {
    const char *word;  /* without "--" */
    int n;             /* its letters before "=" */
    const char *known; /* an option that begins so, or is this */
    bool takes_value;
    const char *nearest;
    int least; /* distance of nearest */
} Search;

static void look_at(Search *s, const char *name, bool takes_value)
{
    int same = 0;
    while (same < s->n && normal(s->word[same]) == normal(name[same])) same++;
    if (same == s->n) { /* also the begin of a name, which getopt accepts */
        if (!s->known || !name[same]) s->known = name;
        if (!name[same]) s->takes_value = takes_value;
    }
    int d = distance(s->word, s->n, name);
    if (d >= s->least) return;
    s->least = d;
    s->nearest = name;
}

static void look_in(Search *s, const struct argp *argp)
{
    for (const struct argp_option *o = argp->options; o && (o->name || o->doc || o->key); o++)
        if (o->name) look_at(s, o->name, o->arg != NULL);
    for (const struct argp_child *c = argp->children; c && c->argp; c++) look_in(s, c->argp);
}

bool parse_is_first_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = getenv(names[i]);
        if (rank) return atoi(rank) == 0;
    }
    return true;
}

static void refuse(const Search *s, const char *program) __attribute__((__noreturn__));
static void refuse(const Search *s, const char *program)
{
    const char *slash = strrchr(program, '/');
    fprintf(stderr, "%s: there is no option --%.*s", slash ? slash + 1 : program, s->n, s->word);
    if (s->nearest) {
        bool underscores = memchr(s->word, '_', (size_t)s->n) != NULL,
             hyphens = memchr(s->word, '-', (size_t)s->n) != NULL;
        fprintf(stderr, "; did you mean --");
        for (const char *c = s->nearest; *c; c++)
            fputc(underscores && *c == '-' ? '_' : hyphens && *c == '_' ? '-' : *c, stderr);
        fprintf(stderr, "?");
    }
    fprintf(stderr, " (--help lists all)\n");
    exit(argp_err_exit_status);
}

/* Whether the next word is the value of the option -x. */
static bool letter_takes_value(const struct argp *argp, int letter)
{
    for (const struct argp_option *o = argp->options; o && (o->name || o->doc || o->key); o++)
        if (o->key == letter) return o->arg != NULL;
    return false;
}

/* Refuses unknown options, and writes known ones with the underscores and
 * hyphens that they have in argp. */
static void options_check_names(const struct argp *argp, int argc, char **argv, unsigned flags)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--", 2) != 0) {
            if (!(flags & PARSE_BEFORE_COMMAND)) continue;
            if (argv[i][0] != '-') return;
            if (argv[i][1] && !argv[i][2] && letter_takes_value(argp, argv[i][1])) i++;
            continue;
        }
        size_t n = strcspn(argv[i] + 2, "=");
        Search s = {.word = argv[i] + 2, .n = n < LONGEST ? (int)n : LONGEST};
        s.least = s.n / 3 + 2; /* near: a third of the letters, and one */
        look_at(&s, "help", false);
        look_at(&s, "usage", false);
        look_at(&s, "version", false);
        look_in(&s, argp);
        if (!s.known) refuse(&s, argv[0]);
        memcpy(argv[i] + 2, s.known, (size_t)s.n); /* argp wants its own spelling */
        if (s.takes_value && !s.word[n]) i++;
    }
}

static bool silent; /* this process is silent while it parses, as rank 0 speaks */

/* mpirun ends rank 0 when another rank has ended: rank 0 says why first. */
static void let_first_rank_speak(void)
{
    if (silent) nanosleep(&(struct timespec){.tv_nsec = 500000000}, NULL);
}

/* Sends what is written to fd nowhere; returns where it went. */
static int mute(int fd)
{
    int was = dup(fd), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (nowhere >= 0) {
        dup2(nowhere, fd);
        close(nowhere);
    }
    return was;
}

static void unmute(int fd, int was)
{
    if (was < 0) return;
    dup2(was, fd);
    close(was);
}

/* A descriptor of stdin, stdout or stderr that is closed would be that of the
 * next file, and what is printed would be written into it. Writing fails as
 * before. */
static void open_standard_files(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) == -1 && errno == EBADF && open("/dev/null", O_RDONLY) < 0) return;
}

static void on_file_limit(int signal) { (void)signal; }

/* A file that reaches `ulimit -f` is a write that fails, not the end of the
 * program. A program that this one starts does not inherit it. */
static void catch_file_limit(void)
{
    struct sigaction was, caught = {.sa_handler = on_file_limit, .sa_flags = SA_RESTART};
    if (sigaction(SIGXFSZ, NULL, &was) == 0 && was.sa_handler == SIG_DFL)
        sigaction(SIGXFSZ, &caught, NULL);
}

/* At the end of the program, by any way: what was printed has been written, or
 * the status is 1. */
static void check_stdout(void)
{
    int why = fflush(stdout) ? errno : 0;
    if (!why && !ferror(stdout)) return;
    if (!why && write(STDOUT_FILENO, "", 0) < 0) why = errno; /* an earlier write failed */
    fprintf(stderr, "%s: stdout: %s\n", program_invocation_short_name,
            why ? strerror(why) : "not all of it could be written");
    _exit(EXIT_FAILURE);
}

/* argp writes --help for 80 columns: makes it fit a terminal that has fewer.
 * ARGP_HELP_FMT of the user stays. */
static void help_fit_terminal(void)
{
    struct winsize terminal;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &terminal) || terminal.ws_col < 40 ||
        terminal.ws_col >= 80)
        return;
    char format[64];
    snprintf(format, sizeof format, "rmargin=%d,opt-doc-col=%d", terminal.ws_col - 1,
             terminal.ws_col * 3 / 10);
    setenv("ARGP_HELP_FMT", format, 0);
}

error_t parse_options(const struct argp *argp, int argc, char **argv, unsigned flags, void *input)
{
    int out = -1, err = -1;
    argp_err_exit_status = PARSE_WRONG;
    open_standard_files();
    catch_file_limit();
    atexit(check_stdout);
    if (flags & PARSE_ON_RANKS && !parse_is_first_rank() && !isatty(STDERR_FILENO)) {
        out = mute(STDOUT_FILENO);
        err = mute(STDERR_FILENO);
        silent = true;
        atexit(let_first_rank_speak);
    }
    options_check_names(argp, argc, argv, flags);
    help_fit_terminal();
    unsigned order = flags & (PARSE_BEFORE_COMMAND | ARGP_IN_ORDER) ? ARGP_IN_ORDER : 0;
    error_t status = argp_parse(argp, argc, argv, order, NULL, input);
    unmute(STDOUT_FILENO, out);
    unmute(STDERR_FILENO, err);
    silent = false;
    return status;
}
