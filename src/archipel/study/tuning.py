"""Choose settings without using the test set.

Candidates are scored on validation learners where the study has folds, else on parts of their training data that the
learners reserve; their runs never touch the test set. The best candidate of each method, by the mean over seeds of its
final scores, then runs as the study says, on all training data.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from archipel.core.checks import require
from archipel.core.metrics import higher_is_better
from archipel.runs.run import Run
from archipel.study.build import check
from archipel.study.files import method_label, methods, put, study_of
from archipel.study.grid import GridCell, check_apart, combinations, flat, known_key, slug_of
from archipel.study.schema import Study


@dataclass(frozen=True)
class Choice:
    """The settings chosen for one method."""

    method: str
    settings: Mapping[str, Any]
    """The grid's settings for it."""
    fold: int | None
    """The held-out learners that it was chosen by; others may lead to another choice."""
    chosen: Mapping[str, Any]
    scores: tuple[tuple[Mapping[str, Any], float], ...]
    """Every candidate's mean final score on validation data; NaN for one that failed or diverged."""
    failed: int
    """Number of candidates with a run that failed."""
    metric: str
    where: str

    def told(self) -> dict[str, Any]:
        """Return the choice as JSON data."""
        return {**asdict(self), "sentence": self.sentence()}

    def sentence(self) -> str:
        chosen = ", ".join(f"{key} = {value}" for key, value in self.chosen.items())
        where = {
            "held-out validation": "validation learners",
            "validation parts": "the learners' validation parts",
        }[self.where]
        method = "".join((self.method, *(f", {key} = {value}" for key, value in self.settings.items())))
        method += "" if self.fold is None else f", fold {self.fold}"
        failed = f" {self.failed} of them failed and counted as worst." if self.failed else ""
        chosen = f"{chosen} chosen of {len(self.scores)} by {self.metric} on {where}, not on the test set"
        return f"{method}: {chosen}.{failed}"


def candidates(study: Study, jobs: Sequence[GridCell]) -> list[GridCell]:
    """Return the runs by which settings are chosen for these runs."""
    labels = [method_label(entry) for entry in methods(study.raw)]
    axes = flat(study.tune, "tune")
    for key in axes:
        known_key(key, labels, "tune")
    found = []
    for job in jobs:
        others = set(labels) - {job.name}
        mine = {key: values for key, values in axes.items() if key.partition(".")[0] not in others}
        for tried in combinations(mine) if mine else ():
            raw = copy.deepcopy(job.study.raw)
            for key, value in tried.items():
                put(raw, key, value)
            raw.setdefault("evaluation", {})["at"] = (
                "validation parts" if study.data.folds is None else "held-out validation"
            )
            one = study_of(raw, f"{job.name}, {tried}", code=study.own_code.allowed)
            check(one)
            place = Path("tuning", *job.place.parts[:-1], slug_of(tried), job.place.name)
            found.append(replace(job, study=one, place=place, tuned=tried))
    check_apart(found)
    return found


def choose(tried: Sequence[GridCell], runs: Sequence[Run | None]) -> tuple[Choice, ...]:
    """Choose the best candidate of every method and setting of the grid; None is a run that has failed."""
    groups: dict[str, list[tuple[GridCell, Run | None]]] = {}
    for candidate, run in zip(tried, runs, strict=True):
        groups.setdefault(_repeated(candidate), []).append((candidate, run))
    return tuple(_choice(group) for group in groups.values())


def _repeated(cell: GridCell) -> str:
    """Return what the runs of one choice have in common: seeds are repetitions, held-out learners are not."""
    return repr((cell.name, dict(cell.settings), cell.fold))


def _choice(group: Sequence[tuple[GridCell, Run | None]]) -> Choice:
    candidate = group[0][0]
    run = next((run for _, run in group if run is not None), None)
    if run is None:
        folder = candidate.place.parents[1]
        raise ValueError(
            f"tune: every candidate of {candidate.name} has failed; error.txt in the folders in {folder} says why. "
            "Correct the study and run it in a new folder."
        )
    scores: dict[str, list[float]] = {}
    settings: dict[str, Mapping[str, Any]] = {}
    for cell, one in group:
        key = repr(dict(cell.tuned))
        settings[key] = cell.tuned
        scores.setdefault(key, []).append(math.nan if one is None else one.final_score)
    sign = 1 if higher_is_better(run.metric) else -1
    means = {key: sum(values) / len(values) for key, values in scores.items()}
    # a candidate that failed or diverged counts as worst; of equal ones the first in the file is taken
    best = max(means, key=lambda key: -math.inf if math.isnan(means[key]) else sign * means[key])
    require(
        not math.isnan(means[best]),
        f"tune: no candidate of {candidate.name} has a score on {run.scored_at}; is there anything to validate on?",
    )
    told = tuple((settings[key], means[key]) for key in means)
    failed = len({repr(dict(cell.tuned)) for cell, one in group if one is None})
    return Choice(
        candidate.name,
        candidate.settings,
        candidate.fold,
        settings[best],
        told,
        failed,
        run.metric,
        run.scored_at,
    )


def tuned(jobs: Sequence[GridCell], tried: Sequence[GridCell], choices: Sequence[Choice]) -> list[GridCell]:
    """Return the runs with the settings that were chosen for them."""
    chosen = dict(zip(dict.fromkeys(map(_repeated, tried)), (choice.chosen for choice in choices), strict=True))
    found = []
    for job in jobs:
        raw, mine = copy.deepcopy(job.study.raw), chosen.get(_repeated(job), {})
        for key, value in mine.items():
            put(raw, key, value)
        one = study_of(raw, job.name, code=job.study.own_code.allowed)
        found.append(replace(job, study=one, tuned=mine))
    return found
