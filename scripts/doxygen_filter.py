#!/usr/bin/env python3
"""Marks the plain C comments of a header as documentation, in the form that doxygen needs.

    /* before a declaration */          -> /** ... */
    int32_t n; /* after a declaration */ -> /**< ... */
    /* ---- a title ---- */             -> a group up to the next title

usage: doxygen_filter.py FILE
SPDX-License-Identifier: MIT
"""
import pathlib
import re
import sys

TITLE = re.compile(r'^/\* -{3,} (.*?) -*\s*\*/$', re.M)


def convert(path):
    text = pathlib.Path(path).read_text()
    name = pathlib.Path(path).name
    # the head of the file: its first line names it
    text = re.sub(r'^/\* (?:deepspeed/)?\S+\.h: ?', f'/** @file {name}\n * ', text, count=1)
    text = text.replace('SPDX-License-Identifier: MIT', '', 1)
    text = TITLE.sub(lambda m: f'/** @}} */\n/** @name {m[1]}\n * @{{ */', text)
    text = text.replace('/** @} */\n', '', 1)
    if '@{' in text:
        cut = text.rindex('#ifdef __cplusplus') if text.count('#ifdef __cplusplus') else len(text)
        text = text[:cut] + '/** @} */\n' + text[cut:]
    out = []
    for line in text.split('\n'):
        before = line[:line.find('/*')].strip() if '/* ' in line else ''
        if '/* ' in line and '/**' not in line:
            line = line.replace('/* ', '/**< ' if before and not before.startswith('#') else '/** ', 1)
        # an example is indented by four more columns
        out.append(re.sub(r'^ \*     (\S)', r' *      \1', line))
    return '\n'.join(out)


if __name__ == '__main__':
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    print(convert(sys.argv[1]))
