"""tests/reference/make_flops.py tests/golden/flops: what DeepSpeed's flops
profiler says, for tests/reference/flops.c.

Needs PyTorch and DeepSpeed 0.19.8; runs on the CPU, in one process. A case is the
report of a model that flops.c builds too, with '#' in place of what depends on time;
ops.json has flops and MACs of single calls.
SPDX-License-Identifier: MIT
"""
import json
import os
import pathlib
import re
import sys
import tempfile

os.environ.update(DS_ACCELERATOR="cpu", RANK="0", LOCAL_RANK="0", WORLD_SIZE="1",
                  MASTER_ADDR="127.0.0.1", MASTER_PORT="29731")

import deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F
from deepspeed.moe.layer import MoE
from deepspeed.profiling.flops_profiler import get_model_profile


ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/programs/common"), str(ROOT / "bench")]
from peer_models import BasicBlock
from peer_net import Net


class Block(BasicBlock):  # the report has the name
    pass


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1))
        self.layer2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class Attention(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(c, 3 * c)
        self.c_proj = nn.Linear(c, c)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, c // self.heads).transpose(1, 2)
                   for p in self.c_attn(x).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(n, t, c))


class Layer(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.ln_1 = nn.LayerNorm(c)
        self.attn = Attention(c, heads)
        self.ln_2 = nn.LayerNorm(c)
        self.c_fc = nn.Linear(c, 4 * c)
        self.c_proj = nn.Linear(4 * c, c)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary=65, length=16, c=32, heads=4, layers=2):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, c)
        self.wpe = nn.Embedding(length, c)
        self.h = nn.ModuleList([Layer(c, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(c)
        self.lm_head = nn.Linear(c, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, i):
        x = self.wte(i) + self.wpe(torch.arange(i.shape[1]))
        for layer in self.h:
            x = layer(x)
        return self.lm_head(self.ln_f(x))


def masked(text):
    text = re.sub(r"(?m)^(.*(?:latency\)?|/second): +).*$", r"\1#", text)
    text = re.sub(r", [^,]+ = [^,]+% latency, [^,)\n]*FLOPS", ", # = #% latency, #FLOPS", text)
    return re.sub(r"(?m)^(    fwd latency - ).*$", r"\1#", text)


def report(model, x, loss, **options):
    micro = x.shape[0]
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/report.txt"
        config = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": 1,
                  "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
                  "flops_profiler": {"enabled": True, "output_file": path, **options}}
        engine, *_ = deepspeed.initialize(model=model, config=config)
        for step in range(options.get("profile_step", 1) + 2):
            # DeepSpeed starts it in a hook of the model's call, whose own hooks then do
            # not run: what the model itself computes is left out
            if step == options.get("profile_step", 1):
                engine.flops_profiler.start_profile()
                engine.flops_profiler.start_profile = lambda ignore_list: None
            engine.backward(loss(engine(x)))
            engine.step()
        return open(path).read()


class One(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *x):
        return self.f(*x)


def count(f, *x):
    flops, macs, _ = get_model_profile(One(f), args=list(x), print_profile=False,
                                       as_string=False)
    return [int(flops), int(macs)]


def ops():
    r = torch.randn
    bn = lambda training, affine: lambda x: F.batch_norm(
        x, torch.zeros(6), torch.ones(6), *([torch.ones(6)] * 2 if affine else []),
        training=training)
    return {
        "linear": count(lambda x: F.linear(x, r(5, 7), r(5)), r(2, 3, 7)),
        "addmm": count(lambda x: torch.addmm(r(5), x, r(7, 5)), r(6, 7)),
        "matmul": count(lambda a: torch.matmul(a, r(2, 3, 5, 6)), r(2, 3, 4, 5)),
        "matmul_folded": count(lambda a: torch.matmul(a, r(5, 6)), r(2, 3, 4, 5)),
        "conv1d": count(lambda x: F.conv1d(x, r(8, 4, 3), r(8), 2, 1), r(2, 4, 9)),
        "conv2d": count(lambda x: F.conv2d(x, r(8, 2, 3, 3), r(8), 2, 1, groups=2), r(2, 4, 9, 9)),
        "conv2d_no_bias": count(lambda x: F.conv2d(x, r(8, 4, 3, 3), dilation=2), r(2, 4, 9, 9)),
        "conv3d": count(lambda x: F.conv3d(x, r(8, 4, 3, 3, 3), r(8), 1, 1), r(2, 4, 5, 5, 5)),
        "conv_transpose2d": count(
            lambda x: F.conv_transpose2d(x, r(4, 3, 3, 3), r(6), 2, 1, groups=2), r(2, 4, 5, 5)),
        "conv_transpose1d": count(lambda x: F.conv_transpose1d(x, r(4, 6, 3), r(6)), r(2, 4, 5)),
        "conv_transpose3d": count(
            lambda x: F.conv_transpose3d(x, r(4, 6, 3, 3, 3), r(6)), r(2, 4, 3, 3, 3)),
        "relu": count(lambda x: F.relu(x), r(2, 3, 4)), "relu6": count(lambda x: F.relu6(x), r(2, 3, 4)),
        "prelu": count(lambda x: F.prelu(x, r(1)), r(2, 3, 4)),
        "elu": count(lambda x: F.elu(x), r(2, 3, 4)), "leaky_relu": count(lambda x: F.leaky_relu(x), r(2, 3, 4)),
        "silu": count(lambda x: F.silu(x), r(2, 3, 4)), "gelu": count(lambda x: F.gelu(x), r(2, 3, 4)),
        "sigmoid": count(torch.sigmoid, r(2, 3, 4)), "tanh": count(torch.tanh, r(2, 3, 4)),
        "batch_norm": count(bn(True, True), r(4, 6, 3, 3)),
        "batch_norm_plain": count(bn(True, False), r(4, 6, 3, 3)),
        "batch_norm_eval": count(bn(False, True), r(4, 6, 3, 3)),
        "batch_norm_eval_plain": count(bn(False, False), r(4, 6, 3, 3)),
        "layer_norm": count(lambda x: F.layer_norm(x, (6,), r(6), r(6)), r(4, 6)),
        "layer_norm_plain": count(lambda x: F.layer_norm(x, (6,)), r(4, 6)),
        "rms_norm": count(lambda x: F.rms_norm(x, (6,), r(6)), r(4, 6)),
        "group_norm": count(lambda x: F.group_norm(x, 2, r(6), r(6)), r(4, 6, 3)),
        "instance_norm": count(lambda x: F.instance_norm(x), r(4, 6, 3)),
        "max_pool2d": count(lambda x: F.max_pool2d(x, 2), r(2, 3, 8, 8)),
        "avg_pool2d": count(lambda x: F.avg_pool2d(x, 3, 1), r(2, 3, 8, 8)),
        "adaptive_avg_pool2d": count(lambda x: F.adaptive_avg_pool2d(x, 2), r(2, 3, 8, 8)),
        "max_pool1d": count(lambda x: F.max_pool1d(x, 2), r(2, 3, 8)),
        "interpolate": count(lambda x: F.interpolate(x, scale_factor=2), r(2, 3, 4, 4)),
        "softmax": count(lambda x: F.softmax(x, -1), r(2, 3, 4)),
        "log_softmax": count(lambda x: F.log_softmax(x, -1), r(2, 3, 4)),
        "embedding": count(lambda i: F.embedding(i, r(9, 4)), torch.zeros(2, 3, dtype=torch.long)),
        "attention": count(
            lambda q: F.scaled_dot_product_attention(q, r(2, 4, 7, 8), r(2, 4, 7, 6)),
            r(2, 4, 5, 8)),
        "attention_causal": count(
            lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), r(2, 4, 5, 8)),
        "attention_dropout": count(
            lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.1), r(2, 4, 5, 8)),
        "dropout": count(lambda x: F.dropout(x, 0.5), r(2, 3, 4)),
        "cross_entropy": count(lambda x: F.cross_entropy(x, torch.zeros(2).long()), r(2, 4)),
        "mse_loss": count(lambda x: F.mse_loss(x, r(2, 4)), r(2, 4)),
        "add": count(lambda x: x + x, r(2, 4)), "mul": count(lambda x: x * x, r(2, 4)),
        "torch_add": count(lambda x: torch.add(x, x), r(2, 4)),
    }


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.moe = MoE(8, nn.Linear(8, 8), num_experts=4, ep_size=1, k=1)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.moe(x)[0])


def reports():
    labels = torch.zeros(4, dtype=torch.long)
    loss = lambda y: F.cross_entropy(y, labels)
    tokens = lambda y: F.cross_entropy(y.flatten(0, 1), torch.zeros(64).long())
    images = torch.randn(4, 3, 32, 32)
    cases = [
        ("net", Net, images, loss, {}),
        ("brief", Net, images, loss, {"detailed": False}),
        ("resnet", ResNet, images, loss,
         {"profile_step": 2, "top_modules": 3, "recompute_fwd_factor": 1.0}),
        ("gpt", GPT, torch.zeros(4, 16, dtype=torch.long), tokens,
         {"module_depth": 2, "top_modules": 2, "recompute_fwd_factor": 0.5}),
        ("moe", Routed, torch.randn(4, 8), loss, {"detailed": False, "module_depth": 0}),
    ]
    for name, model, x, f, options in cases:
        text = masked(report(model(), x, f, **options))
        if name == "moe":  # its products are einsums here
            text = text[:text.index("fwd MACs")]
        yield name, {"model": name.replace("brief", "net"), "options": options, "report": text.split("\n")}


def main(out):
    torch.manual_seed(0)
    for name, case in [*reports(), ("ops", {"ops": ops()})]:
        with open(f"{out}/{name}.json", "w") as f:
            json.dump(case, f, indent=1)
            f.write("\n")


main(sys.argv[1])
