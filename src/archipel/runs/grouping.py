"""Group runs by method: by name and settings, whatever their seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from archipel.runs.final_score import STRETCH
from archipel.runs.history import scoring
from archipel.runs.run_data import RunData

R = TypeVar("R", bound=RunData)


def label(run: RunData) -> str:
    """Return the name of a run's method with its settings: "fedavg, training.rate=0.1"."""
    return ", ".join([run.name, *(f"{key}={value}" for key, value in run.settings.items())])


def groups(runs: Iterable[R]) -> dict[str, list[R]]:
    """Return the runs of each method, in the order in which methods first appear."""
    found: dict[str, list[R]] = {}
    for run in runs:
        found.setdefault(label(run), []).append(run)
    return found


def distinct(runs: Iterable[R]) -> list[R]:
    """Return the runs without copies: runs of one method, seed and fold with the same scores and the same model."""
    kept: dict[tuple[object, ...], R] = {}
    for run in runs:
        course = (scoring(run), run.seconds, len(run.records), repr(run.scores))
        kept.setdefault((label(run), run.seed, run.fold, run.fingerprint(), course), run)
    return list(kept.values())


def named_by_scoring(runs: Sequence[R]) -> list[R]:
    """Return the runs with how they were scored in the names of methods that were scored in several ways.

    Runs from several studies can share a method's name and not be comparable; then they are shown separately.
    """
    named = list(runs)
    for way in (scoring, lambda run: f"over {STRETCH[run.budget]}"):
        several = {method for method, own in groups(named).items() if len(set(map(way, own))) > 1}
        named = [replace(run, name=f"{run.name} ({way(run)})") if label(run) in several else run for run in named]
    return named
