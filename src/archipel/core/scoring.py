"""Scores for the records: request them, record them, and end the run if a target or patience is reached."""

from __future__ import annotations

import math

from archipel.core.context import ControllerContext
from archipel.core.evidence import ask, check_shares
from archipel.core.metrics import higher_is_better, metrics_of
from archipel.core.records import Scores
from archipel.core.scored import ScoreTable
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
    validators = evaluation.validators(state)
    question = Evaluate(task, (*sites, *validators), state.model, evaluation.probe, record=True)
    ask(context, question, None, validators=len(validators))


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
    examples = int(answers.counts.sum())
    context.record(Scores(inquiry.version, inquiry.rounds, found, examples, answers.answered, beside))
    _compare_with_best(context, found.get(evaluation.metric, math.nan), higher_is_better(evaluation.metric))


def _compare_with_best(context: ControllerContext, value: float, higher: bool) -> None:
    state = context.state
    if not math.isnan(value) and (state.best is None or (value > state.best if higher else value < state.best)):
        state.best, state.since_best = value, 0
    else:
        state.since_best += 1
    reason = context.ending.satisfied(state.best, state.since_best, higher)
    if reason is not None:
        context.end(reason)
