#!/bin/sh
# tests/programs/check_config.sh BINARY_DIR: deepspeed --check_config: what is
# on stdout, what on stderr, and the status.
# SPDX-License-Identifier: MIT
set -u
program=$(cd "$1" && pwd)/deepspeed
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"
unset DS_CONFIG_UNKNOWN

echo '{"train_batch_size": 16, "zero_optimization": {"stage": 2}}' >good.json
printf '{\n "train_batch_size": 16,\n "zero_optimization": {"reduce_bukcet_size": 5e8}\n}\n' >bad.json

# ---- what is resolved is JSON on stdout, and resolves to itself
status 0 --check_config good.json --world_size 4
has out '"train_micro_batch_size_per_gpu": 4,'
lines err 0
status 0 --check-config=good.json --world-size=2
has out '"train_micro_batch_size_per_gpu": 8,'
mv out resolved.json
status 0 --check_config resolved.json --world_size 2
same out resolved.json

# ---- so are warnings of a schedule on stderr
echo '{"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR",
 "params": {"total_num_steps": 5, "warmup_num_steps": 10}}}' >short.json
status 0 --check_config short.json
has err '^config: short.json: total_num_steps 5 is less than warmup_num_steps 10$'
lines err 1
lines out "$(grep -c '^[{} ]' out)"

# ---- what is wrong is on stderr
status 2 --check_config bad.json
has err 'bad.json: line 3: "zero_optimization.reduce_bukcet_size": did you mean "reduce_bucket_size"?'
lines out 0
sed 's/"zero.*/"optimizer": {"type": "Adam", "params": {\n  "lr": -1}}/' bad.json >worse.json
status 2 --check_config worse.json
has err 'config: worse.json: line 4: optimizer.params.lr is -1: expected a number, 0 or more'
sed 's/"zero.*/"scheduler": {\n  "type": "WarmupLr"}/' bad.json >worse.json
status 2 --check_config worse.json
has err 'config: worse.json: line 4: scheduler.type is "WarmupLr": did you mean "WarmupLR"?'
DS_CONFIG_UNKNOWN=warn
export DS_CONFIG_UNKNOWN
status 0 --check_config bad.json
has err 'unknown keys are left out: "zero_optimization.reduce_bukcet_size"'
unset DS_CONFIG_UNKNOWN
status 2 --check_config no.json
has err 'No such file'
status 2 --check_config good.json --world_size 3
has err '16 is not 5'
status 2 --check_config good.json --world_size 0
has err '--world_size 0: expected'
status 2 --check_config good.json --world_size 1.5
status 2 --check_config
"$program" --check_config good.json >/dev/full 2>err
if [ $? -eq 1 ]; then pass; else fail "a full disk is no failure"; fi

# ---- "auto" as transformers' Trainer fills it
echo '{"train_batch_size": "auto", "optimizer": {"type": "Adam", "params": {"lr": "auto"}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}}' >auto.json
status 0 --check_config auto.json
has err '"auto" of optimizer.params.lr, scheduler.params.total_num_steps: a program fills it'
has err '^deepspeed: max_steps is 1000000 here; --auto max_steps=N sets it$'
has out '"train_batch_size": 8,'
lines err 2
echo '{"train_batch_size": 4, "gradient_clipping": "auto", "fp16": {"enabled": "auto"}}' >clipping.json
status 0 --check_config clipping.json
has out '"gradient_clipping": 1.0,'
has err '"auto" of gradient_clipping, fp16.enabled: a program fills it (ds_lm, .auto_values)'
lines err 1
echo '{"train_batch_size": 4, "gradient_clipping": "auto", "prescale_gradients": "auto"}' >wrong.json
status 2 --check_config wrong.json
has err '"prescale_gradients": "auto" is for trainers'
lines err 1
status 2 --check_config auto.json --auto
has err 'line 2: "scheduler.params.total_num_steps": "auto" needs the max_steps of the program'
status 0 --check_config auto.json --auto max_steps=500 learning_rate=2e-3
has out '"train_batch_size": 8,'
has out '"total_num_steps": 500'
has out '"lr": 0.002'
status 2 --check_config auto.json --auto learnin_rate=1
has err 'did you mean "learning_rate"?'
status 2 --auto max_steps=500
has err '\-\-auto belongs to --check_config'

# ---- the rest
status 0 --help
has out '--check_config=FILE'
status 0 --version
has out 'deepspeed.c 0\.'
status 2
has err 'which program is to be started'
for option in --check_confg --check-confg=x; do
    status 2 $option good.json
    has err "there is no option ${option%=*}; did you mean $(echo ${option%=*} | sed s/confg/config/)?"
    lines err 1
done
status 0 --estimate_memory good.json --params 1e9
has out '^1000000000 parameters'
status 2 --check_config good.json train
has err 'starts nothing, so what is train?'
finish
