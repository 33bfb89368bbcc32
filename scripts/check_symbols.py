#!/usr/bin/env python3
"""Check that a shared library exports each DS_API function of the headers and nothing else but what has the
version DEEPSPEED_PRIVATE; and that the list is the committed one, so that no change of the ABI is an accident.

usage: check_symbols.py LIBRARY.so INCLUDE_DIR LIST    compares
       check_symbols.py --write LIBRARY.so LIST        writes the list
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import subprocess
import sys

DECLARED = re.compile(r'^DS_API\b[^;(]*?\b(ds_\w+)\(', re.M)

VERSIONS = {'DEEPSPEED_0', 'DEEPSPEED_PRIVATE'}  # of cmake/libdeepspeed.map


def symbols(library):
    table = subprocess.run(['nm', '-D', '--defined-only', library], check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    names = [line.split()[-1].replace('@@', '@').partition('@')[::2] for line in table.splitlines()]
    return {name for name, version in names if name not in VERSIONS and version != 'DEEPSPEED_PRIVATE'}


def write(library, listed):
    pathlib.Path(listed).write_text('\n'.join(sorted(symbols(library))) + '\n')


def main(library, include, listed):
    shown = symbols(library)
    declared = {}
    for header in sorted(pathlib.Path(include).rglob('*.h')):
        for name in DECLARED.findall(header.read_text()):
            declared[name] = header.name
    bad = [f'{name}: exported, but no header declares it' for name in sorted(shown - set(declared))]
    bad += [f'{name}: declared in {declared[name]}, but the library does not have it'
            for name in sorted(set(declared) - shown)]
    known = set(pathlib.Path(listed).read_text().split())
    name = pathlib.Path(listed).name
    bad += [f'{s}: gone, and {name} has it: programs that use it would not start' for s in sorted(known - shown)]
    bad += [f'{s}: new: add it to {name} (check_symbols.py --write)' for s in sorted(shown - known)]
    print('\n'.join(bad) or f'symbols: {len(shown)} exported, all declared')
    return bool(bad)


if __name__ == '__main__':
    if len(sys.argv) == 4 and sys.argv[1] == '--write':
        sys.exit(write(*sys.argv[2:]))
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
