#!/bin/sh
# tests/programs/dataparallel.sh BINARY_DIR: cifar10_dataparallel as a user runs
# it.
# SPDX-License-Identifier: MIT
set -u
program=$1/cifar10_dataparallel
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/checks.sh"

show=$1/ds_show
. "$here/common/saved_step.sh"

sample="--sample --data d --seed 1"

status 0 $sample --device_ids 0,1 --max_steps 200 --log-interval 100 --trace t.csv --save_step_interval 100
has out '^\[1,   100\] loss: 2\.3'
has out '^Saved \./cifar_net_step_100\.pth$'
has out '^Finished Training$'
has out '^Accuracy of the network on the 1000 test images: [0-9]* %$'
check_saved_step
status 0 $sample --load cifar_net_step_200.pth --max_steps 2 --no_eval
has out '^Loaded cifar_net_step_200.pth: epoch 1$'
lines t.csv 201

# ---- the batch is the total: losses and norms as with one device
first="$sample --max_steps 20 --batch_size 10 --no_eval --quiet"
for ids in 0 0,1 2,0,1 0,1,2,3; do
    status 0 $first --device_ids=$ids --trace t$ids.csv
    paste -d , t0.csv t$ids.csv | awk -F , 'NR > 1 && (($2 - $6)^2 > 1e-10 || ($4 - $8)^2 > 1e-10)' >far
    lines far 0
done

# ---- the same bits at every run, whatever the threads
status 0 $first --trace t1.csv
status 0 $first --trace t2.csv --workers 2 --threads 3
same t1.csv t2.csv
same t1.csv t0,1.csv

# ---- mistakes
status 0 --help
has out 'device-ids=LIST'
has out 'save-step-interval=N'
for ids in '' 0, ,1 0,0 one 0,-1 64 '0 1'; do
    status 2 --device_ids "$ids"
    has err 'expected different numbers below 64, such as 0,1'
done
status 2 --epochs many
has err '"many" is not an integer'
status 1 $sample --max_steps 3 --no_eval --save_step_interval 2 --save_dir no/such --trace refused.csv
none refused.csv
has err 'no/such'
status 1 --data empty --no_download
lines err 1

status 0 --local_rank=0 $sample --max_steps 1 --no_eval
WORLD_SIZE=2 status 2 --local_rank=1 $sample --max_steps 1 --no_eval
has err 'it is one process, and 2 ranks were started'

# ---- without memory, on the caller's thread or a replica's: one line
for n in 20 60 100; do
    export DS_FAIL_ALLOC=$n
    status 1 $sample --max_steps 3 --batch_size 8 --device_ids 0,1,2 --quiet
    lines err 1
    has err 'no memory for'
done
unset DS_FAIL_ALLOC

finish
