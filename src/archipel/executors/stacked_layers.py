"""Batch norm that ignores the padding of short batches."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class PaddedBatchNorm(_BatchNorm):
    """Batch norm of one learner whose batch may be padded."""

    shares: Tensor | None = None
    """Weights of the examples in the batch's mean, 0 for padding; None: there is no padding."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept every dimension; the original layer has checked the same inputs."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or (self.shares is None and self.momentum is not None):
            return super().forward(x)
        shares = x.new_full(x.shape[:1], 1 / len(x)) if self.shares is None else self.shares
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
