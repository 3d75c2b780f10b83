"""Attackers in a simulated fleet: learners that do not send what they have trained.

    sign_flip(1)         the opposite of the learner's movement, multiplied by the number
    scaled(100)          the learner's movement, multiplied by the number
    noise(10)            Gaussian noise, the number of times as long as the movement
    label_flip           train on labels in the opposite order (0 as 9, 1 as 8); validation and test labels too
    alie(1.5)            the mean of all movements minus the number of deviations      Baruch et al. 2019, algorithm 1
    inner_product(0.5)   the opposite of the honest learners' mean movement             Xie et al. 2019, section 4

A movement is the trained model minus the received one. The last two collude: they know the latest movement of every
learner, which is the worst that the papers assume. An attacker's reports are about the model that it has
trained, so they do not give it away. Draws are keyed by task and learner, and everything happens to
models that an executor has returned, so that an attack is the same under every executor and in a resumed run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import nearest, require
from archipel.core.randomness import generator
from archipel.core.scored import ScoreTable
from archipel.core.sparse_counts import SparseCounts
from archipel.data import Island, Islands
from archipel.data.forms import call


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows."""

    own: Tensor
    """Its own movement."""
    everybody: tuple[Tensor, ...]
    """The latest movements of all learners, its own among them."""
    honest: tuple[Tensor, ...]
    """Those of learners that do not attack."""
    draws: np.random.Generator


Crafted: TypeAlias = Callable[[float, Knowledge], Tensor]


def sign_flip(times: float, known: Knowledge) -> Tensor:
    return known.own * -times


def scaled(times: float, known: Knowledge) -> Tensor:
    return known.own * times


def noise(times: float, known: Knowledge) -> Tensor:
    drawn = torch.from_numpy(known.draws.standard_normal(known.own.numel(), dtype=np.float32))
    return drawn * (times * float(known.own.norm()) / float(drawn.norm()))


def alie(deviations: float, known: Knowledge) -> Tensor:
    if len(known.everybody) < 2:
        return known.own
    movements = torch.stack(known.everybody)
    return movements.mean(dim=0) - deviations * movements.std(dim=0, correction=0)


def inner_product(times: float, known: Knowledge) -> Tensor:
    return torch.stack(known.honest).mean(dim=0) * -times if known.honest else known.own * -times


class Craft(NamedTuple):
    """A function that makes the sent movement, and the default of the attack's number."""

    craft: Crafted
    number: float
    colludes: bool = False


LABEL_FLIP = "label_flip"
CRAFTS = {
    "sign_flip": Craft(sign_flip, 1.0),
    "scaled": Craft(scaled, 100.0),
    "noise": Craft(noise, 10.0),
    "alie": Craft(alie, 1.5, colludes=True),
    "inner_product": Craft(inner_product, 0.5, colludes=True),
}


@dataclass(frozen=True)
class Attack:
    """An attack by its name, and its number."""

    name: str
    number: float = 0.0

    @property
    def craft(self) -> Craft | None:
        """The function that makes movements; None if the attack only changes data."""
        return CRAFTS.get(self.name)


@cache
def attack_of(text: str) -> Attack | None:
    """Return the attack that a text such as "scaled(100)" names; None for the empty text."""
    if not text:
        return None
    if text == LABEL_FLIP:
        return Attack(LABEL_FLIP)
    name, number = call(text) or (text, None)
    if name not in CRAFTS:
        known = [LABEL_FLIP, *(f"{other}({craft.number:g})" for other, craft in CRAFTS.items())]
        raise ValueError(
            f"attack {text!r} is not known. Did you mean {nearest(text, known)!r}? Known: {', '.join(known)}."
        )
    return Attack(name, CRAFTS[name].number if number is None else number)


@dataclass
class Attackers:
    """The attackers of a simulation, and their knowledge."""

    attacks: Mapping[str, Attack]
    """By learner."""
    seed: int
    latest: dict[str, Tensor] = field(default_factory=dict)
    """The latest movement of every learner, if there are colluding attackers."""

    @property
    def colluding(self) -> bool:
        return any(attack.craft is not None and attack.craft.colludes for attack in self.attacks.values())

    def sent(self, learner: str, task: int, received: Tensor, trained: Tensor) -> Tensor:
        """Return the model that a learner sends, which has received and trained these."""
        attack = self.attacks.get(learner)
        craft = None if attack is None else attack.craft
        if craft is None and not self.colluding:
            return trained
        movement = trained - received
        if self.colluding:
            self.latest[learner] = movement
        if attack is None or craft is None:
            return trained
        honest = tuple(self.latest[name] for name in sorted(self.latest) if name not in self.attacks)
        everybody = tuple(self.latest[name] for name in sorted(self.latest))
        draws = generator(self.seed, "attack", task, learner)
        return received + craft.craft(attack.number, Knowledge(movement, everybody, honest, draws))


def with_flipped_labels(data: Islands, attacks: Mapping[str, str]) -> Islands:
    """Give attackers of the kind label_flip copies of their examples with labels in the opposite order."""
    flippers = {name for name, attack in attacks.items() if attack == LABEL_FLIP}
    if not flippers:
        return data
    require(data.classes is not None, "attack 'label_flip': the task has no classes. Use sign_flip or noise.")
    copies: list[Tensor] = []
    place = len(data.x)

    def flipped(rows: Tensor) -> Tensor:
        """Return the places of the copies of these rows."""
        nonlocal place
        copies.append(rows)
        place += len(rows)
        return torch.arange(place - len(rows), place)

    def flipped_island(one: Island) -> Island:
        return replace(one, train=flipped(one.train), test=flipped(one.test))

    chosen = [row for row, name in enumerate(data.rows.names) if name in flippers]
    learners = data.rows.replaced({row: flipped_island(data.learners[row]) for row in chosen})
    rows = torch.cat(copies)
    x, y = torch.cat([data.x, data.x[rows]]), torch.cat([data.y, (data.classes or 0) - 1 - data.y[rows]])
    return replace(data, x=x, y=y, learners=learners)


def inflated(table: ScoreTable, claims: Sequence[int]) -> ScoreTable:
    """Return the scores with every site's examples multiplied by what it claims."""
    times, confusion = np.array(claims, np.int64), table.confusion
    return replace(
        table,
        counts=table.counts * times,
        losses=table.losses * times,
        confusion=confusion.times(times)
        if isinstance(confusion, SparseCounts)
        else None
        if confusion is None
        else confusion * times[:, None, None],
        histogram=None if table.histogram is None else table.histogram * times[:, None, None, None],
        tokens=None if table.tokens is None else table.tokens * times[:, None],
    )
