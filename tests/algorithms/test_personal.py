"""FedPer, FedBN and FedBABU against straight-line programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import archipel as ap
from archipel.core.randomness import derive, generator
from archipel.simulation.simulate import finished, prepare
from tests.algorithms.straight import SEED, Net, clients, islands, mean, run, selected

WIDTHS = (64, 32, 10)
ROUNDS, EPOCHS = 5, 2
LOCAL: dict[str, Any] = {"batch": 16, "rate": 0.1}


@pytest.mark.slow
def test_fedper_averages_the_base_and_keeps_the_rest() -> None:
    net = Net(*WIDTHS)
    learners = clients(net, islands(6))
    base = net.span([0])
    w_0 = net.initial()
    w = {k: w_0.clone() for k in learners}
    shared = w_0[base]
    for _ in range(ROUNDS):
        for k in sorted(learners):
            w[k][base] = shared  # W_B, and the learner's own W_P
            w[k] = learners[k].train(w[k], EPOCHS, **LOCAL)
        shared = mean([w[k][base] for k in sorted(learners)], [float(learners[k].n) for k in sorted(learners)])
    found, _ = run(ap.fedper(epochs=EPOCHS, **LOCAL), islands(6), WIDTHS, ending=ap.Ending(rounds=ROUNDS))
    assert torch.equal(found.model[base], shared)
    for k, own in found.private.items():
        assert torch.equal(own["head"], w[k][net.layers[1]])


@pytest.mark.slow
def test_fedbabu_trains_the_body_alone() -> None:
    net = Net(*WIDTHS)
    learners = clients(net, islands(5))
    body = net.span([0])
    w = net.initial()
    head = w[net.layers[1]].clone()
    for t in range(ROUNDS):
        s_t = sorted(selected(list(learners), 3, t))
        local = [learners[k].train(w, EPOCHS, momentum=0.9, trains=body, **LOCAL)[body] for k in s_t]
        w = w.clone()
        w[body] = mean(local, [float(learners[k].n) for k in s_t])
    algorithm = ap.fedbabu(fraction=0.6, epochs=EPOCHS, **LOCAL)
    found, _ = run(algorithm, islands(5), WIDTHS, ending=ap.Ending(rounds=ROUNDS))
    assert torch.equal(found.model, w)
    assert torch.equal(found.model[net.layers[1]], head), "the head is as it was initialised"
    assert "head" not in found.layers["train up"]


# -------------------------------------------------------------------------------------------------------------- FedBN


def normalised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 10))


def is_norm(name: str) -> bool:
    return name.startswith("2.")


@pytest.mark.slow
def test_fedbn_is_fedavg_without_the_normalisation() -> None:
    data = islands(5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(SEED, "model"))
        net = normalised()
    shared = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    own = {island.name: {n: t.clone() for n, t in shared.items() if is_norm(n)} for island in data.learners}
    for t in range(ROUNDS):
        sent: list[dict[str, Tensor]] = []
        for island in sorted(data.learners, key=lambda island: island.name):
            net.load_state_dict(shared | own[island.name])
            net.train()
            steps = torch.optim.SGD(net.parameters(), lr=LOCAL["rate"])
            key = derive(SEED, "training", island.name, t)
            for epoch in range(EPOCHS):
                order = torch.from_numpy(generator(key, "epoch", epoch).permutation(len(island.train)))
                for b in order.split(int(LOCAL["batch"])):
                    steps.zero_grad()
                    cross_entropy(net(data.x[island.train[b]]), data.y[island.train[b]]).backward()
                    steps.step()
            trained = {name: tensor.clone() for name, tensor in net.state_dict().items()}
            own[island.name] = {name: tensor for name, tensor in trained.items() if is_norm(name)}
            sent.append(trained)
        sizes = [float(len(i.train)) for i in sorted(data.learners, key=lambda island: island.name)]
        shared |= {name: mean([w[name] for w in sent], sizes) for name in shared if not is_norm(name)}
    simulator = prepare(
        ap.fedbn(epochs=EPOCHS, **LOCAL),
        data,
        model=normalised,
        execution="plain",
        seed=SEED,
        ending=ap.Ending(rounds=ROUNDS),
    )
    simulator.begin()
    simulator.run()
    found = finished(simulator)
    tensors = found.layout.tensors(found.model)
    for name, tensor in shared.items():
        if not is_norm(name):
            assert torch.equal(tensors[name], tensor)
    for name, kept in found.private.items():
        whole = found.layout.tensors(found.layout.with_layers(found.model, kept))
        assert set(kept) == {"2", "2.buffers"}
        for tensor in own[name]:
            assert torch.equal(whole[tensor], own[name][tensor])


# ------------------------------------------------------------------------------------------------------------- refused


def test_fedbn_needs_normalisation() -> None:
    with pytest.raises(
        ValueError, match=r"PrivateLayers: this model has no normalisation layers\. Layers of this model"
    ):
        ap.simulate(ap.fedbn(), ap.data.digits().split(3, test="own"))


def test_a_network_that_is_frozen_altogether_is_refused() -> None:
    layout = ap.Layout.of(ap.models.small_mlp())
    with pytest.raises(ValueError, match=r"FrozenLayers: all layers \(fc1, head\) are frozen, so nothing is left"):
        ap.fedbabu("all").check(layout)
    with pytest.raises(ValueError, match="FrozenLayers: no layer named 'fc9'"):
        ap.fedbabu("fc9").check(layout)
