#!/usr/bin/env python3
"""bench/peer_lm.py BUILD [demo|speed|tokens] [--steps N] [--threads N] [--runs N] [--bf16] [--tokenizer FILE]
[--model FOLDER] [--prompt TEXT]: ds_lm beside PyTorch,
transformers and tokenizers, with the Python that runs this.

demo   trains the model of `ds_lm train --demo` in PyTorch too, from the same initial weights, with the same batches (the
       order is PyTorch's for the same seed) and the same rule; prints the losses and the difference of the last ones.
speed  a GPT-2 of 124 million parameters with random weights, or --model: time until it is loaded, and greedy tokens behind
       --prompt, without drafts, with prompt lookup, and (float32) with drafts of ds_lm's 8-bit copies; in turns.
tokens --tokenizer FILE: 10 MB of mixed text beside the package tokenizers, on one thread.
SPDX-License-Identifier: MIT"""
import argparse
import json
import math
import os
import random
import re
import resource
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import warnings

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers
import torch
import transformers

warnings.filterwarnings("ignore")
transformers.utils.logging.disable_progress_bar()
transformers.logging.set_verbosity_error()


def run(*command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.time()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, time.time() - began, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def windows(path, width):
    """[N, width] ids of a file of tokens (src/data/tokens.c)."""
    data = open(path, "rb").read()
    magic, = struct.unpack_from("<8s", data)
    count = (len(data) - 64) // 2
    ids = torch.tensor(struct.unpack_from(f"<{count}H", data, 64))
    return ids[:count // width * width].view(-1, width)


def demo(program, folder, steps):
    context, batch, rate, least, decay, clip, seed = 128, 16, 4e-3, 0.1, 0.1, 1.0, 42
    text, _, ours_cpu = run(program, "train", "--demo", "--output", folder, "--max-steps", str(steps), "--log-interval", "1",
                            "--sample-interval", str(10 * steps))
    ours = [float(x) for x in re.findall(r"^step \d+/\d+  loss ([0-9.]+)", text, re.M)]
    ours_eval = float(re.findall(r"^evaluation  loss ([0-9.]+)", text, re.M)[-1])

    # the initial weights: a rate that changes no float32
    run(program, "train", "--demo", "--output", f"{folder}/initial", "--max-steps", "2", "--lr", "1e-30",
        "--sample-interval", "1000")
    began = time.process_time()
    model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/initial", dtype=torch.float32).train()
    x = windows(f"{folder}/train.tokens", context)
    held = int(len(x) * 0.05)
    x, held_out = x[:len(x) - held], x[len(x) - held:]
    groups = [{"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": decay},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    optim = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-8)
    warmup = max(2, steps // 20)
    theirs, epoch, step = [], 0, 0
    while step < steps:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed + epoch))
        for at in range(0, len(x), batch):
            ids = x[order[at:at + batch]]
            at_step = step - 1  # DeepSpeed's schedules count from -1, where the rate is 0 too
            ratio = max(at_step, 0) / warmup if at_step < warmup else \
                least + (1 - least) * (1 + math.cos(math.pi * (at_step - warmup + 1) / (steps - warmup))) / 2
            for group in optim.param_groups:
                group["lr"] = rate * ratio
            loss = model(input_ids=ids, labels=ids).loss
            theirs.append(loss.item())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optim.step()
            optim.zero_grad()
            step += 1
            if step == steps:
                break
        epoch += 1
    with torch.no_grad():
        losses = [(model.eval()(input_ids=b, labels=b).loss.item(), len(b)) for b in held_out.split(batch)]
    theirs_eval = sum(a * n for a, n in losses) / sum(n for _, n in losses)
    for k in sorted({0, 1, 2, steps // 4, steps // 2, steps - 1}):
        print(f"step {k + 1}: loss {ours[k]:.4f}, PyTorch {theirs[k]:.4f}")
    print(f"validation: loss {ours_eval:.4f}, PyTorch {theirs_eval:.4f}, difference {ours_eval - theirs_eval:+.4f}")
    print(f"CPU seconds: {ours_cpu:.1f}, PyTorch {time.process_time() - began:.1f}")


def print_ratio(name, ours, theirs, unit, scale=1.0):
    """Medians of times that were taken in turns."""
    a, b = statistics.median(ours) * scale, statistics.median(theirs) * scale
    print(f"{name}: {a:.4g} {unit}, peer {b:.4g} {unit}, {b / a:.2f} times as fast", flush=True)


def mixed_text(megabytes):
    """Prose, code, numbers, ten scripts, emoji, long lines and runs of spaces; the bytes are valid UTF-8."""
    draw = random.Random(1)
    root = os.path.join(os.path.dirname(__file__), "..")
    prose = open(f"{root}/assets/devils_dictionary.txt", encoding="utf-8").read()
    code = open(f"{root}/src/models/generate.c", encoding="utf-8").read()
    scripts = [(0x41, 0x5A), (0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x627, 0x64A), (0x905, 0x939),
               (0xE01, 0xE2E), (0x3042, 0x3093), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0x1F600, 0x1F64F)]
    parts, size = [], 0
    while size < megabytes * 1000000:
        kind = draw.randrange(4)
        if kind < 2:
            source = code if kind else prose
            at = draw.randrange(len(source) - 4000)
            part = source[at:at + draw.randrange(200, 4000)]
        elif kind == 2:
            low, high = draw.choice(scripts)
            part = " ".join("".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 9))) for _ in range(200))
        else:
            part = draw.choice([" " * 70, "\n\n", "x" * 3000, "\t", f"{draw.random()} {draw.randrange(10 ** 9)}\n"])
        parts.append(part)
        size += len(part.encode())
    return "".join(parts)


def tokenizing(build, folder, tokenizer, runs):
    text, path = mixed_text(10), f"{folder}/mixed.txt"
    open(path, "w", encoding="utf-8", newline="").write(text)
    theirs = tokenizers.Tokenizer.from_file(tokenizer)
    times, their_times = [], []
    for _ in range(runs):
        out, _, _ = run(f"{build}/bench_tokenizer", tokenizer, path, f"{folder}/ids")
        times.append(float(re.search(r"encode ([0-9.]+) s", out)[1]))
        began = time.process_time()
        ids = theirs.encode(text, add_special_tokens=False).ids
        their_times.append(time.process_time() - began)
    data = open(f"{folder}/ids", "rb").read()
    same = struct.pack(f"<{len(ids)}I", *ids) == data
    print_ratio(f"{tokenizer}: encode {os.path.getsize(path) / 1e6:.1f} MB", times, their_times, "s")
    print(f"  {len(ids)} ids, {'equal' if same else 'NOT EQUAL'}")


def generating(program, folder, model_folder, prompt, threads, runs, bf16):
    if not model_folder:
        model_folder = folder
        torch.manual_seed(1)
        config = transformers.GPT2Config(bos_token_id=0, eos_token_id=None)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
        text = os.path.join(os.path.dirname(__file__), "..", "assets", "devils_dictionary.txt")
        run(program, "tokenizer", "--data", text, "--vocab-size", "5000", "--output", folder)
    new, lookups = 200, (0, 7)

    def generate(n, lookup, assist=0):
        text, wall, cpu = run(program, "generate", "--model", model_folder, "--prompt", prompt, "--max-new-tokens", str(n),
                              "--greedy", "--threads", str(threads), "--prompt-lookup-num-tokens", str(lookup),
                              *(["--bf16"] if bf16 else ["--num-assistant-tokens", str(assist)]))
        return text, wall, cpu

    def their_generate(model, n, lookup):
        began = time.process_time()
        more = {"prompt_lookup_num_tokens": lookup} if lookup else {}
        out = model.generate(ids, max_new_tokens=n, do_sample=False, pad_token_id=0, eos_token_id=None, **more)
        return out[0], time.process_time() - began

    dtype = torch.bfloat16 if bf16 else torch.float32
    torch.set_num_threads(threads)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{model_folder}/tokenizer.json")
    ids = torch.tensor([tokenizer.encode(prompt)])
    first, their_first, ready = [], [], []
    token, their_token = {k: [] for k in lookups}, {k: [] for k in lookups}
    texts, their_texts, assisted = set(), set(), []
    for _ in range(runs):
        _, wall, short = generate(1, 0)
        first.append(short), ready.append(wall)
        began = time.process_time()
        model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, dtype=dtype).eval()
        loaded = time.process_time() - began
        their_short = their_generate(model, 1, 0)[1]
        their_first.append(loaded + their_short)
        their_short = their_generate(model, 1, 0)[1]
        for lookup in lookups:
            text, _, cpu = generate(new + 1, lookup)
            texts.add(text.rstrip("\n")), token[lookup].append((cpu - short) / new)
            out, cpu = their_generate(model, new + 1, lookup)
            their_texts.add(prompt + tokenizer.decode(out[ids.shape[1]:], clean_up_tokenization_spaces=False))
            their_token[lookup].append((cpu - their_short) / new)
        if not bf16:  # drafts of the 8-bit copies alone; the time of making the copies counts
            text, _, cpu = generate(new + 1, 0, 7)
            texts.add(text.rstrip("\n")), assisted.append((cpu - short) / new)
    print(f"{ids.shape[1]} tokens of prompt, {new} new ones, {dtype}, {threads} thread(s); CPU time, medians of {runs} in turns; the "
          "import of Python's libraries is not counted")
    print_ratio("  load, and one token", first, their_first, "ms", 1e3)
    for lookup in lookups:
        print_ratio(f"  a token, lookup {lookup}", token[lookup], their_token[lookup], "ms", 1e3)
    print_ratio(f"  a token, lookup {lookups[1]}, beside a peer without", token[lookups[1]], their_token[0], "ms", 1e3)
    if assisted:
        print_ratio("  a token, 7 assistant tokens, beside a peer without", assisted, their_token[0], "ms", 1e3)
    print(f"  texts: {len(texts)} of ds_lm, {'equal' if {t.rstrip(chr(10)) for t in their_texts} == texts else 'NOT EQUAL'}")
    print(f"  ds_lm from its start to the end of one token: {statistics.median(ready) * 1e3:.0f} ms of wall time")


parser = argparse.ArgumentParser()
parser.add_argument("build")
parser.add_argument("what", nargs="?", default="demo", choices=["demo", "speed", "tokens"])
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--runs", type=int, default=5)
parser.add_argument("--model")
parser.add_argument("--prompt", default="ABILITY, n.")
parser.add_argument("--tokenizer", action="append", default=[])
given = parser.parse_args()
torch.set_num_threads(given.threads)
with tempfile.TemporaryDirectory() as folder:
    if given.what == "demo":
        demo(f"{given.build}/ds_lm", folder, given.steps)
    elif given.what == "speed":
        generating(f"{given.build}/ds_lm", folder, given.model, given.prompt, given.threads, given.runs, given.bf16)
    else:
        for tokenizer in given.tokenizer:
            tokenizing(given.build, folder, tokenizer, given.runs)
