"""A convolution, its maxima and rectifying in C: what torch computes, up to rounding."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from archipel.kernels.native import convolution
from archipel.kernels.native.convolution import convolved_maxima, convolved_maxima_in_torch

pytestmark = pytest.mark.skipif(convolution._native() is None, reason="no library, or no AVX2")

SHAPES = {
    # batch, channels, height, width, filters, rows, columns, padding
    "W1's first": (3, 1, 28, 28, 32, 5, 5, (2, 2)),
    "W1's second": (3, 32, 14, 14, 64, 5, 5, (2, 2)),
    "W3's second": (2, 64, 16, 16, 64, 5, 5, (2, 2)),
    "one window": (1, 1, 2, 2, 1, 1, 1, (0, 0)),
    "a row and a column left over": (2, 3, 9, 11, 5, 3, 3, (0, 0)),
    "filters of half a register": (2, 8, 8, 8, 8, 3, 3, (1, 1)),
    "filters of a register and one": (2, 5, 7, 6, 17, 2, 4, (1, 0)),
    "filters of three registers": (1, 16, 10, 10, 48, 3, 3, (1, 1)),
    "rows longer than the registers": (2, 96, 6, 6, 16, 3, 3, (1, 1)),
    "a narrow image": (2, 1, 30, 3, 4, 7, 2, (3, 0)),
    "padding without an image below": (2, 2, 3, 3, 6, 2, 2, (4, 3)),
    "a filter as large as the image but one": (2, 4, 6, 6, 7, 5, 5, (0, 0)),
    "no images": (0, 3, 8, 8, 4, 3, 3, (1, 1)),
}


def tensors(name: str) -> tuple[Tensor, Tensor, Tensor]:
    batch, channels, height, width, filters, rows, columns, _ = SHAPES[name]
    draw = torch.Generator().manual_seed(3)
    return (
        torch.randn(batch, channels, height, width, generator=draw),
        torch.randn(filters, channels, rows, columns, generator=draw),
        torch.randn(filters, generator=draw),
    )


def outcome(function: Any, given: tuple[Tensor, ...], padding: tuple[int, int]) -> list[Tensor]:
    """The output and all gradients."""
    leaves = [tensor.clone(memory_format=torch.preserve_format).requires_grad_() for tensor in given]
    out = function(*leaves, *([None] if len(leaves) == 2 else []), padding)
    slopes = torch.randn(out.shape, generator=torch.Generator().manual_seed(4))
    out.backward(slopes)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def assert_as_torch(given: tuple[Tensor, ...], padding: tuple[int, int]) -> None:
    mine, theirs = (outcome(function, given, padding) for function in (convolved_maxima, convolved_maxima_in_torch))
    for a, b in zip(mine, theirs, strict=True):
        scale = float(b.abs().max()) if b.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5 * scale, equal_nan=True)


@pytest.mark.parametrize("name", SHAPES)
def test_any_numbers(name: str) -> None:
    assert_as_torch(tensors(name), SHAPES[name][-1])


@pytest.mark.parametrize("name", SHAPES)
def test_without_a_bias(name: str) -> None:
    assert_as_torch(tensors(name)[:2], SHAPES[name][-1])


@pytest.mark.parametrize("name", SHAPES)
def test_of_equal_ones_the_first_is_the_largest(name: str) -> None:
    """Whole numbers add up without rounding, so that those that tie in torch tie here."""
    x, weight, bias = (tensor.round() for tensor in tensors(name))
    assert_as_torch((x, weight, bias), SHAPES[name][-1])
    assert_as_torch((torch.ones_like(x), weight, bias), SHAPES[name][-1])


@pytest.mark.parametrize("bias", [-1e6, 0.0])
def test_what_is_not_positive_has_no_gradient(bias: Any) -> None:
    x, weight, _ = tensors("W1's second")
    out, *gradients = outcome(convolved_maxima, (-x.abs(), weight.abs(), torch.full((64,), bias)), (2, 2))
    assert not out.any()
    assert not any(gradient.any() for gradient in gradients)


def test_a_missing_number_is_seen_where_torch_sees_it() -> None:
    x, weight, bias = tensors("W1's second")
    x[1, 3, 5, 6] = torch.nan
    mine, theirs = (outcome(f, (x, weight, bias), (2, 2)) for f in (convolved_maxima, convolved_maxima_in_torch))
    torch.testing.assert_close(mine[0], theirs[0], rtol=1e-4, atol=1e-4, equal_nan=True)
    # its gradient comes back to one place of a window, the same one
    torch.testing.assert_close(mine[1], theirs[1], rtol=1e-4, atol=1e-4, equal_nan=True)
    assert mine[2].isnan().any()
    torch.testing.assert_close(mine[3], theirs[3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("where", [1, 2])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_a_diverged_model_is_seen(where: int, number: float) -> None:
    given = tensors("W1's second")
    given[where].view(-1)[0] = number
    assert not convolved_maxima(*given, (2, 2)).isfinite().all()


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_diverged_slopes_are_seen(number: float) -> None:
    given = [tensor.requires_grad_() for tensor in tensors("W1's second")]
    x, weight, bias = given
    out = convolved_maxima(x, weight, bias, (2, 2))
    out.backward(torch.full_like(out, number))
    assert not any(tensor.grad.isfinite().all() for tensor in given if tensor.grad is not None)


@pytest.mark.parametrize("last", [(True, True), (True, False), (False, True), (False, False)])
def test_channels_lie_anywhere(last: tuple[bool, bool]) -> None:
    x, weight, bias = tensors("a row and a column left over")
    formats = [torch.channels_last if is_last else torch.contiguous_format for is_last in last]
    assert_as_torch((x.contiguous(memory_format=formats[0]), weight.contiguous(memory_format=formats[1]), bias), (0, 0))


def test_numbers_that_do_not_lie_side_by_side() -> None:
    x, weight, bias = tensors("W1's first")
    given = (x.repeat(1, 1, 2, 2)[:, :, ::2, ::2], weight.transpose(2, 3), bias.repeat(2)[::2])
    out = convolved_maxima(*given, (2, 2))
    torch.testing.assert_close(out, convolved_maxima_in_torch(*given, (2, 2)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("wanted", range(3))
def test_only_the_gradient_that_is_asked_for_is_made(wanted: Any) -> None:
    given = tensors("filters of a register and one")
    given[wanted].requires_grad_()
    convolved_maxima(*given, (1, 0)).sum().backward()
    theirs = tensors("filters of a register and one")
    theirs[wanted].requires_grad_()
    convolved_maxima_in_torch(*theirs, (1, 0)).sum().backward()
    torch.testing.assert_close(given[wanted].grad, theirs[wanted].grad, rtol=1e-4, atol=1e-4)
    assert [tensor.grad is not None for tensor in given] == [place == wanted for place in range(3)]


def test_the_same_bits_again_and_side_by_side() -> None:
    given = tensors("W1's second")
    first = outcome(convolved_maxima, given, (2, 2))
    with ThreadPoolExecutor(4) as pool:
        for again in pool.map(lambda _: outcome(convolved_maxima, given, (2, 2)), range(12)):
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("given", ["double", "one image", "too small"])
def test_what_does_not_suit_is_torchs(given: Any) -> None:
    x, weight, bias = tensors("W1's first")
    if given == "double":
        x, weight, bias = x.double(), weight.double(), bias.double()
    elif given == "one image":
        x = x[0]
    else:
        x = x[:, :, :1, :1]
        with pytest.raises(RuntimeError, match="too small"):
            convolved_maxima(x, weight, bias, (2, 2))
        return
    assert torch.equal(convolved_maxima(x, weight, bias, (2, 2)), convolved_maxima_in_torch(x, weight, bias, (2, 2)))


@pytest.mark.parametrize(
    ("image", "weight", "padding", "fits"),
    [
        ((1, 1, 46_340, 46_340), (1, 1, 3, 3), (0, 0), True),
        ((1, 1, 46_341, 46_341), (1, 1, 3, 3), (0, 0), False),
        ((1, 1, 46_339, 46_339), (1, 1, 3, 3), (1, 1), False),
        ((1, 2**14, 64, 64), (2**14, 2**14, 1, 7), (0, 0), True),
        ((1, 2**14, 64, 64), (2**14, 2**14, 1, 8), (0, 0), False),
    ],
)
def test_offsets_beyond_32_bits_are_torchs(image: Any, weight: Any, padding: Any, fits: bool) -> None:
    """Shapes with that many numbers, without allocating memory."""
    x, filters = (torch.zeros(()).expand(shape) for shape in (image, weight))
    assert convolution._suits(x, filters, None, padding) is fits
