"""The wire of a simulation: which layers have to travel, and how long that takes.

A learner keeps the layers it received last and those it sent last, so only layers whose stamp it does not have are
sent. Private layers travel once, to a learner that has none yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from archipel.core.layout import Layout
from archipel.core.types import Model
from archipel.simulation.fleet import Group


@dataclass(frozen=True)
class Held:
    """The stamps of the layers a learner has at hand."""

    received: tuple[str, ...] = ()
    """Of all layers, once it has received a model."""
    sent: dict[int, str] = field(default_factory=dict)

    @cached_property
    def stamps(self) -> frozenset[str]:
        """Of whichever layer: a model with none of them is new to it."""
        return frozenset((*self.received, *self.sent.values()))

    def has(self, layer: int, stamp: str) -> bool:
        return stamp == self.sent.get(layer) or (bool(self.received) and stamp == self.received[layer])


NOTHING = Held()


class Wire:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._weighs = [(name, layout.bytes((layer,))) for layer, name in enumerate(layout.names)]
        """Every layer's name and bytes."""
        self.held: dict[str, Held] = {}
        self.moved: dict[str, dict[str, int]] = {}
        """Bytes put on the wire so far, by kind and layer."""

    def deliver(self, learner: str, model: Model, own: Collection[str]) -> int:
        """Bytes that giving this model to a learner for training takes; `own` are private layers it has."""
        needed = self._needed(learner, model, own)
        self.held[learner] = Held(model.manifest, self.held.get(learner, NOTHING).sent)
        return self._move("train down", needed)

    def show(
        self, sites: Iterable[tuple[str, Collection[str]]], model: Model, kind: str = "evaluate down"
    ) -> list[int]:
        """Bytes that giving this model to each of these sites for evaluation takes; it is not kept there.

        The sites come with the private layers they have.
        """
        stamps = frozenset(model.manifest)
        everything = self.layout.indices(None)
        weighs = self.layout.bytes(everything)
        moved, whole = [], 0
        for site, own in sites:
            held = self.held.get(site)
            if not own and (held is None or held.stamps.isdisjoint(stamps)):  # the many: it is new to them
                moved.append(weighs)
                whole += 1
            else:
                moved.append(self._move(kind, self._needed(site, model, own)))
        if whole:
            self._move(kind, everything, whole)
        return moved

    def send(self, learner: str, name: str, sent: Iterable[str]) -> int:
        """Bytes of a learner's answer that holds these layers."""
        layers = self.layout.indices(sent)
        self.held[learner] = Held(self.held.get(learner, NOTHING).received, dict.fromkeys(layers, name))
        return self._move("train up", layers)

    def _needed(self, site: str, model: Model, own: Collection[str]) -> tuple[int, ...]:
        """The layers of a model that a site does not have."""
        held = self.held.get(site) or NOTHING
        if not own and held.stamps.isdisjoint(model.manifest):
            return self.layout.indices(None)
        keeps = {self.layout.index(name) for name in own}
        return tuple(
            layer for layer, stamp in enumerate(model.manifest) if layer not in keeps and not held.has(layer, stamp)
        )

    def _move(self, kind: str, layers: Sequence[int], times: int = 1) -> int:
        ledger, moved = self.moved.setdefault(kind, {}), 0
        for layer in layers:
            name, weighs = self._weighs[layer]
            ledger[name] = ledger.get(name, 0) + times * weighs
            moved += weighs
        return moved

    @staticmethod
    def seconds(group: Group, amount: int) -> float:
        return group.latency + (amount / group.bandwidth if group.bandwidth else 0.0)
