"""A weighting of one's own, all in this file: nothing is registered anywhere."""

from dataclasses import dataclass

from archipel import Weighting
from archipel.core.state import Update, View


@dataclass(frozen=True)
class ByPower(Weighting):
    """Weigh by a power of the number of examples: 1 is FedAvg, 0 weighs everybody the same."""

    power: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.power <= 1:
            raise ValueError(f"ByPower: power should be from 0 to 1, got {self.power}. Give 0.5 to begin with.")

    def weigh(self, view: View, update: Update) -> float | None:
        # None leaves the update out: a learner may keep the size of its data to itself
        return None if update.examples is None else float(update.examples) ** self.power
