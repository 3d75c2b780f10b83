"""The table of the security review names every finding once, and only tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "security-review.md"
ROW = re.compile(r"^\| (\d+) \| (\w+) \|.*\| ([^|]*) \|$", re.MULTILINE)

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="not in a checkout of the source")


@cache
def functions_of(path: Path) -> frozenset[str]:
    """Return the names of the test functions of a file."""
    return frozenset(node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef))


def test_every_finding_is_listed_once() -> None:
    assert [int(number) for number, _, _ in ROW.findall(PAGE.read_text())] == list(range(1, 23))


def test_every_named_test_exists() -> None:
    for number, _, tests in ROW.findall(PAGE.read_text()):
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", tests)
        assert len(named) == len(tests.split(",")) > 0, f"finding {number} names something that is no test"
        for file, function in named:
            assert function in functions_of(ROOT / "tests" / file), f"finding {number}: {file}::{function}"
