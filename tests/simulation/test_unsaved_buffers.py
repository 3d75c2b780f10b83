"""Buffers that a network changes and does not save are the same for every learner that begins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from archipel.core.binding import Binding
from archipel.core.layout import Layout
from archipel.core.types import Plan
from archipel.executors.choice import choose, executor_of
from archipel.executors.plain import Plain
from archipel.executors.workers import Workers
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.probes import score
from archipel.learner.training import advance

PLAN = Plan(epochs=3, batch=5, rate=0.1, momentum=0.5)
WAYS = ("assigned", "in place", "none at first", "made in the forward pass", "saved, none at first", "bfloat16")


class Remembers(nn.Module):
    """Adds what it has seen before to what it sees."""

    seen: Tensor | None

    def __init__(self, way: str) -> None:
        super().__init__()
        self.inner, self.head, self.way = nn.Linear(4, 6), nn.Linear(6, 3), way
        kind = torch.bfloat16 if way == "bfloat16" else torch.float32
        if way != "made in the forward pass":
            first = None if "none" in way else torch.zeros(6, dtype=kind)
            self.inner.register_buffer("seen", first, persistent="saved" in way)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.inner(x))
        seen = getattr(self.inner, "seen", None)
        if seen is None and self.way == "made in the forward pass":
            self.inner.register_buffer("seen", torch.zeros(6), persistent=False)
        if self.training:
            moved = hidden.detach().mean(dim=0) + (0 if seen is None else seen)
            if self.way == "in place":
                assert isinstance(seen, Tensor)
                seen.copy_(moved)
            else:
                self.inner.seen = moved if seen is None else moved.to(seen.dtype)
        scores: Tensor = self.head(hidden + (0 if seen is None else seen.float()))
        return scores


def context_of(way: str) -> TrainingContext:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, x = Remembers(way), torch.randn(60, 4)
    return TrainingContext(module, Layout.of(module), nn.functional.cross_entropy, x, torch.arange(60) % 3, 3)


def jobs_of(context: TrainingContext, order: tuple[int, ...], plan: Plan = PLAN) -> dict[int, Job]:
    start, nothing = context.layout.vector(context.module).clone(), torch.empty(0, dtype=torch.int64)
    parts = torch.arange(60).split([20, 25, 15])
    return {
        i: Job.begin(Learner(str(i), parts[i], parts[i][:4], nothing), context.layout, start, plan, 7 * i)
        for i in order
    }


def expected(way: str, plan: Plan = PLAN) -> list[Tensor]:
    """Every learner alone, with a network that has seen nothing."""
    models = []
    for i in range(3):
        context = context_of(way)
        job = jobs_of(context, (i,), plan)[i]
        advance(context, job)
        models.append(job.vector)
    return models


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_learner_sees_nothing_of_those_before_it(way: str) -> None:
    alone = expected(way)
    assert not torch.equal(alone[0], expected("assigned", Plan(epochs=3, batch=5, rate=0.1))[0])
    for order in ((0, 1, 2), (2, 1, 0)):
        for kind, ahead in ((Plain, None), (Plain, 1), (Workers, None), (Workers, 1)):
            context = context_of(way)
            jobs, executor = jobs_of(context, order), kind(context)
            while not all(job.done for job in jobs.values()):
                executor.submit(list(jobs.values()), ahead)
                executor.wait()
            executor.close()
            for i, job in jobs.items():
                assert torch.equal(job.vector, alone[i]), (kind, ahead, order, i)


@pytest.mark.parametrize("way", WAYS)
def test_a_score_sees_nothing_of_what_was_trained_before(way: str) -> None:
    context = context_of(way)
    model = context.layout.vector(context.module).clone()
    before = score(context, model, torch.arange(60)).loss
    for job in jobs_of(context, (0, 1, 2)).values():
        advance(context, job)
    assert score(context, model, torch.arange(60)).loss == before


def test_what_was_seen_lasts_from_epoch_to_epoch_of_a_task() -> None:
    context = context_of("assigned")
    job = jobs_of(context, (0,))[0]
    advance(context, job, 1)
    first = job.memory["unsaved buffers"]["inner.seen"]
    advance(context, job, 1)
    assert float(first.abs().sum()) > 0
    assert not torch.equal(job.memory["unsaved buffers"]["inner.seen"], first)


@pytest.mark.parametrize("way", ["assigned", "in place", "none at first"])
def test_such_a_network_is_not_stacked(way: str) -> None:
    context = context_of(way)
    reason = "its forward pass changes a buffer, inner.seen, that is not saved (persistent=False)"
    assert choose(context, PLAN) == ("workers", f"not stacked, because {reason}")
    with pytest.raises(ValueError, match=r"inner\.seen"):
        executor_of(context, PLAN, "stacked")


def test_a_constant_is_stacked_and_comes_to_the_same_models() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)
            self.register_buffer("scale", torch.tensor([0.5, 1.0, 2.0]), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.inner(x) * self.scale
            return scores

    module = Scaled()
    x, y = torch.randn(60, 4), torch.arange(60) % 3
    context = TrainingContext(module, Layout.of(module), nn.functional.cross_entropy, x, y, 3)
    jobs, alone = jobs_of(context, (0, 1, 2)), jobs_of(context, (0, 1, 2))
    executor = executor_of(context, PLAN)
    assert executor.name == "stacked"
    executor.submit(list(jobs.values()))
    executor.wait()
    executor.close()
    for i, job in alone.items():
        advance(context, job)
        torch.testing.assert_close(jobs[i].vector, job.vector)


def test_modules_that_share_a_buffer_go_on_sharing_it() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    shared = torch.ones(3)
    for part in module:
        part.register_buffer("shared", shared, persistent=False)
    binding = Binding(Layout.of(module), module)
    first = module.get_submodule("0")._buffers
    first["shared"].add_(1)  # type: ignore[union-attr]
    binding.bind(binding.layout.vector(module))
    assert first["shared"] is module.get_submodule("1")._buffers["shared"]
    assert torch.equal(first["shared"], torch.ones(3))  # type: ignore[arg-type]
