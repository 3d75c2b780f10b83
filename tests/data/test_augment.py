"""Augmentation: by torch's own padding, keyed draws, and the same bits under every execution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import archipel as ap
from archipel.core.binding import Binding
from archipel.core.layout import Layout
from archipel.core.types import Plan
from archipel.data import Augment, Islands, Source
from archipel.executors.choice import choose, executor_of
from archipel.learner.batches import batches
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.training import advance
from archipel.study.build import build_data
from archipel.study.files import read_study
from archipel.study.local_site import take_part

cross_entropy = nn.functional.cross_entropy


def pictures(count: int = 12, channels: int = 3, height: int = 6, width: int = 5) -> torch.Tensor:
    return torch.arange(count * channels * height * width, dtype=torch.float32).reshape(count, channels, height, width)


# -------------------------------------------------------------------------------------------------- what it does


@pytest.mark.parametrize("pad", [0, 1, 2, 4])
@pytest.mark.parametrize("flip", [False, True])
def test_an_image_is_padded_by_reflection_cropped_and_flipped(pad: int, flip: bool) -> None:
    if not pad and not flip:
        return
    part, x = Augment(pad, flip), pictures()
    draws = part.draws(7, 3, len(x))
    changed = part.apply(x, draws)
    for image, (down, right, flipped), found in zip(x, draws.tolist(), changed, strict=True):
        padded = nn.functional.pad(image[None], (pad, pad, pad, pad), mode="reflect")[0]
        cropped = padded[:, pad + down : pad + down + 6, pad + right : pad + right + 5]
        assert torch.equal(found, cropped.flip(2) if flipped else cropped)


def test_draws_cover_all_places_and_flip_one_half() -> None:
    draws = Augment(2).draws(1, 0, 10_000)
    assert draws[:, 0].unique().tolist() == draws[:, 1].unique().tolist() == [-2, -1, 0, 1, 2]
    assert 0.47 < float(draws[:, 2].double().mean()) < 0.53
    assert not Augment(2, flip=False).draws(1, 0, 100)[:, 2].any()


def test_draws_follow_from_key_epoch_and_position() -> None:
    part = Augment(4)
    assert torch.equal(part.draws(1, 0, 50), part.draws(1, 0, 50))
    assert not torch.equal(part.draws(1, 0, 50), part.draws(1, 1, 50))
    assert not torch.equal(part.draws(1, 0, 50), part.draws(2, 0, 50))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Augment(-1), "Augment: pad should be at least 0, got -1"),
        (lambda: Augment(0, flip=False), "pad=0 and flip=False change nothing"),
        (
            lambda: Augment(5).check(pictures(), "small"),
            "pad=5 cannot be reflected from images whose shorter side is 5",
        ),
        (lambda: ap.data.digits().split(2).augmented(), r"'digits.*' has no images: x should have the shape"),
        (lambda: Augment().check(pictures().long(), "bytes"), r"be of floating point, got .* and torch.int64"),
    ],
)
def test_augmentation_refuses_nonsense(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---------------------------------------------------------------------------------------------------- in training


def digits(learners: int = 3) -> Islands:
    data = ap.data.digits().split(learners=learners, sizes=(30,) * learners)
    return replace(data, x=data.x.reshape(-1, 1, 8, 8)).augmented(pad=2)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))


def context(augment: Augment | None, module: nn.Module | None = None) -> TrainingContext:
    data, module = digits(), module or network()
    return TrainingContext(module, Layout.of(module, data.x[:1]), cross_entropy, data.x, data.y, 10, augment)


def test_training_is_a_loop_over_changed_images() -> None:
    work, plan = context(Augment(2)), Plan(epochs=3, batch=8, rate=0.1)
    learner = Learner("a", torch.arange(20), torch.arange(0), torch.arange(0))
    start = work.layout.vector(work.module).clone()
    job = Job.begin(learner, work.layout, start, plan, 11)
    advance(work, job, 1)  # an epoch at a time gives the same as all at once
    advance(work, job)
    module = network()
    Binding(work.layout, module).bind(start.clone())
    steps = torch.optim.SGD(module.parameters(), lr=0.1)
    for epoch in range(3):
        draws = Augment(2).draws(11, epoch, 20)
        for positions in batches(plan, 11, 20, epoch):
            steps.zero_grad()
            x = torch.stack([Augment(2).apply(work.x[p][None], draws[p][None])[0] for p in positions])
            cross_entropy(module(x), work.y[positions]).backward()
            steps.step()
    assert torch.equal(job.vector, work.layout.vector(module))
    plain = Job.begin(learner, work.layout, start, plan, 11)
    advance(replace(work, augment=None), plain)
    assert not torch.equal(job.vector, plain.vector)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [ap.fedavg(epochs=2, batch=8), ap.async_fedavg(epochs=2, batch=8)])
def test_every_execution_gives_the_same_bits(algorithm: ap.Algorithm) -> None:
    def run(way: Any) -> ap.Run:
        return ap.simulate(algorithm, digits(), model=network, ending=ap.Ending(commits=4), execution=way)

    plain, workers = run("plain"), run("workers")
    assert torch.equal(plain.model, workers.model)
    assert plain.score == workers.score


def test_stacks_hand_augmented_images_over() -> None:
    perceptron = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    plan = Plan()
    assert choose(context(None, perceptron), plan)[0] in ("native", "stacked")
    assert choose(context(Augment(2), perceptron), plan)[0] == "workers"
    for way in ("stacked", "native"):
        with pytest.raises(ValueError, match=rf"'{way}' does not support augmentation.*Augment\(pad=2, flip=True\)"):
            executor_of(context(Augment(2), perceptron), plan, way)


# --------------------------------------------------------------------------------------- sources, and in a study


def test_images_are_normalised_channel_by_channel() -> None:
    source = Source(pictures(2, channels=2, height=1, width=2), torch.tensor([0, 1]), 2, "made")
    found = source.normalised(mean=[1.0, 2.0], deviation=[2.0, 4.0])
    assert found.x.tolist() == [[[[-0.5, 0.0]], [[0.0, 0.25]]], [[[1.5, 2.0]], [[1.0, 1.25]]]]
    with pytest.raises(ValueError, match=r"'made' has 2 channels of torch.float32, and there are 1 means and 1"):
        source.normalised([0.0], [1.0])
    with pytest.raises(ValueError, match="normalised: deviation should be more than 0, got 0"):
        source.normalised([0.0, 0.0], [1.0, 0.0])


def test_classes_are_numbered_in_an_order_drawn_by_seed() -> None:
    source = ap.data.digits()
    drawn = [source.with_classes_drawn(seed) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0].y, drawn[1].y)
    assert not torch.equal(drawn[0].y, drawn[2].y)
    pairs = {(old, new) for old, new in zip(source.y.tolist(), drawn[0].y.tolist(), strict=True)}
    assert len(pairs) == 10, "every class is another one, as a whole"
    assert {new for _, new in pairs} == set(range(10))


def test_half_of_the_test_images_of_every_class_are_grey() -> None:
    y = torch.arange(4).repeat(20)
    x = torch.rand(80, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    skewed = Source(x, y, 4, "made", test=torch.arange(40, 80)).colour_skew(1.0, test="half")
    grey = (skewed.x[:, 0] == skewed.x[:, 1]).all(dim=(1, 2))
    assert [int(grey[40:][y[40:] == label].sum()) for label in range(4)] == [5] * 4
    assert [int(grey[:40][y[:40] == label].sum()) for label in range(4)] == [10, 10, 0, 0]


CODE = """
from archipel import data
from dataclasses import replace

def load():
    source = data.digits()
    return replace(source, x=source.x.reshape(-1, 1, 8, 8))
"""


STUDY = """
algorithms = ["fedavg"]
[data]
source = "mine.py:load"
split = { learners = 2 }
normalise = { mean = [0.5], deviation = [2.0] }
augment = { pad = 3 }
draw_classes = true
[ending]
rounds = 1
"""


def test_a_study_augments_its_images_in_a_simulation_and_at_a_learner(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "study.toml").write_text(STUDY)
    study = read_study(tmp_path / "study.toml")
    islands = build_data(study).islands
    assert islands.augment == Augment(3)
    assert float(islands.x.min()) == -0.25
    assert torch.equal(islands.y, ap.data.digits().with_classes_drawn(0).y)
    island, _ = take_part(study, "00")
    assert island.work.augment == Augment(3)
