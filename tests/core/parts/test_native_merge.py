"""Sums in C have the bits of sums in torch, and torch takes over where there is no C."""

from __future__ import annotations

import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from by_hand import Bench, layout
from torch import Tensor

from archipel.core.parts import Community, Mean, Replace
from archipel.core.parts import merge as parts
from archipel.kernels.native import merge as native
from archipel.kernels.native.library import library
from archipel.simulation.vectors import MemoryModels

compiled = pytest.mark.skipif(library() is None, reason="there was no compiler when Archipel was installed")

SIZES = (1, 2, 7, 8, 15, 17, 63, 64, 65, 130, 1_001, 2**16 + 1, 100_003)
ROWS = (1, 2, 3, 8, 9, 20)
KINDS = {"AVX512": ["default", "avx2", "avx512"], "AVX2": ["default", "avx2"]}


@pytest.fixture(params=[1, 2, 5])
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


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("rows", ROWS)
def test_rows_are_added_as_in_torch(rows: int, threads: int) -> None:
    draw = np.random.default_rng(rows)
    for size in SIZES:
        models = [some(size, draw) for _ in range(rows)]
        weights = [float(10 ** draw.uniform(-3, 3)) for _ in models]
        for from_nothing in (True, False):
            before = some(size, draw)
            ours, theirs = torch.zeros(size + 1)[1:].copy_(before), before.clone()
            native.add_rows(ours, models, weights, from_nothing=from_nothing)
            native.add_rows_in_torch(theirs, models, weights, from_nothing=from_nothing)
            assert alike(ours, theirs), (size, from_nothing)


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("rows", [0, *ROWS])
def test_a_commit_is_as_in_torch(rows: int, threads: int) -> None:
    draw = np.random.default_rng(rows)
    for size in SIZES:
        models = [some(size, draw) for _ in range(rows)]
        weights = [float(draw.choice([-1, 1]) * 10 ** draw.uniform(-3, 3)) for _ in models]
        for from_nothing, divided in product((True, False), repeat=2):
            before = some(size, draw).double() * 1e-3
            totals, means = (before.clone(), before.clone()), (torch.zeros(size + 1)[1:], torch.zeros(size))
            ours, theirs = (
                function(total, models, weights, from_nothing=from_nothing, mean=mean if divided else None, weight=0.7)
                for function, total, mean in zip((native.commit, native.commit_in_torch), totals, means, strict=True)
            )
            assert alike(*totals), (size, from_nothing, divided)
            assert alike(*means), (size, from_nothing, divided)
            assert alike(torch.tensor(ours).abs(), torch.tensor(theirs).abs()), (size, from_nothing, divided)


@pytest.mark.slow
@compiled
@pytest.mark.parametrize("piece", [slice(0, 70_001), slice(33, 99_999), slice(99_990, None), slice(99_990, 100_010)])
def test_a_piece_of_rows_is_added_as_in_torch(piece: slice, threads: int) -> None:
    draw = np.random.default_rng(0)
    models, before = [some(100_000, draw) for _ in range(12)], some(100_000, draw)
    weights = [float(10 ** draw.uniform(-3, 3)) for _ in models]
    ours, theirs = before.clone(), before.clone()
    native.add_rows(ours, models, weights, piece)
    native.add_rows_in_torch(theirs, models, weights, piece, from_nothing=False)
    assert alike(ours, theirs)
    assert not alike(ours[piece], before[piece])
    beside = torch.ones(100_000, dtype=torch.bool)
    beside[piece] = False
    assert alike(ours[beside], before[beside])


@pytest.mark.slow
@pytest.mark.parametrize("there", [pytest.param(True, marks=compiled), False])
@pytest.mark.parametrize("piece", [slice(None), slice(33, 99_999)])
def test_rows_by_their_places_are_added_as_in_torch(
    piece: slice, there: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not there:
        monkeypatch.setattr(native, "library", lambda: None)
    draw = np.random.default_rng(0)
    models, before = [some(100_000, draw) for _ in range(12)], some(100_000, draw)
    weights = [float(10 ** draw.uniform(-3, 3)) for _ in models]
    ours, theirs = before.clone(), before.clone()
    places = np.array([native.place(model) for model in models], np.uint64)
    native.add_rows_at(ours, places, weights, piece)
    native.add_rows_in_torch(theirs, models, weights, piece, from_nothing=False)
    assert alike(ours, theirs)


def test_rows_by_their_places_are_added_to_nothing_that_lies_otherwise() -> None:
    row = torch.ones(10)
    places = np.array([native.place(row)], np.uint64)
    for into in (torch.zeros(20)[::2], torch.zeros(10, dtype=torch.float64)):
        with pytest.raises(ValueError, match="contiguous float32"):
            native.add_rows_at(into, places, [1.0])
    with pytest.raises(ValueError, match="1 rows and 2 weights"):
        native.add_rows_at(torch.zeros(10), places, [1.0, 2.0])


@compiled
def test_numbers_beside_a_piece_stay_as_they_are(threads: int) -> None:
    around, rows = torch.full((100_100,), 5.0), [torch.ones(100_000)] * 3
    native.add_rows(around[50:-50], rows, [1.0, 2.0, 3.0], from_nothing=True)
    assert around[50:-50].eq(6).all()
    assert around[:50].eq(5).all()
    assert around[-50:].eq(5).all()


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.get(torch.backends.cpu.get_cpu_capability(), ["default"]))
def test_it_is_so_on_lesser_machines(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "as_in_torch", __file__],
        env={**os.environ, "ATEN_CPU_CAPABILITY": kind},
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


# ---------------------------------------------------------------------------------------------------- what C is not for


def test_rows_that_lie_otherwise_are_added_all_the_same() -> None:
    into, square = torch.zeros(3), torch.arange(9.0).reshape(3, 3)
    native.add_rows(into, [square[:, 1], torch.ones(3, dtype=torch.float64), torch.ones(1)], [1.0, 10.0, 100.0])
    assert into.tolist() == [111.0, 114.0, 117.0]
    total, mean = torch.zeros(6, dtype=torch.float64), torch.zeros(6)
    assert native.commit(total[::2], [square[0]], [2.0], mean=mean[1::2], weight=4.0) == [2.0]
    assert (total.tolist(), mean.tolist()) == ([0.0, 0.0, 2.0, 0.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.5, 0.0, 1.0])


def test_a_row_that_is_too_short_is_refused() -> None:
    with pytest.raises(RuntimeError, match="size of tensor"):
        native.add_rows(torch.zeros(100), [torch.ones(99)], [1.0])
    with pytest.raises(RuntimeError, match="size of tensor"):
        native.commit(torch.zeros(100, dtype=torch.float64), [torch.ones(99)], [1.0])


# ------------------------------------------------------------------------------------------------------------ the parts


def some_commits(models: MemoryModels | None = None) -> list[Tensor | dict[str, object]]:
    """Means and communities of updates with some of the layers each: the models, the sum and what is remembered."""
    bench, draw = Bench(layout(x=1_000, y=70, z=1_930)), np.random.default_rng(3)
    bench.models = models or bench.models
    found: list[Tensor | dict[str, object]] = []
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


def same(a: list[Tensor | dict[str, object]], b: list[Tensor | dict[str, object]]) -> bool:
    return len(a) == len(b) and all(
        alike(x, y) if isinstance(x, Tensor) and isinstance(y, Tensor) else x == y for x, y in zip(a, b, strict=True)
    )


@compiled
def test_without_the_library_parts_do_the_same_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    in_c = some_commits()
    monkeypatch.setattr(native, "library", lambda: asked.append("library"))
    in_torch = some_commits()
    assert asked
    assert same(in_c, in_torch)


def test_models_in_a_file_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = some_commits()
    monkeypatch.setattr(parts, "CHUNK", 300)
    assert same(in_memory, some_commits(MemoryModels(in_memory=0)))


def test_of_models_in_a_file_one_piece_of_one_model_is_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "CHUNK", 300)
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


def test_a_weight_too_few_or_too_many_is_refused() -> None:
    for weights in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match=f"2 rows and {len(weights)} weights"):
            native.add_rows(torch.zeros(10), [torch.ones(10)] * 2, weights)
        with pytest.raises(ValueError, match=f"2 rows and {len(weights)} weights"):
            native.commit(torch.zeros(10, dtype=torch.float64), [torch.ones(10)] * 2, weights)


def test_a_sum_of_another_type_is_left_to_torch() -> None:
    into, total = torch.zeros(10, dtype=torch.float64), torch.zeros(10)
    native.add_rows(into, [torch.ones(10)], [2.0])
    native.commit(total, [torch.ones(10)], [2.0])
    assert into.tolist() == total.tolist() == [2.0] * 10
