"""Heart disease (UCI): 920 patients of four hospitals, with 13 findings each.

The four hospitals (Cleveland 303, Hungary 294, Switzerland 123, Long Beach VA 200) are the sites. The classes are no
disease and disease; with `classes=5` the degrees 0 to 4 of the files.

Many values are missing ('?'; Hungary, Switzerland and Long Beach rarely recorded ca and thal). Medians of the data
would leak information from test patients, so nothing is computed from the data:
  a category (sex, chest pain …) has one column per value, and a missing one is a row of zeros;
  a missing quantity becomes a fixed ordinary value, and a column `<name> missing` marks it.
A resting blood pressure or cholesterol of 0 means that it was not measured (all 123 cholesterols of Switzerland) and
counts as missing. x has the 30 columns of `FEATURES`, in the units of the files; standardise after splitting.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from archipel.core.checks import require
from archipel.data.fetch import DataFiles, File, fetch
from archipel.data.source import Source

ADDRESS = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/"
HOSPITALS = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
WANTED = DataFiles(
    "heart_disease",
    (
        tuple(
            File(f"processed.{name}.data", (f"{ADDRESS}processed.{name}.data",), f"sha256:{digest}")
            for name, digest in HOSPITALS.items()
        ),
    ),
)
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg"),
    *("thalach", "exang", "oldpeak", "slope", "ca", "thal", "num"),
)
KINDS: dict[str, tuple[int, ...]] = {
    "sex": (0, 1),
    "cp": (1, 2, 3, 4),
    "fbs": (0, 1),
    "restecg": (0, 1, 2),
    "exang": (0, 1),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}
"""Findings that are categories, and their values in the files."""

ORDINARY = {"age": 55.0, "trestbps": 120.0, "chol": 200.0, "thalach": 150.0, "oldpeak": 0.0, "ca": 0.0}
"""Findings that are quantities, and the value that replaces a missing one."""

ZERO_IS_MISSING = ("trestbps", "chol")

FEATURES: tuple[str, ...] = tuple(
    feature
    for name in COLUMNS[:-1]
    for feature in (
        [f"{name}={value}" for value in KINDS[name]]
        if name in KINDS
        else [name] + [f"{name} missing"] * (name != "age")
    )
)
"""The columns of x."""


def heart_disease(classes: int = 2, verify: bool = True) -> Source:
    """Load 920 patients with 30 numbers each, with or without heart disease; their four hospitals are the sites.

    classes: 2, disease or not, or 5, its degrees 0 to 4; verify: refuse files that are not the official ones.
    """
    require(
        classes in (2, 5),
        f"heart_disease: classes should be 2 (disease or not) or 5 (degrees 0 to 4), got {classes!r}.",
    )
    found = fetch(WANTED, verify)
    tables = [findings(found.read(number), str(path)) for number, path in enumerate(found.paths)]
    values = np.concatenate(tables)
    degree = values[:, -1].astype(np.int64)
    columns: list[NDArray[np.float64]] = []
    categories = {}
    for name, column in zip(COLUMNS[:-1], values.T, strict=False):
        if name in KINDS:
            hot = column[:, None] == np.array(KINDS[name])
            columns += list(hot.T.astype(np.float64))
            # missing is a category too
            categories[name] = torch.from_numpy(np.where(hot.any(1), hot.argmax(1), len(KINDS[name])))
        else:
            missing = np.isnan(column) | ((column == 0) & (name in ZERO_IS_MISSING))
            columns.append(np.where(missing, ORDINARY[name], column))
            if name != "age":
                columns.append(missing.astype(np.float64))
    return Source(
        torch.from_numpy(np.stack(columns, axis=1).astype(np.float32)),
        torch.from_numpy(np.minimum(degree, classes - 1)),
        classes,
        "heart_disease",
        sites=torch.from_numpy(np.repeat(np.arange(len(tables)), [len(table) for table in tables])),
        site_names=tuple(HOSPITALS),
        categories=categories,
    )


def findings(data: bytes, what: str) -> NDArray[np.float64]:
    """Return the table of one hospital: [patients, 14], with NaN for missing values."""
    rows = []
    for number, line in enumerate(data.decode("ascii", "replace").split(), start=1):
        fields = line.split(",")
        try:
            row = [float("nan") if field == "?" else float(field) for field in fields]
        except ValueError:
            row = []
        if len(row) != len(COLUMNS) or row[-1] not in range(5) or np.isnan(row[0]):
            raise ValueError(
                f"{what}: line {number} should be {len(COLUMNS)} numbers or '?', the last from 0 to 4, got "
                f"{line[:80]!r}. Copy or download the file again."
            )
        for name, value in zip(COLUMNS, row, strict=True):
            if name in KINDS and not np.isnan(value) and value not in KINDS[name]:
                raise ValueError(f"{what}: line {number} has {name}={value:g}. Known: {KINDS[name]}.")
        rows.append(row)
    return np.array(rows)
