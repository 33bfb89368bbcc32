#!/bin/sh
# tests/programs/ddp.sh BINARY_DIR: cifar10_ddp as a user runs it, on one rank.
# SPDX-License-Identifier: MIT
set -u
program=$1/cifar10_ddp
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/checks.sh"

show=$1/ds_show
. "$here/common/saved_step.sh"

sample="--sample --data d --seed 1"

status 0 $sample --max_steps 200 --log-interval 100 --trace t.csv --save_step_interval 100
has out '^\[1,   100\] loss: 2\.3'
has out '^Saved \./cifar_net_step_100\.pth$'
has out '^Finished Training$'
has out '^Accuracy of the network on the 1000 test images: [0-9]* %$'
lines t.csv 201
check_saved_step

# ---- continues from a saved step: the epoch begins again, with its weights
status 0 $sample --load cifar_net_step_200.pth --max_steps 2 --no_eval --log_interval 1
has out '^Loaded cifar_net_step_200.pth: epoch 1$'
lines out 4
"$1/cifar10_tutorial" $sample --load cifar_net_step_200.pth --eval --quiet >a 2>err
status 0 $sample --load cifar_net_step_200.pth --epochs 0 --quiet
same a out

# ---- a launcher's option, a seed, workers
status 0 $sample --local_rank=0 --max_steps 20 --no_eval --quiet --trace t1.csv
status 0 $sample --max_steps 20 --no_eval --quiet --trace t2.csv --workers 2 --threads 2
same t1.csv t2.csv

# ---- mistakes
status 0 --help
has out 'save-step-interval=N'
status 2 --epochs many
has err '"many" is not an integer'
status 1 $sample --max_steps 3 --no_eval --save_step_interval 2 --save_dir no/such --trace refused.csv
none refused.csv
has err 'no/such'
status 2 --batch-size 0
has err 'batch-size: 0 is outside'
status 2 stray
has err 'unexpected argument "stray"'
status 1 $sample --load none.pth
has err 'none.pth: No such file'
status 1 --data empty --no_download --load none.pth
has err 'none.pth: No such file'
status 1 $sample --load t.csv
has err 't.csv'
status 1 --data empty --no_download
lines err 1

finish
