#!/bin/sh
# tests/programs/tutorial_document.sh BINARY_DIR: the commands of docs/tutorial-cifar10.md, in their order, for a few
# steps each on the sample.
# SPDX-License-Identifier: MIT
set -u
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
program=$build/deepspeed
. "$root/tests/programs/common/checks.sh"
mkdir build && ln -s "$build" build/release
ln -s "$root/examples" examples
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export ASAN_OPTIONS=detect_leaks=0 # of MPI libraries

sed -n '/^```sh$/,/^```$/p' "$root/docs/tutorial-cifar10.md" | grep '^build' >commands
while read -r line; do
    case $line in
    *cifar10_*) quick=$(echo "$line" | sed 's#\(build/release/cifar10_[a-z]*\)#\1 --sample --samples 64 --max-steps 3#') ;;
    *) quick=$line ;;
    esac
    case $line in
    *--num_gpus*) [ -e "$build/libdeepspeed_openmpi.so" ] || continue ;; # no MPI here
    esac
    if sh -c "$quick" >out 2>err </dev/null; then pass; else fail "$line"; fi
done <commands
if [ "$(wc -l <commands)" -gt 15 ]; then pass; else fail 'the document has few commands'; fi
finish
