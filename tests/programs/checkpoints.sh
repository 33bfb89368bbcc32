#!/bin/sh
# tests/programs/checkpoints.sh BINARY_DIR: cifar10_deepspeed with checkpoints:
# it resumes where it was, also from the files that a kill -9 leaves, at random
# moments of saving, on 1 rank and on 4 (under mpirun, where there is one).
#
# DS_KILLS=200: how often it is killed on each number of ranks (3).
# SPDX-License-Identifier: MIT
set -u
program=$1/cifar10_deepspeed
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/checks.sh"

sample="--sample --data d --seed 1 --no_eval"
$program $sample --max_steps 0 >out 2>err # unpacks the sample

# ---- a run in two parts is the run in one
status 0 $sample -e 1 --dtype fp16 --trace whole.csv --save whole.safetensors --quiet
status 0 $sample -e 1 --dtype fp16 --max_steps 100 --save_dir c --save_interval 40
has out '^Saved c/global_step40$'
has out '^Saved c/global_step100$'
status 0 $sample --seed 9 -e 1 --dtype fp16 --load_dir c --load_tag global_step80 --trace part.csv --save part.safetensors
has out '^Loaded c/global_step80: 80 steps, epoch 1$'
same whole.safetensors part.safetensors
sed 1,81d whole.csv >a
sed 1d part.csv >b
same a b

# ---- the newest, another stage and dtype; averages
status 0 $sample -e 1 --load_dir c --stage 2 --dtype bf16 --save_dir c2
has out '^Loaded c/global_step100: '
has out '^Saved c2/global_step244$'
status 0 $sample -e 1 --use_ema --save_dir e --max_steps 5
status 0 $sample -e 1 --use_ema --load_dir e --max_steps 6

# ---- between the micro steps of an update it waits for the end of it
config='{"train_batch_size": 32, "gradient_accumulation_steps": 2, "optimizer": {"type": "Adam"}, "checkpoint": {"async": true, "keep_last": 2}}'
status 0 $sample --deepspeed_config "$config" --max_steps 7 --save_dir g --save_interval 2 --trace g.csv
lines g.csv 15 # a step takes two batches
ls g >out
has out '^global_step6$'
has out '^global_step7$'
lines out 3
status 0 $sample --deepspeed_config "$config" --max_steps 8 --load_dir g --trace g.csv --no_eval
has out '^Loaded g/global_step7: 7 steps'
lines g.csv 3

# ---- mistakes
mkdir nowhere
status 1 $sample --load_dir nowhere
has err 'engine_load: nowhere has no checkpoint'
status 1 $sample --load_dir c --load_tag global_step7
has err 'there is no folder c/global_step7'
status 1 $sample --load_tag x
has err 'load-tag needs --load-dir DIR'
status 1 $sample --save_interval 5
has err 'save-interval needs --save-dir DIR'
status 1 $sample --load_dir c --load w.safetensors
has err 'load and --load-dir'
: >file
status 1 $sample --save_dir file --max_steps 2
has err 'save-dir file is a file, expected a folder$'
rm c/global_step100/manifest
status 0 $sample -e 1 --load_dir c --max_steps 90
has err 'global_step100/manifest is missing.*: c/global_step80 is loaded instead'
has out '^Loaded c/global_step80'
# a FIFO without a writer is no file: nothing waits for it
cp -r c fifos && rm fifos/latest fifos/global_step80/*model_states.pt
mkfifo fifos/latest "fifos/global_step80/$(cd c/global_step80 && ls | grep model_states.pt)"
status 0 $sample -e 1 --load_dir fifos --max_steps 50
has err 'read fifos/latest: not a regular file: fifos/global_step40 is loaded instead'
mkfifo fifo.pt
status 1 $sample -e 1 --load fifo.pt --max_steps 1
has err 'fifo.pt: not a regular file'

# ---- killed
behind=false
for name in k0 k1; do # k1: written behind the training
    cat >$name.json <<END
{"train_batch_size": 16, "optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 2},
 "checkpoint": {"keep_last": 3, "async": $behind}}
END
    behind=true
done

# kill_once FOLDER SEED COMMAND...: runs it; when it has saved, and up to 0.1 s
# more, kills it, or for a command that starts ranks one of them; then loads
# what is there
kill_once()
{
    folder=$1 seed=$2
    shift 2
    : >started
    "$@" $sample -e 99 --quiet --save_dir "$folder" --save_interval 1 --deepspeed_config k$((seed % 2)).json >killed 2>&1 </dev/null &
    job=$!
    for i in $(seq 1500); do
        if [ "$folder/latest" -nt started ]; then break; fi
        sleep 0.02
    done
    sleep "$(awk -v s="$seed" 'BEGIN { srand(s); printf "%.4f", 0.1 * rand() }')"
    kill -9 "$(pgrep -P $job | head -n $((seed % 4 + 1)) | tail -n 1 | grep . || echo $job)"
    wait $job 2>>killed
    $program $sample --load_dir "$folder" --epochs 0 >out 2>err </dev/null
    if [ $? -eq 0 ] && grep -q "^Loaded $folder/" out && ! grep -q 'is loaded instead' err; then
        pass
    else
        fail "killed ($seed): what is left does not load"
    fi
}

few=3
if grep -q '^DS_SANITIZE[^=]*=.' "$1/CMakeCache.txt"; then few=1; fi # all takes longer there
kills=${DS_KILLS:-$few}
. "$here/common/mpi.sh"
for i in $(seq "$kills"); do kill_once k1 "$i" "$program"; done
TMPDIR=$work && export TMPDIR # what Open MPI leaves goes too
if command -v mpirun.openmpi >/dev/null && [ -f "$1/libdeepspeed_openmpi.so" ]; then
    for i in $(seq "$kills"); do kill_once k4 "$i" mpirun.openmpi -np 4 "$program"; done
else
    echo "4 ranks are left out: there is no mpirun.openmpi"
fi
finish
