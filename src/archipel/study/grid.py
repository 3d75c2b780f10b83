"""List the runs of a study: every method with every seed, setting of the grid and fold.

Each run is a study of one method and one seed, so that its folder has all that is needed to repeat it.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archipel.core.checks import nearest, require
from archipel.study.build import check
from archipel.study.files import method_label, methods, put, study_of
from archipel.study.formats import Raw
from archipel.study.schema import Study


@dataclass(frozen=True, eq=False)
class GridCell:
    """One run of a study."""

    name: str
    """The method's label."""
    seed: int
    settings: Mapping[str, Any]
    """The grid's settings for it."""
    fold: int | None
    study: Study
    """The study of this run alone."""
    place: Path
    """Its folder in the folder of the results."""
    tuned: Mapping[str, Any] = field(default_factory=dict)
    """The settings that tuning has chosen for it."""


def cells(study: Study) -> list[GridCell]:
    """Return all runs of a study, in the order of the file."""
    labels = [method_label(entry) for entry in methods(study.raw)]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    require(not twice, f"algorithms: two methods are called {', '.join(twice)}; give each a label of its own.")
    axes = flat(study.grid, "grid")
    for key in axes:
        known_key(key, labels, "grid")
    found = []
    for entry, label in zip(methods(study.raw), labels, strict=True):
        mine = {key: values for key, values in axes.items() if key.partition(".")[0] not in set(labels) - {label}}
        for settings, seed, fold in itertools.product(combinations(mine), study.seeds, folds(study)):
            raw = narrowed(study.raw, entry, seed, settings)
            if fold is not None:
                raw["data"]["fold"] = fold
            repetition = f"seed-{seed}" if fold is None else f"seed-{seed}-fold-{fold}"
            place = Path(slug(label), *([slug_of(settings)] if settings else []), repetition)
            one = study_of(raw, f"{label}, {settings}", code=study.own_code.allowed)
            found.append(GridCell(label, seed, settings, fold, one, place))
    check_apart(found)
    for cell in found:
        check(cell.study)
    return found


def narrowed(raw: Raw, entry: Any, seed: int, settings: Mapping[str, Any]) -> Raw:
    """Return the study of one run."""
    one = copy.deepcopy({key: value for key, value in raw.items() if key not in ("grid", "tune")})
    one["algorithms"], one["seeds"] = [copy.deepcopy(entry)], [seed]
    for key, value in settings.items():
        put(one, key, copy.deepcopy(value))
    return one


def folds(study: Study) -> Sequence[int | None]:
    """Return the combinations of held-out learners: all, or the one that the study names; none without folds."""
    if study.data.folds is None or study.data.fold is not None:
        return (study.data.fold,)
    given = study.data.folds.given()
    count, rotations = given.get("count", 5), given.get("rotations")
    return range(count * (count - 1 if rotations is None else rotations))


def combinations(axes: Mapping[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def flat(table: Mapping[str, Any], where: str, before: str = "") -> dict[str, list[Any]]:
    """Return dotted keys and the values to try: {"training": {"rate": [0.1, 1]}} is {"training.rate": [0.1, 1]}."""
    axes: dict[str, list[Any]] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            axes |= flat(value, where, f"{before}{key}.")
        else:
            require(
                isinstance(value, list) and len(value) > 0,
                f"{where}.{before}{key}: give the values to try as a list, got {value!r}.",
            )
            axes[before + key] = value
    return axes


def known_key(key: str, labels: list[str], where: str) -> None:
    """Refuse a key that no section and no method has."""
    sections = [
        name for name in Study.model_fields if name not in ("title", "folder", "seeds", "grid", "tune", "report")
    ]
    first = key.partition(".")[0]
    known = [*sections, *labels]
    require(
        first in known,
        f"{where}: {key!r} is neither of a section nor of a method; did you mean {nearest(first, known)!r}?",
    )


def check_apart(runs: Sequence[GridCell]) -> None:
    """Refuse runs that share a folder, or whose folder is needed for something else."""
    seen: set[Path] = set()
    for run in runs:
        require(
            run.place not in seen,
            f"{run.place} would be the folder of two runs; leave out repeated values and seeds, or give "
            "methods labels that differ in letters or digits.",
        )
        seen.add(run.place)
        require(
            slug(run.name) not in ("report", "tuning"),
            f"algorithms: {run.name!r} cannot be a label, as it is a folder of the results; give another.",
        )


def slug(text: str) -> str:
    """Return a text as the name of a folder."""
    return re.sub(r"[^\w.=,+-]+", "-", text).strip("-.") or "run"


def slug_of(settings: Mapping[str, Any]) -> str:
    text = slug(",".join(f"{key}={value}" for key, value in settings.items()))
    if len(text) <= 150:
        return text
    # file systems limit the length of names
    return f"{text[:140]}-{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}"
