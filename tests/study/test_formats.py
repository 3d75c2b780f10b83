"""The lines of places in TOML files, and studies that are written and read again."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import archipel
from archipel.study.files import write_study
from archipel.study.formats import Place, read_file

TOML = """\
title = "x"  # line 1
training.rate = 0.1
training.epochs = 2
seeds = [
  1,  # one

  2,
]
algorithms = [
    "fedavg",
    { name = "fedprox", mu = 1 },
]
[data]
source = {name = "digits", inner = {a = 1}}
[data.split]
a.b = 1
"quoted key" = 3
[fleet]
[[fleet.groups]]
name = "[data]"
text = '''
title = "not this one"
[data]'''
[[fleet.groups]]
count = 2
[grid]
training.rate = [0.1,
  0.2]
[later.deep]
z = 1
[data.natural]
q = 1
"""
LINES: dict[Place, int | None] = {
    ("title",): 1,
    ("training",): 2,
    ("training", "rate"): 2,
    ("training", "epochs"): 3,
    ("seeds",): 4,
    ("seeds", 0): 5,
    ("seeds", 1): 7,
    ("algorithms", 0): 10,
    ("algorithms", 1): 11,
    ("algorithms", 1, "mu"): 11,
    ("data", "source"): 14,
    ("data", "source", "inner", "a"): 14,
    ("data", "split"): 15,
    ("data", "split", "a", "b"): 16,
    ("data", "split", "quoted key"): 17,
    ("fleet",): 18,
    ("fleet", "groups"): 19,
    ("fleet", "groups", 0): 19,
    ("fleet", "groups", 0, "text"): 21,
    ("fleet", "groups", 1): 24,
    ("fleet", "groups", 1, "count"): 25,
    ("grid", "training", "rate"): 27,
    ("grid", "training", "rate", 1): 28,
    ("later",): 29,
    ("later", "deep", "z"): 30,
    ("data", "natural"): 31,
    ("data", "natural", "q"): 32,
    ("missing",): None,
    ("title", "missing"): None,
    ("seeds", 2): None,
    ("fleet", "groups", 2): None,
}


@pytest.mark.parametrize(("place", "line"), LINES.items())
def test_a_place_in_toml_has_its_line(tmp_path: Path, place: Place, line: int | None) -> None:
    path = tmp_path / "study.toml"
    path.write_text(TOML)
    _, lines = read_file(path)
    assert lines(place) == line


def test_every_study_of_the_package_is_the_same_when_it_is_written_and_read(tmp_path: Path) -> None:
    paths = sorted(Path(archipel.__file__).parent.rglob("*.toml"))
    assert len(paths) > 10
    for path in paths:
        raw = tomllib.loads(path.read_text())
        write_study(raw, tmp_path / path.name)
        assert tomllib.loads((tmp_path / path.name).read_text()) == raw


def test_awkward_values_survive_a_toml_file(tmp_path: Path) -> None:
    raw = {
        "table": {"inner": {"deep": {}}, "after a table": 1, "empty": [], "nested": [[1, 2], []]},
        "mixed": ["name", {"name": "x", "inner": {"a": [1.0, 1e-12]}}],
        "dotted.key": 'a "quote", a \\ and a\nnew line',
        "last": True,
        "numbers": [float("inf"), -0.0, 2**62],
    }
    write_study(raw, tmp_path / "study.toml")
    assert tomllib.loads((tmp_path / "study.toml").read_text()) == raw
