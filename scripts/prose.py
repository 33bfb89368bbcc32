#!/usr/bin/env python3
"""Find the prose of a file: paragraphs of Markdown, comments and messages of C, shell, Python and CMake.

scripts/check_text.py and scripts/measure use it. It is no command.
SPDX-License-Identifier: MIT
"""
import re

TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*[\s\S]*?\*/|//[^\n]*')
STRINGS = re.compile(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*')
DOCSTRING = re.compile(r'"""[\s\S]*?"""')
HEREDOC = re.compile(r"<<-?'?(\w+)'?\n([\s\S]*?)\n\1\n")
C_SUFFIXES = ('.c', '.h', '.cu', '.cuh')


def line_of(text, place):
    return text.count('\n', 0, place) + 1


def c_comments(text):
    """-> (place, text) of each comment of C source, with its signs"""
    for token in TOKEN.finditer(text):
        if token[0].startswith('/'):
            yield token.start(), token[0]


def comment_only_lines(text):
    """The number of lines that hold nothing but a comment."""
    count = 0
    for place, comment in c_comments(text):
        begin = text.rfind('\n', 0, place) + 1
        end = text.find('\n', place + len(comment))
        before, after = text[begin:place], text[place + len(comment):end if end >= 0 else len(text)]
        lines = comment.count('\n') + 1
        count += lines - bool(before.strip()) - (bool(after.strip()) and (lines > 1 or not before.strip()))
    return count


def markdown(text):
    """-> (line, paragraph): code, headings, tables' rules and HTML comments are left out; a row is a paragraph"""
    fence, paragraph, first = '', [], 0
    for number, line in enumerate(text.split('\n') + [''], 1):
        s = line.strip()
        mark = re.match(r'(```+|~~~+)', s)
        if mark and (not fence or s.startswith(fence)):
            fence = '' if fence else mark[1]
            s = ''
        elif fence or s.startswith(('#', '<!--')) or re.match(r'^\|[-| :]+\|$', s):
            s = ''
        begins = s.startswith('|') or re.match(r'([-*+]|\d+\.) ', s)
        if paragraph and (not s or begins):
            yield first, '\n'.join(paragraph)
            paragraph = []
        if s:
            first = first if paragraph else number
            paragraph.append(s)


def c_prose(text):
    """-> (line, text) of each comment, and of each message: a string of two words and more"""
    for place, comment in c_comments(text):
        yield line_of(text, place), re.sub(r'(?m)^\s*(/\*+|\*/|\*|//)[ \t]?|\*/', '', comment)
    code = TOKEN.sub(lambda t: t[0] if t[0][0] == '"' else re.sub(r'[^\n]', ' ', t[0]), text)
    for string in STRINGS.finditer(code):
        said = re.sub(r'"(\s*)"', r'\1', string[0]).strip('"')
        if len(said.split()) > 2:
            yield line_of(code, string.start()), said.replace('\\n', ' ')


def hash_prose(text, python):
    """-> (line, text) of each run of comments of a shell, CMake or Python file; and its longer texts"""
    run, first = [], 0
    for number, line in enumerate(text.split('\n') + [''], 1):
        comment = re.match(r'\s*#(?!!)\s?(.*)', line)
        if comment:
            first = first if run else number
            run.append(comment[1])
        elif run:
            yield first, '\n'.join(run)
            run = []
    for found in (DOCSTRING if python else HEREDOC).finditer(text):
        yield line_of(text, found.start()), found[0].strip('"')
    for string in re.finditer(r'"(?:\\.|[^"\\\n])*"' if not python else r"'(?:\\.|[^'\\\n])*'", text):
        if len(string[0].split()) > 2:
            yield line_of(text, string.start()), string[0].strip('"\'')


def prose(path, text):
    """-> (line, text) of all prose in a file, by its name"""
    if path.suffix == '.md':
        return markdown(text)
    if path.suffix in C_SUFFIXES:
        return c_prose(text)
    return hash_prose(text, path.suffix == '.py' or text.startswith('#!/usr/bin/env python3'))
