#!/usr/bin/env python3
"""Check that files and functions are short enough to be read.

usage: check_length.py FOLDER...

A file of more than 800 lines, or a function whose body has more than 60, is an error; for a file of more
than 600 a line is printed. A body begins with "{" and ends with "}" in the first column, as clang-format
writes them.
SPDX-License-Identifier: MIT
"""
import pathlib
import sys

FILE_AIM, FILE_MOST, FUNCTION_MOST = 600, 800, 60


def long_functions(lines):
    """-> (line number of the name, lines of the body) of each that is too long"""
    begin = None
    for number, line in enumerate(lines, 1):
        if line.startswith('{'):
            begin = number
        elif line.startswith('}') and begin:
            if number - begin - 1 > FUNCTION_MOST:
                yield begin - 1, number - begin - 1
            begin = None


def main(folders):
    bad, count = [], 0
    for path in sorted(p for f in folders for p in pathlib.Path(f).rglob('*.[ch]')):
        lines = path.read_text().splitlines()
        count += 1
        if len(lines) > FILE_MOST:
            bad.append(f'{path}: {len(lines)} lines, at most {FILE_MOST}')
        elif len(lines) > FILE_AIM:
            print(f'{path}: {len(lines)} lines, the aim is {FILE_AIM}')
        bad += [f'{path}:{at}: a function of {n} lines, at most {FUNCTION_MOST}'
                for at, n in long_functions(lines)]
    print('\n'.join(bad) or f'lengths: {count} files')
    return bool(bad)


if __name__ == '__main__':
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
