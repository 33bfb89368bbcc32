"""tests/reference/make_param_state.py tests/golden/param_state: gradients, values and
optimizer states of single parameters from DeepSpeed, for tests/reference/param_state.c.

Needs PyTorch and DeepSpeed 0.19.8; runs on the CPU, in one process. Two updates of two
micro steps; the losses of the second one are not divided (scale_wrt_gas=False), and
before its step one gradient, one moment and one value are set.
SPDX-License-Identifier: MIT
"""
import json
import os
import sys

os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
                  MASTER_ADDR="127.0.0.1", MASTER_PORT="29732")

import deepspeed
import torch
import torch.nn as nn
from deepspeed.utils import (safe_get_full_fp32_param, safe_get_full_grad,
                             safe_get_full_optimizer_state, safe_set_full_fp32_param,
                             safe_set_full_grad, safe_set_full_optimizer_state)


def wave(*shape, start=0, scale=1.0):
    n = torch.Size(shape).numel()
    return (torch.sin(torch.arange(start, start + n).double()) * scale).float().reshape(shape)


def run(stage):
    net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for i, p in enumerate(net.parameters()):
            p.copy_(wave(*p.shape, start=10 * i, scale=0.5))
    config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2,
              "optimizer": {"type": "Adam", "params": {"lr": 0.1, "weight_decay": 0,
                                                       "torch_adam": True}},
              "zero_optimization": {"stage": stage}}
    engine, *_ = deepspeed.initialize(model=net, config=config)
    params = dict(engine.module.named_parameters())
    out = {}

    def note(when, what, get):
        for name, p in params.items():
            out[f"{when}.{what}.{name}"] = get(p).flatten().tolist()

    for update in range(2):
        for micro in range(2):
            y = engine(wave(4, 6, start=100 * update + 7 * micro))
            loss = (y * y).mean()
            if update:
                engine.backward(0.25 * loss, scale_wrt_gas=False)
            else:
                engine.backward(loss)
            if micro:
                note(f"backward{update}", "grad", safe_get_full_grad)
            if update and micro:
                w0, w2, b2 = params["0.weight"], params["2.weight"], params["2.bias"]
                safe_set_full_grad(w0, wave(5, 6, start=3, scale=0.01))
                safe_set_full_optimizer_state(w2, wave(3, 5, start=5, scale=0.02), "exp_avg")
                safe_set_full_fp32_param(b2, wave(3, start=9))
                out["set.grad.0.weight"] = safe_get_full_grad(w0).flatten().tolist()
            engine.step()
        note(f"step{update}", "fp32", safe_get_full_fp32_param)
        for key in ("exp_avg", "exp_avg_sq"):
            note(f"step{update}", key, lambda p: safe_get_full_optimizer_state(p, key))
    out["norm"] = float(engine.get_global_grad_norm() or 0)
    return out


def main(out):
    for stage in (1, 3):
        with open(f"{out}/stage{stage}.json", "w") as f:
            json.dump({"stage": stage, "values": run(stage)}, f)
            f.write("\n")


main(sys.argv[1])
