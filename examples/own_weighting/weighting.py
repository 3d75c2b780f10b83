"""Your own weighting, all in this file: nothing has to be registered."""

from dataclasses import dataclass

from archipel import Weighting
from archipel.core.state import Update, View


@dataclass(frozen=True)
class ByPower(Weighting):
    """Weigh by a power of the number of examples: 1 is FedAvg, 0 weighs everybody the same."""

    power: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.power <= 1:
            raise ValueError(f"ByPower: power must be from 0 to 1, got {self.power}. Start with 0.5.")

    def weigh(self, view: View, update: Update) -> float | None:
        # None leaves the update out: a learner may withhold the size of its data
        return None if update.examples is None else float(update.examples) ** self.power
