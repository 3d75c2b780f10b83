"""What is run: methods, splits and fleets, and one run of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import archipel as ap
from archipel.data import Islands, Source

LEARNERS, BATCH, EPOCHS = 10, 16, 2
SEEDS = (1, 2, 3)

Make = Callable[[float], ap.Algorithm]


def _plain(make: Any, **settings: Any) -> Make:
    def made(rate: float) -> ap.Algorithm:
        found: ap.Algorithm = make(rate=rate, epochs=EPOCHS, batch=BATCH, **settings)
        return found

    return made


HALF: dict[str, Any] = {"fraction": 0.5}
METHODS: dict[str, Make] = {
    "fedavg": _plain(ap.fedavg, **HALF),
    "fedprox": _plain(ap.fedprox, **HALF),
    "fedavgm": _plain(ap.fedavgm, beta=0.5, **HALF),
    "fednova": _plain(ap.fednova, **HALF),
    "qfedavg": _plain(ap.qfedavg, q=0.2, **HALF),
    "power_of_choice": _plain(ap.power_of_choice, **HALF),
    "oort": _plain(ap.oort, **HALF),
    "scaffold": _plain(ap.scaffold, **HALF),
    "feddyn": _plain(ap.feddyn, **HALF),
    "fedcm": _plain(ap.fedcm, **HALF),
    "fedadam": _plain(ap.fedadam, **HALF),
    "fedyogi": _plain(ap.fedyogi, **HALF),
    "fedlc": _plain(ap.fedlc, **HALF),
    "fedntd": _plain(ap.fedntd, momentum=0.0, options={}, **HALF),
    "moon": _plain(ap.moon, mu=1.0, momentum=0.0, options={}, **HALF),
    "radfed": _plain(ap.radfed, fraction=0.5, hops=4),
    "fedbuff": _plain(ap.fedbuff, buffer=5),
    "fedasync": _plain(ap.fedasync),
    "async_fedavg": _plain(ap.async_fedavg, momentum=0.0),
    "tvw": _plain(ap.tvw),
    "fedper": _plain(ap.fedper, **HALF),
    "fedrep": _plain(ap.fedrep, head_epochs=2, momentum=0.0, **HALF),
    "fedbabu": _plain(ap.fedbabu, momentum=0.0, tuning_epochs=2, **HALF),
    "ditto": _plain(ap.ditto, personal_epochs=EPOCHS, **HALF),
    "apfl": _plain(ap.apfl, adaptive=True, **HALF),
    "pfedme": _plain(ap.pfedme, inner_steps=3, **HALF),
    "per_fedavg": _plain(ap.per_fedavg, alpha=0.05, **HALF),
    "local_only": _plain(ap.local_only),
}
"""Each with its own defaults, but for what all have in common: two epochs, batches of 16, half of the learners."""

ONE_BY_ONE = ("fedlc", "fedntd", "moon", "fedrep", "ditto", "apfl", "pfedme", "per_fedavg")
"""Methods whose learners cannot be stacked. Their tasks take milliseconds, so they are not sent to other processes."""

FLEETS = ("alike", "half slow", "lossy")


@dataclass(frozen=True)
class Data:
    """A data set: its source, its splits and the network that is trained on it."""

    source: Callable[[], Source]
    hidden: int
    """Width of the only hidden layer."""
    splits: dict[str, dict[str, Any]]
    rounds: int
    examples: int | None = None
    """Of all learners together; None: all that there are."""


SKEWED: dict[str, dict[str, Any]] = {
    "IID": {},
    "Dirichlet .3": {"classes": "dirichlet(0.3)"},
    "Dirichlet .1": {"classes": "dirichlet(0.1)"},
}
HOSPITALS = {**SKEWED, "power law": {"sizes": "powerlaw"}, "hospitals": {"natural": True}}
IMAGES = {**SKEWED, "Non-IID(2)": {"classes": 2}, "power law": {"sizes": "powerlaw"}}
RATES = (0.03, 0.1, 0.3)
"""That every method chooses from, on validation data of the first seed."""
DATA: dict[str, Data] = {
    "heart disease": Data(ap.data.heart_disease, 16, HOSPITALS, rounds=40),
    "Fashion-MNIST": Data(ap.data.fmnist, 32, IMAGES, rounds=20, examples=1000),
    "CIFAR-10": Data(ap.data.cifar10, 32, {**IMAGES, "colour skew": {"colour": "95-5"}}, rounds=20, examples=1000),
}


def fleet_of(name: str, learners: int) -> ap.Fleet:
    """Return a fleet of so many learners."""
    slow = learners // 2
    return {
        "alike": ap.Fleet(fast=learners),
        "half slow": ap.Fleet(fast=learners - slow, slow=slow),
        "lossy": ap.Fleet(ap.Group("lossy", learners, drop_rate=0.2)),
    }[name]


@functools.lru_cache(maxsize=len(SEEDS))
def islands(data: str, split: str, seed: int) -> Islands:
    """Return the data of a split; every learner has a test part of its own."""
    about, source = DATA[data], DATA[data].source()
    settings = dict(about.splits[split])
    if settings.pop("natural", False):
        return source.natural(test="own", seed=seed).standardised("global")
    if colour := settings.pop("colour", None):
        source = source.colour_skew(colour)
    if about.examples is None:
        return source.split(LEARNERS, test="own", seed=seed, **settings).standardised("global")
    return fewer(source, about.examples, seed).split(LEARNERS, test="own", seed=seed, **settings)


def fewer(source: Source, examples: int, seed: int) -> Source:
    """Return so many examples of a source, drawn from all that it has for training."""
    known = np.ones(len(source.x), dtype=bool)
    if source.test is not None:
        known[source.test.numpy()] = False
    drawn = torch.from_numpy(np.random.default_rng(seed).choice(np.flatnonzero(known), examples, replace=False))
    return ap.data.from_arrays(source.x[drawn], source.y[drawn], name=source.name)


@dataclass(frozen=True)
class Problem:
    """One cell of the benchmark."""

    data: str
    fleet: str
    split: str
    method: str

    def run(self, rate: float, seed: int, tuning: bool) -> dict[str, Any]:
        """Return the curve of a run: seconds, local rounds, bytes and score of every version."""
        data, about = islands(self.data, self.split, seed), DATA[self.data]
        found = ap.simulate(
            METHODS[self.method](rate),
            data,
            model=functools.partial(ap.models.mlp, data.x[0].numel(), data.classes or 2, (about.hidden,)),
            fleet=fleet_of(self.fleet, len(data.learners)),
            ending=ap.Ending(rounds=about.rounds),
            evaluation=ap.Evaluation(1, at="validation parts" if tuning else "learners", mean="learners"),
            validation=0.2,
            seed=seed,
            execution="plain" if self.method in ONE_BY_ONE else None,
        )
        bytes_at = {0: 0} | {c.version: sum(v for k, v in c.traffic.items() if _moves(k)) for _, c in found.commits}
        curve = [
            (round(time, 4), scores.rounds, bytes_at.get(scores.version, 0), round(scores.metrics["accuracy"], 5))
            for time, scores in found.scores
        ]
        final = found.final_score
        return {"final": None if math.isnan(final) else round(final, 5), "curve": curve, "execution": found.execution}


def _moves(kind: str) -> bool:
    """Return whether a ledger of traffic is of bytes that the method itself moves."""
    return kind.endswith("bytes") and not kind.startswith("score")


def problems() -> Iterator[Problem]:
    """Yield all cells, data set by data set, and fleet by fleet."""
    for data, about in DATA.items():
        for fleet in FLEETS:
            for split in about.splits:
                for method in METHODS:
                    yield Problem(data, fleet, split, method)
