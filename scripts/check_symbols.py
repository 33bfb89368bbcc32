#!/usr/bin/env python3
"""Check that a shared library exports each DS_API function of the headers and nothing else; and that the list
is the committed one, so that no change of the ABI is an accident.

usage: check_symbols.py LIBRARY.so INCLUDE_DIR LIST    compares
       check_symbols.py --write LIBRARY.so LIST        writes the list
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import subprocess
import sys

DECLARED = re.compile(r'^DS_API\b[^;(]*?\b(ds_\w+)\(', re.M)


def symbols(library):
    table = subprocess.run(['nm', '-D', '--defined-only', library], check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    return {line.split()[-1].split('@')[0] for line in table.splitlines()}


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
