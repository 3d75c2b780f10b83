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

    def deliver(self, learner: str, model: Model, own: Iterable[str]) -> int:
        """Bytes that giving this model to a learner for training takes; `own` are private layers it has."""
        held = self.held.setdefault(learner, Held())
        keeps = {self.layout.index(name) for name in own}
        needed = [
            layer for layer, stamp in enumerate(model.manifest) if layer not in keeps and not held.has(layer, stamp)
        ]
        held.received = dict(enumerate(model.manifest))
        return self.layout.bytes(needed)

    def show(self, site: str, model: Model, own: Iterable[str]) -> int:
        """Bytes that giving this model to a site for evaluation takes; it is not kept there."""
        held = self.held.get(site, Held())
        keeps = {self.layout.index(name) for name in own}
        return self.layout.bytes(
            layer for layer, stamp in enumerate(model.manifest) if layer not in keeps and not held.has(layer, stamp)
        )

    def send(self, learner: str, name: str, sent: Iterable[str]) -> int:
        """Bytes of a learner's answer that holds these layers."""
        layers = self.layout.indices(sent)
        self.held.setdefault(learner, Held()).sent = dict.fromkeys(layers, name)
        return self.layout.bytes(layers)

    @staticmethod
    def seconds(group: Group, amount: int) -> float:
        return group.latency + (amount / group.bandwidth if group.bandwidth else 0.0)
