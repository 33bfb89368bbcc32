/* tests/data/fetch.c: a download arrives whole or not at all, however the
 * server behaves.
 * SPDX-License-Identifier: MIT */
#include "data/fetch.h"
#include "check.h"
#include "cifar10_files.h"
#include "http_server.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 300000, CUT = 100000 };

static uint8_t body[SIZE];
static char body_md5[33];
static const char *folder;
static const char *path; /* folder/file */

static int setup(void **state)
{
    (void)state;
    folder = new_folder();
    path = in(folder, "file");
    for (int k = 0; k < SIZE; k++) body[k] = (uint8_t)(k % 7 * k + k / 251);
    save(path, body, SIZE);
    CHECK_INT(dsi_md5(path, body_md5), DS_OK);
    return unlink(path);
}

static int teardown(void **state)
{
    (void)state;
    ds_error_clear();
    return 0;
}

static void check_arrived(void)
{
    bytes got = load(path);
    CHECK_INT((int64_t)got.n, SIZE);
    CHECK(!memcmp(got.p, body, SIZE));
    free(got.p);
    CHECK_INT(entries(folder), 1); /* no .part is left */
    CHECK(!ds_error());
}

/* One download from a server of these manners. */
static dsi_fetched fetch(http_manners m, http_server *s)
{
    if (!m.body) m.body = body, m.bytes = SIZE;
    *s = http_start(m);
    return dsi_fetch(s->url, path, body_md5, true);
}

static void a_file_arrives(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.etag = "\"v1\""}, &s), DSI_FETCHED);
    check_arrived();
    CHECK_INT(s.log->requests, 1);
    CHECK_INT(s.log->range[0], -1);
    http_stop(&s);
}

static void a_file_url_is_copied(void **state)
{
    (void)state;
    char url[600];
    const char *from = in(folder, "original");
    save(from, body, SIZE);
    snprintf(url, sizeof url, "file://%s", from);
    CHECK_INT(dsi_fetch(url, path, body_md5, true), DSI_FETCHED);
    unlink(from);
    check_arrived();
    unlink(path);
    CHECK_INT(dsi_fetch(url, path, body_md5, true), DSI_FETCH_ANSWER);
    CHECK_ERROR("download: file://");
    CHECK_INT(entries(folder), 0);
}

static void a_cut_connection_is_gone_on_with(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.etag = "\"v1\"", .cut = CUT}, &s), DSI_FETCHED);
    check_arrived();
    CHECK_INT(s.log->requests, 3);
    CHECK_INT(s.log->range[1], CUT);
    CHECK_INT(s.log->range[2], 2 * CUT);
    CHECK(s.log->condition[1]);
    http_stop(&s);
}

static void a_server_without_ranges_begins_again(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.no_ranges = true, .cut = CUT, .cuts = 2}, &s), DSI_FETCHED);
    check_arrived();
    CHECK_INT(s.log->requests, 3);
    http_stop(&s);
}

/* The second run finds what the first one left, and asks for the rest alone. */
static void a_later_run_goes_on(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.etag = "\"v1\"", .no_ranges = true, .cut = CUT}, &s),
              DSI_FETCH_NETWORK);
    CHECK_ERROR("breaks off, at last after 100000 of 300000 bytes");
    CHECK(!there(path) && there(in(folder, "file.part")));
    http_stop(&s);

    /* the same address, as far as the note beside the part tells */
    http_server t = http_start((http_manners){.body = body, .bytes = SIZE, .etag = "\"v1\""});
    char note[128];
    snprintf(note, sizeof note, "%s\n\"v1\"\n", t.url);
    save(in(folder, "file.part.from"), note, strlen(note));
    CHECK_INT(dsi_fetch(t.url, path, body_md5, true), DSI_FETCHED);
    CHECK_INT(t.log->range[0], CUT);
    check_arrived();
    http_stop(&t);
}

static void a_part_of_another_file_is_not_used(void **state)
{
    (void)state;
    http_server s = http_start((http_manners){.body = body, .bytes = SIZE, .etag = "\"v2\""});
    char note[128];
    snprintf(note, sizeof note, "%s\n\"v1\"\n", s.url);
    save(in(folder, "file.part"), "old bytes", 9);
    save(in(folder, "file.part.from"), note, strlen(note));
    CHECK_INT(dsi_fetch(s.url, path, body_md5, true), DSI_FETCHED); /* If-Range does not hold */
    CHECK(s.log->range[0] == 9 && s.log->condition[0]);
    check_arrived();

    unlink(path); /* from another address: not even asked for */
    save(in(folder, "file.part"), "old bytes", 9);
    save(in(folder, "file.part.from"), "http://elsewhere/\n\"v2\"\n", 23);
    CHECK_INT(dsi_fetch(s.url, path, body_md5, true), DSI_FETCHED);
    CHECK_INT(s.log->range[1], -1);
    check_arrived();
    http_stop(&s);
}

/* No ETag, wrong bytes in the part: only the md5 can tell, and it costs a fresh
 * download. */
static void a_spoilt_part_is_found_by_its_md5(void **state)
{
    (void)state;
    http_server s = http_start((http_manners){.body = body, .bytes = SIZE});
    char note[128];
    snprintf(note, sizeof note, "%s\n\n", s.url);
    save(in(folder, "file.part"), "old bytes", 9);
    save(in(folder, "file.part.from"), note, strlen(note));
    CHECK_INT(dsi_fetch(s.url, path, body_md5, true), DSI_FETCHED);
    CHECK_INT(s.log->requests, 2);
    CHECK_INT(s.log->range[0], 9);
    CHECK_INT(s.log->range[1], -1);
    check_arrived();

    unlink(path); /* longer than the file itself: 416, and from the beginning */
    bytes longer = {0};
    put(&longer, body, SIZE);
    put_text(&longer, "and more");
    save(in(folder, "file.part"), longer.p, longer.n);
    save(in(folder, "file.part.from"), note, strlen(note));
    CHECK_INT(dsi_fetch(s.url, path, body_md5, true), DSI_FETCHED);
    check_arrived();
    free(longer.p);
    http_stop(&s);
}

static void a_wrong_md5_leaves_nothing(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.body = "something else", .bytes = 14}, &s), DSI_FETCH_ANSWER);
    CHECK_ERROR("gives 14 bytes with md5 6c7ba9c5a141421e1c03cb9807c97c74, expected");
    CHECK_INT(entries(folder), 0);
    CHECK_INT(s.log->requests, 1);
    http_stop(&s);
}

static void a_wrong_length_is_found(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.promise = SIZE + 5, .no_ranges = true}, &s), DSI_FETCH_NETWORK);
    CHECK_ERROR("breaks off, at last after 300000 of 300005 bytes");
    CHECK(!there(path));
    http_stop(&s);
    CHECK_INT(fetch((http_manners){.promise = SIZE - 5}, &s), DSI_FETCH_ANSWER);
    CHECK_ERROR("gives 299995 bytes with md5");
    CHECK(!there(path));
    http_stop(&s);
    CHECK_INT(fetch((http_manners){.promise = (size_t)5 << 30}, &s), DSI_FETCH_ANSWER);
    CHECK_ERROR("the file has more than 4294967296 bytes: is the address right?");
    CHECK_INT(entries(folder), 0);
    http_stop(&s);
}

/* To open a FIFO would wait for ever. */
static void no_file_is_waited_for(void **state)
{
    (void)state;
    char url[600];
    http_server s;
    const char *const names[] = {"file.part", "file.part.from"};
    const char *const says[] = {"file.part: expected a regular file",
                                "file.part.from: expected a regular file"};
    for (int i = 0; i < 2; i++) {
        CHECK_INT(mkfifo(in(folder, names[i]), 0600), 0);
        CHECK_INT(fetch((http_manners){0}, &s), DSI_FETCH_LOCAL);
        CHECK_ERROR(says[i]);
        unlink(in(folder, names[i]));
        http_stop(&s);
    }
    const char *fifo = in(folder, "fifo");
    mkfifo(fifo, 0600);
    snprintf(url, sizeof url, "file://%s", fifo);
    CHECK_INT(dsi_fetch(url, path, NULL, true), DSI_FETCH_LOCAL);
    CHECK_ERROR("fifo: expected a regular file");
    unlink(fifo);
    CHECK_INT(entries(folder), 0);
}

static void an_empty_file_is_one(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.body = "", .bytes = 0}, &s), DSI_FETCH_ANSWER);
    CHECK_ERROR("gives 0 bytes with md5 d41d8cd98f00b204e9800998ecf8427e");
    CHECK_INT(entries(folder), 0);
    http_stop(&s);
}

static void a_404_is_said(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.status = 404}, &s), DSI_FETCH_ANSWER);
    CHECK_ERROR("the server answers 404, expected 200");
    CHECK_INT(s.log->requests, 1);
    CHECK_INT(entries(folder), 0);
    http_stop(&s);
}

static void a_busy_server_is_asked_again(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.first_busy = 2}, &s), DSI_FETCHED);
    check_arrived();
    CHECK_INT(s.log->requests, 3);
    http_stop(&s);
    unlink(path);
    CHECK_INT(fetch((http_manners){.status = 503}, &s), DSI_FETCH_ANSWER);
    CHECK_ERROR("the server answers 503");
    http_stop(&s);
}

static void a_range_that_was_not_asked_for_is_refused(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.etag = "\"v1\"", .cut = CUT, .wrong_range = true}, &s),
              DSI_FETCH_ANSWER);
    CHECK_ERROR("answers with bytes from 100001 on, expected those from 100000");
    CHECK(!there(path));
    http_stop(&s);
}

static void a_redirect_is_followed_but_not_to_files(void **state)
{
    (void)state;
    http_server s;
    CHECK_INT(fetch((http_manners){.redirect = "/there"}, &s), DSI_FETCHED);
    check_arrived();
    http_stop(&s);
    unlink(path);
    CHECK(fetch((http_manners){.redirect = "file:///etc/passwd"}, &s) != DSI_FETCHED);
    CHECK_ERROR("download: http://127.0.0.1");
    CHECK_INT(entries(folder), 0);
    http_stop(&s);
}

static void nobody_there_is_the_network(void **state)
{
    (void)state;
    http_server s = http_start((http_manners){.status = 404});
    http_stop(&s);
    CHECK_INT(dsi_fetch(s.url, path, body_md5, true), DSI_FETCH_NETWORK);
    CHECK_ERROR("onnect");
    CHECK_INT(dsi_fetch("gopher://127.0.0.1/", path, body_md5, true), DSI_FETCH_ANSWER);
    CHECK_ERROR("gopher");
    CHECK_INT(entries(folder), 0);
}

/* A limit on the size of files stands for a full disk. The bytes that have come
 * are kept for the next call, when the disk has space. */
static void a_full_disk_is_named_and_gone_on_with(void **state)
{
    (void)state;
    http_server s;
    struct rlimit was, small;
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &was) == 0);
    small = (struct rlimit){CUT, was.rlim_max};
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    dsi_fetched got = fetch((http_manners){.etag = "\"v1\""}, &s);
    setrlimit(RLIMIT_FSIZE, &was);
    CHECK_INT(got, DSI_FETCH_LOCAL);
    CHECK_ERROR("file.part: File too large after 100000 bytes: make room");
    CHECK(!there(path));
    CHECK_INT(dsi_fetch(s.url, path, body_md5, true), DSI_FETCHED);
    CHECK_INT(s.log->range[1], CUT);
    check_arrived();
    http_stop(&s);
}

static void a_folder_that_is_not_there_is_named(void **state)
{
    (void)state;
    http_server s = http_start((http_manners){.body = body, .bytes = SIZE});
    CHECK_INT(dsi_fetch(s.url, in(folder, "no/file"), NULL, true), DSI_FETCH_LOCAL);
    CHECK_ERROR("no/file.part: No such file or directory");
    CHECK_INT(s.log->requests, 0);
    http_stop(&s);
}

/* A process that is killed in the middle leaves a part; the next one continues
 * it. */
static void a_killed_download_is_gone_on_with(void **state)
{
    (void)state;
    http_server s = http_start(
        (http_manners){.body = body, .bytes = SIZE, .etag = "\"v1\"", .pause_ms = 1500});
    pid_t child = fork();
    if (!child) _exit(dsi_fetch(s.url, path, body_md5, true));
    struct stat st = {0};
    for (int k = 0; k < 1000 && st.st_size < SIZE / 2; k++) {
        usleep(1000);
        if (stat(in(folder, "file.part"), &st) != 0) st.st_size = 0;
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(!there(path));
    CHECK_INT(dsi_fetch(s.url, path, body_md5, true), DSI_FETCHED);
    CHECK_INT(s.log->range[1], SIZE / 2);
    check_arrived();
    http_stop(&s);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_file_arrives),
        TEST(a_file_url_is_copied),
        TEST(a_cut_connection_is_gone_on_with),
        TEST(a_server_without_ranges_begins_again),
        TEST(a_later_run_goes_on),
        TEST(a_part_of_another_file_is_not_used),
        TEST(a_spoilt_part_is_found_by_its_md5),
        TEST(a_wrong_md5_leaves_nothing),
        TEST(a_wrong_length_is_found),
        TEST(no_file_is_waited_for),
        TEST(an_empty_file_is_one),
        TEST(a_404_is_said),
        TEST(a_busy_server_is_asked_again),
        TEST(a_range_that_was_not_asked_for_is_refused),
        TEST(a_redirect_is_followed_but_not_to_files),
        TEST(nobody_there_is_the_network),
        TEST(a_full_disk_is_named_and_gone_on_with),
        TEST(a_folder_that_is_not_there_is_named),
        TEST(a_killed_download_is_gone_on_with),
    };
    setenv("no_proxy", "*", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
