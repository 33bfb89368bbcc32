/* tests/launcher/hosts.c: hostfiles, Slurm's lists, filters: what is wrong with
 * them is said with its place. (tests/reference/launcher.c compares what is
 * right with DeepSpeed's launcher.)
 * SPDX-License-Identifier: MIT */
#include "check.h"

#include "select.h"

#include "base/mem.h"

/* The hosts as JSON, or the message, in a buffer that the next call overwrites. */
static const char *shown(ds_status status, ds_hosts *h)
{
    static char text[4096];
    char *json = hosts_json(h->at, h->n);
    snprintf(text, sizeof text, "%s", status == DS_OK ? json : ds_error());
    dsi_free(json);
    hosts_free(h);
    ds_error_clear();
    return text;
}

static const char *parsed(const char *text, size_t n)
{
    ds_hosts h = {0};
    ds_status status = hosts_parse(&h, "hosts", text, n);
    return shown(status, &h);
}

#define SAYS(text, want) says(parsed(text, sizeof text - 1), want)
static void says(const char *got, const char *want)
{
    if (strcmp(got, want) != 0) fail_msg("got %s, want %s", got, want);
}

static void files(void **state)
{
    (void)state;
    SAYS("a slots=2\n# c\n\n b\tslots=1 # x\r\nc slots=00",
         "{\"a\": [0, 1], \"b\": [0], \"c\": []}");
    SAYS("\xef\xbb\xbf"
         "a slots=1\n",
         "{\"a\": [0]}");
    SAYS("a slots=1\nb\n", "hosts:2: \"b\": expected NAME slots=N");
    SAYS("\n\na slots=x\n", "hosts:3: \"a slots=x\": expected NAME slots=N");
    SAYS("a slots", "hosts:1: \"a slots\": expected NAME slots=N");
    SAYS("a slots=", "hosts:1: \"a slots=\": expected NAME slots=N");
    SAYS("a slots=1\r\rb slots=1\ra slots=2\r",
         "hosts:4: \"a slots=2\": this host was named before");
    SAYS("-oProxyCommand=x slots=1", "hosts:1: \"-oProxyCommand=x slots=1\": a name of a host that "
                                     "begins with -");
    SAYS("a slots=65537", "hosts:1: \"a slots=65537\": more than 65536 slots");
    SAYS("a slots=99999999999999999999", "hosts:1: \"a slots=99999999999999999999\": more than "
                                         "65536 slots");
    SAYS("a\0b slots=1", "hosts:1: \"a\": a zero byte");
    SAYS("a\x1b[31m x\n", "hosts:1: \"a\\u001b[31m x\": expected NAME slots=N");
    SAYS("\xff\xc3\xa9 slots=1\n", "hosts:1: \"\\udcff\\u00e9 slots=1\": a name that is not UTF-8");
    SAYS("# nobody\n", "hosts: no host is named; expected lines such as: worker-0 slots=4");
    SAYS("", "hosts: no host is named; expected lines such as: worker-0 slots=4");
    ds_hosts h = {0};
    CHECK_INT(hosts_read(&h, "/no/such/hosts"), DS_EIO);
    CHECK_ERROR("--hostfile: read /no/such/hosts: No such file");
    CHECK_INT(hosts_read(&h, "/"), DS_EIO);
    CHECK_ERROR("--hostfile: ");
}

static const char *expanded(const char *list)
{
    ds_hosts h = {0};
    ds_status status = hosts_expand(&h, "SLURM_JOB_NODELIST", list, 1);
    return shown(status, &h);
}

static void slurm_lists(void **state)
{
    (void)state;
    says(expanded("login"), "{\"login\": [0]}");
    says(expanded("a,b1"), "{\"a\": [0], \"b1\": [0]}");
    says(expanded("gpu[01-03,7],x"),
         "{\"gpu01\": [0], \"gpu02\": [0], \"gpu03\": [0], \"gpu7\": [0], \"x\": [0]}");
    says(expanded("n[8-11]"), "{\"n8\": [0], \"n9\": [0], \"n10\": [0], \"n11\": [0]}");
    says(expanded("r[0-1]n[1-2]-ib"),
         "{\"r0n1-ib\": [0], \"r0n2-ib\": [0], \"r1n1-ib\": [0], \"r1n2-ib\": [0]}");
    static const char *const wrong[] = {"",      ",",           "a,,b", "a[",
                                        "a[]",   "a[1",         "a[x]", "a[1-]",
                                        "a[-1]", "a[1,]",       "-a",   "a[1-99999999999]",
                                        "a[1-2", "a[0-9999999]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char want[200];
        snprintf(want, sizeof want,
                 "SLURM_JOB_NODELIST=%s: expected names such as gpu[01-03,7],login", wrong[i]);
        says(expanded(wrong[i]), want);
    }
}

static const char *selected(const char *include, const char *exclude)
{
    static const char text[] = "a slots=2\nb slots=3\nu@c slots=1\n";
    ds_hosts h = {0};
    CHECK_INT(hosts_parse(&h, "hosts", text, sizeof text - 1), DS_OK);
    ds_status status = select_hosts(&h, include, exclude);
    return shown(status, &h);
}

static void filters(void **state)
{
    (void)state;
    says(selected("b:2,0@a", NULL), "{\"a\": [0, 1], \"b\": [0, 2]}");
    says(selected("u@c@b:1", ""), "{\"b\": [1], \"u@c\": [0]}");
    says(selected(NULL, "a@b:0,1,2@u@c"), "{}");
    says(selected("", "u@c:0"), "{\"a\": [0, 1], \"b\": [0, 1, 2]}");
    says(selected("a", "b"), "--include a and --exclude b: expected one of them");
    says(selected("x:0", NULL), "--include x:0: there is no host \"x\"");
    says(selected("a:2", NULL), "--include a:2: a has no slot 2; it has 2 slots");
    says(selected("u@c:1", NULL), "--include u@c:1: u@c has no slot 1; it has 1 slot");
    says(selected(NULL, "a:0,x"), "--exclude a:0,x: \"x\" is not a slot number of a");
    says(selected(NULL, "a:"), "--exclude a:: \"\" is not a slot number of a");
    says(selected("a@", NULL), "--include a@: there is no host \"\"");
}

static void counts(void **state)
{
    (void)state;
    static const char text[] = "a slots=2\nb slots=3\n";
    ds_hosts h = {0};
    CHECK_INT(hosts_parse(&h, "hosts", text, sizeof text - 1), DS_OK);
    select_counts(&h, 9, 0);
    CHECK_INT(h.n, 2);
    select_counts(&h, -1, 3);
    CHECK_INT(h.at[0].n_slots, 3);
    CHECK_INT(h.at[0].slots[2], 2);
    select_counts(&h, 1, -1);
    says(shown(DS_OK, &h), "{\"a\": [0, 1, 2]}");
}

/* Letter for letter as Python's urlsafe_b64encode(json.dumps(...)). */
static void world_info(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"h\xc3\xa9te slots=2\n", "eyJoXHUwMGU5dGUiOiBbMCwgMV19"},
        {"a slots=1\n", "eyJhIjogWzBdfQ=="},
        {"ab slots=1\n", "eyJhYiI6IFswXX0="},
        {"abc slots=0\n", "eyJhYmMiOiBbXX0="},
        {"~?>?~ slots=1\n", "eyJ-Pz4_fiI6IFswXX0="}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ds_hosts h = {0};
        CHECK_INT(hosts_parse(&h, "hosts", cases[i][0], strlen(cases[i][0])), DS_OK);
        char *got = hosts_encode(h.at, h.n);
        says(got, cases[i][1]);
        dsi_free(got);
        hosts_free(&h);
    }
}

TEST_MAIN(cmocka_unit_test(files), cmocka_unit_test(slurm_lists), cmocka_unit_test(filters),
          cmocka_unit_test(counts), cmocka_unit_test(world_info))
