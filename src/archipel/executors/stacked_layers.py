"""What a stack needs beside `torch.func.vmap`: batch norm over batches of different lengths, and draws of each learner.

A short batch is padded to the length of the others. Batch norm must not count the padding, and dropout must draw as
many numbers, from the same generator, as it does for a learner that is trained alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
DRAWING = (torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli_.float)
"""How every kind of dropout draws, mapped over learners and not."""


class PaddedBatchNorm(_BatchNorm):
    """Batch norm of one learner whose batch may be padded."""

    shares: Tensor | None = None
    """Of the examples in their batch's mean, 0 for padding; None: nothing is padded."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept every dimension: the norm that this one replaces has seen the same inputs."""

    def forward(self, x: Tensor) -> Tensor:
        shares = self.shares
        if shares is None or not self.training:
            return super().forward(x)
        rows = x.reshape(x.shape[0], x.shape[1], -1)
        mean = (shares @ rows.mean(dim=2)).unsqueeze(1)
        centred = rows - mean
        variance = (shares @ centred.square().mean(dim=2)).unsqueeze(1)
        if self.track_running_stats:
            count = (shares > 0).sum() * rows.shape[2]
            self._track(mean.detach().squeeze(1), variance.detach().squeeze(1) * (count / (count - 1)))
        scaled = centred * (variance + self.eps).rsqrt()
        if self.affine:
            scaled = scaled * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)
        return scaled.reshape(x.shape)

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        rate = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean.add_((mean - self.running_mean) * rate)
        self.running_var.add_((variance - self.running_var) * rate)


def with_padded_norms(module: nn.Module) -> list[PaddedBatchNorm]:
    """Replace every batch norm inside a module by one for padded batches, and return them."""
    found: list[PaddedBatchNorm] = []
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm) and type(child) in BATCH_NORMS:
            settings = (child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats)
            found.append(PaddedBatchNorm(*settings))
            setattr(module, name, found[-1])
        else:
            found += with_padded_norms(child)
    return found


class LearnersDraws(TorchDispatchMode):
    """Gives every learner of a stack the random numbers that it would draw alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generators: list[torch.Generator] = []
        self.present: Sequence[int] = ()
        """Examples of every learner's batch without padding."""
        self.width = 0
        """Examples of a batch with padding."""

    def seed(self, learner: int, key: int) -> None:
        """Seed a learner's generator as a pass over its data does."""
        while learner >= len(self.generators):
            self.generators.append(torch.Generator())
        self.generators[learner].manual_seed(key)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in DRAWING:
            return func(*args, **(kwargs or {}))
        tensor, chance = args
        drawn = torch.zeros_like(tensor, memory_format=torch.contiguous_format)  # 0 x anything else may be NaN
        for numbers, generator, present in zip(drawn, self.generators, self.present, strict=False):
            if present < self.width:  # examples come first in whatever is drawn for them
                if len(numbers) % self.width:
                    raise RuntimeError("random numbers are not drawn example by example")
                numbers = numbers[: len(numbers) // self.width * present]
            numbers.bernoulli_(chance, generator=generator)
        return drawn if func is DRAWING[0] else tensor.copy_(drawn)
