#!/bin/sh
# tests/programs/ddp.sh BINARY_DIR: cifar10_ddp as a user runs it, on one rank.
# SPDX-License-Identifier: MIT
set -u
program=$1/cifar10_ddp
. "$(cd "$(dirname "$0")" && pwd)/common/checks.sh"

sample="--sample --data d --seed 1"

status 0 $sample --max_steps 200 --log-interval 100 --trace t.csv --save_step_interval 100
has out '^\[1,   100\] loss: 2\.3'
has out '^Saved \./cifar_net_step_100\.safetensors$'
has out '^Finished Training$'
has out '^Accuracy of the network on the 1000 test images: [0-9]* %$'
has cifar_net_step_200.safetensors 'model_state_dict.conv1.weight'
has cifar_net_step_200.safetensors 'optimizer_state_dict.momentum_buffer.fc3.bias'
has cifar_net_step_200.safetensors '"epoch"'
lines t.csv 201

# ---- a launcher's option, a seed, workers
status 0 $sample --local_rank=0 --max_steps 20 --no_eval --quiet --trace t1.csv
status 0 $sample --max_steps 20 --no_eval --quiet --trace t2.csv --workers 2 --threads 2
same t1.csv t2.csv

# ---- mistakes
status 0 --help
has out 'save-step-interval=N'
status 2 --epochs many
has err '"many" is not a whole number'
status 1 $sample --max_steps 3 --no_eval --save_step_interval 2 --save_dir no/such
has err 'no/such'
status 1 --data empty --no_download
lines err 1

finish
