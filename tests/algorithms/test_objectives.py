"""FedLC, FedNTD and FedRep against straight-line programs, by pencil, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import archipel as ap
from archipel.core.parts.objective import LogitCalibration, NotTrueDistillation, Objective, TrainingBatch
from archipel.core.types import Phase, Plan
from tests.algorithms.straight import Client, Net, clients, islands, mean, run

WIDTHS = (64, 32, 10)
ROUNDS, EPOCHS = 4, 2
LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}


def simulated(algorithm: ap.Algorithm) -> Tensor:
    found, _ = run(algorithm, islands(5), WIDTHS, ending=ap.Ending(rounds=ROUNDS))
    return found.model


def averaged(loss: Callable[[Client, Net, Tensor, Tensor, Tensor, Tensor], Tensor]) -> Tensor:
    """FedAvg where each learner descends along loss(client, net, received model, scores, inputs, targets)."""
    net = Net(*WIDTHS)
    learners = clients(net, islands(5))
    received = net.initial()
    for _ in range(ROUNDS):
        local = []
        for k in sorted(learners):
            w = received.clone()
            for x, y in learners[k].batches(EPOCHS, LOCAL["batch"]):
                leaf = w.detach().requires_grad_()
                scores = net.outputs(leaf, x)[-1]
                (gradient,) = torch.autograd.grad(loss(learners[k], net, received, scores, x, y), leaf)
                w = w.add(gradient, alpha=-LOCAL["rate"])
            local.append(w)
        received = mean(local, [float(learners[k].n) for k in sorted(learners)])
    return received


# ----------------------------------------------------------------------------------------------- straight-line programs


@pytest.mark.slow
def test_fedlc() -> None:
    def loss(client: Client, net: Net, received: Tensor, scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
        n = torch.tensor([(client.y == c).sum() for c in range(10)])
        calibrated = scores - 0.5 * n.float() ** -0.25
        calibrated[:, n == 0] = -math.inf
        return cross_entropy(calibrated, y)

    assert torch.equal(simulated(ap.fedlc(0.5, epochs=EPOCHS, **LOCAL)), averaged(loss))


@pytest.mark.slow
def test_fedntd() -> None:
    beta, tau = 0.5, 2.0

    def loss(client: Client, net: Net, received: Tensor, scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
        others = torch.stack([torch.tensor([c for c in range(10) if c != int(target)]) for target in y])
        local = (scores.gather(1, others) / tau).log_softmax(1)
        before = (net.outputs(received, x)[-1].gather(1, others) / tau).log_softmax(1)
        divergence = (before.exp() * (before - local)).sum() / len(y)
        return cross_entropy(scores, y) + beta * divergence

    assert torch.equal(
        simulated(ap.fedntd(beta, tau, epochs=EPOCHS, fraction=1.0, momentum=0.0, options={}, **LOCAL)), averaged(loss)
    )


@pytest.mark.slow
def test_fedrep_trains_the_head_and_then_the_representation() -> None:
    net = Net(*WIDTHS)
    learners = clients(net, islands(5))
    body, head = net.layers
    shared = net.initial()[body]
    own = {k: net.initial()[head] for k in learners}
    for _ in range(ROUNDS):
        sent = []
        for k in sorted(learners):
            w = torch.cat([shared, own[k]])
            steps = learners[k].steps(LOCAL["batch"])
            u = torch.zeros(net.size)
            for number, (x, y) in enumerate(learners[k].batches(3 + EPOCHS, LOCAL["batch"])):
                part = head if number < 3 * steps else body
                if number == 3 * steps:
                    u = torch.zeros(net.size)
                u.mul_(0.5).add_(net.gradient(w, x, y))
                w[part] = w[part].add(u[part], alpha=-LOCAL["rate"])
            own[k] = w[head]
            sent.append(w[body])
        shared = mean(sent, [float(learners[k].n) for k in sorted(learners)])
    algorithm = ap.fedrep(head_epochs=3, fraction=1.0, epochs=EPOCHS, momentum=0.5, **LOCAL)
    found, _ = run(algorithm, islands(5), WIDTHS, ending=ap.Ending(rounds=ROUNDS))
    assert torch.equal(found.model[body], shared)
    for k, kept in found.private.items():
        assert torch.equal(kept["head"], own[k])


# ------------------------------------------------------------------------------------------------------------ by pencil


def batch(outputs: list[float], target: int, classes: list[int], received: list[float] | None = None) -> TrainingBatch:
    before = None if received is None else torch.tensor([received])
    return TrainingBatch(torch.tensor([outputs]), torch.tensor([target]), torch.tensor(classes), before)


def test_logit_calibration_by_pencil() -> None:
    # 16 and 1 examples: 16^(-1/4) = 1 / 2, so scores 1 and 1 become .5 and 0: -log(1 / (1 + e^.5)) for the rare one
    found = LogitCalibration(1.0).loss(batch([1.0, 1.0], 1, [16, 1]), cross_entropy)
    assert float(found) == pytest.approx(math.log(1 + math.exp(0.5)))
    # a class without examples is left out: nothing is left to tell apart
    assert float(LogitCalibration(1.0).loss(batch([5.0, 1.0, 9.0], 1, [0, 3, 0]), cross_entropy)) == 0


def test_not_true_distillation_by_pencil() -> None:
    # of the classes 1 and 2 the received model says 1/2 and 1/2, the local one 3/4 and 1/4; its own class is 0
    local = [0.0, math.log(3.0), 0.0]
    found = NotTrueDistillation(2.0).loss(batch(local, 0, [1, 1, 1], [7.0, 1.0, 1.0]), cross_entropy)
    distance = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert float(found) == pytest.approx(math.log(5) + 2 * distance, rel=1e-6)


def test_a_phase_is_found_by_its_epoch() -> None:
    plan = Plan(epochs=5, phases=(Phase(2, ("head",)), Phase(3, ("fc1",))))
    assert [(plan.phase(epoch)[0].trains, plan.phase(epoch)[1]) for epoch in range(5)] == [
        (("head",), 2),
        (("head",), 2),
        (("fc1",), 5),
        (("fc1",), 5),
        (("fc1",), 5),
    ]


# ------------------------------------------------------------------------------------------- executors and refusals


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (
            ap.fedlc,
            "not stacked, because its learners minimise another objective than the loss (LogitCalibration(tau=1.0))",
        ),
        (
            lambda: ap.fedrep(fraction=1.0),
            "not stacked, because its tasks have phases, in which different layers or models train",
        ),
    ],
)
def test_a_run_says_why_it_is_not_stacked(make: Callable[[], ap.Algorithm], reason: str) -> None:
    found = ap.simulate(make(), islands(5), ending=ap.Ending(rounds=1))
    assert (found.execution, found.execution_reason) == ("workers", reason)
    with pytest.raises(ValueError, match="cannot be stacked"):
        ap.simulate(make(), islands(5), execution="native")


def test_workers_come_to_the_bits_of_plain_execution() -> None:
    algorithm = replace(
        ap.fedntd(fraction=1.0, epochs=1, **LOCAL), planners=(ap.PrivateLayers("head"), ap.HeadFirst("head", 1))
    )
    models = [
        ap.simulate(algorithm, islands(5), ending=ap.Ending(rounds=2), execution=way).model
        for way in ("plain", "workers")
    ]
    assert torch.equal(*models)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"plan": Plan(steps=3)}, "HeadFirst counts epochs, and the plan has steps"),
        (
            {"planners": (ap.HeadFirst(), ap.FrozenLayers())},
            "HeadFirst and FrozenLayers both choose which layers train when",
        ),
        ({"planners": (ap.HeadFirst(), ap.ControlVariates())}, "with HeadFirst no layer trains in all of them"),
        ({"objective": "LogitCalibration()"}, r"objective should be, for example, LogitCalibration\(\), or None"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(ap.fedrep(momentum=0.0), **changes)


def test_phases_are_those_of_the_task() -> None:
    with pytest.raises(
        ValueError, match="Plan: phases of 2 epochs need a task of as many epochs, and this one has epochs=3"
    ):
        Plan(epochs=3, phases=(Phase(2, ("head",)),))
    with pytest.raises(ValueError, match=r"HeadFirst: all layers \(fc1, head\) are the head"):
        ap.fedrep("all").check(ap.Layout.of(ap.models.small_mlp()))


def test_an_objective_of_classes_needs_class_scores() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 1))
    with pytest.raises(ValueError, match=r"LogitCalibration compares class scores, and .* \(2, 1\) for 2 exam"):
        LogitCalibration().check_network(network, ap.Layout.of(network), torch.zeros(2, 4))
    with pytest.raises(NotImplementedError):
        Objective().loss(batch([1.0], 0, [1]), cross_entropy)
