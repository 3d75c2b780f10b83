"""Weighting: an update's weight, one number or one per layer.

Weights need not add up to one, since the merge normalises them. A weighting may ask for evidence; the controller
collects it from the sites and calls `weigh` when all answers have arrived or failed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from archipel.core.checks import at_least, more_than, one_of, require, share
from archipel.core.layout import Layout
from archipel.core.metrics import METRICS, OF_TOKENS, metric, pooled
from archipel.core.parts.part import Needs, Part
from archipel.core.randomness import draw_some
from archipel.core.scored import ScoreTable
from archipel.core.state import Update, View
from archipel.core.types import (
    AUC_BINS,
    HOME,
    Consistency,
    Consistent,
    Distance,
    Model,
    Probe,
    Reports,
    Score,
)

Weight: TypeAlias = float | tuple[float, ...]


class EvidenceRequest(NamedTuple):
    """A question to sites about an update."""

    sites: tuple[str, ...]
    probe: Probe
    reference: Model | None = None
    """The model that a probe compares the update with, if any."""


class Weighting(Part):
    @property
    def at_most_one(self) -> bool:
        """Whether its weights never exceed 1, so that they can be mixing coefficients."""
        return False

    @property
    def by_layer(self) -> bool:
        """Whether an update may have another weight for each layer."""
        return False

    @property
    def probes(self) -> tuple[Probe, ...]:
        """Its questions to other learners; a learner of a real federation refuses all others."""
        return ()

    def validates(self, version: int) -> bool:
        """Return whether updates that start from this version are evaluated on validation parts."""
        return any(isinstance(probe, Score) and probe.part == "validation" for probe in self.probes)

    def ask(self, view: View, update: Update) -> Iterable[EvidenceRequest]:
        """Return the evidence that this weighting needs about an update."""
        return ()

    def weigh(self, view: View, update: Update) -> Weight | None:
        """Return the update's weight; None, which drops the update, if there is too little evidence."""
        raise NotImplementedError


@dataclass(frozen=True)
class Equally(Weighting):
    """Every update counts the same."""

    at_most_one = True

    def weigh(self, view: View, update: Update) -> Weight:
        return 1.0


@dataclass(frozen=True)
class ByExamples(Weighting):
    """FedAvg: p_k = n_k, the size of the learner's training part (Metis eq. 1)."""

    def weigh(self, view: View, update: Update) -> Weight | None:
        # None for a learner that withholds the size of its data; Equally() does not need it
        return None if update.examples is None else float(update.examples)


Curve: TypeAlias = Literal["constant", "poly", "hinge", "exp", "inv", "log"]


@dataclass(frozen=True)
class ByFreshness(Weighting):
    """A weight that falls with staleness s, the versions between the update's model and its commit.

    FedAsync: `constant` 1; `poly` (s + 1)^-a; `hinge` 1 up to b, then 1 / (a (s - b) + 1).
    Fed2A formula 4: `exp` (e / 2)^-s; `inv` 1 / (s + 1); `log` 1 / (log(s + 1) + 1).
    """

    curve: Curve = "poly"
    a: float = 0.5
    """Exponent of `poly` (.5) or slope of `hinge` (10)."""
    b: float = 4.0
    """Largest staleness with weight 1 under `hinge`."""
    counts_own_commit: bool = False
    """Staleness counts the update's own commit too, as Xie et al. write it: 1 for a fresh update."""

    at_most_one = True

    def __post_init__(self) -> None:
        one_of("ByFreshness", "curve", self.curve, ("constant", "poly", "hinge", "exp", "inv", "log"))
        more_than(0, "ByFreshness", a=self.a)
        at_least(0, "ByFreshness", b=self.b)

    def weigh(self, view: View, update: Update) -> Weight:
        return self.at(update.stale_versions + self.counts_own_commit)

    def at(self, s: int) -> float:
        match self.curve:
            case "constant":
                return 1.0
            case "poly":
                return float((s + 1) ** -self.a)
            case "hinge":
                return 1.0 if s <= self.b else 1 / (self.a * (s - self.b) + 1)
            case "exp":
                return (math.e / 2) ** -s
            case "inv":
                return 1 / (s + 1)
            case "log":
                return 1 / (math.log(s + 1) + 1)


@dataclass(slots=True)
class ValidationMemory:
    classes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Examples of each class at each learner that has reported them."""
    weights: dict[str, float] = field(default_factory=dict)
    """Each learner's last weight, if opinions are asked for only `until` some version."""


def representative(sites: Sequence[str], classes: Mapping[str, Sequence[int]], count: int) -> list[str]:
    """Return sites whose pooled class distribution is close to that of all learners, chosen greedily.

    Return an empty list if there are fewer sites than `count`.
    """
    if len(sites) < count:
        return []
    everybody = np.sum([classes[name] for name in sorted(classes)], axis=0, dtype=np.float64)
    wanted = everybody / max(everybody.sum(), 1.0)
    chosen, together = list[str](), np.zeros(len(wanted))
    for _ in range(count):
        rest = [site for site in sites if site not in chosen]
        sums = [together + np.asarray(classes[site], np.float64) for site in rest]
        gaps = [np.abs(one / max(one.sum(), 1.0) - wanted).sum() for one in sums]
        best = int(np.argmin(gaps))
        chosen.append(rest[best])
        together = sums[best]
    return chosen


LOSSES = ("loss", "perplexity")
"""Metrics for which smaller is better; a weight is one over their value."""


@dataclass(frozen=True)
class ByDistributedValidation(Weighting):
    """DVW: every learner scores the update on its own validation part; the pooled score is the weight (Metis IV)."""

    metric: str = "micro_f1"
    """micro_f1 (eq. 3), macro_f1, weighted_f1, accuracy, geometric_mean, matthews, auc, binary_f1; token_accuracy for
    tasks whose targets are tokens; or, for tasks without classes, loss or perplexity, where the weight is 1 / value."""
    quorum: float = 0.5
    """Share of the opinions that must have arrived: those asked for and, if it has one, the learner's own."""
    evaluators: int | None = None
    """Number of other learners to ask, chosen anew for each update; None: all."""
    choice: Literal["drawn", "representative"] = "drawn"
    """How they are chosen: at random; or so that their pooled class distribution is close to that of all learners, by
    the class counts that learners report with their updates."""
    until: int | None = None
    """The first version from which nobody is asked: an update then has its learner's last weight or, without one, the
    mean of all last weights. None: there is no such version."""

    def __post_init__(self) -> None:
        one_of("ByDistributedValidation", "choice", self.choice, ("drawn", "representative"))
        one_of("ByDistributedValidation", "metric", self.metric, METRICS)
        share("ByDistributedValidation", "quorum", self.quorum)
        if self.evaluators is not None:
            at_least(1, "ByDistributedValidation", evaluators=self.evaluators)
        if self.until is not None:
            at_least(1, "ByDistributedValidation", until=self.until)

    @property
    def at_most_one(self) -> bool:
        return self.metric not in LOSSES

    @property
    def probe(self) -> Score:
        return Score("validation", bins=AUC_BINS if self.metric == "auc" else 0)

    @property
    def probes(self) -> tuple[Probe, ...]:
        return (self.probe,)

    @property
    def needs(self) -> Needs:
        own: Reports = "validation scores" if self.metric == "auc" else "validation"
        counts: tuple[Reports, ...] = ("class counts",) if self.choice == "representative" else ()
        return Needs(reports=(own, *counts), validation=True)

    def observe(self, view: View, update: Update) -> None:
        if self.choice == "representative" and update.metrics.classes:
            view.memory(ValidationMemory).classes[update.learner] = update.metrics.classes

    def validates(self, version: int) -> bool:
        return self.until is None or version < self.until

    def ask(self, view: View, update: Update) -> Iterable[EvidenceRequest]:
        if not self.validates(view.version):
            return []
        everybody = view.state.members.validating
        own = everybody.number(update.learner) if update.learner in everybody else None  # it sends its own opinion
        others = len(everybody) - (own is not None)
        if self.evaluators is None or self.evaluators >= others:
            return [EvidenceRequest(tuple(name for name in everybody if name != update.learner), self.probe)]
        # random evaluators are drawn here; representative ones are chosen among all
        wanted = self.evaluators if self.choice == "drawn" else others
        drawn = draw_some(view.generator("evaluators", update.task), wanted, others)
        sites = self._evaluators(view, [everybody[i if own is None or i < own else i + 1] for i in drawn])
        return [EvidenceRequest(tuple(sorted(sites)), self.probe)]

    def _evaluators(self, view: View, drawn: list[str]) -> list[str]:
        """Return the learners to ask; the random order of `drawn` decides between equals."""
        assert self.evaluators is not None
        classes = view.memory(ValidationMemory).classes if self.choice == "representative" else {}
        known = [site for site in drawn if site in classes]
        return representative(known, classes, self.evaluators) or drawn[: self.evaluators]

    def weigh(self, view: View, update: Update) -> float | None:
        tables = update.scores(self.probe)
        if not tables and not self.validates(view.version):
            last = view.memory(ValidationMemory).weights
            return last.get(update.learner, math.fsum(last.values()) / len(last)) if last else None
        own = update.metrics.validation
        if own is not None and own.count > 0:
            tables = [own.as_table(), *tables]
        usable = [self._usable(table) for table in tables]
        answered = sum(table.answered for table in usable)
        if not answered or answered < self.quorum * sum(map(len, tables)):
            return None
        together = pooled(*usable, most_share=view.state.most_share)
        value = metric(self.metric, together)
        if self.metric in LOSSES:
            return 1 / max(value, 1e-12)
        # a correlation may be negative, and a weight may not
        return None if math.isnan(value) else max(value, 0.0)

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        if self.until is None:
            return
        for update in updates:
            if update.scores(self.probe) and (weight := self.weigh(view, update)) is not None:
                view.memory(ValidationMemory).weights[update.learner] = weight

    def _usable(self, table: ScoreTable) -> ScoreTable:
        """Treat answers that lack what the metric needs as missing, or else one site could veto all others."""
        if self.metric in OF_TOKENS and table.tokens is None:
            useless = np.ones(len(table), dtype=bool)
        elif self.metric in (*LOSSES, *OF_TOKENS):
            useless = ~(np.isfinite(table.losses) & (table.losses >= 0) & (table.counts > 0))
        elif table.confusion is None or (self.metric == "auc" and table.histogram is None):
            useless = np.ones(len(table), dtype=bool)
        else:
            useless = table.counts == 0
        return table.without(useless.nonzero()[0].tolist())


@dataclass(frozen=True)
class ByConsistency(Weighting):
    """RCE: each layer's consistency with the community model on the stimuli (Fed2A formulas 5-10)."""

    distance: Distance = "cosine"

    needs = Needs(stimuli=True)
    at_most_one = True
    by_layer = True

    def __post_init__(self) -> None:
        one_of("ByConsistency", "distance", self.distance, ("correlation", "cosine", "euclidean"))

    @property
    def probe(self) -> Consistency:
        return Consistency(self.distance)

    def ask(self, view: View, update: Update) -> Iterable[EvidenceRequest]:
        return [EvidenceRequest((HOME,), self.probe, view.model)]

    def weigh(self, view: View, update: Update) -> Weight | None:
        (answer,) = update.answers(self.probe)
        return answer.layers if isinstance(answer, Consistent) else None


@dataclass(frozen=True)
class ByGradientNorm(Weighting):
    """HDAFL's other option (section 4): the norm of the learner's gradient at the model it sent."""

    needs = Needs(reports=("gradient norm per batch",))

    def weigh(self, view: View, update: Update) -> Weight | None:
        norm = update.metrics.gradient_norm
        return None if norm is None else math.sqrt(norm)


@dataclass(frozen=True, init=False)
class Product(Weighting):
    """The product of several weightings, layer by layer: Product(ByExamples(), ByFreshness("inv"))."""

    factors: tuple[Weighting, ...]

    def __init__(self, *factors: Weighting) -> None:
        object.__setattr__(self, "factors", tuple(factors))
        require(len(factors) >= 2, f"Product: give two weightings or more, got {len(factors)}.")
        for factor in factors:
            require(
                isinstance(factor, Weighting),
                f"Product: {factor!r} is not a Weighting; write a subclass of Weighting.",
            )

    def __repr__(self) -> str:
        return f"Product({', '.join(map(repr, self.factors))})"

    @property
    def needs(self) -> Needs:
        return Needs.together(factor.needs for factor in self.factors)

    @property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(dict.fromkeys(probe for factor in self.factors for probe in factor.probes))

    @property
    def at_most_one(self) -> bool:
        return all(factor.at_most_one for factor in self.factors)

    @property
    def by_layer(self) -> bool:
        return any(factor.by_layer for factor in self.factors)

    def inner(self) -> tuple[Part, ...]:
        return tuple(one for factor in self.factors for one in (factor, *factor.inner()))

    def validates(self, version: int) -> bool:
        return any(factor.validates(version) for factor in self.factors)

    def ask(self, view: View, update: Update) -> Iterable[EvidenceRequest]:
        # a question that two factors share is asked once, and both read the answer
        return dict.fromkeys(q for i, factor in enumerate(self.factors) for q in factor.ask(view.inner(i), update))

    def weigh(self, view: View, update: Update) -> Weight | None:
        product: Weight = 1.0
        for i, factor in enumerate(self.factors):
            weight = factor.weigh(view.inner(i), update)
            if weight is None:
                return None
            product = _times(product, weight)
        return product

    def check(self, layout: Layout) -> None:
        for factor in self.factors:
            factor.check(layout)

    def observe(self, view: View, update: Update) -> None:
        for i, factor in enumerate(self.factors):
            factor.observe(view.inner(i), update)

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        for i, factor in enumerate(self.factors):
            factor.committed(view.inner(i), updates)

    def left(self, view: View, learner: str) -> None:
        for i, factor in enumerate(self.factors):
            factor.left(view.inner(i), learner)


def _times(a: Weight, b: Weight) -> Weight:
    if isinstance(a, tuple):
        return tuple(x * y for x, y in zip(a, b, strict=True)) if isinstance(b, tuple) else tuple(x * b for x in a)
    return tuple(a * y for y in b) if isinstance(b, tuple) else a * b
