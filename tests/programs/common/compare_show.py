"""What ds_show says of a file beside tests/golden/pth/NAME.json: compare_show.py DS_SHOW FOLDER JSON.

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
    done = subprocess.run([program, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
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


def main(program, folder, about):
    with open(about, encoding="utf-8") as f:
        case = json.load(f)
    if case.get("kind"):
        return 0  # a folder
    said = show(program, os.path.join(folder, case["file"]))
    if not case["loads"] or case["file"] in CHECKED:
        return 0 if said == 2 or case["file"] in NEWER else f"{case['file']}: status {said}"
    return said if isinstance(said, int) else compare(case["file"], case["contents"], said["contents"])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
