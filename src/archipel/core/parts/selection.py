"""Selection: which learners take part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from archipel.core.checks import one_of, require
from archipel.core.parts.few_tries import draw_by_tries, draws_until_next_look, finder
from archipel.core.parts.part import Composition, Needs, Part
from archipel.core.state import Update, View


class Selection(Part):
    """Picks idle learners; the order matters under Relay, where slot i goes to the i-th."""

    @property
    def measures_first(self) -> bool:
        """Whether every learner reports on the initial model before the first draw."""
        return False

    def check_groups(self, groups: Sequence[str]) -> None:
        """Refuse groups of learners that the selection cannot work with."""

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        """Pick learners; `draw` names the decision, and the same name picks the same learners under every method."""
        raise NotImplementedError


@dataclass(frozen=True)
class Everyone(Selection):
    """All candidates, whatever the fraction."""

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        return list(candidates)


@dataclass(frozen=True)
class Uniform(Selection):
    """A draw with equal chances, without replacement."""

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        if len(candidates) == 1:  # the usual case under Stream
            return list(candidates)
        return [candidates[i] for i in view.draw_some(count, len(candidates), draw)]


@dataclass(frozen=True)
class Poisson(Selection):
    """An independent draw of each learner, with the fraction as its probability: rounds vary in size and may be empty.

    It hides best which learners took part, so differential privacy needs less noise than with rounds of a fixed size.
    """

    def conflicts(self, algorithm: Composition) -> str | None:
        if not algorithm.protocol.commits_while_training and algorithm.protocol.updates_per_commit is None:
            return None
        return f"Poisson draws the learners of a round, and {algorithm.protocol!r} has none. Use Rounds(fraction)."

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        return [candidates[i] for i in view.draw_each(count / len(candidates), len(candidates), draw)]


@dataclass(slots=True)
class LatinSquareMemory:
    order: list[str] = field(default_factory=list)
    """All learners in the order in which they are visited."""
    turn: int = 0
    """Draws from this order so far."""


@dataclass(frozen=True)
class LatinSquare(Selection):
    """A draw in turn: in as many hops of a relay as there are learners, every model visits every learner once.

    Learners stand in a circle, in an order drawn anew after each round of it; the slots start at equal distances and
    move on by one at every draw. An absent learner is skipped.
    """

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        memory = view.memory(LatinSquareMemory)
        if memory.turn >= len(memory.order):
            everyone = sorted({*view.active(), *candidates})
            order = view.generator(draw).permutation(len(everyone))
            memory.order, memory.turn = [everyone[i] for i in order], 0
        circle, apart = memory.order, max(1, len(memory.order) // max(count, 1))
        chosen: dict[str, None] = {}
        for slot in range(min(count, len(candidates))):
            start = memory.turn + slot * apart
            turned = (circle[(start + step) % len(circle)] for step in range(len(circle)))
            free = (name for name in turned if name not in chosen and name in candidates)
            # learners that joined after the order was drawn are picked when nobody else is left
            learner = next(free, None) or min(name for name in candidates if name not in chosen)
            chosen[learner] = None
        memory.turn += 1
        return list(chosen)


@dataclass(slots=True)
class ImportanceMemory:
    scores: dict[str, float] = field(default_factory=dict)
    """p_k of each learner that has reported."""
    guess: float = 1.0
    """The assumed p_k of others; this and the next two are as of the last pass over all candidates."""
    highest: float = 0.0
    draws: int = 0
    """Draws until the next pass over all candidates."""


@dataclass(frozen=True)
class ByImportance(Selection):
    """RADFedi: chances in proportion to p_k <- (1 - gamma) p_k + gamma p_k_new (RADFed Alg. 2, lines 8 and 11).

    p_k_new is the mean squared gradient norm that the learner reports with its update. A learner that has not
    reported yet counts as the mean of those that have, so none is excluded; its first report replaces that guess.
    """

    gamma: float = 0.9
    score: Literal["sample", "batch"] = "sample"
    """Norms of single examples (Alg. 2, line 3) or of mini-batches (section III.B)."""
    first: Literal["mean", "measured"] = "mean"
    """The first scores (Alg. 2, line 2): unknown ones count as the mean of those known; or every learner measures the
    initial model before the first round, as in the authors' code."""

    def __post_init__(self) -> None:
        require(0 < self.gamma < 1, f"ByImportance: gamma should be between 0 and 1, got {self.gamma!r}.")
        one_of("ByImportance", "score", self.score, ("sample", "batch"))
        one_of("ByImportance", "first", self.first, ("mean", "measured"))

    @property
    def measures_first(self) -> bool:
        return self.first == "measured"

    @property
    def needs(self) -> Needs:
        return Needs(reports=("gradient norm per sample" if self.score == "sample" else "gradient norm per batch",))

    def conflicts(self, algorithm: Composition) -> str | None:
        norms = [report for report in algorithm.reports if report.startswith("gradient norm")]
        if len(norms) <= 1:
            return None
        return (
            f"selection and weighting ask for different gradient norms ({' and '.join(norms)}), and a learner reports "
            "one; use ByImportance(score='batch')."
        )

    def observe(self, view: View, update: Update) -> None:
        new = update.metrics.gradient_norm
        if new is None:
            raise ValueError(
                f"ByImportance: learner {update.learner!r} reported no gradient norm with task {update.task}; "
                "its plan asks for one, so it runs another version of Archipel."
            )
        memory = view.memory(ImportanceMemory)
        scores = memory.scores
        old = scores.get(update.learner)
        score = new if old is None else (1 - self.gamma) * old + self.gamma * new
        scores[update.learner] = score
        memory.highest = max(memory.highest, score)

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        return self._few(view, candidates, count, draw) or self._of_all(view, candidates, count, draw)

    def _few(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str] | None:
        """Draw by the last pass over all candidates; None if the next one is due."""
        memory = view.memory(ImportanceMemory)
        if not memory.draws:
            return None
        memory.draws -= 1
        scores, guess, highest = memory.scores, memory.guess, max(memory.highest, memory.guess)
        find = finder(candidates)
        chosen = draw_by_tries(
            view.generator(draw), lambda i: scores.get(find(i), guess), highest, len(candidates), count
        )
        return None if chosen is None else [find(i) for i in chosen]

    def _of_all(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        memory = view.memory(ImportanceMemory)
        scores = memory.scores
        known = [scores[name] for name in sorted(scores)]
        guess = sum(known) / len(known) if known else 1.0
        chances = np.array([scores.get(name, guess) for name in candidates], dtype=np.float64)
        memory.guess, memory.highest = guess, float(chances.max(initial=0))
        memory.draws = draws_until_next_look(len(candidates), count)
        total = chances.sum()
        if not total > 0:  # all gradients have vanished: all are equally important
            chances, total = np.ones(len(candidates)), float(len(candidates))
        chances /= total
        # an exponential race draws without replacement, in order, with chances in proportion; zero chances come last
        times = view.generator(draw).exponential(size=len(candidates))
        race = np.divide(times, chances, out=np.full(len(candidates), np.inf), where=chances > 0)
        return [candidates[i] for i in np.argsort(race, kind="stable")[:count]]
