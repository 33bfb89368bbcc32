#!/bin/sh
# tests/programs/cuda.sh BINARY_DIR: --device cuda and --with_cuda as a user
# meets them: one line where there is no GPU; training on the emulated one
# (tests/gpu/emulator).
# SPDX-License-Identifier: MIT
set -u
program=$1/cifar10_tutorial
fake=$1/gpu
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"
unset CUDA_VISIBLE_DEVICES LOCAL_RANK

sample="--sample --data d"
tutorial=$program
deepspeed=$1/cifar10_deepspeed

if [ ! -e /dev/nvidiactl ]; then
    status 1 $sample --device cuda
    lines err 1
    has err '^cifar10_tutorial: device cuda:0: .*use the CPU$'
    status 1 $sample --device cuda:1
    has err '^cifar10_tutorial: device cuda:1: '
    program=$deepspeed
    status 1 $sample --with_cuda
    lines err 1
    has err '^cifar10_deepspeed: device cuda:0: .*use the CPU$'
fi
program=$tutorial
status 1 $sample --device gpu
has err 'device "gpu": expected cpu, cuda or cuda:N'
status 1 $sample --device cuda:x
has err 'device "cuda:x": expected cpu, cuda or cuda:N'

export ASAN_OPTIONS=detect_leaks=0 # of MPI libraries, which the report opens
program=$1/ds_report
status 0
has out '^cuda kernels \.* .*\[[A-Z]*\]$'
if [ ! -e /dev/nvidiactl ]; then
    has out '^GPUs \.* none: .*use the CPU$'
fi
program=$tutorial

if [ ! -e "$fake/libcuda.so.1" ]; then
    finish
    exit
fi
LD_LIBRARY_PATH=$fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH

program=env # of what follows: settings, program, options
run=$tutorial

# ---- what the driver says
status 1 $run $sample --device cuda:2
has err 'device cuda:2: there are 2 cuda devices here, cuda:0 to cuda:1$'
status 1 FAKE_CUDA_COUNT=1 $run $sample --device cuda:1
has err 'device cuda:1: there is 1 cuda device here, which has index 0$'
status 1 FAKE_CUDA_VERSION=11030 $run $sample --device cuda
has err 'the NVIDIA driver is for CUDA 11.3, and 11.4 or newer is needed: install a newer driver'
status 1 FAKE_CUDA_FAIL=cuInit=100 $run $sample --device cuda
has err 'the NVIDIA driver finds no GPU (CUDA_ERROR_NO_DEVICE)'
status 1 FAKE_CUDA_FAIL=cuInit=100 CUDA_VISIBLE_DEVICES=-1 $run $sample --device cuda
has err 'CUDA_VISIBLE_DEVICES is "-1": unset it to see all'
status 1 FAKE_CUDA_FAIL=cuInit=999 $run $sample --device cuda
has err 'the NVIDIA driver does not start: .*(CUDA_ERROR_UNKNOWN); see what nvidia-smi says'
status 1 LOCAL_RANK=2 $run $sample --device cuda
has err 'local rank 2 has no GPU of its own, there are 2 here: start at most 2 ranks on this machine'

run=$1/ds_report
status 0 $run
has out '^cuda kernels \.* \[YES\] \.* \[OKAY\]$'
has out '^cuda:0 \.* Fake 0, 1\.0 GB, compute capability 9\.0$'
has out '^cuda:1 \.* Fake 1'
has out '^nccl \.* \[YES\] \.* \[OKAY\]$'
has out '^NCCL \.* 2\.[0-9]*\.[0-9]*$'
has out 'WARNING.*on another GPU, run ds_report --gpu_selftest once'
status 0 DS_NCCL=off $run
has out '^nccl \.* \[NO\] \.* \[NO\]$'
has out '^NCCL \.* none: DS_NCCL is off$'
status 0 $run --gpu_selftest --quick --only softmax_dx
has out '^softmax_dx .*same'
has_not out '^optimizer'
has out ': 2 cases agree with the CPU, 0 do not'
status 2 $run --gpu_selftest --quick --only nonsense
has err '^ds_report: --only nonsense: no kernel or case has that in its name$'
status 2 $run --only softmax
has err 'json, --only and --quick belong to --gpu_selftest'
run=$tutorial

# ---- training there
few="$sample --max_steps 2 --no_eval"
status 0 $run $few --device cuda --save $PWD/net.pth
has out '^cuda:0$'
status 1 FAKE_CUDA_BYTES=4096 $run $few --device cuda
has err 'no memory for [0-9]* bytes (float32 \[[0-9, ]*\]) on cuda:0: .* of its 4096 are free; a smaller batch'
run=$deepspeed
for options in '--stage 0' '--stage 1 --dtype fp16' '--stage 2 --dtype bf16 --use_ema' '--stage 3'; do
    status 0 $run $few --with_cuda $options
    if [ -n "${DS_TEST_QUICK-}" ]; then break; fi
done
# ---- steps as graphs, from the fourth on: the same numbers as without
for graphs in on off; do
    status 0 DS_GRAPHS=$graphs $run $sample --max_steps 5 --no_eval --batch_size 4 --dtype fp16 \
        --with_cuda --trace $graphs.csv
done
same on.csv off.csv
moe='--moe --num_experts 2 4 --top_k 2'
[ -z "${DS_TEST_QUICK-}" ] || moe="$moe --batch_size 4"
for graphs in on off; do
    status 0 DS_GRAPHS=$graphs $run $sample --max_steps 6 --no_eval --with_cuda $moe --trace $graphs.csv
    has_not out 'kernel by kernel'
    grep '^Experts' out >$graphs.experts
done
same on.csv off.csv
same on.experts off.experts
has on.experts '^Experts of layer 2: '
status 1 LOCAL_RANK=1 FAKE_CUDA_FAIL=cuDevicePrimaryCtxRetain=46 $run $sample --with_cuda
has err 'cuda:1: this GPU cannot be used: .*(CUDA_ERROR_DEVICE_UNAVAILABLE)'

# ---- one process, a replica on each GPU: the losses of replicas on the CPU
run=$1/cifar10_dataparallel
four="$sample --max_steps 3 --batch_size 5 --no_eval --seed 1"
for n in 2 4; do
    ids=$(seq -s , 0 $((n - 1)))
    status 0 $run $four --device_ids $ids --trace cpu.csv
    status 0 FAKE_CUDA_COUNT=$n $run $four --device cuda --trace gpu.csv
    has out "^Let's use $n GPUs!\$"
    paste -d , cpu.csv gpu.csv | awk -F , 'NR > 1 && (($2 - $6)^2 > 1e-10 || ($4 - $8)^2 > 1e-8)' >far
    lines far 0
    if [ -n "${DS_TEST_QUICK-}" ]; then break; fi
done
status 0 FAKE_CUDA_COUNT=3 $run $few --device cuda --device_ids 2,1
has out "^Let's use 2 GPUs!\$"
status 0 FAKE_CUDA_COUNT=1 $run $few --device cuda
has_not out 'GPUs!'
status 1 $run $few --device cuda --device_ids 0,2
has err 'data_parallel: device_ids\[1\] is 2: there are 2 GPUs here, 0 to 1$'
status 1 $run $few --device cuda:1
has err 'device cuda:1: expected cpu or cuda; --device-ids chooses GPUs$'
status 1 FAKE_CUDA_BYTES=1073741824,65536 $run $few --device cuda
has err 'replica 1: .*no memory for .* on cuda:1: '

# ---- a GPU a rank
if [ -e "$1/libdeepspeed_openmpi.so" ] && command -v mpirun >/dev/null; then
    run=$1/deepspeed
    for program_of_rank in "$deepspeed --with_cuda" "$1/cifar10_ddp --device cuda"; do
        # shellcheck disable=SC2086 # the program and its option
        status 0 $run -q --num_gpus 2 $program_of_rank $few --trace gpu.csv
        has gpu.csv '^2,2\.'
        has_not out 'Rank 1.*step_graph'
    done
    status 0 LOCAL_SIZE=2 $run --include localhost:1 $deepspeed $few --with_cuda
    has out 'Setting CUDA_VISIBLE_DEVICES=1$'
    status 0 $run --nproc_per_node 2 --bind_cores_to_rank --bind_core_list 0-1 $1/cifar10_ddp $few --device cuda
    has out 'Setting CUDA_VISIBLE_DEVICES=0,1$'
    # by NCCL (tests/gpu/fake_nccl) and without it, beside the CPU
    two="$run -q --num_gpus 2 $1/cifar10_ddp $few --seed 1"
    status 0 $two --trace cpu.csv
    for nccl in on off; do
        status 0 DS_NCCL=$nccl DS_LOG=info $two --device cuda --trace gpu.csv
        has out 'INFO.* 2 ranks exchange tensors on GPUs by '
        paste -d , cpu.csv gpu.csv | awk -F , 'NR > 1 && (($2 - $6)^2 > 1e-10 || ($4 - $8)^2 > 1e-8)' >far
        lines far 0
    done
    # a step as a graph, with NCCL's collectives: the same numbers as without
    for graphs in on off; do
        status 0 DS_GRAPHS=$graphs $run -q --num_gpus 2 $1/cifar10_ddp $sample --max_steps 5 --no_eval \
            --batch_size 4 --seed 1 --device cuda --trace $graphs.csv
        has_not out 'step_graph'
    done
    same on.csv off.csv
    # one that is killed, hangs or fails ends the others
    status 137 FAKE_NCCL_DIE=1:9 $two --device cuda
    has err 'rank 1 on localhost .* was killed by signal 9 (SIGKILL)'
    status 1 FAKE_NCCL_HANG=1:9 DS_TIMEOUT=5 $two --device cuda
    has err 'rank [01] of 2: broadcast of 840 float32 at root 0, number 8 on cuda:[01]: stuck for [0-9.]* s (DS_TIMEOUT)'
    status 1 FAKE_NCCL_ERROR=1:9:6 $two --device cuda
    has err 'rank 1 of 2: broadcast of 840\{0,1\} .* NCCL says: remote process exited .* (ncclRemoteError): an error'
    status 1 $run -q --num_gpus 3 $deepspeed $few --with_cuda
    has err 'local rank 2 has no GPU of its own, there are 2 here: start at most 2 ranks on this machine'
fi
finish
