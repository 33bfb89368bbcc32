#!/bin/sh
# tests/programs/estimate_memory.sh BINARY_DIR: deepspeed --estimate_memory: the
# table, which fits 60 columns, the JSON, what is refused.
# SPDX-License-Identifier: MIT
set -u
program=$(cd "$1" && pwd)/deepspeed
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"

cat >config.json <<'END'
{"train_batch_size": 16, "fp16": {"enabled": true}, "optimizer": {"type": "Adam"},
 "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000}}
END

# ---- 2 P + (2 + 12) P / 4; two buckets and the largest gradient
status 0 --estimate_memory config.json --params 1000000 --world_size 4
has out '1000000 parameters, 4 ranks, float16, ZeRO stage 2$'
has out 'model state *5500000 *5.5 MB'
has out '^    moments, and what master weights add'
if awk 'length > 60' out | grep -q .; then fail "a line has more than 60 columns"; else pass; fi
has out 'peak *5506000'
lines err 0
status 0 --estimate-memory config.json --params 1000000 --world-size 4 --json --largest 2000 --activations 3000
has out '"parameters": 2000000, "gradients": 500000, "optimizer": 3000000, "model_state": 5500000,'
has out '"peak": 5515000}'
lines out 1

# ---- what is refused
status 2 --estimate_memory config.json
has err 'give --params N'
status 2 --estimate_memory config.json --params many
has err 'params many: expected a number'
status 2 --estimate_memory config.json --params 100 --largest 101
has err 'no parameter larger than all 100'
status 2 --estimate_memory no.json --params 100
has err 'No such file'
status 2 --estimate_memory config.json --params 100 --world_size 3
has err '16 is not 5'
"$program" --estimate_memory config.json --params 100 >/dev/full 2>err
if [ $? -eq 1 ]; then pass; else fail "a full disk is no failure"; fi
finish
