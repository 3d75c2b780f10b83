"""What all parts have in common: frozen settings, memory in the state, and hooks that do nothing unless overridden."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from archipel.core.state import Update, View

if TYPE_CHECKING:
    from archipel.core.layout import Layout


class Part:
    """A choice of an algorithm. Write a frozen dataclass; keep what must outlive a crash in `view.memory`."""

    def check(self, layout: Layout) -> None:
        """Refuse a model this part cannot work with, before the run begins."""

    def observe(self, view: View, update: Update) -> None:
        """A learner's model has arrived (under Relay: after each hop)."""

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        """These updates have become a new version; their vectors can still be read."""

    def left(self, view: View, learner: str) -> None:
        """A learner has left."""

    def holds(self, view: View) -> Collection[str]:
        """Names of updates' vectors that this part still needs."""
        return ()
