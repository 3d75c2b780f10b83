"""No learner has more than a stated share of a merge, of the pooled statistics, of opinions or of a score."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from archipel.core.metrics import metric, metrics_of, plausible, pooled
from archipel.core.parts.merge import CommunityMemory
from archipel.core.records import Capped, Committed, Record, Scores
from archipel.core.shares import cap
from archipel.core.types import Scored, ScoreTable
from archipel.federation.storage.durable_controller import CODEC
from archipel.federation.storage.journal import Journal
from archipel.federation.wire import federation_pb2 as pb
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.hand_made import BAD, NAMES, Act, Left, Liar, hello, moments, run, study
from tests.federation.scene import scene

pytestmark = pytest.mark.slow

MANY = 10_000_000
"""As many as the study lets anybody claim."""
amounts = st.lists(st.just(0.0) | st.floats(1e-3, 1e12), min_size=1, max_size=8)


@given(amounts, st.floats(0.05, 1.0), st.floats(0.0, 1e6, allow_subnormal=False), st.integers(1, 5))
def test_a_cap_holds_and_takes_no_more_than_it_must(
    claimed: list[float], most: float, beside: float, others: int
) -> None:
    for args in ((), (beside, others)):
        within = cap(claimed, most, *args)
        counting = sum(amount > 0 for amount in claimed)
        if not counting or not all(args or (1,)):
            continue
        total = math.fsum([*within, *args[:1]])
        limit = max(most, 1 / (counting + (args[1] if args else 0))) * total
        assert max(within) <= limit * (1 + 1e-6)
        assert all(0 < w <= c if c else w == 0 for w, c in zip(within, claimed, strict=True))
        cut = [w for w, c in zip(within, claimed, strict=True) if w < c]
        assert not cut or min(cut) == max(within), "only the largest are cut, and to the same"


def test_what_is_within_its_share_stays_to_the_bit() -> None:
    claimed = [0.1, 0.7, 0.2]
    assert cap(claimed, 0.8) is claimed
    counts = [Scored(20, 1.0, np.array([[20, 0], [0, 0]])), Scored(20, 2.0, np.array([[0, 20], [0, 0]]))]
    assert pooled(ScoreTable.of(counts), most_share=0.8).confusion.dtype == np.int64  # type: ignore[union-attr]


def test_pooled_counts_by_hand() -> None:
    """One of 30 examples beside 10 may have half: everything counts as if both had 20 of the 40."""
    one = Scored(10, 5.0, np.array([[10, 0], [0, 0]]))
    other = Scored(30, 60.0, np.array([[0, 0], [30, 0]]))
    both = pooled(ScoreTable.of([one]), ScoreTable.of([other]), most_share=0.5)
    assert (both.count, both.loss) == (40, 50.0)
    assert metric("accuracy", both) == 0.5
    assert metric("accuracy", pooled(ScoreTable.of([one, other]))) == 0.25


def of_tokens(wrong: int, right: int, count: int = 10) -> Scored:
    return Scored(count, float(wrong + right), tokens=np.array([wrong, right]))


def test_nobody_makes_up_a_score_of_tokens() -> None:
    """The study bounds the number of examples; the number of tokens in them is the learner's own claim."""
    honest, liar = of_tokens(90, 10), of_tokens(0, 2**40)
    table = ScoreTable.of([honest, honest, liar])
    assert metric("token_accuracy", pooled(table)) > 0.999
    assert metric("token_accuracy", pooled(table, most_share=0.5)) == pytest.approx(0.5 * 0.1 + 0.5, abs=0.01)
    assert pooled(table, most_share=0.5).count == 30


@pytest.mark.parametrize("lie", [1e300, -1e300, -1.0])
@pytest.mark.parametrize("mean", ["examples", "learners"])
def test_nobody_makes_up_the_loss(lie: float, mean: str) -> None:
    table = ScoreTable.of([Scored(10, 5.0), Scored(10, 7.0), Scored(10, 6.0), Scored(10, lie)])
    assert abs(metrics_of(table, mean)["loss"]) > 1e298 or lie == -1.0
    found = metrics_of(table, mean, most_share=0.8)["loss"]
    assert found == pytest.approx((0.5 + 0.7 + 0.6 + (65.0 if lie > 0 else 0.0)) / 4, abs=4)
    assert 0.4 < found < 20


def test_losses_that_differ_honestly_stay_to_the_bit() -> None:
    for losses in ([5.0, 7.0, 400.0], [0.0, 0.0, 9.0], [-5.0, -7.0, 3.0], [5.0, 1e9]):
        table = ScoreTable.of([Scored(10, loss) for loss in losses])
        assert plausible(table) == (table,)


def claims(**counts: Any) -> Act:
    async def act(bad: Liar, _: None) -> None:
        for name, count in counts.items():
            setattr(bad.hello, name, count)

    return act


def records(left: Left, kind: type[Record]) -> list[Any]:
    journal = Journal(left.folder / "journal.sqlite")
    try:
        return [r for _, text in journal.records() if isinstance(r := CODEC.value(text), kind)]
    finally:
        journal.close()


def capped(left: Left) -> list[tuple[str, str]]:
    return [(record.learner, record.what) for record in records(left, Capped)]


def test_nobodys_weight_is_above_its_share(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        left = run(tmp_path, before=claims(examples=MANY))
    for commit in records(left, Committed):
        weights = dict(zip(commit.learners, (weight[0] for weight in commit.weights), strict=True))
        assert weights[BAD] / sum(weights.values()) == pytest.approx(0.8)
        assert [weights[name] for name in NAMES if name != BAD] == [100.0, 100.0]
    assert capped(left) == [(BAD, "weight")]
    assert left.metrics["archipel_capped_learners_weight"] == 1
    assert "a learner claims more than the largest share allowed and is limited to it: check its counts" in caplog.text
    assert (BAD, "capped", {"of": "weight", "most_share": 0.8}) in left.audit


def test_a_study_may_say_another_share_or_none(tmp_path: Path) -> None:
    for most in (0.5, 1.0):
        raw = study(federation={"limits": {"most_share": most}})
        left = run(tmp_path / str(most), raw=raw, before=claims(examples=MANY))
        commit = records(left, Committed)[0]
        weights = dict(zip(commit.learners, (weight[0] for weight in commit.weights), strict=True))
        assert weights[BAD] / sum(weights.values()) == pytest.approx(min(most, MANY / (MANY + 200)))


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
def test_nobodys_share_of_a_community_is_above_it(first: bool, tmp_path: Path) -> None:
    """Also of one whose model was alone in the sum: it is cut when others come."""
    raw = study(algorithms="async_fedavg", ending={"commits": 12})

    async def waits(bad: Liar, order: pb.Train) -> None:
        """Until the others have committed, or these until it has."""
        assert bad.federation is not None
        while bad.federation.durable.controller.state.version < 4:
            await asyncio.sleep(0.01)
        update = await bad.update(order)
        await bad.send(update.head, update.sign())

    left = run(tmp_path, *(() if first else (waits,)), raw=raw, before=claims(examples=MANY))
    again = left.hosting.replay(left.folder)
    (memory,) = (one for one in again.controller.state.memory.values() if isinstance(one, CommunityMemory))
    for layer in range(len(left.hosting.layout.layers)):
        terms = {name: latest[layer][1] for name, latest in memory.latest.items()}
        assert terms[BAD] / math.fsum(terms.values()) <= 0.8 * (1 + 1e-6)
        assert math.fsum(terms.values()) == pytest.approx(memory.weight[layer])
    expected = (
        sum(
            p * again.models.read(name).double() for name, p in (memory.latest[who][0] for who in sorted(memory.latest))
        )
        / memory.weight[0]
    )
    assert isinstance(expected, Tensor)
    assert torch.allclose(left.model.double(), expected, atol=1e-6)
    assert (BAD, "weight") in capped(left)


def test_nobodys_opinion_decides_alone(tmp_path: Path) -> None:
    """It finds everybody else's model worthless, and its own splendid."""

    async def worthless(bad: Liar, order: pb.Evaluate) -> None:
        bad.sequence += 1
        scored = pb.Scored(count=MANY, loss=1.0, classes=2, confusion=[0, MANY, 0, 0])
        await bad.send(pb.Head(task=order.task, sequence=bad.sequence, scored=scored))

    async def splendid(bad: Liar, order: pb.Train) -> None:
        update = await bad.update(order)
        update.head.trained.validation.CopyFrom(pb.Scored(count=MANY, loss=1.0, classes=2, confusion=[MANY, 0, 0, 0]))
        await bad.send(update.head, update.sign())

    raw = study(algorithms="sync_dvw", validation=0.2, ending={"commits": 1})
    left = run(tmp_path, splendid, raw=raw, before=claims(validation=MANY), opinions=[worthless] * 2, part="validation")
    (commit,) = records(left, Committed)
    weights = dict(zip(commit.learners, (weight[0] for weight in commit.weights), strict=True))
    assert weights[BAD] <= 1.0
    assert sum(weights[name] for name in NAMES if name != BAD) > 0.01, "the others' opinions have a fifth"
    assert (BAD, "opinions") in capped(left)


def test_nobody_makes_up_the_score(tmp_path: Path) -> None:
    async def perfect(bad: Liar, order: pb.Evaluate) -> None:
        bad.sequence += 1
        scored = pb.Scored(count=MANY, loss=0.0, classes=2, confusion=[MANY, 0, 0, 0])
        await bad.send(pb.Head(task=order.task, sequence=bad.sequence, scored=scored))

    raw = study(ending={"commits": 1}, evaluation={"every": 1, "at": "learners"})
    left = run(tmp_path, raw=raw, before=claims(test=MANY), opinions=[perfect] * 2, part="test")
    scores = records(left, Scores)
    assert scores
    for record in scores:
        assert 0.8 <= record.metrics["accuracy"] <= 0.8 + 0.2 * 0.9, "right is at most 9 of 10 with the others"
    assert capped(left) == [(BAD, "score")]


def test_nobodys_moments_are_everybodys(tmp_path: Path) -> None:
    raw = study(data={"standardise": "global"}, ending={"commits": 1_000_000})

    async def go() -> None:
        async with scene(raw, tmp_path) as one:
            welcomes = {}
            for name in NAMES:
                said = hello(one.hosting)
                if name == BAD:
                    said.examples = MANY
                    said.moments.CopyFrom(moments(MANY, 1e6 * MANY, 0.0))
                line = one.link(f"learner/{name}")
                welcomes[name] = await line.join(said)
                await line.close()
            together = welcomes[BAD].moments
            assert together.count == 1000
            # the others' mean is 0.01 and has a fifth of the weight
            assert np.frombuffer(together.sum) / together.count == pytest.approx(0.8e6 + 0.2 * 0.01)
            assert status(one) == ["moments"]
        async with scene(raw, tmp_path) as one:
            assert status(one) == ["moments"], "a restart forgets no alarm"

    def status(one: Any) -> list[str]:
        found: list[str] = one.federation.status._learner(BAD)["capped"]
        return found

    asyncio.run(go())


def test_a_state_goes_on_with_the_share_it_was_begun_with(tmp_path: Path) -> None:
    """Another one would make other models of the same events."""

    def opens(**limits: Any) -> Callable[[], None]:
        return host(study_of(study(federation={"limits": limits}))).open(tmp_path).durable.close

    opens()()
    with pytest.raises(ValueError, match=r"they differ in federation\.limits\.most_share"):
        opens(most_share=0.5)
    opens(examples=50)()  # what anybody may claim can change
    journal = Journal(tmp_path / "journal.sqlite")
    begun = json.loads(journal.fact("begun") or "")
    del begun["federation.limits.most_share"]  # as an older version wrote it
    with journal.write():
        journal.store_fact("begun", json.dumps(begun))
    journal.close()
    with pytest.raises(ValueError, match=r"they differ in federation\.limits\.most_share"):
        opens()
    opens(most_share=1.0)()
