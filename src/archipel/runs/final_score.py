"""The score that methods are compared by: the mean over the last fifth of a run's budget.

A method that commits five times and one that commits five thousand times are measured over the same stretch. Rules
(docs/decisions/0038):
1. The budget is what the run has used: seconds, or local rounds where its ending names rounds or commits.
2. A version counts as long as it was the current one: from its commit to the next. A version that was not scored counts
   with the score of the version before it.
3. A local round belongs to the versions committed in it, in equal parts, and without any to the version before. The
   last fifth of the rounds is rounded up to whole ones, so the last round always counts.
4. One score that is not finite makes the mean NaN: a run that diverged is not shown by the scores it had before.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from archipel.core.metrics import higher_is_better
from archipel.core.parts.ending import BudgetUnit
from archipel.runs.run_data import RunData

PARTS = 5
"""The final score is taken over the last of this many equal parts of the budget."""
STRETCH: dict[BudgetUnit, str] = {
    "rounds": "the last fifth of a run's local rounds",
    "seconds": "the last fifth of a run's seconds",
}
"""The stretch that a run's final score is the mean over, in words."""


class Share(NamedTuple):
    """A score, and how long it was the current one in the stretch."""

    score: float
    stood: float


def final_score(run: RunData, budget: BudgetUnit | None = None, end: float | None = None) -> float:
    """Return the mean score over the last fifth of the budget; of another one, or until an earlier end, if given."""
    shares = final_stretch(run, budget, end)
    total = math.fsum(share.stood for share in shares)
    return math.fsum(share.score * share.stood for share in shares) / total if shares else math.nan


def final_stretch(run: RunData, budget: BudgetUnit | None = None, end: float | None = None) -> list[Share]:
    """Return the scores that stood in the last fifth of the budget, in the order of their versions.

    What lies before the first score does not count. If nothing is left, the last score by the end stands alone.
    """
    budget = budget or run.budget
    since = _since_rounds(run) if budget == "rounds" else _since_seconds(run)
    scored = {scores.version: finite(scores.metrics.get(run.metric, math.nan)) for _, scores in run.scores}
    versions = sorted(scored)
    if budget == "rounds":
        begun = max((math.floor(since[version]) + 1 for version in since if version), default=0)
        end = max(run.rounds, begun) if end is None else math.floor(end)
        begin: float = end - math.ceil(end / PARTS)
    else:
        end = run.seconds if end is None else end
        begin = end - end / PARTS
    until = [*(since[version] for version in versions[1:]), math.inf]
    shares = [
        Share(scored[version], min(stop, end) - max(since[version], begin))
        for version, stop in zip(versions, until, strict=False)  # there may be no scores
    ]
    there = [Share(scored[version], 1.0) for version in versions if since[version] <= end]
    return [share for share in shares if share.stood > 0] or there[-1:]


def validated_score(run: RunData) -> float:
    """Return the test score of the version that the validation learners score best (RADFed); NaN without any."""
    pick = max if higher_is_better(run.metric) else min
    judged = [scores for _, scores in run.scores if math.isfinite(scores.validation.get(run.metric, math.nan))]
    best = pick(judged, key=lambda scores: scores.validation[run.metric], default=None)
    return math.nan if best is None else finite(best.metrics.get(run.metric, math.nan))


def finite(score: float) -> float:
    """Return the score, NaN in place of an infinite one."""
    return score if math.isfinite(score) else math.nan


def _since_seconds(run: RunData) -> dict[int, float]:
    """Return when each version became the current one."""
    return {0: 0.0} | {made.version: time for time, made in run.versions}


def _since_rounds(run: RunData) -> dict[int, float]:
    """Return where each version's part of the local rounds begins."""
    made: dict[int, list[int]] = {}
    before = 0
    for _, version in run.versions:
        # the first version of a count completes that round, those after it belong to the next
        made.setdefault(version.rounds + (version.rounds == before), []).append(version.version)
        before = version.rounds
    return {0: 0.0} | {
        version: number - 1 + place / len(versions)
        for number, versions in made.items()
        for place, version in enumerate(versions)
    }
