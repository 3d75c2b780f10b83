"""`archipel new`: create a project with a network, data, a study and a test that run as they are."""

from __future__ import annotations

import csv
import math
import shlex
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from archipel.cli.console import AsJson, out, print_json

FILES = ("README.md", "study.toml", "network.py", "test_study.py")
"""Files that are copied; data.csv is generated."""

PLANTS = {"north": (250, 60.0, 0.2), "south": (140, 75.0, 0.5), "west": (60, 68.0, 0.8)}
"""Machines of each plant, their mean temperature, and the share of them that is of the new kind."""


def new(
    folder: Annotated[Path, typer.Argument(help="A folder that is not there yet, or is empty.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Create a project: a study, a network, made-up data and a test, all of which run."""
    refuse_what_is_there(folder)
    folder.mkdir(parents=True, exist_ok=True)
    templates = resources.files("archipel.cli") / "project"
    for name in FILES:
        (folder / name).write_bytes((templates / name).read_bytes())
    write_table(folder / "data.csv")
    made = [*FILES, "data.csv"]
    commands = [f"cd {shlex.quote(str(folder))}", "archipel run study.toml", "python -m pytest"]
    if as_json:
        print_json({"folder": str(folder), "files": made, "next": commands})
        return
    for line in (f"{folder}: {', '.join(made)}", "README.md tells how to put your own data here. Next:"):
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    for command in commands:
        out.print(f"  {command}", style="cyan", markup=False, highlight=False, soft_wrap=True)


def refuse_what_is_there(folder: Path) -> None:
    """Refuse to overwrite files."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise FileExistsError(f"archipel new: {place} is a file, not a folder. Give another name.")
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(
            f"archipel new: {folder} exists and is not empty; nothing was changed. Give the name of a new "
            f"folder, such as {folder / 'study'}."
        )


def write_table(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as stream:
        rows = list(machines())
        writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def machines(seed: int = 0) -> Iterator[dict[str, str | float]]:
    """Return the rows of a synthetic table: machines of three plants, and whether they failed.

    A machine fails with a chance that rises with its temperature, its hours and, if it is an old one, its vibration.
    Plants differ in size, in temperature and in kinds, so that learners do. The same seed gives the same table.
    """
    random = np.random.default_rng(seed)
    for plant, (count, temperature, newer) in PLANTS.items():
        for _ in range(count):
            kind = "new" if random.random() < newer else "old"
            degrees, vibration, hours = random.normal(temperature, 8), random.gamma(2, 1.5), random.uniform(0, 10)
            strain = (degrees - 70) / 4 + (hours - 5) / 2 + (vibration - 3) * (kind == "old")
            yield {
                "plant": plant,
                "kind": kind,
                "temperature": round(degrees, 1),
                "vibration": round(vibration, 2),
                "thousand_hours": round(hours, 2),
                "failed": "yes" if random.random() < 1 / (1 + math.exp(-strain)) else "no",
            }
