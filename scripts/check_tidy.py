#!/usr/bin/env python3
"""Run clang-tidy over src/, a few files at a time.

usage: check_tidy.py BUILD_FOLDER [CLANG_TIDY]

Takes the flags from BUILD_FOLDER/compile_commands.json. It has the kernels once for each instruction set;
here they are checked once, with the flags of the last. The analyzer follows fewer paths than by default: a third
as many, in the CPU's kernels a ninth. DS_TIDY_NODES=225000 makes it follow all.
SPDX-License-Identifier: MIT
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

KNOWS = pathlib.Path(__file__).resolve().parent / 'analyzer.h'


def main(build, tidy='clang-tidy'):
    rows = json.loads((pathlib.Path(build) / 'compile_commands.json').read_text())
    by_file = {row['file']: row for row in rows if '/src/' in row['file'] and row['file'].endswith('.c')}
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / 'compile_commands.json').write_text(json.dumps(list(by_file.values())))

        def run(path):
            nodes = os.environ.get('DS_TIDY_NODES', '25000' if '/device/cpu/' in path else '75000')
            paths = [f'--extra-arg={word}' for word in ('-Xclang', '-analyzer-config', '-Xclang', f'max-nodes={nodes}')]
            knows = [] if path.endswith('base/error.c') else ['--extra-arg=-include', f'--extra-arg={KNOWS}']
            done = subprocess.run([tidy, '--quiet', '-p', folder, *paths, *knows, path], text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            said = [line.replace(f'{os.getcwd()}/', '') for line in done.stdout.splitlines() if re.search(': (warning|error): ', line)]
            return said or ([done.stderr] if done.returncode else [])

        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            said = [line for lines in pool.map(run, sorted(by_file)) for line in lines]
    said = sorted(set(said))  # a header is read by many
    print('\n'.join(said) or f'clang-tidy: {len(by_file)} files')
    return bool(said)


if __name__ == '__main__':
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
