"""Colour skew: which images become grey, how grey they are, and where the groups go."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import archipel as ap
from archipel.data import Source
from archipel.data.colour import luma
from tests.real_files import needs

IMAGES = Source(
    torch.rand(600, 3, 4, 4, generator=torch.Generator().manual_seed(0)) + torch.tensor([0, 1, 2]).reshape(3, 1, 1),
    torch.arange(600) % 10,
    10,
    "images",
    test=torch.arange(500, 600),
)


def grey(x: torch.Tensor) -> torch.Tensor:
    return (x[:, 0] == x[:, 1]).flatten(1).all(1) & (x[:, 0] == x[:, 2]).flatten(1).all(1)


def test_grey_is_luma() -> None:
    assert luma(torch.tensor([1.0, 0, 0]).reshape(1, 3, 1, 1)).flatten().tolist() == pytest.approx([0.299] * 3)
    white = torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    assert luma(white).tolist() == white.tolist()
    assert luma(torch.tensor([255, 128, 0], dtype=torch.uint8).reshape(1, 3, 1, 1)).flatten().tolist() == [151] * 3


@pytest.mark.parametrize(("share", "first", "second"), [(0.95, 48, 3), ("95-5", 48, 3), (0.75, 38, 13), (0.5, 25, 25)])
def test_the_share_of_every_class_turns_grey(share: float | str, first: int, second: int) -> None:
    skewed = IMAGES.colour_skew(share)
    turned = torch.bincount(IMAGES.y[:500][grey(skewed.x[:500])], minlength=10)
    assert turned.tolist() == [first] * 5 + [second] * 5
    stay = ~grey(skewed.x)
    assert torch.equal(skewed.x[stay], IMAGES.x[stay])
    assert not grey(IMAGES.x).any()  # the source is as it was


def test_the_test_set_is_alike_or_colour_or_grey() -> None:
    counts = {
        test: torch.bincount(
            IMAGES.y[500:][grey(IMAGES.colour_skew("80-20", test=test).x[500:])], minlength=10
        ).tolist()
        for test in ("alike", "colour", "grey")
    }
    assert counts == {"alike": [8] * 5 + [2] * 5, "colour": [0] * 10, "grey": [10] * 10}


def test_each_group_is_at_one_collaborator() -> None:
    skewed = IMAGES.colour_skew(0.95)
    islands = skewed.split(learners=2, classes="disjoint(5)")
    assert (islands.class_table() > 0).int().tolist() == [[1] * 5 + [0] * 5, [0] * 5 + [1] * 5]
    assert islands.sizes() == [250, 250]  # all of them
    shares = [grey(islands.x[one.train]).float().mean().item() for one in islands.learners]
    assert shares == pytest.approx([0.96, 0.06])
    assert islands.name == "images, 95% and 5% grey"


def test_the_seed_chooses_the_images() -> None:
    one, same, other = (IMAGES.colour_skew(0.5, seed=seed).x for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


BAD: dict[str, Any] = {
    "x should have the shape [examples, 3, height, width], got (600, 48)": (replace(IMAGES, x=IMAGES.x.flatten(1)), {}),
    "two groups need an even number of classes, but 'images' has 11": (replace(IMAGES, classes=11), {}),
    "share should be from 0 to 1, or two percentages such as '95-5', got 95": (IMAGES, {"share": 95}),
    "such as '95-5', got '95-10'": (IMAGES, {"share": "95-10"}),
    "test should be one of alike, half, colour, grey, got 'gray'. Did you mean 'grey'?": (IMAGES, {"test": "gray"}),
    "'images' has no official test set": (replace(IMAGES, test=None), {"test": "grey"}),
}


@pytest.mark.parametrize("message", BAD)
def test_what_cannot_be_skewed_is_refused(message: str) -> None:
    source, arguments = BAD[message]
    with pytest.raises(ValueError, match="colour_skew: ") as error:
        source.colour_skew(**arguments)
    assert message in str(error.value)


@pytest.mark.slow
@needs("cifar10")
def test_real_images(real: Path) -> None:
    islands = ap.data.cifar10().colour_skew("95-5").split(learners=2, classes="disjoint(5)", stimuli=0)
    shares = [grey(islands.x[one.train]).double().mean().item() for one in islands.learners]
    assert shares == pytest.approx([0.95, 0.05], abs=0.01)  # some photographs are grey to begin with
    assert np.ptp(islands.sizes()) == 0
