"""Scores for the records: request them, record them, and end the run if a target or patience is reached."""

from __future__ import annotations

import math

from archipel.core.algorithm import Algorithm
from archipel.core.checks import require
from archipel.core.context import ControllerContext
from archipel.core.evidence import ask, check_pooled, check_shares
from archipel.core.metrics import higher_is_better, metrics_of
from archipel.core.parts.evaluation import Evaluation
from archipel.core.records import Scores
from archipel.core.scored import PooledScore, ScoreTable
from archipel.core.state import Inquiry
from archipel.core.types import Evaluate


def score(context: ControllerContext) -> None:
    """Request a score of the current version, unless it was scored already."""
    state, evaluation = context.state, context.evaluation
    if evaluation is None or state.scored == state.version:
        return
    state.scored = state.version
    sites = evaluation.sites(state)
    if not sites:
        return
    task = state.next_score
    state.next_score -= 1
    hidden = hides_scores(context.algorithm)
    validators = [] if hidden else evaluation.validators(state)
    pooled = hidden and evaluation.at != "home"
    question = Evaluate(task, (*sites, *validators), state.model, evaluation.probe, record=True, pooled=pooled)
    ask(context, question, None, validators=len(validators))


def hides_scores(algorithm: Algorithm) -> bool:
    """Return whether the controller must not see the score of a single learner."""
    return algorithm.privacy is not None and algorithm.privacy.hides_scores


def check_scores(algorithm: Algorithm, evaluation: Evaluation | None) -> None:
    """Refuse scores that need single learners' ones where those are hidden."""
    require(
        evaluation is None or evaluation.at == "home" or evaluation.mean == "examples" or not hides_scores(algorithm),
        f'{algorithm.name}: {algorithm.privacy!r} adds up scores, and Evaluation(mean="learners") needs single '
        'learners\' scores. Use mean="examples", or accept that they are seen with SecureSum(single_scores=True).',
    )


def take_pooled(context: ControllerContext, inquiry: Inquiry, answer: PooledScore) -> None:
    """Record a version's score, which learners' answers add up to."""
    table = check_pooled(context, inquiry, answer)
    if table.answered:
        _record(context, inquiry, metrics_of(table, "examples"), answer.total.count, len(answer.rows), {})


def take_scores(context: ControllerContext, inquiry: Inquiry, table: ScoreTable) -> None:
    """Record a version's score."""
    state, evaluation = context.state, context.evaluation
    if evaluation is None:
        return
    if state.most_share < 1 and evaluation.mean == "examples":
        check_shares(context, "score", inquiry.sites, table.targets.tolist())
    tested = len(inquiry.sites) - inquiry.validators
    answers, validation = table.rows(0, tested), table.rows(tested, len(table))
    if not answers.answered:
        return
    found = metrics_of(answers, evaluation.mean, state.most_share)
    beside = metrics_of(validation, evaluation.mean, state.most_share)
    _record(context, inquiry, found, int(answers.counts.sum()), answers.answered, beside)


def _record(
    context: ControllerContext,
    inquiry: Inquiry,
    found: dict[str, float],
    examples: int,
    sites: int,
    beside: dict[str, float],
) -> None:
    assert context.evaluation is not None
    metric = context.evaluation.metric
    context.record(Scores(inquiry.version, inquiry.rounds, found, examples, sites, beside))
    _compare_with_best(context, found.get(metric, math.nan), higher_is_better(metric))


def _compare_with_best(context: ControllerContext, value: float, higher: bool) -> None:
    state = context.state
    if not math.isnan(value) and (state.best is None or (value > state.best if higher else value < state.best)):
        state.best, state.since_best = value, 0
    else:
        state.since_best += 1
    reason = context.ending.satisfied(state.best, state.since_best, higher)
    if reason is not None:
        context.end(reason)
