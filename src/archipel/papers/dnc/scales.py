"""What scales below the paper's change in the studies."""

from __future__ import annotations

from typing import Any

FEDAVG = {"name": "fedavg", "label": "FedAvg", "equally": True, "more_planners": ["Decay(0.9)"]}

SGD = {"optimiser": "SGD", "rate": 0.01, "momentum": 0.9, "options": {}}
"""What FedMA's published code trains FedProx and FedMA with."""
FEDPROX = {"name": "fedprox", "label": "FedProx", "mu": 0.001, "weighting": "Equally()", **SGD}
FEDMA = {"name": "fedma", "label": "FedMA", **SGD}
BY_CLASS = {"merge": "MeanByClass()"}
"""The last layer averaged by class counts, as FedMA does it."""


def divided(label: str, **settings: object) -> dict[str, object]:
    return {"name": "divide_and_conquer", "label": label, **settings}


def images(each: int, tested: int) -> dict[str, object]:
    """So many training and test images of each class."""
    return {"name": "archipel.papers.subset:first_of_each", "of": "cifar10", "train": each, "test": tested}


SMOKE: dict[str, Any] = {
    "model": "network.py:half_side_vgg9",
    "data.source": images(4, 20),
    "training.epochs": 1,
    "training.batch": 10,
    "ending.rounds": 7,
}
"""Of the colour-skewed tables."""
SMALL: dict[str, Any] = {
    "model": "network.py:half_side_vgg9",
    "data.source": images(200, 100),
    "training.epochs": 10,
    "training.batch": 32,
}
"""Of the colour-skewed tables; fine-tuning is to take 2 epochs, a fifth, as in the paper."""
