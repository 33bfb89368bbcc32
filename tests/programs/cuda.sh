#!/bin/sh
# tests/programs/cuda.sh BINARY_DIR: --device cuda and --with_cuda as a user
# meets them: one line, with this build and the machine as they are, and (a
# build with CUDA) over a driver that pretends to have GPUs.
# SPDX-License-Identifier: MIT
set -u
program=$1/cifar10_tutorial
fake=$1/fake
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
has out '^cuda memory, copies \.* .*\[[A-Z]*\]$'
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
status 1 FAKE_CUDA_VERSION=11040 $run $sample --device cuda
has err 'the NVIDIA driver is for CUDA 11.4 and this build for CUDA 1[0-9]: install a newer driver'
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
has out '^cuda memory, copies \.* \[YES\] \.* \[OKAY\]$'
has out '^cuda kernels \.* \[NO\]'
has out '^cuda:0 \.* Fake 0, 1\.0 GB, compute capability 9\.0$'
has out '^cuda:1 \.* Fake 1'
has out '^\[WARNING\] this version trains on the CPU'
run=$tutorial

# ---- tensors go there, and the first op says that it cannot compute
status 1 $run $sample --device cuda
has err '^cifar10_tutorial: net.conv1: conv2d: no cuda kernel for float32: this version computes on the CPU'
status 1 FAKE_CUDA_BYTES=4096 $run $sample --device cuda
has err 'no memory for [0-9]* bytes on cuda:0: .* of its 4096 are free'
run=$deepspeed
for dtype in fp32 fp16 bf16; do
    for stage in 0 1 2 3; do
        status 1 $run $sample --with_cuda --dtype $dtype --stage $stage
        has err '^cifar10_deepspeed: .*no cuda kernel for '
    done
done
status 1 $run $sample --with_cuda --moe --num-experts 2
has err '^cifar10_deepspeed: .*no cuda kernel for '
status 1 LOCAL_RANK=1 FAKE_CUDA_FAIL=cuDevicePrimaryCtxRetain=46 $run $sample --with_cuda
has err 'cuda:1: this GPU cannot be used: .*(CUDA_ERROR_DEVICE_UNAVAILABLE)'

finish
