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
# permissions are those of packages, also with the umask of Ubuntu's users
mask=$(umask)
umask 002
run 'install' env DESTDIR="$work/staged" cmake --install "$build" --prefix /opt/first
umask "$mask"
mv staged/opt/first moved
find moved '(' -type d ! -perm 755 ')' -o '(' -type f ! -perm 644 ! -perm 755 ')' >out
lines out 0
home=$work/moved
find moved -name deepspeed.pc >out
export PKG_CONFIG_PATH="$work/$(dirname "$(cat out)")"

run 'make' make all CFLAGS='-O1 -Wall -Wextra -Werror' CXXFLAGS='-O1 -Wall -Wextra -Werror'
run 'C' ./moons
has out '400 of 400 right'
for class in train/ants train/bees val/ants val/bees; do
    mkdir -p "images/$class"
done
run 'images' "$home/bin/cifar10_tutorial" --sample --data data --max-steps 0 --no-eval --show images/train/ants/1.png
run 'other images' "$home/bin/cifar10_tutorial" --sample --data data --eval --max-steps 0 --show images/train/bees/1.png
cp images/train/ants/1.png images/val/ants/1.png
cp images/train/bees/1.png images/val/bees/1.png
run 'images of a folder' ./transfer images --epochs 1 --batch-size 2
has out 'Epoch 0/0'
has out 'train Loss: [0-9.]* Acc: [0-9.]*'
has out 'Best val Acc: [0-9.]*'
run 'the last layer alone' ./transfer images --epochs 1 --freeze --weights best_model_params.pth --workers 0
rm -r images/val/bees
if ./transfer images >out 2>err; then fail 'another number of classes is accepted'; else has err 'images/val has 1 classes, train has 2'; fi
if ./transfer images --epochs 0 >out 2>err; then fail '--epochs 0 is accepted'; else has err '--epochs 0: expected a whole number'; fi
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

# links of the installed documents lead to files
for document in $(find "$home/share/doc/deepspeed-dev" -name '*.md'); do
    for link in $(grep -o '](\([^)#: ]*\)' "$document" | sed 's/](//'); do
        if [ -e "$(dirname "$document")/$link" ]; then pass; else fail "$document has a link to $link"; fi
    done
done
find "$home/share/doc/deepspeed-dev" -name '*.md' >out
has out 'docs/zh-CN/tutorial-cifar10.md'
has out 'deepspeed-dev/README.md'

# what is installed has no path of this machine
if grep -lr "$root/" "$home/bin" "$home/lib" "$home/include" >out; then fail "binaries name $root"; else pass; fi

# all commands use the shared library
for program in "$home"/bin/*; do
    if grep -q 'libdeepspeed.so.0' "$program"; then pass; else fail "$program does not use libdeepspeed.so"; fi
done

# uninstall leaves nothing
run 'install' env DESTDIR="$work/staged" cmake --install "$build" --prefix /opt/second
run 'uninstall' env DESTDIR="$work/staged" cmake -D MANIFEST="$build/install_manifest.txt" -P "$root/cmake/uninstall.cmake"
find staged/opt -type f -o -type l >out
lines out 0
find staged -name '*deepspeed*' >out
lines out 0

# without dpkg-shlibdeps cpack makes no .deb, and says why
mkdir tools
cmake=$(command -v cmake)
if PATH=$work/tools "$cmake" -D CPACK_GENERATOR=DEB -P "$root/cmake/package_config.cmake" >out 2>err; then
    fail 'cpack makes a .deb without dependencies'
else
    has err 'A .deb needs dpkg-shlibdeps'
fi
run 'a .tar.gz' env PATH="$work/tools" "$cmake" -D CPACK_GENERATOR=TGZ -P "$root/cmake/package_config.cmake"

# the programs of the moved tree find their library, and the sample
run 'a program' "$home/bin/cifar10_tutorial" --sample --data data --max-steps 1
has out 'Accuracy of the network'
finish
