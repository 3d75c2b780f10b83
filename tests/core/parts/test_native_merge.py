"""Sums in C have the bits of sums in torch, and torch takes over where there is no C."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor

from archipel.core.parts import Community, Mean, Replace
from archipel.kernels import reference
from archipel.kernels.interface import Kernels
from archipel.kernels.native.library import library
from archipel.kernels.native.merge import NativeKernels
from archipel.kernels.reference import TorchKernels
from archipel.kernels.rows import MemoryRows, NamedRows
from archipel.simulation.vectors import MemoryModels
from tests.core.parts.by_hand import Bench, layout

compiled = pytest.mark.skipif(library() is None, reason="there was no compiler when Archipel was installed")

SIZES = (1, 2, 7, 8, 15, 17, 63, 64, 65, 130, 1_001, 2**16 + 1)
ROWS = (1, 2, 3, 8, 9, 20)
LESSER = {"AVX512": ["default", "avx2"], "AVX2": ["default"]}
"""Instructions that torch can be told to do without, by those of this machine, which the tests use anyway."""


@pytest.fixture(params=[2] if "ATEN_CPU_CAPABILITY" in os.environ else [1, 2, 5])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def many_numbers() -> Tensor:
    """Of all magnitudes that float32 has, and some that are special."""
    draw = np.random.default_rng(0)
    drawn = draw.standard_normal(400_000) * 10.0 ** draw.uniform(-46, 37, 400_000)
    special = draw.random(400_000) < 0.01
    drawn[special] = draw.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3.4e38], size=special.sum())
    return torch.tensor(drawn, dtype=torch.float32)


NUMBERS = many_numbers()


def some(size: int, draw: np.random.Generator) -> Tensor:
    """So many of them from anywhere, so that they are aligned to nothing."""
    start = draw.integers(len(NUMBERS) - size)
    return NUMBERS[start : start + size]


def alike(a: Tensor, b: Tensor) -> bool:
    """The same bits, the sign of zeros too; a NaN is a NaN."""
    whole = torch.int32 if a.dtype == torch.float32 else torch.int64
    return bool(((a.view(whole) == b.view(whole)) | (a.isnan() & b.isnan())).all())


# -------------------------------------------------------------------------------------------------------- the same bits


def in_memory(models: list[Tensor]) -> MemoryRows:
    rows = MemoryRows.of(models)
    assert rows is not None
    return rows


def by_name(models: list[Tensor]) -> NamedRows:
    """As a store with its vectors on disk gives them: piece by piece."""
    return NamedRows([str(place) for place in range(len(models))], lambda name, piece: models[int(name)][piece])


def in_c() -> NativeKernels:
    found = library()
    assert found is not None
    return NativeKernels(found)


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("rows_of", [in_memory, by_name])
@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_added_as_in_torch(rows: int, rows_of: Any, threads: int) -> None:
    draw = np.random.default_rng(rows)
    for size in SIZES:
        models = [some(size, draw) for _ in range(rows)]
        weights = [float(10 ** draw.uniform(-3, 3)) for _ in models]
        ours, theirs = torch.zeros(size + 1)[1:].copy_(some(size, draw)), torch.zeros(size)
        in_c().weighted_sum(ours, rows_of(models), weights, slice(0, size))
        TorchKernels().weighted_sum(theirs, in_memory(models), weights, slice(0, size))
        assert alike(ours, theirs), size


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("rows_of", [in_memory, by_name])
@pytest.mark.parametrize("rows", [0, *ROWS])
def test_terms_are_replaced_as_in_torch(rows: int, rows_of: Any, threads: int) -> None:
    draw = np.random.default_rng(rows)
    for size in SIZES:
        models = [some(size, draw) for _ in range(rows)]
        weights = [float(draw.choice([-1, 1]) * 10 ** draw.uniform(-3, 3)) for _ in models]
        for restart, divided in product((True, False), repeat=2):
            before = some(size, draw).double() * 1e-3
            totals, means = (before.clone(), before.clone()), (torch.zeros(size + 1)[1:], torch.zeros(size))
            given = by_name(models) if not models else rows_of(models)
            ours, theirs = (
                kernels.replace_terms(
                    total,
                    given,
                    weights,
                    slice(0, size),
                    restart=restart,
                    mean=mean if divided else None,
                    divisor=0.7,
                )
                for kernels, total, mean in zip((in_c(), TorchKernels()), totals, means, strict=True)
            )
            assert alike(*totals), (size, restart, divided)
            assert alike(*means), (size, restart, divided)
            assert alike(torch.tensor(ours).abs(), torch.tensor(theirs).abs()), (size, restart, divided)


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("rows_of", [in_memory, by_name])
@pytest.mark.parametrize("piece", [slice(0, 70_001), slice(33, 99_999), slice(99_990, 100_000)])
def test_a_piece_is_summed_as_in_torch_and_nothing_beside_it(piece: slice, rows_of: Any, threads: int) -> None:
    draw = np.random.default_rng(0)
    models, before = [some(100_000, draw) for _ in range(12)], some(100_000, draw)
    weights = [float(10 ** draw.uniform(-3, 3)) for _ in models]
    totals = (before.double(), before.double())
    ours, theirs = before.clone(), before.clone()
    for kernels, out, total in ((in_c(), ours, totals[0]), (TorchKernels(), theirs, totals[1])):
        kernels.weighted_sum(out, rows_of(models), weights, piece)
        kernels.replace_terms(total, rows_of(models), weights, piece)
    assert alike(ours, theirs)
    assert alike(*totals)
    beside = torch.ones(100_000, dtype=torch.bool)
    beside[piece] = False
    assert alike(ours[beside], before[beside])
    assert alike(totals[0][beside], before.double()[beside])


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("kind", LESSER.get(torch.backends.cpu.get_cpu_capability(), ["default"]))
def test_it_is_so_on_lesser_machines(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "as_in_torch and in_memory", __file__],
        env={**os.environ, "ATEN_CPU_CAPABILITY": kind},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


# ---------------------------------------------------------------------------------------------------- what C is not for


def both() -> list[Kernels]:
    return [TorchKernels(), *([] if library() is None else [in_c()])]


@pytest.mark.parametrize("kernels", both(), ids=lambda kernels: type(kernels).__name__)
def test_vectors_with_gaps_are_summed_all_the_same(kernels: Kernels) -> None:
    square = torch.arange(9.0).reshape(3, 3)
    rows, whole = by_name([square[:, 1], torch.ones(3, dtype=torch.float64)]), slice(0, 3)
    assert MemoryRows.of([square[:, 1]]) is None
    gaps = torch.zeros(6)
    kernels.weighted_sum(gaps[::2], rows, [1.0, 10.0], whole)
    assert gaps.tolist() == [11.0, 0.0, 14.0, 0.0, 17.0, 0.0]
    total, mean = torch.zeros(6, dtype=torch.float64), torch.zeros(6)
    assert kernels.replace_terms(total[::2], by_name([square[0]]), [2.0], whole, mean=mean[1::2], divisor=4.0) == [2.0]
    assert (total.tolist(), mean.tolist()) == ([0.0, 0.0, 2.0, 0.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.5, 0.0, 1.0])


@pytest.mark.parametrize("kernels", both(), ids=lambda kernels: type(kernels).__name__)
def test_rows_of_another_length_are_refused(kernels: Kernels) -> None:
    rows = in_memory([torch.ones(99)])
    with pytest.raises((RuntimeError, ValueError), match=r"size of tensor|has 99 numbers"):
        kernels.weighted_sum(torch.zeros(100), rows, [1.0], slice(0, 100))
    with pytest.raises((RuntimeError, ValueError), match=r"size of tensor|has 99 numbers"):
        kernels.replace_terms(torch.zeros(100, dtype=torch.float64), rows, [1.0], slice(0, 100))
    assert MemoryRows.of([torch.ones(99), torch.ones(100)]) is None


@pytest.mark.parametrize("kernels", both(), ids=lambda kernels: type(kernels).__name__)
def test_a_weight_too_few_or_too_many_is_refused(kernels: Kernels) -> None:
    rows, whole = in_memory([torch.ones(10)] * 2), slice(0, 10)
    for weights in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match=f"2 rows and {len(weights)} weights"):
            kernels.weighted_sum(torch.zeros(10), rows, weights, whole)
        with pytest.raises(ValueError, match=f"2 rows and {len(weights)} weights"):
            kernels.replace_terms(torch.zeros(10, dtype=torch.float64), rows, weights, whole)


@pytest.mark.parametrize("kernels", both(), ids=lambda kernels: type(kernels).__name__)
def test_a_sum_of_another_type_is_left_to_torch(kernels: Kernels) -> None:
    out, total, rows = torch.zeros(10, dtype=torch.float64), torch.zeros(10), in_memory([torch.ones(10)])
    kernels.weighted_sum(out, rows, [2.0], slice(0, 10))
    kernels.replace_terms(total, rows, [2.0], slice(0, 10))
    assert out.tolist() == total.tolist() == [2.0] * 10


# ------------------------------------------------------------------------------------------------------------ the parts


Found: TypeAlias = list[Tensor | Any]


def some_commits(models: MemoryModels | None = None, kernels: Kernels | None = None) -> Found:
    """Means and communities of updates with some of the layers each: the models, the sum and what is remembered."""
    bench, draw = Bench(layout(x=1_000, y=70, z=1_930)), np.random.default_rng(3)
    bench.models, bench.kernels = models or bench.models, kernels or bench.kernels
    found: Found = []
    for part, role in ((Mean(), "mean"), (Community(), "merge"), (Community(forget=True), "merge.1")):
        for commit in range(30):
            updates = []
            for name in sorted(draw.choice(list("abcdefgh"), size=draw.integers(1, 6), replace=False)):
                layers = [layer for layer in "xyz" if draw.random() < 0.7]
                updates.append(bench.update(name, draw.standard_normal(3_000) * 10 ** draw.uniform(-9, 9), layers))
            weights = [tuple(draw.choice([0.0, 1.0, 0.3, 7.1], size=3).tolist()) for _ in updates]
            proposal = part.merge(bench.view(role), updates, weights)
            places = bench.layout.slices(proposal.layers)
            found += [proposal.vector[piece].clone() for piece in places]
            if commit % 7 == 6:
                part.left(bench.view(role), "c")
            if commit % 11 == 10 and proposal.undo is not None:
                proposal.undo()
    for role in ("merge", "merge.1"):
        found += [bench.models.read(f"{role}/sum"), bench.state.memory[role]]
    return found


def same(a: Found, b: Found) -> bool:
    return len(a) == len(b) and all(
        alike(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x == y for x, y in zip(a, b, strict=True)
    )


@compiled
def test_parts_give_the_same_bits_with_either_kernels() -> None:
    assert same(some_commits(kernels=in_c()), some_commits(kernels=TorchKernels()))


@pytest.mark.slow
def test_models_in_a_file_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = some_commits()
    monkeypatch.setattr(reference.chunks, "__defaults__", (300,))
    assert same(in_memory, some_commits(MemoryModels(in_memory=0)))


def test_of_models_in_a_file_one_piece_of_one_model_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference.chunks, "__defaults__", (300,))
    read: list[weakref.ref[Tensor]] = []

    class Counted(MemoryModels):
        def read(self, name: str, piece: slice | None = None) -> Tensor:
            found = super().read(name, piece)
            if piece is not None:
                assert piece.stop - piece.start <= 300
                assert not any(row() is not None for row in read), "the last one is still there"
                found = found.clone()
                read.append(weakref.ref(found))
            return found

    bench = Bench(layout(x=1_000, y=70, z=1_930))
    bench.models = Counted(in_memory=0)
    for part in (Mean(), Community(), Community()):
        part.merge(bench.view("merge"), [bench.update(name) for name in "abc"], [(1.0,) * 3] * 3)
    assert len(read) == 10 * (3 + 3 + 6), "chunks x rows, and the last time rows that go, too"


def test_a_diverged_model_makes_a_proposal_that_is_not_finite() -> None:
    bench = Bench(layout(x=3))
    first = bench.commit(Community(), Replace(), [bench.update("a", [1.0, 2.0, 3.0])], [1.0])
    assert first == [1.0, 2.0, 3.0]
    proposal = Community().merge(bench.view("merge"), [bench.update("b", [np.nan, np.inf, 3.0])], [(1.0,)])
    assert [torch.isfinite(x).item() for x in proposal.vector] == [False, False, True]
    assert proposal.undo is not None
    proposal.undo()
    assert bench.models.read("merge/sum").tolist() == [1.0, 2.0, 3.0]
