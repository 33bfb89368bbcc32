#!/usr/bin/env python3
"""Check that the examples in the documents are true.

usage: check_docs.py ROOT [CC]

In README.md, CONTRIBUTING.md, ARCHITECTURE.md, docs/*.md and src/*/README.md:
- a ```c block with a main function compiles as it stands, and so does, behind #include <deepspeed.h>,
  a block after a line "<!-- compiles -->";
- the first word of each command in a ```sh block is a file of the tree or an ordinary command;
- a link to a file of the tree leads to one.
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r'^(?P<mark><!-- compiles -->\n+)?```(?P<kind>c|sh)\n(?P<text>.*?)^```$', re.M | re.S)
LINK = re.compile(r'\]\((?!https?:|#)([^)#\s]+)')
ORDINARY = {'cmake', 'cpack', 'doxygen', 'mpirun', 'ctest', 'git', 'cc', 'gcc', 'clang', 'cd', 'python3', 'export', 'sudo', 'apt-get',
            'docker', 'mkdir', 'tar', 'curl', 'clang-format', 'gdb', 'perf', 'taskset', 'pkg-config', 'ls', 'deepspeed'}
WARNINGS = ['-std=c11', '-Wall', '-Wextra', '-Werror', '-Wno-unused-function', '-fsyntax-only']


def documents(root):
    for pattern in ('*.md', 'docs/*.md', 'src/**/README.md', 'examples/**/*.md', 'bench/*.md'):
        yield from sorted(root.glob(pattern))


def compile_error(root, cc, text):
    if '#include <deepspeed' not in text:
        text = '#include <deepspeed.h>\n' + text
    run = subprocess.run([cc, *WARNINGS, f'-I{root}/include', '-x', 'c', '-'], input=text, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return run.stdout.strip() if run.returncode else ''


def commands(text):
    """-> the first word of each command: of lines and of what follows && or |"""
    text = re.sub(r'\\\n', ' ', text)
    for line in text.splitlines():
        line = line.split(' #')[0].strip()
        if not line or line.startswith('#'):
            continue
        for part in re.split(r'&&|\||;', line.removeprefix('$ ')):
            words = [w for w in part.split() if not re.match(r'^\w+=', w)]
            if words:
                yield words[0]


def main(root, cc='cc'):
    root, bad, blocks = pathlib.Path(root), [], 0
    programs = {f'cifar10_{p.stem}' for p in (root / 'examples/cifar10').glob('*.c')}
    programs |= {f'bench_{p.stem}' for p in (root / 'bench').glob('*.c')}
    programs |= {p.stem for p in (root / 'tools').glob('*.c')}
    programs |= {'deepspeed'} if (root / 'launcher').is_dir() else set()
    for document in documents(root):
        text, name = document.read_text(), document.relative_to(root)
        for target in LINK.findall(text):
            if not (document.parent / target).exists():
                bad.append(f'{name}: a link leads to {target}, which is not there')
        for block in BLOCK.finditer(text):
            at = f"{name}:{text.count(chr(10), 0, block.start('text')) + 1}"
            if block['kind'] == 'c':
                if not block['mark'] and not re.search(r'\bint main\(', block['text']):
                    continue
                error = compile_error(root, cc, block['text'])
                bad += [f'{at}: does not compile: {error}'] if error else []
            else:
                for word in commands(block['text']):
                    if '/' in word and word.split('/')[-1] in programs or word in ORDINARY:
                        continue
                    if not ('/' in word and (root / word).is_file()):
                        bad.append(f'{at}: {word}: neither a file of the tree nor an ordinary command')
            blocks += 1
    print('\n'.join(bad) or f'documents: {blocks} blocks, all good')
    return bool(bad)


if __name__ == '__main__':
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
