"""The policy of a learner, derived from its own copy of the study: anything else is refused with a reason.

Law: nothing here is learned from the controller. A plan has to be one that the study's planners can make, a question
one that the study's weighting or evaluation asks, and there are no more questions than the study's run needs.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from archipel.core.algorithm import Algorithm
from archipel.core.checks import require
from archipel.core.layout import Layout
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import HELD_OUT, Evaluation
from archipel.core.types import Plan, Reports, Score
from archipel.data.standardise import Moments
from archipel.federation.learner.local_state import Memory
from archipel.federation.wire import federation_pb2 as pb

log = logging.getLogger("archipel.learner")

ROWS = 10
"""Examples that a learner needs to take part, and that an update has to rest on: fewer are told apart too easily."""
FARTHEST = 1000.0
"""Deviations that a learner's own mean may lie from everybody's, and how much more its features may vary: of a million
examples, a thousandth of which are its own, neither can be exceeded."""
IN_VAIN = 2
"""Questions asked for each one that leads to something: updates are lost, and rounds come to nothing."""
REMEMBERED = 1000
"""Questions that are known again: the answer to one that is asked twice tells nothing new."""
LONGEST = 2000
"""Characters of a refusal."""
ON_VALIDATION: tuple[Reports, ...] = ("validation", "validation scores", "losses")
"""Reports that tell of the validation part."""
ALIKE = (
    *("epochs", "steps", "batch", "momentum", "optimiser", "options", "cycle", "phases", "proximal", "accumulate"),
    "all_data",
)
"""Fields of a plan that have to be just as in the study."""


Probes: TypeAlias = Literal["validation", "test", "moments"]
"""The questions that a learner's operator may refuse."""


@dataclass(frozen=True)
class SiteRules:
    """What a site demands beyond the study; it narrows what the study allows, and never widens it."""

    min_rows: int = ROWS
    """Examples that the learner trains on, and that an update rests on."""
    min_scored_rows: int = 1
    """Examples in a part on which models are tried."""
    min_batch: int = 1
    max_questions: int | None = None
    """In the whole run."""
    refuse: frozenset[Probes] = frozenset()
    max_epsilon: float | None = None
    """That its examples may be spent for in the whole run."""


class Refusal(ValueError):
    """A request that the study does not make; the message reveals nothing about the data."""


@dataclass(frozen=True)
class QuestionBudget:
    """How many questions a learner answers."""

    per_version: int
    """About one version of the model: its score, and one for each update that it is made of."""
    versions_per_task: int | None
    """Versions for each training task that it has done or is at; None: it may be one that never trains."""
    versions: int | None
    """In the whole run; None: the study does not say."""
    most: int | None = None
    """In the whole run, as the site has it."""

    def allowed(self, trained: int) -> int | None:
        """Return how many questions may have been answered after so many training tasks; None: any number."""
        limits = []
        if self.versions_per_task is not None:
            limits.append(self.versions_per_task * (trained + 1) + 1)  # it may come in the middle of a version
        if self.versions is not None:
            limits.append(IN_VAIN * (self.versions + 1))
        found = [self.per_version * min(limits)] if limits else []
        return min([*found, self.most] if self.most is not None else found, default=None)


@dataclass(frozen=True)
class Policy:
    """What one learner does for its controller, and nothing else."""

    names: tuple[str, ...]
    """The model's layers."""
    plans: tuple[Plan, ...]
    """Every plan that the study's method can make; of each the highest rate."""
    probes: tuple[Score, ...]
    budget: QuestionBudget
    recalls: bool
    """Tasks may be asked back before their end."""
    optional: frozenset[str]
    """Layers that the learner leaves out of an answer if they are unwanted when it is sent."""
    rules: SiteRules = field(default_factory=SiteRules)

    @staticmethod
    def of(
        algorithm: Algorithm,
        layout: Layout,
        evaluation: Evaluation | None,
        ending: Ending,
        learners: int,
        rules: SiteRules,
    ) -> Policy:
        """Derive it from a study's method, network, scores and ending, how many learners there are, and a site."""
        plans = algorithm.plans(layout)
        if algorithm.selection.measures_first:
            plans += tuple(plan.untrained() for plan in plans)
        asked = [probe for probe in algorithm.weighting.probes if isinstance(probe, Score)]
        scores = _scores(evaluation)
        protocol = algorithm.protocol
        limits = [] if ending.commits is None else [ending.commits]
        if ending.rounds is not None:
            limits.append(protocol.versions(ending.rounds, learners))
        never_trains = evaluation is not None and evaluation.at in HELD_OUT
        budget = QuestionBudget(
            (protocol.updates_per_commit or learners) * len(asked) + len(scores),
            None if never_trains else protocol.versions_per_task,
            min(limits, default=None),
            rules.max_questions,
        )
        recalls, optional = algorithm.recall is not None, algorithm.optional(layout)
        return Policy(layout.names, plans, (*asked, *scores), budget, recalls, optional, rules)

    def check_plan(self, plan: Plan) -> None:
        """Refuse a plan that the study's method cannot have made."""
        differences = min((list(self._differences(plan, known)) for known in self.plans), key=len)
        if differences:
            raise Refusal(f"this task is not of the study: {'; '.join(differences)}")

    def check_probe(self, part: str, bins: int) -> None:
        """Refuse a question that neither the study's weighting nor its evaluation asks."""
        if not any(part == probe.part and bins == probe.bins for probe in self.probes):
            known = " or ".join(f"part={probe.part!r}, bins={probe.bins}" for probe in self.probes) or "nothing"
            raise Refusal(f"this question is not of the study: part={part[:20]!r}, bins={bins}; the study asks {known}")

    def check_budget(self, answered: int, trained: int) -> None:
        """Refuse a question after the last one that the study can have."""
        allowed = self.budget.allowed(trained)
        if allowed is not None and answered >= allowed:
            raise Refusal(
                f"{answered} questions were answered after {trained} training tasks, and the study has no more: "
                f"{self.budget.per_version} about each version of the model"
            )

    def check_moments(self, mine: Moments, everybodys: Moments) -> None:
        """Refuse statistics that set single examples apart: they would tell more of these than the study does."""
        scale = everybodys.deviation
        varies = scale > 0
        away = (mine.mean - everybodys.mean).abs()[varies] > FARTHEST * scale[varies]
        wider = mine.deviation[varies] > FARTHEST * scale[varies]
        far = int((away | wider).sum())
        if everybodys.count < ROWS or far:
            raise Refusal(
                f"everybody's statistics are of {everybodys.count} examples, and {far} of {scale.numel()} features lie "
                f"or vary more than {FARTHEST:g} of their deviations here. Are the columns in the units of the study?"
            )

    def check_site(self, rows: int) -> None:
        """Refuse to take part with so few examples, or where an update or a step would rest on too few."""
        least = self.rules.min_rows
        require(
            rows >= least,
            f"This learner has {rows} examples, and what it tells of so few tells of single ones. At least {least} are "
            "needed; join with others' data, or stay out.",
        )
        used = min((plan.steps * plan.batch for plan in self.plans if plan.steps is not None), default=rows)
        require(
            used >= least,
            f"The study has tasks of {used} examples (steps times batch), and an update of so few tells of single "
            f"ones. At least {least} are needed; give it more steps or a larger batch.",
        )
        batch = min(plan.batch for plan in self.plans)
        require(
            batch >= self.rules.min_batch,
            f"The study trains with batches of {batch}, and this site with {self.rules.min_batch} at least. Ask for a "
            "study with a larger training.batch, or lower min_batch in the site file.",
        )

    def refused(self, validation: int, test: int) -> frozenset[Probes]:
        """Return what the site does not answer: what its rules say, and questions on parts of too few examples."""
        small: list[Probes] = ["validation"] if 0 < validation < self.rules.min_scored_rows else []
        if 0 < test < self.rules.min_scored_rows:
            small.append("test")
        return self.rules.refuse.union(small)

    def _differences(self, plan: Plan, known: Plan) -> Iterator[str]:
        for name in ALIKE:
            asked, mine = getattr(plan, name), getattr(known, name)
            if asked != mine:
                yield f"{name}={asked!r}, and the study has {mine!r}"
        if not plan.rate <= known.rate:
            yield f"rate={plan.rate!r}, and the study has at most {known.rate!r}"
        if (plan.shift is None) != (known.shift is None):
            yield "it shifts gradients, and the study does not" if plan.shift else "it lacks the study's shift"
        sets = {
            "trains": tuple(self.names if one.trains is None else one.trains for one in (plan, known)),
            "uploads": (plan.sends(self.names), known.sends(self.names)),
            "private": (plan.private, known.private),
            "reports": (plan.reports, known.reports),
        }
        for name, (asked, mine) in sets.items():
            if set(asked) != set(mine):
                yield f"{name}={list(asked)}, and the study has {list(mine)}"


class Questions:
    """Counts the questions that a learner answers; the counts are in its memory."""

    def __init__(self, policy: Policy, memory: Memory) -> None:
        self.policy = policy
        self.memory = memory
        self._asked: dict[tuple[str, ...], None] = {}
        """By part and model, the last ones."""

    def admit(self, order: pb.Evaluate, refuses: Collection[str]) -> None:
        """Refuse a question that the study does not have, or the operator does not answer; count the others."""
        self.policy.check_probe(order.part, order.bins)
        if order.part in refuses:
            raise Refusal(f"the operator refuses to try models on the {order.part} part")
        question = (order.part, *(layer.sha256.hex() for layer in order.model))
        if question in self._asked:
            return
        self.policy.check_budget(self.memory.answered, self.memory.trained)
        self.memory.answered += 1
        self._asked[question] = None
        while len(self._asked) > REMEMBERED:
            del self._asked[next(iter(self._asked))]


def without_validation(plan: Plan) -> Plan:
    """Return the plan without reports on the validation part."""
    return replace(plan, reports=tuple(report for report in plan.reports if report not in ON_VALIDATION))


def _scores(evaluation: Evaluation | None) -> list[Score]:
    if evaluation is None:  # by default at home, or where there is no test set pooled from the learners'
        return [Score("test")]
    return [] if evaluation.at == "home" else [evaluation.probe]


def failure_reason(error: Exception, task: int) -> str:
    """Log an error; return what others may know of it, since its words may tell of the data."""
    if isinstance(error, Refusal):
        told = str(error)[:LONGEST]  # it quotes what was asked, which has any length
        log.warning("refused", extra={"task": task, "reason": told})
        return told
    log.error("a task failed", exc_info=error, extra={"task": task})
    return f"{type(error).__name__}; the learner's log tells more"
