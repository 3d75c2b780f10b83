"""The colours of the page: distinct with every kind of colour blindness, and readable on their paper."""

from __future__ import annotations

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

CSS = (files("archipel.live") / "page" / "palette.css").read_text()
LIGHT, DARK = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in CSS.split("@media screen")[:2])
SIGHT = {
    "full": np.eye(3),
    # Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}


def linear(colour: str) -> np.ndarray:
    value = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    """Return CIE L*a*b* of a linear colour, where distances are about as large as they look."""
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = matrix @ np.clip(rgb, 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("names", [[f"c{n}" for n in range(7)], ["work", "refused", "silent"]])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_differ_for_every_eye(scheme: str, names: list[str], sight: str) -> None:
    colours = LIGHT if scheme == "light" else {**LIGHT, **DARK}
    seen = {name: lab(SIGHT[sight] @ linear(colours[name])) for name in names}
    close = {
        (one, other): round(float(np.linalg.norm(seen[one] - seen[other])), 1)
        for one, other in itertools.combinations(names, 2)
        if np.linalg.norm(seen[one] - seen[other]) < 10  # a just noticeable difference is about 2.3
    }
    assert not close


@pytest.mark.parametrize("ink", ["ink", "faint", "link", "caution"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable(scheme: str, ink: str) -> None:
    colours = LIGHT if scheme == "light" else {**LIGHT, **DARK}
    papers = ["caution-paper"] if ink == "caution" else ["paper", "card", "band"]
    for paper in papers:
        low, high = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(colours[one])) for one in (ink, paper))
        assert (high + 0.05) / (low + 0.05) >= 4.5, paper  # WCAG AA
