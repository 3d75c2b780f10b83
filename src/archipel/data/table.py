"""A table of anybody's: gone through block by block, looked at column by column, and made into a source.

Laws:
  1. Nothing is guessed: a missing value, a text column that is not said to be a category, a category that only some
     sites know, and a site column with one site are errors that name the column and the way out.
     What is said is held: a class or a kind that is not listed and a quantity outside its range are errors that name
     the row too. So sites that cannot see each other's tables make the same columns and classes of them.
  2. A table is gone through twice, block by block, and never held as text; large ones stay on disk (`lazy`).
  3. Columns of x are the features in their order; a category takes one column for each of its values.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.checks import ArchipelWarning, one_of
from archipel.data.lazy import Rows
from archipel.data.source import Source

INFINITE = ("inf", "+inf", "-inf", "infinity", "+infinity", "-infinity")

UNITS = 50.0
"""Sites whose medians differ more than this may measure in different units: cm and m differ by 100."""

CONVERSIONS = (
    ("10 x", 10, 0),
    ("x / 10", 1 / 10, 0),
    ("100 x", 100, 0),
    ("x / 100", 1 / 100, 0),
    ("1000 x", 1000, 0),
    ("x / 1000", 1 / 1000, 0),
    ("2.54 x", 2.54, 0),
    ("x / 2.54", 1 / 2.54, 0),
    ("0.4536 x", 0.4536, 0),
    ("x / 0.4536", 1 / 0.4536, 0),
    ("1.8 x + 32", 1.8, 32),
    ("(x - 32) / 1.8", 1 / 1.8, -32 / 1.8),
)
"""From one usual unit to another, as a factor and what is added: powers of ten, inches, pounds, Fahrenheit."""

ROWS = 2**14
"""Rows of a table that are looked at together."""

Categories = Sequence[str] | Mapping[str, Sequence[str]]
Classes = Sequence[str | int]
Ranges = Mapping[str, tuple[float, float]]

Block = Mapping[str, NDArray[Any]]
"""Columns of some rows: text in which "" is missing, or numbers in which NaN is."""

Blocks = Callable[[Sequence[str]], Iterator[Block]]
"""All blocks of the columns with these names, from the start; may be asked for twice."""


@dataclass
class Column:
    """What is known of one column after the first pass."""

    missing: int = 0
    first: int = 0
    """The first row with a missing value, from 1."""
    text: str | None = None
    """A value that is not a number, if there is one."""
    kinds: dict[str, set[str]] = field(default_factory=dict)
    """Its values and the sites that know them, of columns whose values matter."""
    rows: dict[str, int] = field(default_factory=dict)
    """The first row of each of these values, from 1."""
    outside: int = 0
    """Values outside its range."""
    stray: tuple[int, float] = (0, 0.0)
    """The first row with such a value, from 1, and the value."""


@dataclass(frozen=True)
class Table:
    """A table that can be gone through block by block."""

    owner: str
    name: str
    header: Sequence[str]
    blocks: Blocks

    def choose(self, label: str, site: str | None, features: Sequence[str] | None) -> list[str]:
        """The columns that are features."""
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
        """The source in the table."""
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
                    f"{self.owner}: column {name!r} holds text, such as {seen[name].text!r}. If it is a category, say "
                    f"categories=[{name!r}]; if not, leave it out with features=[...]."
                )
        self.refuse_strays(seen, limits)
        kinds = {name: self.kinds_of(name, seen[name], categories) for name in categories}
        sites = in_order(seen[site].kinds) if site else []
        if len(sites) == 1:
            raise ValueError(
                f"{self.owner}: column {site!r} names one site only, {sites[0]!r}. Name the column that tells sites "
                "apart, or leave site out and split the data over learners."
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
        """The lowest and highest value of quantities, refused where they make no sense."""
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
    ) -> dict[str, Column]:
        """The first pass: what is missing, what is text, which values there are, and what is outside its range."""
        columns = list(dict.fromkeys([*([site] if site else []), label, *chosen]))
        seen = {name: Column() for name in columns}
        counted = {*categories, site} | (set() if regression else {label})
        row = 0
        for block in self.blocks(columns):
            where = words(block[site]) if site else None
            for name in columns:
                values, column = block[name], seen[name]
                gone = absent(values)
                if gone.any():
                    column.first = column.first or row + int(gone.argmax()) + 1
                    column.missing += int(gone.sum())
                if name in counted:
                    here = words(values)
                    present = np.flatnonzero(~gone)
                    kinds, firsts = np.unique(here[present], return_index=True)
                    for kind, first in zip(kinds.tolist(), present[firsts].tolist(), strict=True):
                        at = column.kinds.setdefault(kind, set())
                        column.rows.setdefault(kind, row + first + 1)
                        if where is not None and name in categories:
                            at.update(np.unique(where[here == kind]).tolist())
                elif column.text is None and values.dtype.kind == "U":
                    column.text = first_text(values[~gone])
                if name in limits and column.text is None:
                    low, high = limits[name]
                    numbers = np.full(len(values), np.nan)
                    numbers[~gone] = values[~gone].astype(np.float64)
                    outside = (numbers < low) | (numbers > high)
                    if outside.any() and not column.outside:
                        first = int(outside.argmax())
                        column.stray = (row + first + 1, float(numbers[first]))
                    column.outside += int(outside.sum())
            row += len(block[columns[0]])
        if row == 0:
            raise ValueError(f"{self.owner}: {self.name!r} has no rows. Give at least one example.")
        return seen

    def refuse_missing(self, seen: Mapping[str, Column]) -> None:
        """One error for all missing values."""
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

    def refuse_strays(self, seen: Mapping[str, Column], limits: Ranges) -> None:
        """One error for all values outside their ranges."""
        told = []
        for name, (low, high) in limits.items():
            if not seen[name].outside:
                continue
            # a pass of its own: only a table that is refused needs its median
            values = np.concatenate([block[name].astype(np.float64) for block in self.blocks([name])])
            row, value = seen[name].stray
            told.append(
                f"{name!r} in {seen[name].outside} of {len(values)} rows is not from {spelled(low)} to {spelled(high)} "
                f"(first in row {row}: {spelled(value)}{unit_hint(float(np.median(values)), low, high)})"
            )
        if told:
            raise ValueError(
                f"{self.owner}: values of {self.name!r} are outside their ranges: {', '.join(told)}. Convert or "
                "correct them, or widen the range."
            )

    def kinds_of(self, name: str, column: Column, categories: Categories) -> list[str]:
        """The values of a category: as listed, or those of the data if all sites know them."""
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
        everyone = set().union(*column.kinds.values())
        lonely = [kind for kind in there if len(column.kinds[kind]) == 1 and len(everyone) > 1]
        if lonely:
            (only,) = column.kinds[lonely[0]]
            raise ValueError(
                f"{self.owner}: category {name!r} holds {lonely[0]!r} at one site only, {only!r}: do sites write the "
                f"same thing differently? If all values are meant, list them: "
                f"categories={{{name!r}: {tuple(there)!r}}}."
            )
        return there

    def classes(self, label: str, column: Column) -> dict[str, int]:
        """The number of every label: by value if they are numbers, by alphabet if they are words."""
        numbers = {kind: number(kind) for kind in column.kinds}
        if any(value is None for value in numbers.values()):
            return {kind: place for place, kind in enumerate(sorted(numbers))}
        fraction = next((kind for kind, value in numbers.items() if value is not None and value % 1), None)
        if fraction is not None:
            raise ValueError(
                f"{self.owner}: label column {label!r} holds {fraction}, which is not a whole number. Labels are whole "
                "numbers or words; for quantities say regression=True."
            )
        # 1 and 1.0 are one label
        ranks = sorted(set(numbers.values()), key=float)  # type: ignore[arg-type]
        return {kind: ranks.index(value) for kind, value in numbers.items()}

    def among(self, label: str, column: Column, listed: Sequence[str]) -> dict[str, int]:
        """The number of every label: its place in the list."""
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
        """The second pass: the values themselves."""
        widths = [len(kinds[name]) if name in kinds else 1 for name in chosen]
        rows = Rows((sum(widths),))
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
    """All classes as text, refused where they make no sense."""
    if regression:
        raise ValueError(f"{owner}: classes={classes!r} with regression=True: quantities have none. Leave out one.")
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
            "quantities say regression=True."
        )
    if len(listed) < 2:
        raise ValueError(f"{owner}: classes={list(classes)!r}: a list of classes has two or more. List all of them.")
    met = set()
    for kind in listed:
        if meant(kind, by_value) in met:
            raise ValueError(f"{owner}: classes list {kind!r} more than once. List every class once.")
        met.add(meant(kind, by_value))
    return listed


def all_numbers(kinds: Sequence[str]) -> bool:
    return all(number(kind) is not None for kind in kinds)


def meant(kind: str, by_value: bool) -> str | float:
    """What spellings of a class have in common: where all are numbers, 1 and 1.0 are one."""
    value = number(kind) if by_value else None
    return kind if value is None else value


def low_and_high(owner: str, name: str, pair: object) -> tuple[float, float]:
    """A range as two numbers; one of them may be infinite."""
    ends = list(pair) if isinstance(pair, Sequence) else []
    sound = all(isinstance(end, int | float | np.number) and not isinstance(end, bool) for end in ends)
    if len(ends) != 2 or not sound or not ends[0] < ends[1]:
        raise ValueError(
            f"{owner}: the range of {name!r} should be its lowest and its highest value, such as [30, 250], got "
            f"{pair!r}."
        )
    return float(ends[0]), float(ends[1])


def unit_hint(median: float, low: float, high: float) -> str:
    """A question, where a column that lies outside its range would be inside in another unit."""
    if low <= median <= high:
        return ""
    fits = [
        f"{way} = {median * factor + shift:.4g}"
        for way, factor, shift in CONVERSIONS
        if low <= median * factor + shift <= high
    ]
    if not fits:
        return ""
    return f"; its median x = {median:.4g} would be inside as {' or '.join(fits)}: is it in another unit?"


def spelled(value: float) -> str:
    """A number as people write it: 250, not 250.0."""
    return repr(value).removesuffix(".0")


def absent(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a column has no value that can be used: it is missing, or an infinite number."""
    gone: NDArray[np.bool_]
    if values.dtype.kind == "U":
        gone = (values == "") | np.isin(np.strings.lower(values), INFINITE)
    else:
        gone = ~np.isfinite(values)
    return gone


def words(values: NDArray[Any]) -> NDArray[np.str_]:
    """A column as text; whole numbers without a point."""
    if values.dtype.kind == "U":
        return values
    texts = [str(int(value)) if np.isfinite(value) and value % 1 == 0 else str(value) for value in values.tolist()]
    return np.array(texts, dtype=np.str_)


def number(text: str) -> float | None:
    """The number that a text says, if it does."""
    try:
        return float(text)
    except ValueError:
        return None


def first_text(values: NDArray[Any]) -> str | None:
    """The first value that is not a number, if there is one."""
    try:
        values.astype(np.float64)
    except ValueError:
        return next((value for value in values.tolist() if number(value) is None), None)
    return None


def in_order(kinds: Mapping[str, object]) -> list[str]:
    """Values by number if all are numbers, by alphabet if not."""
    numbers = {kind: number(kind) for kind in kinds}
    if any(value is None for value in numbers.values()):
        return sorted(kinds)
    return sorted(kinds, key=lambda kind: (numbers[kind], kind))


def code(values: NDArray[Any], numbers: Mapping[str, int]) -> NDArray[np.int64]:
    """The numbers of values."""
    kinds, places = np.unique(words(values), return_inverse=True)
    return np.array([numbers[kind] for kind in kinds.tolist()], dtype=np.int64)[places.ravel()]


def warn_of_units(
    owner: str, x: Tensor, where: NDArray[np.int64], sites: Sequence[str], columns: Mapping[str, int]
) -> None:
    """Warn of columns that sites seem to measure in different units."""
    if not columns:
        return
    medians = []
    for place in range(len(sites)):
        mine = np.flatnonzero(where == place)
        # a thousand rows of each site are enough for a median
        some = torch.from_numpy(mine[:: max(1, len(mine) // 1000)])
        medians.append(np.median(np.abs(x[some].numpy()), axis=0))
    table = np.stack(medians)
    for column, at in columns.items():
        told = np.flatnonzero(table[:, at] > 0)
        if len(told) < 2:
            continue
        low, high = told[table[told, at].argmin()], told[table[told, at].argmax()]
        if table[high, at] > UNITS * table[low, at]:
            warnings.warn(
                f"{owner}: column {column} has a median of {table[high, at]:g} at {sites[high]!r} and of "
                f"{table[low, at]:g} at {sites[low]!r}. Do sites measure in different units? If so, convert them; if "
                "not, standardise it for every learner.",
                ArchipelWarning,
                stacklevel=5,
            )
