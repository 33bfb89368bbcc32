#!/usr/bin/env python3
"""bench/peer_ops.py: each row of bench_ops here and in PyTorch, in turns: medians and the ratio.

    taskset -c 3 python3 bench/peer_ops.py [--rounds 3] [--slower] [--markdown] [--threads 1] [--bf16 | --f16] [word ...]

Words choose rows by op or name. A row's inputs and its call in PyTorch come from bench_ops itself. Images have
the memory layout in which each library's layers pass them on. Optimizers are PyTorch's fused ones where it has them.
With one thread, thread time is measured, so that other load on the core does not count.
SPDX-License-Identifier: MIT
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
import torch.optim as O

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "release", "bench_ops")
SAMPLE_US = 3000  # as bench/ops.c
SAMPLES = 5


class Lion(O.Optimizer):
    """arXiv 2302.06675, in torch's in-place ops."""

    def __init__(self, params, lr, weight_decay):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m.mul(0.9).add_(p.grad, alpha=0.1).sign_(), alpha=-group["lr"])
                m.lerp_(p.grad, 0.01)


class Lamb(O.Optimizer):
    """arXiv 1904.00962, in torch's in-place ops."""

    def __init__(self, params, lr, weight_decay):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p)).lerp_(p.grad, 0.1)
                v = self.state[p].setdefault("v", torch.zeros_like(p)).mul_(0.999)
                v.addcmul_(p.grad, p.grad, value=0.001)
                u = (m / (v.sqrt().add_(1e-8))).add_(p, alpha=group["weight_decay"])
                trust = float((p.norm() / u.norm()).clamp(0.01, 10))
                p.add_(u, alpha=-group["lr"] * trust)


class Ours:
    """bench_ops, asked row by row."""

    def __init__(self, options):
        self.process = subprocess.Popen([PROGRAM, "--ask", *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.rows = []
        for line in iter(self.process.stdout.readline, "\n"):
            if not line:
                sys.exit("peer_ops: bench_ops ended without its rows")
            self.rows.append(json.loads(line))

    def times(self, row):
        if torch.get_num_threads() > 1:
            time.sleep(0.3)  # PyTorch's threads still spin after its calls
        print(row["row"], file=self.process.stdin, flush=True)
        return [float(t) for t in self.process.stdout.readline().split()]


def median_us(call):
    """As time_us of bench/ops.c."""
    now = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begin, calls, took = now(), 0, 0.0
    while took < SAMPLE_US * 1e-6:
        call()
        calls += 1
        took = now() - begin
    samples = []
    for _ in range(SAMPLES):
        begin = now()
        for _ in range(calls):
            call()
        samples.append((now() - begin) / calls * 1e6)
    return statistics.median(samples)


def make_input(given, dtype):
    if given["kind"] == "index":
        return torch.randint(int(given["high"]), given["shape"])
    if given["kind"] == "bool":
        return torch.rand(given["shape"]) < 0.6
    low, high = (given["low"], given["high"]) if given["low"] != given["high"] else (-1, 1)
    x = torch.empty(given["shape"]).uniform_(low, high).to(dtype)
    return x.requires_grad_() if given["kind"] == "float" else x


def torch_times(row, dtype):
    names = {"torch": torch, "F": F, "O": O, "Lion": Lion, "Lamb": Lamb}
    if "elements" in row:
        p = torch.ones(row["elements"], requires_grad=True)
        p.grad = torch.full_like(p, 0.5)
        return [median_us(eval(row["torch"], {**names, "p": [p]}).step), 0]
    x = [make_input(given, dtype) for given in row["in"]]
    call = eval("lambda: " + row["torch"], {**names, "x": x})
    y = call()
    dy = torch.ones_like(y)

    def both():
        call().backward(dy)
        for t in x:
            t.grad = None

    with torch.no_grad():
        forward = median_us(call)
    return [forward, median_us(both) if y.requires_grad else 0]


def compare(row, ours, rounds, dtype):
    """Medians [ours, torch's] of forward, and of forward with backward."""
    turns = [(ours.times(row), torch_times(row, dtype)) for _ in range(rounds)]
    return [[statistics.median(t[side][way] for t in turns) for side in (0, 1)] for way in (0, 1)]


def print_row(row, pairs, markdown):
    cells = [row["op"], row["name"]]
    for us, peer in pairs:
        cells += [f"{us:.1f}", f"{peer:.1f}", f"{peer / us:.2f}"] if us else ["", "", ""]
    if markdown:
        print("| " + " | ".join(cells) + " |", flush=True)
    else:
        print(f"{cells[0]:20}{cells[1]:34}" + "".join(f"{c:>10}" for c in cells[2:]), flush=True)


def main():
    parser = argparse.ArgumentParser(description="The rows of bench_ops here and in PyTorch, in turns.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slower", action="store_true", help="only rows in which PyTorch is faster")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--f16", action="store_true")
    parser.add_argument("words", nargs="*")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    kind = ["--bf16"] if o.bf16 else ["--f16"] if o.f16 else []
    dtype = torch.bfloat16 if o.bf16 else torch.float16 if o.f16 else torch.float32
    ours = Ours(kind + ["--threads", str(o.threads)] + o.words)
    head = {"op": "", "name": "us"}
    titles = ["forward", "PyTorch", "ratio", "and backward", "PyTorch", "ratio"]
    if o.markdown:
        print("| op | us | " + " | ".join(titles) + " |\n|" + "---|" * 8)
    else:
        print(f"{head['op']:20}{head['name']:34}" + "".join(f"{t:>10.8}" for t in titles))
    ratios = []
    for row in ours.rows:
        if not row["torch"]:
            continue
        try:
            pairs = compare(row, ours, o.rounds, dtype)
        except NotImplementedError:  # PyTorch does not have it in this dtype
            continue
        here = [peer / us for us, peer in pairs if us]
        ratios += here
        if not o.slower or min(here) < 1:
            print_row(row, pairs, o.markdown)
    below = sum(r < 1 for r in ratios)
    print(f"\n{len(ratios)} figures, geometric mean of the ratios {statistics.geometric_mean(ratios):.2f}, "
          f"smallest {min(ratios):.2f}, {below} below 1")


if __name__ == "__main__":
    main()
