"""FedMA: a straight-line program, permuted copies, sweeps layer by layer, and the room for new neurons."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

import archipel as ap
from archipel import Layout, MatchedMean, NormClipped, PrivateLayers, Replace, Stream, models
from archipel.core.binding import Binding
from archipel.core.parts.neurons import hidden_neurons
from archipel.core.randomness import generator
from archipel.core.records import Record
from archipel.core.types import Command, Metrics, Train
from archipel.simulation.simulate import prepare
from archipel.simulation.simulator import Simulator
from tests.algorithms.straight import SEED, Net, clients, islands, run
from tests.core.parts.by_hand import Bench
from tests.watching import Watching


class Watch(Watching):
    """What learners were given, and every version."""

    def __init__(self) -> None:
        self.orders: list[Train] = []
        self.versions: dict[int, Tensor] = {}

    def after(self, simulator: Simulator, commands: Sequence[Command]) -> Iterable[Record]:
        self.orders.extend(command for command in commands if isinstance(command, Train))
        state = simulator.controller.state
        self.versions[state.version] = simulator.controller.models.read(state.model.name).clone()
        return ()


WIDTHS = (64, 24, 18, 10)
BATCH, RATE, MOMENTUM, EPOCHS, ROUNDS = 16, 0.1, 0.9, 2, 7
SIGMA, SIGMA0, GAMMA, ITERATIONS, GROWTH = 0.8, 1.1, 12.0, 3, 1.5
LOCAL: dict[str, Any] = {"epochs": EPOCHS, "batch": BATCH, "rate": RATE, "momentum": MOMENTUM}


# ------------------------------------------------------------------------------- the paper as a straight-line program

Weights = list[np.ndarray]
"""Of each layer, a row for each neuron: its weights from all neurons before it, then its bias."""


def taken_apart(net: Net, w: Tensor) -> Weights:
    found = []
    for (n, m), layer in zip(net.shapes, net.layers, strict=True):
        numbers = w[layer].numpy().astype(np.float64)
        found.append(np.hstack([numbers[: n * m].reshape(n, m), numbers[n * m :, None]]))
    return found


def put_together(weights: Weights) -> Tensor:
    return torch.cat([torch.tensor(np.concatenate([w[:, :-1].ravel(), w[:, -1]])) for w in weights]).float()


def bbp_map(locals_: list[np.ndarray], width: int, draws: np.random.Generator) -> list[list[int]]:
    """The shared neuron of each local one, by the cost of section 2.2."""
    number = len(locals_)
    order = sorted(range(number), key=lambda j: -len(locals_[j]))
    assigned: dict[int, list[int]] = {order[0]: list(range(len(locals_[order[0]])))}

    def match(j: int) -> None:
        global_ = sorted({i for a in assigned.values() for i in a})
        assert global_ == list(range(len(global_)))
        members = [[locals_[k][a.index(i)] for k, a in sorted(assigned.items()) if i in a] for i in global_]
        s, s0 = 1 / SIGMA**2, 1 / SIGMA0**2
        added = min(len(locals_[j]), width - len(global_))
        gain = np.zeros((len(locals_[j]), len(global_) + added))
        for line, w in enumerate(locals_[j]):
            for i, those in enumerate(members):
                m, total = len(those), np.sum(those, axis=0)
                gain[line, i] = (
                    np.sum((s * w + s * total) ** 2) / (s0 + s * m + s)
                    - np.sum((s * total) ** 2) / (s0 + s * m)
                    + 2 * np.log(m / (number - m))
                )
            for k in range(1, added + 1):
                gain[line, len(global_) + k - 1] = np.sum((s * w) ** 2) / (s0 + s) - 2 * np.log(k / (GAMMA / number))
        columns = linear_sum_assignment(-gain)[1]
        fresh = iter(range(len(global_), width))
        assigned[j] = [int(c) if c < len(global_) else next(fresh) for c in columns]

    def renumber() -> None:
        seen = list(dict.fromkeys(i for j in order for i in assigned.get(j, [])))
        for j, a in assigned.items():
            assigned[j] = [seen.index(i) for i in a]

    for j in order[1:]:
        match(j)
    for _ in range(ITERATIONS):
        old = {j: list(a) for j, a in assigned.items()}
        for j in draws.permutation(number).tolist():
            del assigned[j]
            renumber()
            match(j)
        renumber()
        if assigned == old:
            break
    return [assigned[j] for j in range(number)]


@dataclass
class Outcome:
    versions: list[Tensor]
    owned: list[dict[int, list[int]]]
    """Of every learner, the shared neurons of each layer that it was matched with."""
    sizes: set[int] = field(default_factory=set)
    """How many neurons layers had."""


LAST = len(WIDTHS) - 2


def begun(net: Net) -> Weights:
    weights = taken_apart(net, net.initial())
    for n in range(LAST):
        weights[n][int(WIDTHS[n + 1] / GROWTH) :] = 0
        weights[n + 1][:, int(WIDTHS[n + 1] / GROWTH) : WIDTHS[n + 1]] = 0
    return weights


def settle(done: Outcome, shared: Weights, local: list[Weights], n: int, t: int) -> None:
    """Match layer n, average it, and put the inputs of layer n + 1 in the same order."""
    used = [[i for i in range(WIDTHS[n + 1]) if w[n][i].any()] for w in local]
    rows = [w[n][u] for w, u in zip(local, used, strict=True)]
    pi = bbp_map(rows, WIDTHS[n + 1], generator(SEED, "merge", "match", t, n))
    done.sizes.add(len({i for places in pi for i in places}))
    for j, w in enumerate(local):
        new, following = np.zeros_like(w[n]), np.zeros_like(w[n + 1])
        new[pi[j]] = w[n][used[j]]
        following[:, pi[j]] = w[n + 1][:, used[j]]  # W_j,n+1 <- Pi_j W_j,n+1
        following[:, -1] = w[n + 1][:, -1]
        w[n], w[n + 1] = new, following
        if n == t % (LAST + 1):
            done.owned[j][n] = sorted(pi[j])
    for i in range(WIDTHS[n + 1]):
        those = [w[n][i] for w, places in zip(local, pi, strict=True) if i in places]
        shared[n][i] = sum((1 / len(those)) * row for row in those) if those else 0.0


def own_part(shared: Weights, owned: dict[int, list[int]]) -> Weights:
    """The shared network, cut to a learner's own neurons."""
    w = [layer.copy() for layer in shared]
    for n in range(LAST):
        others = [i for i in range(WIDTHS[n + 1]) if i not in owned[n]]
        w[n][others] = 0
        w[n + 1][:, others] = 0
    return w


def fedma() -> Outcome:
    net = Net(*WIDTHS)
    learners = [learner for _, learner in sorted(clients(net, islands()).items())]
    counts = [np.bincount(learner.y.numpy(), minlength=10) for learner in learners]
    mine = [begun(net)] * len(learners)
    done = Outcome([put_together(mine[0])], [{} for _ in learners])
    for t in range(ROUNDS):
        phase = t % (LAST + 1)
        part = net.span(range(phase, LAST + 1))
        settings: dict[str, Any] = {"batch": BATCH, "rate": RATE, "momentum": MOMENTUM, "trains": part}
        local = [
            taken_apart(net, learner.train(put_together(w), EPOCHS, **settings))
            for learner, w in zip(learners, mine, strict=True)
        ]
        shared = taken_apart(net, done.versions[-1])
        for n in range(phase, LAST):
            settle(done, shared, local, n, t)
        for c in range(10):
            p = [float(count[c]) for count in counts]
            shared[LAST][c] = sum((p_j / sum(p)) * w[LAST][c] for p_j, w in zip(p, local, strict=True))
        done.versions.append(put_together(shared))
        shared = taken_apart(net, done.versions[-1])
        mine = [[*shared[: phase + 1], *w[phase + 1 :]] for w in local]
        if phase == LAST:
            mine = [own_part(shared, owned) for owned in done.owned]
    return done


@pytest.mark.slow
def test_fedma_is_the_straight_line_program_to_the_bit() -> None:
    expected = fedma()
    algorithm = ap.fedma(SIGMA, SIGMA0, GAMMA, ITERATIONS, GROWTH, **LOCAL)
    watch = Watch()
    run(algorithm, islands(), WIDTHS, watch, ending=ap.Ending(rounds=ROUNDS))
    assert len(watch.versions) == len(expected.versions) == ROUNDS + 1
    for version, theirs in enumerate(expected.versions):
        assert torch.equal(watch.versions[version], theirs)
    assert len(expected.sizes) > 1, "new neurons came"


# ------------------------------------------------------------------------------------------------- permuted copies

DIGITS = ap.data.digits()
IMAGES, LABELS = DIGITS.x[:200], DIGITS.y[:200]
TEXTS = torch.randint(0, 12, (200, 7), generator=torch.Generator().manual_seed(1))

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, Tensor]] = {
    "linear": (lambda: models.mlp(64, 10, (16, 12)), IMAGES, LABELS),
    "convolutions": (lambda: models.small_cnn(1, 8, 10), IMAGES.view(-1, 1, 8, 8), LABELS),
    "two LSTMs": (lambda: models.shakespeare_lstm(12, 6, 9, layers=2), TEXTS, TEXTS[:, 0]),
}
every = pytest.mark.parametrize("name", NETWORKS)


def trained(name: str, growth: float) -> tuple[Layout, Tensor]:
    """A network after some steps of training."""
    make, x, y = NETWORKS[name]
    torch.manual_seed(5)
    module = make()
    layout = Layout.of(module, x[:2])
    vector = MatchedMean(growth=growth).initial(layout, layout.vector(module))
    Binding(layout, module).bind(vector)
    steps = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for _ in range(30):
        steps.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        steps.step()
    Binding(layout, module).collect(vector)
    return layout, vector.detach()


def shuffled(layout: Layout, vector: Tensor, seed: int) -> Tensor:
    """The same network with its neurons in another order, the empty ones among them."""
    for neurons in hidden_neurons("here", layout):
        order = torch.randperm(neurons.width, generator=torch.Generator().manual_seed(seed)).tolist()
        vector = neurons.moved(vector, range(neurons.width), order)
    return vector


def used_first(layout: Layout, vector: Tensor) -> Tensor:
    """The same network with its empty neurons behind the others."""
    for neurons in hidden_neurons("here", layout):
        used = neurons.used(vector)
        vector = neurons.moved(vector, used, range(len(used)))
    return vector


def merged(layout: Layout, merge: MatchedMean, *vectors: Tensor, version: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """What learners a, b … come to, and what they start from."""
    bench = Bench(layout, vectors[0].tolist())
    bench.state.version = version
    counts = Metrics(classes=(1,) * len(layout.tensors(vectors[0])[layout.layers[-1].entries[0].name]))
    updates = [
        bench.update(learner, vector.tolist(), metrics=counts)
        for learner, vector in zip("abcdef", vectors, strict=False)
    ]
    proposal = merge.merge(bench.view("merge"), updates, [bench.spread(1.0)] * len(updates))
    return proposal.vector, dict(proposal.starts)


@pytest.mark.slow
@every
@pytest.mark.parametrize("growth", [1.0, 1.5])
def test_a_permuted_copy_of_a_trained_network_is_matched_back_exactly(name: str, growth: float) -> None:
    layout, vector = trained(name, growth)
    vector = used_first(layout, vector)
    copy = shuffled(layout, vector, 1)
    assert not torch.equal(copy, vector)
    found, starts = merged(layout, MatchedMean(gamma=1.0, growth=growth), vector, copy)
    assert torch.equal(found, vector)
    assert torch.equal(starts["a"], vector)
    assert torch.equal(starts["b"], vector), "its own layers stand in the order of the shared neurons"


@pytest.mark.slow
@every
def test_two_permuted_and_noisy_copies_give_the_mean_of_the_unpermuted(name: str) -> None:
    layout, vector = trained(name, 1.0)
    noisy = [
        vector + 0.002 * torch.randn(layout.size, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)
    ]
    found, _ = merged(layout, MatchedMean(gamma=1.0, growth=1.0), noisy[0], shuffled(layout, noisy[1], 3))
    assert torch.allclose(found, (noisy[0] + noisy[1]) / 2, atol=1e-7)
    plain = (noisy[0] + shuffled(layout, noisy[1], 3)) / 2
    assert not torch.allclose(found, plain, atol=1e-2), "the plain mean is another network"


def test_a_neuron_that_one_learner_has_is_not_shrunk_and_is_read_at_half_weight() -> None:
    """Two learners whose neurons are unlike: in 10 and 20, out 1 and 3."""
    layout = Layout.of(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)), torch.zeros(1, 2))
    # weights in (two neurons), their biases, weights out, bias of the head
    a = torch.tensor([10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 4.0])
    b = torch.tensor([0.0, 20.0, 0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 6.0])
    found, _ = merged(layout, MatchedMean(gamma=1.0, growth=2.0), a, b)
    assert found.tolist() == [10.0, 0.0, 0.0, 20.0, 0.0, 0.0, 0.5, 1.5, 5.0]


def test_the_last_layer_is_averaged_by_class_counts() -> None:
    layout = Layout.of(nn.Linear(1, 3), torch.zeros(1, 1))
    bench = Bench(layout, [0.0] * 6)
    updates = [
        bench.update("a", [1.0, 2.0, 3.0, 10.0, 20.0, 30.0], metrics=Metrics(classes=(3, 4, 0))),
        bench.update("b", [5.0, 6.0, 7.0, 50.0, 60.0, 70.0], metrics=Metrics(classes=(1, 0, 0))),
    ]
    weights = [bench.spread(1.0)] * 2
    found = MatchedMean().merge(bench.view("merge"), updates, weights).vector
    # class 0 three to one, class 1 of a alone, class 2 of nobody: equally
    assert found.tolist() == [2.0, 2.0, 5.0, 20.0, 20.0, 50.0]
    silent = [replace(update, metrics=Metrics()) for update in updates]
    assert MatchedMean().merge(bench.view("merge"), silent, weights).vector.tolist() == [
        3.0,
        4.0,
        5.0,
        30.0,
        40.0,
        50.0,
    ]


def test_an_update_that_weighs_nothing_is_left_out() -> None:
    layout = Layout.of(nn.Linear(1, 2), torch.zeros(1, 1))
    bench = Bench(layout, [0.0] * 4)
    updates = [bench.update("a", [1.0] * 4), bench.update("b", [5.0] * 4)]
    proposal = MatchedMean().merge(bench.view("merge"), updates, [bench.spread(0.0), bench.spread(2.0)])
    assert proposal.vector.tolist() == [5.0] * 4
    assert list(proposal.starts) == ["b"]
    assert MatchedMean().merge(bench.view("merge"), updates, [bench.spread(0.0)] * 2).layers == ()


# ------------------------------------------------------------------------------------------------------------ sweeps


def two_islands() -> ap.data.Islands:
    """Two learners that have no class in common."""
    return ap.data.digits().split(2, classes="disjoint(5)", test=0.5, seed=SEED)


@pytest.mark.slow
def test_a_sweep_settles_one_layer_a_round() -> None:
    watch = Watch()
    finished, _ = run(ap.fedma(gamma=20.0, **LOCAL), two_islands(), WIDTHS, watch, ending=ap.Ending(rounds=7))
    layout, orders, versions = finished.layout, watch.orders, watch.versions
    rounds = [order.plan for order in orders[::2]]
    sweep = [("fc1", "fc2", "head"), ("fc2", "head"), ("head",)]
    assert [plan.trains for plan in rounds[:6]] == [plan.uploads for plan in rounds[:6]] == sweep * 2
    assert {plan.reports for plan in rounds} == {("class counts",)}
    (fc1,), (fc2,) = layout.slices((0,)), layout.slices((1,))
    assert torch.equal(versions[1][fc1], versions[3][fc1])
    assert not torch.equal(versions[1][fc2], versions[2][fc2])
    assert torch.equal(versions[2][fc2], versions[3][fc2])
    assert not torch.equal(versions[3][fc1], versions[4][fc1]), "the next sweep begins"
    assert orders[0].model.name == "v0"
    assert orders[2].model.name == "v1.0"
    assert orders[2].model.manifest[0] == "v1", "the settled layer is everybody's"
    groups = hidden_neurons("here", layout)
    begun = [len(neurons.used(versions[0])) for neurons in groups]
    grown = [len(neurons.used(versions[3])) for neurons in groups]
    assert begun == [16, 12]
    assert all(more > few for more, few in zip(grown, begun, strict=True))


def test_a_learner_begins_the_next_sweep_with_as_many_neurons_as_it_had() -> None:
    simulator = prepare(
        ap.fedma(gamma=20.0, **LOCAL), two_islands(), model=partial(models.mlp, 64, 10, (24, 18)), seed=SEED
    )
    simulator.begin()
    while simulator.controller.state.version < 3:
        simulator.run(events=1)
    state, store = simulator.controller.state, simulator.controller.models
    shared = store.read(state.model.name)
    for model in state.starts.values():
        start = store.read(model.name)
        for neurons, begun in zip(hidden_neurons("here", simulator.controller.layout), (16, 12), strict=True):
            own = neurons.used(start)
            assert len(own) == begun < len(neurons.used(shared))
            assert torch.equal(neurons.rows(start)[own].count_nonzero(), neurons.rows(start).count_nonzero())
    simulator.run(events=30)
    assert not [name for name in store.names() if name.startswith("v3.")], "starts are dropped when they are used up"


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["plain", "workers", "stacked", "native"])
def test_empty_neurons_stay_empty_under_every_executor(execution: Any) -> None:
    if execution == "native":
        from tests.ways import NATIVE

        if not NATIVE:
            pytest.skip("no C compiler was there when Archipel was installed")
    settings: dict[str, Any] = {
        "model": partial(models.mlp, 64, 10, (24, 18)),
        "seed": SEED,
        "ending": ap.Ending(rounds=4),
    }
    data = ap.data.digits().split(1, test=0.5, seed=SEED)  # alone, so that nobody brings a new neuron
    algorithm = ap.fedma(epochs=1, batch=BATCH, rate=0.01)
    found = ap.simulate(algorithm, data, execution=execution, **settings)
    plain = ap.simulate(algorithm, data, execution="plain", **settings)
    assert found.execution == execution
    for neurons, begun in zip(hidden_neurons("here", found.layout), (16, 12), strict=True):
        own = neurons.used(found.model)
        assert own == list(range(begun))
        assert torch.equal(neurons.only(found.model, own), found.model)
    assert torch.allclose(found.model, plain.model, atol=1e-4)


@pytest.mark.slow
def test_learners_that_miss_a_round_go_on_from_the_version() -> None:
    fleet = ap.Fleet(ap.Group("shaky", 5, drop_rate=0.3))
    watch = Watch()
    finished, _ = run(ap.fedma(**LOCAL), islands(), WIDTHS, watch, ending=ap.Ending(rounds=8), fleet=fleet)
    names = {order.model.name for order in watch.orders}
    assert {"v1", "v2"} & names
    assert {name for name in names if name.startswith("v1.")}
    assert finished.model.isfinite().all()


@pytest.mark.slow
def test_clipping_measures_from_what_a_learner_started_from() -> None:
    """With a limit that nobody reaches, the clipped method is the method."""
    settings: dict[str, Any] = {
        "model": partial(models.mlp, 64, 10, (24, 18)),
        "seed": SEED,
        "ending": ap.Ending(rounds=4),
    }
    plain = ap.fedma(iterations=0, **LOCAL)  # a part inside another draws other numbers
    clipped = replace(plain, merge=NormClipped(plain.merge, 1e6))
    data = islands()
    assert torch.equal(ap.simulate(plain, data, **settings).model, ap.simulate(clipped, data, **settings).model)


# -------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"protocol": Stream()}, r"MatchedMean needs all learners at the same layer; use Rounds\(\), not Stream"),
        ({"server": Replace(0.5)}, r"so Replace\(rate=0.5\) cannot compare a model with the previous one"),
        ({"server": ap.Adam()}, "cannot compare a model with the previous one"),
        ({"planners": ()}, r"fixes one layer a round; add LayerByLayer\(\)"),
        (
            {"planners": (ap.LayerByLayer(), PrivateLayers("head"))},
            "LayerByLayer and PrivateLayers.* both choose which layers train and are sent",
        ),
        ({"plan": ap.Plan(private=("head",))}, "LayerByLayer and the plan both choose"),
        (
            {"merge": ap.Mean()},
            r"LayerByLayer needs a merge that fixes layers in turn; use MatchedMean\(\), not Mean",
        ),
    ],
)
def test_a_mixture_that_cannot_be_matched_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(ap.fedma(), **change)


def test_a_mixture_that_can_be_matched() -> None:
    assert replace(ap.fedma(), planners=(ap.LayerByLayer(), ap.Decay(0.9), ap.Proximal(0.1)))
