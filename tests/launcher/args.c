/* tests/launcher/args.c: the ways in which options are written, and which are
 * refused.
 * SPDX-License-Identifier: MIT */
#include "dry.h"

static char *words[64]; /* of the latest command line, which args_read may write to */

static options parsed(const char *const *argv)
{
    static char room[4096];
    char *to = room;
    options o;
    int argc = 0;
    for (; argv[argc]; argc++) {
        words[argc] = to;
        to = stpcpy(to, argv[argc]) + 1;
    }
    words[argc] = NULL;
    args_read(&o, argc, words);
    return o;
}

static void spelling(void **state)
{
    (void)state;
    const char *const argv[] = {"deepspeed",
                                "--num-nodes",
                                "2",
                                "--master_port=1234",
                                "--no-ssh-check",
                                "-H",
                                "hosts",
                                "-i",
                                "a:1",
                                "-q",
                                "--nnodes=2",
                                "--enable-each-rank-log",
                                "d",
                                "--ssh_port",
                                "22",
                                "--launcher_args",
                                "--mca x 'y z'",
                                "--num_acc=5",
                                "train",
                                "--num-nodes",
                                "9",
                                "-q",
                                "--",
                                "",
                                NULL};
    options o = parsed(argv);
    CHECK_INT(o.num_nodes, 2);
    CHECK_INT(o.master_port, 1234);
    CHECK_INT(o.nnodes, 2);
    CHECK_INT(o.ssh_port, 22);
    CHECK_INT(options_ranks_per_node(&o), 5);
    CHECK(o.no_ssh_check && o.quiet && !o.dry_run && options_silent(&o));
    CHECK(!strcmp(o.hostfile, "hosts") && !strcmp(o.include, "a:1") && !o.exclude);
    CHECK(!strcmp(o.rank_log, "d") && !strcmp(o.launcher_args, "--mca x 'y z'"));
    CHECK(o.program == &words[18]);
}

static void defaults(void **state)
{
    (void)state;
    options o = parsed((const char *const[]){"deepspeed", "--enable_each_rank_log=None",
                                             "--no_python", "--use_env",
                                             "--include=", "--master_addr", "", "train", NULL});
    CHECK(!o.hostfile && !o.include && !o.launcher && !o.master_addr && !o.rank_log);
    CHECK_INT(o.num_nodes, -1);
    CHECK_INT(o.node_rank, -1);
    CHECK_INT(options_ranks_per_node(&o), -1);
    CHECK_INT(o.master_port, 29500);
    CHECK(o.no_local_rank && !options_silent(&o));
}

static void restarts(void **state)
{
    (void)state;
    options o = parsed((const char *const[]){"deepspeed", "train", NULL});
    CHECK_INT(o.max_restarts, 0);
    o = parsed((const char *const[]){"deepspeed", "--max-restarts", "3", "--min_nodes=2",
                                     "--min-ranks=4", "--error_file", "f", "train", NULL});
    CHECK_INT(o.max_restarts, 3);
    CHECK_INT(o.min_nodes, 2);
    CHECK_INT(o.min_ranks, 4);
    CHECK(!strcmp(o.error_file, "f"));
    o = parsed((const char *const[]){"deepspeed", "--elastic_training", "--min_elastic_nodes=2",
                                     "--max_elastic_nodes=5", "train", NULL});
    CHECK_INT(o.max_restarts, 100);
    CHECK_INT(o.min_nodes, 2);
    CHECK_INT(o.num_nodes, 5);
}

/* The words behind -- are the program and its arguments, also if they begin
 * with
 * a hyphen. */
static void dashes(void **state)
{
    (void)state;
    const char *const argv[] = {"deepspeed", "--num_gpus=2", "--", "--odd", "-q", NULL};
    options o = parsed(argv);
    CHECK(o.program == &words[3] && !o.quiet);
}

static void refused(void **state)
{
    (void)state;
    REFUSED("which program", "--num_gpus", "2");
    REFUSED("--num_gpus two: expected a number from -1 to 65536", "--num_gpus", "two", "train");
    REFUSED("--num_gpus 70000", "--num-gpus=70000", "train");
    REFUSED("--master_port 0: expected a number from 1 to 65535", "--master_port=0", "train");
    REFUSED("--memory lots: expected a number, at least 1, such as 16GB", "--init_config", "-",
            "--memory=lots");
    REFUSED("--nnodes 0: expected a number, at least 1", "--nnodes=0", "train");
    REFUSED("--node_rank 1x", "--node_rank=1x", "train");
    REFUSED("--num_nodes 99999999999", "--num_nodes=99999999999", "train");
    REFUSED("--log_level loud: expected debug", "--log_level=loud", "train");
    REFUSED("--module: it names a Python module", "--module", "train");
    REFUSED("--autotuning: there is no autotuner", "--autotuning=run", "train");
    REFUSED("--min_nodes (--min_elastic_nodes) belongs to --max_restarts N or --elastic_training",
            "--min-elastic-nodes=2", "train");
    REFUSED("--min_nodes 3: the job has 2 nodes (--nnodes, --num_nodes)", "--max_restarts=1",
            "--nnodes=2", "--node_rank=1", "--min_nodes=3", "train");
    REFUSED("--error_file belongs to --max_restarts N", "--error_file=x", "train");
    REFUSED("--max_restarts -1: expected a number, at least 0", "--max_restarts=-1", "train");
    REFUSED("--venv_script: programs here need no Python", "--venv_script=x", "train");
    REFUSED("--rdzv_backend: there is no rendezvous service", "--rdzv-backend=c10d", "train");
    REFUSED("--check_config starts nothing, so what is train?", "--check_config=x", "train");
    REFUSED("of how many parameters", "--estimate_memory=x");
    REFUSED("--check_config, --estimate_memory and --init_config", "--check_config=x",
            "--estimate_memory=x");
    REFUSED("--world_size belongs to", "--world_size=3", "train");
    REFUSED("--params belongs to", "--params=3", "train");
    REFUSED("--largest and --activations belong to", "--largest=3", "--check_config=x");
    REFUSED("--json belongs to", "--json", "train");
    REFUSED("--num_gpus 2 and --num_devs 3", "--num_gpus=2", "--num_devs=3", "train");
    REFUSED("--num_devs 3 and --nproc_per_node 2", "--num_devs=3", "--nproc_per_node=2", "train");
    REFUSED("--num_nodes 2 and --nnodes 3", "--num_nodes=2", "--nnodes=3", "train");
    REFUSED("--hostfile: expected FILE, which is empty", "--hostfile=", "train");
    REFUSED("--enable_each_rank_log: expected DIR", "--enable_each_rank_log=", "train");
    REFUSED("--num_gpus", "--num_gpus");
    REFUSED("there is no option --no_such; did you mean --no_ssh?", "--no_such", "train");
    REFUSED("there is no option --num-gpsu; did you mean --num-gpus?", "--num-gpsu=2", "train");
}

TEST_MAIN(cmocka_unit_test(spelling), cmocka_unit_test(defaults), cmocka_unit_test(restarts),
          cmocka_unit_test(dashes), cmocka_unit_test_setup_teardown(refused, dry_begin, dry_end))
