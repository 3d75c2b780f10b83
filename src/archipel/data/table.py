"""Read a table of the user's block by block, check its columns, and make a source of it.

Laws:
  1. Nothing is guessed: a missing value, a text column that is not listed as a category, a category that only some
     sites have, and a site column with one site are errors that name the column and the way out. A class or a category
     that is not listed and a quantity outside its range are errors that name the row too. Sites that cannot read each
     other's tables therefore make the same columns and classes of them.
  2. A table is read twice, block by block, and never held as text; a large one stays on disk (`lazy`).
  3. Columns of x are the features in their order; a category takes one column for each of its values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.core.checks import one_of
from archipel.data.columns import absent, all_numbers, code, first_text, in_order, meant, number, words
from archipel.data.lazy import RowBuffer
from archipel.data.source import Source
from archipel.data.units import low_and_high, spelled, unit_hint, warn_of_units

ROWS = 2**14
"""Rows of a block."""

Categories = Sequence[str] | Mapping[str, Sequence[str]]
Classes = Sequence[str | int]
Ranges = Mapping[str, tuple[float, float]]

Block = Mapping[str, NDArray[Any]]
"""Columns of some rows: text, in which "" is missing, or numbers, in which NaN is."""

Blocks = Callable[[Sequence[str]], Iterator[Block]]
"""Returns all blocks of the columns with these names, from the start; may be called several times."""


@dataclass
class ColumnSummary:
    """What the first pass finds in one column; rows are counted from 1."""

    missing: int = 0
    first: int = 0
    """The first row with a missing value."""
    text: str | None = None
    """A value that is not a number, if there is one."""
    kinds: dict[str, set[str]] = field(default_factory=dict)
    """Different values, and the sites that have them; of categories, labels and sites only."""
    rows: dict[str, int] = field(default_factory=dict)
    """The first row of each of these values."""
    outside: int = 0
    """Values outside the column's range."""
    stray: tuple[int, float] = (0, 0.0)
    """The first row with such a value, and the value."""

    def add_missing(self, gone: NDArray[np.bool_], start: int) -> None:
        """Count missing values of a block that starts after row `start`."""
        if gone.any():
            self.first = self.first or start + int(gone.argmax()) + 1
            self.missing += int(gone.sum())

    def add_kinds(
        self, values: NDArray[Any], gone: NDArray[np.bool_], start: int, where: NDArray[np.str_] | None
    ) -> None:
        """Collect the different values of a block, with the sites `where` they are."""
        here = words(values)
        present = np.flatnonzero(~gone)
        kinds, firsts = np.unique(here[present], return_index=True)
        for kind, first in zip(kinds.tolist(), present[firsts].tolist(), strict=True):
            sites = self.kinds.setdefault(kind, set())
            self.rows.setdefault(kind, start + first + 1)
            if where is not None:
                sites.update(np.unique(where[here == kind]).tolist())

    def add_outside(
        self, values: NDArray[Any], gone: NDArray[np.bool_], start: int, limits: tuple[float, float]
    ) -> None:
        """Count the values of a block that are outside the range."""
        low, high = limits
        numbers = np.full(len(values), np.nan)
        numbers[~gone] = values[~gone].astype(np.float64)
        outside = (numbers < low) | (numbers > high)
        if outside.any() and not self.outside:
            first = int(outside.argmax())
            self.stray = (start + first + 1, float(numbers[first]))
        self.outside += int(outside.sum())


@dataclass(frozen=True)
class TableReader:
    """A table that is read block by block."""

    owner: str
    """The function that the user called, for errors."""
    name: str
    header: Sequence[str]
    blocks: Blocks

    def choose(self, label: str, site: str | None, features: Sequence[str] | None) -> list[str]:
        """Return the columns that are features."""
        for asked in (label, *([site] if site else []), *(features or ())):
            one_of(self.owner, "a column", asked, self.header)
        special = {label, site}
        if features is None:
            return [name for name in self.header if name not in special]
        for name in features:
            if name in special:
                raise ValueError(f"{self.owner}: {name!r} is the label or the site. Leave it out of features.")
        return list(features)

    def source(
        self,
        label: str,
        site: str | None,
        features: Sequence[str] | None,
        categories: Categories,
        regression: bool,
        classes: Classes | None,
        ranges: Ranges,
    ) -> Source:
        """Return the source in the table; `own.from_csv` documents the arguments."""
        chosen = self.choose(label, site, features)
        for name in categories:
            one_of(self.owner, "a category", name, chosen)
        listed = None if classes is None else listed_classes(self.owner, classes, regression)
        limits = self.limits(chosen, categories, ranges)
        seen = self.survey(label, site, chosen, categories, regression, limits)
        self.refuse_missing(seen)
        for name in chosen:
            if seen[name].text is not None and name not in categories:
                raise ValueError(
                    f"{self.owner}: column {name!r} holds text, such as {seen[name].text!r}. If it is a category, pass "
                    f"categories=[{name!r}]; if not, leave it out with features=[...]."
                )
        self.refuse_strays(seen, limits)
        kinds = {name: self.kinds_of(name, seen[name], categories) for name in categories}
        sites = in_order(seen[site].kinds) if site else []
        if len(sites) == 1:
            raise ValueError(
                f"{self.owner}: column {site!r} names one site only, {sites[0]!r}. Name a column with several "
                "sites, or leave site out and split the data over learners."
            )
        if regression:
            labels, count = {}, None
        elif listed is None:
            labels = self.classes(label, seen[label])
            count = len(set(labels.values()))
        else:
            labels, count = self.among(label, seen[label], listed), len(listed)
        return self.fill(label, site, chosen, kinds, labels, sites, count)

    def limits(self, chosen: Sequence[str], categories: Categories, ranges: Ranges) -> dict[str, tuple[float, float]]:
        """Return the lowest and highest value of quantities; refuse ranges of other columns."""
        limits = {}
        for name, pair in ranges.items():
            if name in categories:
                raise ValueError(
                    f"{self.owner}: {name!r} is a category, and a range is for a quantity. Leave it out of ranges; "
                    f"its values can be listed: categories={{{name!r}: [...]}}."
                )
            one_of(self.owner, "a column with a range", name, chosen)
            limits[name] = low_and_high(self.owner, name, pair)
        return limits

    def survey(
        self,
        label: str,
        site: str | None,
        chosen: Sequence[str],
        categories: Categories,
        regression: bool,
        limits: Ranges,
    ) -> dict[str, ColumnSummary]:
        """Make the first pass: find missing values, texts, different values, and values outside their range."""
        columns = list(dict.fromkeys([*([site] if site else []), label, *chosen]))
        seen = {name: ColumnSummary() for name in columns}
        counted = {*categories, site} | (set() if regression else {label})
        row = 0
        for block in self.blocks(columns):
            where = words(block[site]) if site else None
            for name in columns:
                values, column = block[name], seen[name]
                gone = absent(values)
                column.add_missing(gone, row)
                if name in counted:
                    column.add_kinds(values, gone, row, where if name in categories else None)
                elif column.text is None and values.dtype.kind == "U":
                    column.text = first_text(values[~gone])
                if name in limits and column.text is None:
                    column.add_outside(values, gone, row, limits[name])
            row += len(block[columns[0]])
        if row == 0:
            raise ValueError(f"{self.owner}: {self.name!r} has no rows. Give at least one example.")
        return seen

    def refuse_missing(self, seen: Mapping[str, ColumnSummary]) -> None:
        """Raise one error for all missing values."""
        gaps = [
            f"{name!r} in {column.missing} rows (first in row {column.first})"
            for name, column in seen.items()
            if column.missing
        ]
        if gaps:
            raise ValueError(
                f"{self.owner}: values are missing or infinite in {len(gaps)} of {len(seen)} columns of {self.name!r}: "
                f"{', '.join(gaps)}. Fill them in, drop those rows, or leave the columns out with features=[...]."
            )

    def refuse_strays(self, seen: Mapping[str, ColumnSummary], limits: Ranges) -> None:
        """Raise one error for all values outside their ranges."""
        errors = []
        for name, (low, high) in limits.items():
            if not seen[name].outside:
                continue
            # one more pass: only a refused table needs its median
            values = np.concatenate([block[name].astype(np.float64) for block in self.blocks([name])])
            row, value = seen[name].stray
            errors.append(
                f"{name!r} in {seen[name].outside} of {len(values)} rows is not from {spelled(low)} to {spelled(high)} "
                f"(first in row {row}: {spelled(value)}{unit_hint(float(np.median(values)), low, high)})"
            )
        if errors:
            raise ValueError(
                f"{self.owner}: values of {self.name!r} are outside their ranges: {', '.join(errors)}. Convert or "
                "correct them, or widen the range."
            )

    def kinds_of(self, name: str, column: ColumnSummary, categories: Categories) -> list[str]:
        """Return the values of a category: as listed, or those of the data if several sites have each."""
        listed = [str(kind) for kind in categories[name]] if isinstance(categories, Mapping) else None
        there = in_order(column.kinds)
        if listed is not None:
            twice = next((kind for kind in listed if listed.count(kind) > 1), None)
            if twice is not None:
                raise ValueError(f"{self.owner}: category {name!r} lists {twice!r} more than once. List it once.")
            unknown = [kind for kind in there if kind not in listed]
            if unknown:
                at = f" (at {', '.join(sorted(column.kinds[unknown[0]]))})" if column.kinds[unknown[0]] else ""
                raise ValueError(
                    f"{self.owner}: category {name!r} holds {unknown[0]!r} in row {column.rows[unknown[0]]}{at}, which "
                    f"is not among the listed {', '.join(listed)}. List it, or correct the data."
                )
            return listed
        sites = set().union(*column.kinds.values())
        at_one_site = [kind for kind in there if len(column.kinds[kind]) == 1 and len(sites) > 1]
        if at_one_site:
            (only,) = column.kinds[at_one_site[0]]
            raise ValueError(
                f"{self.owner}: category {name!r} holds {at_one_site[0]!r} at one site only, {only!r}: do sites write "
                "the same thing differently? If all values are right, list them: "
                f"categories={{{name!r}: {tuple(there)!r}}}."
            )
        return there

    def classes(self, label: str, column: ColumnSummary) -> dict[str, int]:
        """Assign numbers to the labels: by value if they are numbers, alphabetically if they are words."""
        numbers = {kind: number(kind) for kind in column.kinds}
        if any(value is None for value in numbers.values()):
            return {kind: place for place, kind in enumerate(sorted(numbers))}
        fraction = next((kind for kind, value in numbers.items() if value is not None and value % 1), None)
        if fraction is not None:
            raise ValueError(
                f"{self.owner}: label column {label!r} holds {fraction}, which is not a whole number. Labels are whole "
                "numbers or words; for quantities pass regression=True."
            )
        # 1 and 1.0 are the same label
        ranks = sorted(set(numbers.values()), key=float)  # type: ignore[arg-type]
        return {kind: ranks.index(value) for kind, value in numbers.items()}

    def among(self, label: str, column: ColumnSummary, listed: Sequence[str]) -> dict[str, int]:
        """Assign numbers to the labels by their place in the list."""
        by_value = all_numbers(listed)
        places = {meant(kind, by_value): place for place, kind in enumerate(listed)}
        unknown = [kind for kind in column.kinds if meant(kind, by_value) not in places]
        if unknown:
            first = min(unknown, key=column.rows.__getitem__)
            raise ValueError(
                f"{self.owner}: label column {label!r} holds {first!r} in row {column.rows[first]}, which is not among "
                f"the classes {', '.join(listed)}. List it, with every site the same list, or correct the data."
            )
        return {kind: places[meant(kind, by_value)] for kind in column.kinds}

    def fill(
        self,
        label: str,
        site: str | None,
        chosen: Sequence[str],
        kinds: Mapping[str, Sequence[str]],
        labels: Mapping[str, int],
        sites: Sequence[str],
        classes: int | None,
    ) -> Source:
        """Make the second pass: read the values."""
        widths = [len(kinds[name]) if name in kinds else 1 for name in chosen]
        rows = RowBuffer((sum(widths),))
        targets, places = [], []
        codes: dict[str, list[NDArray[np.int64]]] = {name: [] for name in kinds}
        for block in self.blocks(list(dict.fromkeys([*([site] if site else []), label, *chosen]))):
            x = np.zeros((len(block[label]), sum(widths)), np.float32)
            place = 0
            for name, width in zip(chosen, widths, strict=True):
                if name in kinds:
                    codes[name].append(code(block[name], dict(zip(kinds[name], range(width), strict=True))))
                    x[np.arange(len(x)), place + codes[name][-1]] = 1
                else:
                    x[:, place] = block[name].astype(np.float64)
                place += width
            rows.add(x)
            targets.append(block[label].astype(np.float32) if classes is None else code(block[label], labels))
            if site:
                places.append(code(block[site], dict(zip(sites, range(len(sites)), strict=True))))
        features = rows.tensor()
        where = np.concatenate(places) if site else None
        if where is not None:
            starts = np.cumsum([0, *widths])
            quantities = {repr(name): int(at) for name, at in zip(chosen, starts, strict=False) if name not in kinds}
            warn_of_units(self.owner, features, where, sites, quantities)
        return Source(
            features,
            torch.from_numpy(np.concatenate(targets)),
            classes,
            self.name,
            sites=None if where is None else torch.from_numpy(where),
            site_names=tuple(sites),
            categories={name: torch.from_numpy(np.concatenate(parts)) for name, parts in codes.items()},
        )


def listed_classes(owner: str, classes: object, regression: bool) -> list[str]:
    """Return all classes as text; refuse a list that is not one of different words or whole numbers."""
    if regression:
        raise ValueError(
            f"{owner}: classes={classes!r} with regression=True: a regression has no classes. Leave out one."
        )
    if isinstance(classes, str) or not isinstance(classes, Sequence | np.ndarray):
        raise ValueError(
            f"{owner}: classes should list the values of the label column, such as ['healthy', 'ill'], got {classes!r}."
        )
    for kind in classes:
        if not isinstance(kind, str | int | np.integer) or isinstance(kind, bool) or kind == "":
            raise ValueError(
                f"{owner}: classes are words or whole numbers, got {kind!r} among {list(classes)!r}. Write them as the "
                "table does; true and false of a Parquet file are 1 and 0."
            )
    listed = [str(kind) for kind in classes]
    by_value = all_numbers(listed)
    fraction = next((kind for kind in listed if by_value and float(kind) % 1), None)
    if fraction is not None:
        raise ValueError(
            f"{owner}: classes hold {fraction}, which is not a whole number. Labels are whole numbers or words; for "
            "quantities pass regression=True."
        )
    if len(listed) < 2:
        raise ValueError(f"{owner}: classes={list(classes)!r}: there should be two or more. List all of them.")
    known = set()
    for kind in listed:
        if meant(kind, by_value) in known:
            raise ValueError(f"{owner}: classes list {kind!r} more than once. List every class once.")
        known.add(meant(kind, by_value))
    return listed
