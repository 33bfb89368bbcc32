#!/bin/sh
# tests/programs/patience.sh BINARY_DIR: --patience of the CIFAR-10 programs and
# of ds_lm: a training ends when it does not improve, and its best weights are
# those that are saved and tested.
# SPDX-License-Identifier: MIT
set -u
bin=$(cd "$1" && pwd)
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"

sample="--sample --data d --samples 200 --seed 1"
# ends PROGRAM: the best line is that of the largest accuracy, N epochs before
# the last one; the test's line is that accuracy
ends()
{
    awk -v patience="$1" '
        /^epoch [0-9]+: / { n++; x = $3; if (n == 1 || x > best) { best = x; at = n } }
        /^The best of / { said = 1; if ($4 != n || $8 + 0 != at || $9 != best) bad = 1 }
        /^Accuracy of the network/ { if ($(NF - 1) != int(best)) bad = 1 }
        END { exit !(said && !bad && n - at == patience) }' out
    if [ $? -eq 0 ]; then pass; else fail "$2"; fi
}

program=$bin/cifar10_tutorial
status 0 $sample --epochs 30 --patience 2 --lr 0.02 --save t.pth
ends 2 tutorial
status 2 $sample --patience 0
status 1 $sample --patience 2 --no_eval
has err 'patience tests after each epoch of a training: leave out --no-eval'
status 1 $sample --patience 2 --eval --load t.pth
has err 'leave out --eval'
program=$bin/cifar10_ddp
status 0 $sample --epochs 30 --patience 1 --lr 0.02
ends 1 ddp
status 1 $sample --patience 2 --no_eval
has err 'leave out --no-eval'
program=$bin/cifar10_deepspeed
status 0 $sample --epochs 30 --patience 1 --stage 3 --dtype bf16 --save e.pth
ends 1 deepspeed
accuracy=$(grep '^Accuracy of the network' out)
program=$bin/cifar10_tutorial
program=$bin/cifar10_deepspeed
status 0 $sample --load e.pth --dtype bf16 --max_steps 0
[ "$(grep '^Accuracy of the network' out)" = "$accuracy" ] && pass || fail "the saved weights are not the tested ones: $accuracy"
# a checkpoint has the best weights so far: of epoch 2, which is step 26
again="$sample --epochs 8 --patience 2 --stage 1"
status 0 $again --save_dir ck --save_interval 10 --save e.pth
has out '^The best of 4 epochs was epoch 2'
best=$(grep '^The best of' out)
rm -r ck/global_step[45]*
status 0 $again --load_dir ck --save f.pth
has out '^Loaded ck/global_step30'
has out "^$best\$"
cmp -s e.pth f.pth && pass || fail "other weights after resuming"
status 1 $sample --patience 2 --use_ema
has err 'leave out --use-ema'

# ---- a language model that learns a short text by heart
program=$bin/ds_lm
awk 'BEGIN { for (i = 0; i < 400; i++) print "line " i * 7919 % 1000 " of the text" }' >text
echo '{"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 300}' >config.json
status 0 tokenizer --data text --vocab-size 300 --output tokenizer.json
lm="train --model config.json --tokenizer tokenizer.json --data text --context 16 --seed 1 --log-interval 1000"
status 0 $lm --output m --epochs 40 --lr 0.5 --warmup 0 --eval-interval 3 --patience 2
has out '^the best of [0-9]* evaluations was that of step [0-9]*, loss '
best=$(sed -n 's/^evaluation  loss \([0-9.]*\) .*/\1/p' out | sort -n | head -n 1)
has out "loss $best: its weights are taken\$"
[ "$(grep -c '^evaluation' out)" -ge 3 ] && pass || fail "evaluations"
[ "$(sed -n 's/^evaluation  loss \([0-9.]*\) .*/\1/p' out | tail -n 3 | sort -n | head -n 1)" = "$best" ] && pass ||
    fail "it did not end after 2 evaluations"
again="$lm --epochs 40 --lr 0.5 --warmup 0 --eval-interval 3 --patience 2"
status 0 $again --output m --save-dir ck_lm --save-interval 1
best=$(grep '^the best of' out)
rm -r "$(ls -d ck_lm/global_step* | sort -t p -k 2 -n | tail -n 1)"
status 0 $again --output n --load-dir ck_lm
has out "^$best\$"
cmp -s m/model.safetensors n/model.safetensors && pass || fail "other weights after resuming"
status 1 $lm --output m --patience 2
has err 'patience needs evaluations: give --eval-interval N'
finish
