"""The networks of the zoo: what people bring, each with its data, its loss and its local training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

LEARNERS, EXAMPLES, BATCH, CLASSES = 20, 200, 20, 10
FEATURES, WORDS, LENGTH, SIDE = 64, 100, 20, 12

Goal = Literal["linear", "small", "large"]
GOALS: dict[Goal, float] = {"linear": 5.0, "small": 2.0, "large": 1.6}
"""Times a bare loop, by the kind of network: linear layers with anything between them, under 2 million multiplications
an example; other networks as small; large or recurrent ones."""
NEVER_BELOW = 1.3


@dataclass(frozen=True)
class Kind:
    """A network and how it is trained."""

    make: Callable[[], nn.Module]
    goal: Goal = "linear"
    data: Literal["features", "words", "images", "numbers"] = "features"
    loss: Callable[[Tensor, Tensor], Tensor] = nn.functional.cross_entropy
    training: dict[str, Any] = field(default_factory=dict)
    """Of `fedavg(...)`: rate, momentum, optimiser, options."""

    def examples(self, count: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets, the same for the same count."""
        drawn = torch.Generator().manual_seed(7)
        labels = torch.randint(0, CLASSES, (count,), generator=drawn)
        match self.data:
            case "words":
                return torch.randint(0, WORDS, (count, LENGTH), generator=drawn), labels
            case "images":
                return torch.randn(count, 3, SIDE, SIDE, generator=drawn), labels
            case "numbers":
                x = torch.randn(count, FEATURES, generator=drawn)
                return x, x[:, :1] * 2 - x[:, 1:2]
        return torch.randn(count, FEATURES, generator=drawn), labels


def mlp(*between: Callable[[], nn.Module], outputs: int = CLASSES) -> nn.Module:
    """Return a network of three linear layers with these layers after the first two."""
    parts: list[nn.Module] = []
    for width in (FEATURES, 64):
        parts += [nn.Linear(width, 64), *(make() for make in between)]
    return nn.Sequential(*parts, nn.Linear(64, outputs))


class Bag(nn.Module):
    """The mean of embedded words, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.hidden = nn.Linear(32, 64)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.relu(self.hidden(self.words(words).mean(dim=1))))
        return scores


class Recurrent(nn.Module):
    """An LSTM over embedded words, or a GRU."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.memory = kind(16, 64, batch_first=True)
        self.head = nn.Linear(64, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.head(self.memory(self.words(words))[0][:, -1])
        return scores


class Transformer(nn.Module):
    """Layers of attention over embedded words."""

    def __init__(self, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True) for _ in range(layers))
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layers(self.words(words) + self.places).mean(dim=1))
        return scores


class Block(nn.Module):
    """Two convolutions with batch norm, and what came in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(self.first(x)))


def residual(channels: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()),
        *(Block(channels), nn.MaxPool2d(2), Block(channels)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)),
    )


def strided(channels: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.GroupNorm(4, channels), nn.ReLU()),
        *(nn.Conv2d(channels, channels, 3, stride=2, padding=1), nn.GroupNorm(4, channels), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(channels * (SIDE // 4) ** 2, CLASSES)),
    )


def dropped(channels: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, channels, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.1)),
        *(nn.Conv2d(channels, channels, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5)),
        nn.Linear(channels * (SIDE // 4) ** 2, CLASSES),
    )


def smoothed(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return a loss of its own."""
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)


ADAM = {"optimiser": "Adam", "rate": 1e-3}

ZOO: dict[str, Kind] = {
    "MLP, ReLU": Kind(lambda: mlp(nn.ReLU)),
    "MLP, tanh": Kind(lambda: mlp(nn.Tanh)),
    "MLP, GELU": Kind(lambda: mlp(nn.GELU)),
    "MLP, layer norm": Kind(lambda: mlp(lambda: nn.LayerNorm(64), nn.ReLU)),
    "MLP, group norm": Kind(lambda: mlp(lambda: nn.GroupNorm(4, 64), nn.ReLU)),
    "MLP, batch norm": Kind(lambda: mlp(lambda: nn.BatchNorm1d(64), nn.ReLU)),
    "MLP, dropout": Kind(lambda: mlp(nn.ReLU, nn.Dropout)),
    "MLP, batch norm, dropout, AdamW": Kind(
        lambda: mlp(lambda: nn.BatchNorm1d(64), nn.ReLU, nn.Dropout),
        training={"optimiser": "AdamW", "rate": 1e-3, "options": {"weight_decay": 0.05}},
    ),
    "MLP, momentum, Nesterov, weight decay": Kind(
        lambda: mlp(nn.ReLU), training={"momentum": 0.9, "options": {"nesterov": True, "weight_decay": 1e-3}}
    ),
    "MLP, momentum, dampening": Kind(
        lambda: mlp(nn.ReLU), training={"momentum": 0.9, "options": {"dampening": 0.5, "weight_decay": 1e-3}}
    ),
    "MLP, Adam": Kind(lambda: mlp(nn.ReLU), training=ADAM),
    "MLP, AdamW": Kind(
        lambda: mlp(nn.ReLU), training={"optimiser": "AdamW", "rate": 1e-3, "options": {"amsgrad": True}}
    ),
    "MLP, RMSprop": Kind(lambda: mlp(nn.ReLU), training={"optimiser": "RMSprop", "rate": 1e-3, "momentum": 0.5}),
    "MLP, a loss of its own": Kind(lambda: mlp(nn.ReLU), loss=smoothed),
    "regression": Kind(lambda: mlp(nn.ReLU, outputs=1), data="numbers", loss=nn.functional.mse_loss),
    "regression, Huber, Adam": Kind(
        lambda: mlp(nn.ReLU, outputs=1), data="numbers", loss=nn.functional.huber_loss, training=ADAM
    ),
    "embedding": Kind(Bag, data="words"),
    "embedding, Adam": Kind(Bag, data="words", training=ADAM),
    "small transformer": Kind(lambda: Transformer(32, 4, 2, 0.0), "small", "words", training=ADAM),
    "small transformer, dropout": Kind(lambda: Transformer(32, 4, 2, 0.1), "small", "words", training=ADAM),
    "small residual CNN, batch norm": Kind(lambda: residual(8), "small", "images"),
    "small strided CNN, group norm": Kind(lambda: strided(16), "small", "images"),
    "small CNN, dropout": Kind(lambda: dropped(8), "small", "images"),
    "LSTM": Kind(lambda: Recurrent(nn.LSTM), "large", "words"),
    "GRU, Adam": Kind(lambda: Recurrent(nn.GRU), "large", "words", training=ADAM),
    "transformer": Kind(lambda: Transformer(128, 4, 3, 0.1), "large", "words", training=ADAM),
    "residual CNN, batch norm": Kind(lambda: residual(32), "large", "images"),
    "CNN, dropout": Kind(lambda: dropped(48), "large", "images"),
}
