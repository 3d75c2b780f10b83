"""What a learner claims when it joins is bounded and fixed, and no claim spoils the federation for others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from archipel.core.types import Joined
from archipel.federation.learner.link import TurnedAway
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.hand_made import NAMES, hello, moments, study
from tests.federation.scene import Scene, scene

pytestmark = pytest.mark.slow

GLOBAL = study(data={"standardise": "global"}, ending={"commits": 1_000_000})
LIAR = "site-2"


def claim(one: Scene, **counts: Any) -> pb.Hello:
    said = hello(one.hosting)
    for name, count in counts.items():
        setattr(said, name, count) if name != "moments" else said.moments.CopyFrom(count)
    return said


async def join(one: Scene, name: str, said: pb.Hello) -> pb.Welcome:
    line = one.link(f"learner/{name}")
    try:
        async with asyncio.timeout(10):  # a call that the controller cannot answer is made again and again
            return await line.join(said)
    finally:
        await line.close()


async def everybody_trains(one: Scene, *names: str) -> None:
    for name in names or NAMES:
        light = one.light(name, 0.01)
        light.hello = hello(one.hosting)
    version = one.version
    await one.until(lambda: one.version >= version + 2)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            {"examples": 2**40, "moments": moments(2**40)},
            r"claims 1099511627776 examples \(examples\); at most 10000000",
        ),
        ({"test": 2**40}, r"claims 1099511627776 examples \(test\); .* raise federation\.limits\.test"),
        ({"moments": moments(100, 0.9e41, 0.9e80)}, "or too large"),  # mean and deviation each within bounds
    ],
    ids=["examples", "test", "sums and squares"],
)
def test_an_extreme_claim_costs_only_its_sender(said: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Also when it joins last and completes the cohort; and after a restart there is no trace of it."""

    async def go() -> None:
        async with scene(GLOBAL, tmp_path) as one:
            for name in NAMES[:2]:
                assert (await join(one, name, claim(one))).wait
            with pytest.raises(TurnedAway, match=reason):
                await join(one, LIAR, claim(one, **said))
            assert (await join(one, NAMES[0], claim(one))).wait
            await everybody_trains(one)
        async with scene(GLOBAL, tmp_path) as one:
            await everybody_trains(one)

    asyncio.run(go())


def test_a_learner_that_withholds_its_examples_is_bounded_too(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(GLOBAL, tmp_path) as one:
            said = claim(one, moments=moments(2**39))
            said.ClearField("examples")
            with pytest.raises(TurnedAway, match="of 549755813888 examples, at most 10000000 are allowed"):
                await join(one, LIAR, said)

    asyncio.run(go())


def test_what_does_not_go_together_is_looked_at_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Combined statistics are checked first: they cannot be undone once they are on disk."""
    from archipel.federation.controller import joining

    async def go() -> None:
        async with scene(GLOBAL, tmp_path) as one:
            with monkeypatch.context() as patched:
                bad = messages.decode_moments(moments(100), (6,))
                object.__setattr__(bad, "count", 2**50)
                patched.setattr(joining, "combine", lambda parts: bad)
                for name in NAMES[:2]:
                    await join(one, name, claim(one))
                with pytest.raises(TurnedAway, match=f"The moments of {LIAR} do not fit those of the others"):
                    await join(one, LIAR, claim(one))
            await everybody_trains(one)

    asyncio.run(go())


@pytest.mark.parametrize("what", ["examples", "validation", "test"])
def test_counts_are_those_of_the_first_join(what: str, tmp_path: Path) -> None:
    raw = study(ending={"commits": 1_000_000})

    async def joined(one: Scene) -> list[Joined]:
        return [event for event in await one.events() if isinstance(event, Joined) and event.learner == LIAR]

    async def go() -> None:
        async with scene(raw, tmp_path) as one:
            await join(one, LIAR, claim(one))
            changed = claim(one, **{what: 5000})
            with pytest.raises(TurnedAway, match=f"{LIAR} claims .*5000.*; when it first joined it had 100"):
                await join(one, LIAR, changed)
            assert (await join(one, LIAR, claim(one))).heartbeat
        async with scene(raw, tmp_path) as one:  # a restart forgets nothing
            with pytest.raises(TurnedAway, match=f"archipel operator withdraw {LIAR}, then readmit {LIAR}"):
                await join(one, LIAR, changed)
            alice = one.link("operator/alice")
            with pytest.raises(TurnedAway, match="has not been withdrawn, so it need not be readmitted"):
                await alice.steer("readmit", LIAR)
            await alice.steer("withdraw", LIAR)
            await alice.steer("readmit", LIAR)
            await join(one, LIAR, changed)
            with pytest.raises(TurnedAway, match="when it first joined"):
                await join(one, LIAR, claim(one))
            await alice.close()
            assert getattr((await joined(one))[-1], what) == 5000

    asyncio.run(go())


def test_only_an_operator_readmits(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(study(), tmp_path) as one:
            line = one.link(f"learner/{LIAR}")
            with pytest.raises(TurnedAway, match=f"{LIAR} is a learner; only an operator may readmit learners"):
                await line.steer("readmit", LIAR)
            await line.close()

    asyncio.run(go())


def test_limits_that_could_not_be_added_up_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"federation\.limits\.test is 1099511627776: 3 learners .* 366503875925 or less"
    ):
        host(study_of(study(federation={"limits": {"test": 2**40}})))
