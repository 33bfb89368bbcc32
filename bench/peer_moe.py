#!/usr/bin/env python3
"""bench/peer_moe.py: DeepSpeed's counterpart of bench/moe.c: its MoE layer, forward and backward on one thread.

    taskset -c 3 python3 bench/peer_moe.py --tokens 2048 --hidden 512 --experts 8 -k 1

--dense: with the one-hot matrices [tokens, experts, capacity] of its versions before 0.19. Thread time is
measured, so that other load on the core does not count.
SPDX-License-Identifier: MIT
"""
import argparse
import json
import os
import time

import torch
from torch import nn


def one_hot_layer(moe):
    """As MOELayer.forward of DeepSpeed 0.14: dispatch and combine as products with one-hot matrices."""
    layer = moe.deepspeed_moe

    def forward(x, used=None):
        rows = x.reshape(-1, x.shape[-1])
        layer.l_aux, weights, mask, layer.exp_counts = layer.gate(rows, used)
        sent = torch.einsum("sec,sm->ecm", mask.type_as(x), rows)
        answers = layer.experts(sent.reshape(1, layer.num_local_experts, -1, x.shape[-1]))
        answers = answers.reshape(layer.num_local_experts, -1, x.shape[-1])
        return torch.einsum("sec,ecm->sm", weights.type_as(x), answers).reshape(x.shape)

    layer.forward = forward
    return moe


def make_layer(o):
    import deepspeed
    from deepspeed.moe.layer import MoE
    for key, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": str(o.port)}.items():
        os.environ.setdefault(key, value)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    width = o.hidden if o.expert == "linear" else 4 * o.hidden
    expert = nn.Linear(o.hidden, o.hidden) if o.expert == "linear" else nn.Sequential(
        nn.Linear(o.hidden, width), nn.ReLU(), nn.Linear(width, o.hidden))
    moe = MoE(o.hidden, expert, num_experts=o.experts, k=o.k)
    moe.set_deepspeed_parallelism()
    return one_hot_layer(moe) if o.dense else moe


def main():
    parser = argparse.ArgumentParser(description="DeepSpeed's MoE layer, timed.")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("-k", type=int, default=1)
    parser.add_argument("--expert", choices=["linear", "mlp"], default="linear")
    parser.add_argument("--dense", action="store_true")
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--port", type=int, default=29513)
    o = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    moe = make_layer(o)
    x = torch.randn(o.tokens, o.hidden, requires_grad=True)
    dy = torch.ones(o.tokens, o.hidden)
    times = []
    for _ in range(o.steps + 3):
        begin = time.thread_time()
        y, aux, _ = moe(x)
        torch.autograd.backward([y, aux], [dy, torch.tensor(0.01)])
        times.append(time.thread_time() - begin)
        moe.zero_grad()
        x.grad = None
    median = sorted(times[3:])[o.steps // 2]
    print(json.dumps({"bench": "moe", "kind": "deepspeed dense" if o.dense else "deepspeed", "expert": o.expert,
                      "tokens": o.tokens, "hidden": o.hidden, "experts": o.experts, "k": o.k,
                      "ms": round(1e3 * median, 3)}))


if __name__ == "__main__":
    main()
