#!/usr/bin/env python3
"""The form in which src/device/cuda/ptx has PTX. nvcc gives each result a register of its own, so
that in the text nearly every number is another one, which no compressor can shorten. Here a
register or label is named by how many of its kind were first named since: `&r` is a new one of
%r, `&r0` the newest, `&r5` the one five before it, `&L2` a label. So code that is repeated is the
same text. src/device/cuda/ptx.c makes PTX of it again, numbered from 1.

usage: scripts/ptx_code.py encode|decode < FILE > FILE
SPDX-License-Identifier: MIT
"""
import re
import sys

NAMED = re.compile(r"%([a-z]+)(\d+)\b|\$(L)__BB(\d+_\d+)\b")
CODED = re.compile(r"&([A-Za-z]+)(\d*)")
BEGINS = re.compile(r"\.visible |\.func ")  # of a kernel or a function, whose numbers start again
ENTRY = ".visible .entry "


class Numbers:
    """The registers and labels of a kernel that were named so far."""

    def __init__(self):
        self.restart()

    def restart(self):
        self.place, self.count = {}, {}

    def encode(self, kind, number):
        if (kind, number) not in self.place:
            self.place[kind, number] = self.count[kind] = self.count.get(kind, 0) + 1
            return "&" + kind
        return f"&{kind}{self.count[kind] - self.place[kind, number]}"

    def decode(self, kind, back):
        if not back:
            self.count[kind] = self.count.get(kind, 0) + 1
        number = self.count[kind] - int(back or 0)
        return f"$L{number}" if kind == "L" else f"%{kind}{number}"


def encode(text):
    numbers, lines = Numbers(), []
    own = set()  # registers that a block of inline PTX declares one by one keep their names

    def coded(match):
        if match.group(0) in own:
            return match.group(0)
        return numbers.encode(match.group(1) or "L", match.group(2) or match.group(4))

    for line in text.split("\n"):
        if BEGINS.match(line):
            numbers.restart()
        if line == "}":
            own.clear()
        if line.startswith(".reg "):
            if "<" not in line:
                own.update(re.findall(r"%\w+", line))
            lines.append(line)
        else:
            lines.append(NAMED.sub(coded, line))
    return "\n".join(lines)


def decode(text):
    numbers, lines = Numbers(), []
    for line in text.split("\n"):
        if BEGINS.match(line):
            numbers.restart()
        lines.append(CODED.sub(lambda match: numbers.decode(match.group(1), match.group(2)), line))
    return "\n".join(lines)


def kernels(text):
    """[(a kernel, its name)], and with the name None lines between, which are common to all."""
    parts, lines = [], text.splitlines(keepends=True)
    i = 0
    while i < len(lines):
        begin, depth = i, 0
        if lines[i].startswith(ENTRY):
            while True:
                depth += (lines[i] == "{\n") - (lines[i] == "}\n")
                if lines[i] == "}\n" and depth == 0:
                    break
                i += 1
        i += 1
        part = "".join(lines[begin:i])
        name = part[len(ENTRY):part.index("(")] if part.startswith(ENTRY) else None
        parts.append((part, name))
    return parts


def kernel_ptx(parts, name, early):
    """One kernel's PTX as the library makes it; early: it waits for the kernel before it."""
    text = decode("".join(part for part, its in parts if its in (None, name)))
    if not early:
        return text
    if "\n.target sm_90a\n" not in text:
        text = re.sub(r"\n\.version .*\n\.target .*\n", "\n.version 7.8\n.target sm_90\n", text, count=1)
    head, body = text.split(ENTRY)
    wait = "\n{\ngriddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n"
    return head + ENTRY + body.replace("\n{\n", wait, 1)


def main():
    if sys.argv[1:] not in (["encode"], ["decode"]):
        sys.exit(__doc__.strip().split("\n")[-2])
    sys.stdout.write((encode if sys.argv[1] == "encode" else decode)(sys.stdin.read()))


if __name__ == "__main__":
    main()
