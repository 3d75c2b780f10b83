"""Draw the weights of each learner's updates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from archipel.drawing.drawing import Drawing
from archipel.drawing.style import TIME, label_ends, legend_below, look, panels, title
from archipel.report.sample import first_runs, group_colours, group_patches, note, sampled
from archipel.runs.run import Run

SPANS = 50
"""A learner with more contributions is drawn by their means over this many equal spans of time."""


@look()
def weights(runs: Sequence[Run]) -> Drawing | None:
    """Draw the weight of each learner's contributions over time, as the weighting gave it."""
    shown = first_runs(runs, differ)
    if not shown:
        return None
    colours = group_colours(runs)
    rows: list[tuple[object, ...]] = []
    found = {method: contributions(run) for method, run in shown.items()}
    cast = {method: sampled(run, among=found[method]) for method, run in shown.items()}
    longest = max(len(one.name) for learners in cast.values() for one in learners)
    figure, axes = panels(len(shown), 2.6, longest=longest)
    for panel, (method, run) in zip(axes, shown.items(), strict=True):
        ends: dict[str, float] = {}
        highest = 0.0
        for one in cast[method]:
            points = thinned(found[method][one.name], run.seconds or 1)
            times, values = zip(*points, strict=True)
            panel.plot(times, values, color=colours[one.group], linewidth=1, marker=".", markersize=3)
            ends[one.name] = values[-1]
            highest = max(highest, *values)
            rows += [(method, run.seed, one.name, one.group, time, value) for time, value in points]
        panel.set_xlim(0, run.seconds or 1)
        panel.set_ylim(0, 1.06 * highest or 1)
        label_ends(panel, ends, "learners")
        panel.set_xlabel(TIME)
        panel.set_ylabel("weight as given")
        title(panel, method)
    legend_below(figure, group_patches(colours), list(colours))
    return Drawing(
        "weights",
        "Weights",
        "The weight of each contribution as the weighting gave it, before the merge makes shares of it: p_k of the "
        "community model, examples under FedAvg, the factor beside alpha under FedAsync. Where layers differ it is the "
        f"mean over the layers sent, by their sizes. Learners' names stand where they end; one with more than {SPANS} "
        f"contributions is drawn by the means over {SPANS} spans of time. Methods that weigh all alike are left out."
        + note(runs, shown),
        figure,
        ("method", "seed", "learner", "group", TIME, "weight, mean over layers by size"),
        tuple(rows),
    )


def differ(run: Run) -> bool:
    """Return whether any contribution has another weight than the others."""
    return len({weight for own in contributions(run).values() for _, weight in own}) > 1


def contributions(run: Run) -> dict[str, list[tuple[float, float]]]:
    """Return each learner's (time, weight); an update without layers has no weight."""
    sent = {told.task: run.layout.indices(told.layers) for _, told in run.cycles}
    sizes = [layer.size for layer in run.layout.layers]
    found: dict[str, list[tuple[float, float]]] = {}
    for time, commit in run.commits:
        for learner, task, given in zip(commit.learners, commit.tasks, commit.weights, strict=True):
            layers = sent[task]
            if layers:
                weight = np.average([given[layer] for layer in layers], weights=[sizes[layer] for layer in layers])
                found.setdefault(learner, []).append((time, float(weight)))
    return found


def thinned(points: Sequence[tuple[float, float]], end: float) -> Sequence[tuple[float, float]]:
    """Return at most one point for each span of time: the means of its times and weights."""
    if len(points) <= SPANS:
        return points
    spans: dict[int, list[tuple[float, float]]] = {}
    for time, value in points:
        spans.setdefault(min(int(SPANS * time / end), SPANS - 1), []).append((time, value))
    return [tuple(np.mean(span, axis=0).tolist()) for _, span in sorted(spans.items())]
