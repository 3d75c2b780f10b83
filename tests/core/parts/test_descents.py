"""Descents, contrasts, phases of kept vectors and personal models by pencil, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import archipel as ap
from archipel.core.parts.descent import Descent, TrainingPoint, Values
from archipel.core.parts.objective import ModelContrast, TrainingBatch
from archipel.core.parts.personal import ModelSources
from archipel.core.parts.planning import Planner
from archipel.core.types import Phase, Plan
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.training import advance
from archipel.learner.training_point import LocalPoint
from tests.core.parts.by_hand import layout as layout_of

X, Y = torch.ones(6, 1), torch.zeros(6)
WRONG: Any = "half"


def point(w: float, kept: dict[str, Tensor] | None = None, rate: float = 0.1, step: int = 0) -> LocalPoint:
    """A model of one number whose loss is w^2 / 2: its gradient is w, its Hessian 1."""
    weight = nn.Parameter(torch.tensor([w]))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (weight * x).square().mean() / 2

    return LocalPoint(
        [weight], lambda vector: [vector[:1]], lambda x, y: loss(x, y).backward(), loss, kept or {}, rate, step
    )


def direction(descent: Descent, at: LocalPoint, begins: bool = True) -> float:
    if begins:
        descent.begin(at)
    (found,) = descent.direction(at, X, Y)
    (left,) = at.values()
    assert float(left) == float(at._parameters[0].detach()), "the model stays as it is"
    return float(found)


# ------------------------------------------------------------------------------------------------------------ by pencil


def test_moreau_descent() -> None:
    # theta: 2 - .1 (2 + 3 (2 - 2)) = 1.8, then 1.8 - .1 (1.8 + 3 (1.8 - 2)) = 1.68; 3 (2 - 1.68) = .96
    at = point(2.0, {"personal": torch.tensor([9.0])})
    assert direction(ap.MoreauDescent(3.0, 2, 0.1), at) == pytest.approx(0.96)
    assert [float(t) for t in at.kept("personal") or ()] == pytest.approx([1.68])
    # on the next mini-batch theta goes on from there: 1.68 - .1 (1.68 + 3 (1.68 - 2)) = 1.608
    assert direction(ap.MoreauDescent(3.0, 1, 0.1), at, begins=False) == pytest.approx(3 * (2 - 1.608))


def test_mixed_descent() -> None:
    # m = .25 x 4 + .75 x 2 = 2.5, of which v gets .25: 4 - .1 x .25 x 2.5 = 3.9375; w goes along its own gradient, 2
    kept = {"own": torch.tensor([4.0]), "share": torch.tensor([0.25], dtype=torch.float64)}
    at = point(2.0, kept)
    assert direction(ap.MixedDescent(0.9), at) == pytest.approx(2.0)
    assert [float(v) for v in at.kept("own") or ()] == pytest.approx([3.9375])
    assert at.kept_number("share") == 0.25
    # the share's slope is (4 - 2) 2.5 = 5; it stays within 0 and 1, and moves in a task's first step only
    for rate, step, share in ((0.01, 0, 0.2), (0.1, 0, 0.0), (0.01, 3, 0.25)):
        at = point(2.0, kept, rate, step)
        direction(ap.MixedDescent(adaptive=True), at)
        assert at.kept_number("share") == pytest.approx(share)


@pytest.mark.parametrize(("hessian", "found"), [("none", 1.8), ("differences", 1.62), ("exact", 1.62)])
def test_meta_descent(hessian: Any, found: float) -> None:
    # ahead: 2 - .1 x 2 = 1.8, whose gradient is 1.8; less .1 times the Hessian, 1, times that: 1.62
    assert direction(ap.MetaDescent(0.1, hessian), point(2.0)) == pytest.approx(found, rel=1e-3)


def test_a_step_costs_as_many_gradients_as_it_computes() -> None:
    assert ap.MoreauDescent(steps=7).gradients == 7
    assert ap.MixedDescent().gradients == 2
    assert [ap.MetaDescent(hessian=h).gradients for h in ("none", "differences")] == [1, pytest.approx(4 / 3)]


def test_parts_of_a_mini_batch() -> None:
    calls: list[int] = []

    class Notes(LocalPoint):
        def gradient(self, x: Tensor, y: Tensor, at: Values | None = None) -> Values:
            calls.append(len(y))
            return super().gradient(x, y, at)

    weight = nn.Parameter(torch.tensor([1.0]))

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return (weight * x).square().mean()

    at = Notes([weight], lambda v: [v[:1]], lambda x, y: loss(x, y).backward(), loss, {}, 0.1, 0)
    for examples, parts in ((8, [3, 3, 2, 2]), (3, [1, 1, 1, 1]), (2, [2, 2, 2, 2]), (1, [1, 1, 1, 1])):
        calls.clear()
        ap.MetaDescent(hessian="differences").direction(at, torch.ones(examples, 1), torch.ones(examples))
        assert calls == parts


def test_model_contrast() -> None:
    # cosines 1 and 0 at tau = 1: -log(e / (e + 1)); 0 and 1: -log(1 / (e + 1)); mu = 2, and their mean
    along, across = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 2.0])
    batch = TrainingBatch(
        torch.tensor([[0.0, 0.0], [0.0, 0.0]]),
        torch.tensor([0, 1]),
        torch.tensor([1, 1]),
        None,
        features=torch.stack([along, across]),
        received_features=torch.stack([3 * along, along]),
        previous_features=torch.stack([across, 5 * across]),
    )
    contrast = (math.log1p(1 / math.e) + math.log1p(math.e)) / 2
    found = ModelContrast(2.0, 1.0).loss(batch, cross_entropy)
    assert float(found) == pytest.approx(math.log(2) + 2 * contrast)


def test_a_personal_phase_comes_behind_the_task() -> None:
    layout = ap.Layout.of(ap.models.small_mlp())
    (plan,) = ap.PersonalPhase(0.5, 3, 0.1).plans(layout, Plan(epochs=2, proximal=0.2, shift="s"))
    own = Phase(3, layout.names, 0.1, 0.5, "personal")
    assert (plan.epochs, plan.phases) == (5, (Phase(2, layout.names), own))
    shared, last = plan.phase(1), plan.phase(2)
    assert (shared.plan.proximal, shared.plan.shift, shared.end, shared.of) == (0.2, "s", 2, "")
    assert (last.plan.proximal, last.plan.shift, last.end, last.of) == (0.5, None, 5, "personal")
    assert last.plan.rate == pytest.approx(0.1 * plan.rate)
    assert [plan.own_epochs(epochs) for epochs in range(6)] == [0, 1, 2, 2, 2, 2]
    # behind FedRep's phases, too
    (both,) = (
        again
        for first in ap.HeadFirst("head", 2).plans(layout, Plan())
        for again in ap.PersonalPhase().plans(layout, first)
    )
    assert [(phase.epochs, phase.of) for phase in both.phases] == [(2, ""), (1, ""), (1, "personal")]


def sources(shared: Tensor, *, classes: tuple[int, ...] = (), **kept: Tensor) -> ModelSources:
    """What a learner's own model is made of; its layers are one row of features and three classes of one weight."""
    return ModelSources(layout_of(features=1, head=3), shared, kept, torch.tensor(classes))


def test_models_of_their_own() -> None:
    shared, own = torch.tensor([2.0, 2.0]), torch.tensor([4.0, 0.0])
    assert ap.KeptModel().model(sources(shared)) is shared
    assert ap.KeptModel().model(sources(shared, personal=own)) is own
    assert ap.MixedModel().model(sources(shared)) is shared
    share = torch.tensor([0.25], dtype=torch.float64)
    assert ap.MixedModel().model(sources(shared, own=own, share=share)).tolist() == [2.5, 1.5]
    before = Plan(epochs=9, steps=None, rate=0.3, momentum=0.9, proximal=1.0, trains=("head",), reports=("losses",))
    assert ap.FineTuned(2, None, 0.1, 0.0).tuning(before) == Plan(epochs=2, rate=0.1)
    assert ap.FineTuned(2, steps=7).tuning(before) == Plan(epochs=2, steps=7, rate=0.3, momentum=0.9)


def test_a_mixed_head_is_the_learners_own_for_its_frequent_classes() -> None:
    shared, own = torch.tensor([1.0, 2.0, 2.0, 2.0]), torch.tensor([9.0, 6.0, 6.0, 6.0])
    part = ap.MixedHead(rare=10)
    assert part.keeps == ("trained",)
    mixed = part.model(sources(shared, classes=(30, 10, 0), trained=own))
    assert mixed.tolist() == [1.0, 5.0, 4.0, 2.0], "3/4 own, 1/2 own, shared; other layers are shared"
    assert part.model(sources(shared, classes=(30, 10, 0))) is shared, "before its first task"
    assert part.model(sources(shared, trained=own)) is shared, "a task without classes"
    assert ap.MixedHead(rare=0).model(sources(shared, classes=(1, 0, 1), trained=own)).tolist() == [1, 6, 2, 6]
    with pytest.raises(ValueError, match="MixedHead: rare should be at least 0, got -1"):
        ap.MixedHead(rare=-1)


@pytest.mark.slow
def test_mixed_heads_are_scored_at_the_learners() -> None:
    data = ap.data.digits().split(learners=3, sizes=(60,) * 3, classes=4, test="own")
    plain, at_learners = ap.fedavg(1.0, epochs=1, batch=8), ap.Evaluation(at="learners", mean="learners")
    runs = [
        ap.simulate(replace(plain, personal=personal), data, ending=ap.Ending(rounds=3), evaluation=at_learners)
        for personal in (None, ap.MixedHead(), ap.MixedHead(rare=1e12))
    ]
    assert len({run.fingerprint() for run in runs}) == 1, "training is the same"
    assert runs[0].score == runs[2].score
    assert runs[0].score < runs[1].score


# --------------------------------------------------------------------------------------- a descent that a user writes


class Halved(Descent):
    """Half of the gradient, and a count of steps."""

    keeps = ("steps",)

    def direction(self, point: TrainingPoint, x: Tensor, y: Tensor) -> Values:
        point.keep_number("steps", (point.kept_number("steps") or 0) + 1)
        return [g / 2 for g in point.gradient(x, y)]


@pytest.mark.parametrize("at_a_time", [1, None])
def test_the_optimiser_makes_the_step(at_a_time: int | None) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(12, 3), torch.randint(0, 2, (12,))
    module = nn.Linear(3, 2)
    plain = TrainingContext(module, ap.Layout.of(module), cross_entropy, x, y, 2)
    work = replace(plain, descent=Halved(), keeps=("steps",))
    nothing = torch.empty(0, dtype=torch.int64)
    learner = Learner("a", torch.arange(12), nothing, nothing)
    start = work.layout.vector(module)
    # half of the gradient at twice the rate, but for the weight decay, which is the optimiser's own
    plans = [
        Plan(epochs=3, batch=4, rate=rate, momentum=0.5, options={"weight_decay": decay})
        for rate, decay in ((0.2, 0.1), (0.1, 0.2))
    ]
    jobs = [Job.begin(learner, work.layout, start, plan, 5) for plan in plans]
    for context, job in zip((work, plain), jobs, strict=True):
        while not job.done:
            advance(context, job, at_a_time)
    assert torch.allclose(jobs[0].vector, jobs[1].vector, atol=1e-6)
    assert (float(jobs[0].kept["steps"]), learner.kept) == (9, {}), "kept by the task, not yet by the learner"
    assert learner.keep(work.layout, (), jobs[0].vector, jobs[0].kept)
    assert float(learner.kept["steps"]) == 9


def test_what_is_kept_is_finite() -> None:
    layout, nothing = ap.Layout.of(nn.Linear(1, 1)), torch.empty(0, dtype=torch.int64)
    learner = Learner("a", torch.arange(1), nothing, nothing)
    assert learner.keep(layout, (), torch.zeros(2), {"own": torch.ones(2)})
    assert not learner.keep(layout, layout.names, torch.zeros(2), {"own": torch.full((2,), torch.nan)})
    assert learner.private == {}
    assert learner.kept["own"].tolist() == [1.0, 1.0]


# ------------------------------------------------------------------------------------------------------------- refused


class Other(Planner):
    keeps = ("personal",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"personal": ap.KeptModel()}, r"keep no vector 'personal'; they keep none\. Add a part that keeps it"),
        (
            {"planners": (ap.PersonalPhase(),), "personal": ap.KeptModel("own")},
            "keep no vector 'own'; they keep personal",
        ),
        ({"personal": ap.MixedModel()}, r"use it with descent=MixedDescent\(\)"),
        (
            {"planners": (ap.PersonalPhase(),), "descent": ap.MoreauDescent()},
            "PersonalPhase and MoreauDescent both keep 'personal' at the learners; use one",
        ),
        ({"planners": (ap.PersonalPhase(),), "plan": Plan(steps=3)}, "PersonalPhase counts epochs"),
        ({"planners": (ap.PersonalPhase(), ap.HeadFirst())}, "HeadFirst comes after PersonalPhase"),
        ({"planners": (ap.PersonalPhase(), ap.ValidationCycle())}, "ValidationCycle ends a task by its losses"),
        ({"descent": ap.MixedDescent(), "plan": Plan(momentum=0.9)}, "MixedDescent trains its own model by plain SGD"),
        ({"descent": ap.MetaDescent(hessian="exact"), "plan": Plan(batch=2)}, "into 3 parts, and the plan has batch=2"),
        (
            {"descent": ap.MetaDescent(), "privacy": ap.LocalNoise(noise=1.0)},
            "MetaDescent.* steps along something else",
        ),
        ({"objective": ModelContrast(), "privacy": ap.LocalNoise(noise=1.0)}, "compares the inputs of a layer"),
        ({"personal": ap.FineTuned(), "privacy": ap.LocalNoise(noise=1.0)}, "FineTuned.* without noise"),
        ({"descent": "MetaDescent"}, r"descent should be, for example, MetaDescent\(\), or None"),
        ({"personal": 5}, r"personal should be, for example, FineTuned\(\), or None, got 5"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(ap.fedavg(), **changes)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ap.MoreauDescent(weight=0), "weight should be more than 0"),
        (lambda: ap.MoreauDescent(steps=0), "steps should be at least 1"),
        (lambda: ap.MixedDescent(1.5), "share should be at most 1, got 1.5"),
        (lambda: ap.MixedDescent(-0.5), "share should be at least 0"),
        (lambda: ap.MetaDescent(hessian=WRONG), "hessian should be one of none, differences, exact"),
        (lambda: ap.MetaDescent(delta=0), "delta should be more than 0"),
        (lambda: ap.ModelContrast(tau=0), "tau should be more than 0"),
        (lambda: ap.PersonalPhase(-1), "weight should be at least 0"),
        (lambda: ap.PersonalPhase(rate=0), "rate should be more than 0"),
        (lambda: ap.FineTuned(0), "epochs should be at least 1"),
        (lambda: ap.FineTuned(momentum=1), "momentum should be at least 0 and below 1"),
        (lambda: ap.fedbabu(tuning_epochs=-1), "fedbabu: tuning_epochs should be at least 0"),
        (lambda: Phase(1, (), rate=0), "Phase: rate should be more than 0"),
        (lambda: Phase(1, (), proximal=-1), "Phase: proximal should be at least 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_a_contrast_needs_a_head() -> None:
    with pytest.raises(ValueError, match="ModelContrast: no layer named 'fc9'"):
        ap.Algorithm("moon", objective=ModelContrast(head="fc9")).check(ap.Layout.of(ap.models.small_mlp()))


def test_personal_models_need_test_parts_at_the_learners() -> None:
    data = ap.data.digits().split(3, test=None)
    with pytest.raises(ValueError, match="ditto has a model for every learner, so it is scored on the learners' own"):
        ap.simulate(ap.ditto(), data)
