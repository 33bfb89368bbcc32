/* tests/launcher/environment.c: variables that ranks on other machines get:
 * which, and byte for byte.
 * SPDX-License-Identifier: MIT */
#include "dry.h"

#include "environment.h"

static const char *parsed(argv_list *w, const char *text, size_t n)
{
    argv_list_free(w);
    return environment_parse(w, "env", text, n) == DS_OK ? "" : ds_error();
}

#define REFUSES(text, want) refuses(text, sizeof text - 1, want)
static void refuses(const char *text, size_t n, const char *want)
{
    argv_list w = {0};
    const char *got = parsed(&w, text, n);
    if (strcmp(got, want) != 0) fail_msg("got %s, want %s", got, want);
    argv_list_free(&w);
    ds_error_clear();
}

static void lines(void **state)
{
    (void)state;
    static const char text[] =
        "A=1\n\n  # a comment, B=2\n\t\n_x9=a=b=c\nEMPTY=\nS=  two  blanks \r\n"
        "Q=\"x\" 'y' \\n $HOME `id` ; # & * ? %s\n B =3\nA=again\nLAST=\xff\xc3\xa9";
    static const char *const want[] = {"A=again",
                                       "_x9=a=b=c",
                                       "EMPTY=",
                                       "S=  two  blanks ",
                                       "Q=\"x\" 'y' \\n $HOME `id` ; # & * ? %s",
                                       "B=3",
                                       "LAST=\xff\xc3\xa9"};
    argv_list w = {0};
    CHECK(!*parsed(&w, text, sizeof text - 1));
    CHECK_INT(w.n, 7);
    for (int i = 0; i < 7; i++)
        if (strcmp(w.at[i], want[i]) != 0) fail_msg("got %s, want %s", w.at[i], want[i]);
    argv_list_free(&w);
    REFUSES("A=1\nB\n", "env:2: a line without =: expected NAME=VALUE");
    REFUSES("export A=1", "env:1: the text before = is no variable name: expected NAME=VALUE");
    REFUSES("=1", "env:1: the text before = is no variable name: expected NAME=VALUE");
    REFUSES("1A=1", "env:1: the text before = is no variable name: expected NAME=VALUE");
    REFUSES("A=x\0y", "env:1: a zero byte, which no variable can hold");
    REFUSES("A\0=xy", "env:1: the text before = is no variable name: expected NAME=VALUE");
    char *longest = malloc(131072);
    memset(longest, 'x', 131072);
    memcpy(longest, "A=", 2);
    CHECK(!*parsed(&w, longest, 131071));
    argv_list_free(&w);
    assert_string_equal(parsed(&w, longest, 131072),
                        "env:1: 131072 bytes: expected fewer than 131072, as Linux takes");
    ds_error_clear();
    free(longest);
}

/* The value of a variable in what --dry_run prints; frees d. */
static const char *value(Dry d, const char *name)
{
    static char text[1000];
    if (d.status || !d.json) fail_msg("status %d: %s", d.status, d.err);
    const char *s = json_string_value(
        json_object_get(json_object_get(d.json, "environment"), name));
    snprintf(text, sizeof text, "%s", s ? s : "(absent)");
    json_decref(d.json);
    return text;
}

#define VALUE(name, want) check_value(name, want, __LINE__)
static void check_value(const char *name, const char *want, int line)
{
    const char *got = value(dry("--num_gpus=2", "train"), name);
    if (strcmp(got, want) != 0)
        fail_msg("line %d: %s is \"%s\", want \"%s\"", line, name, got, want);
}

static void forwarded(void **state)
{
    (void)state;
    static const char *const names[] = {"NCCL_DEBUG", "UCX_TLS",  "DS_LOG",         "CUDA_HOME",
                                        "OMP_PLACES", "PYTHONX",  "OMPI_MCA_btl",   "MLFLOW_URI",
                                        "MV2_X",      "KMP_TIME", "LD_LIBRARY_PATH"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) dry_set(names[i], "a \n'\"$x;\\%s=*");
    dry_set("OTHER", "1");
    dry_set("DS_JOIN_SECRET", "s");
    dry_set("CUDA_VISIBLE_DEVICES", "0");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) VALUE(names[i], "a \n'\"$x;\\%s=*");
    VALUE("OTHER", "(absent)");
    VALUE("DS_JOIN_SECRET", "(absent)");
    VALUE("CUDA_VISIBLE_DEVICES", "(absent)");
    VALUE("MASTER_ADDR", "127.0.0.1");
    VALUE("MASTER_PORT", "29500");
    VALUE("WORLD_SIZE", "2");
}

static void kept_by_nodes(void **state)
{
    (void)state;
    dry_set("NCCL_IB_HCA", "x");
    VALUE("NCCL_IB_HCA", "x");
    dry_set("AISC_JOB_NAME", "j");
    VALUE("NCCL_IB_HCA", "(absent)");
}

static void files(void **state)
{
    (void)state;
    dry_set("NCCL_A", "process");
    mkdir(folder_path("home"), 0700);
    dry_write("home/.deepspeed_env", "NCCL_A=home\nB=home\n", 0600);
    VALUE("NCCL_A", "home");
    dry_write(".deepspeed_env", "B=here\nMASTER_PORT=1\n", 0600);
    VALUE("NCCL_A", "home");
    VALUE("B", "here");
    VALUE("MASTER_PORT", "29500"); /* what ranks get from the launcher */
    dry_write(".deepspeed_env", "B=here\n\n# c\nno\n", 0600);
    REFUSED("./.deepspeed_env:4: a line without =", "train");

    dry_write("other", "B=other\n", 0600);
    dry_set("DS_ENV_FILE", "other");
    VALUE("B", "other");
    VALUE("NCCL_A", "process");
    dry_set("DS_ENV_FILE", "missing");
    REFUSED("DS_ENV_FILE=missing: there is no such file in the home folder or in this one",
            "train");
    char path[600];
    snprintf(path, sizeof path, "%s", folder_path("other"));
    dry_set("DS_ENV_FILE", path);
    VALUE("B", "other");
    dry_set("DS_ENV_FILE", "/no/such/file");
    REFUSED("DS_ENV_FILE=/no/such/file: there is no such file", "train");
    dry_set("DS_ENV_FILE", "home");
    REFUSED("read ./home", "train");
}

TEST_MAIN(cmocka_unit_test(lines), cmocka_unit_test_setup_teardown(forwarded, dry_begin, dry_end),
          cmocka_unit_test_setup_teardown(kept_by_nodes, dry_begin, dry_end),
          cmocka_unit_test_setup_teardown(files, dry_begin, dry_end))
