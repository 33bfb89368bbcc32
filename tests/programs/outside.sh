#!/bin/sh
# tests/programs/outside.sh BINARY_DIR: what is installed is found and used from
# outside of the tree: by make with pkg-config, by cmake, from C++ and from
# Python; in a tree that was moved after it was installed.
# SPDX-License-Identifier: MIT
set -u
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
program=$build/deepspeed
. "$root/tests/programs/common/checks.sh"

if nm -D "$build/libdeepspeed.so" | grep -q '__asan\|__tsan'; then
    echo "skipped: the library is built with a sanitizer, which programs outside know nothing of"
    exit 77
fi

# run WHAT COMMAND...: it succeeds
run()
{
    what=$1
    shift
    if "$@" >out 2>err </dev/null; then pass; else fail "$what: $*"; fi
}

cp "$root"/examples/outside/* .
run 'install' env DESTDIR="$work/staged" cmake --install "$build" --prefix /opt/first
mv staged/opt/first moved
home=$work/moved
find moved -name deepspeed.pc >out
export PKG_CONFIG_PATH="$work/$(dirname "$(cat out)")"

run 'make' make all CFLAGS='-O1 -Wall -Wextra -Werror' CXXFLAGS='-O1 -Wall -Wextra -Werror'
run 'C' ./moons
has out '400 of 400 right'
run 'C++' ./fit
has out 'y = 3.00 x + 1.00'

run 'cmake' cmake -B there -DCMAKE_PREFIX_PATH="$home"
run 'cmake --build' cmake --build there
run 'C by cmake' there/moons
has out '400 of 400 right'

# the static library, with what it was built with
cat >CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.18)
project(still LANGUAGES C)
find_package(deepspeed 0.1 REQUIRED COMPONENTS static)
add_executable(moons moons.c)
target_link_libraries(moons PRIVATE deepspeed::static m)
END
run 'cmake, static' cmake -B still -DCMAKE_PREFIX_PATH="$home"
run 'cmake --build, static' cmake --build still
run 'C, static' still/moons
has out '400 of 400 right'

if command -v python3 >/dev/null; then
    run 'Python' python3 softmax.py "$(pkg-config --variable=libdir deepspeed)/libdeepspeed.so.0"
    has out 'softmax  \[0.09, 0.2447, 0.6652\]'
    has out 'gradient \[-0.0599, -0.1628, 0.2227\]'
fi

# the programs of the moved tree find their library, and the sample
run 'a program' "$home/bin/cifar10_tutorial" --sample --data data --max-steps 1
has out 'Accuracy of the network'
finish
