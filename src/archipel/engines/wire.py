"""The wire of a simulation: which layers have to travel, and how long that takes.

A learner keeps the layers it received last and those it sent last, so only layers whose stamp it does not have are
sent. Private layers travel once, to a learner that has none yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from archipel.engines.fleet import Group
from archipel.layout import Layout
from archipel.types import Model


@dataclass
class Held:
    """The stamps of the layers a learner has at hand."""

    received: dict[int, str] = field(default_factory=dict)
    sent: dict[int, str] = field(default_factory=dict)

    def has(self, layer: int, stamp: str) -> bool:
        return stamp in (self.received.get(layer), self.sent.get(layer))


class Wire:
    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.held: dict[str, Held] = {}
        self.moved: dict[str, dict[str, int]] = {}
        """Bytes put on the wire so far, by kind and layer."""

    def deliver(self, learner: str, model: Model, own: Iterable[str]) -> int:
        """Bytes that giving this model to a learner for training takes; `own` are private layers it has."""
        held = self.held.setdefault(learner, Held())
        keeps = {self.layout.index(name) for name in own}
        needed = [
            layer for layer, stamp in enumerate(model.manifest) if layer not in keeps and not held.has(layer, stamp)
        ]
        held.received = dict(enumerate(model.manifest))
        return self._move("train down", needed)

    def show(self, site: str, model: Model, own: Iterable[str], kind: str = "evaluate down") -> int:
        """Bytes that giving this model to a site for evaluation takes; it is not kept there."""
        held = self.held.get(site, Held())
        keeps = {self.layout.index(name) for name in own}
        needed = [
            layer for layer, stamp in enumerate(model.manifest) if layer not in keeps and not held.has(layer, stamp)
        ]
        return self._move(kind, needed)

    def send(self, learner: str, name: str, sent: Iterable[str]) -> int:
        """Bytes of a learner's answer that holds these layers."""
        layers = self.layout.indices(sent)
        self.held.setdefault(learner, Held()).sent = dict.fromkeys(layers, name)
        return self._move("train up", layers)

    def _move(self, kind: str, layers: Iterable[int]) -> int:
        layers = tuple(layers)
        ledger = self.moved.setdefault(kind, {})
        for layer in layers:
            name = self.layout.names[layer]
            ledger[name] = ledger.get(name, 0) + self.layout.bytes((layer,))
        return self.layout.bytes(layers)

    @staticmethod
    def seconds(group: Group, amount: int) -> float:
        return group.latency + (amount / group.bandwidth if group.bandwidth else 0.0)
