#!/usr/bin/env python3
"""bench/peer_lm.py BUILD [demo|speed] [--steps N] [--threads N]: ds_lm beside PyTorch and transformers, with the Python
that runs this.

demo   trains the model of `ds_lm train --demo` in PyTorch too, from the same initial weights, with the same batches (the
       order is PyTorch's for the same seed) and the same rule; prints the losses and the difference of the last ones.
speed  a GPT-2 of 124 million parameters with random weights: time until it is loaded, greedy tokens per second, and
       tokens per second of its tokenizer, each in turns, best of 3.
SPDX-License-Identifier: MIT"""
import argparse
import json
import math
import os
import re
import resource
import struct
import subprocess
import sys
import tempfile
import time
import warnings

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


def speed(program, folder, threads):
    torch.manual_seed(1)
    config = transformers.GPT2Config(bos_token_id=0, eos_token_id=None)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    text = os.path.join(os.path.dirname(__file__), "..", "assets", "devils_dictionary.txt")
    run(program, "tokenizer", "--data", text, "--vocab-size", "5000", "--output", folder)
    new, prompt = 100, "ABILITY, n."

    def generate(n):
        return run(program, "generate", "--model", folder, "--prompt", prompt, "--max-new-tokens", str(n), "--greedy",
                   "--threads", str(threads))

    torch.set_num_threads(threads)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
    ids = torch.tensor([tokenizer.encode(prompt)])
    best = {}
    for _ in range(3):
        _, _, short = generate(1)
        _, _, long = generate(new + 1)
        times = {"one token, load included": short, "a token": (long - short) / new}
        began = time.process_time()
        theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
        loaded = time.process_time() - began
        theirs.generate(ids, max_new_tokens=1, do_sample=False, pad_token_id=0)
        their_short = time.process_time() - began
        began = time.process_time()
        theirs.generate(ids, max_new_tokens=new + 1, do_sample=False, pad_token_id=0)
        middle = time.process_time()
        theirs.generate(ids, max_new_tokens=1, do_sample=False, pad_token_id=0)
        their_long = middle - began - (time.process_time() - middle)
        pairs = {"one token, load included": (short, their_short), "a token": (times["a token"], their_long / new)}
        for name, (a, b) in pairs.items():
            best[name] = min(best.get(name, (9e9, 9e9))[0], a), min(best.get(name, (9e9, 9e9))[1], b)
        best["load alone"] = 0, min(best.get("load alone", (0, 9e9))[1], loaded)
    print("CPU seconds, best of 3 (import of Python's libraries is not counted)")
    for name, (a, b) in best.items():
        print(f"{name}: {a:.4f}, transformers {b:.4f}" + (f", ratio {b / a:.2f}" if a else ""))


parser = argparse.ArgumentParser()
parser.add_argument("build")
parser.add_argument("what", nargs="?", default="demo", choices=["demo", "speed"])
parser.add_argument("--steps", type=int, default=600)
parser.add_argument("--threads", type=int, default=1)
given = parser.parse_args()
torch.set_num_threads(given.threads)
with tempfile.TemporaryDirectory() as folder:
    if given.what == "demo":
        demo(f"{given.build}/ds_lm", folder, given.steps)
    else:
        speed(f"{given.build}/ds_lm", folder, given.threads)
