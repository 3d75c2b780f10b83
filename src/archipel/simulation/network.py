"""The network of a simulation: which layers are sent, and how long that takes.

A learner keeps the layers it received last and those it sent last, so only layers whose stamp it does not have are
sent. Private layers are sent once, to a learner that has none yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from archipel.core.layout import Layout
from archipel.core.types import Model
from archipel.simulation.fleet import Group


@dataclass(frozen=True)
class Held:
    """The stamps of the layers that a learner has."""

    received: tuple[str, ...] = ()
    """Of all layers, once it has received a model."""
    sent: dict[int, str] = field(default_factory=dict)

    @cached_property
    def stamps(self) -> frozenset[str]:
        """Return the stamps of all layers: a model with none of them is new to the learner."""
        return frozenset((*self.received, *self.sent.values()))

    def has(self, layer: int, stamp: str) -> bool:
        """Return whether the learner has this layer with this stamp."""
        return stamp == self.sent.get(layer) or (bool(self.received) and stamp == self.received[layer])


NOTHING = Held()


class Wire:
    """Keeps track of the layers that each learner has, and counts the bytes of those that are sent."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._weighs = [(name, layout.bytes((layer,))) for layer, name in enumerate(layout.names)]
        """Every layer's name and bytes."""
        self.held: dict[str, Held] = {}
        self.moved: dict[str, dict[str, int]] = {}
        """Bytes sent so far, by kind and layer."""

    def deliver(self, learner: str, model: Model, own: Collection[str]) -> int:
        """Send a model to a learner that will train it; return the bytes. own: private layers that it has."""
        needed = self._needed(learner, model, own)
        self.held[learner] = Held(model.manifest, self.held.get(learner, NOTHING).sent)
        return self._move("train down", needed)

    def shift(self, layers: Sequence[int]) -> int:
        """Send these layers of a vector that a task adds to gradients; return the bytes."""
        return self._move("train down", layers)

    def show(
        self, sites: Iterable[tuple[str, Collection[str]]], model: Model, kind: str = "evaluate down"
    ) -> list[int]:
        """Send a model to sites that will evaluate it and not keep it; return the bytes of each.

        sites: with the private layers that they have.
        """
        stamps = frozenset(model.manifest)
        everything = self.layout.indices(None)
        weighs = self.layout.bytes(everything)
        moved, whole = [], 0
        for site, own in sites:
            held = self.held.get(site)
            if not own and (held is None or held.stamps.isdisjoint(stamps)):  # for most sites the model is new
                moved.append(weighs)
                whole += 1
            else:
                moved.append(self._move(kind, self._needed(site, model, own)))
        if whole:
            self._move(kind, everything, whole)
        return moved

    def send(self, learner: str, name: str, sent: Iterable[str]) -> int:
        """Send these layers of a learner's model back; return the bytes."""
        return self._move("train up", self.keep(learner, name, sent))

    def keep(self, learner: str, name: str, layers: Iterable[str]) -> tuple[int, ...]:
        """Note that a learner has these layers of a model of its own; return their places."""
        places = self.layout.indices(layers)
        self.held[learner] = Held(self.held.get(learner, NOTHING).received, dict.fromkeys(places, name))
        return places

    def add_up(self, layers: Iterable[str], bits: int, learners: int) -> int:
        """Send these layers as numbers of so many bits from each of so many learners; return the bytes."""
        return learners * self._move("train up", self.layout.indices(layers), learners, bits // 32)

    def _needed(self, site: str, model: Model, own: Collection[str]) -> tuple[int, ...]:
        """Return the layers of a model that a site lacks."""
        held = self.held.get(site) or NOTHING
        if not own and held.stamps.isdisjoint(model.manifest):
            return self.layout.indices(None)
        keeps = {self.layout.index(name) for name in own}
        return tuple(
            layer for layer, stamp in enumerate(model.manifest) if layer not in keeps and not held.has(layer, stamp)
        )

    def _move(self, kind: str, layers: Sequence[int], times: int = 1, width: int = 1) -> int:
        """Count layers that are sent so many times; return the bytes of one. width: of a number, in four bytes."""
        ledger, moved = self.moved.setdefault(kind, {}), 0
        for layer in layers:
            name, weighs = self._weighs[layer]
            weighs *= width
            ledger[name] = ledger.get(name, 0) + times * weighs
            moved += weighs
        return moved

    @staticmethod
    def seconds(group: Group, amount: int) -> float:
        """Return the seconds of sending this many bytes to or from a learner of a group."""
        return group.latency + (amount / group.bandwidth if group.bandwidth else 0.0)

    def save(self) -> dict[str, Any]:
        """Return what a resumed run needs."""
        return {"held": self.held, "moved": self.moved}

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.held, self.moved = saved["held"], saved["moved"]
