#!/bin/sh
# tests/programs/ds_to_universal.sh BINARY_DIR: checkpoints as universal ones, as
# a user makes and loads them. tests/engine/elastic.c, resume.c and
# load_deepspeed.c compare their values.
# SPDX-License-Identifier: MIT
set -u
bin=$(cd "$1" && pwd)
program=$bin/ds_to_universal
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/checks.sh"

train() { # OPTION...
    "$bin/cifar10_deepspeed" --sample --data d --seed 1 --no_eval --quiet "$@" >out 2>err </dev/null || fail "training $*"
}
universal='{"train_batch_size": 4, "optimizer": {"type": "Adam"}, "checkpoint": {"load_universal": true}, "zero_optimization": {"stage": 2}}'
same_but='{"train_batch_size": 4, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 2}}'

# ---- a run continues from it in another stage as from the checkpoint itself
train --max_steps 3 --stage 3 --save_dir c
status 0 --input_folder c/global_step3 --output_folder c/global_step3_universal
has out '^Convert DeepSpeed Checkpoint to Universal Checkpoint$'
has out '^\*\*\* Done!$'
lines err 0
[ "$(cat c/latest_universal)" = global_step3_universal ] && pass || fail "latest_universal"
(cd c/global_step3_universal && find . -type f | sort) >files
for file in zero/fc3.bias/fp32.pt zero/fc3.bias/exp_avg.pt zero/fc3.bias/exp_avg_sq.pt zero/fc3.bias/step.pt \
    zero/optimizer_state.pt mp_rank_00_model_states.pt zero_pp_rank_0_mp_rank_00_model_states.pt rank_0_states.pt; do
    has files "^./$file\$"
done
lines files 44
train --max_steps 6 --load_dir c --deepspeed_config "$same_but" --save a.safetensors
train --max_steps 6 --load_dir c --deepspeed_config "$universal" --save b.safetensors
same a.safetensors b.safetensors

# ---- again from the result, which is the same; other options
status 0 --input-folder c/global_step3_universal/ --output-folder again/ --num_extract_workers 1 --num-merge-workers 3 \
    --keep_temp_folder --inject_missing_state
has out 'no temporary folder to keep'
for file in fp32 exp_avg exp_avg_sq step; do
    same "c/global_step3_universal/zero/fc1.weight/$file.pt" "again/zero/fc1.weight/$file.pt"
done
[ "$(cat latest_universal)" = again ] && pass || fail "latest_universal of again"
"$bin/ds_show" again/mp_rank_00_model_states.pt >out 2>err
has out universal_checkpoint_version
"$bin/zero_to_fp32" . w.safetensors -t again >out 2>err || fail "zero_to_fp32 of a universal checkpoint"
"$bin/zero_to_fp32" c v.safetensors >out 2>err
same w.safetensors v.safetensors

# ---- the checkpoint that is saved later is the one that `latest` names
train --max_steps 4 --load_dir c --save_dir c --deepspeed_config "$same_but"
[ "$(cat c/latest)" = global_step4 ] && pass || fail "latest"

# ---- a job that was started again continues from what it has saved since, not from the universal one again
mv c/global_step3_universal away
TORCHELASTIC_RESTART_COUNT=1 && export TORCHELASTIC_RESTART_COUNT
train --max_steps 6 --load_dir c --deepspeed_config "$universal" --save e.safetensors
same a.safetensors e.safetensors
TORCHELASTIC_RESTART_COUNT=0
"$bin/cifar10_deepspeed" --sample --data d --no_eval --quiet --load_dir c --deepspeed_config "$universal" >out 2>err &&
    fail "the first start loads what latest_universal names" || pass
unset TORCHELASTIC_RESTART_COUNT
mv away c/global_step3_universal

# ---- mistakes lose nothing
status 1 --input_folder nowhere --output_folder o
has err "Directory 'nowhere' doesn't exist"
status 1 --input_folder c/global_step3 --output_folder c/global_step3_universal
has err 'global_step3_universal is there already: remove it'
status 1 --input_folder c --output_folder o
has err '^ds_to_universal: c is a folder of checkpoints, expected one of them: the newest is c/global_step'
none o
mkdir hollow
status 1 --input_folder hollow --output_folder o
has err 'hollow/mp_rank_00_model_states.pt: No such file'
none o
status 1 --input_folder c/global_step3 --output_folder /proc/universal
has err '^ds_to_universal: mkdir /proc/universal: No such file or directory$'
status 2 --input_folder c/global_step3
has err 'expected --input_folder DIR and --output_folder DIR'
status 2 --input_folder c/global_step3 --output_folder o --num_merge_workers 0
has err 'num_merge_workers 0: expected 1 to 64'
status 2 c o
has err 'expected options only'
cp -r c/global_step3 spoilt
truncate -s 1000 spoilt/zero_pp_rank_0_mp_rank_00_optim_states.pt
status 1 --input_folder spoilt --output_folder o
has err 'optim_states.pt has 1000 bytes'
none o
none .saving-o
cp -r c/global_step3 parallel
: >parallel/zero_pp_rank_0_mp_rank_01_model_states.pt
status 1 --input_folder parallel --output_folder o
has err 'tensor- or pipeline-parallel'
none o
program=$bin/cifar10_deepspeed
sample="--sample --data d --no_eval --quiet --max_steps 4"
status 1 $sample --load_dir c --load_tag global_step3 --deepspeed_config "$universal"
has err 'c/global_step3 is no universal checkpoint'
rm c/latest_universal
status 1 $sample --load_dir c --deepspeed_config "$universal"
has err 'c/latest_universal'
status 0 $sample --load_dir . --load_tag again --deepspeed_config "$universal"
printf X | dd of=again/zero/fc1.weight/exp_avg.pt bs=1 seek=9000 conv=notrunc 2>err
status 1 $sample --load_dir . --deepspeed_config "$universal"
has err 'again/zero/fc1.weight/exp_avg.pt: .*CRC'
rm again/zero/fc1.weight/exp_avg.pt
status 1 $sample --load_dir . --deepspeed_config "$universal"
has err 'has no exp_avg of fc1.weight'
rm -r again/zero/fc1.weight
status 1 $sample --load_dir . --deepspeed_config "$universal"
has err 'zero/fc1.weight/fp32.pt is missing: the checkpoint was not copied whole'
program=$bin/ds_to_universal
status 0 --help
has out 'inject_missing_state'
finish
