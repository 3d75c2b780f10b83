"""Training one learner: by pencil on one parameter, against torch.optim on more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from archipel.core.types import Cycle, Plan
from archipel.learner.batches import batches
from archipel.learner.learner import Job, Learner, optimiser
from archipel.learner.training import advance, report
from archipel.models import mlp
from tests.learner.one_learner import at, clouds, learner, slope, trained, work_of

ONE = torch.tensor([1.0])


def path(plan: dict[str, Any], epochs: int, x: Any = (1.0,), y: Any = (0.0,)) -> list[float]:
    """w after 1, 2, 3 ... epochs of one full batch each, starting from w = 1; the loss is w^2, its gradient 2 w."""
    work = slope(x, y)
    return [float(trained(work, ONE, Plan(epochs=e, **plan)).vector) for e in range(1, epochs + 1)]


# --------------------------------------------------------------------------------------------------------- by pencil


def test_sgd() -> None:
    # w - .1 x 2 w = .8 w
    assert path({"rate": 0.1}, 3) == pytest.approx([0.8, 0.64, 0.512], rel=1e-6)


def test_momentum_is_equation_2_of_metis() -> None:
    # eta .1, gamma .5: u = 2 x 1 = 2, w = .8; u = .5 x 2 + 1.6 = 2.6, w = .54; u = 1.3 + 1.08 = 2.38, w = .302
    # (Algorithm 1 writes u = gamma u - eta grad, w = w + u: -.2, -.26, -.238, the same steps)
    assert path({"rate": 0.1, "momentum": 0.5}, 3) == pytest.approx([0.8, 0.54, 0.302], rel=1e-6)


def test_the_proximal_term_pulls_towards_the_model_that_came() -> None:
    # mu .5: 2 w + .5 (w - 1): g = 2, w = .8; g = 1.6 - .1 = 1.5, w = .65; g = 1.3 - .175 = 1.125, w = .5375
    assert path({"rate": 0.1, "proximal": 0.5}, 3) == pytest.approx([0.8, 0.65, 0.5375], rel=1e-6)


def test_a_shift_is_added_to_every_gradient() -> None:
    # 2 w + .5: g = 2.5, w = .75; g = 2, w = .55; with momentum .5: u = 2.5, w = .75; u = 1.25 + 2, w = .425
    def shifted(**settings: Any) -> list[float]:
        plan = Plan(epochs=2, rate=0.1, shift="s", **settings)
        job = Job.begin(learner(at(0)), work.layout, ONE, plan, shift=0.5 * ONE)
        advance(work, job, 1)
        first = float(job.vector)
        advance(work, job)
        return [first, float(job.vector)]

    work = slope((1.0,), (0.0,))
    assert shifted() == pytest.approx([0.75, 0.55], rel=1e-6)
    assert shifted(momentum=0.5) == pytest.approx([0.75, 0.425], rel=1e-6)


def test_the_proximal_term_and_momentum() -> None:
    # mu .5, gamma .5: u = 2, w = .8; u = 1 + 1.5 = 2.5, w = .55; u = 1.25 + 1.1 - .225 = 2.125, w = .3375
    found = path({"rate": 0.1, "proximal": 0.5, "momentum": 0.5}, 3)
    assert found == pytest.approx([0.8, 0.55, 0.3375], rel=1e-6)


def test_a_batch_takes_the_mean_gradient() -> None:
    # w x against y: examples (1, 0) and (3, 1): gradients 2 w = 2 and 6 (3 w - 1) = 12, mean 7: w = 1 - .7
    assert path({"rate": 0.1}, 1, x=(1.0, 3.0), y=(0.0, 1.0)) == pytest.approx([0.3], rel=1e-6)


def test_batches_one_after_the_other() -> None:
    # the same two examples one by one; the order is the key's. First (1, 0): .8, then 6 (2.4 - 1) = 8.4: -.04;
    # first (3, 1): 1 - 1.2 = -.2, then -.4: -.16
    work = slope((1.0, 3.0), (0.0, 1.0))
    found = set()
    for key in range(20):
        plan = Plan(batch=1, rate=0.1)
        first = int(batches(plan, key, 2, 0)[0])
        end = float(trained(work, ONE, plan, key=key).vector)
        assert end == pytest.approx(-0.04 if first == 0 else -0.16, abs=1e-6)
        found.add(first)
    assert found == {0, 1}


def test_a_plan_by_steps_stops_in_mid_pass() -> None:
    # three examples alike: every step is w - .1 x 2 w, and 4 steps of 3 a pass are .8^4
    work = slope((1.0,) * 3, (0.0,) * 3)
    job = trained(work, ONE, Plan(steps=4, batch=1, rate=0.1))
    assert float(job.vector) == pytest.approx(0.8**4, rel=1e-6)
    assert (job.steps, job.epochs) == (4, 2)


def test_momentum_does_not_survive_between_tasks() -> None:
    work = slope((1.0,), (0.0,))
    plan = Plan(rate=0.1, momentum=0.5)
    first = trained(work, ONE, plan)
    # .8, then with u = 0 again: .64, not .54
    assert float(trained(work, first.vector, plan).vector) == pytest.approx(0.64, rel=1e-6)


def test_the_model_that_came_is_left_alone() -> None:
    carried = torch.tensor([1.0])
    trained(slope((1.0,), (0.0,)), carried, Plan(rate=0.1, proximal=0.5))
    assert carried.tolist() == [1.0]


# ---------------------------------------------------------------------------------------------------- validation cycle

# trained towards 0, validated at .7: w = 1, .8, .64, .512, .4096; losses (w - .7)^2 = .09, .01, .0036, .035344, ...
CYCLE = slope((1.0, 1.0), (0.0, 0.7))


@pytest.mark.parametrize(
    ("cycle", "epochs"),
    [
        (Cycle(), 3),  # the loss rises in the third
        (Cycle(tombstones=1), 4),
        (Cycle(loss=70.0), 2),  # it falls by 89 %, then by 64 %
        (Cycle(loss=60.0), 3),
        (Cycle(loss=95.0), 1),
        (Cycle(at_most=2), 2),
    ],
)
def test_a_cycle_ends_with_the_validation_loss(cycle: Any, epochs: int) -> None:
    job = trained(CYCLE, ONE, Plan(rate=0.1, cycle=cycle), learner(at(0), at(1)))
    assert job.epochs == epochs
    assert float(job.vector) == pytest.approx(0.8**epochs, rel=1e-6)
    assert job.losses == pytest.approx([(0.8**e - 0.7) ** 2 for e in range(epochs + 1)], rel=1e-4)
    assert job.losses[:2] == pytest.approx([0.09, 0.01], rel=1e-5)


def test_losses_are_told_without_a_cycle_too() -> None:
    job = trained(CYCLE, ONE, Plan(epochs=2, rate=0.1, reports=("losses",)), learner(at(0), at(1)))
    assert job.losses == pytest.approx([0.09, 0.01, 0.0036], rel=1e-4)
    silent = trained(CYCLE, ONE, Plan(epochs=2, rate=0.1), learner(at(0), at(1)))
    assert silent.losses == []


def test_what_the_learner_reports() -> None:
    # w = .64 after two epochs: the squared gradient 2 w of the one example is 1.6384
    plan = Plan(epochs=2, rate=0.1, reports=("losses", "validation", "gradient norm per sample"))
    job = trained(CYCLE, ONE, plan, learner(at(0), at(1)))
    told = report(CYCLE, job, job.vector, 2)
    assert told.epochs == 2.0
    assert told.losses == pytest.approx((0.09, 0.01, 0.0036), rel=1e-4)
    assert told.validation is not None
    assert told.validation.count == 1
    assert told.validation.loss == pytest.approx(0.0036, rel=1e-4)
    assert told.gradient_norm == pytest.approx(1.6384, rel=1e-5)
    # of the model it had after one epoch: (.8 - .7)^2, and no more losses than that
    early = report(CYCLE, job, torch.tensor([0.8]), 1)
    assert early.epochs == 1.0
    assert early.losses == pytest.approx((0.09, 0.01), rel=1e-4)


def test_gradient_norms_of_batches_are_reported_as_the_plan_batches() -> None:
    # gradients 2 x (w x - y) at w = 1: of (1, 0) 2, of (2, 0) 8; one batch: 5^2, one by one: (4 + 64) / 2
    work = slope((1.0, 2.0), (0.0, 0.0))
    for batch, norm in ((2, 25.0), (1, 34.0)):
        job = Job.begin(learner(at(0, 1)), work.layout, ONE, Plan(batch=batch, reports=("gradient norm per batch",)))
        assert report(work, job, ONE, 0).gradient_norm == pytest.approx(norm, rel=1e-6)


# ----------------------------------------------------------------------------------------------- against torch.optim


KEY = 5


def torch_loop(work: Any, carried: Any, plan: Plan, make: Any) -> torch.Tensor:
    """The same mini-batches, with nothing of ours but their order."""
    module = mlp(5, 3, hidden=(8,))
    module.load_state_dict(work.layout.tensors(carried))
    steps = make(module.parameters())
    for epoch in range(plan.epochs):
        for chosen in batches(plan, KEY, len(work.x), epoch):
            steps.zero_grad()
            nn.functional.cross_entropy(module(work.x[chosen]), work.y[chosen]).backward()
            steps.step()
    found: torch.Tensor = work.layout.vector(module)
    return found


@pytest.fixture
def task() -> Any:
    torch.manual_seed(3)
    x, y = clouds()
    work = work_of(mlp(5, 3, hidden=(8,)), x, y, classes=3)
    return work, work.layout.vector(work.module)


@pytest.mark.parametrize(
    ("settings", "make"),
    [
        ({}, lambda p: torch.optim.SGD(p, lr=0.05)),
        ({"momentum": 0.75}, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.75)),
        (
            {"momentum": 0.9, "options": {"nesterov": True, "weight_decay": 1e-3}},
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
        ),
        ({"optimiser": "Adam"}, lambda p: torch.optim.Adam(p, lr=0.05)),
        (
            {"optimiser": "AdamW", "options": {"betas": (0.8, 0.9)}},
            lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.8, 0.9)),
        ),
        ({"optimiser": "RMSprop", "momentum": 0.5}, lambda p: torch.optim.RMSprop(p, lr=0.05, momentum=0.5)),
    ],
    ids=["sgd", "momentum", "nesterov", "adam", "adamw", "rmsprop"],
)
def test_training_is_a_plain_loop_over_torch_optim(task: Any, settings: Any, make: Any) -> None:
    work, carried = task
    plan = Plan(epochs=3, batch=16, **settings)
    assert torch.equal(trained(work, carried, plan, key=KEY).vector, torch_loop(work, carried, plan, make))


@pytest.mark.parametrize("settings", [{"momentum": 0.9}, {"optimiser": "Adam"}, {"proximal": 0.1}], ids=str)
def test_epoch_by_epoch_is_all_at_once_to_the_bit(task: Any, settings: Any) -> None:
    work, carried = task
    plan = Plan(epochs=4, batch=16, **settings)
    whole = trained(work, carried, plan, key=KEY)
    piecewise = Job.begin(learner(torch.arange(60)), work.layout, carried, plan, KEY)
    for _ in range(4):
        advance(work, piecewise, 1)
        trained(work, torch.zeros_like(carried), Plan(epochs=1))  # somebody else uses the network in between
    assert piecewise.done
    assert torch.equal(piecewise.vector, whole.vector)
    advance(work, piecewise, 1)  # what is done stays done
    assert torch.equal(piecewise.vector, whole.vector)


def test_training_does_not_touch_the_global_generator(task: Any) -> None:
    work, carried = task
    before = torch.get_rng_state()
    trained(work, carried, Plan(epochs=2), key=9)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_optimiser_torch_does_not_have() -> None:
    weights = [nn.Parameter(torch.zeros(1))]
    for name in ("Adm", "lr_scheduler", "Tensor"):
        with pytest.raises(ValueError, match=f"torch.optim has no optimiser '{name}'; it has SGD, Adam, AdamW"):
            optimiser(Plan(optimiser=name), weights)


def test_options_the_optimiser_does_not_take() -> None:
    weights = [nn.Parameter(torch.zeros(1))]
    with pytest.raises(ValueError, match=r"SGD does not take \{.*'betas': .*unexpected keyword argument 'betas'"):
        optimiser(Plan(options={"betas": (0.9, 0.99)}), weights)


def test_momentum_goes_with_sgd_and_rmsprop_only() -> None:
    with pytest.raises(ValueError, match=r"momentum=0.9 goes with SGD and RMSprop, not with Adam; .*options="):
        Plan(optimiser="Adam", momentum=0.9)


# ----------------------------------------------------------------------------------- frozen layers, statistics, dropout


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.head(torch.relu(self.norm(self.fc(x))))


@pytest.fixture
def normed() -> Any:
    torch.manual_seed(4)
    x, y = clouds()
    work = work_of(Normed(), x, y, classes=3)
    return work, work.layout.vector(work.module)


def layers_that_moved(work: Any, before: Any, after: Any) -> set[str]:
    return {
        layer.name
        for layer in work.layout.layers
        if not torch.equal(before[layer.start : layer.stop], after[layer.start : layer.stop])
    }


@pytest.mark.parametrize(
    "trains",
    [
        ("fc",),
        ("head",),
        ("norm", "norm.buffers"),
        ("fc", "norm", "norm.buffers"),
        ("fc", "norm", "norm.buffers", "head"),
        (),
    ],
    ids=lambda names: "+".join(names) or "none",
)
@pytest.mark.parametrize(
    "settings", [{"momentum": 0.9, "options": {"weight_decay": 0.1}}, {"optimiser": "AdamW"}], ids=["sgd", "adamw"]
)
def test_frozen_layers_do_not_move_by_a_bit(normed: Any, trains: Any, settings: Any) -> None:
    work, carried = normed
    job = trained(work, carried, Plan(epochs=2, trains=trains, proximal=0.1, **settings))
    moved = layers_that_moved(work, carried, job.vector)
    parameters = {name for name in trains if not name.endswith(".buffers")}
    assert {name for name in moved if not name.endswith(".buffers")} == parameters
    if "norm.buffers" in trains:
        assert "norm.buffers" in moved


def test_the_statistics_of_a_frozen_layer_do_not_move_either(normed: Any) -> None:
    # they are a layer of their own, and `trains` does not name it
    work, carried = normed
    job = trained(work, carried, Plan(epochs=2, trains=("head",)))
    assert layers_that_moved(work, carried, job.vector) == {"head"}


def test_all_layers_can_train_again_after_some_were_frozen(normed: Any) -> None:
    work, carried = normed
    trained(work, carried, Plan(trains=("head",)))
    job = trained(work, carried, Plan())
    assert layers_that_moved(work, carried, job.vector) == {"fc", "norm", "norm.buffers", "head"}
    assert all(parameter.requires_grad for parameter in work.module.parameters())


def test_batch_norm_statistics_travel(normed: Any) -> None:
    work, carried = normed
    plan = Plan(epochs=1, batch=60)
    job = trained(work, carried, plan)
    place = work.layout.layers[work.layout.index("norm.buffers")]
    mean, variance, counter = job.vector[place.start : place.stop].split([6, 6, 1])
    # one batch of all examples: .9 x 0 + .1 x mean, .9 x 1 + .1 x variance (n - 1), and one batch counted
    fresh = work.layout.tensors(carried)
    seen = work.x @ fresh["fc.weight"].T + fresh["fc.bias"]
    torch.testing.assert_close(mean, 0.1 * seen.mean(dim=0), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(variance, 0.9 + 0.1 * seen.var(dim=0), rtol=1e-4, atol=1e-6)
    assert counter.tolist() == [1.0]
    # and the next task counts on from there: two more batches of 30
    again = trained(work, job.vector, Plan(epochs=1, batch=30))
    assert float(again.vector[place.stop - 1]) == 3.0


def test_dropout_is_a_function_of_the_tasks_key() -> None:
    torch.manual_seed(5)
    x, y = clouds()
    work = work_of(nn.Sequential(nn.Linear(5, 32), nn.Dropout(0.5), nn.Linear(32, 3)), x, y, classes=3)
    carried = work.layout.vector(work.module)
    plan = Plan(epochs=2, batch=60)  # one batch an epoch: the order of the examples has no part in it
    first = trained(work, carried, plan, key=7).vector
    torch.manual_seed(999)
    before = torch.get_rng_state()
    assert torch.equal(trained(work, carried, plan, key=7).vector, first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.allclose(trained(work, carried, plan, key=8).vector, first, atol=1e-5)


def test_epochs_draw_different_masks() -> None:
    # with the same mask in both epochs the dropped inputs of the head would never learn
    work = work_of(nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 2)), torch.ones(1, 64), at(0), classes=2)
    carried = torch.zeros(work.layout.size)
    untouched = [
        int((trained(work, carried, Plan(epochs=epochs, rate=0.05), key=1).vector[:64] == 0).sum())
        for epochs in (1, 2, 8)
    ]
    assert untouched[0] > untouched[1] > untouched[2]
    assert 20 < untouched[0] < 44  # about half of 64


# --------------------------------------------------------------------------------------------------- private layers


def test_private_layers_are_the_learners_own(task: Any) -> None:
    work, carried = task
    who = Learner("a", torch.arange(30), at(), at())
    assert torch.equal(who.with_private(work.layout, carried), carried)
    mine = carried + 1.0
    who.keep(work.layout, ("head",), mine)
    head = work.layout.layers[work.layout.index("head")]
    stands = who.with_private(work.layout, carried)
    assert torch.equal(stands[head.start : head.stop], mine[head.start : head.stop])
    assert torch.equal(stands[: head.start], carried[: head.start])
    mine.zero_()  # it has kept a copy
    assert torch.equal(who.with_private(work.layout, carried), stands)


def test_a_task_starts_from_the_private_layers_and_is_anchored_there(task: Any) -> None:
    work, carried = task
    who = Learner("a", torch.arange(30), at(), at())
    who.keep(work.layout, ("head",), carried + 1.0)
    job = Job.begin(who, work.layout, carried, Plan(private=("head",), proximal=0.5))
    assert torch.equal(job.vector, who.with_private(work.layout, carried))
    assert job.anchor is not None
    assert torch.equal(job.anchor, job.vector)
    before = job.vector.clone()
    advance(work, job)
    assert torch.equal(job.anchor, before)
    assert layers_that_moved(work, before, job.vector) == {"fc1", "head"}


def test_a_learner_has_examples() -> None:
    with pytest.raises(ValueError, match="Learner 'a' has no examples; leave it out"):
        Learner("a", at(), at(1), at())
    assert Learner("a", at(), at(), at(1)).private == {}
