/* tests/launcher/reachable.c: what is asked of hosts before anything is
 * started, with stand-ins for ssh.
 * SPDX-License-Identifier: MIT */
#include "dry.h"

#include <errno.h>
#include <signal.h>

static int begin(void **state)
{
    dry_begin(state);
    dry_write("hosts", "nohost-a.invalid slots=1\nnohost-b.invalid slots=1\nlocalhost slots=1\n",
              0600);
    dry_set("ASKED", folder_path("asked"));
    dry_program("ssh", "echo \"$@\" >>\"$ASKED\"; echo '10.1.2.3 fe80::1'");
    return 0;
}

static char *asked(void)
{
    static char text[2000];
    FILE *f = fopen(folder_path("asked"), "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[n] = 0;
    unlink(folder_path("asked"));
    return text;
}

static void all_are_asked(void **state)
{
    (void)state;
    HAS(dry_command(reached("-H", "hosts", "--ssh_port=7", "train")), "--master_addr=10.1.2.3 ");
    const char *lines = asked();
    HAS(lines, "-o BatchMode=yes -o ConnectTimeout=10 -p 7 nohost-a.invalid hostname -I\n");
    HAS(lines, "nohost-b.invalid true\n");
    HAS_NOT(lines, "localhost"); /* this machine */
    HAS(dry_command(reached("-H", "hosts", "--master_addr=10.9.9.9", "train")),
        "--master_addr=10.9.9.9 ");
    HAS(asked(), "nohost-a.invalid true\n");
}

static void not_asked(void **state)
{
    (void)state;
    HAS(dry_command(reached("-H", "hosts", "--no_ssh_check", "--master_addr=10.9.9.9", "train")),
        "10.9.9.9");
    CHECK(!*asked());
    HAS(dry_command(reached("-H", "hosts", "--no_ssh_check", "train")), "--master_addr=10.1.2.3 ");
    HAS(asked(), "nohost-a.invalid hostname -I\n"); /* no name service knows it */
    HAS(dry_command(reached("--num_gpus=2", "train")), "--master_addr=127.0.0.1");
    CHECK(!*asked());
    HAS_NOT(dry_command(reached("-H", "hosts", "-i", "localhost", "--force_multi", "train")),
            "--master_addr=localhost");
    CHECK(!*asked());
}

/* One host that is left is this machine, whatever its name. */
static void one_is_left(void **state)
{
    (void)state;
    Dry d = reached("-H", "hosts", "-i", "nohost-a.invalid", "train");
    HAS(d.err, "the ranks of nohost-a.invalid are started on this machine");
    const char *c = dry_command(d);
    HAS(c, "--master_addr=");
    HAS_NOT(c, "mpirun");
    CHECK(!*asked());
    d = reached("-H", "hosts", "-i", "localhost", "train");
    CHECK(!d.status && !*d.err);
    json_decref(d.json);
}

static void refused(void **state)
{
    (void)state;
    dry_program("ssh",
                "case $* in *nohost-b*) echo 'Permission denied (publickey).' >&2; exit 255; esac");
    dry_refused(
        reached("-H", "hosts", "train"),
        "nohost-b.invalid of hosts was not reachable via ssh (Permission denied (publickey).)",
        __LINE__);
    dry_program("ssh",
                "exit 3"); /* the host's own status: it was reached; but it has no hostname -I */
    dry_refused(reached("-H", "hosts", "train"),
                "nohost-a.invalid: its address cannot be found; give it as --master_addr",
                __LINE__);
    HAS(dry_command(reached("-H", "hosts", "--master_addr=m", "train")), "--master_addr=m ");
    dry_program("ssh", "kill -9 $$");
    dry_refused(reached("-H", "hosts", "train"),
                "nohost-a.invalid of hosts was not reachable via ssh (ssh was killed by signal 9 "
                "(SIGKILL))",
                __LINE__);
    HAS(dry_command(reached("-H", "hosts", "--no_ssh_check", "--master_addr=m", "train")),
        "--master_addr=m ");
}

/* A restart leaves out hosts that do not answer, and the address is that of the
 * first one that does. */
static void some_answer(void **state)
{
    (void)state;
    dry_program("ssh", "case $* in *nohost-a*) echo 'No route to host' >&2; exit 255;; "
                       "*) echo 10.1.2.4; esac");
    const char *const words[] = {"-H", "hosts", "--max_restarts=1", "train", NULL};
    Dry d = dry_words(true, words);
    HAS(d.err, "deepspeed: nohost-a.invalid of hosts was not reachable via ssh (No route to host)");
    HAS(d.err, ": it is left out\n");
    json_t *environment = json_object_get(d.json, "environment");
    const char *full = json_string_value(json_object_get(environment, "DS_FULL_WORLD_SIZE"));
    CHECK(full && !strcmp(full, "3"));
    HAS(dry_resources(d), "{\"nohost-b.invalid\": [0], \"localhost\": [0]}");
    HAS(dry_command(dry_words(true, words)), "--master_addr=10.1.2.4 ");
    dry_program("ssh", "exit 255");
    HAS(dry_resources(dry_words(true, words)), "{\"localhost\": [0]}");
}

/* What ControlPersist leaves behind holds the pipe for good; that is no answer
 * that does not come. */
static void masters(void **state)
{
    (void)state;
    dry_program("ssh", "echo 10.1.2.3; exec /bin/sh -c '/bin/sleep 60 & echo $! >>\"$ASKED\"'");
    HAS(dry_command(reached("-H", "hosts", "train")), "--master_addr=10.1.2.3 ");
    for (char *s = asked(); *s;) kill((pid_t)strtol(s, &s, 10), SIGKILL), s += *s == '\n';
}

/* A signal for the launcher alone, while ssh hangs. */
static void interrupted(void **state)
{
    (void)state;
    int status;
    dry_program("ssh", "echo $$ >>\"$ASKED\"; /bin/sleep 60");
    fflush(NULL);
    pid_t pid = fork();
    if (!pid)
        exit(dry_child(
            4,
            (char *[]){(char *)"deepspeed", (char *)"-H", (char *)"hosts", (char *)"train", NULL},
            true));
    struct stat st;
    while (stat(folder_path("asked"), &st) || st.st_size < 4) usleep(1000);
    kill(pid, SIGTERM);
    CHECK_INT(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 128 + SIGTERM);
    for (char *s = asked(); *s; s += *s == '\n') {
        errno = 0;
        CHECK(kill((pid_t)strtol(s, &s, 10), 0) == -1 && errno == ESRCH);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, dry_end)
TEST_MAIN(TEST(all_are_asked), TEST(not_asked), TEST(one_is_left), TEST(refused), TEST(some_answer),
          TEST(masters), TEST(interrupted))
