"""Membership attacks on digits: without noise they succeed, at epsilon 1 they hardly do."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from archipel.core.layout import Layout
from archipel.core.parts import LocalNoise
from archipel.core.types import Plan
from archipel.data import digits
from archipel.learner.example_budget import StepNoise
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.training import advance
from archipel.privacy.accounting import noise_for_steps

pytestmark = pytest.mark.slow
NOTHING = torch.empty(0, dtype=torch.int64)
SEEDS = range(5)
CANARIES = 80
"""Digits with labels drawn at random, which can only be known by heart; half of them are trained on."""


def auc(members: Tensor, others: Tensor) -> float:
    """Return the probability that a member scores higher than another example."""
    pairs = stats.mannwhitneyu(members.numpy(), others.numpy()).statistic
    return float(pairs / (len(members) * len(others)))


def auc_on_canaries(epsilon: float | None, seed: int) -> float:
    """Train one learner on half of the canaries; attack by the loss of each."""
    source = digits().split(learners=1, seed=seed)
    draws = torch.Generator().manual_seed(seed)
    x = source.x[torch.randperm(len(source.x), generator=draws)[:CANARIES]].flatten(1)
    y = torch.randint(10, (CANARIES,), generator=draws)
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    members, others = torch.arange(CANARIES // 2), torch.arange(CANARIES // 2, CANARIES)
    plan, steps, mechanism, noise = Plan(epochs=60, batch=20, rate=0.5), 120, None, None
    if epsilon is not None:
        mechanism = LocalNoise(epsilon=epsilon, clip=1.0)
        noise = StepNoise(f"{seed + 1:02x}" * 32, noise_for_steps(epsilon, 0.5, steps, 1e-3), 0.5)
    loss = nn.functional.cross_entropy
    work = TrainingContext(module, Layout.of(module), loss, x, y, 10, local_noise=mechanism)
    learner = Learner("a", members, NOTHING, NOTHING)
    job = Job.begin(learner, work.layout, work.layout.vector(module), plan, 1, noise=noise)
    advance(work, job)
    assert job.steps == steps
    work.binding.bind(job.vector)
    with torch.no_grad():
        scores = -loss(module(x), y, reduction="none")
    return auc(scores[members], scores[others])


def most_auc(epsilon: float) -> float:
    """Return the largest area that any attack on anything of this epsilon can have, leaving out delta."""
    falsely = (1 - math.exp(-epsilon)) / (math.exp(epsilon) - math.exp(-epsilon))  # where both bounds meet
    return falsely * (1 - falsely) / 2 + (1 - falsely) * (2 - falsely) / 2


def test_canaries_are_told_apart_without_noise_and_no_better_than_epsilon_1_allows() -> None:
    assert min(auc_on_canaries(None, seed) for seed in SEEDS) > 0.95
    assert fmean(auc_on_canaries(1.0, seed) for seed in SEEDS) < most_auc(1.0)
