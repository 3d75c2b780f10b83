"""The gradient of a private step: gradients of single examples, clipped, added up, noised and divided."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from archipel.core.types import Plan
from archipel.learner.example_gradients import ROOM, example_gradients
from archipel.learner.learner import Job, TrainingContext
from archipel.privacy.noise import limit, noised


class NoisedGradient:
    """Computes the gradients of the steps of one phase."""

    def __init__(self, work: TrainingContext, job: Job, plan: Plan, parameters: Sequence[nn.Parameter]) -> None:
        assert work.local_noise is not None
        assert job.noise is not None
        self.mechanism, self.noise, self.examples = work.local_noise, job.noise, job.examples
        self.parameters, self.batch = parameters, plan.batch
        self.gradients = example_gradients(work, job, parameters)
        self.size = sum(parameter.numel() for parameter in parameters)

    def write(self, x: Tensor, y: Tensor, step: int) -> None:
        """Set the parameters' gradients for this step of the task."""
        total = self.clipped_sum(x, y).cpu().numpy()
        deviation = self.noise.noise * self.mechanism.clip
        noisy = torch.from_numpy(noised(self.noise.key, f"step {step}", total, deviation))
        mean = noisy / self.noise.expected(self.mechanism, self.examples, len(x))
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, numbers in zip(self.parameters, mean.split(sizes), strict=True):
            parameter.grad = numbers.to(parameter).view_as(parameter)

    def clipped_sum(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the sum of clipped gradients, in float64; one that is not finite counts as zero."""
        most = limit(self.mechanism.clip, self.examples, self.size)
        total = torch.zeros(self.size, dtype=torch.float64, device=x.device)
        at_a_time = max(1, ROOM // self.size)
        for start in range(0, len(x), at_a_time):
            piece = slice(start, start + at_a_time)
            rows = torch.cat([g.detach().flatten(1) for g in self.gradients(x[piece], y[piece])], 1).double()
            norms = rows.norm(dim=1)
            finite = norms.isfinite()
            rows[~finite] = 0.0
            factors = torch.where(finite & (norms > most), most / norms, 1.0)
            total += factors @ rows
        return total
