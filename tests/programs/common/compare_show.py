"""Compares ds_show's output for files with tests/golden/pth/NAME.json: compare_show.py DS_SHOW FOLDER.

SPDX-License-Identifier: MIT
"""
import json
import math
import os
import subprocess
import sys

NEWER = {"protocol4.pth", "numpy_values.pth"}  # PyTorch refuses these; reading them is safe here
CHECKED = {"wrong_crc.pth"}                    # PyTorch does not look at check sums


def show(program, path):
    done = subprocess.run([program, "--json", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else done.returncode


def same(want, got):
    if got is None or want.get("class") != got.get("class"):
        return False
    if "tensor" not in want:
        return all(want.get(key) == got.get(key) for key in ("value", "empty"))
    if (want["tensor"], want["shape"], want["first_values"]) != (got["dtype"], got["shape"], got["first_values"]):
        return False
    if want["sum"] is None or isinstance(got["sum"], str):
        return want["sum"] in (None, got["sum"])
    return math.isclose(want["sum"], got["sum"], rel_tol=1e-12, abs_tol=1e-12)


def compare(name, want, contents):
    got = {leaf["path"]: leaf for leaf in contents}
    bad = [leaf["path"] for leaf in want if not same(leaf, got.pop(leaf["path"], None))]
    for path in bad + list(got):
        print(f"{name}: {path or 'the value'} differs")
    return bool(bad or got)


def check(program, folder, case):
    name = case["file"]
    said = show(program, os.path.join(folder, name))
    if not case["loads"] or name in CHECKED:
        if said != 2 and name not in NEWER:
            print(f"{name}: it was read")
            return True
        return False
    if isinstance(said, int):
        print(f"{name}: status {said}")
        return True
    return compare(name, case["contents"], said["contents"])


def main(program, folder):
    cases = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".json"):
            with open(os.path.join(folder, name), encoding="utf-8") as f:
                cases.append(json.load(f))
    cases = [case for case in cases if not case.get("kind")]  # the others are folders
    bad = [case for case in cases if check(program, folder, case)]
    print(len(cases), "files")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
