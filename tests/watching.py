"""An observer of a simulation that sees everything and does nothing; tests override what they look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from archipel.core.records import Record
from archipel.core.types import Command, Event
from archipel.simulation.simulator import Simulator


class Watching:
    def before(self, simulator: Simulator, event: Event) -> None:
        """See an event before the controller handles it."""

    def after(self, simulator: Simulator, commands: Sequence[Command]) -> Iterable[Record]:
        """See the controller's commands."""
        return ()

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: dict[str, Any]) -> None:
        """Take nothing back."""
