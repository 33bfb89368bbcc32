/* tests/base/trace.c: DS_TRACE: files are JSON, events nest, threads have lines
 * of their own.
 *
 * A process has one trace, so each test traces in a child, which ends by exit.
 * SPDX-License-Identifier: MIT */
#include "base/trace.h"

#include "base/file.h"
#include "check.h"
#include "folder.h"

#include <jansson.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static int make(void **state) { return *state = NULL, folder_make() == NULL; }
static int unmake(void **state) { return (void)state, folder_remove(), 0; }

/* Runs fn in a child with that DS_TRACE; its exit status. */
static int run_child(const char *path, void (*fn)(void))
{
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        setenv("DS_TRACE", path, 1);
        fn();
        exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return status;
}

static json_t *read_trace(const char *path)
{
    json_error_t error;
    json_t *events = json_load_file(path, 0, &error);
    if (!events) fail_msg("%s:%d: %s", path, error.line, error.text);
    CHECK(json_is_array(events));
    return events;
}

static const char *text_of(json_t *event, const char *key)
{
    const char *s = json_string_value(json_object_get(event, key));
    return s ? s : "";
}

static int64_t number_of(json_t *event, const char *key)
{
    return (int64_t)json_number_value(json_object_get(event, key));
}

/* Checks that begins and ends of each thread match and times go forward;
 * returns the threads that have events, the number of events in *n. */
static int check_nesting(json_t *events, int *n)
{
    enum { THREADS = 16 };
    struct {
        int64_t tid;
        int depth;
        double ts;
    } threads[THREADS];
    int seen = 0;
    size_t i;
    json_t *e;
    *n = 0;
    json_array_foreach(events, i, e)
    {
        const char *phase = text_of(e, "ph");
        CHECK(strlen(phase) == 1 && number_of(e, "pid") > 0);
        if (*phase == 'M') continue;
        int k = 0;
        while (k < seen && threads[k].tid != number_of(e, "tid")) k++;
        if (k == seen) {
            CHECK(seen < THREADS);
            threads[seen].tid = number_of(e, "tid");
            threads[seen].depth = 0;
            threads[seen++].ts = 0;
        }
        double ts = json_number_value(json_object_get(e, "ts"));
        CHECK(ts >= threads[k].ts);
        threads[k].ts = ts;
        threads[k].depth += (*phase == 'B') - (*phase == 'E');
        CHECK(threads[k].depth >= 0);
        (*n)++;
    }
    for (int k = 0; k < seen; k++) CHECK_INT(threads[k].depth, 0);
    return seen;
}

/* ---- one thread ------------------------------------------------------------------------------------ */

static void trace_a_step(void)
{
    dsi_trace_name_thread("rank 0");
    dsi_trace_begin("step");
    dsi_trace_begin("a \"name\" with \\ and \n");
    dsi_trace_end();
    dsi_trace_async_begin("all_reduce", 0xabcdef);
    dsi_trace_async_end("all_reduce", 0xabcdef);
    dsi_trace_begin("a name that is longer than what can be kept whole in an event, "
                    "such as the path of a module deep below");
    dsi_trace_end();
    dsi_trace_end();
}

static void events_are_chromes(void **state)
{
    (void)state;
    CHECK_INT(run_child(folder_path("t.json"), trace_a_step), 0);
    json_t *events = read_trace(folder_path("t.json")), *e;
    static const char *const phases = "MMBBEbeBEE";
    CHECK_INT((int64_t)json_array_size(events), (int64_t)strlen(phases));
    for (size_t i = 0; phases[i]; i++)
        CHECK(*text_of(json_array_get(events, i), "ph") == phases[i]);
    e = json_array_get(events, 0);
    assert_string_equal(text_of(e, "name"), "process_name");
    assert_string_equal(text_of(json_object_get(e, "args"), "name"), "test_base_trace");
    e = json_array_get(events, 1);
    assert_string_equal(text_of(e, "name"), "thread_name");
    assert_string_equal(text_of(json_object_get(e, "args"), "name"), "rank 0");
    assert_string_equal(text_of(json_array_get(events, 2), "name"), "step");
    assert_string_equal(text_of(json_array_get(events, 3), "name"), "a ?name? with ? and ?");
    for (int i = 5; i <= 6; i++) {
        e = json_array_get(events, (size_t)i);
        assert_string_equal(text_of(e, "name"), "all_reduce");
        assert_string_equal(text_of(e, "cat"), "request");
        assert_string_equal(text_of(e, "id"), "0xabcdef");
    }
    assert_string_equal(
        text_of(json_array_get(events, 7), "name"),
        "a name that is longer than what can be kept whole in an event, such as the pat");
    int n;
    CHECK_INT(check_nesting(events, &n), 1);
    json_decref(events);
}

/* ---- ops ---------------------------------------------------------------------------------------------- */

static void trace_an_mlp(void)
{
    ds_module *net = ds_nn_sequential(NULL, "net");
    ds_nn_linear(net, "fc1", 4, 3);
    ds_nn_relu(net, "act");
    ds_nn_linear(net, "fc2", 3, 2);
    ds_tensor *x = ds_ones(DS_F32, ds_shape(5, 4));
    ds_backward(ds_mean(ds_call(net, x)));
    ds_module_free(net);
}

/* Index of the first event of that phase and name from `from` on. */
static size_t find_event(json_t *events, size_t from, const char *phase, const char *name)
{
    size_t n = json_array_size(events);
    for (size_t i = from; i < n; i++) {
        json_t *e = json_array_get(events, i);
        if (!strcmp(text_of(e, "ph"), phase) && !strcmp(text_of(e, "name"), name)) return i;
    }
    fail_msg("no event %s %s from %zu on", phase, name, from);
    return n;
}

static void ops_are_under_modules(void **state)
{
    (void)state;
    static const char *const in_order[] = {"net",
                                           "net.fc1",
                                           "matmul",
                                           "net.act",
                                           "net.fc2",
                                           "matmul",
                                           "sum",
                                           "backward",
                                           "linear_backward net.fc2",
                                           "matmul",
                                           "relu_backward net.act",
                                           "relu_dx",
                                           "linear_backward net.fc1",
                                           "matmul"};
    int n;
    CHECK_INT(run_child(folder_path("t.json"), trace_an_mlp), 0);
    json_t *events = read_trace(folder_path("t.json"));
    check_nesting(events, &n);
    size_t at = 0;
    for (size_t i = 0; i < sizeof in_order / sizeof *in_order; i++)
        at = find_event(events, at, "B", in_order[i]) + 1;
    json_decref(events);
}

/* ---- several ---------------------------------------------------------------------------------------- */

enum { STEPS = 3000 }; /* more than a buffer */

static void *trace_steps(void *arg)
{
    (void)arg;
    for (int i = 0; i < STEPS; i++) {
        dsi_trace_begin("step");
        dsi_trace_begin("forward");
        dsi_trace_end();
        dsi_trace_end();
    }
    return NULL;
}

static pthread_barrier_t barrier;

/* Is still there when the process ends. */
static void *trace_and_wait(void *arg)
{
    dsi_trace_begin("waits");
    dsi_trace_end();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    return arg;
}

static void trace_threads(void)
{
    pthread_t t[4], waits;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&waits, NULL, trace_and_wait, NULL);
    for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, trace_steps, NULL);
    trace_steps(NULL);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    pthread_barrier_wait(&barrier);
}

static void threads_have_lines_of_their_own(void **state)
{
    (void)state;
    CHECK_INT(run_child(folder_path("t.json"), trace_threads), 0);
    json_t *events = read_trace(folder_path("t.json"));
    int n;
    CHECK_INT(check_nesting(events, &n), 6);
    CHECK_INT(n, 5 * STEPS * 4 + 2);
    json_decref(events);
}

static void trace_and_die(void)
{
    trace_steps(NULL);
    raise(SIGKILL);
}

static void a_killed_process_leaves_whole_events(void **state)
{
    (void)state;
    CHECK_INT(WTERMSIG(run_child(folder_path("t.json"), trace_and_die)), SIGKILL);
    size_t n;
    char *text = dsi_file_read(folder_path("t.json"), &n);
    CHECK(n > 100000 && text[n - 1] == '}'); /* viewers do without the bracket */
    text = realloc(text, n + 2);
    json_error_t error;
    json_t *events = json_loads(strcpy(text + n, "]") - n, 0, &error);
    CHECK(json_array_size(events) > 8000);
    json_decref(events);
    free(text);
}

/* ---- files ------------------------------------------------------------------------------------------- */

static void trace_twice(void)
{
    trace_a_step();
    if (!fork()) { /* another rank, under the same name; the child's copy of this trace is left alone */
        execl("/proc/self/exe", "test_base_trace", "--step", (char *)NULL);
        _exit(1);
    }
    int status;
    wait(&status);
    if (status) _exit(2);
}

static void ranks_do_not_share_a_file(void **state)
{
    (void)state;
    CHECK_INT(run_child(folder_path("t.json"), trace_twice), 0);
    char command[1200];
    json_t *events = read_trace(folder_path("t.json"));
    CHECK_INT((int64_t)json_array_size(events), 10);
    json_decref(events);
    snprintf(command, sizeof command, "test $(ls %s | grep -c '^t\\.[0-9]*\\.json$') = 1",
             folder_path(""));
    CHECK_INT(system(command), 0);
    snprintf(command, sizeof command, "mv %s %s", folder_path("t.*.json"),
             folder_path("other.json"));
    CHECK_INT(system(command), 0);
    events = read_trace(folder_path("other.json"));
    CHECK_INT((int64_t)json_array_size(events), 10);
    json_decref(events);
}

static void a_later_run_begins_anew(void **state)
{
    (void)state;
    CHECK_INT(run_child(folder_path("t.json"), trace_threads), 0);
    CHECK_INT(run_child(folder_path("t.json"), trace_a_step), 0);
    json_t *events = read_trace(folder_path("t.json"));
    CHECK_INT((int64_t)json_array_size(events), 10);
    json_decref(events);
}

static void check_off(void)
{
    if (dsi_trace_on()) _exit(1);
    trace_a_step();
}

static void check_told(void)
{
    FILE *said = tmpfile();
    char line[1000];
    dup2(fileno(said), 1);
    check_off();
    ssize_t n = pread(fileno(said), line, sizeof line - 1, 0);
    line[n < 0 ? 0 : n] = 0;
    if (!strstr(line, "DS_TRACE=/proc/no/file.json: No such file or directory; there is no trace"))
        _exit(2);
    if (strchr(line, '\n') != strrchr(line, '\n')) _exit(3); /* once */
}

static void what_cannot_be_is_told_once(void **state)
{
    (void)state;
    CHECK_INT(run_child("", check_off), 0);
    CHECK_INT(run_child("/proc/no/file.json", check_told), 0);
    CHECK_INT(run_child("/dev/full", trace_a_step), 0); /* a full disk: one line, no more */
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make, unmake)
int main(int argc, char **argv)
{
    (void)argv;
    if (argc > 1) return trace_a_step(), 0; /* as the other rank above */
    const struct CMUnitTest tests[] = {IN_FOLDER(ops_are_under_modules),
                                       IN_FOLDER(events_are_chromes),
                                       IN_FOLDER(threads_have_lines_of_their_own),
                                       IN_FOLDER(ranks_do_not_share_a_file),
                                       IN_FOLDER(a_killed_process_leaves_whole_events),
                                       IN_FOLDER(a_later_run_begins_anew),
                                       IN_FOLDER(what_cannot_be_is_told_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
