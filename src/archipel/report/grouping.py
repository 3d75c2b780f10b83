"""Which runs are one method: those with one name and one choice of settings, whatever their seeds."""

from __future__ import annotations

from collections.abc import Iterable

from archipel.runs.run import Run


def label(run: Run) -> str:
    """What a run's method is called: "fedavg, training.rate=0.1"."""
    return ", ".join([run.name, *(f"{key}={value}" for key, value in run.settings.items())])


def groups(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each method, in the order in which methods first appear."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(label(run), []).append(run)
    return found
