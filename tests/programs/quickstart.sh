#!/bin/sh
# tests/programs/quickstart.sh BINARY_DIR: what ./quickstart says and does where
# something is missing, with stand-ins for apt-get, sudo, cmake and the program.
# SPDX-License-Identifier: MIT
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
if nm -D "$1/libdeepspeed.so" | grep -q '__asan\|__tsan'; then
    echo "skipped: nothing of the library runs here"
    exit 77
fi
. "$root/tests/programs/common/checks.sh"
mkdir -p tree/scripts bin data
cp "$root/quickstart" tree/
cp "$root/scripts/packages.sh" tree/scripts/
program=tree/quickstart

# stand_in NAME: a command, whose script is on stdin
stand_in()
{
    { echo '#!/bin/sh' && cat; } >"bin/$1"
    chmod +x "bin/$1"
}

# only what quickstart needs of this machine
for tool in sh dirname date cat sed tail tee du awk mkdir nproc fold mktemp rm env grep chmod wc mv; do
    ln -s "$(command -v $tool)" bin/$tool
done
for tool in cc make pkg-config apt-get dpkg-query; do echo 'exit 0' | stand_in $tool; done
echo 'echo 1000' | stand_in id
stand_in cmake <<'END'
case $1 in
-S) [ "$4" ] && echo "$*" >"$4/configured" && printf -- '-- deepspeed.c 0.1.0: Release\n--   mpi        openmpi 4.1.4\n' ;;
--build)
    printf '#!/bin/sh\necho "$*" >"${0%%/*}/trained"\n' | tee "$2/ds_lm" >"$2/cifar10_tutorial"
    chmod +x "$2/cifar10_tutorial" "$2/ds_lm" ;;
esac
END
whole=$PATH
PATH=$work/bin

# ---- packages are missing, and sudo asks for a password: lines to copy
printf '[ "$2" != jansson ]\n' | stand_in pkg-config
echo 'exit 1' | stand_in sudo
status 1 --epochs 3
has err 'sudo asks for a password. Please copy these lines:'
has err '^  sudo apt-get update$'
has err '^  sudo apt-get install -y --no-install-recommends libjansson-dev$'
has err '^  tree/quickstart --epochs 3$'
lines err 4
rm bin/sudo
status 1
has err '^  apt-get install -y --no-install-recommends libjansson-dev$'
echo 'exit 0' | stand_in pkg-config

# ---- without cmake and the right to install it
mv bin/cmake bin/hidden
status 1 --no-install
has err 'without cmake nothing can be built'
has err '^  apt-get install -y --no-install-recommends cmake$'
mv bin/hidden bin/cmake

# ---- where it builds; which MPI it found
status 0
has out '^  mpi        openmpi 4.1.4$'
has out '^The programs are in tree/build/release\.'
has tree/build/release/trained '^--data .*/tree/data --epochs 2 --sample-if-offline$'
has_not tree/build/release/configured DS_MPI
echo 'exit 0' | stand_in mpirun
status 0 --mpi --build_dir elsewhere --data d --batch_size 8
has out '^The programs are in elsewhere\.'
has elsewhere/configured '-DDS_MPI=ON'
has elsewhere/trained '^--data d --epochs 2 --sample-if-offline --batch_size 8$'

# ---- a language model
status 0 --lm --build_dir words --seed 3
has out '^The model is in .*/words/lm-demo\. Continue with docs/language-models.md\.$'
has words/trained '^train --demo --output .*/words/lm-demo --seed 3$'

# ---- a checkout that cannot be written
PATH=$whole
if [ "$(id -u)" -ne 0 ]; then
    as=''
elif command -v setpriv >/dev/null; then
    as='setpriv --reuid=65534 --regid=65534 --clear-groups'
    chmod 755 "$work"
else
    finish
    exit
fi
mkdir -m 777 place
chmod a-w tree
# `nobody` DIRECTORY ARGUMENTS...: quickstart as a user who may not write the
# tree
nobody()
{
    (cd "$1" && shift && $as env PATH="$work/bin" "$work/tree/quickstart" "$@") >out 2>err </dev/null
}
if nobody tree; then fail 'builds in a tree that cannot be written'; else pass; fi
has err 'tree cannot be written: give --build_dir DIR, where to build$'
if nobody tree --build_dir "$work/place/b"; then pass; else fail 'a read-only tree'; fi
has place/b/trained "^--data $work/place/b/data --epochs 2 --sample-if-offline --save $work/place/b/cifar_net.pth$"
chmod u+w tree
finish
