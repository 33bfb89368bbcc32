/* tests/launcher/announce.c: DeepSpeed's lines before the start, as scripts
 * read them.
 * SPDX-License-Identifier: MIT */
#include "dry.h"

/* The text that is printed for a command line, without the dates and places of
 * DeepSpeed's log. */
static const char *announced(const char *const *words)
{
    static char text[8192];
    char line[4096];
    char *argv[16] = {(char *)"deepspeed"};
    int argc = 1, status;
    while (*words) argv[argc++] = (char *)*words++;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        launch_plan p;
        status = dry_enter();
        if (!status) status = dry_plan(&p, argc, argv);
        if (!status) plan_announce(&p);
        plan_free(&p);
        exit(status);
    }
    waitpid(pid, &status, 0);
    CHECK_INT(status, 0);
    *text = 0;
    FILE *f = fopen(folder_path("out"), "r");
    CHECK(f != NULL);
    while (fgets(line, sizeof line, f)) {
        char *date = strstr(line, "[20"), *rest = strstr(line, ":plan_announce] ");
        if (!rest) rest = strstr(line, "] ");
        if (date && rest) {
            *date = 0;
            strcat(strcat(text, line), strstr(rest, "] ") + 2);
        } else {
            strcat(text, line);
        }
    }
    fclose(f);
    return text;
}

#define ANNOUNCED(...) announced((const char *const[]){__VA_ARGS__, NULL})

static void one_machine(void **state)
{
    (void)state;
    dry_set("CUDA_VISIBLE_DEVICES", "5,2");
    const char *said = ANNOUNCED("train", "a b", "it's");
    HAS(said, "Detected VISIBLE_DEVICES=5,2: setting --include=localhost:5,2\n");
    HAS(said, "cmd = mpirun ");
    HAS(said, " -- train 'a b' 'it'\\''s'\n");
    HAS(said, "\nWORLD INFO DICT: {'localhost': [2, 5]}\n"
              "nnodes=1, num_local_procs=2, node_rank=0\n"
              "global_rank_mapping=defaultdict(<class 'list'>, {'localhost': [0, 1]})\n"
              "dist_world_size=2\n"
              "Setting CUDA_VISIBLE_DEVICES=2,5\n");
    HAS(ANNOUNCED("--num_gpus=1", "train"), "Detected VISIBLE_DEVICES=5,2 but ignoring it because");
    dry_set("CUDA_VISIBLE_DEVICES", "");
    dry_set("LOCAL_SIZE", "2");
    HAS(ANNOUNCED("--num_gpus=3", "train"), "localhost has 2 slots, on which 3 ranks will run\n");
    HAS_NOT(ANNOUNCED("--num_gpus=2", "train"), "slots");
    CHECK(!*ANNOUNCED("-q", "train"));
    CHECK(!*ANNOUNCED("--log_level=warning", "train"));
}

static void several_hosts(void **state)
{
    (void)state;
    dry_write("hosts", "w0 slots=1\nw1 slots=2\n", 0600);
    const char *said = ANNOUNCED("-H", "hosts", "--master_addr=m", "train");
    HAS(said, "Running on the following workers: w0,w1\ncmd = mpirun ");
    HAS(said, "\nWORLD INFO DICT: {'w0': [0], 'w1': [0, 1]}\n"
              "w0: nnodes=2, num_local_procs=1, node_rank=0\n"
              "w1: nnodes=2, num_local_procs=2, node_rank=1\n"
              "global_rank_mapping=defaultdict(<class 'list'>, {'w0': [0], 'w1': [1, 2]})\n"
              "dist_world_size=3\n"
              "w0: Setting CUDA_VISIBLE_DEVICES=0\n"
              "w1: Setting CUDA_VISIBLE_DEVICES=0,1\n");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, dry_begin, dry_end)
TEST_MAIN(TEST(one_machine), TEST(several_hosts))
