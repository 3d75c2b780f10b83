"""What became of every claim at the scale `small`, as `archipel reproduce --list` shows it.

`verdicts.json` is written from the outcomes in docs/papers together with the pages, and installed with the package.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = Path(__file__).with_name("verdicts.json")


@dataclass(frozen=True)
class StoredVerdicts:
    """The verdicts of one table."""

    scale: str
    seeds: tuple[int, ...]
    """Empty where nothing is drawn."""
    scored_earlier: bool
    """Its figures rest on scores that were computed in another way than today's."""
    holds: Mapping[str, bool | None]
    """By claim; None: it could not be judged."""

    def shown(self) -> str:
        """Return in a few words how they were found."""
        seeds = f", {len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}" if self.seeds else ""
        return f"{self.scale}{seeds}" + (", earlier scoring" if self.scored_earlier else "")


def written(verdicts: Mapping[str, StoredVerdicts]) -> str:
    """Return the text of the file."""
    return json.dumps({name: asdict(one) for name, one in verdicts.items()}, indent=1) + "\n"


def read() -> dict[str, StoredVerdicts]:
    """Return the verdicts of every table that was run."""
    return {
        name: StoredVerdicts(**{**stored, "seeds": tuple(stored["seeds"])})
        for name, stored in json.loads(FILE.read_text()).items()
    }
