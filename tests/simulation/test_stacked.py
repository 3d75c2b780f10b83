"""Stacked training means the same as one learner after the other; plain PyTorch is the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel import models
from archipel.core.types import Cycle, Plan
from archipel.learner.learner import Loss, TrainingContext
from archipel.learner.probes import score
from archipel.learner.training import report
from archipel.simulation.executors import stacked
from archipel.simulation.executors import stacked_networks as network
from archipel.simulation.executors.choice import choose, executor_of
from archipel.simulation.executors.plain import Plain
from archipel.simulation.executors.stacked import Stacked
from archipel.simulation.executors.stacked_networks import can_stack
from tests.simulation.engine_cases import (
    PLAN,
    SIZES,
    against_plain,
    agree,
    cross_entropy,
    images,
    jobs,
    learners,
    named,
    small_islands,
    work,
)
from tests.ways import CHOSEN

# ---------------------------------------------------------------------------------------------------- networks


class OwnForward(nn.Module):
    """An MLP that writes its own forward pass: a skip, functions instead of modules, a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.scale = nn.Parameter(torch.ones(12))
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.head(x + torch.tanh(self.inner(x)) * self.scale)
        return hidden


class Words(nn.Module):
    """The mean of embedded words."""

    def __init__(self, **how: float | bool) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6, **how)  # type: ignore[arg-type]
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.words(x).mean(dim=1))
        return outputs


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def tokens(examples: int) -> Tensor:
    return torch.randint(0, 20, (examples, 9), generator=torch.Generator().manual_seed(1))


def every_activation() -> nn.Module:
    between = [layer for kind in network.ELEMENTWISE for layer in (nn.Linear(12, 12), kind())]
    return nn.Sequential(*between, nn.Linear(12, 3))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "logistic regression": (lambda: models.logistic_regression(12, 3), lambda n: noise(n, 12)),
    "mlp 64-64": (lambda: models.mlp(12, 3), lambda n: noise(n, 12)),
    "mlp on images": (lambda: models.mlp(12, 3), lambda n: noise(n, 1, 3, 4)),
    "small_mlp": (lambda: models.small_mlp(64, 3), lambda n: noise(n, 64)),
    "mnist_mlp": (lambda: models.mnist_mlp(), lambda n: noise(n, 1, 28, 28)),
    "one layer that is the module": (lambda: nn.Linear(12, 3), lambda n: noise(n, 12)),
    "without biases": (
        lambda: nn.Sequential(nn.Linear(12, 8, bias=False), nn.Tanh(), nn.Linear(8, 3, bias=False)),
        lambda n: noise(n, 12),
    ),
    "sequences in sequences": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(12, 8), nn.ReLU()), nn.Sequential(nn.Linear(8, 3))),
        lambda n: noise(n, 12),
    ),
    "every activation": (every_activation, lambda n: noise(n, 12)),
    "own forward": (OwnForward, lambda n: noise(n, 12)),
    "layer norm": (
        lambda: nn.Sequential(nn.Linear(12, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)),
        lambda n: noise(n, 12),
    ),
    "embedding": (Words, tokens),
    "embedding in a sequence": (
        lambda: nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(36, 3)),
        tokens,
    ),
    "linear on 3-D inputs": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Flatten(), nn.Linear(30, 3)),
        lambda n: noise(n, 5, 4),
    ),
    "several linear on 3-D inputs": (
        lambda: nn.Sequential(
            nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(10, 3)
        ),
        lambda n: noise(n, 5, 4),
    ),
    "an activation first": (
        lambda: nn.Sequential(nn.Sigmoid(), nn.Linear(12, 8), nn.Identity(), nn.Tanh(), nn.Linear(8, 3)),
        lambda n: noise(n, 12),
    ),
    "two activations in a row": (
        lambda: nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Identity(), nn.ReLU(), nn.Linear(8, 3)),
        lambda n: noise(n, 12),
    ),
}


def case(network: str = "mlp 64-64", examples: int = 200, loss: Loss = cross_entropy) -> TrainingContext:
    make, inputs = NETWORKS[network]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = make()
    labels = torch.randint(0, 3, (examples,), generator=torch.Generator().manual_seed(2))
    labels[0] = 2
    return work(module, inputs(examples), labels, loss)


def as_chosen_and_plain(work: TrainingContext, plan: Plan = PLAN) -> None:
    """Whatever way is chosen for this work, it agrees with plain PyTorch."""
    who = learners(work.x, SIZES)
    mine, theirs = jobs(work, who, [plan] * len(who)), jobs(work, who, [plan] * len(who))
    way = executor_of(work, plan)
    way.submit(mine)
    way.wait()
    Plain(work).submit(theirs)
    for a, b in zip(mine, theirs, strict=True):
        agree(a, b)


# ------------------------------------------------------------------------------------------------ it means the same


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_that_stacks(network):
    at_hand = case(network)
    plan = replace(PLAN, momentum=0.5, proximal=0.1, options={"weight_decay": 0.01})
    who = learners(at_hand.x, SIZES)
    assert can_stack(at_hand.module, at_hand.loss)
    against_plain(Stacked(at_hand), who, [plan] * len(who))


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        replace(PLAN, batch=1, epochs=1),
        replace(PLAN, batch=1000, epochs=5),
        replace(PLAN, steps=7),
        replace(PLAN, steps=1),
        replace(PLAN, steps=13, momentum=0.9),
        replace(PLAN, momentum=0.9),
        replace(PLAN, options={"weight_decay": 0.1}),
        replace(PLAN, momentum=0.9, options={"nesterov": True}),
        replace(PLAN, momentum=0.9, options={"nesterov": True, "weight_decay": 0.1}, proximal=1.0),
        replace(PLAN, proximal=1.0),
        replace(PLAN, trains=("fc1",)),
        replace(PLAN, trains=("fc2", "head"), momentum=0.9, proximal=0.5, options={"weight_decay": 0.1}),
    ],
    ids=named,
)
def test_every_plan(plan):
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    against_plain(Stacked(at_hand), who, [plan] * len(who))


def test_learners_with_different_plans_in_one_go():
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    plans = [
        PLAN,
        replace(PLAN, epochs=3),
        replace(PLAN, batch=5),
        replace(PLAN, steps=4),
        replace(PLAN, momentum=0.9, rate=0.01),
        replace(PLAN, trains=("head",)),
    ]
    pairs = against_plain(Stacked(at_hand), who, plans)
    # 33 of 8 are 5 batches, 16 of 5 are 4, 40 of 8 are 5
    assert [mine.steps for mine, _ in pairs] == [10, 3, 8, 4, 10, 2]


def test_frozen_layers_keep_every_bit():
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    plan = replace(PLAN, trains=("fc2",), momentum=0.9, proximal=0.5, options={"weight_decay": 0.1})
    made = jobs(at_hand, who, [plan] * len(who))
    before = [job.vector.clone() for job in made]
    Stacked(at_hand).submit(made)
    for job, begin in zip(made, before, strict=True):
        for layer in at_hand.layout.layers:
            piece = slice(layer.start, layer.stop)
            assert torch.equal(job.vector[piece], begin[piece]) == (layer.name != "fc2"), layer.name


def test_the_anchor_is_the_model_that_came():
    at_hand = case()
    (learner,) = learners(at_hand.x, (40,))
    held, free = (jobs(at_hand, [learner], [replace(PLAN, epochs=5, proximal=mu)])[0] for mu in (8.0, 0.0))
    begin = held.vector.clone()
    for job in (held, free):
        Stacked(at_hand).submit([job])
    assert (held.vector - begin).norm() < 0.5 * (free.vector - begin).norm()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_epoch_by_epoch_is_all_at_once(momentum):
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    plans = [replace(PLAN, epochs=3, momentum=momentum), replace(PLAN, steps=11, momentum=momentum)] * 3
    together, by_epoch = jobs(at_hand, who, plans), jobs(at_hand, who, plans)
    way = Stacked(at_hand)
    way.submit(together)
    for epoch in range(1, 20):
        way.submit(by_epoch, 1)
        if epoch == 2:
            assert [job.epochs for job in by_epoch] == [2] * 6  # nobody's eleven steps fit into fewer
    for a, b in zip(together, by_epoch, strict=True):
        agree(a, b)


def test_a_large_cohort_is_stacked_in_several_goes(monkeypatch):
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    monkeypatch.setattr(stacked, "NUMBERS", 2 * at_hand.layout.size)  # two learners at a time
    against_plain(Stacked(at_hand), who, [PLAN] * len(who))


def test_stacks_on_several_processes_come_to_the_same_bits(monkeypatch):
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    monkeypatch.setattr(stacked, "WORTH_A_PROCESS", 2 * at_hand.layout.size * PLAN.batch)  # two learners a stack
    plans = [replace(PLAN, momentum=0.5, key=k) for k in range(len(who))]
    against_plain(Stacked(at_hand), who, plans)
    found = []
    for hands in (1, 2, 5):
        way = Stacked(at_hand)
        way.pool.count = hands
        made = jobs(at_hand, who, plans)
        way.submit(made)
        way.wait()
        found.append(torch.stack([job.vector for job in made]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("kept", [stacked.KEPT, 0])
def test_a_stack_in_the_place_of_another_comes_to_the_same_bits(kept, monkeypatch):
    monkeypatch.setattr(stacked, "KEPT", kept)
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    way = Stacked(at_hand)
    first = replace(PLAN, momentum=0.5, proximal=0.1)
    for plan in (first, replace(first, key=7), replace(first, rate=PLAN.rate / 2), replace(PLAN, epochs=2), PLAN):
        again, alone = jobs(at_hand, who, [plan] * len(who)), jobs(at_hand, who, [plan] * len(who))
        way.submit(again)
        Stacked(at_hand).submit(alone)
        for a, b in zip(again, alone, strict=True):
            assert torch.equal(a.vector, b.vector)


def test_no_stack_is_larger_than_memory_allows_however_the_cohort_divides(monkeypatch):
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    for fitting in (1, 2, 3, 4, 10):
        monkeypatch.setattr(stacked, "NUMBERS", fitting * at_hand.layout.size + at_hand.layout.size // 2)
        for count in range(1, len(who) + 1):
            stacks = Stacked(at_hand)._divided(jobs(at_hand, who[:count], [PLAN] * count))
            assert max(map(len, stacks)) <= fitting
            assert sum(map(len, stacks)) == count


def test_a_row_does_not_keep_its_cohort_in_memory():
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    made = jobs(at_hand, who, [replace(PLAN, momentum=0.5)] * len(who))
    Stacked(at_hand).submit(made)
    for job in made:
        assert job.vector.untyped_storage().nbytes() == 4 * at_hand.layout.size
        assert job.memory["momentum"].untyped_storage().nbytes() == 4 * at_hand.layout.size


@pytest.mark.parametrize("loss", network.PER_EXAMPLE, ids=lambda loss: loss.__name__)
def test_every_loss_that_stacks(loss):
    x = noise(200, 12)
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, 3, (200,), generator=generator)
    targets = {"cross_entropy": labels, "nll_loss": labels, "binary_cross_entropy_with_logits": torch.eye(3)[labels]}
    y = targets.get(loss.__name__, torch.randn(200, 3, generator=generator))
    at_hand = work(case().module, x, y, loss)
    who = learners(x, SIZES, validation=(5, 0, 2, 1, 0, 3))
    against_plain(Stacked(at_hand), who, [replace(PLAN, rate=0.01, reports=("losses",))] * len(who))


def test_a_target_without_a_dimension_of_its_own():
    x = noise(200, 12)
    at_hand = work(nn.Sequential(nn.Linear(12, 1), nn.Flatten(0)), x, x.sum(dim=1), nn.functional.mse_loss)
    assert at_hand.module(x[:2]).shape == at_hand.y[:2].shape
    as_chosen_and_plain(at_hand, replace(PLAN, rate=0.01))


# ------------------------------------------------------------------------------------------------ validation losses


def test_validation_losses_of_every_epoch():
    at_hand = case()
    who = learners(at_hand.x, (33, 1, 16, 7), validation=(10, 0, 3, 1))
    plan = replace(PLAN, epochs=3, reports=("losses",))
    pairs = against_plain(Stacked(at_hand), who, [plan] * len(who))
    for learner, (mine, _) in zip(who, pairs, strict=True):
        assert len(mine.losses) == 4
        assert any(loss != loss for loss in mine.losses) == (len(learner.validation) == 0)


def test_models_are_tried_on_their_learners_own_validation_parts():
    at_hand = case()
    who = learners(at_hand.x, (33, 1, 16, 7), validation=(10, 0, 3, 1))
    plan = replace(PLAN, reports=("validation",))
    for mine, _ in against_plain(Stacked(at_hand), who, [plan] * len(who)):
        alone = score(at_hand, mine.vector, mine.learner.validation)
        assert report(at_hand, mine, mine.vector, mine.epochs).validation is mine.validation
        assert (mine.validation.count, mine.validation.loss) == (alone.count, pytest.approx(alone.loss, rel=1e-5))
        assert (mine.validation.confusion == alone.confusion).all()


def test_validation_cycles_end_where_they_end_in_plain_pytorch():
    at_hand = case()
    who = learners(at_hand.x, (33, 1, 16, 7, 20), validation=(10, 0, 3, 1, 6))
    plan = replace(PLAN, rate=0.3, momentum=0.5, reports=("losses",))
    cycles = (Cycle(), Cycle(tombstones=1), Cycle(loss=5), Cycle(at_most=3), Cycle(tombstones=4, at_most=7))
    pairs = against_plain(Stacked(at_hand), who, [replace(plan, cycle=cycle) for cycle in cycles])
    assert len({mine.epochs for mine, _ in pairs}) > 2, "they should end at different epochs"
    assert all(len(mine.losses) == mine.epochs + 1 for mine, _ in pairs)


def test_a_learner_that_begins_later_does_not_disturb_the_others_losses():
    at_hand = case()
    early, late = learners(at_hand.x, (33, 16), validation=(10, 3))
    plan = replace(PLAN, cycle=Cycle(tombstones=100, at_most=4), reports=("losses",))
    done = []
    for way in (Stacked(at_hand), Plain(at_hand)):
        first, second = jobs(at_hand, [early, late], [plan, plan])
        way.submit([first], 1)
        way.submit([first, second], 2)
        done.append((first, second))
    for mine, theirs in zip(*done, strict=True):
        agree(mine, theirs)


# -------------------------------------------------------------------------------------------------- not a number


def test_a_bad_example_spoils_nobody_but_its_owner():
    """A short batch is filled up with weights of zero, and zero times NaN is NaN."""
    at_hand = case()
    for place in (0, 77, 199):
        x = at_hand.x.clone()
        x[place] = torch.nan
        spoilt = replace(at_hand, x=x)
        who = learners(x, (100, 50, 50))
        made = jobs(spoilt, who, [replace(PLAN, batch=32)] * 3)
        Stacked(spoilt).submit(made)
        for learner, job in zip(who, made, strict=True):
            assert bool(job.vector.isfinite().all()) == (place not in learner.train), (place, learner.name)


def test_a_learner_that_diverges_spoils_nobody_else():
    at_hand = case()
    who = learners(at_hand.x, SIZES)
    calm = jobs(at_hand, who, [PLAN] * len(who))
    wild = jobs(at_hand, who, [PLAN] * len(who))
    wild[2].vector.fill_(1e30)
    for made in (calm, wild):
        Stacked(at_hand).submit(made)
    assert not wild[2].vector.isfinite().all()
    for place in (0, 1, 3, 4, 5):
        assert torch.equal(wild[place].vector, calm[place].vector)


# ------------------------------------------------------------------------------------------- what is chosen, and why


class DropsInItsForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(nn.functional.dropout(self.inner(x), 0.5, self.training))
        return outputs


class Residual(nn.Sequential):
    """A sequence that is more than its parts."""

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = super().forward(x)
        return x + change


def frozen_by_hand() -> nn.Module:
    module = models.mlp(12, 3)
    next(module.parameters()).requires_grad_(False)
    return module


FLAT, IMAGE, PICTURE, CHARACTERS = (2, 12), (2, 1, 28, 28), (2, 3, 32, 32), (2, 10)

DECISIONS: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], str]] = [
    ("logistic_regression", lambda: models.logistic_regression(12, 3), FLAT, CHOSEN),
    ("mlp", lambda: models.mlp(12, 3), FLAT, CHOSEN),
    ("small_mlp", lambda: models.small_mlp(12, 3), FLAT, CHOSEN),
    ("mnist_mlp", models.mnist_mlp, IMAGE, CHOSEN),
    ("own forward", OwnForward, FLAT, "stacked"),
    ("an mlp of 3 million", lambda: models.mlp(12, 3, hidden=(1700, 1700)), FLAT, "workers"),
    ("small_cnn", models.small_cnn, IMAGE, "workers"),
    ("femnist_cnn", lambda: models.femnist_cnn(hidden=64), IMAGE, "workers"),
    ("hdafl_cnn", models.hdafl_cnn, IMAGE, "workers"),
    ("fed2a_cnn_fmnist", models.fed2a_cnn_fmnist, IMAGE, "workers"),
    ("fed2a_cnn_germants", models.fed2a_cnn_germants, PICTURE, "workers"),
    ("cifar10_2cnn", models.cifar10_2cnn, PICTURE, "workers"),
    ("fed2a_cnn_cifar10", models.fed2a_cnn_cifar10, PICTURE, "workers"),
    ("small_vgg", models.small_vgg, PICTURE, "workers"),
    ("vgg9", models.vgg9, PICTURE, "workers"),
    ("vgg9 with dropout", lambda: models.vgg9(dropout=0.1), PICTURE, "plain"),
    ("packet_cnn", lambda: models.packet_cnn(35), CHARACTERS, "workers"),
    ("small_resnet", models.small_resnet, PICTURE, "workers"),
    ("resnet_cifar", lambda: models.resnet_cifar(14, 10), PICTURE, "workers"),
    ("resnet50_cifar", models.resnet50_cifar, PICTURE, "workers"),
    ("small_lstm", models.small_lstm, CHARACTERS, "workers"),
    ("shakespeare_lstm", models.shakespeare_lstm, CHARACTERS, "workers"),
    ("a module of dropout", lambda: nn.Sequential(nn.Linear(12, 3), nn.Dropout(0.5)), FLAT, "plain"),
    ("dropout in the forward pass", DropsInItsForward, FLAT, "plain"),
    ("batch norm", lambda: nn.Sequential(nn.Linear(12, 3), nn.BatchNorm1d(3)), FLAT, "workers"),
    ("a layer frozen by hand", frozen_by_hand, FLAT, "workers"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "shape", "way"), [row[1:] for row in DECISIONS], ids=[row[0] for row in DECISIONS])
def test_the_way_is_chosen_from_the_network(make, shape, way):
    module = make()
    x = torch.zeros(shape, dtype=torch.int64) if "LSTM" in repr(module) else torch.zeros(shape)
    at_hand = work(module, x, torch.tensor([0, module(x).shape[1] - 1]))
    assert choose(at_hand, PLAN) == way
    assert executor_of(at_hand, PLAN).name == way


def test_every_network_of_the_package_is_in_the_table():
    assert set(models.__all__) <= {row[0] for row in DECISIONS}


@pytest.mark.parametrize(
    ("plan", "way"),
    [
        (PLAN, CHOSEN),
        (replace(PLAN, momentum=0.9, options={"nesterov": True, "weight_decay": 0.1}), CHOSEN),
        (replace(PLAN, optimiser="Adam"), "workers"),
        (replace(PLAN, optimiser="RMSprop", momentum=0.9), "workers"),
        (replace(PLAN, options={"maximize": True}), "workers"),
        (replace(PLAN, momentum=0.9, options={"dampening": 0.5}), "workers"),
    ],
    ids=lambda value: value if isinstance(value, str) else named(value),
)
def test_the_way_is_chosen_from_the_plan(plan, way):
    assert choose(case(), plan) == way


@pytest.mark.parametrize(
    ("loss", "way"),
    [
        (cross_entropy, CHOSEN),
        (nn.CrossEntropyLoss(), "workers"),
        (lambda outputs, targets: cross_entropy(outputs, targets), "workers"),
    ],
    ids=["function", "module", "own"],
)
def test_the_way_is_chosen_from_the_loss(loss, way):
    assert choose(case(loss=loss), PLAN) == way


def test_stacking_what_cannot_be_stacked_is_an_error():
    module = models.small_cnn(1, 8)
    at_hand = work(module, noise(4, 1, 8, 8), torch.arange(4))
    with pytest.raises(ValueError, match=r"Sequential with SGD cannot be stacked: .* Use execution='workers'\."):
        executor_of(at_hand, PLAN, "stacked")
    with pytest.raises(ValueError, match=r"Sequential with Adam cannot be stacked"):
        executor_of(case(), replace(PLAN, optimiser="Adam"), "stacked")
    with pytest.raises(
        ValueError, match=r"one of plain, workers, stacked, native, got 'stack'. Did you mean 'stacked'\?"
    ):
        executor_of(case(), PLAN, "stack")  # type: ignore[arg-type]


def test_dropout_on_workers_is_an_error():
    module = nn.Sequential(nn.Linear(12, 3), nn.Dropout(0.5))
    with pytest.raises(ValueError, match=r"draws random numbers in training .* Use execution='plain'\."):
        executor_of(replace(case(), module=module), PLAN, "workers")


def test_a_subclass_with_its_own_forward_is_not_taken_for_its_parts():
    module = nn.Sequential(nn.Linear(12, 8), Residual(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3))
    as_chosen_and_plain(work(module, noise(200, 12), case().y))


def test_one_layer_called_twice():
    again = nn.Linear(12, 12)
    module = nn.Sequential(again, nn.Tanh(), again, nn.Linear(12, 3))
    as_chosen_and_plain(work(module, noise(200, 12), case().y))


def test_layers_that_share_a_weight():
    first, second = nn.Linear(12, 12), nn.Linear(12, 12)
    second.weight = first.weight
    module = nn.Sequential(first, nn.Tanh(), second, nn.Linear(12, 3))
    as_chosen_and_plain(work(module, noise(200, 12), case().y))


@pytest.mark.parametrize("how", [{"padding_idx": 0}, {"max_norm": 0.5}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_with_rules_of_their_own(how):
    """A row that fills up and must not train, rows of bounded length, gradients by frequency."""
    torch.manual_seed(0)
    as_chosen_and_plain(work(Words(**how), tokens(200), case().y), replace(PLAN, rate=0.5))


@pytest.mark.parametrize(
    "plan", [replace(PLAN, options={"nesterov": True}), replace(PLAN, options={"weight_decay": -1.0})], ids=named
)
def test_what_the_optimiser_refuses_is_refused_the_other_ways_too(plan):
    at_hand = case()
    who = learners(at_hand.x, (8,))
    for way in ("plain", "stacked", CHOSEN):
        with pytest.raises(ValueError, match=r"(?i)nesterov|weight_decay"):
            executor_of(at_hand, plan, way).submit(jobs(at_hand, who, [plan]))  # type: ignore[arg-type]


def test_a_plan_that_trains_no_layer():
    at_hand = case()
    who = learners(at_hand.x, (8, 16))
    plan = replace(PLAN, trains=())
    for way in (Plain(at_hand), Stacked(at_hand)):
        made = jobs(at_hand, who, [plan, plan])
        before = [job.vector.clone() for job in made]
        way.submit(made)
        assert all(torch.equal(job.vector, begin) for job, begin in zip(made, before, strict=True))
        assert [job.epochs for job in made] == [2, 2]


# --------------------------------------------------------------------------------------------- whole simulations


class Halves(nn.Module):
    """Puts out one half in training, so that the mode shows in the result."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(x)
        return outputs / 2 if self.training else outputs


def test_a_network_trains_in_training_mode_though_it_is_scored_in_between():
    data = small_islands()
    chosen, plain = (
        ap.simulate(ap.fedavg(batch=8), data, model=Halves, ending=ap.Ending(rounds=2), **way)
        for way in ({}, {"execution": "plain"})
    )
    torch.testing.assert_close(chosen.model, plain.model, atol=1e-4, rtol=1e-3)


def test_the_way_is_told_with_the_run():
    data = small_islands()
    ending = ap.Ending(rounds=1)
    assert ap.simulate(ap.fedavg(batch=8), data, ending=ending).execution == CHOSEN
    assert ap.simulate(ap.fedavg(batch=8), data, ending=ending, execution="stacked").execution == "stacked"
    assert ap.simulate(ap.fedavg(batch=8, optimiser="Adam"), data, ending=ending).execution == "workers"
    assert ap.simulate(ap.fedavg(batch=8), data, ending=ending, execution="plain").execution == "plain"
    seen = ap.simulate(ap.fedavg(batch=8), images(data), model=lambda: models.small_cnn(1, 8), ending=ending)
    assert "executed workers" in seen.summary()
