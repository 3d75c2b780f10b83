"""Metrics from counts: everything here is computed from sums over sites, never from single examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from archipel.core.checks import one_of, require
from archipel.core.scored import Scored, ScoreTable
from archipel.core.shares import cap
from archipel.core.sparse_counts import Confusion, Counts, SparseCounts

Floats = npt.NDArray[np.float64]


FAR, LEAST = 100.0, 0.01
"""A mean loss is plausible up to this many medians of all sites' losses, and the smallest median for that rule."""


def pooled(*tables: ScoreTable, most_share: float = 1.0) -> Scored:
    """Return the answer as if all examples were in one place; no site counts for more than `most_share` of them.

    With such a limit, losses far from the others are left out too.
    """
    if most_share < 1:
        tables = plausible(*tables)
        targets: list[int] = [count for table in tables for count in table.targets.tolist()]
        within = cap(targets, most_share)
        if within is not targets:
            return _weighted(tables, [w / c if c else 0.0 for w, c in zip(within, targets, strict=True)])
    counts: list[int] = [count for table in tables for count in table.counts.tolist()]
    confusions = [table.confusion.sum(axis=0) for table in tables if table.confusion is not None]
    histograms = [table.histogram.sum(axis=0) for table in tables if table.histogram is not None]
    tokens = [table.tokens.sum(axis=0) for table in tables if table.tokens is not None]
    return Scored(
        sum(counts),
        sum(loss for table in tables for loss in table.losses.tolist()),
        np.sum(confusions, axis=0) if confusions else None,
        np.sum(histograms, axis=0) if histograms else None,
        np.sum(tokens, axis=0) if tokens else None,
    )


def plausible(*tables: ScoreTable) -> tuple[ScoreTable, ...]:
    """Return tables whose mean losses are at most `FAR` medians of all sites', and below 0 only if the median is.

    Otherwise one site could set the mean to any value. Fewer than three losses do not show which is wrong.
    """
    targets = np.concatenate([table.targets for table in tables] or [np.empty(0, np.int64)])
    losses = np.concatenate([table.losses for table in tables] or [np.empty(0)])
    there = targets > 0
    if there.sum() < 3:
        return tables
    middle = float(np.median(losses[there] / targets[there]))
    most = FAR * max(abs(middle), LEAST)
    within = np.clip(losses, (-most if middle < 0 else 0.0) * targets, most * targets)
    if not (within != losses)[there].any():
        return tables
    rows = np.split(within, np.cumsum([len(table) for table in tables])[:-1])
    return tuple(replace(table, losses=own) for table, own in zip(tables, rows, strict=True))


def _weighted(tables: Sequence[ScoreTable], factors: Sequence[float]) -> Scored:
    """Return the weighted sum of the rows, scaled so that the count of examples stays the same."""
    counts = [count for table in tables for count in table.counts.tolist()]
    losses = [loss for table in tables for loss in table.losses.tolist()]
    targets = [count for table in tables for count in table.targets.tolist()]
    scale = sum(targets) / math.fsum(f * count for f, count in zip(factors, targets, strict=True))
    scaled = [scale * f for f in factors]
    row_factors = np.split(np.array(scaled), np.cumsum([len(table) for table in tables])[:-1])
    return Scored(
        sum(counts),
        sum(f * loss for f, loss in zip(scaled, losses, strict=True)),
        _weighted_sum([(f, table.confusion) for f, table in zip(row_factors, tables, strict=True)]),
        _weighted_sum([(f, table.histogram) for f, table in zip(row_factors, tables, strict=True)]),
        _weighted_sum([(f, table.tokens) for f, table in zip(row_factors, tables, strict=True)]),
    )


def _weighted_sum(columns: Sequence[tuple[Floats, Confusion | None]]) -> Counts | None:
    """Add up weighted rows one by one: all products at once would take as much memory as the table."""
    total: npt.NDArray[Any] | None = None
    for factors, column in columns:
        for factor, cell in () if column is None else zip(factors.tolist(), column, strict=True):
            if isinstance(cell, SparseCounts):
                total = np.zeros(cell.shape) if total is None else total
                total.flat[cell.places] += factor * cell.counts  # the same bits: elsewhere zeros would be added
                continue
            total = factor * cell if total is None else total + factor * cell
    return total


def metric(name: str, scored: Scored) -> float:
    """Return a metric by name; NaN without examples."""
    one_of("metric", "name", name, METRICS)
    return METRICS[name](scored)


def higher_is_better(name: str) -> bool:
    return name not in ("loss", "perplexity")


def accuracy(confusion: Counts) -> float:
    return _ratio(np.trace(confusion), confusion.sum())


def micro_f1(confusion: Counts) -> float:
    """Return F1 over all classes together (Metis eq. 3).

    With one label an example every error is one FP and one FN, so it equals accuracy.
    """
    tp, fp, fn = _totals(confusion)
    return _ratio(2 * tp.sum(), 2 * tp.sum() + fp.sum() + fn.sum())


def macro_f1(confusion: Counts) -> float:
    """Return the mean F1 of the classes that occur or were predicted."""
    tp, fp, fn = _totals(confusion)
    seen = tp + fp + fn > 0
    return float(np.mean(2 * tp[seen] / (2 * tp + fp + fn)[seen])) if seen.any() else math.nan


def weighted_f1(confusion: Counts) -> float:
    """Return the mean F1 of the classes by their share of the examples, as scikit-learn's average="weighted"."""
    tp, fp, fn = _totals(confusion)
    f1 = 2 * tp / np.maximum(2 * tp + fp + fn, 1)  # a class that neither occurs nor was predicted counts for nothing
    return _ratio(float((tp + fn) @ f1), float((tp + fn).sum()))


def binary_f1(confusion: Counts) -> float:
    """Return F1 of class 1 against class 0."""
    _two_classes("binary_f1", confusion)
    tp, fp, fn = _totals(confusion)
    return _ratio(2 * tp[1], 2 * tp[1] + fp[1] + fn[1])


def geometric_mean(confusion: Counts) -> float:
    """Return the geometric mean of the recalls of the classes that occur; a class with recall zero makes it zero."""
    there = confusion.sum(axis=1) > 0
    if not there.any():
        return math.nan
    recalls = np.diag(confusion)[there] / confusion.sum(axis=1)[there]
    return 0.0 if (recalls == 0).any() else float(np.exp(np.mean(np.log(recalls))))


def matthews(confusion: Counts) -> float:
    """Return the Matthews correlation coefficient of any number of classes (Gorodkin's R_K); 0 if it is undefined."""
    c = confusion.astype(np.float64)
    n, actual, predicted = c.sum(), c.sum(axis=1), c.sum(axis=0)
    if n == 0:
        return math.nan
    above = np.trace(c) * n - actual @ predicted
    below = math.sqrt(max(n * n - predicted @ predicted, 0.0)) * math.sqrt(max(n * n - actual @ actual, 0.0))
    return max(-1.0, min(1.0, float(above / below))) if below > 0 else 0.0  # rounding must not exceed 1


def auc(histogram: Counts) -> float:
    """Return the area under the ROC curve from histograms of class scores; for several classes the mean.

    Exact, except that examples in one bin count as ties, one half each.
    """
    areas = []
    for other, own in histogram.astype(np.float64) if len(histogram) > 2 else histogram[1:].astype(np.float64):
        pairs = own.sum() * other.sum()
        if pairs > 0:
            below = np.cumsum(other) - other
            areas.append(float((own * (below + other / 2)).sum() / pairs))
    return float(np.mean(areas)) if areas else math.nan


def mean_loss(scored: Scored) -> float:
    """Return the mean loss over the examples, or over their tokens."""
    targets = scored.count if scored.tokens is None else int(scored.tokens.sum())
    return scored.loss / targets if targets else math.nan


def perplexity(scored: Scored) -> float:
    """Return the exponential of the mean loss of a token; infinity if it is too large for a float."""
    if scored.count == 0:
        return math.nan
    _tokens("perplexity", scored)
    with np.errstate(over="ignore"):
        return float(np.exp(mean_loss(scored)))


def token_accuracy(scored: Scored) -> float:
    """Return the share of the tokens that were predicted correctly."""
    if scored.count == 0:
        return math.nan
    tokens = _tokens("token_accuracy", scored)
    return _ratio(tokens[1], tokens.sum())


def _tokens(name: str, scored: Scored) -> Counts:
    if scored.tokens is None:
        raise ValueError(f"{name} needs a target for every token, and this task has none; use the metric 'loss'.")
    return scored.tokens


def _of_confusion(name: str, compute: Callable[[Counts], float]) -> Callable[[Scored], float]:
    def of(scored: Scored) -> float:
        if scored.count == 0:
            return math.nan
        if scored.confusion is None:
            raise ValueError(f"{name} needs classes, and this task has none; use the metric 'loss'.")
        return compute(np.asarray(scored.confusion))

    return of


def _of_histogram(scored: Scored) -> float:
    if scored.count == 0:
        return math.nan
    if scored.histogram is None:
        raise ValueError("auc needs a histogram of class scores; ask with Score(part, bins=1024).")
    return auc(scored.histogram)


METRICS: dict[str, Callable[[Scored], float]] = {
    "accuracy": _of_confusion("accuracy", accuracy),
    "micro_f1": _of_confusion("micro_f1", micro_f1),
    "macro_f1": _of_confusion("macro_f1", macro_f1),
    "weighted_f1": _of_confusion("weighted_f1", weighted_f1),
    "binary_f1": _of_confusion("binary_f1", binary_f1),
    "geometric_mean": _of_confusion("geometric_mean", geometric_mean),
    "matthews": _of_confusion("matthews", matthews),
    "auc": _of_histogram,
    "loss": mean_loss,
    "perplexity": perplexity,
    "token_accuracy": token_accuracy,
}
OF_TOKENS = ("perplexity", "token_accuracy")


def metrics_of(table: ScoreTable, mean: str, most_share: float = 1.0) -> dict[str, float]:
    """Return all metrics that these answers allow: over the pooled examples, or the mean of the sites' metrics."""
    if most_share < 1:
        (table,) = plausible(table)
    groups = (
        [pooled(table, most_share=most_share)]
        if mean == "examples"
        else [answer for answer in table if answer is not None and answer.count]
    )
    found: dict[str, float] = {}
    for name in METRICS:
        first = groups[0] if groups else None
        if first is None or not _is_computable(name, first):
            continue
        values = [value for value in (metric(name, group) for group in groups) if not math.isnan(value)]
        if values:
            found[name] = sum(values) / len(values)
    return found


def _is_computable(name: str, scored: Scored) -> bool:
    """Return whether an answer holds what a metric needs."""
    if name == "loss":
        return True
    if name in OF_TOKENS:
        return scored.tokens is not None
    if scored.confusion is None or (name == "auc" and scored.histogram is None):
        return False
    return name != "binary_f1" or len(scored.confusion) == 2


def _totals(confusion: Counts) -> tuple[Floats, Floats, Floats]:
    c = confusion.astype(np.float64)
    tp = np.diag(c)
    return tp, c.sum(axis=0) - tp, c.sum(axis=1) - tp


def _ratio(above: float, below: float) -> float:
    return float(above / below) if below else math.nan


def _two_classes(name: str, confusion: Counts) -> None:
    require(len(confusion) == 2, f"{name} is for two classes, this task has {len(confusion)}; use 'macro_f1'.")
