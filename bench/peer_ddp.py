#!/usr/bin/env python3
"""bench/peer_ddp.py: PyTorch's counterpart of bench/ddp.c: DistributedDataParallel over gloo, one thread a rank.

    python3 bench/peer_ddp.py --ranks 2 --batch 4 --net cifar

SPDX-License-Identifier: MIT
"""
import argparse
import json
import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def make_net(name):
    if name == "cifar":
        return nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))
    layers = []
    for i in range(4):
        layers += [nn.Linear(1600, 1600)] + ([nn.ReLU()] if i < 3 else [])
    return nn.Sequential(*layers)


def rank_main(rank, o):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(o.port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=o.ranks)
    torch.manual_seed(1)
    net = nn.parallel.DistributedDataParallel(make_net(o.net))
    if o.net == "mlp":
        optim = torch.optim.AdamW(net.parameters(), lr=1e-4)
        x = torch.rand(o.batch, 1600)
    else:
        optim = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
        x = torch.rand(o.batch, 3, 32, 32)
    y = torch.randint(0, 10, (o.batch,))
    loss_of = nn.CrossEntropyLoss()
    times = []
    for block in range(o.blocks + 1):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(o.steps):
            optim.zero_grad()
            loss_of(net(x), y).backward()
            optim.step()
        dist.barrier()
        if block:
            times.append((time.perf_counter() - begin) / o.steps)
    if rank == 0:
        median = sorted(times)[len(times) // 2]
        print(json.dumps({"bench": "ddp", "kind": "pytorch ddp", "net": o.net, "backend": "gloo", "ranks": o.ranks,
                          "batch": o.batch, "us_per_step": round(1e6 * median, 1),
                          "samples_per_s": round(o.batch * o.ranks / median)}))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description="PyTorch DDP over gloo, timed.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--blocks", type=int, default=11)
    parser.add_argument("--net", choices=["cifar", "mlp"], default="cifar")
    parser.add_argument("--port", type=int, default=29512)
    o = parser.parse_args()
    mp.spawn(rank_main, args=(o,), nprocs=o.ranks)


if __name__ == "__main__":
    main()
