#!/usr/bin/env python3
"""Check that the examples in the documents work.

usage: check_docs.py [--list] [--translate] ROOT [CC]
  --list       every block, and what tries it
  --translate  copies the blocks of the English documents into their translations

In README.md, CONTRIBUTING.md, ARCHITECTURE.md, docs/*.md and the README.md of folders each block of code is checked:
- ```c compiles, with #include <deepspeed.h> in front if it includes nothing. After a line
  "<!-- in: DECLARATIONS -->" it is the body of a function that has these parameters;
- ```sh: the first word of each command is a file of the tree or an ordinary command, and the tests run them
  (tests/programs/documents.sh, in README.md and docs). So it does with a block without a language that begins with
  "$ COMMAND": what follows has the form of what the command prints;
- ```json is JSON, and the same test reads it as a configuration;
- any block after a line "<!-- tried by FILE -->" is tried by that file; one after "<!-- output -->" is for reading.
A translation (TRANSLATIONS) has the blocks of its English document, in their order: so they are tried with that.
A link to a file of the tree leads to one, and one to a heading leads to it. A `ds_name` is in a public header, or a command.
A `Note [Title]` is in a source file, and a log line's [file.c:LINE:function] names a function of that file.
SPDX-License-Identifier: MIT
"""
import json
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r'^(?:<!-- (?P<mark>in:|tried by|output)(?P<what>[^\n]*?) ?-->\n+)?```(?P<kind>\w*)\n(?P<text>.*?)^```$',
                   re.M | re.S)
LINK = re.compile(r'\]\((?!https?:)([^)#\s]*)(#[^)\s]+)?\)')
ORDINARY = {'cmake', 'cpack', 'doxygen', 'mpirun', 'ctest', 'git', 'cc', 'gcc', 'clang', 'cd', 'python3', 'export', 'sudo', 'apt-get',
            'docker', 'mkdir', 'tar', 'curl', 'clang-format', 'gdb', 'perf', 'taskset', 'pkg-config', 'ls', 'deepspeed', './net', 'ldconfig'}
WARNINGS = ['-std=c11', '-Wall', '-Wextra', '-Werror', '-Wno-unused-function', '-Wno-unused-variable', '-fsyntax-only']
RUNNER = 'tests/programs/documents.sh'
TRANSLATIONS = {'README.zh-CN.md': 'README.md', 'docs/zh-CN/tutorial-cifar10.md': 'docs/tutorial-cifar10.md'}


def documents(root):
    for pattern in ('*.md', 'docs/**/*.md', 'src/**/README.md', 'examples/**/*.md', 'bench/*.md'):
        yield from sorted(root.glob(pattern))


def compile_error(root, cc, text, parameters):
    if parameters:
        text = f'static void block({parameters})\n{{\n{text}}}\n'
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


class Tree:
    def __init__(self, root, cc):
        self.root, self.cc = pathlib.Path(root), cc
        programs = {f'cifar10_{p.stem}' for p in (self.root / 'examples/cifar10').glob('*.c')}
        programs |= {f'bench_{p.stem}' for p in (self.root / 'bench').glob('*.c')}
        programs |= {p.stem for p in (self.root / 'tools').glob('*.c')}
        self.programs = programs | {'deepspeed'}

    def unknown(self, text):
        """The first command of a block that is neither in the tree nor an ordinary one, as a message."""
        for word in commands(text):
            if word in ORDINARY or word.split('/')[-1] in self.programs:
                continue
            if not ('/' in word and (self.root / word).is_file()):
                return f'{word}: neither a file of the tree nor an ordinary command'
        return ''

    def block(self, name, block):
        """-> (the test that runs a block of the document `name`, a message if it is wrong)"""
        mark, what, kind, text = block['mark'], block['what'].strip() if block['what'] else '', block['kind'], block['text']
        if name in TRANSLATIONS:
            return TRANSLATIONS[name], ''
        read_by_runner = name == 'README.md' or name.startswith('docs/')
        if kind == 'c':
            return 'the compiler', compile_error(self.root, self.cc, text, what if mark == 'in:' else '')
        if mark == 'output':
            return 'nothing: output', ''
        if mark == 'tried by':
            return what, '' if (self.root / what).is_file() else f'tried by {what}, which does not exist'
        if kind == 'sh' or not kind and text.startswith('$ '):
            lines = text if kind else text.split('\n')[0]
            return RUNNER if read_by_runner else 'its first words', self.unknown(lines)
        if kind == 'json':
            try:
                json.loads(text)
            except ValueError as error:
                return RUNNER, f'not JSON: {error}'
            return RUNNER, ''
        return '', f'no test runs this block of {kind or "no language"}'


def anchors(document):
    """The headings of a document as links name them."""
    text = re.sub(r'^```.*?^```$', '', document.read_text(), flags=re.M | re.S)
    for heading in re.findall(r'^#+ (.*)$', text, re.M):
        heading = re.sub(r'\[([^\]]*)\]\([^)]*\)', r'\1', heading).lower()
        yield '#' + re.sub(r'[^\w\- ]', '', heading).replace(' ', '-')


def broken_links(document, text):
    for target, anchor in LINK.findall(text):
        place = document.parent / target if target else document
        if not place.exists():
            yield f'a link leads to {target}, which does not exist'
        elif anchor and place.suffix == '.md' and anchor not in anchors(place):
            yield f'a link leads to {target}{anchor}: there is no such heading'


def unknown_names(tree, text):
    """Names of the library that no header has; ds_x, ds_x_with and ds_example are placeholders."""
    headers = ''.join(p.read_text() for p in tree.root.glob('include/**/*.h'))
    known = set(re.findall(r'\bds_\w+', headers)) | tree.programs | {'ds_x', 'ds_x_with', 'ds_example'}
    return sorted(set(re.findall(r'\bds_[a-z0-9_]+\b', text)) - known)


def unknown_notes(sources, text):
    """Notes ("Note [Title]") that the text cites and no source has."""
    cited = {' '.join(note.split()) for note in re.findall(r'Note\s+\[[^\]]+\]', text)}
    return sorted(note for note in cited if note not in sources)


def unknown_places(tree, text):
    """[file.c:LINE:function] of log lines whose file or function is not there (any more)."""
    for name, function in sorted(set(re.findall(r'\[(\w+\.c):\d+:(\w+)\]', text))):
        files = [p for folder in ('src', 'launcher') for p in tree.root.glob(f'{folder}/**/{name}')]
        if not any(re.search(rf'\b{function}\(', p.read_text()) for p in files):
            yield f'[{name}:...:{function}] of a log line: there is no such function'


def different_blocks(root):
    """Messages about translations whose blocks are not those of the English document."""
    for name, english in TRANSLATIONS.items():
        blocks, wanted = ([b[0] for b in BLOCK.finditer((root / p).read_text())] for p in (name, english))
        if len(blocks) != len(wanted):
            yield f'{name}: {len(blocks)} blocks, and {english} has {len(wanted)}: write about the same ones'
        elif blocks != wanted:
            n = next(i for i, (one, other) in enumerate(zip(blocks, wanted)) if one != other)
            yield f'{name}: block {n + 1} is not that of {english}: scripts/check_docs.py --translate . copies them'


def translate(root):
    for name, english in TRANSLATIONS.items():
        path, wanted = root / name, [b[0] for b in BLOCK.finditer((root / english).read_text())]
        text = path.read_text()
        if len(list(BLOCK.finditer(text))) == len(wanted):
            path.write_text(BLOCK.sub(lambda _: wanted.pop(0), text))


def main(listed, root, cc='cc'):
    tree, bad, blocks = Tree(root, cc), [], 0
    sources = ''.join(p.read_text() for folder in ('src', 'launcher') for p in tree.root.glob(f'{folder}/**/*.[ch]'))
    for document in documents(tree.root):
        text, name = document.read_text(), str(document.relative_to(tree.root))
        bad += [f'{name}: {wrong}' for wrong in broken_links(document, text)]
        bad += [f'{name}: {word} is in no header' for word in unknown_names(tree, text)]
        bad += [f'{name}: {wrong}' for wrong in unknown_places(tree, text)]
        bad += [f'{name}: no source has {note}' for note in unknown_notes(sources, text)]
        for block in BLOCK.finditer(text):
            at = f"{name}:{text.count(chr(10), 0, block.start('text')) + 1}"
            by, wrong = tree.block(name, block)
            if listed:
                print(f"{at:40} {block['kind'] or '-':8} {by}")
            if wrong:
                bad.append(f'{at}: {wrong}')
            blocks += 1
    bad += different_blocks(tree.root)
    print('\n'.join(bad) or f'documents: {blocks} blocks, all good')
    return bool(bad)


if __name__ == '__main__':
    arguments = [a for a in sys.argv[1:] if a not in ('--list', '--translate')]
    if len(arguments) not in (1, 2):
        sys.exit(__doc__)
    if '--translate' in sys.argv:
        translate(pathlib.Path(arguments[0]))
    sys.exit(main('--list' in sys.argv, *arguments))
