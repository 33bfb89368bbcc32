#!/usr/bin/env python3
"""bench/peer_models.py: training steps of the networks of bench_models here and in PyTorch, in turns.

    taskset -c 3 python3 bench/peer_models.py [--rounds 5] [--steps 3] [--threads N] [word ...]
    python3 bench/peer_models.py --device cuda [--compile] [word ...]

Words choose rows by name. Both sides begin with the same weights and data, which bench_models writes; the losses of
the first steps are compared. Printed: medians of processor time and of wall time of a step, and PyTorch's divided by
ours, the median over the rounds. In bfloat16 PyTorch's side is a bfloat16 model with float32 master weights, as
DeepSpeed's, with the fused AdamW and clipping. On a GPU (bench_models says which batches) wall time alone means
something, and our step is a CUDA graph; --compile: PyTorch's model is compiled.
SPDX-License-Identifier: MIT
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "build", "release", "bench_models")


class BasicBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (self.downsample(x) if self.downsample is not None else x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        cin = 64
        for i in range(4):
            c = 64 << i
            block = nn.Sequential(BasicBlock(cin, c, 2 if i else 1), BasicBlock(c, c, 1))
            setattr(self, f"layer{i + 1}", block)
            cin = c
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for i in range(4):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Attention(nn.Module):
    def __init__(self, dim, heads, causal):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, dim, heads, gpt):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, gpt)
        self.ln2 = nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, 4 * dim)
        self.proj = nn.Linear(4 * dim, dim)
        self.approximate = "tanh" if gpt else "none"

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.proj(F.gelu(self.fc(self.ln2(x)), approximate=self.approximate))


class GPT(nn.Module):
    def __init__(self, layers, heads, dim, context, vocabulary):
        super().__init__()
        self.tok = nn.Embedding(vocabulary, dim)
        self.pos = nn.Embedding(context, dim)
        self.blocks = nn.Sequential(*(Block(dim, heads, True) for _ in range(layers)))
        self.ln = nn.LayerNorm(dim)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        return F.linear(self.ln(self.blocks(x)), self.tok.weight)


class ViT(nn.Module):
    def __init__(self, dim=192, heads=3, layers=6, patch=4):
        super().__init__()
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, 65, dim))
        self.patch = nn.Conv2d(3, dim, patch, patch)
        self.blocks = nn.Sequential(*(Block(dim, heads, False) for _ in range(layers)))
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.head(self.ln(self.blocks(x))[:, 0])


ROWS = {
    "gpt2-124m": lambda: GPT(12, 12, 768, 256, 50257),
    "gpt-small": lambda: GPT(4, 4, 256, 256, 8192),
    "vit-tiny": ViT,
    "resnet18-32": ResNet,
    "resnet18-128": ResNet,
}


class Theirs:
    """The twin in PyTorch."""

    def __init__(self, name, folder, o):
        self.bf16 = name.endswith("-bf16")
        self.model = ROWS[name.removesuffix("-bf16")]()
        self.model.load_state_dict(torch.load(folder + "/init.pth"))
        data = torch.load(folder + "/data.pth")
        self.x, self.y, self.at = data["x"].to(o.device), data["y"].to(o.device), 0
        self.model.to(o.device)
        self.params = list(self.model.parameters())
        if self.bf16:
            self.params = [nn.Parameter(p.detach().clone()) for p in self.model.parameters()]
            self.model.bfloat16()
        if name.startswith("resnet") and not self.bf16:
            self.optim = torch.optim.SGD(self.params, 0.01, momentum=0.9)
        else:
            self.optim = torch.optim.AdamW(self.params, 3e-4, weight_decay=0.01, fused=True)
        self.forward = torch.compile(self.model) if o.compile else self.model

    def step(self):
        x, y = self.x[self.at % len(self.x)], self.y[self.at % len(self.y)]
        self.at += 1
        (self.model if self.bf16 else self.optim).zero_grad()
        logits = self.forward(x.bfloat16() if self.bf16 and x.is_floating_point() else x)
        loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.flatten())
        loss.backward()
        if self.bf16:
            for p, master in zip(self.model.parameters(), self.params):
                master.grad = p.grad.float()
            nn.utils.clip_grad_norm_(self.params, 1.0)
        self.optim.step()
        if self.bf16:
            with torch.no_grad():
                for p, master in zip(self.model.parameters(), self.params):
                    p.copy_(master)
        return loss.item()

    def run(self, n):
        cpu, wall, loss = [], [], 0
        for _ in range(n):
            c, w = time.process_time(), time.perf_counter()
            loss = self.step()
            cpu.append(time.process_time() - c)
            wall.append(time.perf_counter() - w)
        return sorted(cpu)[n // 2], sorted(wall)[n // 2], loss


class Ours:
    """bench_models, asked for steps."""

    def __init__(self, name, folder, o):
        command = [PROGRAM, "--threads", str(o.threads), "--device", o.device, "--ask", name, folder]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "\n":
            sys.exit(f"peer_models: bench_models did not begin {name}")

    def run(self, n):
        print(n, file=self.process.stdin, flush=True)
        cpu, wall, self.peak, loss = (float(v) for v in self.process.stdout.readline().split())
        return cpu, wall, loss

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def compare(name, o):
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(name, folder, o)
        theirs = Theirs(name, folder, o)
    sides = [ours, theirs]
    first = [side.run(1)[2] for side in sides]
    for side in sides if o.device != "cpu" else []:
        side.run(o.steps)
    turns = [[side.run(o.steps) for side in sides] for _ in range(o.rounds)]
    ours.end()
    cells = [f"{name:20}"]
    for what in (0, 1):
        for side in (0, 1):
            cells.append(f"{statistics.median(t[side][what] for t in turns) * 1e3:10.2f}")
        cells.append(f"{statistics.median(t[1][what] / t[0][what] for t in turns):8.2f}")
    cells.append(f"{ours.peak:10.0f}   {first[0]:.7g} {first[1]:.7g}")
    print("".join(cells), flush=True)


def main():
    parser = argparse.ArgumentParser(description="Training steps here and in PyTorch, in turns.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("words", nargs="*")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    print(f"{'ms of a step':20}{'processor':>10}{'PyTorch':>10}{'ratio':>8}{'wall':>10}{'PyTorch':>10}{'ratio':>8}"
          f"{'MiB':>10}   first losses")
    for base in ROWS:
        for name in (base, base + "-bf16"):
            if not o.words or any(word in name for word in o.words):
                compare(name, o)


if __name__ == "__main__":
    main()
