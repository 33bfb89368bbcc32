#!/bin/sh
# tests/programs/tutorial.sh BINARY_DIR: cifar10_tutorial as a user runs it:
# what it prints, its files, its status, and one line for each mistake.
# SPDX-License-Identifier: MIT
set -u
program=$1/cifar10_tutorial
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common/checks.sh"

sample="--sample --data d --seed 1"

# ---- what the tutorial prints
status 0 $sample --max_steps 200 --log-interval 100 --show grid.png --trace t.csv --save a.safetensors
has out '^\[1,   100\] loss: 2\.3'
has out '^Finished Training$'
has out '^GroundTruth:   '
has out '^Predicted:  '
has out '^Accuracy of the network on the 1000 test images: [0-9]* %$'
has out '^Accuracy of plane : .[0-9] %$'
has out '^cpu$'
has err 'sample'
lines t.csv 201
has t.csv '^step,loss,lr,grad_norm$'
has t.csv '^200,[0-9.]*,0\.001'
has grid.png PNG

# ---- a seed repeats a run bit for bit; workers and threads change nothing
status 0 $sample --max-steps 50 --no-eval --quiet --trace t1.csv --save b.safetensors
status 0 $sample --max-steps 50 --no-eval --quiet --trace t2.csv --save c.safetensors --workers 2 --threads 2
lines out 0
lines err 0
same t1.csv t2.csv
same b.safetensors c.safetensors

# ---- save, load, eval
status 0 $sample --load a.safetensors --eval --save e.safetensors
same a.safetensors e.safetensors
has out 'Accuracy of the network'
status 0 $sample --load a.safetensors --eval --show tested.png
has tested.png PNG
has out '^GroundTruth:   '
status 0 $sample --load a.safetensors --eval --show quiet.png --quiet
same tested.png quiet.png
lines out 11

# ---- as the tutorial: ./cifar_net.pth, which PyTorch loads, and one of
# PyTorch's gives PyTorch's accuracy
status 0 $sample --max_steps 2 --no_eval
has out '^Saved ./cifar_net.pth$'
status 0 $sample --load cifar_net.pth --eval --quiet
torch=${DS_PEER_PYTHON:-python3}
if "$torch" -c 'import torch' 2>/dev/null; then
    "$torch" "$here/common/peer_net.py" train d torch.pth >want 2>err
    status 0 $sample --load torch.pth --eval --quiet
    sed -n 's/^Accuracy of [ a-z]* : *\([0-9]*\) %$/\1/p' out | tr '\n' ' ' | sed 's/ $//' >got
    echo >>got
    # one image in a hundred of a class may fall to the other side
    paste -d ' ' want got | awk '{ for (i = 1; i <= 10; i++) if (($i - $(i + 10))^2 > 1) exit 1; exit NF != 20 }'
    if [ $? -eq 0 ]; then pass; else fail "PyTorch: $(cat want), here: $(cat got)"; fi

    # of DataParallel, beside an object of an unknown class
    cp out plain
    "$torch" - <<'END' 2>err
import fractions, torch
d = torch.load("torch.pth")
net = torch.nn.Module()
for name, x in d.items():
    layer, part = name.split(".")
    if not hasattr(net, layer):
        setattr(net, layer, torch.nn.Module())
    getattr(net, layer).register_parameter(part, torch.nn.Parameter(x))
torch.save({"model_state_dict": torch.nn.DataParallel(net).state_dict(), "best": fractions.Fraction(1, 2)}, "parallel.pth")
END
    status 0 $sample --load parallel.pth --eval --quiet
    same out plain
fi

# ---- small data: fewer images than a batch
status 0 $sample --samples 3 --batch_size 16 --epochs 2 --trace t3.csv --no_shuffle --no_eval
lines t3.csv 3

# ---- help and mistakes
status 0 --help
has out 'batch-size=N'
status 2 --bogus
has err 'there is no option --bogus (--help'
lines err 1
for option in --batch_sise=4 --batch-sise; do
    status 2 $option 4
    has err "there is no option ${option%=*}; did you mean $(echo ${option%=*} | sed s/sise/size/)?"
    lines err 1
done
OMPI_COMM_WORLD_RANK=1 status 2 --bogus # rank 0 says it
lines err 0
OMPI_COMM_WORLD_RANK=1 status 2 --epochs -1
lines err 0
PMI_RANK=1 status 0 --help
lines out 0
status 0 --sample --data d --max_steps 1e9 --epochs 0 --no_eval --quiet
status 2 --max_steps 1.5
has err '"1.5" is not an integer'
status 2 --max_steps 99999999999999999999
has err 'max-steps: 99999999999999999999 is outside 0 to 9223372036854775807$'
status 2 --samples 0
has err 'samples: 0: expected at least 1$'
for lr in inf nan 1e999; do
    status 2 --lr $lr
    has err "lr: \"$lr\" is not a number"
done
status 1 $sample --max_steps 3 --show x.jpg
has err 'x.jpg: expected a name that ends with .png'
none x.jpg
status 0 $sample --eval --quiet
has err 'eval without --load FILE: the weights are random'
status 1 --data d/cifar-10-sample/cifar-10-batches-bin/ --eval
has err 'is the folder of the batches: give the folder that it is in, d/cifar-10-sample$'
lines err 1
status 1 --data empty --no_download --load none.pth
has err '^cifar10_tutorial: --load none.pth: No such file or directory$'
status 2 --epochs many
has err '"many" is not an integer'
status 2 --batch_size 0
has err 'batch-size: 0 is outside'
status 2 --lr x
has err '"x" is not a number'
status 2 stray
has err 'unexpected argument "stray"'
status 1 --device tpu $sample
has err 'expected cpu, cuda or cuda:N'
status 1 --data empty --data_url file:///nowhere.tar.gz
has err 'download: .*; --data DIR takes a set that is there, --sample the built-in small one$'
status 1 --data empty --no_download
lines err 1
status 1 $sample --load none.safetensors
has err 'none.safetensors'
lines err 1
printf 'no weights' >bad.safetensors
status 1 $sample --load bad.safetensors
has err 'bad.safetensors'

# ---- a --save that cannot work is refused before training, under the name that
# was given
mkdir folder.pth
for path in no/such/folder/x.safetensors x.txt x folder.pth /proc/x.pth; do
    status 1 $sample --max_steps 3 --no_eval --trace refused.csv --save $path
    has err "$path: "
    lines err 1
    none refused.csv
done
if [ "$(id -u)" -ne 0 ]; then # root may write everywhere
    mkdir -m 555 locked
    status 1 $sample --max_steps 3 --no_eval --trace refused.csv --save locked/x.pth
    has err 'locked/x.pth: Permission denied'
    none refused.csv
fi
status 1 $sample --max_steps 3 --no_eval --trace no/such/t.csv
has err 'no/such/t.csv'
status 1 $sample --lr 1e30 --save f.safetensors
has err 'step [0-9]*: the loss is -\{0,1\}\(nan\|inf\)'
none f.safetensors
if [ -e /dev/full ]; then
    "$program" $sample --max_steps 1 >/dev/full 2>err </dev/null
    if [ $? -eq 1 ]; then pass; else fail "a full disk behind stdout is not noticed"; fi
    status 1 $sample --max_steps 3 --no_eval --trace /dev/full
    has err '/dev/full'
fi

# ---- every allocation that may fail ends with one line
n=1
while [ $n -le 60 ]; do
    DS_FAIL_ALLOC=$n "$program" $sample --max_steps 2 --no_eval --quiet >out 2>err
    got=$?
    if [ $got -eq 1 ] && grep -q 'no memory for' err; then pass; else fail "allocation $n: status $got"; fi
    n=$((n + 7))
done

# ---- under the deepspeed command: one process
status 0 --local_rank=0 $sample --no_eval --max_steps 1 --quiet
export WORLD_SIZE=2
status 2 --local_rank=1 $sample --no_eval --max_steps 1 --quiet
has err 'it is one process, and 2 ranks were started'
unset WORLD_SIZE

finish
