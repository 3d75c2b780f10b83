"""The workloads' networks and their loss in PyTorch, for every contender that is built on it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.workloads import Workload, initial


def network(workload: Workload) -> nn.Module:
    """The workload's network with its initial model."""
    arrays = [torch.from_numpy(array) for array in initial(workload)]
    layers: list[nn.Module] = []
    for weight, bias in zip(arrays[::2], arrays[1::2], strict=True):
        if weight.dim() == 4:
            layers += [nn.Conv2d(weight.shape[1], weight.shape[0], 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
            layer = layers[-3]
        else:
            if not any(isinstance(layer, nn.Linear) for layer in layers):
                layers.append(nn.Flatten())
            layers += [nn.Linear(weight.shape[1], weight.shape[0]), nn.ReLU()]
            layer = layers[-2]
        with torch.no_grad():
            layer.get_parameter("weight").copy_(weight)
            layer.get_parameter("bias").copy_(bias)
    return nn.Sequential(*layers[:-1])  # no ReLU behind the last layer


def mean_loss(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """The mean over all examples, in pieces that fit into the cache's neighbourhood."""
    module.eval()
    with torch.no_grad():
        losses = [
            nn.functional.cross_entropy(module(xs), ys, reduction="sum").item()
            for xs, ys in zip(x.split(500), y.split(500), strict=True)
        ]
    return sum(losses) / len(y)
