"""The studies of a reproduction, and the scales at which they are run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from archipel.core.checks import require

ScaleName: TypeAlias = Literal["smoke", "small", "full"]


@dataclass(frozen=True)
class StudyPart:
    """One study: a checked-in file, and what this part of the table changes in it."""

    name: str
    file: str
    """Beside the module that names it."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key, as after `--set`: {"data.split.sizes": "powerlaw"}."""
    trained: bool = True
    """False: only its data are looked at, and nothing is run."""


@dataclass(frozen=True)
class Scale:
    """A scale: how much of a reproduction is run."""

    says: str
    """Cells, network, samples, rounds and seeds, in words."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """In every study."""
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """In the studies of this file, after those."""
    parts: tuple[str, ...] | None = None
    """Studies that are run, by name; None: all."""


@dataclass(frozen=True, kw_only=True)
class ScaledStudies:
    """Studies that are run together, at any of some scales."""

    name: str
    title: str
    folder: Path
    """The folder of the study files."""
    parts: tuple[StudyPart, ...]
    scales: Mapping[ScaleName, Scale]

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        require(len(set(names)) == len(names), f"{self.name}: two parts have the same name.")
        for scale in self.scales.values():
            unknown = set(scale.parts or ()) - set(names) | set(scale.files) - {part.file for part in self.parts}
            require(not unknown, f"{self.name}: there is no part or file {', '.join(sorted(unknown))}.")

    def parts_at(self, scale: ScaleName) -> tuple[StudyPart, ...]:
        """Return the studies that are run at a scale."""
        wanted = self.scales[scale].parts
        return tuple(part for part in self.parts if wanted is None or part.name in wanted)
