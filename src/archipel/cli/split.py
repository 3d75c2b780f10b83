"""Describe a split: with blocks on a terminal, with numbers in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.text import Text

from archipel.cli.console import out
from archipel.cli.folding import heading, write
from archipel.data import Islands, c_score, class_distances, size_statistics
from archipel.data.scores import DISTANCES, SizeStatistics

BLOCKS = (("·", "bright_black"), ("░", "blue"), ("▒", "cyan"), ("▓", "green"), ("█", "yellow"))
"""From no example of a class to a learner's most frequent class; distinguishable without colours."""


@dataclass(frozen=True)
class LearnerSplit:
    name: str
    examples: int
    classes: tuple[int, ...]
    """Examples of each class."""


@dataclass(frozen=True)
class ClassDistance:
    """A distance between the classes of two learners, from 0 (alike) to 1 (none shared)."""

    mean: float
    max: float


@dataclass(frozen=True)
class SplitSummary:
    source: str
    learners: tuple[LearnerSplit, ...]
    test: int
    """Examples of the global test set."""
    stimuli: int
    sizes: SizeStatistics
    c_score: float | None
    """None for tasks without classes."""
    distances: dict[str, ClassDistance]
    pictures: tuple[str, ...]
    """Files it was drawn into."""


def described(islands: Islands, pictures: Sequence[Path]) -> SplitSummary:
    """Return the numbers of a split."""
    has_classes = islands.classes is not None
    table = islands.class_table().tolist() if has_classes else [[]] * len(islands.learners)
    return SplitSummary(
        islands.name,
        tuple(
            LearnerSplit(name, size, tuple(row))
            for name, size, row in zip(islands.rows.names, islands.sizes(), table, strict=True)
        ),
        len(islands.test),
        len(islands.stimuli),
        size_statistics(islands),
        c_score(islands) if has_classes else None,
        {name: apart(islands, name) for name in DISTANCES} if has_classes and len(table) > 1 else {},
        tuple(map(str, pictures)),
    )


def apart(islands: Islands, distance: str) -> ClassDistance:
    of_two = class_distances(islands, distance)[np.triu_indices(len(islands.learners), 1)]
    return ClassDistance(float(of_two.mean()), float(of_two.max()))


def show_split(split: SplitSummary) -> None:
    show_blocks(split.learners) if out.is_terminal else show_numbers(split.learners)
    write("")
    write(f"{len(split.learners)} learners of {split.source}; {split.test:,} test examples, {split.stimuli:,} stimuli")
    write(f"sizes: {split.sizes}")
    if split.c_score is not None:
        write(f"C-score: {split.c_score:.2f} (0: every learner has the classes of all data; always below 2)")
    for name, distance in split.distances.items():
        write(
            f"{name.replace('_', ' ')} distance between two learners' classes: {distance.mean:.2f} on average, at most "
            f"{distance.max:.2f} (1: none shared)"
        )
    for picture in split.pictures:
        write(f"drawn into {picture}")


def show_blocks(learners: Sequence[LearnerSplit]) -> None:
    """Print a line of blocks for each learner, a block for each class; several lines if the terminal is too narrow."""
    names = max(len("learner"), *(len(learner.name) for learner in learners))
    column = names + len("  examples  ")
    classes = len(learners[0].classes)
    cell = 2 if column + 2 * classes <= out.width else 1
    a_line = max(1, (out.width - column) // cell)
    heading(f"{'learner':{names}}  examples" + (f"  classes 0 to {classes - 1}" if classes else ""))
    for learner in learners:
        for start in range(0, max(1, classes), a_line):
            line = Text(" " * column if start else f"{learner.name:{names}}  {learner.examples:8,}  ")
            for count in learner.classes[start : start + a_line]:
                # rounded up: a single example must be visible
                block, colour = BLOCKS[-(-count * (len(BLOCKS) - 1) // max(learner.classes))]
                line.append(block * cell, colour)
            out.print(line, soft_wrap=True)
    if classes:
        write("")
        shades = " ".join(block for block, _ in BLOCKS)
        write(f"{shades}  from none to as many as of the learner's most frequent class")


def show_numbers(learners: Sequence[LearnerSplit]) -> None:
    """Print a line of numbers for each learner, of any length."""
    header = ["learner", "examples", *map(str, range(len(learners[0].classes)))]
    table = [header, *([one.name, str(one.examples), *map(str, one.classes)] for one in learners)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for name, *numbers in table:
        line = [name.ljust(widths[0]), *(text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True))]
        out.print("  ".join(line), markup=False, highlight=False, soft_wrap=True)
