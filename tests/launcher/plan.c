/* tests/launcher/plan.c: which runner, which command, which resources follow
 * from a command line.
 * SPDX-License-Identifier: MIT */
#include "dry.h"

static int begin(void **state)
{
    dry_begin(state);
    dry_write("two", "w0 slots=2\nw1 slots=2\n", 0600);
    dry_write("odd", "w0 slots=1\nw1 slots=3\n", 0600);
    dry_write("one", "w0 slots=2\n", 0600);
    return 0;
}

static const char *const *arguments(const json_t *command)
{
    static const char *words[128];
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(command) && n < 127; i++)
        words[n++] = json_string_value(json_array_get(command, i));
    words[n] = NULL;
    return words;
}

/* The program's words are the last ones, whatever is in them. */
static void program_words(void **state)
{
    (void)state;
    static const char *const nasty[] = {
        "train",      "",  " ",           "a  b",      "it's \"q\"", "$HOME;`id`|&", "--", "-H",
        "--num_gpus", "3", "line\nend\\", "*?[]~#!%s", "h\xc3\xa9",  "--x=y z",      NULL};
    for (int several = 0; several < 2; several++) {
        const char *words[40] = {several ? "--hostfile=two" : "--num_gpus=1"};
        int n = 0;
        while (nasty[n]) words[n + 1] = nasty[n], n++;
        Dry d = dry_words(false, words);
        CHECK(d.json != NULL);
        const char *const *got = arguments(json_array_get(json_object_get(d.json, "commands"), 0));
        while (*got && strcmp(*got, "--") != 0) got++;
        for (int i = 0; i <= n; i++)
            if (i == n ? got[i + 1] != NULL : strcmp(got[i + 1], nasty[i]) != 0)
                fail_msg("word %d is %s", i, got[i + 1]);
        json_decref(d.json);
    }
}

static void one_machine(void **state)
{
    (void)state;
    HAS(dry_command(dry("train")),
        " --rank_start --world_info=eyJsb2NhbGhvc3QiOiBbMF19 "
        "--master_addr=127.0.0.1 --master_port=29500 --log_level=info -- train");
    HAS_NOT(dry_command(dry("train")), "mpirun");
    const char *c = dry_command(
        dry("--num_devs=3", "--no_local_rank", "--bind_core_list=0-3", "train"));
    HAS(c, "mpirun ");
    HAS(c, "--bind-to none --map-by slot");
    HAS(c, "--mca plm isolated");
    HAS(c, "-H localhost:3 -np 3 ");
    HAS(c, " --no_local_rank --bind_core_list=0-3 ");
    HAS_NOT(c, " -x ");
    HAS_NOT(c, "--chdir");
    HAS(dry_command(dry("--num_devs=2", "-q", "--enable_each_rank_log", "logs", "train")),
        "--enable_each_rank_log=logs --quiet --log_level=error");
    HAS(dry_command(dry("--num_devs=2", "--launcher=MPICH", "train")),
        "mpiexec.hydra -launcher fork -n 2 ");
    HAS(dry_command(dry("--hostfile=one", "train")), "-H localhost:2 "); /* one host: here */
    HAS(dry_command(dry("--hostfile=one", "--num_gpus=1", "train")),
        "--rank_start --world_info=eyJ3MCI6IFswXX0=");
}

static void root(void **state)
{
    (void)state;
    const char *c = dry_command(dry("--num_gpus=2", "train"));
    dry_has(c, "--allow-run-as-root", geteuid() == 0, __LINE__);
}

static void several_hosts(void **state)
{
    (void)state;
    dry_set("NCCL_DEBUG", "INFO");
    dry_set("OMPI_MCA_x", "1");
    const char *c = dry_command(dry("--dry_run", "-H", "odd", "--ssh_port=2222", "train"));
    HAS(c, "-H w0:1,w1:3 -np 4 ");
    HAS(c, "--mca plm rsh --mca plm_rsh_agent ssh -o BatchMode=yes -p 2222 --mca "
           "plm_rsh_no_tree_spawn 1 --leave-session-attached --mca orte_launch_agent ");
    HAS(c, " --node_monitor NODE-SECRET orted ");
    HAS(c, "-x NCCL_DEBUG");
    HAS_NOT(c, "-x OMPI_MCA_x"); /* mpirun forwards its own */
    HAS(c, "--master_addr=w0 ");
    HAS(c, "--chdir=/");
    HAS_NOT(c, "--num_gpus");
    HAS(dry_command(dry("-H", "odd", "--num_gpus=2", "train")), " --num_gpus=2 ");
    HAS_NOT(dry_command(dry("-H", "odd", "--num_devs=2", "train")), "--num_gpus");
    c = dry_command(dry("-H", "odd", "--launcher=pdsh", "--ssh_port=2222", "train"));
    HAS(c, "--mca plm_rsh_agent pdsh -S -N -R ssh -w ");
    HAS_NOT(c, "-x PDSH_SSH_ARGS_APPEND");
    HAS_NOT(dry_command(dry("-H", "odd", "--launcher=openmpi", "train")), "--mca plm rsh");
    HAS(dry_command(dry("-H", "odd", "--launcher=mpich", "train")),
        "mpiexec.hydra -launcher ssh -hosts w0:1,w1:3 -genvnone -disable-auto-cleanup -genv ");
    HAS(c = dry_command(dry("-H", "odd", "--launcher=mpich", "train")),
        " -genv NCCL_DEBUG INFO -genv OMPI_MCA_x 1 ");
    HAS_NOT(c, "HOME");
    HAS(dry_command(dry("-H", "two", "--launcher=mvapich", "train")),
        "/bin/mpiexec -launcher ssh -hosts w0:2,w1:2 -genvnone -disable-auto-cleanup -genv ");
    HAS(dry_command(dry("-H", "one", "--force_multi", "train")), "-H w0:2 ");
    REFUSED("--launcher local: 2 hosts", "-H", "two", "--launcher=local", "train");
    REFUSED("--launcher slrum: did you mean slurm? expected local, ssh", "--launcher=slrum",
            "train");
    REFUSED("--launcher xyzzy: unknown launcher: expected local, ssh", "--launcher=xyzzy", "train");
    REFUSED("--launcher impi: Intel MPI", "--launcher=impi", "train");
    REFUSED("--node_rank 1: of how many nodes? give --nnodes", "--node_rank=1", "--master_addr=w0",
            "train");
    REFUSED("--num_nodes 2: there is no hostfile", "--num_nodes=2", "train");
    REFUSED("--num_nodes 5: two names 2 hosts", "-H", "two", "--num_nodes=5", "train");
    REFUSED("--nnodes 3: two names 2 hosts", "-H", "two", "--nnodes=3", "train");
    REFUSED("--num_nodes 0: expected at least 1", "-H", "two", "--num_nodes=0", "train");
    REFUSED("--num_gpus 0: expected at least 1", "--num_gpus=0", "train");
    REFUSED("--num_devs 0: expected at least 1", "--num_devs=0", "train");
    REFUSED("--include and --exclude select all", "-H", "two", "-i", "w0", "--num_devs=1", "train");
    REFUSED("--hostfile: read missing: No such file", "-H", "missing", "train");
    REFUSED("no slot is left", "-H", "two", "-e", "w0@w1", "train");
    REFUSED("--include a?b?[1m: there is no host", "-H", "two", "--include=a\nb\x1b[1m", "train");
    REFUSED("--bind_core_list: \"3-1\"", "--bind_core_list=3-1", "train");
}

/* Open MPI 5 has other names, and is known by the programs beside mpirun. */
static void open_mpi_5(void **state)
{
    (void)state;
    dry_program("prterun", "");
    const char *c = dry_command(dry("--num_gpus=2", "train"));
    HAS(c, "--mca pml ob1 --mca btl self,sm -H localhost:2 ");
    HAS_NOT(c, "isolated");
    HAS(c = dry_command(dry("-H", "odd", "train")),
        "--mca pml ob1 --mca btl self,sm,tcp --prtemca plm ssh --prtemca plm_ssh_agent ssh -o "
        "BatchMode=yes --prtemca plm_ssh_no_tree_spawn 1 --leave-session-attached --prtemca "
        "prte_launch_agent ");
    HAS(c, " --node_monitor NODE-SECRET prted ");
    HAS(c, "--prtemca prte_if_exclude lo,");
    HAS(c, "--prtemca oob_tcp_keepalive_time 10");
    dry_set("PRTE_MCA_prte_if_include", "eth0");
    HAS_NOT(dry_command(dry("-H", "odd", "train")), "prte_if_exclude");
    dry_program("orterun", "");
    HAS(dry_command(dry("--num_gpus=2", "train")), "--mca plm isolated");
}

/* Options of Open MPI that the user gives replace ours. */
static void users_words(void **state)
{
    (void)state;
    const char *c = dry_command(
        dry("--num_gpus=2", "--launcher_args=--mca pml 'u c x' --bind-to core", "train"));
    HAS(c, " -np 2 --mca pml u c x --bind-to core ");
    HAS_NOT(c, "pml ob1");
    HAS_NOT(c, "--bind-to none");
    dry_set("OMPI_MCA_btl", "self,tcp");
    HAS_NOT(dry_command(dry("--num_gpus=2", "train")), "--mca btl");
    dry_write(".deepspeed_env", "OMPI_MCA_osc=sm\n", 0600);
    HAS_NOT(dry_command(dry("--num_gpus=2", "train")), "--mca osc");
    HAS_NOT(dry_command(dry("-H", "two", "--launcher_args=--mca btl_tcp_if_include eth0", "train")),
            "btl_tcp_if_exclude");
    REFUSED("--launcher_args: --tag-output changes what ranks print", "-H", "two",
            "--launcher_args=-x A --tag-output", "train");
    REFUSED("--launcher_args: a quote", "--launcher_args='x", "train");
}

static void devices(void **state)
{
    (void)state;
    dry_set("LOCAL_SIZE", "4");
    HAS(dry_resources(dry("train")), "{\"localhost\": [0, 1, 2, 3]}");
    HAS(dry_resources(dry("--num_gpus=8", "train")), "[0, 1, 2, 3, 4, 5, 6, 7]");
    HAS(dry_resources(dry("-i", "localhost:3,1", "train")), "[1, 3]");
    REFUSED("localhost has no slot 4; it has 4 slots", "-i", "localhost:4", "train");
    dry_set("CUDA_VISIBLE_DEVICES", "3,1");
    HAS(dry_resources(dry("train")), "{\"localhost\": [1, 3]}");
    HAS(dry_resources(dry("--num_gpus=1", "train")), "{\"localhost\": [0]}");
    HAS(dry_resources(dry("--nproc_per_node=1", "train")), "{\"localhost\": [3]}");
    HAS(dry_resources(dry("--nproc_per_node=2", "train")), "{\"localhost\": [3, 1]}");
    HAS(dry_resources(dry("--nproc_per_node=3", "train")), "{\"localhost\": [0, 1, 2]}");
    HAS(dry_resources(dry("-H", "one", "train")), "{\"w0\": [0, 1]}");
    dry_set("CUDA_VISIBLE_DEVICES", "GPU-8932f937");
    REFUSED("CUDA_VISIBLE_DEVICES, as --include localhost:GPU-8932f937", "train");
    dry_set("CUDA_VISIBLE_DEVICES", "");
    dry_set("LOCAL_SIZE", "0");
    REFUSED("no device: LOCAL_SIZE is 0", "train");
    dry_set("LOCAL_SIZE", "all");
    REFUSED("LOCAL_SIZE=all: expected a number of ranks, from 0 to 65536", "train");
    dry_set("DS_GRACE", "-1");
    REFUSED("DS_GRACE=-1: expected seconds, from 0 to 3600", "train");
}

static void nodes(void **state)
{
    (void)state;
    static const char *const torch[] = {
        "--nproc_per_node=2", "--nnodes=2", "--master_addr=10.0.0.1",
        "--node_rank=0",      "train",      NULL};
    const char *c = dry_command(dry_words(false, torch));
    HAS(c, ":2 -np 4 ");
    HAS(c, "--leave-session-attached");
    HAS(c, "--master_addr=10.0.0.1 ");
    Dry d = dry("--nnodes=2", "--node_rank=1", "--master_addr=10.0.0.1", "train");
    CHECK_INT(json_array_size(json_object_get(d.json, "commands")), 0); /* it joins */
    json_decref(d.json);
    HAS(dry_resources(dry("-H", "two", "--no_ssh", "--node_rank=0", "train")),
        "{\"w0\": [0, 1], \"w1\": [0, 1]}");
    HAS(dry_command(dry("--nnodes=1", "--node_rank=0", "--nproc_per_node=2", "train")),
        "-H localhost:2 ");
    c = dry_command(dry("--no_ssh", "--node_rank=0", "--num_gpus=1", "train"));
    HAS(c, "--master_addr=127.0.0.1 "); /* one node, as no hostfile names others */
    REFUSED("--node_rank 1: of how many nodes?", "--no_ssh", "--node_rank=1", "train");
    REFUSED("--node_rank -1: which of the 2 nodes", "-H", "two", "--no_ssh", "train");
    REFUSED("--node_rank 2: which of the 2 nodes is this one? expected 0 to 1", "--nnodes=2",
            "--node_rank=2", "train");
    REFUSED("--master_addr: at which address", "--nnodes=2", "--node_rank=0", "train");
    REFUSED("--nnodes 3: two names 2 hosts", "-H", "two", "--nnodes=3", "--node_rank=0", "train");
    REFUSED("--launcher slurm: nodes on which the command is typed", "-H", "two", "--no_ssh",
            "--node_rank=0", "--launcher=slurm", "train");
}

static void slurm(void **state)
{
    (void)state;
    const char *c = dry_command(dry("--launcher=slurm", "--num_nodes=2", "--num_gpus=4", "train"));
    HAS(c, "srun -K1 --mpi=pmix -n 8 --ntasks-per-node=4 --distribution=block --nodes 2 "
           "--gpus-per-node 4 --export=HOME,USER,LOGNAME,SHELL,PATH,MASTER_PORT,WORLD_SIZE ");
    HAS_NOT(c, "--nodelist");
    HAS_NOT(c, "--master_addr");
    HAS_NOT(dry_command(dry("--launcher=slurm", "--num_devs=4", "train")), "--gpus-per-node");
    HAS(dry_command(dry("--launcher=slurm", "--launcher_args=--mpi=pmi2 -p gpu", "train")),
        "srun -K1 -n 1 --ntasks-per-node=1 --distribution=block --nodes 1 --mpi=pmi2 -p gpu "
        "--export=HOME,USER,LOGNAME,SHELL,PATH,MASTER_PORT,WORLD_SIZE ");
    c = dry_command(dry("--launcher=slurm", "--launcher_args=--export=ALL", "train"));
    HAS(c, " --export=ALL ");
    HAS_NOT(c, "--export=HOME");
    HAS(dry_command(dry("-H", "two", "--launcher=slurm", "train")), "--nodes 2 --nodelist w0,w1 ");
    REFUSED("w0 has 1 slots and w1 has 3", "-H", "odd", "--launcher=slurm", "train");
    REFUSED("slot 1 of w0 cannot be requested", "-H", "two", "--launcher=slurm", "-i", "w0:1",
            "train");

    dry_set("SLURM_JOB_NODELIST", "gpu[08-09]");
    dry_set("SLURM_TASKS_PER_NODE", "3(x2)");
    c = dry_command(dry("--launcher=slurm", "train"));
    HAS(c, "-n 6 --ntasks-per-node=3 --distribution=block --nodes 2 --nodelist gpu08,gpu09 ");
    HAS(c, "--master_addr=gpu08 ");
    HAS(dry_resources(dry("--launcher=slurm", "-e", "gpu08", "train")), "{\"gpu09\": [0, 1, 2]}");
    REFUSED("--launcher slurm: nodes on which the command is typed", "--launcher=slurm", "--no_ssh",
            "--node_rank=0", "train");
    dry_set("SLURM_TASKS_PER_NODE", "x3");
    REFUSED("SLURM_TASKS_PER_NODE=x3: expected how many", "--launcher=slurm", "train");
    dry_set("SLURM_TASKS_PER_NODE", "4(x2),3");
    HAS(dry_resources(dry("--launcher=slurm", "train")), "{\"gpu08\": [0], \"gpu09\": [0]}");
    dry_set("SLURM_JOB_NODELIST", "gpu[08-");
    REFUSED("SLURM_JOB_NODELIST=gpu[08-: expected", "--launcher=slurm", "train");
}

/* A host without slots is no place for MASTER_ADDR; but one to which ranks are
 * given by number has them. */
static void empty_hosts(void **state)
{
    (void)state;
    dry_write("empty", "w0 slots=0\nw1 slots=1\nw2 slots=2\n", 0600);
    HAS(dry_resources(dry("-H", "empty", "train")), "{\"w1\": [0], \"w2\": [0, 1]}");
    HAS(dry_command(dry("--dry_run", "-H", "empty", "train")), "--master_addr=w1 ");
    HAS(dry_resources(dry("-H", "empty", "--num_nodes=1", "train")), "{\"w1\": [0]}");
    HAS(dry_resources(dry("-H", "empty", "--num_gpus=1", "train")), "{\"w0\": [0], \"w1\": [0]");
    dry_write("empty", "w0 slots=0\n", 0600);
    REFUSED("no slot is left", "-H", "empty", "train");
}

/* A start refuses what is missing; a dry run says so and continues. */
static void missing(void **state)
{
    (void)state;
    REFUSED("trian: there is no such program in this folder or on PATH", "trian");
    REFUSED("./trian: there is no such program here", "./trian");
    REFUSED("two: it is not executable", "two");
    REFUSED("bin: it is a folder", "bin");
    REFUSED("the name of the program is empty", "");
    dry_write("broken", "#!/none/such\n", 0755);
    REFUSED("its interpreter is not: line 1 names /none/such", "--num_gpus=2", "broken");
    CHECK_INT(dry("broken").status, 127);
    CHECK_INT(dry("two").status, 126);
    Dry d = dry("--dry_run", "trian", "x");
    CHECK(!d.status && d.json);
    HAS(d.err, "deepspeed: it would not start: trian: there is no such program");
    json_decref(d.json);

    dry_write("names", "u@a slots=1\nb slots=1\n", 0600);
    REFUSED("u@a: mpirun takes no host name with , : or @", "-H", "names", "train");
    unlink(folder_path("bin/pdsh"));
    REFUSED("pdsh: there is no such program on PATH", "-H", "two", "--launcher=pdsh", "train");
    unlink(folder_path("bin/ssh"));
    REFUSED("apt-get install openssh-client", "-H", "two", "train");
    unlink(folder_path("bin/mpirun"));
    HAS(dry_command(dry("--num_gpus=2", "train")),
        "mpiexec.hydra -launcher fork"); /* the other MPI */
    REFUSED("mpirun: there is no such program on PATH; Debian, Ubuntu: apt-get install openmpi-bin",
            "-H", "two", "train");
    unlink(folder_path("bin/mpiexec.hydra"));
    REFUSED(
        "mpiexec.hydra: there is no such program on PATH; Debian, Ubuntu: apt-get install mpich",
        "-H", "two", "--launcher=mpich", "train");
    unlink(folder_path("bin/srun"));
    REFUSED("apt-get install slurm-client", "--launcher=slurm", "train");
    unlink(folder_path("bin/mpiname"));
    REFUSED("mpiname: there is no such program on PATH, so no MVAPICH", "-H", "two",
            "--launcher=mvapich", "train");
    HAS(dry_command(dry("--dry_run", "-H", "two", "train")), "mpirun ");
}

/* mpirun may be MPICH's: what it leads to decides. */
static void names(void **state)
{
    (void)state;
    unlink(folder_path("bin/mpirun"));
    CHECK_INT(symlink("mpiexec.hydra", folder_path("bin/mpirun")), 0);
    HAS(dry_command(dry("--num_gpus=2", "train")), "mpiexec.hydra -launcher fork");
    dry_program("orterun", "");
    HAS(dry_command(dry("--num_gpus=2", "train")), "orterun ");
}

/* Lines of a dry run fit a terminal of 60 columns, except for one word that is
 * longer. */
static void lines(void **state)
{
    (void)state;
    char line[16384];
    int n = 0;
    Dry d = dry("--dry_run", "-H", "two", "train", "a, \"b\\", "ä, c", "",
                "--a-word-that-is-longer-than-a-line-of-a-terminal-of-60-columns");
    FILE *f = fopen(folder_path("out"), "r");
    for (; f && fgets(line, sizeof line, f); n++)
        if (strlen(line) > 60 && strstr(line, "\", \"")) fail_msg("it does not fit: %s", line);
    if (f) fclose(f);
    CHECK(n > 10);
    HAS(dry_command(d), " a, \"b\\ ä, c  --a-word-that");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, dry_end)
TEST_MAIN(TEST(program_words), TEST(one_machine), TEST(root), TEST(several_hosts), TEST(open_mpi_5),
          TEST(users_words), TEST(devices), TEST(nodes), TEST(slurm), TEST(empty_hosts),
          TEST(missing), TEST(names), TEST(lines))
