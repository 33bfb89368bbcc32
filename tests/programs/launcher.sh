#!/bin/bash
# tests/programs/launcher.sh BINARY_DIR: deepspeed starts ranks on this machine
# with each MPI that is here: what they get, what is printed, how it ends, and
# that nothing stays behind.
# SPDX-License-Identifier: MIT
set -u
binary=$1
program=$1/deepspeed
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"
export TMPDIR=$work/tmp DS_GRACE=0.3
mkdir -p "$TMPDIR"

# A rank. Its name is of this run, so that its processes can be found.
rank=./rank_of_$$
cat >$rank <<'END'
#!/bin/bash
case $1 in --local_rank=*) shift ;; esac
what=$1 who=$2 how=${3-}
case $what in
show) echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_SIZE $CROSS_RANK $CROSS_SIZE $MASTER_ADDR $MASTER_PORT $CUDA_VISIBLE_DEVICES" ;;
words) shift && for word; do printf '<%s>' "$word"; done >words.$RANK && printf '%s' "$DS_NASTY" >nasty.$RANK ;;
lines) for i in 1 2 3; do echo "line $i of $RANK"; echo "err $i" >&2; done; printf 'a\tend without newline' ;;
input) if [ "$RANK" = 0 ]; then read -r line && echo "got $line"; else read -r line || echo "none"; fi ;;
closed) { echo x; } 2>/dev/null || touch "closed.$RANK" ;;
cores) taskset -pc $$ | sed "s/.*: /$RANK: /;s/$/ $OMP_NUM_THREADS/" ;;
child) (trap '' TERM HUP; exec -a "$0" sleep 100) & ;;
end)
    touch "started.$RANK"
    [ "$RANK" = "$who" ] || exec -a "$0" sleep 100
    while [ ! -e started.0 ] || [ ! -e started.1 ]; do sleep 0.01; done
    case $how in
    KILL | SEGV) kill -$how $$ ;;
    *) exit "$how" ;;
    esac
    ;;
wait) touch "started.$RANK" && exec -a "$0" sleep 100 ;;
deaf) trap '' TERM INT HUP && touch "started.$RANK" && while :; do sleep 0.05; done ;;
esac
exit 0
END
printf '#!/none/such\n' >broken
printf '\0\0' >foreign # as a program of another machine, for the kernel
chmod +x $rank broken foreign

# Nothing of this run is left: processes, temporary files, shared memory.
gone()
{
    for _ in $(seq 100); do
        left=$(grep -las "[r]ank_of_$$" /proc/[0-9]*/cmdline)
        files=$(ls -A "$TMPDIR")
        if [ -z "$left$files" ]; then
            pass
            return
        fi
        sleep 0.02
    done
    echo "$left" >out
    echo "$files" >err
    fail "left behind after $1"
}

started()
{
    for _ in $(seq 200); do
        if [ -e started.0 ] && [ -e started.1 ]; then return; fi
        sleep 0.02
    done
}

# signal WANT NAME BEHAVIOUR SIGNAL [SIGNAL]: of the launcher, once both ranks
# run
signal()
{
    rm -f started.*
    env --default-signal=INT setsid "$program" -q $mpi --num_devs 2 $rank "$3" 0 >out 2>err </dev/null &
    launcher=$!
    started
    kill "-$4" $launcher
    if [ $# -gt 4 ]; then sleep 0.05 && kill "-$5" $launcher; fi
    wait $launcher 2>/dev/null
    got=$?
    if [ $got -eq "$1" ]; then pass; else fail "status $got, want $1: $2"; fi
    gone "$2"
}

nasty=' a  "b" '\''c'\'' ; $x `y` \ % * = ~ # & | < > ( ) { } [ ] ! ? é'$'\n''end'

# Tests that depend on the runner.
run()
{
    # ---- what ranks get
    status 0 -q $mpi --num_devs 2 --master_port 12345 $rank show 0
    has out '^0 0 2 2 0 1 127.0.0.1 12345 0,1$'
    has out '^1 1 2 2 0 1 127.0.0.1 12345 0,1$'
    lines out 2
    lines err 0
    DS_NASTY=$nasty status 0 -q $mpi --num_devs 2 --no_local_rank $rank words "$nasty" '' --
    printf '<%s>' "$nasty" '' -- >want
    printf '%s' "$nasty" >want_env
    same want words.0
    same want words.1
    same want_env nasty.1

    # ---- a program of ours: the same numbers from both MPIs
    ASAN_OPTIONS=detect_leaks=0 status 0 -q $mpi --num_gpus 2 "$binary/cifar10_deepspeed" --deepspeed --sample --data d --seed 1 --max-steps 5 --no-eval --trace trace.csv
    if [ -e first.csv ]; then same trace.csv first.csv; else mv trace.csv first.csv; fi

    # ---- a save that fails: its cause once, and how a rank ended
    ASAN_OPTIONS=detect_leaks=0 status 1 -q $mpi --num_gpus 2 "$binary/cifar10_deepspeed" --deepspeed --sample --data d --seed 1 --max-steps 1 --no-eval --quiet --save-dir broken/x
    has err '^cifar10_deepspeed: --save-dir broken/x: .*(rank 0)$'
    has err '^deepspeed: rank [01] on localhost .* exits with return code = 1$'
    grep -c 'save-dir' err >causes # and once more if the other rank takes longer than DSI_SHUTDOWN_S
    has causes '^[12]$'

    # ---- how it ends
    rm -f started.*
    status 3 -q $mpi --num_devs 2 $rank end 1 3
    has err '^deepspeed: rank 1 on localhost (process [0-9]*) .* exits with return code = 3$'
    lines err 1
    gone "exit 3"
    rm -f started.*
    status 137 -q $mpi --num_devs 2 $rank end 0 KILL
    has err '^deepspeed: rank 0 on localhost (process [0-9]*) was killed by signal 9 (SIGKILL)'
    lines err 1
    gone "a killed rank"
    status 0 -q $mpi --num_devs 2 $rank child 0
    gone "what a rank left"
    signal 130 "Ctrl-C" wait INT
    has err '^deepspeed: signal 2 (SIGINT): all ranks are ended$'
    signal 143 TERM wait TERM
    if [ "${DS_TEST_QUICK-}" ] && [ "$mpi" ]; then
        signal 137 "a killed launcher" deaf KILL
        return
    fi
    signal 131 QUIT wait QUIT
    has err '^deepspeed: signal 3 (SIGQUIT): all ranks are ended$'
    # the runner is killed: it is named, and what ranks die of is not
    rm -f started.*
    "$program" -q $mpi --num_devs 2 $rank wait 0 >out 2>err </dev/null &
    launcher=$!
    started
    watcher=$(cat /proc/$launcher/task/$launcher/children)
    kill -KILL $(cut -d ' ' -f 1 /proc/${watcher% }/task/${watcher% }/children)
    wait $launcher
    if [ $? -eq 137 ]; then pass; else fail "status when the runner is killed"; fi
    has err '^deepspeed: mpi[a-z.]* (process [0-9]*) on .* was killed by signal 9 (SIGKILL); all ranks are ended$'
    lines err 1
    gone "a killed runner"
    # MPI_Init waits for a rank that has ended (on a busy machine mpirun would
    # kill it within the short grace, before it is reported); a rank that writes
    # too much
    DS_GRACE=5 DS_TIMEOUT=1 ASAN_OPTIONS=detect_leaks=0 status 1 -q $mpi --no_local_rank --num_devs 2 /bin/sh -c \
        "[ \$RANK = 1 ] && exit 0; exec $binary/cifar10_ddp --sample --data d --max-steps 1 --quiet"
    has err '^deepspeed: rank 0 of 2: init_distributed: the ranks have not joined within 1 s (DS_TIMEOUT)'
    status 153 -q $mpi --no_local_rank --num_devs 2 /bin/sh -c 'ulimit -f 1; exec head -c 100000 /dev/zero >large.$RANK'
    has err 'was killed by signal 25 (SIGXFSZ)'
    rm -f large.*
    signal 143 "a rank that does not end" deaf TERM
    signal 137 "a killed launcher" deaf KILL
}

# Tests that do not.
run_once()
{
    status 0 -q $mpi --num_devs 2 --bind_core_list 0,1 $rank cores 0
    if [ "$(nproc)" -ge 2 ] && taskset -c 0,1 true 2>/dev/null; then
        has out '^0: 0 1$'
        has out '^1: 1 1$'
    fi
    echo "a line" >in
    "$program" -q $mpi --num_devs 2 $rank input 0 >out 2>err <in
    has out '^got a line$'
    has out '^none$'
    "$program" -q $mpi --num_devs 2 $rank closed 0 >&- 2>err </dev/null
    if [ -e closed.0 ] && [ -e closed.1 ]; then pass; else fail "a closed stdout is open"; fi

    # ---- what they print
    status 0 -q $mpi --num_devs 2 --tag_output $rank lines 0
    for i in 0 1; do
        grep "^\[rank $i\]: " out | sed "s/^\[rank $i\]: //" >lines.$i
        printf 'line %s of %s\n' 1 $i 2 $i 3 $i >want
        printf 'a\tend without newline' >>want
        printf '%s' "$(cat lines.$i)" >got
        same want got
        if [ "$(grep -c "^\[rank $i\]: err [123]$" err)" -eq 3 ]; then pass; else fail "stderr of rank $i"; fi
    done
    status 0 -q $mpi --num_devs 2 --enable_each_rank_log logs/of $rank lines 0
    lines out 0
    for i in 0 1; do
        cat logs/of/[0-9]*_rank$i.log >log
        has log "line 3 of $i"
        has log 'err 3'
    done
    set -- logs/of/20[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]_rank[01].log
    if [ $# -eq 2 ]; then pass; else fail "names of logs"; fi
    rm -rf logs
    status 0 $mpi --num_devs 2 $rank none 0
    has out 'process [0-9]* spawned with command: .* --local_rank=1 none 0$'
    has out 'Process [0-9]* exits successfully.$'

    # ---- how it ends
    status 127 -q $mpi --num_devs 2 ./broken
    lines err 1
    has err '^deepspeed: ./broken: the file is there, but its interpreter is not: line 1 names /none/such, which does not exist$'
    status 126 -q $mpi --num_devs 2 ./foreign
    lines err 1
    has err '^deepspeed: ./foreign: it is neither a program of this machine nor a script (file ./foreign)$'
    signal 129 HUP wait HUP
    DS_GRACE=100 signal 130 "a second Ctrl-C" deaf INT INT
    # what they print is not taken
    "$program" -q $mpi --num_devs 2 --tag_output $rank lines 0 >/dev/full 2>err
    if [ $? -eq 1 ]; then pass; else fail "a full device"; fi
    has err '^deepspeed: what ranks printed could not be written: No space left on device$'
    ("$program" -q $mpi --num_devs 2 --tag_output --no_local_rank "$(command -v yes)" 2>err; echo $? >got) | head -1 >out
    has got '^141$'
    has err '^deepspeed: what ranks printed could not be written: Broken pipe; all ranks are ended$'
    gone "a reader that left"
    # what a job of Open MPI has left whose launcher was killed with all: its
    # folder has no lock
    if [ ! "$mpi" ]; then
        mkdir -p "$TMPDIR/deepspeed-job.dead00/x" "$TMPDIR/deepspeed-job.live00"
        exec 9<"$TMPDIR/deepspeed-job.live00"
        flock -s 9
        status 0 -q $mpi --num_devs 2 $rank none 0
        none "$TMPDIR/deepspeed-job.dead00"
        rmdir "$TMPDIR/deepspeed-job.live00" || fail "the folder of another job"
        exec 9<&-
        TMPDIR=/proc status 0 -q --num_devs 2 $rank none 0 # in which no folder can be made
    fi
    # small files: the limit is raised for the runner, or it is said
    (ulimit -f 200 && "$program" -q $mpi --num_devs 2 --no_local_rank /bin/sh -c 'ulimit -f' >out 2>err)
    if [ $? -eq 0 ]; then has out '^[24]00$'; else has err '^deepspeed: openmpi needs files of 32 MiB for shared memory'; fi
    mkdir removed
    (cd removed && rmdir ../removed && exec "$program" -q $mpi --num_devs 2 /bin/true) >out 2>err
    if [ $? -eq 2 ]; then pass; else fail "a working folder that was removed"; fi
    has err '^deepspeed: the working folder: No such file or directory: change to one that is there$'
    # ranks that never start
    mkdir -p stuck && printf '#!/bin/sh\nexec sleep 100\n' >stuck/mpirun && chmod +x stuck/mpirun
    PATH=$work/stuck:$PATH status 1 -q --start_timeout 1 --num_devs 2 $rank none 0
    has err '^deepspeed: nothing was heard within 1 s (--start_timeout) from localhost (ranks 0 to 1): mpirun does not start them$'
    lines err 1
    gone "ranks that never start"
    # few open files: the limit is raised, or it is said
    (ulimit -S -n 40 && "$program" -q $mpi --num_devs 8 $rank show 0 >out 2>err) || fail "few files"
    lines out 8
    (ulimit -n 40 && "$program" -q $mpi --num_devs 8 $rank show 0 >out 2>err) && fail "too few files"
    has err '^deepspeed: 8 ranks need 72 open files here, and at most 40 are allowed (ulimit -Hn)$'
    # many: the limit is lowered for the runner alone
    if [ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge 100000 ]; then
        (ulimit -S -n 100000 && "$program" -q $mpi --num_devs 2 --no_local_rank /bin/sh -c 'ulimit -n' >out 2>err) || fail "many files"
        has out '^100000$'
    fi
    # a terminal that closes ends its foreground group, except under nohup
    rm -f started.*
    setsid nohup "$program" -q $mpi --num_devs 2 --no_local_rank /bin/sh -c 'touch started.$RANK; sleep 0.3; echo $RANK' >out 2>err </dev/null &
    launcher=$!
    started
    kill -HUP -- -$launcher
    wait $launcher
    if [ $? -eq 0 ]; then pass; else fail "nohup"; fi
    lines out 2
    # the process that watches is killed
    rm -f started.*
    "$program" -q $mpi --num_devs 2 $rank wait 0 >out 2>err </dev/null &
    launcher=$!
    started
    kill -KILL $(cat /proc/$launcher/task/$launcher/children)
    wait $launcher
    if [ $? -eq 137 ]; then pass; else fail "status when the watcher is killed"; fi
    has err 'the launcher (process [0-9]*) on .* was killed by signal 9'
    gone "a killed watcher"
}

if [ -e "$binary/libdeepspeed_openmpi.so" ] && command -v mpirun >/dev/null; then
    mpi=
    run
    run_once
fi
if have_mpich "$binary"; then
    mpi=--launcher=mpich
    run
    if [ ! -e "$binary/libdeepspeed_openmpi.so" ]; then run_once; fi
fi

# ---- Slurm, by a stand-in for srun: the documented variables alone, no secret
mkdir -p fake && cat >fake/srun <<'END'
#!/bin/sh
cp /proc/$$/environ "$KEEP/srun.environ"
for word; do case $word in --export=*) names=${word#--export=} ;; esac; done
while [ "${1-}" ] && [ "${1%/deepspeed}" = "$1" ]; do shift; done
set -- "$(echo "$names" | tr , ' ')" "$@"
for name in $1; do eval "value=\${$name-}"; kept="$kept $name=$value"; done
shift
exec env -i $kept SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 SLURM_STEP_NODELIST=localhost "$@"
END
chmod +x fake/srun
printf '#!/bin/sh\nexec cat /proc/$$/environ >rank.environ\n' >keeps && chmod +x keeps
KEEP=$work API_TOKEN=hidden DS_JOIN_SECRET=5e0d4f8a1c2b3d4e OMP_NUM_THREADS=3 PATH=$work/fake:$PATH \
    status 0 -q --launcher slurm --num_devs 1 --no_local_rank --master_addr 127.0.0.1 ./keeps
for file in srun rank; do
    tr '\0' '\n' <$file.environ >shown
    has shown '^OMP_NUM_THREADS=3$'
    has_not shown 5e0d4f8a1c2b3d4e
done
has_not shown API_TOKEN

# ---- one rank: no MPI, no process between
mpi=
DS_JOIN_SECRET=5e0d4f8a1c2b3d4e status 0 -q --num_devs 1 --no_local_rank ./keeps
tr '\0' '\n' <rank.environ >shown
has_not shown 5e0d4f8a1c2b3d4e
status 0 -q --num_devs 1 $rank show 0
has out '^0 0 1 1 0 1 127.0.0.1 29500 0$'
for hidden in '' -1; do # from GPUs, for ranks on the CPU
    CUDA_VISIBLE_DEVICES=$hidden status 0 --num_devs 1 --no_local_rank /bin/sh -c 'echo "<$CUDA_VISIBLE_DEVICES>"'
    has out "^<$hidden>$"
    if grep -q "Setting CUDA_VISIBLE_DEVICES" out; then fail "hidden GPUs"; else pass; fi
done
status 3 -q --num_devs 1 --no_local_rank /bin/sh -c 'exit 3'
"$program" -q --num_devs 1 --no_local_rank /bin/sh -c 'echo $$' >out 2>err &
launcher=$!
wait $launcher
if [ "$(cat out)" = $launcher ]; then pass; else fail "one rank is not executed directly"; fi
status 0 -q --num_devs 1 --enable_each_rank_log logs $rank lines 0
cat logs/*_rank0.log >log
has log 'line 3 of 0'
status 0 -q --num_devs 1 --tag_output $rank lines 0
has out '^\[rank 0\]: line 3 of 0$'
status 1 -q --num_devs 1 --enable_each_rank_log /dev/null/x $rank lines 0
has err '^deepspeed: --enable_each_rank_log: /dev/null/x'
lines err 1
"$program" -q --num_devs 1 --save_pid --no_local_rank /bin/sh -c 'ls /tmp/*.deepspeed' >out 2>err &
launcher=$!
wait $launcher
has out "/tmp/$launcher.deepspeed"
none /tmp/$launcher.deepspeed
status 127 -q --num_devs 1 ./broken
has err '^deepspeed: ./broken: the file is there, but its interpreter is not: line 1 names /none/such, which does not exist$'
gone "one rank"

finish
