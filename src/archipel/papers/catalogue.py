"""The reproductions by name."""

from __future__ import annotations

import importlib

from archipel.core.checks import nearest, require
from archipel.papers.reproduction import Reproduction

NAMES = (
    "dvw-table1",
    "dvw-table2",
    "dvw-table3",
    "dvw-frequency",
    "dvw-fig2",
    "dvw-fig3-4",
    "dvw-fig9",
    "fed2a-table4",
    "dnc-table1",
    "dnc-table2",
    "dnc-table3",
    "dnc-fig4-6",
    "dnc-fig7",
    "hdafl-table3",
    "hdafl-table4",
    "hdafl-table5",
    "radfed-table1",
    "radfed-table3",
    "radfed-fig6-7",
)


def reproduction(name: str) -> Reproduction:
    """Return a reproduction by name; "dvw-table1" is REPRODUCTION of papers/dvw/table1.py."""
    require(
        name in NAMES, f"There is no reproduction {name!r}; did you mean {nearest(name, NAMES)!r}? --list names all."
    )
    paper, _, what = name.partition("-")
    module = importlib.import_module(f"archipel.papers.{paper}.{what.replace('-', '_')}")
    found: Reproduction = module.REPRODUCTION
    assert found.name == name
    return found
