"""Neurons of hidden layers: what belongs to them, how they change places, and what has none that could be matched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel import Layout, MatchedMean, models
from archipel.core.binding import Binding
from archipel.core.parts.neurons import hidden_neurons, last_rows

IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(1))
TEXTS = torch.randint(0, 12, (3, 7), generator=torch.Generator().manual_seed(1))

NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear": (lambda: models.mlp(64, 10, (9, 6)), IMAGES),
    "convolutions and a flatten": (lambda: models.small_cnn(1, 8, 10), IMAGES),
    "convolutions and tanh": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 5, 3), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(45, 7), nn.Tanh(), nn.Linear(7, 4)
        ),
        IMAGES,
    ),
    "one dimension": (lambda: models.packet_cnn(4, 64), IMAGES.flatten(1)),
    "an LSTM": (lambda: models.shakespeare_lstm(12, 5, 6, layers=1), TEXTS),
    "two LSTMs": (lambda: models.shakespeare_lstm(12, 5, 6, layers=2), TEXTS),
}
every = pytest.mark.parametrize("name", NETWORKS)


def made(name: str) -> tuple[nn.Module, Layout, Tensor]:
    torch.manual_seed(3)
    make, examples = NETWORKS[name]
    module = make()
    return module, Layout.of(module, examples), examples


def outputs(module: nn.Module, layout: Layout, vector: Tensor, examples: Tensor) -> Tensor:
    Binding(layout, module).bind(vector.clone())
    with torch.no_grad():
        found: Tensor = module(examples)
    return found


def test_the_neurons_of_a_small_network_by_hand() -> None:
    module = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
    (neurons,) = hidden_neurons("here", Layout.of(module, torch.zeros(1, 1)))
    # weights in 1 and 2, biases 3 and 4, weights out 5 and 6, the last bias 7
    vector = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    assert neurons.rows(vector).tolist() == [[1.0, 3.0], [2.0, 4.0]]
    assert neurons.moved(vector, [0, 1], [1, 0]).tolist() == [2.0, 1.0, 4.0, 3.0, 6.0, 5.0, 7.0]
    assert neurons.moved(vector, [1], [0]).tolist() == [2.0, 0.0, 4.0, 0.0, 6.0, 0.0, 7.0]
    assert neurons.only(vector, [1]).tolist() == [0.0, 2.0, 0.0, 4.0, 0.0, 6.0, 7.0]
    assert neurons.used(neurons.only(vector, [1])) == [1]
    assert vector.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "it was copied"


@every
def test_neurons_that_change_places_change_nothing(name: str) -> None:
    module, layout, examples = made(name)
    vector = layout.vector(module)
    expected = outputs(module, layout, vector, examples)
    groups = hidden_neurons("here", layout)
    assert groups
    for neurons in groups:
        order = torch.randperm(neurons.width, generator=torch.Generator().manual_seed(2)).tolist()
        moved = neurons.moved(vector, range(neurons.width), order)
        assert not torch.equal(moved, vector)
        assert torch.allclose(outputs(module, layout, moved, examples), expected, atol=1e-6)
        assert torch.equal(neurons.moved(moved, order, range(neurons.width)), vector), "and back"


@every
def test_every_number_comes_into_one_neuron(name: str) -> None:
    _, layout, _ = made(name)
    times = torch.zeros(layout.size)
    for axis in (*(a for neurons in hidden_neurons("here", layout) for a in neurons.incoming), *last_rows(layout)):
        axis.of(times).add_(1)
    assert times.eq(1).all()


@every
@pytest.mark.parametrize("optimiser", ["SGD", "Adam"])
def test_a_neuron_without_weights_stays_without(name: str, optimiser: str) -> None:
    module, layout, examples = made(name)
    vector = MatchedMean(growth=2.0).initial(layout, layout.vector(module))
    groups = hidden_neurons("here", layout)
    used = [neurons.used(vector) for neurons in groups]
    assert used == [list(range(neurons.width // 2)) for neurons in groups]
    before = vector.clone()
    Binding(layout, module).bind(vector)
    steps = getattr(torch.optim, optimiser)(module.parameters(), lr=0.1, weight_decay=0.01)
    for _ in range(5):
        steps.zero_grad()
        nn.functional.cross_entropy(module(examples), torch.tensor([0, 1, 2])).backward()
        steps.step()
    Binding(layout, module).collect(vector)
    assert not torch.equal(vector, before)
    for neurons, own in zip(groups, used, strict=True):
        assert neurons.used(vector) == own
        assert torch.equal(neurons.only(vector, own), vector)


# ----------------------------------------------------------------------------------------------- what is refused


class Around(nn.Module):
    """A residual connection that no shape betrays."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(64, 8), nn.Linear(8, 8), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1)).relu()
        out: Tensor = self.head(hidden + self.second(hidden).relu())
        return out


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 5), nn.Linear(5, 12)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(x).mean(dim=1))
        return out


class TimeMajor(nn.Module):
    """A head that reads all steps of an LSTM, step by step: a neuron's weights are not in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(12, 5), nn.LSTM(5, 6, batch_first=True), nn.Linear(42, 12)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embedding(x))[0].flatten(1))
        return out


class Bidirectional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 5), nn.Linear(12, 12)
        self.lstm = nn.LSTM(5, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(self.embedding(x))[0][:, -1])
        return out


def row(*layers: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("make", "examples", "message"),
    [
        (models.small_resnet, torch.randn(2, 3, 8, 8), "is a BatchNorm2d, whose neurons cannot be matched"),
        (
            row(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)),
            IMAGES,
            "layer '1' is a GroupNorm, whose neurons cannot be matched; it matches Linear, Conv1d",
        ),
        (
            row(
                nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)
            ),
            IMAGES,
            "layer '2' reads 1 inputs, and '0' before it puts out 8. Layers must follow one another in a row",
        ),
        (row(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 8), nn.PReLU()), IMAGES, "is a PReLU"),
        (
            row(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 10, 6), nn.Flatten()),
            IMAGES,
            "must be a Linear layer of class scores",
        ),
        (Tied, TEXTS, "share parameters with other layers"),
        (Bidirectional, TEXTS, "bidirectional or projects its output cannot be matched"),
    ],
)
def test_a_network_that_cannot_be_matched_is_refused(
    make: Callable[[], nn.Module], examples: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ap.fedma().check(Layout.of(make(), examples))


@pytest.mark.parametrize(
    ("make", "examples", "message"),
    [
        (Around, IMAGES, "permuting the neurons of 'first' changes the network's outputs, so they cannot be matched"),
        (TimeMajor, TEXTS, "permuting the neurons of 'lstm'"),
        (
            row(nn.Conv2d(1, 12, 3), nn.ReLU(), nn.LocalResponseNorm(3, alpha=5.0), nn.Flatten(), nn.Linear(432, 10)),
            IMAGES,
            "normalisation across channels",
        ),
        (
            row(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 10)),
            IMAGES,
            "a neuron of '1' without weights does not stay empty in training",
        ),
    ],
)
def test_a_network_that_only_a_trial_shows_to_be_unfit_is_refused(
    make: Callable[[], nn.Module], examples: Tensor, message: str
) -> None:
    module = make()
    layout = Layout.of(module, examples)
    ap.fedma().check(layout)
    with pytest.raises(ValueError, match=message):
        ap.fedma().check_network(module, layout, examples)


def test_without_room_to_grow_any_activation_is_accepted() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 10))
    ap.fedma(growth=1.0).check_network(module, Layout.of(module, IMAGES), IMAGES)


@every
def test_a_network_that_can_be_matched_is_accepted(name: str) -> None:
    module, layout, examples = made(name)
    before = layout.vector(module)
    ap.fedma().check(layout)
    ap.fedma().check_network(module, layout, examples)
    assert torch.equal(layout.vector(module), before), "the trial leaves no trace"


@pytest.mark.slow
def test_a_simulation_tries_the_network_before_it_begins() -> None:
    data = ap.data.digits().split(learners=2)
    with pytest.raises(ValueError, match="MatchedMean: permuting the neurons"):
        ap.simulate(ap.fedma(), data, model=Around)
