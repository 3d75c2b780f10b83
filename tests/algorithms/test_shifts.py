"""SCAFFOLD, FedDyn and FedCM against straight-line programs, by pencil, and what they refuse."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import archipel as ap
from archipel.core.types import Plan
from tests.algorithms.straight import Client, Net, clients, islands, mean, run, selected

WIDTHS = (64, 32, 10)
EPOCHS, ROUNDS, N = 2, 5, 5
LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}


def simulated(algorithm: ap.Algorithm) -> Tensor:
    found, _ = run(algorithm, islands(N), WIDTHS, ending=ap.Ending(rounds=ROUNDS))
    return found.model


def chosen(learners: dict[str, Client], t: int) -> list[Client]:
    return [learners[k] for k in sorted(selected(list(learners), 3, t))]


# ----------------------------------------------------------------------------------------------- straight-line programs


@pytest.mark.slow
def test_scaffold() -> None:
    net = Net(*WIDTHS)
    learners = clients(net, islands(N))
    x, c = net.initial(), torch.zeros(net.size)
    c_i = {k: torch.zeros(net.size) for k in learners}
    for t in range(ROUNDS):
        s_t = chosen(learners, t)
        shifts = {client.name: c - c_i[client.name] for client in s_t}
        y = {client.name: client.train(x, EPOCHS, shift=shifts[client.name], **LOCAL) for client in s_t}
        c = c.clone()
        for client in s_t:
            k, steps = client.name, EPOCHS * client.steps(LOCAL["batch"])
            plus = (y[k] - x) / -(LOCAL["rate"] * steps) - shifts[k]  # c_i - c + (x - y_i) / (K eta)
            c.add_(plus - c_i[k], alpha=1 / N)
            c_i[k] = plus
        x = x.add(mean(list(y.values()), [1.0] * len(y)) - x, alpha=0.8)
    assert torch.equal(simulated(ap.scaffold(0.8, 0.6, epochs=EPOCHS, **LOCAL)), x)
    assert float(c.norm()) > 0


@pytest.mark.slow
def test_feddyn() -> None:
    net, alpha = Net(*WIDTHS), 0.1
    learners = clients(net, islands(N))
    w, d = net.initial(), torch.zeros(net.size)
    gradient = {k: torch.zeros(net.size) for k in learners}  # of L_k at the learner's last model, negative
    for t in range(ROUNDS):
        s_t = chosen(learners, t)
        local = {
            client.name: client.train(w, EPOCHS, shift=gradient[client.name].clone(), proximal=alpha, **LOCAL)
            for client in s_t
        }
        for k, w_k in local.items():
            gradient[k].add_(w_k - w, alpha=alpha)
            d = d.add(w_k - w, alpha=-1 / N)  # h / alpha
        w = mean(list(local.values()), [1.0] * len(local)) - d
    assert torch.equal(simulated(ap.feddyn(alpha, 0.6, epochs=EPOCHS, options={}, **LOCAL)), w)


@pytest.mark.slow
def test_fedcm() -> None:
    net, alpha = Net(*WIDTHS), 0.3
    learners = clients(net, islands(N))
    w, delta = net.initial(), torch.zeros(net.size)
    settings = {"batch": LOCAL["batch"], "rate": LOCAL["rate"] * alpha}
    for t in range(ROUNDS):
        s_t = chosen(learners, t)
        shift = delta * ((1 - alpha) / alpha)
        local = [client.train(w, EPOCHS, shift=shift, **settings) for client in s_t]
        delta = torch.zeros(net.size)
        for client, w_k in zip(s_t, local, strict=True):
            length = EPOCHS * client.steps(LOCAL["batch"]) * (LOCAL["rate"] * alpha) / alpha  # K eta
            delta.add_(w_k - w, alpha=-1 / (length * len(s_t)))
        w = w.add(mean(local, [1.0] * len(local)) - w, alpha=0.9)
    assert torch.equal(simulated(ap.fedcm(alpha, 0.9, 0.6, epochs=EPOCHS, options={}, **LOCAL)), w)


def test_a_shift_travels_down_with_every_task_and_nothing_more_travels_up() -> None:
    plain, shifted = (
        run(method(fraction=1.0, **LOCAL), islands(N), WIDTHS, ending=ap.Ending(rounds=2))[0].traffic
        for method in (ap.fedavg, ap.scaffold)
    )
    assert shifted["train up bytes"] == plain["train up bytes"]
    assert shifted["train down bytes"] == 2 * plain["train down bytes"]


def test_layers_that_stay_with_learners_have_no_shift() -> None:
    algorithm = replace(ap.fedper(**LOCAL), planners=(ap.PrivateLayers("head"), ap.ControlVariates()))
    found, simulator = run(algorithm, islands(N), WIDTHS, ending=ap.Ending(rounds=2))
    net = Net(*WIDTHS)
    models = simulator.controller.models
    kept = [models.read(name) for name in models.names() if name.startswith("planner.1/c")]
    assert len(kept) == N + 1, "one for each learner, and their mean"
    for vector in kept:
        assert float(vector[net.layers[0]].abs().max()) > 0
        assert not vector[net.layers[1]].any()
    down, up = found.layers["train down"], found.layers["train up"]
    assert set(up) == {"fc1"}
    assert down["head"] == N * found.layout.bytes((1,)), "the first task carries it, and no shift of it"


# -------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("algorithm", "changes", "words"),
    [
        (ap.radfed, {"planners": (ap.ControlVariates(),)}, r"ControlVariates follows .* under Relay .* Use Rounds"),
        (
            ap.radfed,
            {"merge": ap.DynamicMean(), "planners": (ap.DynamicRegulariser(),)},
            r"DynamicRegulariser follows each learner's own movement, .* Relay .* or leave DynamicRegulariser out",
        ),
        (ap.fedavg, {"planners": (ap.ControlVariates(), ap.LearnerMomentum())}, "both shift the gradients"),
        (
            ap.scaffold,
            {"plan": Plan(momentum=0.9)},
            r"which needs plain SGD, .* momentum=0.9. Use SGD without momentum",
        ),
        (ap.fedcm, {"plan": Plan(optimiser="Adam")}, "optimiser='Adam' with momentum=0.0. Use SGD without momentum"),
        (ap.fedavg, {"planners": (ap.DynamicRegulariser(),)}, r"DynamicMean\(\) corrects and Mean does not"),
        (ap.fedavg, {"merge": ap.DynamicMean()}, "add it to planners, or use Mean"),
        (
            ap.feddyn,
            {"planners": (ap.DynamicRegulariser(), ap.Proximal())},
            "has a proximal term of its own; leave the other one out",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_way_out(
    algorithm: Any, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        replace(algorithm(), **changes)


def test_mixtures_run() -> None:
    """DVW with control variates, and control variates in a buffered stream: what each learner did is known in both."""
    for algorithm in (
        replace(ap.sync_dvw(epochs=1, batch=16, momentum=0.0), name="dvw", planners=(ap.ControlVariates(),)),
        replace(ap.fedbuff(2, batch=16), name="buffered", planners=(ap.ControlVariates(),)),
    ):
        found, simulator = run(algorithm, islands(N), WIDTHS, ending=ap.Ending(rounds=2))
        assert found.commits
        assert simulator.controller.models.read("planner.0/c").any()
