# The beginning of the program of docs/from-pytorch.md.
# SPDX-License-Identifier: MIT
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

points, labels = torch.rand(64, 2), torch.randint(2, (64,))
