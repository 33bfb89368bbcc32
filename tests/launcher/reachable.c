/* tests/launcher/reachable.c: what is asked of hosts before anything is
 * started, with stand-ins for ssh.
 * SPDX-License-Identifier: MIT */
#include "dry.h"

#include "reachable.h"

#include <errno.h>
#include <signal.h>

static int begin(void **state)
{
    static char path[200];
    dry_begin(state);
    dry_write("hosts", "nohost-a.invalid slots=1\nnohost-b.invalid slots=1\nlocalhost slots=1\n",
              0600);
    snprintf(path, sizeof path, "%s", folder_path("asked"));
    dry_set("ASKED", path);
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

/* The process that ControlPersist leaves behind keeps the pipe open for good;
 * the host's answer counts all the same. */
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

/* An ssh that answers for --ask_hosts on the host: what `unless` names is not
 * reached there. */
static void tree_ssh(const char *unless, const char *dead)
{
    char script[500];
    snprintf(script, sizeof script,
             "echo \"$@\" >>\"$ASKED\"; for l; do h=$k k=$l; done\n"
             "case $h in %s) echo no route >&2; exit 255; esac; echo 10.1.2.3\n"
             "case $k in *--ask_hosts*) set -- ${k#*--ask_hosts}; shift 3\n"
             "for h; do case $h in %s) ;; *) echo reached $h; esac; done; esac",
             dead, unless);
    dry_program("ssh", script);
}

/* More hosts than one is to start: h1 and h2 are asked here, and ask others. */
static void as_a_tree(void **state)
{
    (void)state;
    dry_write("hosts", "h1 slots=1\nh2 slots=1\nh3 slots=1\nh4 slots=1\nh5 slots=1\n", 0600);
    const char *const words[] = {"-H", "hosts", "--launcher_args=--mca routed_radix 2", "train",
                                 NULL};
    tree_ssh("none", "none");
    const char *c = dry_command(dry_words(true, words));
    HAS(c, "--master_addr=10.1.2.3 ");
    HAS(c, "--mca routed_radix 2 ");
    HAS_NOT(c, "no_tree_spawn");
    const char *lines = asked();
    HAS(lines, " h1 hostname -I; exec /");
    HAS(lines, " --ask_hosts 2 -1 12000 h3 h5\n");
    HAS(lines, " --ask_hosts 2 -1 12000 h4\n");
    HAS_NOT(lines, " true");
    HAS_NOT(dry_command(reached("-H", "hosts", "train")), "routed_radix"); /* 5 are few */
    HAS_NOT(asked(), "--ask_hosts");

    tree_ssh("h5", "none"); /* h1 has no key for it */
    HAS(dry_command(dry_words(true, words)), "--mca plm_rsh_no_tree_spawn 1 ");
    HAS(lines = asked(), " h5 true\n");
    HAS_NOT(lines, " h3 true\n");
    tree_ssh("h5", "h5"); /* no host reaches it */
    dry_refused(dry_words(true, words), "h5 of hosts was not reachable via ssh (no route)",
                __LINE__);
    tree_ssh("none", "h2"); /* h4 is asked from here */
    dry_refused(dry_words(true, words), "h2 of hosts was not reachable via ssh (no route)",
                __LINE__);
    asked();
    tree_ssh("h5", "h5");
    c = dry_command(reached("-H", "hosts", "--launcher_args=--mca routed_radix 2",
                            "--max_restarts=1", "train"));
    HAS(c, "-H h1:1,h2:1,h3:1,h4:1 ");
    HAS_NOT(c, "no_tree_spawn");
}

static void tree_is_not_asked(void **state)
{
    (void)state;
    dry_write("hosts", "h1 slots=1\nh2 slots=1\nh3 slots=1\n", 0600);
    dry_set("OMPI_MCA_routed_radix", "1");
    tree_ssh("none", "none");
    HAS_NOT(dry_command(reached("-H", "hosts", "train")), "no_tree_spawn");
    HAS(asked(), "--ask_hosts 1 -1 12000 h2 h3\n");
    static const char *const other[] = {
        "--launcher=pdsh", "--launcher=mpich", "--launcher_args=--mca plm_rsh_no_tree_spawn 1",
        "--launcher_args=--mca plm_rsh_agent rsh", "--launcher_args=--mca routed direct"};
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        dry_command(reached("-H", "hosts", other[i], "train"));
        HAS_NOT(asked(), "--ask_hosts");
    }
}

/* deepspeed --ask_hosts, as ssh would run it. */
static Dry ask_hosts(const char *fan_out)
{
    static const char *hosts[] = {"h1", "h2", "h3", "h4"};
    char *argv[9] = {(char *)"deepspeed", (char *)"--ask_hosts", (char *)fan_out, (char *)"22",
                     (char *)"9000"};
    for (int i = 0; i < 4; i++) argv[5 + i] = (char *)hosts[i];
    Dry d = {0};
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) exit(dry_enter() ? 99 : reachable_ask_hosts(9, argv));
    waitpid(pid, &status, 0);
    d.status = WEXITSTATUS(status);
    FILE *f = fopen(folder_path("out"), "r");
    size_t n = f ? fread(d.err, 1, sizeof d.err - 1, f) : 0;
    d.err[n] = 0;
    if (f) fclose(f);
    return d;
}

static void an_inner_host(void **state)
{
    (void)state;
    tree_ssh("h4", "h2");
    Dry d = ask_hosts("4");
    CHECK(!d.status && !strcmp(d.err, "reached h1\nreached h3\nreached h4\n"));
    HAS(asked(), " -p 22 h1 true\n");
    d = ask_hosts("1");
    CHECK(!d.status && !strcmp(d.err, "reached h1\nreached h2\nreached h3\n"));
    HAS(asked(), " --ask_hosts 1 22 6000 h2 h3 h4\n");
    CHECK_INT(ask_hosts("none").status, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, dry_end)
TEST_MAIN(TEST(all_are_asked), TEST(not_asked), TEST(one_is_left), TEST(refused), TEST(some_answer),
          TEST(masters), TEST(interrupted), TEST(as_a_tree), TEST(tree_is_not_asked),
          TEST(an_inner_host))
