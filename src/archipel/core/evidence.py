"""Evidence: the answers that a weighting asks for about an update, and the check of every answer.

Answers are summed before they are used, so an invalid one is dropped first: it counts as missing.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace

from archipel.core.context import ControllerContext
from archipel.core.records import Capped
from archipel.core.scored import PooledScore, Scored, ScoreTable
from archipel.core.shares import cap
from archipel.core.state import Evidence, Inquiry, Update
from archipel.core.types import AUC_BINS, Evaluate, Metrics, Model, Probe, Score, SiteAnswers


def offer(context: ControllerContext, update: Update) -> None:
    """Queue an update for commit, and ask for the evidence that its weighting needs."""
    context.state.enqueue(update)
    update.asked = True
    questions: dict[tuple[Probe, Model | None], dict[str, None]] = {}
    for sites, probe, reference in context.algorithm.weighting.ask(context.view("weighting"), update):
        if sites:  # a site's answer to the same question would be the same again
            questions.setdefault((probe, reference), {}).update(dict.fromkeys(sites))
    for (probe, reference), asked in questions.items():
        question = Evaluate(context.next_task(), tuple(asked), update.model, probe, reference)
        ask(context, question, update.task, len(update.evidence))
        update.evidence.append(Evidence(probe))


def ask(
    context: ControllerContext, question: Evaluate, update: int | None, place: int = 0, validators: int = 0
) -> None:
    """Issue a question about an update or, if `update` is None, about the current model for the records."""
    state, reference = context.state, question.reference
    names = (question.model.name,) if reference is None else (question.model.name, reference.name)
    state.ask(
        Inquiry(
            *(question.task, question.sites, names, question.probe, update, place, state.version, state.rounds),
            validators=validators,
            pooled=question.pooled,
        )
    )
    context.issue(question)


def store(context: ControllerContext, inquiry: Inquiry, answers: SiteAnswers) -> bool:
    """Store the answers to a question about an update; return whether its evidence is complete."""
    state = context.state
    update = None if inquiry.update is None else state.queue.get(inquiry.update)
    if update is None:
        return False
    if state.most_share < 1 and isinstance(answers, ScoreTable):
        own = update.metrics.validation
        counts = [*answers.targets.tolist(), 0 if own is None else int(own.as_table().targets[0])]
        check_shares(context, "opinions", (*inquiry.sites, update.learner), counts)
    update.evidence[inquiry.question].answers = answers
    return update.ready


# ----------------------------------------------------------------------------------------------------------- checks


def check_answers(context: ControllerContext, inquiry: Inquiry, answers: SiteAnswers) -> SiteAnswers:
    """Return the answers without the invalid ones, and record why each was refused."""
    if not isinstance(answers, ScoreTable) or not isinstance(inquiry.probe, Score):
        return answers
    invalid = _invalid_rows(context, answers, inquiry.probe.bins)
    for row, reason in invalid.items():
        context.refuse(inquiry.task, inquiry.sites[row], reason)
    return answers.without(invalid)


def check_pooled(context: ControllerContext, inquiry: Inquiry, answer: PooledScore) -> ScoreTable:
    """Return what sites' answers add up to as a table of one row, which is missing if the answer is invalid."""
    probe, members, table = inquiry.probe, context.state.members, answer.total.as_table()
    assert isinstance(probe, Score), "only scores are added up"
    registered = sum(getattr(members[inquiry.sites[row]], probe.part) for row in answer.rows)
    reason = _invalid_rows(context, table, probe.bins).get(0)
    if answer.total.count != registered:
        reason = f"a score of {answer.total.count} examples, {registered} were registered"
    if reason is None:
        return table
    context.refuse(inquiry.task, "", f"{reason}; one of {len(answer.rows)} learners has not sent its score")
    return table.without((0,))


def check_metrics(context: ControllerContext, metrics: Metrics) -> Metrics:
    """Return a learner's metrics without its score of its own model, if that is invalid."""
    own = metrics.validation
    return metrics if own is None or _valid(context, own) else replace(metrics, validation=None)


def _valid(context: ControllerContext, own: Scored) -> bool:
    """Return whether the counts in a learner's score of its own model are valid."""
    if (own.tokens is not None) != context.state.per_token or (own.tokens is not None and own.tokens.min() < 0):
        return False
    if own.confusion is None:
        return True
    histogram = None if own.histogram is None else own.histogram.shape
    if _invalid_shapes(context, own.confusion.shape, histogram, AUC_BINS) is not None:
        return False
    counted = own.confusion.sum() == own.count and own.confusion.min() >= 0
    return bool(counted and (own.histogram is None or own.histogram.min() >= 0))


def _invalid_rows(context: ControllerContext, table: ScoreTable, bins: int) -> dict[int, str]:
    """Return the rows whose counts are invalid, and what is wrong with each."""
    confusion, histogram, tokens = table.confusion, table.histogram, table.tokens
    if len(table) and (tokens is not None) != context.state.per_token:
        reason = f"{'no ' if tokens is None else ''}counts of tokens"
        return {row: reason for row in range(len(table)) if row not in table.missing}
    if tokens is not None and len(table) and tokens.min() < 0:
        return dict.fromkeys((tokens.min(axis=1) < 0).nonzero()[0].tolist(), "negative counts of tokens")
    if confusion is None or len(table) == 0:
        return {}
    shapes = confusion.shape[1:], None if histogram is None else histogram.shape[1:]
    misshapen = _invalid_shapes(context, *shapes, bins)
    if misshapen is not None:
        return {row: misshapen for row in range(len(table)) if row not in table.missing}
    wrong = confusion.sum(axis=(1, 2)) != table.counts
    if confusion.min() < 0:
        wrong |= confusion.min(axis=(1, 2)) < 0
    invalid = {
        row: f"a confusion matrix that does not count {table.counts[row]} examples"
        for row in wrong.nonzero()[0].tolist()
    }
    if histogram is not None and histogram.min() < 0:
        for row in (histogram.min(axis=(1, 2, 3)) < 0).nonzero()[0].tolist():
            invalid.setdefault(row, "a histogram of scores with negative counts")
    return invalid


def _invalid_shapes(
    context: ControllerContext, confusion: tuple[int, ...], histogram: tuple[int, ...] | None, bins: int
) -> str | None:
    """Return what is wrong with the shapes of an answer's counts, or None; the first answer sets the class count."""
    if len(confusion) != 2 or confusion[0] != confusion[1] or not confusion[0]:
        return f"a confusion matrix of shape {confusion}"
    if context.state.classes is None:
        context.state.classes = confusion[0]
    classes = context.state.classes
    if confusion[0] != classes:
        return f"a confusion matrix of {confusion[0]} classes, the task has {classes}"
    if histogram is not None and histogram != (classes, 2, bins):
        return f"a histogram of scores of shape {histogram}"
    return None


def check_shares(context: ControllerContext, what: str, sites: Sequence[str], counts: Sequence[int]) -> None:
    """Record the sites whose examples exceed the largest share allowed of the pooled ones."""
    claimed = [float(count) for count in counts]
    within = cap(claimed, context.state.most_share)
    record_capped(context, what, [site for site, c, w in zip(sites, claimed, within, strict=True) if w < c])


def record_capped(context: ControllerContext, what: str, learners: Sequence[str]) -> None:
    """Record, once for each learner, that it claims more than the largest share allowed."""
    for learner in learners:
        known = context.state.capped.setdefault(what, [])
        if learner not in known:
            insort(known, learner)
            context.record(Capped(learner, what, context.state.most_share))
