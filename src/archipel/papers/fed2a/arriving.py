"""PLU by the round in which an update arrives, not by the one in which its task was handed out.

Formula 12 counts by the collaborator's rounds: in round t either all K updates hold deep layers or none does. A learner
would have to ask which round it is before it sends. Here everybody sends all layers, and the collaborator looks at the
deep ones in the last D rounds of a period only: the same model, while the bytes are formula 12's, not the run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from archipel.core.parts.merge import Mean, Proposal
from archipel.core.parts.planning import PeriodicLayers
from archipel.core.state import Update, View


@dataclass(frozen=True)
class MeanByRound(Mean):
    """The weighted mean of the batch, of deep layers only in the last D rounds of every P and in the first period."""

    period: int = 10
    last: int = 7

    def merge(self, view: View, updates: Sequence[Update], weights: Sequence[Sequence[float]]) -> Proposal:
        if PeriodicLayers(self.period, self.last).uploads_deep(view.version + 1):
            return super().merge(view, updates, weights)
        names = view.layout.select("MeanByRound", "shallow")
        shallow = tuple(place for place, name in enumerate(view.layout.names) if name in names)
        kept = [replace(one, layers=tuple(sorted(set(one.layers) & set(shallow)))) for one in updates]
        return super().merge(view, kept, weights)
