"""The tables of docs/explanation/noise-and-secure-sums.md: what each method is said to do with a mechanism."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from archipel import algorithms
from archipel.core.parts import Equally
from archipel.core.parts.privacy import Privacy

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "noise-and-secure-sums.md"


def check_table(mechanism: Privacy, *, weighting: bool) -> None:
    """Try every method; weighting: the table is about methods that weigh learners alike, where they can."""
    head = f"| method | with `{type(mechanism).__name__}` |"
    table = PAGE.read_text().split(head)[1].split("\n\n")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \|$", table, re.MULTILINE)
    told = {name: said for cell, said in rows for name in re.findall(r"`(\w+)`", cell) if name in algorithms.__all__}
    told |= {name: told["radfed"] for name in algorithms.__all__ if name.startswith("radfed")}
    for name, said in told.items():
        method = getattr(algorithms, name)(**({"split": 1} if "split" in said else {}))
        if weighting and not said.startswith("refused: weights"):
            method = replace(method, weighting=Equally())
        try:
            replace(method, privacy=mechanism)
            refused = ""
        except ValueError as error:
            refused = str(error)
        assert bool(refused) == said.startswith("refused"), f"{name}: {refused}"
    assert set(algorithms.__all__) - told.keys() == {"local_only", "centralised"}
