/* launcher/job.c: the processes of a job from their start to their end.
 *
 * The job waits for four things at once: signals, records of ranks (on the
 * socket, or in the runner's stderr), other text of the runner, and space to
 * write on its own stdout and stderr. When a rank fails without having been
 * told to end, or a signal comes, all ranks are told to end (ENDING), get some
 * seconds for that, and are killed (KILLED); a second signal kills at once.
 * job_records.c reads, job_result.c finds the cause.
 *
 * Invariants: this process is the subreaper of all that the runner starts and
 * ends them all before job_run returns. It owns the listening socket, a
 * connection for each rank that has connected (local jobs only), and the pipes
 * from the runner's stdout and stderr. poll is the only call that blocks, until
 * the next limit of job_wait_ms; output never blocks (output.h). While too much
 * output waits to be written nothing is read, so that ranks wait too. Signals
 * are blocked and read from `signals`. The phase only increases; `since` is
 * when the last one began.
 * SPDX-License-Identifier: MIT */
#include "job_running.h"

#include "oom.h"
#include "processes.h"
#include "signals.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define RUNNER_S 1.0  /* for the runner to end the other ranks by itself */
#define LINGER_S 1.0  /* for text and records after the runner has ended */
#define SILENT_S 0.2  /* without any, if the cause is known */
#define REMOTE_S 3.0  /* at least, to end ranks on other machines */
#define HANG_S   10.0 /* for the runner to end after all ranks have succeeded */
#define TTY_S    0.1  /* Ctrl-C may reach a rank before this process */
#define HOLD_S   0.5  /* the runner's text waits for a cause that may follow */

/* ---- starting ------------------------------------------------------------------------- */

static bool job_listen(running *r)
{
    struct sockaddr_un address;
    socklen_t n = (socklen_t)wire_address(r->j->secret, &address);
    r->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return r->listener >= 0 && !bind(r->listener, (struct sockaddr *)&address, n) &&
           !listen(r->listener, 512);
}

/* ---- ending --------------------------------------------------------------------------- */

void job_signal_ranks(running *r, int signal)
{
    for (int i = 0; i < r->peers.n; i++) {
        wire w = {.fd = r->peers.at[i].fd, .socket = true};
        memcpy(w.secret, r->j->secret, sizeof w.secret);
        wire_send_numbers(&w, WIRE_SIGNAL, 1, &signal);
    }
}

static void runner_signal(const running *r, int signal)
{
    if (r->runner.process > 0) kill(r->runner.process, signal);
}

void runner_terminate(running *r)
{
    r->runner_told = true;
    runner_signal(r, SIGTERM);
}

/* The first call counts. Ranks on other machines are ended by the runner,
 * which gets SIGTERM at once after a signal, else after RUNNER_S. */
void job_begin_end(running *r)
{
    if (r->phase != RUNNING) return;
    r->phase = ENDING;
    r->since = dsi_now();
    job_signal_ranks(r, SIGTERM);
    if (r->j->report && !r->result.signal && getppid() == r->j->supervisor)
        kill(r->j->supervisor, SIGURG); /* it asks the hosts meanwhile (restart.c) */
    if (r->result.signal && !r->j->local) runner_terminate(r);
}

/* When all that has not ended is killed. Runners take a while to end ranks on
 * other machines. */
static double job_kill_time(const running *r)
{
    double grace = processes_grace();
    if (r->j->local) return r->since + grace;
    return r->since + (grace > REMOTE_S ? grace : REMOTE_S) + (r->result.signal ? 0 : RUNNER_S);
}

/* All descendants on this machine at once, the runner too. */
static void job_kill(running *r)
{
    r->phase = KILLED;
    r->since = dsi_now();
    r->runner_told = true;
    processes_signal(getpid(), SIGKILL);
}

static void runner_note_end(running *r, int status)
{
    r->result.runner_process = r->runner.process;
    r->runner.process = -1;
    r->runner_ended = dsi_now();
    r->result.runner_status = signals_exit_status(status);
    r->result.runner_ended_first = r->phase == RUNNING;
    if (!WIFSIGNALED(status) || r->runner_told) return;
    r->result.runner_signal = WTERMSIG(status);
    r->result.out_of_memory = oom_count_kills("") > r->oom_kills;
    if (job_result_runner_killed(&r->result)) job_begin_end(r);
}

/* SIGUSR1 and SIGUSR2 are passed on to ranks; others end the job. SIGCHLD may
 * stand for several children. */
static void job_read_signal(running *r)
{
    int status, pid, signal = signals_read(r->signals);
    if (signal == SIGUSR1 || signal == SIGUSR2) {
        job_signal_ranks(r, signal);
        if (!r->j->local) runner_signal(r, signal);
    } else if (signal && signal != SIGCHLD && r->result.signal) {
        job_kill(r);
    } else if (signal && signal != SIGCHLD) {
        r->result.signal = signal;
        if (getppid() != r->j->supervisor) r->result.launcher_killed = r->j->supervisor;
        if (r->phase == ENDING && !r->j->local) runner_terminate(r);
        job_begin_end(r);
    }
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        if (pid == r->runner.process) runner_note_end(r, status);
}

/* ---- waiting -------------------------------------------------------------------------- */

/* When nothing more is waited for after the runner has ended: what it has
 * started on other machines may keep its pipes open. */
static double job_linger_end(const running *r)
{
    double end = r->runner_ended + LINGER_S;
    double last = r->runner_read > r->runner_ended ? r->runner_read : r->runner_ended;
    bool known = r->phase != RUNNING && job_result_is_known(&r->result);
    return known && last + SILENT_S < end ? last + SILENT_S : end;
}

/* How long poll may wait. */
static int job_wait_ms(const running *r)
{
    double now = dsi_now(), until = now + 3600;
    if (r->phase == RUNNING && r->j->start_timeout && !job_has_started(r))
        until = r->begun + r->j->start_timeout;
    if (r->phase == RUNNING && r->held.n && job_has_started(r)) until = r->held_since + HOLD_S;
    if (r->phase == ENDING) until = job_kill_time(r);
    if (r->phase == KILLED) until = r->since + LINGER_S;
    if (r->phase == ENDING && !r->j->local && !r->runner_ended && r->since + RUNNER_S > now)
        until = r->since + RUNNER_S;
    if (r->runner_ended) until = job_linger_end(r);
    if (r->phase == RUNNING && r->result.ended == r->j->size) until = now + 1;
    return until <= now ? 0 : (int)((until - now) * 1e3) + 1;
}

/* Waits for something to happen and handles it. */
static void job_step(running *r)
{
    enum { SIGNALS, RANKS, OUTPUT, OUT = OUTPUT + 2, ERR, PEERS };
    int n = r->peers.n;
    bool full = output_full(r->output) && r->phase == RUNNING;
    struct pollfd *p = dsi_alloc((size_t)(PEERS + n) * sizeof *p);
    p[SIGNALS] = (struct pollfd){.fd = r->signals, .events = POLLIN};
    p[RANKS] = (struct pollfd){.fd = r->listener, .events = POLLIN};
    if (r->j->node_lost && !r->result.node_lost) /* then there is no listener */
        p[RANKS].fd = r->j->node_lost;
    output_poll(r->output, p + OUTPUT);
    p[OUT] = (struct pollfd){.fd = full ? -1 : r->runner.out, .events = POLLIN};
    p[ERR] = (struct pollfd){.fd = full ? -1 : r->runner.err, .events = POLLIN};
    for (int i = 0; i < n; i++)
        p[PEERS + i] = (struct pollfd){.fd = full ? -1 : r->peers.at[i].fd, .events = POLLIN};
    poll(p, (nfds_t)(PEERS + n), job_wait_ms(r));
    output_write(r->output);
    r->result.output_error = output_error(r->output);
    if (r->result.output_error == EPIPE) job_begin_end(r);
    for (int i = 0; i < n; i++)
        if (p[PEERS + i].revents) peer_read(r, i);
    if (p[OUT].revents) r->runner.out = runner_read(r, r->runner.out, false);
    if (p[ERR].revents) r->runner.err = runner_read(r, r->runner.err, true);
    if (p[RANKS].revents && p[RANKS].fd == r->listener) job_accept(r);
    if (p[RANKS].revents && p[RANKS].fd == r->j->node_lost) job_read_loss(r);
    if (p[SIGNALS].revents) job_read_signal(r);
    dsi_free(p);
}

/* ---- the end of the job ---------------------------------------------------------------- */

static bool job_streams_ended(const running *r)
{
    for (int i = 0; i < r->peers.n; i++)
        if (r->peers.at[i].fd >= 0) return false;
    return r->runner.out < 0 && r->runner.err < 0;
}

/* A connected rank that has not reported its exit. */
static bool job_has_running_peer(const running *r)
{
    for (int i = 0; i < r->peers.n; i++) {
        const peer *l = &r->peers.at[i];
        if (l->fd >= 0 && (l->rank < 0 || !r->result.rank[l->rank].ended)) return true;
    }
    return false;
}

/* Nothing more is expected, or a limit has passed. */
static bool job_is_over(running *r)
{
    double now = dsi_now();
    if (r->runner_ended && job_streams_ended(r)) return true;
    if (r->runner_ended && output_full(r->output) && !r->result.signal) r->runner_ended = now;
    if (r->runner_ended && now > job_linger_end(r)) return true;
    if (r->phase == KILLED && now > r->since + LINGER_S) return true;
    /* the runner has nothing left to do, unless it knows the cause */
    bool unknown = !job_result_is_known(&r->result);
    if (r->phase != RUNNING && r->j->local && !job_has_running_peer(r) &&
        !(unknown && !r->runner_ended && now < r->since + RUNNER_S)) {
        job_signal_ranks(r, 0);
        return true;
    }
    return false;
}

/* While the job runs. */
static void job_check_start(running *r, double now)
{
    bool started = job_has_started(r);
    if (started && now >= r->held_since + HOLD_S) job_show_held(r);
    if (started || !r->j->start_timeout || now < r->begun + r->j->start_timeout) return;
    job_show_held(r); /* it may say why */
    r->result.start_timeout = r->j->start_timeout;
    job_begin_end(r);
    runner_terminate(r);
}

/* Ends waits whose time limits have passed. */
static void job_check_limits(running *r)
{
    double now = dsi_now();
    if (r->phase == RUNNING && !r->runner_ended) job_check_start(r, now);
    bool hanging = r->phase == RUNNING && r->result.ended == r->j->size;
    if (hanging && !r->all_succeeded) r->all_succeeded = now;
    if (hanging && now > r->all_succeeded + HANG_S) {
        r->result.runner_hung = true;
        job_kill(r);
    }
    if (r->phase == ENDING && !r->j->local && !r->runner_signalled && now > r->since + RUNNER_S) {
        r->runner_signalled = true;
        runner_terminate(r);
    }
    if (r->phase == ENDING && now > job_kill_time(r)) job_kill(r);
}

/* A rank that died of the terminal's Ctrl-C may have reported that before our
 * own SIGINT has come. */
static void job_wait_own_signal(running *r)
{
    int s = r->result.first >= 0 ? r->result.rank[r->result.first].exit.signal : 0;
    struct pollfd p = {.fd = r->signals, .events = POLLIN};
    if (s != SIGINT && s != SIGHUP && s != SIGTERM && s != SIGQUIT) return;
    double until = dsi_now() + TTY_S;
    while (!r->result.signal && dsi_now() < until)
        if (poll(&p, 1, (int)(TTY_S * 1e3)) > 0) job_read_signal(r);
}

/* Waits, without limit, until all output is written or a signal comes. */
static void job_write_output(running *r)
{
    output_end_lines(r->output);
    while (!r->result.signal) {
        struct pollfd p[3] = {[2] = {.fd = r->signals, .events = POLLIN}};
        output_poll(r->output, p);
        if (p[0].fd < 0 && p[1].fd < 0) return;
        poll(p, 3, -1);
        output_write(r->output);
        if (p[2].revents) job_read_signal(r);
    }
}

/* The status, after its line on stderr. */
static int job_conclude(running *r)
{
    dsi_text why = {0};
    job_write_output(r);
    r->result.output_error = output_error(r->output);
    /* Open MPI 5 ends with 0 after such a loss */
    bool failed = r->result.runner_status || r->result.succeeded < r->j->size;
    if (!job_result_is_known(&r->result) && failed)
        job_result_read_loss(&r->result, r->held.s, r->held.n);
    int status = job_result_status(&r->result, &why);
    bool known = job_result_is_known(&r->result) || !status;
    if (!known || !status) job_show_held(r);
    if (why.n) output_print(r->output, why.s);
    /* the cause has been printed now, or was in a message before */
    if (r->j->report) job_report_finish(r->j->report, &r->result, status, why.n ? &why : &r->last);
    output_finish(r->output, LINGER_S);
    dsi_text_free(&why);
    return status;
}

static void job_free(running *r)
{
    for (int i = 0; i < r->peers.n; i++)
        if (r->peers.at[i].fd >= 0) peer_close(r, &r->peers.at[i]);
    dsi_list_free(&r->peers);
    if (r->runner.out >= 0) close(r->runner.out);
    if (r->runner.err >= 0) close(r->runner.err);
    dsi_text_free(&r->runner.reader.held);
    if (r->listener >= 0) close(r->listener);
    close(r->signals);
    output_free(r->output);
    dsi_text_free(&r->held);
    dsi_text_free(&r->last);
    dsi_free(r->result.rank);
}

const int job_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGALRM, SIGUSR1, SIGUSR2, SIGCHLD, 0};

int job_run(const job *j)
{
    const char *path = j->command[0], *slash = strrchr(path, '/');
    running r = {.j = j,
                 .listener = -1,
                 .runner = {.process = -1, .out = -1, .err = -1},
                 .result = {.size = j->size,
                            .host = j->host,
                            .program = j->program,
                            .runner = slash ? slash + 1 : path,
                            .status_ignored = j->status_ignored,
                            .first = -1}};
    r.signals = signals_open(job_signals, NULL);
    r.result.rank = dsi_alloc((size_t)j->size * sizeof *r.result.rank);
    r.output = output_new(j->size, j->prefix);
    r.begun = dsi_now();
    r.oom_kills = oom_count_kills("");
    processes_adopt();
    bool good = r.signals >= 0 && (!j->local || job_listen(&r)) &&
                runner_process_start(&r.runner, j);
    if (!good) {
        fprintf(stderr, "deepspeed: starting %s: %s\n", path, strerror(errno));
        job_kill(&r);
    }
    while (good && !job_is_over(&r)) {
        job_step(&r);
        job_check_limits(&r);
    }
    job_wait_own_signal(&r);
    processes_end();
    int status = good ? job_conclude(&r) : 1;
    if (!good && j->report) j->report->final = true;
    job_free(&r);
    return status;
}
