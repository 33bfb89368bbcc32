#!/bin/sh
# tests/programs/deepspeed.sh BINARY_DIR: cifar10_deepspeed as a user runs it:
# what it prints, its files, its status, and one line for each mistake.
# SPDX-License-Identifier: MIT
set -u
program=$1/cifar10_deepspeed
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/checks.sh"

sample="--sample --data d --seed 1"
config='{"train_batch_size": 16, "steps_per_print": 10, "gradient_clipping": 1.0,
 "optimizer": {"type": "Adam", "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
 "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 10}}'
echo "$config}" >ds_config.json

# ---- what the example prints
samples='' steps=488 # two epochs
[ ! "${DS_TEST_QUICK-}" ] || samples='--samples 1600' steps=200
status 0 $sample $samples --deepspeed -e 2 --log-interval 100 --trace t.csv --save a.safetensors
has out '^\[1,   100\] loss: 2\.[0-9][0-9][0-9]$'
has out '^Finished Training$'
has out '^Accuracy of the network on the 1000 test images: [0-9]* %$'
has out '^Accuracy of plane : .[0-9] %$'
has err '^\[ 002 / 2 \]: 100%|.*| '$steps/$steps' \[[0-9:]*<00:00, .*, loss=[0-9]\.[0-9][0-9][0-9]\]$'
has t.csv '^step,loss,lr,grad_norm,loss_scale,skipped$'
has t.csv '^1,2\.[0-9]*,0,[0-9.]*,1,0$'
has t.csv "^$steps,"
lines t.csv $((steps + 1))

# ---- a seed repeats a run bit for bit; workers and threads change nothing
status 0 $sample --max-steps 50 --no-eval --quiet --trace t1.csv --save b.safetensors
status 0 $sample --max-steps 50 --no-eval --quiet --trace t2.csv --save c.safetensors --workers 2 --threads 2
lines out 0
lines err 0
same t1.csv t2.csv
same b.safetensors c.safetensors

# ---- options, and a file of the same values: the same training
status 0 $sample --max-steps 50 --no-eval --quiet --trace t3.csv --save d.safetensors \
    --deepspeed_config "$here/../../examples/cifar10/ds_config.json"
same t1.csv t3.csv
same b.safetensors d.safetensors

# ---- the configuration from a file, with DeepSpeed's lines where it asks for
# them
status 0 $sample --deepspeed_config ds_config.json --max_steps 20 --no_eval
has out 'step=20, skipped=0, lr=\[0.001\], mom=\[\[0.8, 0.999\]\]$'
has out 'RunningAvgSamplesPerSec='
has_not out 'DeepSpeedEngine configuration'
status 0 $sample --deepspeed_config '{"train_batch_size": 16, "steps_per_print": 2, "optimizer": {"type": "Adam"}}' --max_steps 2 --no_eval
has out 'mom=\[(0.9, 0.999)\]$'
DS_LOG=info "$program" $sample --deepspeed --deepspeed-config=ds_config.json --local_rank=0 --max_steps 1 --no_eval >out 2>err
has out 'DeepSpeedEngine configuration:'
has out '  train_batch_size \.* 16$'
status 0 $sample --deepspeed_config "$(base64 -w 0 <ds_config.json | tr '+/' '-_')" --max_steps 1 --no_eval

echo "$config, \"wall_clock_breakdown\": true}" >timed.json
status 0 $sample --deepspeed_config timed.json --max_steps 2 --no_eval
has out 'time (ms) | fwd_microstep: .* | bwd_microstep: .* | bwd_inner_microstep: .* | bwd_allreduce_microstep: .* | step_microstep: '
has out 'time (ms) | fwd: .* | bwd: .* | bwd_inner: .* | bwd_allreduce: .* | step: '

# ---- precision
for dtype in fp16 bf16; do
    status 0 $sample --dtype $dtype --max_steps 30 --trace t_$dtype.csv --save w.safetensors
    has out 'Accuracy of the network on the 1000'
done
has t_fp16.csv '^1,.*,32768,0$'
has t_bf16.csv '^1,.*,1,0$'

# ---- averages
status 0 $sample --use_ema --max_steps 30
has out 'Accuracy of the network on the 1000'

# ---- monitors
echo "$config, \"csv_monitor\": {\"enabled\": true, \"output_path\": \"runs\", \"job_name\": \"j\"},
 \"tensorboard\": {\"enabled\": true, \"output_path\": \"runs\", \"job_name\": \"t\"}}" >m.json
status 0 $sample --deepspeed_config m.json --max_steps 5 --no_eval
has runs/j/Train_Samples_train_loss.csv '^80,2\.'
has runs/j/Train_Samples_grad_norm.csv '^80,'
ls runs/t/events.out.tfevents.* >out 2>err
has out 'events.out.tfevents'

# ---- less data than a batch
status 0 $sample --deepspeed_config '{"train_batch_size": 16, "dataloader_drop_last": true, "optimizer": {"type": "Adam"}}' --samples 3 -e 1 --no_eval
has out 'WARNING.*there is no batch: 3 samples are less than one of 16, and drop_last leaves them out'

# ---- the log of collectives
echo "$config, \"comms_logger\": {\"enabled\": true, \"prof_all\": false, \"prof_ops\": [\"all_reduce\"]}}" >c.json
status 0 $sample --deepspeed_config c.json --max_steps 5 --no_eval
has out '^Comm. Op            Message Size        Count '
has_not out 'broadcast'

# ---- no step at all
status 0 $sample --max_steps 0 --no_eval
has err '^\[ 000 / 30 \]:   0%|'
status 0 $sample --quiet --samples 160 --epochs 9 --no_eval
lines out 0

# ---- save and load
status 0 $sample --load a.safetensors --epochs 0
has out 'Accuracy of the network'

# ---- help and mistakes
status 0 --help
has out 'deepspeed_config=FILE'
has out 'dtype=TYPE'
status 2 --deepspeed_confg x
has err 'there is no option --deepspeed_confg; did you mean --deepspeed_config?'
lines err 1
status 2 --dtype fp8
has err '"fp8": expected fp32, fp16 or bf16'
status 2 --stage 4
has err 'stage: 4 is outside 0 to 3'
status 2 extra
has err 'unexpected argument "extra"'
status 1 $sample --deepspeed_config ds_config.json -b 4
has err '--batch-size 4: train_batch_size of ds_config.json is 16: make it "auto"'
sed 's/"train_batch_size": 16/"train_batch_size": "auto"/' ds_config.json >auto.json
status 0 $sample --deepspeed_config auto.json -b 4 --max_steps 1 --no_eval
status 1 $sample --deepspeed_config ds_config.json --dtype bf16
has err '--dtype bf16: ds_config.json configures fp32'
status 1 $sample --deepspeed_config none.json
has err 'none.json'
echo '{"train_batch_size": 16, "zero_optimization": {"reduce_bukcet_size": 5}}' >bad.json
status 1 --data empty --no_download --deepspeed_config bad.json
has err 'zero_optimization.reduce_bukcet_size.*did you mean.*reduce_bucket_size'
printf '{"train_batch_size": 16,\n "optimizer": {"type": "Adam",\n "params": {"betass": [0, 0]}}}' >bad.json
status 1 --data empty --no_download --deepspeed_config bad.json
has err 'config: bad.json: line 3: optimizer.params.betass: did you mean "betas"?'
lines err 1
# a program beside which there is no plugin
mkdir lone && cp "$program" "$1"/libdeepspeed.so.* lone/
LD_LIBRARY_PATH=$PWD/lone OMPI_COMM_WORLD_SIZE=2 lone/cifar10_deepspeed $sample >out 2>err </dev/null
has err 'there is no libdeepspeed_openmpi.so in .*; install the package deepspeed-openmpi'
echo "$config, \"tensorboard\": {\"enabled\": true, \"output_path\": \"/dev/null/x\"}}" >full.json
status 1 $sample --deepspeed_config full.json --max_steps 2
has err '/dev/null: '
status 1 $sample --deepspeed --local_rank=1 --max_steps 1
has err 'local_rank is 1, but this process is rank 0 of 1'
status 1 $sample --deepspeed_mpi --max_steps 1
has err 'deepspeed_mpi, but this process was not started by MPI'
mkdir folder.pth
for path in no/such/folder/x.safetensors x.txt folder.pth /proc/x.pth; do
    status 1 $sample --max_steps 3 --no_eval --trace refused.csv --save $path
    has err "$path: "
    lines err 1
    none refused.csv
done
status 1 $sample --with_cuda
has err 'device cuda:0: '
status 1 --data empty --no_download
lines err 1
# before data are looked for, and so before a download
for option in '--load none.pth' '--load-dir none'; do
    status 1 --data empty --no_download $option
    has err "cifar10_deepspeed: $option: No such file or directory$"
done
touch file
status 1 --data empty --no_download --save-dir file
has err 'cifar10_deepspeed: --save-dir file is a file, expected a folder$'
status 1 --data empty --no_download --save-dir /proc/x
has err 'cifar10_deepspeed: --save-dir /proc/x: No such file or directory$'
echo "$config, \"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\"}}}" >nvme.json
status 1 --data empty --no_download --deepspeed_config nvme.json
has err 'nvme.json: line 3: "zero_optimization.offload_param.device": "nvme", but there is no nvme_path: name a folder'

# ---- a mistake on two ranks: one line, of one rank (those of mpirun are left out)
. "$here/common/mpi.sh"
cifar10=$program
# refused_by RUNNER...: two ranks that make mistakes
refused_by()
{
    program=$1
    shift
    for mistake in '--batch-size 15' '--load none.pth' '--load-dir none' '--with-cuda' \
        '--save /proc/x.pth' '--save-dir file' '--moe --num-experts 3 --ep-world-size 2' \
        '--deepspeed_config nvme.json' '--save-interval 3'; do
        ASAN_OPTIONS=detect_leaks=0 status 1 "$@" "$cifar10" --sample --data d --no-eval --quiet $mistake
        sed -i '/^-----/,/^-----/d' err
        has err '^cifar10_deepspeed: .* (rank 0)$'
        lines err 1
        case $mistake in *size*15) has err 'batch-size 15: expected a multiple of 2, the number of ranks' ;; esac
    done
    ASAN_OPTIONS=detect_leaks=0 status 2 "$@" "$cifar10" --epochs -1
    sed -i '/^-----/,/^-----/d' err
    has err '^cifar10_deepspeed: --epochs: -1 is outside 0 to'
    lines err 3
}
if [ -e "$1/libdeepspeed_openmpi.so" ] && command -v mpirun.openmpi >/dev/null; then
    quiet=-q
    command -v orterun >/dev/null || quiet='' # Open MPI 5 has no such option
    refused_by mpirun.openmpi $quiet --oversubscribe -n 2
fi
if have_mpich "$1"; then refused_by mpiexec.hydra -n 2; fi
program=$cifar10

# ---- every allocation that may fail ends with one line
n=1
while [ $n -le 90 ]; do
    DS_FAIL_ALLOC=$n "$program" $sample --dtype bf16 --max_steps 2 --no_eval --quiet >out 2>err
    got=$?
    if [ $got -eq 1 ] && grep -q 'no memory for' err; then pass; else fail "allocation $n: status $got"; fi
    n=$((n + 11))
done

finish
