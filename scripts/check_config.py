#!/usr/bin/env python3
"""Check that code reads every key of ds_config.json that the table calls supported.

usage: check_config.py ROOT

A row SUPPORTED(path, type, default, field, ...) or EXTENSION(...) of src/config/table*.h names a field of dsi_config. Some
file of src/ outside src/config, or src/config/batch.c, must read it: "->zero.stage" or ".zero.stage".
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import sys

ROW = re.compile(r'^(?:SUPPORTED|EXTENSION)\("(?P<path>[^"]+)",\s*(?P<rest>.*?)\)\s*(?=^[A-Z/]|\Z)', re.M | re.S)


def fields(table):
    """-> (path, field) of each row that is supported: the field follows the default, a string"""
    for row in ROW.finditer(table):
        field = re.search(r'"(?:[^"\\]|\\.)*",\s*([a-z_][\w.]*)\s*,', row['rest'])
        yield row['path'], field[1] if field else None


def main(root):
    root = pathlib.Path(root)
    table = '\n'.join(p.read_text() for p in sorted((root / 'src/config').glob('table*.h')))
    text = '\n'.join(p.read_text() for p in sorted((root / 'src').rglob('*.[ch]'))
                     if p.parent.name != 'config' or p.name == 'batch.c')
    rows = list(fields(table))
    bad = [path for path, field in rows
           if not field or not re.search(rf'(?:->|\.){re.escape(field)}\b', text)]
    for path in bad:
        print(f'src/config/table*.h: "{path}" is supported in the table, but no code reads it')
    if not bad:
        print(f'config: {len(rows)} keys are supported, and read')
    return bool(bad)


if __name__ == '__main__':
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
