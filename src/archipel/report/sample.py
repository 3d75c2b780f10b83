"""Choose what figures with a panel for each method show: its first run, and learners evenly by group and size."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from archipel.drawing.class_tables import evenly
from archipel.drawing.style import COLOURS
from archipel.runs.grouping import groups
from archipel.runs.run import Run
from archipel.runs.run_data import Participant

if TYPE_CHECKING:
    from matplotlib.artist import Artist

METHODS = 12
"""Largest number of methods with a panel."""
LEARNERS = 12
"""Largest number of learners with a row or a line in a panel."""


def first_runs(runs: Iterable[Run], has: Callable[[Run], object]) -> dict[str, Run]:
    """Return the first run of each method that has something to show, for as many methods as there are panels."""
    firsts = {method: next(filter(has, own), None) for method, own in groups(runs).items()}
    return dict([(method, run) for method, run in firsts.items() if run is not None][:METHODS])


def training(run: Run) -> list[Participant]:
    """Return the learners that train, by group and, within it, from large to small."""
    there = [one for one in run.participants if one.role == "train"]
    return sorted(there, key=lambda one: (one.group, -one.examples, one.name))


def sampled(run: Run, among: Container[str] | None = None) -> list[Participant]:
    """Return all learners that train, or those of these names; if they are too many, an evenly spaced sample."""
    there = [one for one in training(run) if among is None or one.name in among]
    return evenly(there, LEARNERS)


def group_colours(runs: Iterable[Run]) -> dict[str, str]:
    """Return a colour for each group of the fleets, the same in every figure."""
    names = sorted({one.group for run in runs for one in run.participants})
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def group_patches(colours: Mapping[str, str]) -> list[Artist]:
    """Return the patches of a legend."""
    from matplotlib.patches import Patch

    return [Patch(color=colour) for colour in colours.values()]


def note(runs: Sequence[Run], shown: Mapping[str, Run], samples: bool = True) -> str:
    """Return a note for a caption on which learners are shown; `samples` if learners are sampled."""
    said = []
    if any(len(own) > 1 for own in groups(runs).values()):
        said.append("Of each method one run is shown.")
    if len(shown) == METHODS:
        said.append(f"At most {METHODS} methods have a panel.")
    most = max(len(training(run)) for run in shown.values())
    if samples and most > LEARNERS:
        said.append(
            f"At most {LEARNERS} of {most:,} learners are shown, evenly spaced by group and number of examples."
        )
    return "".join(f" {sentence}" for sentence in said)
