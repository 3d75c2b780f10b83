"""How the proposal becomes the model, number by number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from archipel.core.parts import Adagrad, Adam, Momentum, Proposal, Replace, Server, Yogi
from tests.core.parts.by_hand import Bench, layout


def rounds(server: Server, start: float, deltas: list[float]) -> list[float]:
    """The model after each round in which the proposal lies `delta` away from it."""
    bench = Bench(layout(w=1), [start])
    seen = []
    for delta in deltas:
        current = bench.models.read(bench.state.model.name)
        following = server.step(bench.view("server"), Proposal(current + delta, (0,)))
        assert following is not None
        bench.models.write("v0", following)
        seen.append(float(following))
    return seen


def test_replace_takes_the_proposal_to_the_bit() -> None:
    bench = Bench(layout(w=3), [1e8, 0.1, -3.0])
    proposal = torch.tensor([0.1, 1e-9, 7.0])  # 1e8 + (0.1 - 1e8) is 0 in float32
    following = Replace().step(bench.view(), Proposal(proposal, (0,)))
    assert following is not None
    assert torch.equal(following, proposal)


def test_replace_with_a_rate_is_radfed_line_14() -> None:
    # alpha x mean + (1 - alpha) w: .6 x 20 + .4 x 10 = 16; then .6 x 21 + .4 x 16 = 19
    assert rounds(Replace(0.6), 10.0, [10.0, 5.0]) == pytest.approx([16.0, 19.0], rel=1e-6)


def test_momentum() -> None:
    # beta .5, rate 2. m = 2, w = 0 + 2 x 2; m = .5 x 2 + 4 = 5, w = 4 + 10
    assert rounds(Momentum(rate=2, beta=0.5), 0.0, [2.0, 4.0]) == [4.0, 14.0]


def test_adam() -> None:
    # beta1 .5, beta2 .75, tau .5, rate 2, v_-1 = 0
    # delta 4: m = .5 x 4 = 2, v = .25 x 16 = 4, w = 0 + 2 x 2 / (2 + .5) = 1.6
    # delta 2: m = 1 + 1 = 2, v = 3 + .25 x 4 = 4, w = 1.6 + 1.6
    server = Adam(rate=2, beta1=0.5, beta2=0.75, tau=0.5)
    assert rounds(server, 0.0, [4.0, 2.0]) == pytest.approx([1.6, 3.2], rel=1e-6)


def test_adam_begins_with_the_initial_v() -> None:
    # v = .75 x 12 + .25 x 0 = 9 and m = 0: no move; then delta 6: m = 3, v = 6.75 + 9 = 15.75
    # w = 2 x 3 / (3.968626967 + .5) = 1.342693
    server = Adam(rate=2, beta1=0.5, beta2=0.75, tau=0.5, initial=12.0)
    assert rounds(server, 0.0, [0.0, 6.0]) == pytest.approx([0.0, 6 / (math.sqrt(15.75) + 0.5)], rel=1e-6)


def test_yogi() -> None:
    # beta1 .5, beta2 .75, tau .5, rate 2, v_-1 = 5
    # delta 2: m = 1; v - delta^2 = 1 > 0: v = 5 - .25 x 4 = 4; w = 2 x 1 / 2.5 = .8
    # delta 4: m = .5 + 2 = 2.5; v - delta^2 = -12 < 0: v = 4 + .25 x 16 = 8; w = .8 + 5 / (2.828427 + .5)
    server = Yogi(rate=2, beta1=0.5, beta2=0.75, tau=0.5, initial=5.0)
    assert rounds(server, 0.0, [2.0, 4.0]) == pytest.approx([0.8, 0.8 + 5 / (math.sqrt(8) + 0.5)], rel=1e-6)


def test_adagrad() -> None:
    # beta1 .5, tau .5, rate 2, v_-1 = 5
    # delta 2: m = 1, v = 5 + 4 = 9, w = 2 / 3.5 = 4/7
    # delta 4: m = 2.5, v = 9 + 16 = 25, w = 4/7 + 5 / 5.5
    server = Adagrad(rate=2, beta1=0.5, tau=0.5, initial=5.0)
    assert rounds(server, 0.0, [2.0, 4.0]) == pytest.approx([4 / 7, 4 / 7 + 10 / 11], rel=1e-6)


@pytest.mark.parametrize("kind", [Adam, Yogi, Adagrad])
@pytest.mark.parametrize("initial", [0, 1])
def test_a_whole_number_is_an_initial_v_too(kind: Any, initial: Any) -> None:
    # RADFed's grid of v_-1 is 0, .1, .01, .001, and who writes 0 means 0.0
    assert rounds(kind(initial=initial), 0.0, [2.0, 4.0]) == rounds(kind(initial=float(initial)), 0.0, [2.0, 4.0])


# ---------------------------------------------------------------------------------- against the papers and torch.optim

DELTAS = np.random.default_rng(7).standard_normal((12, 5)).astype(np.float32)


def walk(servers: Any, deltas: Any = DELTAS) -> torch.Tensor:
    """The model after all rounds; one server a round."""
    bench = Bench(layout(w=deltas.shape[1]))
    for server, delta in zip(servers, deltas, strict=True):
        current = bench.models.read("v0")
        bench.models.write("v0", server.step(bench.view("server"), Proposal(current + torch.from_numpy(delta), (0,))))
    return bench.models.read("v0")


@pytest.mark.parametrize("kind", [Adam, Yogi, Adagrad])
def test_adaptive_servers_are_algorithm_2_of_reddi(kind: Any) -> None:
    eta, beta1, beta2, tau, v = 0.1, 0.9, 0.99, 1e-3, 0.01
    x, m = np.zeros(5), np.zeros(5)
    for delta in DELTAS.astype(np.float64):
        m = beta1 * m + (1 - beta1) * delta
        if kind is Adagrad:
            v = v + delta**2
        elif kind is Yogi:
            v = v - (1 - beta2) * delta**2 * np.sign(v - delta**2)
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        x = x + eta * m / (np.sqrt(v) + tau)
    server = kind(rate=eta, beta1=beta1, tau=tau, initial=0.01)  # beta2 = .99 is the default, as RADFed fixes it
    np.testing.assert_allclose(walk([server] * 12).numpy(), x, rtol=1e-4, atol=1e-6)


def torch_walk(make: Any) -> torch.Tensor:
    """The same deltas as gradients -delta of an optimiser of torch."""
    w = torch.zeros(5, requires_grad=True)
    steps = make([w])
    for delta in DELTAS:
        w.grad = -torch.from_numpy(delta)
        steps.step()
    return w.detach()


def test_momentum_is_torch_sgd_with_momentum() -> None:
    ours = walk([Momentum(rate=0.3, beta=0.8)] * 12)
    torch.testing.assert_close(ours, torch_walk(lambda w: torch.optim.SGD(w, lr=0.3, momentum=0.8)))


def test_replace_with_a_rate_is_torch_sgd() -> None:
    torch.testing.assert_close(walk([Replace(0.3)] * 12), torch_walk(lambda w: torch.optim.SGD(w, lr=0.3)))


def test_adagrad_without_momentum_is_torch_adagrad() -> None:
    ours = walk([Adagrad(rate=0.3, beta1=0.0, tau=0.01, initial=0.5)] * 12)
    theirs = torch_walk(lambda w: torch.optim.Adagrad(w, lr=0.3, eps=0.01, initial_accumulator_value=0.5))
    torch.testing.assert_close(ours, theirs)


def test_adam_is_torch_adam_without_its_bias_correction() -> None:
    # torch: lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps); the same step has rate lr r / (1 - b1^t) and tau eps r
    # with r = sqrt(1 - b2^t)
    root = [math.sqrt(1 - 0.99**t) for t in range(1, 13)]
    servers = [Adam(rate=0.3 * r / (1 - 0.9**t), tau=0.01 * r) for t, r in enumerate(root, start=1)]
    theirs = torch_walk(lambda w: torch.optim.Adam(w, lr=0.3, betas=(0.9, 0.99), eps=0.01))
    torch.testing.assert_close(walk(servers), theirs)


# ------------------------------------------------------------------------------------------------------- other layers


@pytest.mark.parametrize("server", [Replace(), Replace(0.5), Momentum(), Adam(), Yogi(), Adagrad()], ids=repr)
def test_layers_that_are_not_proposed_do_not_move(server: Any) -> None:
    bench = Bench(layout(x=2, y=2, z=1), [1.0, 2.0, 3.0, 4.0, 5.0])
    everything = Proposal(torch.tensor([2.0, 0.0, 5.0, 1.0, 9.0]), (0, 1, 2))
    bench.models.write("v0", server.step(bench.view("server"), everything))
    before = {name: bench.models.read(name).clone() for name in bench.models.names()}
    # the vector says nothing of layer y: neither its model nor its moments may take a number from there
    partly = Proposal(torch.tensor([8.0, 8.0, math.nan, math.nan, 8.0]), (0, 2))
    after = server.step(bench.view("server"), partly)
    assert torch.equal(after[2:4], before["v0"][2:4])
    assert not torch.equal(after[:2], before["v0"][:2])
    assert not torch.equal(after[4:], before["v0"][4:])
    for name in bench.models.names():
        if name != "v0":
            moment = bench.models.read(name)
            assert torch.equal(moment[2:4], before[name][2:4])
            assert not torch.equal(moment[:2], before[name][:2])
    expected = {"Replace": 0, "Momentum": 1}.get(type(server).__name__, 2)
    assert len(bench.models.names()) == 1 + expected


def test_a_step_leaves_the_current_model_alone() -> None:
    bench = Bench(layout(w=1), [1.0])
    Momentum().step(bench.view(), Proposal(torch.tensor([5.0]), (0,)))
    assert bench.models.read("v0").tolist() == [1.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Replace(0), "Replace: rate should be more than 0, got 0"),
        (lambda: Momentum(beta=1), "Momentum: beta should be at least 0 and below 1, got 1"),
        (lambda: Adam(rate=-1), "Adam: rate should be more than 0, got -1"),
        (lambda: Adam(beta2=1.0), "Adam: beta2 should be at least 0 and below 1, got 1.0"),
        (lambda: Yogi(beta2=-0.1), "Yogi: beta2 should be at least 0 and below 1, got -0.1"),
        (lambda: Yogi(tau=0), "Yogi: tau should be more than 0, got 0"),
        (lambda: Adagrad(beta1=1), "Adagrad: beta1 should be at least 0 and below 1, got 1"),
        (lambda: Adagrad(initial=-1), "Adagrad: initial should be at least 0, got -1"),
    ],
)
def test_servers_refuse_nonsense(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
