#!/usr/bin/env python3
"""Check the text of the tree: licences, notes, paths of machines, and the English of prose.

usage: check_text.py ROOT

Each source file has a licence line. Nothing is noted for later; no path belongs to one machine. Markdown,
comments and messages use none of the constructions in PROSE (CONTRIBUTING.md, "Words"). Text in backticks
or quotes is not prose. A phrase that is right all the same is listed in ALLOWED.

SPDX-License-Identifier: MIT
"""
import pathlib
import re
import sys

import prose

FOLDERS = ('include', 'src', 'launcher', 'tools', 'tests', 'bench', 'examples', 'fuzz', 'scripts', 'cmake', 'docs', '.ci')
TEXT = ('.c', '.h', '.cu', '.cuh', '.py', '.sh', '.cmake', '.txt', '.md', '')
LICENSED = ('.c', '.h', '.cu', '.cuh', '.py')

# (pattern, message); the letters in brackets keep this file from naming itself
FORBIDDEN = (
    (re.compile(r'\b(TO[D]O|FIXM[E]|XX[X])\b'), 'do it or leave it out, but make no note of it'),
    (re.compile(r'(?<![\w.])/(ho[m]e|ro[o]t|wo[r]k|Us[e]rs|mn[t])/'), 'this path belongs to one machine'),
    (re.compile(r'-march=nativ[e]'), 'kernels are chosen at run time'),
    (re.compile(r'[ \t]+$'), 'blanks at the end of the line'),
    (re.compile(r'^(<{7}|>{7}) '), 'a conflict of git'),
)

# Constructions that make a reader stop: (pattern, what to write). A blank in a
# pattern matches a line break too.
PROSE = [(re.compile(pattern.replace(' ', r'\s+'), re.M), advice) for pattern, advice in (
    (r'(?<!\w)[Ss]t(?:ands?|ood)\b(?! (?:for|alone)\b)(?!-)', 'say "is", "is at" or "works"'),
    (r'\b(?:lies|lying)\b|\b(?:may|that|they|it|bytes|shards|tensors|files) lie\b', 'say "is", "is in" or "is stored"'),
    (r'\bgoes\b', 'name the action: "is written", "continues", "is passed"'),
    (r"\bone's\b", 'say whose: "your own", "custom"'),
    (r'(?:^|[,;:(] |for |after |every |each |by |than )so (?:many|much|often|long)\b(?! (?:that|as)\b)',
     'say the quantity: "N seconds"'),
    (r'\bso many\b(?! that\b)', 'say the quantity: "N seconds"'),
    (r'(?:\A|[.;!?] |^- )(?:What|Who|Whoever|Whatever)\b(?![^.?]*\?)', 'begin with a noun'),
    (r'\b(?:for|by|with|from|to|of|than|as|and) (?:who|whoever)\b', 'put a noun before "who"'),
    (r'\b(?:who|what) (?:asks|comes) \w+s\b', 'put a noun before the clause'),
    (r'\b(?:is|are|was) told of\b', 'say which error or message'),
    (r'\b[Nn]obody\b', 'say what does not happen'),
    (r"\b[Hh]ouses?\b|\bfloors?\b(?!\s?\(| floor_divide)|\brooms?\b", 'say "module", "layer", "space"'),
    (r'\b(?:as good as|at sight|said aloud|just if|anew|and its like|and their like)\b', 'use a plainer word'),
    (r'\bbut for\b', 'say "except"'),
    (r'\b(?:let|lets|letting) go\b', 'say "release"'),
    (r'\bheld against\b', 'say "compared with"'),
    (r'\bnobody\'s\b', 'say what does not happen'),
)]

# file (or the end of its path): phrases in it that are right all the same
ALLOWED = {
    'scripts/check_text.py': ('',), # names them all
    'src/base/aio.c': ('make room',), # a message: free space on a disk
    'data/fetch.c': ('make room',),
}


def files(root):
    yield from (p for p in root.iterdir() if p.is_file() and not p.name.startswith('.git'))
    for folder in FOLDERS:
        yield from (p for p in (root / folder).rglob('*') if p.is_file())


def constructions(path, text, name):
    """-> (line, phrase, advice) of each construction in the prose of a file"""
    allowed = [phrase for end, phrases in ALLOWED.items() if name.endswith(end) for phrase in phrases]
    if '' in allowed:
        return
    for first, paragraph in prose.prose(path, text):
        said = re.sub(r'`[^`]*`|"[^"]*"|\b[Nn]ote\s+\[[^\]]*\]', lambda q: re.sub(r'[^\n]', '_', q[0]), paragraph)
        for pattern, advice in PROSE:
            for hit in pattern.finditer(said):
                phrase = ' '.join(hit[0].split())
                around = ' '.join(said[max(0, hit.start() - 30):hit.end() + 30].split())
                if not any(a in around for a in allowed):
                    yield first + said.count('\n', 0, hit.start()), phrase, advice


def check(path, name, text):
    """-> what is wrong with a file, its English aside"""
    if path.suffix in LICENSED and 'SPDX-License-Identifier: MIT' not in text[:3000]:
        yield f'{name}:1: no line "SPDX-License-Identifier: MIT"'
    if text and not text.endswith('\n'):
        yield f'{name}: the last line does not end'
    for number, line in enumerate(text.split('\n'), 1):
        yield from (f'{name}:{number}: {hit.group().strip()!r}: {why}'
                    for pattern, why in FORBIDDEN for hit in [pattern.search(line)] if hit)


def main(root):
    root, bad, count = pathlib.Path(root), [], 0
    for path in sorted(files(root)):
        if path.suffix not in TEXT or {'golden', 'seeds', '__pycache__'} & set(path.parts):
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue # a file without an ending that is no text
        count += 1
        name = str(path.relative_to(root))
        bad += check(path, name, text)
        bad += [f'{name}:{line}: "{phrase}": {advice}' for line, phrase, advice in constructions(path, text, name)]
    print('\n'.join(bad) or f'text: {count} files')
    return bool(bad)


if __name__ == '__main__':
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else __doc__)
