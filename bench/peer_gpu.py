#!/usr/bin/env python3
"""bench/peer_gpu.py: the tutorial network's training step in PyTorch on cuda:0, eager and compiled, at the batch sizes of
bench/gpu.c, with the data on the GPU. bench/run gpu runs it where torch has CUDA.
SPDX-License-Identifier: MIT
"""
import time

import torch
import torch.nn as nn

STEPS, WARM_UP = 2000, 20


def network():
    return nn.Sequential(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)).cuda()


def rate(batch, compiled, reads):
    """Samples a second; reads: the loss is read at the end of each step, as in PyTorch's tutorial."""
    images = torch.randint(0, 256, (10000, 3, 32, 32), dtype=torch.uint8, device='cuda')
    labels = torch.arange(10000, device='cuda') % 10
    net = network()
    sgd = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)
    model = torch.compile(net, mode='reduce-overhead') if compiled else net
    begun = 0
    for i in range(WARM_UP + STEPS):
        if i == WARM_UP:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        at = torch.randint(0, 10000, (batch,), device='cuda')
        sgd.zero_grad()
        loss = nn.functional.cross_entropy(model((images[at].float() / 255 - 0.5) / 0.5), labels[at])
        loss.backward()
        sgd.step()
        if reads:
            loss.item()
    torch.cuda.synchronize()
    return batch * STEPS / (time.perf_counter() - begun)


print(f'PyTorch {torch.__version__}, {torch.cuda.get_device_name()}')
print(f'{"batch":>6} {"compiled":>10} {"eager":>10} {"compiled*":>10} {"eager*":>10}   samples/s; *: losses are not read')
for size in (4, 16, 32, 128):
    rates = [rate(size, compiled, reads) for reads in (True, False) for compiled in (True, False)]
    print(f'{size:6} ' + ' '.join(f'{r:10.0f}' for r in rates), flush=True)
