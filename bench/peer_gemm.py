#!/usr/bin/env python3
"""bench/peer_gemm.py: compares bench/gemm.c with PyTorch: the same products by both, in turns.

    taskset -c 3 python3 bench/peer_gemm.py                             float32
    taskset -c 3 python3 bench/peer_gemm.py --dtype bfloat16 square     only rows that hold "square"
    DS_CPU=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 python3 bench/peer_gemm.py
    taskset -c 2,3 python3 bench/peer_gemm.py --threads 2

bench_gemm waits for rows ("bench_gemm -") while PyTorch has its turn of 3 ms or more. The last column is the median of
the turns' ratios, above 1 where ours is faster. With one thread, thread time is measured, so that other load on
the core does not count.
SPDX-License-Identifier: MIT
"""
import argparse
import os
import statistics
import subprocess
import time

import torch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def operand(batch, rows, cols, transposed, dtype):
    shape = (batch, cols, rows) if transposed else (batch, rows, cols)
    x = torch.rand(shape).to(dtype)
    x = x.transpose(1, 2) if transposed else x
    return x[0] if batch == 1 else x


def seconds(run, times, now):
    begin = now()
    for _ in range(times):
        run()
    return (now() - begin) / times


def main():
    parser = argparse.ArgumentParser(description="Matrix products: ours and PyTorch's, in turns.")
    parser.add_argument("rows", nargs="?", default="", help="only rows whose first words hold this")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--bench", default=os.path.join(ROOT, "build", "release", "bench_gemm"))
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    now = time.thread_time if o.threads == 1 else time.perf_counter
    ours = subprocess.Popen([o.bench, "-", o.dtype], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env=dict(os.environ, DS_THREADS=str(o.threads)))

    def ask(line):
        ours.stdin.write(line + "\n")
        ours.stdin.flush()
        return ours.stdout.readline().split()

    count = int(ask("rows")[0])
    for row in range(count):
        *name, batch, m, n, k, ta, tb = ask(f"row {row}")
        batch, m, n, k = (int(x) for x in (batch, m, n, k))
        label = f"{name[0]:10} {'NT'[int(ta)]}{'NT'[int(tb)]} {f'{batch} x ' if batch > 1 else ''}{m} {n} {k}"
        if o.rows not in label:
            continue
        dtype = getattr(torch, o.dtype)
        a, b = operand(batch, m, k, ta == "1", dtype), operand(batch, k, n, tb == "1", dtype)
        y = operand(batch, m, n, False, dtype)
        run = lambda: torch.matmul(a, b, out=y)
        run()
        times = 1 + int(0.003 / seconds(run, 1, now))
        turns = [(float(ask("turn")[0]), seconds(run, times, now)) for _ in range(o.turns)]
        gf = 2e-9 * batch * m * n * k
        mine, theirs = (statistics.median(t[i] for t in turns) for i in range(2))
        ratio = statistics.median(t[1] / t[0] for t in turns)
        print(f"{label:30} {1e6 * mine:10.2f} us {gf / mine:7.1f} GF/s   PyTorch {gf / theirs:7.1f} GF/s {ratio:6.2f}",
              flush=True)
    ours.stdin.close()
    ours.wait()


if __name__ == "__main__":
    main()
