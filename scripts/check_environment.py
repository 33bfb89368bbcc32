#!/usr/bin/env python3
"""Check that docs/environment.md lists the environment variables that programs read, and no others.

usage: check_environment.py ROOT

A variable is read if its name is an argument of getenv or in a dsi_env, or if only variables have such names (which
finds lists of names that are passed to getenv one by one).
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import sys

READ = re.compile(r'(?:getenv\(|dsi_env_word(?:_or)?\(|dsi_env \w+ = \{)\s*"([A-Z][A-Z0-9_]+)"')
NAMED = re.compile(r'"((?:DEEPSPEED|OMPI_COMM_WORLD|OMPI_MCA_\w+_tcp_if|PMIX?|SLURM|MV2_COMM_WORLD|MPI_LOCALRANKID|LOCAL|WORLD_SIZE)'
                   r'(?:_\w+)?)"')
LISTED = re.compile(r'`([A-Z][A-Za-z0-9_]+)`')


def variables(root):
    """-> {name: file} of variables that programs read"""
    found = {}
    for folder in ('src', 'launcher', 'tools', 'examples'):
        for path in sorted((root / folder).rglob('*.[ch]')):
            text = path.read_text()
            for name in READ.findall(text) + NAMED.findall(text):
                found.setdefault(name, path.relative_to(root))
    return found


def listed(text):
    """-> names in the first column of the tables, those of tests and scripts apart"""
    programs, tests = text.split('## Tests, benchmarks')
    return [{name for line in part.splitlines() if line.startswith('| `')
             for name in LISTED.findall(line.split('|')[1])} for part in (programs, tests)]


def main(root):
    root = pathlib.Path(root)
    read = variables(root)
    programs, tests = listed((root / 'docs/environment.md').read_text())
    elsewhere = '\n'.join(p.read_text(errors='replace') for folder in ('tests', 'bench', 'scripts')
                          for p in (root / folder).rglob('*') if p.is_file() and 'golden' not in p.parts)
    bad = [f'{read[name]}: reads {name}, which docs/environment.md does not list' for name in sorted(read)
           if name not in programs]
    bad += [f'docs/environment.md: {name}: no program reads it' for name in sorted(programs - set(read))]
    bad += [f'docs/environment.md: {name}: no test or script reads it' for name in sorted(tests)
            if name not in elsewhere]
    print('\n'.join(bad) if bad else f'environment: {len(read)} variables are read, and listed')
    return bool(bad)


if __name__ == '__main__':
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
