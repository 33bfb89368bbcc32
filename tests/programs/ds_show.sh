#!/bin/sh
# tests/programs/ds_show.sh BINARY_DIR: ds_show on good files, broken ones and
# folders; its output is JSON that says what PyTorch says of the same files.
# SPDX-License-Identifier: MIT
set -u
bin=$(cd "$1" && pwd)
program=$bin/ds_show
golden=$(cd "$(dirname "$0")/../golden/pth" && pwd)
compare=$(cd "$(dirname "$0")" && pwd)/common/compare_show.py
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"

# ---- files, beside what torch.load finds in them
python3 "$compare" "$program" "$golden" >out 2>err
if [ $? -eq 0 ]; then pass; else fail 'what files hold'; fi
has out '^27 files$'

status 0 --json "$golden/net.pth"
has out '{"path": "/conv1.weight", "dtype": "float32", "shape": \[6, 3, 5, 5\], "sum": [-0-9.]*, "first_values": \['
lines err 0
mv out whole
status 0 --json --no-sums "$golden/net.pth"
has_not out '"sum"'

# ---- names that a terminal would act on
printf '\100\0\0\0\0\0\0\0{"a\\u001b[31m":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}\0\0\0\0' >esc.safetensors
status 0 esc.safetensors
has out '^  a?\[31m  float32  \[1\]$'

# ---- objects that are not known: only if they are wanted
objects=$(dirname "$golden")/objects
status 0 --json "$objects/known.pth"
has out '{"path": "/cplx", "value": "(1.0, 2.0)", "class": "complex"}'
has out '{"path": "/dt", "value": "2024-05-01T12:34:56.000789", "class": "datetime"}'
status 2 --json "$objects/unknown.pth"
has err "it wants Python's zoo.Cfg, .*nothing was run.*ds_show --objects"
lines err 1
status 0 --json --objects "$objects/unknown.pth"
has out '{"path": "/dc", "object": "zoo.Cfg"}'
has out '{"path": "/dc/lr", "value": 0.1, "class": "float"}'
has out '{"path": "/ekey/zoo.Color(1)", "value": 1, "class": "int"}'
has out '{"path": "/model_state_dict/bias", "dtype": "float32", "shape": \[2\]'
status 0 --json --objects "$golden/whole_module.pth"
has out '"path": "/.*weight", "dtype": "float32"'
if python3 -c 'import json; json.load(open("out"))'; then pass; else fail "not JSON"; fi

# ---- broken files: status 2, one line, nothing on stdout
for file in truncated.pth not_a_checkpoint.pth whole_module.pth wrong_crc.pth overlap.safetensors short_data.safetensors \
    header_too_long.safetensors; do
    status 2 "$golden/$file"
    lines err 1
    has err "$file"
    lines out 0
done
status 2 nothing.pth
has err 'nothing.pth: No such file'
: >empty.pth
status 2 empty.pth
has err 'the file is empty'
status 2
has err 'expected FILE or FOLDER'
status 2 one two
status 2 --tag x "$golden/net.pth"
has err 'is no folder of checkpoints'
"$program" "$golden/net.pth" >/dev/full 2>err
if [ $? -eq 1 ]; then pass; else fail "a full disk is no failure"; fi

# ---- folders: DeepSpeed's and ours
status 0 --json "$golden/ds_checkpoint_zero2_w2"
has out '"name": "global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt"'
has out '"path": "/param_shapes/0/2.bias", "value": "torch.Size(\[3\])", "class": "Size"'
"$bin/cifar10_deepspeed" --sample --data d --max_steps 1 --no_eval --quiet --save_dir c --stage 1 >out 2>err
"$bin/cifar10_deepspeed" --sample --data d --max_steps 2 --no_eval --quiet --load_dir c --save_dir c >out 2>err
status 0 --json c
has out '"name": "latest", "bytes": 12, "text": "global_step2"}'
has out '"name": "global_step1/rank_0_states.pt"'
if python3 -c 'import json; json.load(open("out"))'; then pass; else fail "not JSON"; fi
status 0 --json c --tag global_step2
has_not out global_step1
status 2 c -t global_step9
has err 'there is no file in it'
truncate -s 2000 c/global_step1/mp_rank_00_model_states.pt
status 2 c
has err 'global_step1/mp_rank_00_model_states.pt: .*cut off'
lines out 0
status 0 --help
has out 'FILE|FOLDER'

# ---- short: a line for each tensor or value, or for each file of a folder
status 0 "$golden/net.pth"
has out 'net.pth: 10 tensors, 62006 elements, 248.0 KB$'
has out '^  conv1.weight  float32  \[6, 3, 5, 5\]$'
lines out 11
status 0 "$golden/checkpoint_adam.pth"
has out '^  optimizer_state_dict/param_groups/0/betas *\[0.9, 0.999\]$'
has out '^  epoch  *[0-9]*$'
status 0 --objects "$objects/unknown.pth"
has out '^  dc  *zoo.Cfg(...)$'
has out '^  dc/lr  *0.1$'
status 0 "$golden/good.safetensors"
status 2 "$golden/wrong_crc.pth"
lines out 0
status 2 --no_sums "$golden/net.pth"
has err 'no_sums belongs to --json'
rm -r c/global_step1
status 0 c
has out '^c: 4 files, [0-9.]* KB$'
has out '^  latest  *12 B  global_step2$'
has out '^  global_step2/mp_rank_00_model_states.pt  *[0-9.]* KB  40 tensors, 186028 elements, 744.1 KB, [0-9]* values$'
has out '^  global_step2/manifest  *[0-9]* B$'
finish
