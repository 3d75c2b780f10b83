"""NormClipped by hand numbers, under every protocol, and against liars."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import archipel as ap
from archipel.core.parts import Community, Krum, Mean, Median, Merge, Mix, NormClipped, Replace, TrimmedMean, clipping
from archipel.core.parts.clipping import Movements, clipped
from tests.core.parts.by_hand import Bench, layout

ROWS = [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0], [300.0, 400.0]]


def committed(bench: Bench, merge: Merge, rows: list[list[float]], names: str = "abcdefghij") -> list[float]:
    updates = [bench.update(name, row) for name, row in zip(names, rows, strict=False)]
    following = bench.commit(merge, Replace(), updates, [1.0] * len(rows))
    merge.committed(bench.view("merge"), updates)
    bench.sweep()
    return following


def memory_of(bench: Bench) -> Movements:
    memory = bench.state.memory["merge"]
    assert isinstance(memory, Movements)
    return memory


def test_a_long_update_is_cut_to_twice_the_median() -> None:
    # movements 1, 1, 1, 1 and 500, the limit is 2: (300, 400) becomes (1.2, 1.6), and a fifth of it is the mean
    bench = Bench(layout(w=2))
    assert committed(bench, NormClipped(), ROWS) == pytest.approx([1.2 / 5, 1.6 / 5])
    assert memory_of(bench).clipped == {"e": 1}


def test_the_proposal_tells_norms_and_who_was_clipped() -> None:
    bench = Bench(layout(x=1, y=1))
    updates = [bench.update(name, row) for name, row in zip("abcde", ROWS, strict=True)]
    proposal = NormClipped().merge(bench.view("merge"), updates, [[1.0, 1.0]] * 5)
    assert proposal.norms == (1.0, 1.0, 1.0, 1.0, 500.0)
    assert proposal.clipped == (False, False, False, False, True)


def test_movements_are_measured_from_the_current_model() -> None:
    start = [10.0, -7.0]
    moved = [[start[0] + x, start[1] + y] for x, y in ROWS]
    assert committed(Bench(layout(w=2), start), NormClipped(), moved) == pytest.approx([10 + 1.2 / 5, -7 + 1.6 / 5])


def test_without_outliers_the_bits_are_those_of_the_inner_merge() -> None:
    rows = np.random.default_rng(0).normal(size=(7, 40)).astype(np.float32).tolist()
    for inner in (Mean(), Median(), TrimmedMean(0.2), Krum(1)):
        assert committed(Bench(layout(w=40)), NormClipped(inner, 10.0), rows) == committed(
            Bench(layout(w=40)), inner, rows
        )


def test_each_layer_has_its_own_median() -> None:
    # layer y moves by 100 everywhere; the one that moves x by 100 is cut in x alone
    bench = Bench(layout(x=1, y=1))
    rows = [[1.0, 100.0], [1.0, -100.0], [-1.0, 100.0], [100.0, 100.0]]
    assert committed(bench, NormClipped(), rows) == pytest.approx([(1 + 1 - 1 + 2) / 4, 50.0])


def test_a_layer_that_few_send_is_compared_with_itself() -> None:
    bench = Bench(layout(x=1, y=1))
    layers: list[list[str] | None] = [["x"], ["x"], ["x"], None, None, None]
    updates = [bench.update(f"{k}", [1.0, 50.0], names) for k, names in enumerate(layers)]
    assert bench.commit(NormClipped(), Replace(), updates, [1.0] * 6) == pytest.approx([1.0, 50.0])


def test_a_learner_counts_once_however_often_it_sends() -> None:
    bench = Bench(layout(w=1))
    merge = NormClipped()
    committed(bench, merge, [[1.0], [1.0], [1.0]], "abc")
    for _ in range(20):
        committed(bench, merge, [[1000.0]], "z")
    assert memory_of(bench).latest[0].keys() == {"a", "b", "c", "z"}
    assert memory_of(bench).clipped == {"z": 20}


def test_the_first_update_of_a_run_is_bounded_too() -> None:
    bench = Bench(layout(w=4), [0.0] * 4)
    committed(bench, NormClipped(), [[1e38, 0.0, 0.0, 0.0]], "a")
    assert bench.models.read("v1").tolist() == pytest.approx([2.0, 0.0, 0.0, 0.0])  # 1 for each of four numbers
    bench = Bench(layout(w=4), [10.0, 0.0, 0.0, 0.0])
    committed(bench, NormClipped(), [[0.0, 1e38, 0.0, 0.0]], "a")
    moved = bench.models.read("v1") - torch.tensor([10.0, 0.0, 0.0, 0.0])
    assert float(moved.norm()) == pytest.approx(10.0)  # the layer's own norm


def test_only_so_many_learners_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipping, "RECENT", 3)
    bench = Bench(layout(w=1))
    for name in "abcda":
        committed(bench, NormClipped(), [[1.0]], name)
    assert [*memory_of(bench).latest[0]] == ["c", "d", "a"]


def test_it_does_not_matter_how_a_layer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(1).normal(size=(5, 100)).tolist()
    rows[2] = [30 * number for number in rows[2]]
    whole = committed(Bench(layout(w=100)), NormClipped(), rows)
    monkeypatch.setattr(clipping, "BLOCK", 7)
    assert committed(Bench(layout(w=100)), NormClipped(), rows) == pytest.approx(whole, abs=1e-6)


@settings(max_examples=50)
@given(
    honest=st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=8),
    lies=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=2),
)
def test_a_minority_moves_the_model_by_no_more_than_the_limit(honest: list[float], lies: list[float]) -> None:
    rows = [[value] for value in (*honest, *lies)]
    (value,) = committed(Bench(layout(w=1)), NormClipped(), rows)
    assert abs(value) <= 2 * max(map(abs, honest)) + 1e-6


# ------------------------------------------------------------------------------------------- clipped models in a store


def test_clipped_models_are_dropped_after_the_commit() -> None:
    bench = Bench(layout(w=2))
    committed(bench, NormClipped(), ROWS)
    assert [name for name in bench.models.names() if "clipped" in name] == []


def test_a_community_holds_its_clipped_models_until_they_are_replaced() -> None:
    bench, merge = Bench(layout(w=2)), NormClipped(Community())
    committed(bench, merge, ROWS)
    first = [name for name in bench.models.names() if "clipped" in name]
    assert len(first) == 1
    assert bench.held() >= {*first}
    after = committed(bench, merge, [[0.0, 0.0]], "e")
    assert [name for name in bench.models.names() if "clipped" in name] == []
    assert after == pytest.approx([0.0, 0.0])


def test_a_refused_commit_gives_a_community_its_clipped_model_back() -> None:
    bench, merge = Bench(layout(w=2)), NormClipped(Community())
    before = committed(bench, merge, ROWS)
    update = bench.update("e", [0.0, 0.0])
    proposal = merge.merge(bench.view("merge"), [update], [(1.0,)])
    assert proposal.undo is not None
    proposal.undo()
    assert committed(bench, merge, [[1.0, 0.0]], "a") == pytest.approx(before)


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: NormClipped(NormClipped()), "`then` should be another merge such as Mean"),
        (lambda: NormClipped(ap.Equally()), "`then` should be another merge such as Mean"),  # type: ignore[arg-type]
        (lambda: NormClipped(multiple=0.5), "NormClipped: multiple should be at least 1"),
        (lambda: NormClipped(multiple=float("nan")), "NormClipped: multiple should be at least 1"),
        (lambda: replace(ap.fedavg(), merge=NormClipped(Median())), "takes no weights"),
        (lambda: replace(ap.fedavg(), merge=NormClipped(Mix())), "weights above 1"),
        (
            lambda: ap.Algorithm("x", protocol=ap.Relay(), merge=NormClipped(Community())),
            "NormClipped",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_way_out(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


def test_what_bounds_updates_already_is_not_wrapped() -> None:
    assert clipped(Mean(), 3.0) == NormClipped(Mean(), 3.0)
    for merge in (Median(), Krum(2), NormClipped(Mean(), 5.0)):
        assert clipped(merge, 3.0) is merge


# ------------------------------------------------------------------------------------------------------- whole runs


@pytest.mark.slow
@pytest.mark.parametrize("inner", [Mean(), Median(), Community()], ids=repr)
@pytest.mark.parametrize(
    "protocol", [ap.Rounds(), ap.Stream(), ap.Stream(buffer=5), ap.Relay(fraction=0.5, hops=2)], ids=repr
)
def test_every_protocol_trains_with_it(inner: Merge, protocol: ap.Protocol) -> None:
    merge = NormClipped(inner, 1.0)
    impossible = (isinstance(protocol, ap.Relay) and isinstance(inner, Community)) or (
        protocol == ap.Stream() and isinstance(inner, Median)
    )
    if impossible:
        with pytest.raises(ValueError, match=r"NormClipped|needs 3 updates"):
            ap.Algorithm("clipped", protocol=protocol, merge=merge, weighting=ap.Equally())
        return
    algorithm = ap.Algorithm("clipped", protocol=protocol, merge=merge, weighting=ap.Equally())
    assert eval(repr(algorithm), {name: getattr(ap, name) for name in dir(ap)}) == algorithm
    run = ap.simulate(algorithm, ap.data.digits().split(learners=12), ending=ap.Ending(rounds=4))
    assert run.rounds >= 4
    assert torch.isfinite(run.model).all()
