"""Reads and writes files beside tests/checkpoint/peer.c: python3 peer.py read|write FOLDER.

read: what peer.c saved, with torch and safetensors; each failure is a line, the status is their number.
write: what torch.save makes of the same things, for peer.c to load.
SPDX-License-Identifier: MIT
"""
import copy
import sys

try:
    import torch
except ImportError:
    print("no torch")
    sys.exit(77)

DTYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
OPTIMIZERS = {
    "SGD": dict(lr=0.1, momentum=0.9), "Adam": dict(lr=0.1, amsgrad=True), "AdamW": dict(lr=0.1, weight_decay=0.1),
    "Adagrad": dict(lr=0.1), "RMSprop": dict(lr=0.1, momentum=0.5, centered=True), "Adadelta": dict(lr=1.0),
    "Adamax": dict(lr=0.1), "NAdam": dict(lr=0.1), "RAdam": dict(lr=0.1)}
failures = 0


def check(ok, what):
    global failures
    if not ok:
        print("not so:", what)
        failures += 1


def params():
    return [torch.nn.Parameter(torch.tensor([[1.0, -2, 3], [-4, 5, -6]])), torch.nn.Parameter(torch.tensor([0.5, -0.5]))]


def steps(opt, ps, first, last):
    for i in range(first, last):
        ps[0].grad = torch.full_like(ps[0], 0.5 - 0.25 * i)
        ps[1].grad = torch.full_like(ps[1], 1.0 / (1 + i))
        opt.step()


def zoo():
    flat = torch.arange(24.0)
    return {"epoch": 7, "loss": 0.125, "name": "ü✓", "none": None, "flag": True, "big": 2 ** 40, "bytes": b"\x00\xff",
            "nested": [1, (2, "x"), {"a": torch.ones(2)}], "flat": flat, "tail": flat[20:], "t": flat.view(4, 6).t(),
            **{d: torch.arange(6).reshape(2, 3).to(getattr(torch, d)) for d in DTYPES}}


def objects():
    """Other objects in a training's files; strings are what each becomes here."""
    import argparse, collections, datetime, decimal, fractions, pathlib, types
    import numpy as np
    return {"ns": argparse.Namespace(lr=0.5), "sns": types.SimpleNamespace(lr=0.5), "path": pathlib.Path("/a/b"),
            "dt": datetime.datetime(2024, 5, 1, 12, 34, 56, 789, tzinfo=datetime.timezone.utc), "cplx": 1 + 2j,
            "td": datetime.timedelta(minutes=1), "dec": decimal.Decimal("1.50"), "deque": collections.deque([1, 2], 5),
            "key": {(1, (2, "a")): 3}, "u16": torch.tensor([1, 65535], dtype=torch.uint16), "str_": np.str_("hi"),
            "np": np.arange(3, dtype=np.uint32), "range": range(1, 9, 2), "frac": fractions.Fraction(1, 3),
            "f8": torch.ones(2).to(torch.float8_e4m3fn), "module": torch.nn.Linear(2, 1)}


def same(a, b, path):
    if isinstance(b, torch.Tensor):
        check(isinstance(a, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b), path)
    elif isinstance(b, dict):
        check(list(a) == list(b), path + " has keys " + str(list(a)))
        for k in b:
            same(a[k], b[k], f"{path}/{k}")
    elif isinstance(b, (list, tuple)):
        check(type(a) is type(b) and len(a) == len(b), path)
        for i, x in enumerate(b):
            same(a[i], x, f"{path}/{i}")
    else:
        check(type(a) is type(b) and a == b, path)


def read(folder):
    for trust in (True, False):
        z = torch.load(f"{folder}/zoo.pth", weights_only=trust)
        same(z, zoo(), "zoo")
    check(z["flat"].untyped_storage().data_ptr() == z["tail"].untyped_storage().data_ptr(), "shared storage")
    z = torch.load(f"{folder}/zoo.pth", mmap=True, weights_only=True)
    same(z, zoo(), "zoo, mapped")
    z = torch.load(f"{folder}/known.pth", weights_only=True)
    check(z["cplx"] == 1 + 2j and z["npscalars"][7] == 1 + 2j, "complex numbers")
    check(z["tkey"] == {(1, (2, "a")): 3} and z["path"] == "/a/b/c.txt" and z["rng"] == (1, 10, 2), "objects, saved again")
    state = torch.load(f"{folder}/state.pth", weights_only=True)
    check(type(state).__name__ == "OrderedDict", "a state dict is an OrderedDict")
    for name, options in OPTIMIZERS.items():
        ps = params()
        opt = getattr(torch.optim, name)(ps, lr=0.5)
        saved = torch.load(f"{folder}/{name}.pth", weights_only=True)
        reference = getattr(torch.optim, name)(params(), **options).state_dict()["param_groups"][0]
        missing = set(reference) - set(saved["optim"]["param_groups"][0]) - {"capturable", "fused"}
        check(not missing, f"{name}: param_groups lacks {missing}")
        opt.load_state_dict(saved["optim"])
        with torch.no_grad():
            for p, q in zip(ps, saved["before"]):
                p.copy_(q)
        steps(opt, ps, 3, 6)
        for p, q in zip(ps, saved["after"]):
            check(torch.allclose(p, q, rtol=1e-5, atol=1e-6), f"{name} goes on otherwise: {p} {q}")
    try:
        from safetensors.torch import load_file
    except ImportError:
        return
    same(load_file(f"{folder}/state.safetensors"), dict(state), "state.safetensors")


def write(folder):
    torch.save(zoo(), f"{folder}/zoo.pth")
    for protocol in (2, 3, 4, 5):
        torch.save(objects(), f"{folder}/objects{protocol}.pth", pickle_protocol=protocol)
    torch.save(zoo(), f"{folder}/zoo_old.pth", _use_new_zipfile_serialization=False)
    for protocol in (3, 4, 5):
        torch.save(zoo(), f"{folder}/zoo{protocol}.pth", pickle_protocol=protocol)
    for name, options in OPTIMIZERS.items():
        ps = params()
        opt = getattr(torch.optim, name)(ps, **options)
        steps(opt, ps, 0, 3)
        saved = {"optim": copy.deepcopy(opt.state_dict()), "before": [p.detach().clone() for p in ps]}
        steps(opt, ps, 3, 6)
        saved["after"] = [p.detach().clone() for p in ps]
        torch.save(saved, f"{folder}/{name}.pth")


torch.set_num_threads(1)
{"read": read, "write": write}[sys.argv[1]](sys.argv[2])
sys.exit(min(failures, 70))
