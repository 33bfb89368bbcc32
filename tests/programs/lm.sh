#!/bin/sh
# tests/programs/lm.sh BINARY_DIR: ds_lm as a user runs it: the commands of
# docs/language-models.md on a small model and a small text; "auto", resuming,
# bad input.
# SPDX-License-Identifier: MIT
set -u
binary=$1
program=$binary/ds_lm
root=$(cd "$(dirname "$0")/../.." && pwd)
. "$root/tests/programs/common/checks.sh"

# loss_is_near FILE: out and FILE have the same line, and losses within rounding
loss_is_near()
{
    [ "$(sed 's/^loss [^ ]*  perplexity [^ ]*//' out)" = "$(sed 's/^loss [^ ]*  perplexity [^ ]*//' "$1")" ] &&
        awk '{ loss[NR] = $2 } END { d = loss[1] - loss[2]; exit !(d < 2e-4 && d > -2e-4) }' out "$1"
}

head -c 20000 "$root/assets/devils_dictionary.txt" >book.txt

# ---- a tokenizer and a new model
status 0 tokenizer --data book.txt --vocab-size 300 --output new
has out '^saved new/tokenizer.json$'
cat >new/config.json <<'EOF'
{"architectures": ["LlamaForCausalLM"], "vocab_size": 300, "hidden_size": 16,
 "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
 "num_key_value_heads": 1, "bos_token_id": 0, "eos_token_id": 0}
EOF
status 0 train --model new/config.json --tokenizer new/tokenizer.json --data book.txt --output mine \
    --context 32 --batch 4 --max-steps 6 --log-interval 2 --sample-interval 6 --max-new-tokens 4
has out '^LlamaForCausalLM: 0.01 million parameters'
has out '^step 6/6  loss [45]\.[0-9]*  lr .* tokens/s  left 0:00$'
has out '^evaluation  loss [0-9.]*  perplexity [0-9.]*$'
has out '^saved mine$'

# ---- a tokenizer's folder; the output has its file
status 0 train --model new/config.json --tokenizer new --data book.txt --output folder --context 32 \
    --batch 4 --max-steps 2
cmp -s new/tokenizer.json folder/tokenizer.json || fail "the output has no tokenizer"

# ---- the folder that came out
status 0 eval --model mine --data book.txt --context 32
has out '^loss [45]\.[0-9]*  perplexity'
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 5 --greedy
has out '^ABILITY'
cp out first
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 5 --greedy
cmp -s out first || fail "greedy text differs from run to run"
[ ! -e mine/generation_config.json ] || fail "a new model has a generation_config.json"
echo '{"guidance_scale": 1.5}' >mine/generation_config.json
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 5 --greedy
has err '\[WARNING\].*without effect: guidance_scale$'
cmp -s out first || fail "stdout has more than the text"
echo '{"suppress_tokens": [1, "a"]}' >mine/generation_config.json
status 1 generate --model mine --prompt 'ABILITY' --max-new-tokens 5 --greedy
has err '^ds_lm: mine/generation_config.json: suppress_tokens is \[1,"a"\]: expected a list of token ids$'
[ ! -s out ] || fail "text in spite of a wrong value"
echo '{"forced_eos_token_id": 0, "stop_strings": "ABI"}' >mine/generation_config.json
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 1 --greedy
[ "$(cat out)" = ABILITY ] || fail "the last token is not the one that is forced"
rm mine/generation_config.json
for tokens in 0 3; do
    status 0 generate --model mine --prompt 'ABILITY ABILITY' --max-new-tokens 40 --prompt_lookup_num_tokens $tokens
    [ $tokens -ne 0 ] || cp out first
done
cmp -s out first || fail "prompt lookup changes the text"
status 0 generate --model mine --prompt 'ABILITY ABILITY' --max-new-tokens 40 --num_assistant_tokens 5
cmp -s out first || fail "drafts of 8 bits change the text"

# ---- stdout that is closed: its lines do not go into files that are written meanwhile
"$program" train --model mine --data book.txt --output closed --context 32 --batch 4 --max-steps 2 \
    --log-interval 1 --tensorboard events >&- 2>err </dev/null
if [ $? -eq 1 ]; then pass; else fail "ds_lm without stdout"; fi
has err '^ds_lm: stdout: Bad file descriptor$'
if grep -q 'step 1/2' -r events; then fail "what ds_lm prints is in a file of events"; else pass; fi

status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 40 --seed 3
stop=$(sed '1s/^ABILITY//' out | LC_ALL=C grep -ao '[a-z][a-z]' | head -n 1)
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 40 --seed 3 --stop-strings 'no such' --stop-strings "$stop"
case $(sed '1s/^ABILITY//' out) in
*"$stop"?????*) fail "the text continues behind a stop string" ;;
*"$stop"*) pass ;;
*) fail "no stop string in the text" ;;
esac

# ---- beams: one text, or several below their numbers and scores; also of generation_config.json
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 20 --num-beams 4
cp out beams
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 20 --num_beams 4 --greedy --early-stopping false
cmp -s out beams || fail "beams are drawn without being asked for"
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 20 --num-beams 4 --num-return-sequences 2 \
    --length-penalty -1 --early-stopping never
[ "$(grep -c '^ABILITY' out)" -eq 2 ] || fail "not two texts"
has out '^\[1 of 2, score -[0-9.]*\]$'
has out '^\[2 of 2, score -[0-9.]*\]$'
echo '{"num_beams": 4, "early_stopping": false}' >mine/generation_config.json
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 20
cmp -s out beams || fail "beams of generation_config.json are others"
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 20 --temperature 2 --seed 4
cmp -s out beams && fail "beams are not drawn"
status 0 train --model mine --data book.txt --output sampled --context 32 --batch 4 --max-steps 1 \
    --sample-interval 1 --max-new-tokens 3 --no-repeat-ngram-size 2
has out '^sample of step 1: '
rm mine/generation_config.json
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 6 --num-return-sequences 3 --seed 3
[ "$(grep -c '^\[[123] of 3\]$' out)" -eq 3 ] || fail "not three texts that are drawn"
stop=$(sed '1s/^ABILITY//' beams | LC_ALL=C grep -ao '[a-z][a-z]' | head -n 1)
status 0 generate --model mine --prompt 'ABILITY' --max-new-tokens 20 --num-beams 2 --stop-strings "$stop"
case $(sed '1s/^ABILITY//' out) in
*"$stop"?????*) fail "a beam continues behind a stop string" ;;
*) pass ;;
esac
status 1 generate --model mine --prompt A --greedy --num-return-sequences 2
has err '^ds_lm: num_return_sequences is 2, and .*: give --num-beams 2, or leave out --greedy$'
status 2 generate --model mine --prompt A --num-beams 2 --num-return-sequences 3
has err '^ds_lm: --num-return-sequences: 3: expected at most --num-beams, 2$'
status 1 generate --model mine --prompt A --length-penalty 2
has err '^ds_lm: --length-penalty is for beams: give --num-beams 2 or more$'
status 2 generate --model mine --prompt A --num-beams 2 --early-stopping maybe
has err '^ds_lm: --early-stopping: "maybe": expected true, false or never$'
status 1 generate --model mine --prompt A --num-beams 2 --num-assistant-tokens 3
has err '^ds_lm: --num-assistant-tokens: beams have no drafts: leave it out, or give --num-beams 1$'

# ---- chats: the text of the template is the prompt, and stdout has the answer alone
status 1 generate --model mine --chat --prompt hi
has err '^ds_lm: mine has no template of chats: neither chat_template.jinja'
cat >mine/chat_template.jinja <<'EOF'
{%- for m in messages %}
{%- if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}
{{- '[' + m.role + '] ' + m.content | trim + ' ' }}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}
EOF
status 0 generate --model mine --chat --system 'Be kind.' --prompt ' ABILITY ' --max-new-tokens 5 --greedy
printf '[system] Be kind. [user] ABILITY [assistant]' >chat.txt
cat out >>chat.txt
status 0 generate --model mine --prompt '[system] Be kind. [user] ABILITY [assistant]' --max-new-tokens 5 --greedy
cmp -s out chat.txt || fail "--chat has another text than its prompt"
printf '{{ 1 }}\n{{ nothing.x }}' >mine/chat_template.jinja
status 1 generate --model mine --chat --prompt hi
has err "chat_template.jinja: line 2: 'nothing' is undefined"
printf '{{ messages | urlize }}' >mine/chat_template.jinja
status 1 generate --model mine --chat --prompt hi
has err 'line 1: the filter "urlize" is not implemented'
rm mine/chat_template.jinja
# ---- training on conversations, in TRL's formats
cat >mine/chat_template.jinja <<'EOF'
{%- for m in messages %}{{ '[' + m.role + '] ' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content + ' ' }}{% endgeneration %}
{%- else %}{{ m.content + ' ' }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}[assistant] {% endif %}
EOF
for i in 1 2 3 4 5 6 7 8; do
    echo '{"messages": [{"role": "user", "content": "What is an abacus?"}, {"role": "assistant", "content": "A frame."}]}'
    echo '{"prompt": [{"role": "user", "content": "Define it."}], "completion": [{"role": "assistant", "content": "A frame of wires."}]}'
done >chats.jsonl
mkdir mine/additional_chat_templates
echo '{{ tools }}' >mine/additional_chat_templates/tool_use.jinja
status 0 train --model mine --data chats.jsonl --output chatty --context 16 --batch 2 --max-steps 2
cmp -s mine/chat_template.jinja chatty/chat_template.jinja || fail "the output has no template of chats"
status 0 train --model new/config.json --tokenizer mine --data chats.jsonl --output chatty2 --context 16 \
    --batch 2 --max-steps 2 --assistant-only-loss
cmp -s mine/chat_template.jinja chatty2/chat_template.jinja || fail "the output has no template of --tokenizer"
for folder in chatty chatty2; do
    cmp -s mine/additional_chat_templates/tool_use.jinja $folder/additional_chat_templates/tool_use.jinja ||
        fail "$folder has not all templates"
done
rm -r mine/additional_chat_templates
status 0 eval --model mine --data chats.jsonl --context 16 --assistant-only-loss
status 1 eval --model mine --data book.txt --context 16 --assistant-only-loss
has err 'book.txt: assistant_only_loss is for JSON lines'
echo '{"text": "a", "messages": []}' >bad.jsonl
status 1 tokenize --model mine --data bad.jsonl --output x.tokens
has err 'bad.jsonl: line 1: expected one of "text", "messages", and "prompt" with "completion"'
echo '{"messages": [{"role": "user"}]}' >bad.jsonl
status 1 tokenize --model mine --data bad.jsonl --output x.tokens
has err 'bad.jsonl: line 1: message 1: expected "content"'

# ---- a conversation, line by line: each answer is that of the messages so far
status 0 generate --model mine --chat --prompt 'What is it?' --max-new-tokens 5 --greedy
cp out first
printf 'What is it?\n\nAnd this?\r\n/exit\nnot read\n' >lines.txt
"$program" chat --model mine --max-new-tokens 5 --greedy <lines.txt >out 2>err || fail "chat"
head -c "$(wc -c <first)" out >second
same second first
answer=$(cat first)
printf '[user] What is it? [assistant] %s [user] And this? [assistant] ' "$answer" >prompt.txt
status 0 generate --model mine --prompt "$(cat prompt.txt)" --max-new-tokens 5 --greedy
tail -c "+$(($(wc -c <prompt.txt) + 1))" out >answer2
"$program" chat --model mine --max-new-tokens 5 --greedy <lines.txt >out 2>err || fail "chat"
tail -c "+$(($(wc -c <first) + 1))" out >second
same second answer2
"$program" chat --model mine --max-new-tokens 5 --num-beams 2 <lines.txt >out 2>err || fail "chat with beams"
printf '\377\n' | "$program" chat --model mine >out 2>err && fail "chat with bytes that are not UTF-8"
has err '^ds_lm: chat: the message of the user is not UTF-8$'
status 2 chat --model mine --prompt hi
has err 'chat reads messages from stdin'
rm mine/chat_template.jinja
status 1 chat --model mine
has err '^ds_lm: mine has no template of chats'
status 1 tokenize --model mine --data chats.jsonl --output x.tokens
has err 'chats.jsonl: line 1: messages: mine has no template of chats'
status 2 generate --model mine --system hi --prompt hi
has err '--system is for --chat, and the command chat'

# ---- a model whose positions have an end
cat >new/gpt2.json <<'EOF'
{"architectures": ["GPT2LMHeadModel"], "vocab_size": 300, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16}
EOF
run="train --model new/gpt2.json --tokenizer new --data book.txt --output gpt2 --max-steps 1"
status 1 $run --context 17
has err '^ds_lm: --context 17: the model has 16 positions$'
status 0 $run
has out ' windows of 16 tokens, 1 steps of 8 windows$'
has_not err WARNING
status 1 eval --model gpt2 --data book.txt --context 17
has err '^ds_lm: --context 17: the model has 16 positions$'

# ---- tokens once; JSON lines, of which the prompt does not count; fine-tuning by a configuration
status 0 tokenize --model mine --data book.txt --output book.tokens
has out '^book.tokens: [0-9]* tokens$'
status 0 train --model mine --data book.tokens --output split --context 32 --batch 2 --max-steps 1
has out '^evaluation  loss' # on the last part of the file itself
[ ! -e split/train.tokens ] || fail "a file of tokens was packed again"
printf 'Another text, older than the tokens of the last one. %.0s' 1 2 3 4 5 6 7 8 9 >other.txt
touch -d '1 hour ago' other.txt
run="train --model mine --output other --context 16 --batch 2 --max-steps 1 --eval-split 0"
status 0 $run --data book.txt
cp other/train.tokens first
status 0 $run --data other.txt
! cmp -s other/train.tokens first || fail "trained on the tokens of another text"
printf '{"prompt": "What is an abacus? ", "completion": "A thing to count with."}\n\n%s\n' \
    '{"text": "Some more text."}' >lines.jsonl
for i in 1 2 3 4 5 6 7 8; do cat lines.jsonl; done >many.jsonl
cat >ds_config.json <<'EOF'
{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2,
 "train_batch_size": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
 "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
 "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
   "warmup_num_steps": "auto", "total_num_steps": "auto"}}, "steps_per_print": 1000}
EOF
status 0 train --model mine --data many.jsonl --output tuned --deepspeed_config ds_config.json \
    --context 16 --batch 2 --max-steps 4 --log-interval 4 --bf16 --lr 1e-3 --eval-data lines.jsonl \
    --gradient-checkpointing
has out '^step 4/4 '
has out '^evaluation  loss'

# ---- labels that count are many or few in a window: each has the same weight,
# however the batch is divided into micro batches and ranks
awk 'BEGIN { for (i = 0; i < 40; i++) {
    text = ""; for (k = 0; k < (i * 7) % 13 + 1; k++) text = text "a word " k ", ";
    print "{\"prompt\": \"" text "\", \"completion\": \"" substr(text, 1, (i * 5) % 31 + 2) "\"}" } }' >uneven.jsonl
run="train --model mine --data uneven.jsonl --output x --no-save --context 16 --eval-split 0 --max-steps 6 --log-interval 1"
status 0 $run --batch 4
grep -o '^step ./6  loss [0-9.]*  lr' out >uneven
status 0 $run --batch 1 --grad-accum 4
grep -o '^step ./6  loss [0-9.]*  lr' out >second
same second uneven
if [ -e "$binary/libdeepspeed_openmpi.so" ]; then
    ASAN_OPTIONS=detect_leaks=0 "$binary/deepspeed" -q --num_devs 2 "$program" $run --batch 1 --grad-accum 2 >out 2>err
    grep -o '^step ./6  loss [0-9.]*  lr' out >second
    same second uneven
fi

# ---- whole numbers as DeepSpeed's users write them
cat >whole.json <<'EOF'
{"train_micro_batch_size_per_gpu": 2.0, "gradient_accumulation_steps": 3e0,
 "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 1.0, "reduce_bucket_size": 5e8},
 "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 1e1, "total_num_steps": 1e2}}}
EOF
status 0 train --model mine --data many.jsonl --output tuned --deepspeed_config whole.json \
    --context 16 --max-steps 2
has out ', 2 steps of 6 windows$'

# ---- what the file leaves out is the options'; two values for one thing are refused
run="train --model mine --data many.jsonl --output tuned --context 16 --max-steps 3 --log-interval 1"
echo '{"train_batch_size": "auto", "zero_optimization": {"stage": 1}}' >short.json
status 0 $run --deepspeed_config short.json --batch 2 --lr 1e-3 --warmup 2
has out '^step 2/3  loss [0-9.]*  lr 0.0005 '
echo '{"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 1.0, "bf16": {"enabled": false},
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}' >values.json
status 0 $run --deepspeed_config values.json --batch 2 --lr 1e-4 --clip 1
status 1 $run --deepspeed_config values.json --clip 0.5
has err '^ds_lm: config: values.json: gradient_clipping is 1, and --clip is 0.5: leave the option out, or write "auto" in'
status 1 $run --deepspeed_config values.json --lr 1e-3
has err ': optimizer.params.lr is 0.0001, and --lr is 0.001'
status 1 $run --deepspeed_config values.json --batch 4
has err ': train_micro_batch_size_per_gpu is 2, and --batch is 4'
status 1 $run --deepspeed_config values.json --bf16
has err ': bf16.enabled is false, and --bf16 is true'
sed 's/"optimizer"/"scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}}, &/' \
    values.json >cycle.json
status 1 $run --deepspeed_config cycle.json --warmup 5
has err ': --warmup has no effect with the schedule OneCycle'
status 2 generate --model mine --prompt a --lr 1e-3
has err '^ds_lm: --lr is for train, not for generate$'
status 2 tokenize --model mine --data book.txt --output x.tokens --top-k 3
has err '^ds_lm: --top-k is for train, generate, chat, not for tokenize$'
status 2 $run --top-k 3
has err '^ds_lm: --top-k is for samples: give --sample-interval N, too$'
status 2 $run --num-return-sequences 2
has err '^ds_lm: --num-return-sequences is for generate, not for train$'
echo null >null.json
status 1 train --model mine --data many.jsonl --output tuned --deepspeed_config null.json
has err '^ds_lm: config: null.json: expected an object { ... } of keys, found null$'

# ---- activation checkpoints by the configuration; Muon
sed 's/"AdamW"/"Muon"/; s/{"lr": "auto"/{"lr": "auto", "adam_lr": 3e-4/' ds_config.json >muon.json
status 0 train --model mine --data many.jsonl --output tuned --deepspeed_config muon.json \
    --context 16 --batch 2 --max-steps 4 --log-interval 4 --lr 1e-3
cp out first
sed 's/"steps_per_print"/"activation_checkpointing": {"profile": true}, &/' muon.json >recompute.json
status 0 train --model mine --data many.jsonl --output tuned --deepspeed_config recompute.json \
    --context 16 --batch 2 --max-steps 4 --log-interval 4 --lr 1e-3
has out 'time (ms) | forward: '
[ "$(grep -o 'step 4/4  loss [0-9.]*' out)" = "$(grep -o 'step 4/4  loss [0-9.]*' first)" ] ||
    fail "another loss with activation checkpoints"

# ---- two ranks: the sizes of the batch are those of a run on one
run="train --model mine --data book.txt --eval-split 0.1 --context 16 --max-steps 4 --log-interval 4"
if [ -e "$binary/libdeepspeed_openmpi.so" ]; then
    status 0 $run --output one --batch 4
    has out '^step 4/4  loss '

    ds_lm=$program program=$binary/deepspeed
    for stage in 0 3; do
        echo '{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": '$stage'},
 "gradient_clipping": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto",
 "betas": [0.9, 0.95], "weight_decay": "auto"}}}' >ranks.json
        ASAN_OPTIONS=detect_leaks=0 status 0 -q --num_devs 2 "$ds_lm" $run --output two \
            --deepspeed_config ranks.json --sample-interval 4 --max-new-tokens 2
        [ "$(grep -c '^sample of step 4: ' out)" -eq 1 ] || fail "not one rank alone prints samples"
        has out '^LlamaForCausalLM: .* steps of 4 windows$'
        has out '^step 4/4  loss '
        has out '^saved two$'
        [ "$(grep -c '^evaluation' out)" -eq 1 ] || fail "not one rank alone prints"
    done
    # the loss of a step is the mean of the ranks, which divide the windows of one
    one="train --model mine --data book.tokens --context 32 --max-steps 3 --log-interval 1 --no-save --output none"
    status 0 -q --num_devs 1 "$ds_lm" $one --batch 4
    grep -o '^step [0-9/]*  loss [0-9]*\.[0-9][0-9]' out >first
    ASAN_OPTIONS=detect_leaks=0 status 0 -q --num_devs 2 "$ds_lm" $one --batch 2
    grep -o '^step [0-9/]*  loss [0-9]*\.[0-9][0-9]' out | cmp -s first - || fail "another loss: $(cat first)"
    status 0 -q --num_devs 2 "$ds_lm" generate --model two --prompt AB --max-new-tokens 3 --greedy
    [ "$(grep -c '^AB' out)" -eq 1 ] || fail "not one rank alone generates"

    # evaluation: the windows of all ranks, of which one has none of a text of two windows
    head -c 44 book.txt >short.txt
    for text in book.txt short.txt; do
        status 0 -q --num_devs 1 "$ds_lm" eval --model two --data $text --context 16 --batch 3
        cp out first
        for ranks in 2 3; do
            ASAN_OPTIONS=detect_leaks=0 status 0 -q --num_devs $ranks "$ds_lm" eval --model two --data $text --context 16 --batch 3
            lines out 1
            loss_is_near first || fail "another loss on $ranks ranks: $(cat first)"
        done
    done
    cp -r two damaged && head -c 2000 two/model.safetensors >damaged/model.safetensors
    for mistake in "generate --model nowhere" "train --model nowhere --data book.txt --output x" \
        "train --model mine --data none.txt --output x" "dance" "train --model mine" "eval --data book.txt" \
        "eval --model nowhere --data book.txt" "eval --model mine --data none.txt" \
        "eval --model damaged --data book.txt" "eval --model mine --data book.txt --context 100000" \
        "eval --model mine --data book.txt --device gpu" \
        "train --model mine --data book.txt --output x --device cuda:99" \
        "train --model mine --data book.txt --output x --resume" \
        "train --model mine --data book.txt --output x --load-dir nowhere"; do
        "$program" -q --num_devs 3 "$ds_lm" $mistake >out 2>err </dev/null
        got=$?
        [ $got -ne 0 ] || fail "$mistake: status 0"
        [ "$(grep -c '^ds_lm: ' err)" -eq 1 ] || fail "$mistake: not said once"
    done
    program=$ds_lm
    status 0 eval --model two --data book.txt --context 16
    has out '^loss [45]\.[0-9]*'
fi

# ---- resuming gives the same model
run="train --model mine --data book.tokens --eval-split 0 --context 32 --batch 2 --max-steps 4 --log-interval 1"
status 0 $run --output whole
has out '^step 4/4 '
status 0 $run --output half --save-dir saved --save-interval 2 --no-save
rm -r saved/global_step4 && echo global_step2 >saved/latest
status 0 $run --output half --load-dir saved
has out '^step 3/4 '
cmp -s whole/model.safetensors half/model.safetensors || fail "a resumed run gives other weights"

# ---- adapters
status 0 train --model mine --data book.txt --output lora --lora-r 2 --lora-targets q_proj,down_proj \
    --context 32 --batch 4 --max-steps 3 --lr 1e-2
has out '^saved lora$'
status 0 merge --model mine --adapter lora --output merged
status 0 eval --model merged --data book.txt --context 32
cp out first
status 0 eval --model mine --adapter lora --data book.txt --context 32
same out first


# ---- DoRA, and what is trained beside adapters; the head leaves a tied embedding
sed 's/"bos_token_id"/"tie_word_embeddings": true, &/' new/config.json >new/tied.json
mkdir -p tied && cp new/tied.json tied/config.json && cp new/tokenizer.json tied
status 0 train --model tied/config.json --tokenizer tied --data book.txt --output tied --context 32 \
    --batch 4 --max-steps 2
status 0 train --model tied --data book.txt --output dora --lora-r 2 --use-dora --lora-bias all \
    --modules-to-save lm_head,norm --context 32 --batch 4 --max-steps 3 --lr 1e-2
status 0 merge --model tied --adapter dora --output merged
grep -q '"tie_word_embeddings": false' merged/config.json || fail "the head is still tied"
status 0 eval --model merged --data book.txt --context 32
cp out first
status 0 eval --model tied --adapter dora --data book.txt --context 32
same out first
status 0 generate --model tied --adapter dora --prompt ABILITY --max-new-tokens 5 --greedy
cp out first
status 0 generate --model merged --prompt ABILITY --max-new-tokens 5 --greedy
same out first
status 0 train --model tied/config.json --tokenizer tied --data book.txt --output one --lora-r 2 \
    --modules-to-save lm_head --ensure-weight-tying --context 32 --batch 4 --max-steps 2
grep -q '"ensure_weight_tying": true' one/adapter_config.json || fail "the adapter does not say so"
status 1 train --model tied --data book.txt --output x --use-dora
has err '^ds_lm: train: options of adapters need --lora-r N$'
status 1 train --model tied --data book.txt --output x --lora-r 2 --lora-bias some --context 32
has err '^ds_lm: lora: bias is "some": expected none, all or lora_only$'

# ---- the demo, and ranks
split=0.05
[ ! "${DS_TEST_QUICK-}" ] || split=0.005
status 0 train --demo --output demo --max-steps 2 --context 16 --batch 2 --sample-interval 2 --max-new-tokens 4 \
    --eval-split $split
has out '^LlamaForCausalLM: 0.79 million parameters'
has out '^saved demo$'
status 0 generate --model demo --prompt 'ABILITY, n.' --max-new-tokens 3

# ---- a GPU, which is emulated: the losses of the CPU; the last two steps are a CUDA graph
run="train --demo --max-steps 4 --context 8 --batch 1 --eval-split 0 --log-interval 1 --max-new-tokens 2"
status 1 generate --model demo --device gpu
has err '^ds_lm: .*device "gpu": expected cpu, cuda or cuda:N'
if [ -e "$binary/gpu/libcuda.so.1" ]; then
    status 0 $run --output demo
    cp out first
    was=${LD_LIBRARY_PATH-}
    export LD_LIBRARY_PATH="$binary/gpu${was:+:$was}" FAKE_CUDA_COUNT=1
    status 0 $run --output demo --device cuda
    [ "$(grep -o '^step ./4  loss [0-9.]*' out)" = "$(grep -o '^step ./4  loss [0-9.]*' first)" ] ||
        fail "another loss on the GPU"
    ! grep step_graph err || fail "steps are no graph"
    uneven="train --model mine --data uneven.jsonl --output x --no-save --context 16 --eval-split 0 --max-steps 6 --log-interval 1"
    status 0 $uneven --batch 1 --grad-accum 4 --device cuda
    ! grep step_graph err || fail "steps are no graph where labels are counted"
    grep -o '^step ./6  loss [0-9.]*  lr' out >second
    same second uneven
    status 0 generate --model demo --device cuda --prompt 'ABILITY, n.' --max-new-tokens 2 --greedy
    cp out first
    export LD_LIBRARY_PATH="$was"
    status 0 generate --model demo --prompt 'ABILITY, n.' --max-new-tokens 2 --greedy
    same out first
fi

# ---- bad input: one line
status 2
has err 'no command'
status 2 dance
has err 'no command "dance"'
status 2 train --model mine
has err '^ds_lm: train needs --model, --data and --output, or --demo$'
status 2 generate mine
has err '^ds_lm: "mine" after the command generate: options follow it, such as --model mine$'
status 1 eval --model nowhere --data book.txt
has err '^ds_lm: --model nowhere: No such file or directory$'
mkdir -p bare
status 1 train --model bare --data book.txt --output x
has err '^ds_lm: --model bare/config.json: No such file or directory$'
status 0 generate --model mine --prompt A --max-new-tokens 3 --greedy
cp out first
status 0 generate --model mine --prompt A --max-new-tokens 3 --temperature 0
same out first
status 0 train --model mine --data book.tokens --output lora --lora-r 2 --lr 5e-5 --context 32 --max-steps 4
has out '^step 4/4 .* lr 5e-06 '
status 1 train --model mine --data none.txt --output x
has err 'none.txt'
echo '{"question": 1}' >bad.jsonl
status 1 train --model mine --data bad.jsonl --output x
has err 'bad.jsonl: line 1: expected "text", or "prompt" and "completion"'
status 1 train --model mine --data many.jsonl --output x --context 100000
has err 'many.jsonl: [0-9]* tokens are less than a window of 100000 (--context)$'
: >empty.txt
status 1 eval --model mine --data empty.txt
has err '^ds_lm: empty.txt: 1 tokens are less than a window of 256 (--context)$'
printf '{"prompt": "This does not count.", "completion": ""}' >prompts.jsonl
status 1 eval --model mine --data prompts.jsonl --context 8
has err '^ds_lm: prompts.jsonl: tokens: .*no window of 8 has a token that counts in the loss$'
status 2 generate --model mine --prompt A --top-p 2
has err '^ds_lm: --top-p: 2 is outside 0 to 1$'
status 2 train --demo --data book.txt --output x
has err '^ds_lm: --demo and --data: the demo has its own, give only one$'
status 1 train --model mine --data book.tokens --output empty.txt
has err '^ds_lm: --output empty.txt is a file, expected a folder$'
status 1 train --model mine --data book.tokens --output /dev/null/x --context 32
has err '^ds_lm: --output /dev/null/x: Not a directory$'
lines out 0
if [ "$(id -u)" -ne 0 ]; then
    mkdir -p shut && chmod 555 shut
    status 1 train --model mine --data book.tokens --output shut --context 32
    has err '^ds_lm: --output shut: Permission denied$'
    lines out 0
fi
finish
