#!/bin/sh
# tests/programs/moe.sh BINARY_DIR: cifar10_deepspeed --moe as a user runs it:
# the example's two commands, on one rank and, where there is an MPI, on two;
# what it prints; mistakes.
# SPDX-License-Identifier: MIT
set -u
program=$1/cifar10_deepspeed
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/checks.sh"

sample="--sample --data d --seed 1"
moe="--moe --num-experts 2 --top-k 1 --noisy-gate-policy RSample --moe-param-group"
pr_moe="--moe --num-experts 2 4 --mlp-type residual"

# ---- what it prints, what it saves
status 0 $sample --deepspeed $moe --max-steps 60 --trace t.csv --save a.safetensors
has out '^Finished Training$'
has out '^Experts of layer 1: [0-9.]* % [0-9.]* % of the tokens, [0-9.]* % dropped$'
has out '^Accuracy of the network on the 1000 test images: [0-9]* %$'
has a.safetensors 'moe_layer_list.0.deepspeed_moe.gate.wg.weight'
has a.safetensors 'moe_layer_list.0.deepspeed_moe.experts.deepspeed_experts.1.bias'
has a.safetensors 'fc4.weight'
lines t.csv 61
status 0 $sample $pr_moe --max-steps 20 --no-eval --stage 1
has out '^Experts of layer 2: [0-9.]* % [0-9.]* % [0-9.]* % [0-9.]* % of the tokens'
status 0 $sample --moe --num_experts 4 --top_k 2 --max_steps 5 --no_eval --quiet --dtype bf16
lines out 0
DS_LOG=info "$program" $sample $moe --max_steps 1 --no_eval >out 2>err
has out 'MoE layer with num_experts: 2 | num_local_experts: 2 | expert_parallel_size: 1'

# ---- a seed repeats a run, and the loss for balance counts
status 0 $sample $moe --max-steps 20 --no-eval --quiet --trace t1.csv
status 0 $sample $moe --max-steps 20 --no-eval --quiet --trace t2.csv --threads 2
same t1.csv t2.csv
status 0 $sample $moe --max-steps 20 --no-eval --quiet --trace t2.csv --aux-loss-weight 0
if cmp -s t1.csv t2.csv; then fail "the loss for balance changes nothing"; else pass; fi

# ---- ranks share the experts; the whole weights come out, and load on any
# number of ranks
. "$here/common/mpi.sh"
if [ -e "$1/libdeepspeed_openmpi.so" ] && $openmpi -n 1 true >/dev/null 2>&1; then
    for stage in 0 2 3; do
        timeout 240 $openmpi -n 2 "$program" $sample $pr_moe --ep-world-size 2 --stage $stage \
            --max-steps 10 --no-eval --save b.safetensors >out 2>err
        if [ $? -eq 0 ]; then pass; else fail "stage $stage on two ranks"; fi
        has out '^Experts of layer 2: '
    done
    has b.safetensors 'moe_layer_list.1.deepspeed_moe.experts.deepspeed_experts.3.bias'
    status 0 $sample $pr_moe --load b.safetensors -e 0 --no-eval
    timeout 240 $openmpi -n 2 "$program" $sample $pr_moe --ep-world-size 2 --load b.safetensors \
        -e 0 --no-eval >out 2>err
    if [ $? -eq 0 ]; then pass; else fail "load on two ranks"; fi
fi

# ---- mistakes
status 2 --num-experts 2
has err '\-\-num-experts needs --moe'
status 2 --moe --num-experts 2 x
has err '\-\-num-experts: "x" is not an integer'
status 2 --moe --num-experts 2 --top-k 1 4
has err 'unexpected argument "4"'
status 2 --moe --mlp-type wide
has err '"wide": expected standard or residual'
status 1 $sample --moe --noisy-gate-policy Gauss
has err 'noisy_gate_policy is "Gauss": expected None, Jitter or RSample'
status 1 $sample --moe --num-experts 3 --ep-world-size 2
has err 'num_experts is 3: expected a multiple of ep_size, which is 2'
status 1 $sample --moe --num-experts 2 --ep-world-size 2
has err 'ep_size is 2, but the number of ranks is 1'
status 1 $sample --moe --num-experts 2 --top-k 3
has err 'k is 3: expected 1 to num_experts, which is 2'
status 1 $sample --moe --min-capacity 17
has err '16 tokens, but min_capacity is 17'

finish
