#!/bin/sh
# tests/programs/join.sh BINARY_DIR: the same command typed on two nodes, which
# are this machine. Tests that need several machines are in
# tests/launcher/cluster.
# SPDX-License-Identifier: MIT
set -u
program=$1/deepspeed
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"
command -v mpirun.openmpi >/dev/null || { echo "skipped: there is no Open MPI" && exit 0; }
unset DS_JOIN_SECRET
port=$((20000 + $$ % 12000))

cat >who <<'END_OF_PROGRAM'
#!/bin/sh
echo "rank $RANK of $WORLD_SIZE, local $LOCAL_RANK, node $CROSS_RANK, devices $CUDA_VISIBLE_DEVICES, $*, ${DS_JOIN_SECRET-no secret}"
END_OF_PROGRAM
cat >fails <<'END_OF_PROGRAM'
#!/bin/sh
[ "$RANK" != 2 ] || exit 5
END_OF_PROGRAM
cp who other
chmod +x who fails other

# node K ARGUMENTS...: in the background, its output in outK; then `ended K` is
# its status
node()
{
    k=$1
    shift
    timeout -k 1 60 "$program" --node_rank "$k" --master_port "$port" "$@" >"out$k" 2>&1 </dev/null &
    eval "process$k=\$!"
}
ended() { eval "wait \$process$1"; }

# two STATUS0 STATUS1 ARGUMENTS...: of both; then NODE1 has more for node 1
two()
{
    want0=$1 want1=$2
    shift 2
    port=$((port + 1))
    node 1 --nnodes 2 --master_addr 127.0.0.1 --join_timeout 20 "$@" ${node1-}
    node 0 --nnodes 2 --master_addr 127.0.0.1 --join_timeout 20 "$@"
    : >out && : >err
    ended 0
    got=$?
    if [ $got -eq "$want0" ]; then pass; else fail "node 0: status $got, want $want0: $(cat out0)"; fi
    ended 1
    got=$?
    if [ $got -eq "$want1" ]; then pass; else fail "node 1: status $got, want $want1: $(cat out1)"; fi
}

two 0 0 --num_gpus 2 ./who 'a  b'
has out0 '^node-0: rank 0 of 4, local 0, node 0, devices 0,1, --local_rank=0 a  b, no secret$'
has out0 '^node-1: rank 3 of 4, local 1, node 1, devices 0,1, --local_rank=1 a  b, no secret$'
has out1 'node 1: joined'
two 5 5 --num_gpus 2 ./fails
has out0 'rank 2 on node-1 .* exits with return code = 5'

# ---- with --max_restarts they join again after a failure
cat >flaky <<'END_OF_PROGRAM'
#!/bin/sh
echo "rank $RANK of $WORLD_SIZE, restart $TORCHELASTIC_RESTART_COUNT"
[ "$RANK" != 1 ] || [ "$TORCHELASTIC_RESTART_COUNT" -ge "$1" ] || exit 3
END_OF_PROGRAM
chmod +x flaky
two 0 0 --num_gpus 1 --no_local_rank --max_restarts 2 --error_file failures ./flaky 1
has out0 '^node-1: rank 1 of 2, restart 0$'
has out0 '^deepspeed: restart 1 of 2: 2 ranks on node-0, node-1$'
has out0 '^node-1: rank 1 of 2, restart 1$'
has out1 'node 1: joins again after a failure'
has failures '"error": "deepspeed: rank 1 on node-1 (process [0-9]*) ./flaky exits with return code = 3"'
two 3 3 --num_gpus 1 --no_local_rank --max_restarts 1 ./flaky 9
has out0 '^deepspeed: 1 restart in '

two 1 1 --num_gpus 1 --max_restarts 1 --min_ranks 3 ./flaky 0
has out0 '^deepspeed: the job has 2 nodes with 2 ranks in all: --min_nodes 1, --min_ranks 3 cannot be reached$'
has out1 'the job has 2 nodes with 2 ranks in all'
has_not out0 'rank 0'
status 2 --nnodes 2 --node_rank 1 --master_addr 127.0.0.1 --max_restarts 1 --min_nodes 3 ./flaky 0
has err '^deepspeed: --min_nodes 3: the job has 2 nodes'

# ---- mistakes
printf 'a secret of some length' >secret && chmod 600 secret
node1='more words'
two 1 1 --num_gpus 1 ./who
has out0 'node 1 on .* does not fit: it is to run "./who more words", node 0 "./who"'
has out1 'does not fit: it is to run'
node1=''
port=$((port + 1))
node 1 --nnodes 2 --master_addr 127.0.0.1 --join_secret_file secret ./who
node 0 --nnodes 2 --master_addr 127.0.0.1 --join_timeout 1 ./who
ended 1
has out1 'has another secret'
ended 0
has out0 'node 1 of 2 did not join at 127.0.0.1'
has_not out0 'rank 0'

status 2 --nnodes 2 --node_rank 0 --master_addr 192.0.2.1 ./who
has err 'need a secret'
chmod 622 secret
status 2 --nnodes 2 --node_rank 0 --master_addr 192.0.2.1 --join_secret_file secret ./who
has err 'others may write secret'
status 2 --nnodes 2 --node_rank 0 --master_addr 192.0.2.1 --join_secret_file nowhere ./who
has err 'nowhere: No such file'
DS_JOIN_SILENCE=soon status 2 --nnodes 2 --node_rank 0 --master_addr 127.0.0.1 ./who
has err 'DS_JOIN_SILENCE=soon: expected seconds'

finish
