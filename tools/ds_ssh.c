/* tools/ds_ssh.c: a command on all hosts of a hostfile.
 *
 *     ds_ssh [-f HOSTFILE] [--include ...] [--exclude ...] COMMAND [ARGUMENT...]
 *
 * runs COMMAND, joined by blanks and read by the shell over there as ssh does
 * it, on all hosts at once, and prints each line with the host's name in front.
 * The status is the largest of the hosts'; 255 is ssh's own for one that cannot
 * be reached. ssh is run for each host; pdsh is not needed.
 * SPDX-License-Identifier: MIT */
#include "args.h"
#include "argv.h"
#include "hosts.h"
#include "output.h"
#include "parse_options.h"
#include "select.h"
#include "signals.h"

#include "base/mem.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_S 10.0 /* for the reader of our output */

enum { CONNECT_S = 10 };

/* An ssh. Its end is that of its process, not the end of its stdout: with
 * ControlPersist in the user's configuration, a process that it started keeps
 * stdout open. */
typedef struct remote {
    int process, fd[2]; /* 0: it has ended; of its stdout and stderr; -1: at its end */
    int code;           /* its status, then */
} remote;

typedef struct command {
    const char *hostfile, *include, *exclude;
    int port;
    char **words;
} command;

static void remote_exec(const command *c, const char *host, const int *out, const int *err)
{
    argv_list argv = {0};
    int null = open("/dev/null", O_RDONLY);
    signals_unblock();
    argv_add_words(&argv, "ssh", "-oBatchMode=yes");
    argv_add(&argv, "-oConnectTimeout=%d", CONNECT_S);
    if (c->port) argv_add(&argv, "-p%d", c->port);
    argv_add_words(&argv, host, "--");
    argv_add_all(&argv, c->words);
    dup2(null, STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(err[1], STDERR_FILENO);
    execvp("ssh", argv.at);
    fprintf(stderr, "ssh: %s\n", strerror(errno));
    _exit(255);
}

static bool remote_start(remote *r, const command *c, const char *host)
{
    int out[2], err[2];
    *r = (remote){.fd = {-1, -1}, .code = 255};
    if (pipe2(out, O_CLOEXEC)) return false;
    if (pipe2(err, O_CLOEXEC)) {
        close(out[0]);
        close(out[1]);
        return false;
    }
    r->process = fork();
    if (r->process == 0) remote_exec(c, host, out, err);
    close(out[1]);
    close(err[1]);
    r->fd[0] = out[0];
    r->fd[1] = err[0];
    for (int i = 0; i < 2; i++) fcntl(r->fd[i], F_SETFL, O_NONBLOCK);
    if (r->process > 0) return true;
    r->process = 0;
    return false;
}

static void remotes_reap(remote *r, int n)
{
    for (int i = 0; i < n; i++) {
        int status;
        if (!r[i].process || waitpid(r[i].process, &status, WNOHANG) != r[i].process) continue;
        r[i].process = 0;
        r[i].code = signals_exit_status(status);
    }
}

static void remote_read(remote *r, int host, int stream, output *o)
{
    char bytes[1 << 16];
    ssize_t n = read(r->fd[stream], bytes, sizeof bytes);
    if (n < 0 && (errno == EINTR || (errno == EAGAIN && r->process))) return;
    if (n > 0) {
        output_add(o, host, 1 + stream, bytes, (size_t)n);
        return;
    }
    close(r->fd[stream]);
    r->fd[stream] = -1;
}

/* Until all have ended, and all that they said is taken. */
static void remotes_pass_output(remote *r, int n, output *o, int ends)
{
    struct pollfd *p = dsi_alloc((size_t)(2 * n + 3) * sizeof *p);
    for (;;) {
        bool open = false, ended = false, full = output_full(o);
        for (int i = 0; i < 2 * n; i++) {
            int fd = r[i / 2].fd[i % 2];
            p[i] = (struct pollfd){.fd = full ? -1 : fd, .events = POLLIN};
            open = open || fd >= 0 || r[i / 2].process;
            ended = ended || (fd >= 0 && !r[i / 2].process);
        }
        if (!open) break;
        p[2 * n] = (struct pollfd){.fd = ends, .events = POLLIN};
        output_poll(o, p + 2 * n + 1);
        poll(p, (nfds_t)(2 * n + 3), ended && !full ? 0 : -1);
        output_write(o);
        if (signals_read(ends)) remotes_reap(r, n);
        for (int i = 0; i < 2 * n; i++)
            if (p[i].fd >= 0 && (p[i].revents || !r[i / 2].process))
                remote_read(&r[i / 2], i / 2, i % 2, o);
    }
    dsi_free(p);
}

static int run_command(const command *c, const ds_hosts *h)
{
    remote *r = dsi_alloc((size_t)h->n * sizeof *r);
    char **prefix = dsi_alloc((size_t)h->n * sizeof *prefix);
    for (int i = 0; i < h->n; i++) {
        dsi_text t = dsi_text_of("%s: ", h->at[i].name);
        prefix[i] = t.s;
    }
    output *o = output_new(h->n, (const char *const *)prefix);
    int ends = signals_open((int[]){SIGCHLD, 0}, NULL);
    for (int i = 0; i < h->n; i++)
        if (!remote_start(&r[i], c, h->at[i].name))
            fprintf(stderr, "ds_ssh: %s: %s\n", h->at[i].name, strerror(errno));
    remotes_pass_output(r, h->n, o, ends);
    close(ends);
    output_finish(o, PATIENCE_S);
    bool lost = output_error(o);
    output_free(o);
    int status = 0;
    for (int i = 0; i < h->n; i++)
        if (r[i].code > status) status = r[i].code;
    if (!status && lost) status = EXIT_FAILURE;
    for (int i = 0; i < h->n; i++) dsi_free(prefix[i]);
    dsi_free(prefix);
    dsi_free(r);
    return status;
}

static error_t ssh_parse_option(int key, char *arg, struct argp_state *state)
{
    command *c = state->input;
    char *end;
    switch (key) {
    case 'f':
    case 'H':
        c->hostfile = arg;
        return 0;
    case 'i':
        c->include = arg;
        return 0;
    case 'e':
        c->exclude = arg;
        return 0;
    case 'p':
        c->port = (int)strtol(arg, &end, 10);
        if (*end || end == arg || c->port < 1 || c->port > 65535)
            argp_error(state, "--ssh_port %s: expected a port, 1 to 65535", arg);
        return 0;
    case ARGP_KEY_ARGS: /* what follows the first word is the command's own */
        c->words = state->argv + state->next;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which command?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int main(int argc, char **argv)
{
    static const struct argp_option rows[] = {
        {"hostfile", 'H', "FILE", 0, "Hosts, one \"NAME slots=N\" a line (" DEFAULT_HOSTFILE ")",
         0},
        {NULL, 'f', "FILE", OPTION_HIDDEN, NULL, 0},
        {"include", 'i', "HOSTS", 0, "Only these: NAME@NAME...", 0},
        {"exclude", 'e', "HOSTS", 0, "All but these", 0},
        {"ssh_port", 'p', "PORT", 0, "ssh's port", 0},
        {0}};
    const struct argp argp = {
        rows, ssh_parse_option, "COMMAND [ARGUMENT...]", "Runs COMMAND on all hosts.", NULL, NULL,
        NULL};
    command c = {.hostfile = DEFAULT_HOSTFILE};
    ds_hosts h = {0};
    argp_program_version = "ds_ssh (deepspeed.c) " DS_VERSION;
    if (parse_options(&argp, argc, argv, PARSE_BEFORE_COMMAND, &c)) return STATUS_WRONG;
    int status = STATUS_WRONG;
    if (hosts_read(&h, c.hostfile) == DS_OK && select_hosts(&h, c.include, c.exclude) == DS_OK)
        status = run_command(&c, &h);
    else
        ds_perror("ds_ssh");
    hosts_free(&h);
    return status;
}
