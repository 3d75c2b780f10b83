"""The heat map: files that are what they say, the same for the same islands."""

import builtins
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch

from archipel.data import Islands, Source, digits, from_arrays, heat_map

matplotlib = pytest.importorskip("matplotlib")
SPLIT = digits().split(4, "powerlaw", 3)


@pytest.mark.slow
def test_png_and_svg(tmp_path: Path) -> None:
    written = heat_map(SPLIT, tmp_path / "new folder" / "classes")
    assert [path.name for path in written] == ["classes.png", "classes.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG\r\n")
    assert ET.parse(written[1]).getroot().tag.endswith("svg")
    assert heat_map(SPLIT, str(tmp_path / "one.svg")) == [tmp_path / "one.svg"]


@pytest.mark.slow
def test_the_same_islands_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = heat_map(SPLIT, tmp_path / "a"), heat_map(digits().split(4, "powerlaw", 3), tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def words(islands: Islands, path: Path, **arguments: str) -> set[str]:
    """The texts of a picture, from an SVG that keeps them as text."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        heat_map(islands, path, **arguments)
    return {part.text or "" for part in ET.parse(path).iter() if part.tag.endswith("text")}


@pytest.mark.slow
def test_axes_have_names_and_units(tmp_path: Path) -> None:
    shown = words(SPLIT, tmp_path / "a.svg")
    assert {"learner", "class", "examples", "training examples (grey: none)", "digits: 4 learners, 10 classes"} <= shown
    assert {learner.name for learner in SPLIT.learners} <= shown
    assert {str(number) for number in range(10)} <= shown
    assert {f"{number:,}" for number in SPLIT.class_table().flatten().tolist() if number} <= shown
    shown = words(SPLIT, tmp_path / "b.svg", values="share", title="Digits")
    assert {"part of the learner's examples (grey: none)", "Digits"} <= shown


@pytest.mark.slow
def test_many_learners_and_classes_stay_legible(tmp_path: Path) -> None:
    many = Source(torch.zeros(3000, 1), torch.arange(3000) % 60, 60, "many").split(120, classes=5)
    shown = words(many, tmp_path / "many.svg")
    assert {"000", "005", "115"} <= shown
    assert "001" not in shown
    assert len(shown) < 120


@pytest.mark.slow
def test_natural_learners_are_named(tmp_path: Path) -> None:
    source = Source(
        torch.zeros(40, 1),
        torch.arange(40) % 2,
        2,
        "care",
        sites=torch.arange(40) // 20,
        site_names=("St. John", "Ulm"),
    )
    assert {"00-St._John", "01-Ulm"} <= words(source.natural(), tmp_path / "care.svg")


@pytest.mark.slow
def test_one_class_and_one_learner_can_be_drawn(tmp_path: Path) -> None:
    heat_map(Source(torch.zeros(9, 1), torch.zeros(9).long(), 1, "one").split(1), tmp_path / "one.png")


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'a.pdf' should end in .png or .svg"):
        heat_map(SPLIT, tmp_path / "a.pdf")
    with pytest.raises(ValueError, match="values should be one of examples, share, got 'shares'"):
        heat_map(SPLIT, tmp_path / "a.png", values="shares")
    with pytest.raises(ValueError, match="has no classes"):
        heat_map(from_arrays(torch.ones(9, 1), torch.linspace(0, 1, 9)).split(2), tmp_path / "a.png")


def test_without_matplotlib_one_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install '\.\[plots\]'"):
        heat_map(SPLIT, tmp_path / "a.png")
