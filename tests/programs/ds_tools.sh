#!/bin/sh
# tests/programs/ds_tools.sh BINARY_DIR: ds_report, ds_ssh (with a stand-in for
# ssh), ds_bench as a user runs them.
# SPDX-License-Identifier: MIT
set -u
binary=$1
program=$binary/ds_report
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"
export ASAN_OPTIONS=detect_leaks=0 # of MPI libraries

# ---- ds_report
status 0
has out '^kernels generic \.* \[YES\] \.* \[OKAY\]$'
case $(uname -m) in x86_64) has out '^kernels amx \.* \[YES\] \.* \[\(OKAY\|NO\)\]$' ;; esac
has out '^ranks thread \.* \[YES\] \.* \[OKAY\]$'
has out '^deepspeed.c version \.* [0-9]'
has out '^/dev/shm \.* .*GB of it free$'
has out '^open files \.* '
status 0 --hide_operator_status --hide-errors-and-warnings
has_not out 'kernels generic'
has_not out 'WARNING'
(ulimit -n 100 && "$program") >out 2>err
has out '^\[WARNING\] 100 open files are few'
DS_FUSIONS=-foo "$program" >out 2>err
has out '^\[WARNING\] DS_FUSIONS=-foo: expected on, alone, off, or some of -relu'
status 2 --bogus
status 2 word

# ---- a misspelt option of any command: the nearest one, in the user's spelling
for pair in ds_bench:--bw-unti:bw-unit ds_plot:--outptu:output ds_report:--gpu_selftst:gpu_selftest \
    ds_show:--no-sms:no-sums ds_ssh:--hostfle:hostfile ds_to_universal:--input_foldr:input_folder \
    zero_to_fp32:--max_shrd_size:max_shard_size deepspeed:--nm_gpus:num_gpus; do
    option=${pair#*:}
    program=$binary/${pair%%:*}
    status 2 ${option%:*} x
    has err "^${pair%%:*}: there is no option ${option%:*}; did you mean --${option#*:}? (--help lists all)$"
    lines err 1
done

# ---- stdout that cannot be written
for name in cifar10_ddp cifar10_deepspeed cifar10_tutorial deepspeed ds_bench ds_lm ds_plot \
    ds_report ds_show ds_ssh ds_to_universal zero_to_fp32; do
    "$binary/$name" --version >/dev/full 2>err
    if [ $? -eq 1 ]; then pass; else fail "$name on a full device"; fi
    has err "^$name: stdout: No space left on device$"
done
"$binary/ds_report" >&- 2>err
if [ $? -eq 1 ]; then pass; else fail "ds_report without stdout"; fi
has err '^ds_report: stdout: Bad file descriptor$'

# ---- a limit on the size of files ends no program
printf 'step,loss\n1,2\n2,1\n' >run.csv
(ulimit -f 0 && "$binary/ds_plot" run.csv || echo "status $?") 2>&1 | cat >out
has out '^ds_plot: write plot.html: File too large after 0 bytes: raise the limit (ulimit -f)$'
has out '^status 1$'
for left in plot.html*; do none "$left"; done

# ---- --help fits a terminal of 60 columns
if command -v script >/dev/null; then
    for name in cifar10_deepspeed cifar10_tutorial deepspeed ds_bench ds_show zero_to_fp32; do
        script -qec "stty cols 60; '$binary/$name' --help" /dev/null </dev/null | tr -d '\r' >out
        has out "^Usage: $name"
        awk 'length > 59' out >err
        lines err 0
    done
    script -qec "stty cols 60; '$binary/deepspeed' --dry_run --num_gpus 2 '$binary/cifar10_deepspeed' --stage 2" \
        /dev/null </dev/null | tr -d '\r' >out
    has out '^{"resources": {"localhost": \[0, 1\]},$'
    awk 'length > 59 && /", "/' out >err # longer words have lines of their own
    lines err 0

    # ---- so do values of ds_report, under their column
    for width in 40 60 200; do
        script -qec "stty cols $width; '$binary/ds_report' --hide_operator_status" \
            /dev/null </dev/null | tr -d '\r' >out
        awk -v width=$width 'length >= width && NF > 4' out >err # a word may be longer
        lines err 0
    done
    script -qec "stty cols 60; ulimit -n 100; '$binary/ds_report'" /dev/null </dev/null | tr -d '\r' >out
    has out '^\[WARNING\] 100 open files are few for many ranks: ulimit -n$'
    has out '^          4096$'
fi

# ---- a shell of a container that belongs to rank 1
for name in deepspeed ds_report; do
    program=$binary/$name
    RANK=1 status 2 --bogus
    lines err 1
    RANK=1 status 0 --help
    has out '^Usage: '
done

for name in cifar10_tutorial cifar10_deepspeed cifar10_ddp cifar10_dataparallel ds_lm deepspeed; do
    program=$binary/$name
    status 0 --version
    has out 'deepspeed.c.* [0-9]*\.[0-9]*\.[0-9]*$'
done

# ---- ds_ssh: lines with names, the largest status
program=$binary/ds_ssh
mkdir bin
cat >bin/ssh <<'END'
#!/bin/sh
for host; do
    shift
    case $host in -*) ;; *) break ;; esac
done
shift # --
printf 'half '
sleep 0.1
echo "of $host: $*"
echo "for $host" >&2
case $host in
a) exit 0 ;;
b) exit 7 ;;
*) exit 3 ;;
esac
END
chmod +x bin/ssh
printf '# hosts\na slots=1\nb slots=2\n\nc slots=1\n' >hosts
PATH=$PWD/bin:$PATH
status 7 -f hosts echo -n 'two words'
has out '^a: half of a: echo -n two words$'
has out '^c: half of c: echo -n two words$'
has err '^b: for b$'
lines out 3
lines err 3
status 3 -H hosts --exclude b true
lines out 2
status 0 --hostfile hosts --include a uptime
lines out 1
# a master process that ControlPersist leaves behind holds the streams
sed -i '1a sleep 60 & echo $! >>masters' bin/ssh
status 7 -f hosts echo -n 'two words'
lines out 3
lines err 3
kill $(cat masters)
sed -i 2d bin/ssh
status 2 -H none true
has err 'none: No such file'
status 2 -H hosts
has err 'which command'
status 2 -H hosts --include x true
has err "x"

# ---- ds_bench: as threads, and as ranks
program=$binary/ds_bench
status 0 --ranks 2 --trials 2 --warmups 1 --maxsize 8
has out '^2 ranks, thread; memory copies'
has out '^---- Performance of all_reduce on 2 devices -*$'
has out '^Size  *Description  *Duration  *Throughput  *BusBW  *of$'
awk 'length > 59' out >err
lines err 0
has out '^---- Performance of pt2pt on 2 devices -*$'
has out '^1 KB  *256x4  *[0-9.]* [um]s  *[0-9.]*  *[0-9.]*  *[0-9.]*$'
status 0 --ranks 3 --trials 2 --warmups 0 --maxsize 3 --scan --raw --bw-unit GBps --dtype torch.bfloat16 --all-gather
has out '^6  *3x2 '
has out '^(Bytes)  *(us)  *(GBps)  *(GBps)  *copy$'
has_not out 'all_reduce'
lines out 11
if have_mpich "$binary"; then
    program=$binary/deepspeed
    status 0 -q --launcher mpich --num_devs 2 "$binary/ds_bench" --trials 2 --maxsize 6 --broadcast
    has out '^2 ranks, mpi; '
    has out '^256 B  *64x4 '
fi
program=$binary/ds_bench
status 2 --dtype int7
has err 'expected float32'
status 0 --ranks 2 --trials 1 --warmups 0 --mem-factor 1e-5 --broadcast --device cpu --dist deepspeed --backend thread --raw
has out '^[0-9]*  *[0-9]*x4 '
status 1 --ranks 2 --backend mpi
has err '^ds_bench: --backend mpi: the ranks would be of thread: '
for refused in '--mem-factor 2' '--mem-factor 0.1 --scan' '--backend nccl' '--device cuda' '--dist torch' --async-op --debug; do
    status 2 $refused
    has err "^ds_bench: ${refused%% *}[ :]"
done
status 2 --ranks 1
has err '^ds_bench: --ranks 1: expected a number, 2 to 64$'
status 2 word
"$program" --ranks 2 --trials 1 --maxsize 3 --broadcast >/dev/full 2>err
if [ $? -eq 1 ]; then pass; else fail "ds_bench on a full device"; fi
has err '^ds_bench: stdout: No space left on device$'

finish
