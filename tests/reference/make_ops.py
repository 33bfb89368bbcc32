#!/usr/bin/env python3
"""Writes tests/golden/ops-more: ops of torch.nn.functional, their values and gradients, for tests/reference/ops_more.c.

    make_ops.py FOLDER [SEED]

A value may differ from PyTorch's by 8 times PyTorch's own error beside float64, and by 1e-6 of the largest. Another SEED
gives other numbers of the same kinds.
SPDX-License-Identifier: MIT
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

MARGINS = {"hinge_embedding_loss": 1, "margin_ranking_loss": 2, "cosine_embedding_loss": 2, "soft_margin_loss": 1}


def ctc(t, a):
    """Of logits, as of PyTorch's gradient that is right behind a log_softmax only."""
    return F.ctc_loss(F.log_softmax(t["input"], -1), t["target"], t["input_lengths"], t["target_lengths"],
                      blank=a.get("blank", 0), reduction=a.get("reduction", "mean"),
                      zero_infinity=a.get("zero_infinity", False))


def call(op, t, a):
    """The op of PyTorch, of named tensors and attributes."""
    x = t.get("input")
    if op in MARGINS:
        inputs = [t["input1"], t["input2"]] if MARGINS[op] == 2 else [x]
        return getattr(F, op)(*inputs, t["target"], **a)
    if op == "ctc_loss":
        return ctc(t, a)
    if op == "triplet_margin_loss":
        return F.triplet_margin_loss(t["anchor"], t["positive"], t["negative"], **a)
    if op in ("multi_margin_loss", "multilabel_soft_margin_loss"):
        return getattr(F, op)(x, t["target"], weight=t.get("weight"), **a)
    if op in ("multilabel_margin_loss", "poisson_nll_loss"):
        return getattr(F, op)(x, t["target"], **a)
    if op == "gaussian_nll_loss":
        return F.gaussian_nll_loss(x, t["target"], t["var"], **a)
    if op == "pairwise_distance":
        return F.pairwise_distance(t["input1"], t["input2"], **a)
    if op in ("max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool3d"):
        return getattr(F, op)(x, **a, return_indices=True)
    if op == "max_unpool":
        n = x.dim() - 2
        return getattr(F, f"max_unpool{n}d")(x, t["indices"], 2, output_size=a["output_size"])
    if op == "grid_sample":
        return F.grid_sample(x, t["grid"], **a)
    if op == "affine_grid":
        return F.affine_grid(x, (x.shape[0], 1, *a["size"]), a["align_corners"])
    if op == "unflatten":
        return x.unflatten(**a)
    return getattr(F, op)(x, **a)


def cases(rand, choose):
    """(op, attributes, inputs, names without a gradient)"""
    signs = lambda *s: choose([-1.0, 1.0], *s)
    for op in ("softsign", "tanhshrink", "hardshrink", "softshrink"):
        yield op, {}, {"input": rand(3, 7)}, ()
    for op in ("hardshrink", "softshrink"):
        yield op, {"lambd": 0.9}, {"input": choose([-0.9, 0.0, 0.9, 2.0], 3, 5)}, ()
    for dtype in (torch.bfloat16, torch.float64):
        yield "softsign", {}, {"input": rand(9).to(dtype)}, ()
        yield "glu", {"dim": -1}, {"input": rand(3, 8).to(dtype)}, ()
    yield "threshold", {"threshold": 0.1, "value": 20.0}, {"input": rand(4, 5)}, ()
    yield "threshold", {"threshold": -0.5, "value": 0.0}, {"input": choose([-0.5, -1.0, 1.0], 9)}, ()
    for dim in (0, 1, -2):
        yield "glu", {"dim": dim}, {"input": rand(4, 6, 3)}, ()
        yield "softmin", {"dim": dim}, {"input": rand(4, 6, 3)}, ()
    for a in ({}, {"p": 1.0}, {"p": 3.0, "dim": -1}, {"dim": 0, "eps": 2.5}):
        yield "normalize", a, {"input": rand(4, 6, 3)}, ()
    for a in ({"size": 3}, {"size": 2, "alpha": 0.5}, {"size": 5, "alpha": 0.2, "beta": 0.5, "k": 2.0}, {"size": 9}):
        yield "local_response_norm", a, {"input": rand(2, 6, 3, 2)}, ()
    yield "local_response_norm", {"size": 3}, {"input": rand(2, 5, 4)}, ()
    # losses
    for r in ("mean", "sum", "none"):
        yield "hinge_embedding_loss", {"reduction": r}, {"input": rand(4, 5), "target": signs(4, 5)}, ("target",)
        yield "margin_ranking_loss", {"reduction": r, "margin": 0.3}, {"input1": rand(6), "input2": rand(6),
                                                                     "target": signs(6)}, ("target",)
        yield "cosine_embedding_loss", {"reduction": r, "margin": 0.1}, {"input1": rand(5, 4), "input2": rand(5, 4),
                                                                       "target": signs(5)}, ("target",)
        yield "soft_margin_loss", {"reduction": r}, {"input": rand(3, 4), "target": signs(3, 4)}, ("target",)
        yield "triplet_margin_loss", {"reduction": r}, {k: rand(5, 6) for k in ("anchor", "positive", "negative")}, ()
        yield "multi_margin_loss", {"reduction": r}, {"input": rand(5, 4), "target": choose(range(4), 5)}, ()
        yield "multilabel_soft_margin_loss", {"reduction": r}, {"input": rand(5, 4), "target": choose([0.0, 1.0], 5, 4)}, (
            "target",)
        yield "gaussian_nll_loss", {"reduction": r}, {"input": rand(4, 3), "target": rand(4, 3),
                                                      "var": rand(4, 3).abs()}, ()
        yield "poisson_nll_loss", {"reduction": r}, {"input": rand(4, 3), "target": rand(4, 3).abs() * 3}, ("target",)
        yield "ctc_loss", {"reduction": r}, {
            "input": rand(9, 3, 5), "target": choose(range(1, 5), 3, 3), "input_lengths": torch.tensor([9, 7, 8]),
            "target_lengths": torch.tensor([3, 0, 2])}, ()
    yield "hinge_embedding_loss", {"margin": 0.25}, {"input": rand(9), "target": signs(9)}, ("target",)
    yield "cosine_embedding_loss", {}, {"input1": rand(7), "input2": rand(7), "target": signs()}, ("target",)
    yield "soft_margin_loss", {}, {"input": rand(9) * 30, "target": signs(9)}, ("target",)
    for a in ({"swap": True}, {"p": 1.0, "margin": 0.2}, {"p": 3.0, "eps": 0.01, "margin": 2.0}):
        yield "triplet_margin_loss", a, {k: rand(5, 6) for k in ("anchor", "positive", "negative")}, ()
    weight = {"weight": rand(4).abs()}
    yield "multi_margin_loss", {"p": 2, "margin": 0.7}, {"input": rand(5, 4), "target": choose(range(4), 5), **weight}, (
        "weight",)
    yield "multi_margin_loss", {}, {"input": rand(4), "target": choose(range(4))}, ()
    for r in ("mean", "sum", "none"):
        yield "multilabel_margin_loss", {"reduction": r}, {
            "input": rand(3, 4), "target": torch.tensor([[3, 0, -1, 1], [2, 1, 0, 3], [-1, 0, 1, 2]])}, ()
    yield "multilabel_margin_loss", {}, {"input": rand(4), "target": torch.tensor([1, 3, -1, -1])}, ()
    yield "multilabel_soft_margin_loss", {}, {"input": rand(5, 4), "target": choose([0.0, 1.0], 5, 4), **weight}, (
        "target", "weight")
    yield "gaussian_nll_loss", {"full": True, "eps": 0.3}, {"input": rand(4, 3), "target": rand(4, 3),
                                                            "var": rand(4, 1).abs()}, ()
    yield "gaussian_nll_loss", {}, {"input": rand(4, 3), "target": rand(4, 3), "var": rand(4).abs()}, ()
    yield "poisson_nll_loss", {"full": True}, {"input": rand(4, 3), "target": choose([0.0, 1.0, 2.0, 7.0], 4, 3)}, ("target",)
    yield "poisson_nll_loss", {"log_input": False, "eps": 0.01}, {"input": rand(9).abs(), "target": rand(9).abs()}, ("target",)
    for a in ({}, {"p": 1.0, "keepdim": True}, {"p": 4.0, "eps": 0.1}):
        yield "pairwise_distance", a, {"input1": rand(5, 6), "input2": rand(5, 6)}, ()
    yield "ctc_loss", {"blank": 2, "reduction": "sum"}, {
        "input": rand(12, 2, 4), "target": torch.tensor([0, 0, 1, 3, 3]), "input_lengths": torch.tensor([12, 10]),
        "target_lengths": torch.tensor([3, 2])}, ()
    yield "ctc_loss", {"zero_infinity": True}, {
        "input": rand(3, 2, 4), "target": torch.tensor([[1, 1, 1], [1, 2, 3]]), "input_lengths": torch.tensor([3, 3]),
        "target_lengths": torch.tensor([3, 2])}, ()
    yield "ctc_loss", {}, {"input": rand(6, 4), "target": torch.tensor([1, 1]), "input_lengths": torch.tensor(6),
                           "target_lengths": torch.tensor(2)}, ()
    # pools
    volume = lambda: {"input": rand(1, 1, 4, 4, 5)}
    for a in ({"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": [1, 2, 3], "ceil_mode": True},
              {"kernel_size": 2, "stride": [2, 1, 2], "dilation": [1, 2, 1]}):
        yield "max_pool3d", a, volume(), ()
    yield "max_pool3d", {"kernel_size": 2}, {"input": choose([0.0, 1.0], 1, 4, 4, 4)}, ()
    for a in ({"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": [3, 2, 3], "ceil_mode": True},
              {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False, "ceil_mode": True},
              {"kernel_size": [2, 3, 1], "divisor_override": 5}):
        yield "avg_pool3d", a, volume(), ()
    yield "avg_pool3d", {"kernel_size": 2}, {"input": rand(3, 4, 4, 4).double()}, ()
    for op in ("adaptive_avg_pool3d", "adaptive_max_pool3d"):
        for size in ([2, 3, 4], [1, 1, 1], [4, 4, 5]):
            yield op, {"output_size": size}, volume(), ()
    for op in ("adaptive_avg_pool1d", "adaptive_max_pool1d"):
        yield op, {"output_size": 3}, {"input": rand(2, 3, 8)}, ()
        yield op, {"output_size": 5}, {"input": rand(3, 7)}, ()
    for size, shape in (([8], (2, 3, 4)), ([5, 6], (2, 3, 2, 3)), ([4, 3, 5], (1, 2, 2, 1, 2))):
        n = 1
        for s in size:
            n *= s
        places = torch.stack([torch.randperm(n)[:torch.Size(shape[2:]).numel()] for _ in range(shape[0] * shape[1])])
        yield "max_unpool", {"output_size": size}, {"input": rand(*shape), "indices": places.reshape(shape)}, ()
    # places
    yield "pixel_shuffle", {"upscale_factor": 2}, {"input": rand(2, 8, 3, 2)}, ()
    yield "pixel_shuffle", {"upscale_factor": 3}, {"input": rand(9, 2, 2)}, ()
    yield "pixel_unshuffle", {"downscale_factor": 2}, {"input": rand(2, 2, 3, 4, 6)}, ()
    yield "channel_shuffle", {"groups": 2}, {"input": rand(2, 6, 3, 2)}, ()
    yield "channel_shuffle", {"groups": 3}, {"input": rand(2, 6, 4)}, ()
    for a in ({"kernel_size": 2}, {"kernel_size": [2, 3], "padding": [1, 0], "stride": 2, "dilation": [2, 1]}):
        yield "unfold", a, {"input": rand(1, 2, 5, 6)}, ()
        columns = F.unfold(torch.zeros(1, 2, 5, 6), **a).shape
        yield "fold", {"output_size": [5, 6], **a}, {"input": rand(*columns)}, ()
    yield "unfold", {"kernel_size": 3}, {"input": rand(2, 4, 4)}, ()
    yield "fold", {"output_size": [4, 4], "kernel_size": 2}, {"input": rand(8, 9).bfloat16()}, ()
    yield "unflatten", {"dim": 1, "sizes": [2, 3]}, {"input": rand(4, 6)}, ()
    yield "unflatten", {"dim": -1, "sizes": [2, -1]}, {"input": rand(4, 6)}, ()
    for mode in ("bilinear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            for align in (False, True):
                yield "grid_sample", {"mode": mode, "padding_mode": padding, "align_corners": align}, {
                    "input": rand(2, 2, 3, 4), "grid": rand(2, 3, 2, 2) * 1.2}, ("grid",) if mode == "nearest" else ()
    yield "grid_sample", {"padding_mode": "reflection", "align_corners": True}, {"input": rand(1, 2, 1, 3),
                                                                               "grid": rand(1, 4, 1, 2) * 3}, ()
    for align in (False, True):
        yield "affine_grid", {"size": [3, 4], "align_corners": align}, {"input": rand(2, 2, 3)}, ()


def evaluate(op, attrs, inputs, without, dtype, upstream):
    """Outputs and gradients, in float64 if dtype says so."""
    t = {k: v.detach().to(dtype or v.dtype).clone().requires_grad_(k not in without) if v.is_floating_point() else v
         for k, v in inputs.items()}
    y = call(op, t, attrs)
    out = dict(zip(("output", "indices"), y)) if isinstance(y, tuple) else {"output": y}
    if upstream is None:
        upstream = torch.randn(out["output"].shape).to(out["output"].dtype)
    out["output"].backward(upstream.to(out["output"].dtype))
    grads = {f"grad.{k}": v.grad for k, v in t.items() if v.requires_grad and v.grad is not None}
    return {k: v.detach() for k, v in out.items()}, grads, upstream


def tolerance(got, exact):
    """8 times the error of PyTorch's own (16 bits: 3), and a part of the largest value."""
    low = got.dtype in (torch.bfloat16, torch.float16)
    a, b = got.double(), exact.double()
    finite = torch.isfinite(a) & torch.isfinite(b)
    if not finite.any():
        return 0.0
    error = (a - b).abs()[finite].max().item()
    part = {torch.float64: 1e-13, torch.float32: 1e-6}.get(got.dtype, 2 ** -8)
    return max(1e-12, (3 if low else 8) * error, part * b.abs()[finite].max().item())


def main(folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    rand = torch.randn
    choose = lambda among, *shape: torch.tensor(list(among))[torch.randint(len(list(among)), shape)]
    count = {}
    for op, attrs, inputs, without in cases(rand, choose):
        count[op] = count.get(op, 0) + 1
        name = f"{op}-{count[op]:02d}"
        out, grads, upstream = evaluate(op, attrs, inputs, without, None, None)
        out64, grads64, _ = evaluate(op, attrs, inputs, without, torch.float64, upstream)
        exact = {**out64, **grads64}
        atol = {k: tolerance(v, exact[k]) for k, v in {**out, **grads}.items() if v.is_floating_point()}
        case = {"family": "ops-more", "id": name, "op": op, "attrs": attrs, "tensors": f"{name}.safetensors",
                "inputs": {k: {"shape": list(v.shape), "dtype": str(v.dtype)[6:]} for k, v in inputs.items()},
                "atol": atol, "rtol": dict.fromkeys(atol, 0.0), "outputs": list(out), "gradients": list(grads)}
        (folder / f"{name}.json").write_text(json.dumps(case) + "\n")
        tensors = {**inputs, **out, **grads, "grad_output": upstream}
        save_file({k: v.contiguous().clone() for k, v in tensors.items()}, str(folder / f"{name}.safetensors"))
    print(sum(count.values()), "cases")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
