#!/bin/bash
# tests/programs/restart.sh BINARY_DIR: deepspeed --max_restarts: ranks, the
# runner and processes of the launcher are killed while a program trains; the
# weights are those of an undisturbed run. Without an MPI a single rank. Then a
# batch job of Slurm, which is simulated.
# tests/launcher/restarts does the same on two hosts, many times.
# SPDX-License-Identifier: MIT
set -u
binary=$1
program=$1/deepspeed
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"
export TMPDIR=$work/tmp DS_GRACE=0.3 ASAN_OPTIONS=detect_leaks=0
mkdir -p "$TMPDIR"

# which MPIs there are, by the names of their runners
runners=''
if [ -e "$binary/libdeepspeed_openmpi.so" ] && command -v mpirun.openmpi >/dev/null; then runners=mpirun; fi
if have_mpich "$binary"; then runners="$runners mpiexec.hydra"; fi
ranks=1
[ ! "$runners" ] || ranks=2

# ---- what ranks get; which ends are restarted
cat >flaky <<'END'
#!/bin/sh
# fails in the first $1 attempts with status $2
echo "rank $RANK of $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS, whole $DS_FULL_WORLD_SIZE"
[ "$TORCHELASTIC_RESTART_COUNT" -ge "$1" ] || [ "$RANK" != 0 ] || exit "$2"
END
chmod +x flaky
run="-q --num_devs $ranks --no_local_rank"
status 0 $run --max_restarts 3 --error_file failures ./flaky 2 3
has out "^rank 0 of $ranks, restart 0 of 3, whole $ranks\$"
has out "^rank 0 of $ranks, restart 2 of 3, whole $ranks\$"
has err '^deepspeed: restart 2 of 3 after 1 s: '
has err '^deepspeed: 2 restarts in [0-9.]* s$'
lines failures 2
has failures '^{"attempt": 1, .*"resources": {"localhost": \[0.*\]}, "status": 3, "error": "deepspeed: rank 0 on localhost (process [0-9]*) ./flaky exits with return code = 3"}$'
status 3 $run --max_restarts 1 ./flaky 9 3
has err '^deepspeed: 1 restart in '
status 75 $run --max_restarts 3 ./flaky 9 75 # it has saved, and is to be queued again
has_not err 'restart 1'
printf '#!/none/such\n' >broken && chmod +x broken
status 127 $run --max_restarts 3 ./broken
has_not err 'restart 1'
status 0 $run --elastic_training --max_elastic_nodes 1 --min_elastic_nodes 1 ./flaky 1 1
has out 'restart 1 of 100'
status 0 $run --max_restarts 2 --enable_each_rank_log logs ./flaky 2 3
if [ "$(ls logs | grep -c '_rank0.log')" -eq 3 ]; then pass; else fail "a log was overwritten: $(ls logs)"; fi
has logs/*_restart1_rank0.log 'restart 1 of 2'
status 2 $run --max_restarts 1 --error_file /dev/null/x ./flaky 1 1 # before anything is started
has_not out 'restart 0'
has err '^deepspeed: --error_file: /dev/null/x: Not a directory$'
mkfifo pipe
status 2 $run --max_restarts 1 --error_file pipe ./flaky 1 1
has err '^deepspeed: --error_file: pipe: expected a regular file$'

# ---- mistakes
status 2 $run --min_nodes 2 ./flaky 0 0
has err 'min_nodes (--min_elastic_nodes) belongs to --max_restarts N'
status 2 $run --max_restarts 1 --min_ranks 9 ./flaky 0 0
has err "^deepspeed: the job has 1 host with $ranks ranks\\? in all: --min_nodes 1, --min_ranks 9 cannot be reached\$"
printf 'localhost slots=1\n192.0.2.1 slots=2\n' >hosts # the second one is for documentation
status 1 -q --hostfile hosts --max_restarts 1 --min_ranks 3 --join_timeout 7 ./flaky 0 0
has err '^deepspeed: 1 of 2 hosts answer, with 1 ranks; --min_nodes 1, --min_ranks 3 were waited for during 7 s (--join_timeout)$'

# ---- Ctrl-C, also between two attempts
"$program" $run --max_restarts 9 --no_local_rank ./flaky 99 1 >out 2>err </dev/null &
job=$!
for _ in $(seq 500); do grep -q 'restart 2' err && break; sleep 0.02; done
sleep 0.2
kill -TERM $job
wait $job
if [ $? -eq 143 ]; then pass; else fail "a signal between attempts"; fi

# ---- training
sample="--sample --data d --seed 1 --no_eval -e 1 --quiet --stage 2"
[ ! "${DS_TEST_QUICK-}" ] || sample="$sample --samples 2000" # half of them: three saves an epoch
"$binary/cifar10_deepspeed" $sample --max_steps 0 >out 2>err
status 0 -q --num_devs $ranks "$binary/cifar10_deepspeed" $sample --save whole.safetensors
status 0 -q --num_devs $ranks "$binary/cifar10_deepspeed" $sample -e 3 --save long.safetensors
cat >victim <<'END'
#!/bin/sh
# in the first $1 attempts the last rank is killed some time after a save
kills=$1 && shift
if [ "$TORCHELASTIC_RESTART_COUNT" -lt "$kills" ] && [ "$RANK" = $((WORLD_SIZE - 1)) ]; then
    : >began
    (for i in $(seq 3000); do [ ck/latest -nt began ] && break; sleep 0.01; done
        sleep "0.0$TORCHELASTIC_RESTART_COUNT"; kill -KILL $$) &
fi
exec "$@"
END
chmod +x victim
kills=3
[ ! "${DS_TEST_QUICK-}" ] || kills=1
trained=("$binary/cifar10_deepspeed" $sample --save part.safetensors --save_dir ck --save_interval 40 --resume)

# ranks_killed [OPTION]
ranks_killed()
{
    rm -rf ck part.safetensors
    status 0 $run "$@" --max_restarts $kills ./victim $kills "${trained[@]}"
    same whole.safetensors part.safetensors
    has err "^deepspeed: $kills restarts\\? in [0-9.]* s: [0-9]* % of the time did useful work, and [0-9]* steps\\? were done again\$"
}

# runners_killed NAME [OPTION]: the runner and the launcher's second process are,
# while three epochs take so long that a busy machine does not finish them before
runners_killed()
{
    name=$1
    shift
    rm -rf ck part.safetensors
    "$program" $run "$@" --max_restarts 2 "${trained[@]}" -e 3 >out 2>err </dev/null &
    job=$!
    for depth in 2 1; do
        : >began
        for _ in $(seq 3000); do [ ck/latest -nt began ] && break; sleep 0.01; done
        at=$job
        for _ in $(seq $depth); do at=$(awk '{ print $NF }' "/proc/$at/task/$at/children"); done # the newest
        kill -KILL "$at"
        for _ in $(seq 500); do grep -q "restart $((3 - depth)) of" err && break; sleep 0.02; done
    done
    wait $job
    if [ $? -eq 0 ]; then pass; else fail "the runner, the launcher are killed: $(cat err)"; fi
    same long.safetensors part.safetensors
    has err "^deepspeed: $name (process [0-9]*) on .* was killed by signal 9"
    has err '^deepspeed: the launcher (process [0-9]*) on .* was killed by signal 9'
    has err 'at least [0-9]* % of the time'
}

if [ $ranks = 1 ]; then ranks_killed; fi
for name in $runners; do
    mpi=--launcher=openmpi
    [ $name = mpirun ] || mpi=--launcher=mpich
    ranks_killed $mpi
    runners_killed $name $mpi
done
# a signal that asks for the end: all ranks save after the same step
rm -rf ck
: >began
"$program" $run --max_restarts 2 "$binary/cifar10_deepspeed" $sample -e 99 --save_dir ck --save_interval 40 \
    --resume >out 2>err </dev/null &
job=$!
for _ in $(seq 3000); do [ ck/latest -nt began ] && break; sleep 0.01; done
kill -USR1 $job
wait $job
if [ $? -eq 75 ]; then pass; else fail "SIGUSR1"; fi
has_not err 'restart 1'
"$binary/cifar10_deepspeed" $sample -e 0 --save_dir ck --resume >out 2>err
if [ $? -eq 0 ]; then pass; else fail "what was saved does not load"; fi

# ---- Slurm, with stand-ins for srun and scontrol: the batch script of
# docs/launcher.md is started again after a node has failed, and after the signal
# before the time limit
mkdir slurm
cat >slurm/srun <<'END'
#!/bin/sh
# one task, which has this process; a signal to the step is one to it
while :; do case $1 in --*=* | -K*) shift ;; -*) shift 2 ;; *) break ;; esac; done
echo $$ >task
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 exec "$@"
END
cat >slurm/scontrol <<'END'
#!/bin/sh
case $1 in requeue) echo "$2" >requeued ;; show) echo localhost ;; *) exit 1 ;; esac
END
cat >batch <<'END'
#!/bin/sh
"$@"
status=$?
test $status -ne 75 || scontrol requeue "$SLURM_JOB_ID"
exit $status
END
chmod +x slurm/srun slurm/scontrol batch

# slurm_start COUNT EPOCHS: the batch script for the COUNT-th time again
slurm_start()
{
    : >began
    SLURM_JOB_ID=7 SLURM_JOB_NODELIST=localhost SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1 SLURM_NTASKS=1 \
        SLURM_TASKS_PER_NODE=1 SLURM_RESTART_COUNT=$1 PATH=$work/slurm:$PATH ./batch "$program" -q --launcher slurm \
        --max_restarts 2 "$binary/cifar10_deepspeed" $sample -e "$2" --save_dir ck --save_interval 40 --resume \
        >out 2>err </dev/null &
    job=$!
}

rm -rf ck
slurm_start 0 99
for _ in $(seq 3000); do [ ck/latest -nt began ] && break; sleep 0.01; done
kill -KILL $job "$(cut -d ' ' -f 1 "/proc/$job/task/$job/children")" # the node fails
wait $job 2>/dev/null
for _ in $(seq 3000); do kill -0 "$(cat task)" 2>/dev/null || break; sleep 0.01; done
slurm_start 1 99
for _ in $(seq 3000); do [ ck/latest -nt began ] && break; sleep 0.01; done
if [ ! -e requeued ]; then pass; else fail "requeued without a signal"; fi
kill -USR1 "$(cat task)"
wait $job
if [ "$(cat requeued 2>/dev/null)" = 7 ]; then pass; else fail "not requeued: $(cat err)"; fi
rm -f requeued
slurm_start 2 0
wait $job
if [ $? -eq 0 ] && [ ! -e requeued ]; then pass; else fail "the job that was requeued: $(cat err)"; fi

./batch sh -c 'exit 3' # a failure stays one: the batch job's status is that of the command
if [ $? -eq 3 ]; then pass; else fail "the status of the batch script"; fi

left=$(ls -A "$TMPDIR")
if [ -z "$left" ]; then pass; else fail "left behind: $left"; fi

finish
