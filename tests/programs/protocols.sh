#!/bin/sh
# tests/programs/protocols.sh BINARY_DIR: spin, a model checker, tries all
# interleavings of tests/protocols/NAME.pml; then it must find the mistake in each
# variant of the model that its head lists. The functions and files that the head
# names must exist.
#
# DS_FAULTS=3: how many faults a run of a model has, in place of the number in the
# model. With 3 local.pml has 20 million states, which take 1.1 GB.
# SPDX-License-Identifier: MIT
here=$(cd "$(dirname "$0")" && pwd)
program=spin
. "$here/common/checks.sh"
for tool in spin cc; do command -v $tool >/dev/null || { echo "skipped: there is no $tool" && exit 77; }; done

# model NAME MISTAKE OPTIMIZATION: its verification; what pan prints is in out
model()
{
    spin -a -DMISTAKE="$2" ${DS_FAULTS:+-DFAULTS="$DS_FAULTS"} "$here/../protocols/$1.pml" >out 2>err &&
        cc "$3" -w -DSAFETY -DCOLLAPSE -o pan pan.c 2>err && ./pan -m100000 >out 2>err
}

# labels PATH: what follows each label of the head: functions and files
labels() { sed -n '/^ \* Each label stands for a function:/,/^ \* [A-Z][a-z]* .*[a-z]/{/^ \*   [a-z]/s/^ \*   [a-z_]* *//p}' "$1"; }

# check_names PATH
check_names()
{
    for word in $(labels "$1" | tr ',:' '  '); do
        case $word in
        */*.c) [ -f "$here/../../$word" ] || fail "$1 names $word, which does not exist" ;;
        *_*) grep -qrE --include='*.c' "^[a-z].*[ *]$word\(" "$here/../../src" "$here/../../launcher" ||
            fail "$1 names $word(), which does not exist" ;;
        *) continue ;;
        esac
        names=$((names + 1))
    done
}

for path in "$here"/../protocols/*.pml; do
    name=$(basename "$path" .pml)
    names=0
    check_names "$path"
    if [ $names -ge 10 ]; then pass; else fail "$name names $names functions and files"; fi
    model "$name" 0 -O1
    has out 'errors: 0$'
    has_not out 'Search not completed\|max search depth too small'
    mistakes=$(sed -n 's/^ \*  *\([0-9][0-9]*\)  .*/\1/p' "$path")
    for mistake in $mistakes; do
        model "$name" "$mistake" -O0
        has out 'errors: 1$'
    done
    if [ "$mistakes" ]; then pass; else fail "$name lists no mistakes"; fi
done
finish
