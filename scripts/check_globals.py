#!/usr/bin/env python3
"""Check that the library has no variable that two threads could change, except those in a list.

usage: check_globals.py ALLOWED.txt LIBRARY.a

Looks in the compiled library for objects in .data or .bss that are neither thread-local nor
constant. ALLOWED.txt has one line each:   object file   variable   reason
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import subprocess
import sys

WRITABLE = re.compile(r'^(\.data|\.bss|COMMON)(?!\.rel\.ro)')


def variables(library):
    """-> (object file, variable) of each writable one, and (object file, '') of each file"""
    table = subprocess.run(['nm', '-f', 'sysv', '--defined-only', library], check=True, text=True,
                           stdout=subprocess.PIPE).stdout
    home = ''
    for line in table.splitlines():
        # "Symbols from libdeepspeed.a[work.c.o]:"
        title = re.match(r'.*\[(.+?)(\.c)?\.o\]:', line)
        if title:
            home = title.group(1) + '.c'
            yield home, ''
        fields = [f.strip() for f in line.split('|')]
        if len(fields) == 7 and fields[3] == 'OBJECT' and WRITABLE.match(fields[6]):
            yield home, re.sub(r'\.\d+$', '', fields[0])  # a local static is name.7


def main(allowed, library):
    may = {tuple(line.split()[:2]) for line in open(allowed) if line.strip() and line[0] != '#'}
    objects = set(variables(library))
    built = {home for home, name in objects}
    found = {(home, name) for home, name in objects if name}
    bad = [f'src: {home}: {name} is shared by all threads and can change; see {allowed}'
           for home, name in sorted(found - may)]
    # a build without CUDA does not have all files of src
    bad += [f'{allowed}: {home} {name} does not exist any more' for home, name in sorted(may - found)
            if home in built or not any(pathlib.Path('src').rglob(home))]
    print('\n'.join(bad) or f'globals: {len(found)}, all with a reason')
    return bool(bad)


if __name__ == '__main__':
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
