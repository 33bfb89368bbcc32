"""A file of zero_to_fp32 beside what DeepSpeed's script of that name says: compare_fp32.py FOLDER FILE [TAG].

Without arguments: status 0 if torch and DeepSpeed are here.
SPDX-License-Identifier: MIT
"""
import sys

import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint


def main(folder, path, tag=None):
    want = get_fp32_state_dict_from_zero_checkpoint(folder, tag=tag)
    got = torch.load(path, weights_only=True)
    bad = [name for name in {*want, *got} if name not in want or name not in got
           or not torch.equal(want[name].float() if want[name].is_floating_point() else want[name], got[name])]
    print("\n".join(f"{name} differs" for name in bad))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else 0)
