"""Evaluation: when and where the model is scored for the records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from archipel.core.checks import at_least, more_than, one_of, require
from archipel.core.metrics import METRICS
from archipel.core.state import State
from archipel.core.types import AUC_BINS, HOME, Role, Score

Where: TypeAlias = Literal["home", "learners", "validation parts", "held-out validation", "held-out test"]

HELD_OUT: dict[str, Role] = {"held-out validation": "validation", "held-out test": "test"}
"""The part of their data that learners held out in a role are scored on."""


@dataclass(frozen=True)
class Evaluation:
    """Scores cost no virtual time, and their bytes are counted apart."""

    every: int | None = 1
    """Number of commits between scores."""
    seconds: float | None = None
    """Seconds between scores, beside or instead of commits."""
    at: Where = "home"
    """The global test set at HOME; the training learners' own test parts; learners held out for it (RADFed); or, to
    choose settings without a look at the test set, the training learners' validation parts."""
    mean: Literal["examples", "learners"] = "examples"
    """Pool all examples, or take the mean of the learners' scores (HDAFL)."""
    metric: str = "accuracy"
    """The score that targets and patience look at; the records hold the others too."""
    validation: bool = True
    """Score the model at validation learners as well, where there are any, so that a report can show the test score at
    the best validation (RADFed). Not with `at = "learners"`: they do not have the private layers."""

    def __post_init__(self) -> None:
        require(
            self.every is not None or self.seconds is not None,
            "Evaluation: give every=commits or seconds=seconds; without either nothing is scored.",
        )
        if self.every is not None:
            at_least(1, "Evaluation", every=self.every)
        if self.seconds is not None:
            more_than(0, "Evaluation", seconds=self.seconds)
        one_of("Evaluation", "at", self.at, get_args(Where))
        one_of("Evaluation", "mean", self.mean, ("examples", "learners"))
        one_of("Evaluation", "metric", self.metric, METRICS)

    @property
    def probe(self) -> Score:
        return Score("validation" if self.validates else "test", bins=AUC_BINS if self.metric == "auc" else 0)

    @property
    def validates(self) -> bool:
        """Whether learners reserve a validation part for it."""
        return self.at == "validation parts"

    @property
    def at_training_learners(self) -> bool:
        """Whether it is scored at the training learners, which have the private layers."""
        return self.at in ("learners", "validation parts")

    def sites(self, state: State) -> list[str]:
        if self.at == "home":
            return [HOME]
        role: Role = HELD_OUT.get(self.at, "train")
        part = "validation" if self.validates else "test"
        return [name for name in state.members.present(role) if getattr(state.members[name], part) > 0]

    def validators(self, state: State) -> list[str]:
        """Return the validation learners that are asked in addition to the sites."""
        if not self.validation or self.at not in ("home", "held-out test"):
            return []
        return [name for name in state.members.present("validation") if state.members[name].test > 0]
