"""The tutorial's network in PyTorch, beside the programs here: peer_net.py train DATA OUT.pth | step FILE.pth.

train: some steps on the images of DATA's sample, saved as the tutorial does; prints for each class how many test
images of it are recognised, in the order of the classes. step: continues from a saved step of cifar10_ddp.
SPDX-License-Identifier: MIT
"""
import os
import sys

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc2(F.relu(self.fc1(torch.flatten(x, 1)))))
        return self.fc3(x)


def images(folder, part):
    names = sorted(n for n in os.listdir(folder) if n.startswith(part) and n.endswith(".bin"))
    raw = b"".join(open(os.path.join(folder, n), "rb").read() for n in names)
    rows = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(-1, 3073)
    x = (rows[:, 1:].float() / 255 - 0.5) / 0.5
    return x.view(-1, 3, 32, 32), rows[:, 0].long()


def train(data, out):
    torch.manual_seed(0)
    folder = os.path.join(data, "cifar-10-sample", "cifar-10-batches-bin")
    x, y = images(folder, "data_batch")
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    for i in range(600):
        at = torch.arange(i * 16, i * 16 + 16) % len(y)
        sgd.zero_grad()
        F.cross_entropy(net(x[at]), y[at]).backward()
        sgd.step()
    torch.save(net.state_dict(), out)
    x, y = images(folder, "test_batch")
    with torch.no_grad():
        right = net(x).argmax(1) == y
    print(*(f"{100 * int(right[y == c].sum()) // int((y == c).sum())}" for c in range(10)))


def step(path):
    saved = torch.load(path, weights_only=True)
    net = Net()
    net.load_state_dict(saved["model_state_dict"])
    sgd = torch.optim.SGD(net.parameters(), lr=1, momentum=0.5)
    sgd.load_state_dict(saved["optimizer_state_dict"])
    assert sgd.param_groups[0]["lr"] == 0.001 and sgd.param_groups[0]["momentum"] == 0.9
    assert isinstance(saved["epoch"], int) and isinstance(saved["loss"], float)
    F.cross_entropy(net(torch.zeros(2, 3, 32, 32)), torch.tensor([1, 2])).backward()
    sgd.step()


if __name__ == "__main__":
    {"train": train, "step": step}[sys.argv[1]](*sys.argv[2:])
