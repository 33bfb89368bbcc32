#!/usr/bin/env python3
"""Check the text of the tree: a licence line in each source file, nothing left to do, no machine's paths.

usage: check_text.py ROOT
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import sys

FOLDERS = ('include', 'src', 'launcher', 'tools', 'tests', 'bench', 'examples', 'scripts', 'cmake', 'docs', '.ci')
TEXT = ('.c', '.h', '.cu', '.cuh', '.py', '.sh', '.cmake', '.txt', '.md', '')
LICENSED = ('.c', '.h', '.cu', '.cuh', '.py')

# (what, message); the letters in brackets keep this file from naming itself
FORBIDDEN = (
    (re.compile(r'\b(TO[D]O|FIXM[E]|XX[X])\b'), 'is to be done, not to be noted'),
    (re.compile(r'(?<![\w.])/(ho[m]e|ro[o]t|wo[r]k|Us[e]rs|mn[t])/'), "a path of somebody's machine"),
    (re.compile(r'-march=nativ[e]'), 'kernels are chosen at run time'),
    (re.compile(r'[ \t]+$'), 'blanks at the end of the line'),
)


def files(root):
    yield from (p for p in root.iterdir() if p.is_file() and not p.name.startswith('.git'))
    for folder in FOLDERS:
        yield from (p for p in (root / folder).rglob('*') if p.is_file())


def main(root):
    root, bad, count = pathlib.Path(root), [], 0
    for path in sorted(files(root)):
        if path.suffix not in TEXT or '__pycache__' in path.parts or 'golden' in path.parts:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue # a file without an ending that is no text
        count += 1
        name = path.relative_to(root)
        if path.suffix in LICENSED and 'SPDX-License-Identifier: MIT' not in text[:3000]:
            bad.append(f'{name}:1: no line "SPDX-License-Identifier: MIT"')
        if text and not text.endswith('\n'):
            bad.append(f'{name}: the last line does not end')
        for number, line in enumerate(text.split('\n'), 1):
            bad += [f'{name}:{number}: {hit.group().strip()!r}: {why}'
                    for what, why in FORBIDDEN for hit in [what.search(line)] if hit]
    print('\n'.join(bad) or f'text: {count} files')
    return bool(bad)


if __name__ == '__main__':
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
