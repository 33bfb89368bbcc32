#!/usr/bin/env python3
"""Check what a shared library shows: each DS_API function of the headers, nothing else.

usage: check_symbols.py LIBRARY.so INCLUDE_DIR
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import subprocess
import sys

DECLARED = re.compile(r'^DS_API\b[^;(]*?\b(ds_\w+)\(', re.M)


def main(library, include):
    table = subprocess.run(['nm', '-D', '--defined-only', library], check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    shown = {line.split()[-1].split('@')[0] for line in table.splitlines()}
    declared = {}
    for header in sorted(pathlib.Path(include).rglob('*.h')):
        for name in DECLARED.findall(header.read_text()):
            declared[name] = header.name
    bad = [f'{name}: exported, but no header declares it' for name in sorted(shown - set(declared))]
    bad += [f'{name}: declared in {declared[name]}, but the library does not have it'
            for name in sorted(set(declared) - shown)]
    print('\n'.join(bad) or f'symbols: {len(shown)} exported, all declared')
    return bool(bad)


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
