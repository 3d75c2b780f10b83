"""Evaluation: when and where the model is scored for the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from archipel.checks import at_least, more_than, one_of, require
from archipel.metrics import METRICS
from archipel.state import State
from archipel.types import AUC_BINS, HOME, Score

Where: TypeAlias = Literal["home", "learners", "held-out validation", "held-out test"]


@dataclass(frozen=True)
class Evaluation:
    """Scores cost no virtual time, and their bytes are counted apart."""

    every: int | None = 1
    """Commits between two scores."""
    seconds: float | None = None
    """Seconds between two scores, beside or instead of commits."""
    at: Where = "home"
    """The global test set at HOME; the training learners' own test parts; or learners held out for it (RADFed)."""
    mean: Literal["examples", "learners"] = "examples"
    """Pool all examples, or take the mean of the learners' scores (HDAFL)."""
    metric: str = "accuracy"
    """The score that targets and patience look at; the records hold the others too."""

    def __post_init__(self) -> None:
        require(
            self.every is not None or self.seconds is not None,
            "Evaluation: give every=commits or seconds=seconds; without either nothing is scored.",
        )
        if self.every is not None:
            at_least(1, "Evaluation", every=self.every)
        if self.seconds is not None:
            more_than(0, "Evaluation", seconds=self.seconds)
        one_of("Evaluation", "at", self.at, ("home", "learners", "held-out validation", "held-out test"))
        one_of("Evaluation", "mean", self.mean, ("examples", "learners"))
        one_of("Evaluation", "metric", self.metric, METRICS)

    @property
    def probe(self) -> Score:
        return Score("test", bins=AUC_BINS if self.metric == "auc" else 0)

    def sites(self, state: State) -> list[str]:
        if self.at == "home":
            return [HOME]
        role = {"learners": "train", "held-out validation": "validation", "held-out test": "test"}[self.at]
        return sorted(m.name for m in state.members.values() if m.active and m.role == role and m.test > 0)
