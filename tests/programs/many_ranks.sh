#!/bin/sh
# tests/programs/many_ranks.sh BINARY_DIR: 32 ranks on the processors that there
# are start and train, through shared memory, by messages and by MPI's own
# collectives; their weights are the same bits, and their losses those of one
# rank.
# SPDX-License-Identifier: MIT
set -u
binary=$1
program=$1/deepspeed
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"
if { [ ! -e "$binary/libdeepspeed_openmpi.so" ] || ! command -v mpirun >/dev/null; } && ! have_mpich "$binary"; then
    echo "skipped: there is no MPI" && exit 77
fi
export TMPDIR=$work ASAN_OPTIONS=detect_leaks=0
# Open MPI 4's mpirun may see that a rank has gone before it sees that the rank
# finalized MPI (open-mpi/ompi issues 7833 and 9389): then the job is run again.
# One that does not finalize fails each time.
cat >once_more <<END
#!/bin/sh
"$binary/deepspeed" "\$@" 2>first
status=\$?
if grep -q 'with PID 0 on\$' first && grep -q 'although each rank ended with 0' first; then
    exec "$binary/deepspeed" "\$@"
fi
cat first >&2
exit \$status
END
chmod +x once_more
program=./once_more
ranks=32
[ ! "${DS_TEST_QUICK-}" ] || ranks=16

# train NAME RANKS [OPTION...]: 3 steps of the same global batch
train()
{
    name=$1 n=$2
    shift 2
    status 0 -q --num_devs "$n" "$binary/cifar10_deepspeed" --sample --samples 128 --data d --seed 1 --no_eval --quiet \
        --stage 2 --batch-size 32 --max_steps 3 --trace "$name.csv" --save "$name.safetensors" "$@"
}

train one 1
train shared $ranks
DS_COLLECTIVES=messages train messages 16
DS_COLLECTIVES=mpi train mpi 16
same messages.safetensors mpi.safetensors
for name in shared messages; do # the norm of all gradients, in each step
    if paste -d , one.csv $name.csv | awk -F , '
        NR > 1 && ($4 - $10 > 1e-6 || $10 - $4 > 1e-6 || !$4) { bad = 1 }
        END { exit bad || NR != 4 }'; then pass; else fail "$name: other gradients than one rank's: $(cat one.csv $name.csv)"; fi
done
finish
