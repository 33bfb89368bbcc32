#!/bin/sh
# tests/programs/zero_to_fp32.sh BINARY_DIR: weights from checkpoints of every
# stage, of 1 and 2 ranks, of deepspeed.c and of DeepSpeed; beside what the
# program saved, and with torch and DeepSpeed in $DS_PEER_PYTHON beside their
# script.
# SPDX-License-Identifier: MIT
set -u
bin=$(cd "$1" && pwd)
program=$bin/zero_to_fp32
here=$(cd "$(dirname "$0")" && pwd)
golden=$here/../golden/pth
. "$here/common/checks.sh"

peer=${DS_PEER_PYTHON:-python3}
"$peer" "$here/common/compare_fp32.py" >peer 2>&1 || peer=
[ "$peer" ] || echo "torch or DeepSpeed is not here: nothing is compared with its script"

# beside FOLDER FILE: FILE is what DeepSpeed's own script makes of FOLDER; it
# knows shards only
beside()
{
    [ "$peer" ] || return 0
    "$peer" "$here/common/compare_fp32.py" "$@" >out 2>err
    if [ $? -eq 0 ]; then pass; else fail "$1 beside DeepSpeed's script"; fi
}

. "$here/common/mpi.sh"
mpirun="$openmpi -np 2"
TMPDIR=$work && export TMPDIR # what Open MPI leaves goes too
if ! command -v mpirun.openmpi >/dev/null || [ ! -f "$bin/libdeepspeed_openmpi.so" ]; then mpirun=; fi
train() { # FOLDER OPTION...
    folder=$1
    shift
    $start "$bin/cifar10_deepspeed" --sample --data d --seed 1 --no_eval --quiet --max_steps 3 --save_dir "$folder" \
        --save "$folder.safetensors" "$@" >out 2>err </dev/null || fail "training for $folder"
}

# ---- every stage: what the program itself saved; with 16 bits the masters,
# which stages do not change
start=
train s0
train s1 --stage 1
start=$mpirun
for stage in 2 3; do train s$stage --stage $stage; done
for folder in s0 s1 s2 s3; do
    status 0 $folder $folder.out.safetensors
    has out '^Reconstructed .*fp32 state dict with 10 params 62006 elements$'
    same $folder.out.safetensors $folder.safetensors
done
has out "^Processing zero checkpoint 's3/global_step3'\$"
has out "^Detected checkpoint of type zero stage 3, world_size: [12]$"
start=$mpirun
for stage in 0 2 3; do train b$stage --dtype bf16 --stage $stage; done
train h0 --dtype fp16
train h1 --dtype fp16 --stage 1
for folder in b0 b2 b3 h0 h1; do status 0 $folder $folder.out; done
same b0.out/pytorch_model.bin b2.out/pytorch_model.bin
same b0.out/pytorch_model.bin b3.out/pytorch_model.bin
same h0.out/pytorch_model.bin h1.out/pytorch_model.bin
for folder in s1 s2 b2 h1; do
    "$program" $folder $folder.pth >out 2>err
    beside $folder $folder.pth
done

# leaves FILE: the path, shape and sum of each tensor but moments
leaves()
{
    "$bin/ds_show" --json "$1" | grep -v '"/[^"]*\.\(exp_avg\|exp_avg_sq\|step\)"' |
        sed -n 's/.*"path": \("[^"]*"\).*"shape": \(.*\), "sum": \([-0-9.e]*\),.*/\1 \2 \3/p' | sort
}

# ---- experts come from the files that they are in
train m --moe --num_experts 2 --stage 2 ${mpirun:+--ep_world_size 2}
status 0 m m.out.pth
leaves m.safetensors >a
leaves m.out.pth >b
same a b
lines a 15

# ---- DeepSpeed's folders
status 0 "$golden/ds_checkpoint_zero2_w2" z2 -t global_step3 --debug
has out '^Parsing checkpoint created by deepspeed==0.19.8$'
has out '^0.weight full shape: \[4, 5\] unpartitioned numel 20$'
has out '^Reconstructed fp32 state dict with 4 params 39 elements$'
beside "$golden/ds_checkpoint_zero2_w2" z2/pytorch_model.bin global_step3
status 0 "$golden/ds_checkpoint_zero0/global_step3" z0.pth
for folder in "$golden"/../deepspeed/*/; do
    tag=
    [ -f "$folder/latest" ] || tag="-t $(cat "$folder/latest_universal")"
    status 0 "$folder" ds.pth $tag
    leaves ds.pth >a
    leaves "$folder/expected.pth" >b
    same a b
done

# ---- several files
status 0 s0 many --max_shard_size 100KB --safe_serialization
ls many >out
has out '^model.safetensors.index.json$'
has out '^model-00001-of-0000[0-9].safetensors$'
leaves many/model.safetensors.index.json >a
leaves s0.safetensors >b
same a b

# ---- mistakes
status 1 nowhere o
has err "Directory 'nowhere' doesn't exist"
status 1 d o
has err "Unable to find 'latest' file at d/latest"
status 1 s0 o -t nothing
has err "Directory 's0/nothing' doesn't exist"
status 2 s0
has err 'expected CHECKPOINT_DIR and OUT'
status 2 s0 o --max-shard-size 5XB
has err 'max_shard_size 5XB: expected a size such as 5GB'
: >file
status 1 s0 file
has err 'file'
if [ "$mpirun" ]; then
    mv s3/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt s2/global_step3/zero_pp_rank_2_mp_rank_00_optim_states.pt
    status 1 s2 o
    has err "Expected 2 of '\*_optim_states.pt' under 's2/global_step3' but found 3 files"
    status 1 s3 o
    has err 'zero_pp_rank_1_mp_rank_00_optim_states.pt: No such file'
fi

# ---- damage: what the manifest says is compared before anything is merged
shard=zero_pp_rank_0_mp_rank_00_optim_states.pt
start=
train s1later --stage 1 --seed 2
cp -r s1 s1mixed
cp s1later/global_step3/$shard s1mixed/global_step3/$shard
status 1 s1mixed o
has err "$shard is damaged: its check sum is"
none o
cp -r s1 s1spoilt
printf X | dd of=s1spoilt/global_step3/$shard bs=1 seek=300000 conv=notrunc 2>err
status 1 s1spoilt o
has err "$shard is damaged: its check sum is"
cp -r s1 s1listless
rm s1listless/global_step3/manifest
status 1 s1listless o
has err 'manifest is missing: the checkpoint was not copied whole'
cp -r "$golden/ds_checkpoint_zero2_w2" z2spoilt
other=z2spoilt/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt
at=$(grep -abo 'data/0FB' $other | head -n 1 | cut -d: -f1)
printf X | dd of=$other bs=1 seek=$((at + 74)) conv=notrunc 2>err
status 1 z2spoilt o -t global_step3
has err "$other: entry .*data/0 is damaged: its CRC is"
truncate -s 100000 s1/global_step3/$shard
status 1 s1 o
has err "$shard has 100000 bytes: [0-9]* were written"
lines err 1
none o
status 0 --help
has out 'exclude_frozen_parameters'
finish
