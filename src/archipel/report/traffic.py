"""Draw the requests, models and megabytes of every method (Metis fig. 9), and megabytes by layer."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from archipel.drawing.class_tables import cells
from archipel.drawing.colours import INK, SLATE
from archipel.drawing.drawing import Drawing
from archipel.drawing.lines import HEADER
from archipel.drawing.style import COLOURS, LETTER, WIDTH, legend_below, look
from archipel.runs.grouping import groups
from archipel.runs.history import MEGABYTE, megabytes, moved
from archipel.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

KINDS = {"train down": "to learners, to train", "train up": "back from learners", "evaluate down": "to be weighed"}
"""Kinds of traffic that belong to a method; scoring for the records does not."""
REQUESTS, MODELS, MOVED = "update requests", "models exchanged", "moved (MB)"
BARS = (COLOURS[0], COLOURS[5], COLOURS[1])
LINE = 40
"""Characters of a method's name in a line."""


@look()
def traffic(runs: Sequence[Run]) -> Drawing | None:
    """Draw the update requests, models and megabytes of every method."""
    from matplotlib.figure import Figure

    if not any(moved(run.traffic, "models", *KINDS) for run in runs):
        return None
    methods = {method: [exchanged(run) for run in own] for method, own in groups(runs).items()}
    names = [textwrap.fill(method, LINE) for method in methods]
    lines = sum(name.count("\n") + 1 for name in names)
    figure = Figure(figsize=(WIDTH, 0.17 * lines + 0.15 * len(names) + 0.8), layout="constrained")
    rows: list[tuple[object, ...]] = []
    for axes, what in zip(figure.subplots(1, 3, sharey=True), (REQUESTS, MODELS, MOVED), strict=True):
        handles = stack(axes, [[counts[what] for counts in own] for own in methods.values()])
        axes.set_xlabel(what)
        for method, own in methods.items():
            for kind in own[0][what]:
                numbers = [counts[what][kind] for counts in own]
                rows.append((method, what, kind, fmean(numbers), min(numbers), max(numbers), len(numbers)))
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    legend_below(figure, handles, list(KINDS.values()))
    several = any(len(own) > 1 for own in methods.values())
    return Drawing(
        "traffic",
        "Messages and models exchanged",
        "Updates that learners brought back, and models and megabytes (of 2^20 bytes) that tasks moved, if they were "
        "answered (Metis fig. 9). Scoring for the records is not counted."
        + (" Bars are means of a method's runs; whiskers reach from the lowest sum to the highest." if several else ""),
        figure,
        ("method", "what", "kind", *HEADER),
        tuple(rows),
    )


def exchanged(run: Run) -> dict[str, dict[str, float]]:
    """Return what a run has exchanged: panel, kind and number."""
    return {
        REQUESTS: {"updates": len(run.cycles)},
        MODELS: {name: moved(run.traffic, "models", kind) for kind, name in KINDS.items()},
        MOVED: {name: megabytes(run.traffic, kind) for kind, name in KINDS.items()},
    }


def stack(axes: Axes, methods: Sequence[Sequence[dict[str, float]]]) -> list[Artist]:
    """Draw a bar for each method, with a piece for each kind and the sum at the end."""
    kinds = list(methods[0][0])
    sums = [[sum(counts.values()) for counts in own] for own in methods]
    place, before = np.arange(len(methods)), np.zeros(len(methods))
    handles: list[Artist] = []
    for kind, colour in zip(kinds, BARS if len(kinds) > 1 else (SLATE,), strict=True):
        means = np.array([fmean(counts[kind] for counts in own) for own in methods])
        handles.append(axes.barh(place, means, left=before, height=0.7, color=colour)[0])
        before += means
    low, high = np.array([min(own) for own in sums]), np.array([max(own) for own in sums])
    some = high > low
    whiskers = ((before - low)[some], (high - before)[some])
    axes.errorbar(before[some], place[some], xerr=whiskers, fmt="none", ecolor=INK, elinewidth=1, capsize=2)
    for at, (end, total) in enumerate(zip(high, before, strict=True)):
        text = f"{total:,.0f}" if total >= 100 or len(kinds) == 1 else f"{total:.3g}"
        axes.annotate(text, (end, at), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_xlim(0, 1.25 * max(high.max(), 1e-9))
    axes.locator_params(axis="x", nbins=4)
    axes.grid(visible=False, axis="y")
    return handles


@look()
def bytes_by_layer(runs: Sequence[Run]) -> Drawing | None:
    """Draw the megabytes that every method moved of every layer."""
    from matplotlib.figure import Figure

    methods = groups(runs)
    names = list(dict.fromkeys(name for run in runs for name in run.layout.names))
    table = np.array([[fmean(layer_megabytes(run, name) for run in own) for name in names] for own in methods.values()])
    if not table.any():
        return None
    labels = [textwrap.fill(method, LINE) for method in methods]
    beside = LETTER * max(len(line) for name in labels for line in name.splitlines())
    wide = float(np.clip(0.6 * len(names) + beside + 1.3, 5, WIDTH))
    high = max(0.34, 0.17 * max(name.count("\n") + 1 for name in labels))
    figure = Figure(figsize=(wide, max(2.4, high * len(labels) + 1.4)), layout="constrained")
    axes = figure.subplots()
    cells(axes, table, names, labels, "{x:.3g}", "MB moved")
    axes.set_xlabel("layer")
    return Drawing(
        "bytes-by-layer",
        "Megabytes by layer",
        "Megabytes (of 2^20 bytes) put on the wire for training and weighing, both ways, of each layer in forward "
        "order, by tasks still out too: what private layers, periodic uploads and training in turn save. Means of a "
        "method's runs.",
        figure,
        ("method", "layer", "moved (MB)"),
        tuple((method, name, float(table[i, j])) for i, method in enumerate(methods) for j, name in enumerate(names)),
    )


def layer_megabytes(run: Run, layer: str) -> float:
    return sum(run.layers.get(kind, {}).get(layer, 0) for kind in KINDS) / MEGABYTE
