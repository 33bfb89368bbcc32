#!/usr/bin/env python3
"""all_reduce of float32 among two processes of this machine, beside MPI's own and gloo's.

usage: bench/peer_comm.py [--runs N] [--ranks P] [BYTES ...]      (5, 2, 65536 33554432)

Microseconds; runs of all take turns. `median` is the median of the runs' medians,
`least` the least time of all runs. With two ranks a line says what copying as
many bytes through shared memory alone takes, in turns with the all_reduce of the
same two processes (bench/comm.c), and `of copies` is the speed of an all_reduce
beside that: of a run's medians and of its least times, the median over the runs.
SPDX-License-Identifier: MIT
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPENMPI = ['mpirun.openmpi', '--allow-run-as-root', '--oversubscribe', '--bind-to', 'none', '--mca', 'plm', 'isolated',
           '--mca', 'pml', 'ob1', '--mca', 'btl', 'self,vader,tcp']
MPICH = ['mpiexec.mpich']

GLOO = '''
import os, statistics, sys, time, torch, torch.distributed as dist
rank, ranks, port = map(int, sys.argv[1:4])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
for size in map(int, sys.argv[4:]):
    x, took = torch.zeros(size // 4), []
    for i in range(-3, 500 if size < 1 << 20 else 15):
        begun = time.perf_counter()
        dist.all_reduce(x)
        if i >= 0:
            took.append((time.perf_counter() - begun) * 1e6)
    if rank == 0:
        print(size, statistics.median(took), min(took), flush=True)
dist.barrier()
os._exit(0)  # its threads may abort the process at a normal end
'''


def lines(command, **environment):
    done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f'{command}: status {done.returncode}')
    return [list(map(float, line.split())) for line in done.stdout.splitlines()]


def gloo(ranks, sizes, port):
    words = [str(w) for w in sizes]
    others = [subprocess.Popen([sys.executable, '-c', GLOO, str(r), str(ranks), str(port), *words])
              for r in range(1, ranks)]
    found = lines([sys.executable, '-c', GLOO, '0', str(ranks), str(port), *words])
    for other in others:
        other.wait()
    return found


def peers(ranks, sizes, folder):
    """name: what runs it and returns its lines, for what is installed here."""
    words, n = [str(s) for s in sizes], ['-n', str(ranks)]
    ours = str(ROOT / 'build/release/bench_comm')
    runs = {}
    for name, start, compiler in (('Open MPI', OPENMPI, 'mpicc.openmpi'), ('MPICH', MPICH, 'mpicc.mpich')):
        if not shutil.which(start[0]):
            continue
        runs[f'here, under {name}'] = lambda s=start: lines([*s, *n, ours, *words], DS_COLLECTIVES='shared')
        runs[f'here, messages of {name}'] = lambda s=start: lines([*s, *n, ours, *words], DS_COLLECTIVES='messages')
        if shutil.which(compiler):
            program = f'{folder}/{compiler}'
            subprocess.run([compiler, '-O2', '-o', program, ROOT / 'bench/peers/all_reduce.c'], check=True)
            runs[f"{name}'s MPI_Allreduce"] = lambda s=start, p=program: lines([*s, *n, p, *words])
    try:
        import torch  # noqa: F401
        port = iter(range(29610, 29999))
        runs['gloo (PyTorch)'] = lambda: gloo(ranks, sizes, next(port))
    except ImportError:
        print('PyTorch is not here (DS_PEER_PYTHON): no gloo')
    return runs


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--runs', type=int, default=5)
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('sizes', type=int, nargs='*', default=[65536, 32 << 20])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = peers(options.ranks, options.sizes, folder)
        times = {}  # (name, bytes): [(median, least)]
        speeds = {}  # the same: of copies in the same run
        for _ in range(options.runs):
            for name, run in runs.items():
                for line in run():
                    times.setdefault((name, line[0]), []).append(line[1:3])
                    if len(line) > 3 and line[3] > 1:
                        times.setdefault(('copies alone', line[0]), []).append(line[3:5])
                        speeds.setdefault((name, line[0]), []).append((line[3] / line[1], line[4] / line[2]))
    print(f'{options.ranks} ranks, all_reduce of float32, microseconds: median, least; of copies: median, least')
    for size in options.sizes:
        print(f'{size} bytes')
        rows = {name: found for (name, of), found in times.items() if of == size}
        for name, found in sorted(rows.items(), key=lambda row: statistics.median(m for m, _ in row[1])):
            print(f'  {name:30} {statistics.median(m for m, _ in found):10.1f} {min(at for _, at in found):10.1f}', end='')
            copied = speeds.get((name, size)) if name != 'copies alone' else None
            print(''.join(f' {100 * statistics.median(s[k] for s in copied):7.0f} %' for k in (0, 1)) if copied else '')


if __name__ == '__main__':
    main()
