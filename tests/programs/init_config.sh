#!/bin/sh
# tests/programs/init_config.sh BINARY_DIR: deepspeed --init_config: what it
# chooses, that --check_config and the engine take it, what is refused.
# SPDX-License-Identifier: MIT
set -u
bin=$(cd "$1" && pwd)
program=$bin/deepspeed
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"

# ---- the first stage that fits: 16 P, 4 P + 12 P / N, 2 P + 14 P / N, 16 P / N
stage() { # STAGE OPTION...
    expected=$1
    shift
    status 0 --init_config - "$@"
    has out "^    \"stage\": $expected"
    mv out made.json
    ranks=$(sed -n 's|.*--world_size \([0-9]*\)$|\1|p' made.json)
    status 0 --check_config made.json --world_size "$ranks"
    lines err 0
}
stage 0
stage 1 --world_size 4
stage 0 --world_size 4 --params 124M --memory 8GB
stage 1 --world_size 4 --params 7B --memory 51GB
stage 2 --world-size 4 --params 7e9 --memory 40GB --dtype fp16
has made.json '"fp16": {"enabled": true'
has made.json 'stage 0 113.0 GB, stage 1 50.0 GB, stage 2 38.8 GB, stage 3 28.4 GB'
stage 3 --world_size 4 --params 7B --memory 30GB
has_not made.json nvme
stage 3 --world_size 4 --params 7B --memory 9000MB
has made.json '"offload_param": {"device": "nvme"'
stage 1 --world_size 2 --dtype fp32 --batch 48
has made.json '"train_batch_size": 48,'
has made.json '"train_micro_batch_size_per_gpu": 8,'
has made.json '"gradient_accumulation_steps": 3,'

# ---- a program trains with it
status 0 --init_config ds_config.json --params 62006 --memory 100MB --dtype fp32
lines out 0
"$bin/cifar10_deepspeed" --sample --data d --no_eval --max_steps 2 --deepspeed_config ds_config.json >out 2>err ||
    fail "training with it"
has out '^Finished Training$'

# ---- what is refused
status 2 --init_config ds_config.json
has err 'ds_config.json: the file exists'
status 2 --init_config - --memory 1GB
has err 'init_config: of how many parameters?'
status 2 --init_config - --world_size 2 --params 7B --memory 1GB
has err 'has 1000000000: give more than 2 ranks (--world_size)$'
lines out 0
status 2 --init_config - --world_size 3 --batch 16
has err 'batch 16: expected a multiple of the 3 ranks'
status 2 --init_config - --dtype int8
has err 'dtype int8: expected fp32, bf16 or fp16'
status 2 --init_config - --params 7X
has err 'params 7X: expected a number'
status 2 --init_config - --check_config ds_config.json
has err 'expected one of them'
status 2 --check_config ds_config.json --batch 8
has err 'belong to --init_config'
status 2 --init_config - program
has err 'starts nothing'
status 1 --init_config nowhere/ds_config.json
has err 'nowhere/ds_config.json'
"$program" --init_config - >/dev/full 2>err
if [ $? -eq 1 ]; then pass; else fail "a full disk is no failure"; fi
finish
