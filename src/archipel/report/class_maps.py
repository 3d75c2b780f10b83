"""Draw the classes of each learner's examples (HDAFL fig. 2)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from archipel.drawing.class_tables import LEARNERS, draw, evenly, size
from archipel.drawing.drawing import Drawing
from archipel.drawing.style import LETTER, look
from archipel.report.sample import training
from archipel.runs.grouping import groups
from archipel.runs.run import Run

LearnerClasses: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]
"""Each learner's name and its examples by class."""
SPLITS = 4
"""Largest number of tables that are drawn."""
NAMES = 4
"""Largest number of methods that are named over a table."""


@look()
def class_heat_maps(runs: Sequence[Run]) -> Drawing | None:
    """Draw how many examples of each class each learner trained on, once for each different split."""
    from matplotlib.figure import Figure

    every = splits_of(runs)
    if not every:
        return None
    splits = dict(list(every.items())[:SPLITS])
    tables = [np.array([labels for _, labels in split]) for split in splits]
    sizes = [size([name for name, _ in split], table.shape[1]) for split, table in zip(splits, tables, strict=True)]
    most = max(map(len, tables))
    wide = max(width for width, _ in sizes)
    titles = [textwrap.fill(named(methods), int(wide / LETTER) - 8) for methods in splits.values()]
    heights = [high + 0.2 * text.count("\n") for (_, high), text in zip(sizes, titles, strict=True)]
    figure = Figure(figsize=(wide, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(splits), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, split, table, text in zip(parts, splits, tables, titles, strict=True):
        draw(part, [name for name, _ in split], table)
        part.suptitle(text)
    return Drawing(
        "classes",
        "Classes by learner",
        "Examples of each class that each learner trained on, with their sum above (HDAFL fig. 2), once for every "
        "different table among the methods' first runs: a method that reserves validation parts trains on fewer."
        + (f" The first {SPLITS} of {len(every)} tables are shown." if len(every) > SPLITS else "")
        + (f" Of {most:,} learners {LEARNERS} are shown, evenly spaced by name." if most > LEARNERS else ""),
        figure,
        ("methods", "learner", "class", "training examples"),
        tuple(
            (named(methods), name, number, count)
            for split, methods in splits.items()
            for name, labels in evenly(split, LEARNERS)
            for number, count in enumerate(labels)
        ),
    )


def splits_of(runs: Sequence[Run]) -> dict[LearnerClasses, list[str]]:
    """Return the classes of the learners of each method's first run, and the methods that share them."""
    found: dict[LearnerClasses, list[str]] = {}
    for method, own in groups(runs).items():
        split = tuple((one.name, one.labels) for one in sorted(training(own[0]), key=lambda one: one.name))
        if any(sum(labels) for _, labels in split):
            found.setdefault(split, []).append(method)
    return found


def named(methods: Sequence[str]) -> str:
    """Return the names of the methods that share a table."""
    more = f" and {len(methods) - NAMES} more" if len(methods) > NAMES else ""
    return "; ".join(methods[:NAMES]) + more
