#!/bin/sh
# tests/programs/documents.sh BINARY_DIR [DOCUMENT...]: the commands of
# README.md and docs/*.md, in their order, each for a few steps on the sample;
# what they print has the form that the documents show; configurations there are
# good ones. With DS_DOCUMENTS_DATA=FOLDER, where CIFAR-10 is, commands run as
# they are (minutes), and every line is looked for.
# SPDX-License-Identifier: MIT
set -u
build=$(cd "$1" && pwd)
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
program=$build/deepspeed
. "$root/tests/programs/common/checks.sh"
. "$root/tests/programs/common/mpi.sh"
if nm -D "$build/libdeepspeed.so" | grep -q '__asan\|__tsan'; then
    echo "skipped: under a sanitizer the programs have tests of their own"
    exit 77
fi
mkdir build && ln -s "$build" build/release
ln -s "$root/examples" examples
ln -s "$root/include" include
ln -s "$root/tests" tests
cp examples/cifar10/ds_config.json .
PATH=$build:$PATH
export PATH
all=${DS_DOCUMENTS_DATA:-}
tab=$(printf '\t')

# blocks DOCUMENT: "KIND<tab>LINE" of each block that is run; of sh a line a
# command, without its continuation lines and without comments; of blocks that
# are named by a number, "file<tab>N" with the text in block.N
blocks()
{
    awk -v n="$blocks" '
        /^<!-- output/ || /^<!-- tried by / && !/documents\.sh/ { marked = 1; next }
        /^```/ && !open {
            open = 1; kind = substr($0, 4); first = 1
            if (marked) kind = "none"
            if (kind == "json" || kind == "python" || kind == "") { n++; print (kind == "" ? "text" : kind) "\t" n; close(file); file = "block." n; printf "" >file }
            next
        }
        /^```/ { open = marked = 0; next }
        open && (kind == "json" || kind == "python" || kind == "") { print >file; next }
        open && kind == "sh" {
            if (sub(/ *\\$/, " ")) { held = held $0; next }
            line = held $0; held = ""
            sub(/ +# .*/, "", line); gsub(/  +/, " ", line)
            if (line !~ /^ *(#|$)/) print "sh\t" line
        }' "$1"
}

# quick COMMAND: a few steps on the sample; hosts that are not here are only
# said
quick()
{
    case $1 in
    *' --hostfile '* | *' --launcher '* | *' --nnodes '*) echo "$1" | sed 's/\(^\|\/\)deepspeed /&--dry_run /' ;;
    *' --help'*) echo "$1" ;;
    *)
        if [ "$all" ]; then more="--data '$all'"; else more='--sample --samples 64 --max-steps 3 --log-interval 1'; fi
        echo "$1" | sed "s#cifar10_[a-z]*#& $more#"
        ;;
    esac
}

# shape FILE: what stays the same in lines of output from run to run
shape()
{
    tr '\r' '\n' <"$1" | sed -E 's/[0-9]+(\.[0-9]+)?/0/g; s/plane|car|bird|cat|deer|dog|frog|horse|ship|truck/class/g
        s/\|[^|]*\|/||/; s/[[:space:]]+/ /g; s/^ //; s/ $//; s#s/it|it/s#rate#; s/^CIFAR-0: a sample.*/Files already downloaded and verified/'
}

# shown BLOCK: each line after the command has the form of a line in out
shown()
{
    sed '1,/[^\\]$/d; /^\.\.\.$/d; /^$/d' "$1" >wanted
    [ "$all" ] || sed -i '/\[INFO\]/d' wanted # every 2000 steps
    cat err >>out
    shape wanted | sort -u >wanted.shape
    shape out | sort -u >out.shape
    comm -23 wanted.shape out.shape >missing
    if [ -s missing ]; then fail "not printed: $(cat missing)"; else pass; fi
}

# command LINE: runs it, once; status 1 if it is not for here
command()
{
    case $1 in
    ./quickstart* | ./check* | 'git clone'* | 'cd deepspeed.c') return 1 ;;                               # scripts/bare_root
    cmake* | ctest* | cpack* | DESTDIR=* | 'cc '*moons.c*) return 1 ;;  # ./check, tests/programs/outside.sh
    docker* | 'apt-get install '*) return 1 ;;                     # tests/container
    bench/run* | DS_PEER_PYTHON=*bench/run* | export\ DS_JOIN_SECRET*) return 1 ;;
    mpirun*) [ -e "$build/libdeepspeed_openmpi.so" ] || return 1 ;;
    *--num_gpus*) case $1 in *--nnodes*) ;; *) [ -e "$build/libdeepspeed_openmpi.so" ] || return 1 ;; esac ;;
    esac
    if grep -qxF -- "$1" ran; then return 1; fi
    echo "$1" >>ran
    if sh -c "$(quick "$1")" >out 2>err </dev/null; then pass; else fail "$1"; fi
}

# the program of README.md is net.c, and reads data
sed -n '/^```c$/,/^```$/p' "$root/README.md" | sed '1d;/^```$/,$d' >net.c
if [ "$all" ]; then
    ln -s "$all" data
else
    "$build/cifar10_tutorial" --sample --data samples --max-steps 1 --no-eval --quiet >out 2>err </dev/null
    ln -s samples/cifar-10-sample data
fi

blocks=0
: >ran
if [ $# -eq 0 ]; then set -- README.md "$root"/docs/*.md; else most=0; fi
for document; do
    case $document in /*) ;; *) document=$root/$document ;; esac
    blocks "$document" >list
    for n in $(sed -n 's/^text.//p' list); do
        if grep -q '^# name' "block.$n"; then cp "block.$n" hosts; fi
    done
    while IFS=$tab read -r kind line; do
        case $kind in
        sh) command "$line" ;;
        json) # parts of one
            grep -q train_batch_size "block.$line" || sed -i '1s/^{/{"train_batch_size": 4, /' "block.$line"
            status 0 --check_config "block.$line"
            ;;
        python)
            [ "${DS_PEER_PYTHON:-}" ] || continue
            { cat "$root/tests/programs/common/from_pytorch.py" "block.$line"; } >program.py
            if "$DS_PEER_PYTHON" program.py >out 2>err; then pass; else fail "Python of $document"; fi
            ;;
        text)
            case $(head -n 1 "block.$line") in
            '$ '*) command "$(sed -n '1,/[^\\]$/s/^\$ *\|^  *\| *\\$//gp' "block.$line" | tr '\n' ' ' | sed 's/ $//')" && shown "block.$line" ;;
            '# name'*) ;; # the hostfile
            *) : >out && : >err && fail "a block of $document that nothing tries" ;;
            esac
            ;;
        esac
    done <list
    blocks=$((blocks + $(grep -c '^text\|^json\|^python' list)))
done
if [ "$(wc -l <ran)" -gt ${most:-25} ]; then pass; else fail 'the documents have few commands'; fi
finish
