"""A version can be taken back: by command, journalled, replayed, and whenever the controller is killed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from archipel.core.records import Restored
from archipel.core.types import RolledBack
from archipel.federation.controller.engine import Federation
from archipel.federation.learner.link import TurnedAway
from archipel.federation.storage.stored_models import _spaced
from tests.federation.hand_made import NAMES, study
from tests.federation.scene import Scene, scene

ADMIN = {"operators": [{"name": "alice", "role": "admin"}, {"name": "bob"}]}


def endless(method: str = "fedavg", **federation: Any) -> dict[str, Any]:
    return study(algorithms=method, ending={"commits": 1_000_000}, federation={**ADMIN, **federation})


async def steer(one: Scene, who: str, version: int) -> str:
    line = one.link(who)
    try:
        return (await line.steer("rollback", "", version)).told
    finally:
        await line.close()


async def vector_of(federation: Federation, version: int) -> torch.Tensor:
    """The numbers of an earlier version, while they are stored."""
    models = federation.durable.models
    return await federation.log.in_writer(lambda: models._read(models._earlier[f"v{version}"], 0, models.layout.size))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "async_fedavg", "radfed", "scaffold"])
def test_a_rollback_restores_the_numbers_and_the_run_goes_on(method: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(method), tmp_path) as one:
            for name in NAMES:
                one.light(name, 0.01)
            await one.until(lambda: one.version >= 4)
            target = one.federation.durable.models.earlier()[-1]
            before = await vector_of(one.federation, target)
            told = await steer(one, "operator/alice", target)
            assert told.startswith(f"rolled back to version {target}; it is now version ")
            (_, restored), *_ = await one.records(Restored)
            assert restored.earlier == target
            events = [event for event in await one.events() if isinstance(event, RolledBack)]
            assert [event.version for event in events] == [target]
            assert ("operator/alice", "rollback") in [(who, what) for who, what, _ in await one.audit()]
            await one.until(lambda: one.version >= restored.version + 3)
        written = one.federation.durable
        replayed = one.hosting.replay(tmp_path / "state")
        # the journal may hold events that a controller had not handled when it was closed
        assert replayed.controller.state.version >= written.controller.state.version
        assert torch.isfinite(before).all()

    asyncio.run(go())


@pytest.mark.slow
@pytest.mark.parametrize("snapshot_every", [1, 1000])
def test_a_rollback_survives_the_end_of_the_process(snapshot_every: int, tmp_path: Path) -> None:
    """The same numbers in the process that rolled back, in the next one, and in a replay of the whole journal."""

    async def before() -> tuple[int, torch.Tensor, torch.Tensor]:
        async with scene(endless(snapshot_every=snapshot_every), tmp_path) as one:
            lights = [one.light(name) for name in NAMES]
            await one.until(lambda: one.version >= 5)
            for light in lights:  # nobody answers any more: the version that is restored stays the current one
                light._train = asyncio.Event().wait  # type: ignore[assignment, method-assign]
                light.link.answer = lambda *_: asyncio.Event().wait()  # type: ignore[assignment, method-assign, return-value]
            target = one.federation.durable.models.earlier()[-2]
            numbers = await vector_of(one.federation, target)
            await steer(one, "operator/alice", target)
            (_, restored), *_ = await one.records(Restored)
            durable = one.federation.durable
            model = await one.federation.log.in_writer(lambda: durable.models.read(f"v{restored.version}").clone())
            return restored.version, numbers, model

    async def after(version: int) -> torch.Tensor:
        async with scene(endless(snapshot_every=snapshot_every), tmp_path) as one:
            assert one.version == version
            return one.federation.durable.models.read(f"v{version}").clone()

    version, numbers, model = asyncio.run(before())
    assert torch.equal(model, numbers)
    assert torch.equal(asyncio.run(after(version)), numbers)


@pytest.mark.slow
def test_only_an_admin_rolls_back_and_only_to_a_stored_version(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            for name in NAMES:
                one.light(name, 0.01)
            await one.until(lambda: one.version >= 3)
            for who in ("operator/bob", "learner/site-0"):
                with pytest.raises(TurnedAway, match=r"role admin|an operator rolls"):
                    await steer(one, who, 1)
            with pytest.raises(TurnedAway, match=r"Version 999999 is not stored\. .* restored are: 0, 1"):
                await steer(one, "operator/alice", 999999)
            assert not [event for event in await one.events() if isinstance(event, RolledBack)]

    asyncio.run(go())


def test_versions_are_kept_close_together_at_the_end_and_far_apart_before() -> None:
    kept: set[int] = set()
    for version in range(5321):
        kept = _spaced(sorted({*kept, version}))
    thousands, hundreds, tens = [2000, 3000, 4000, 5000], [5100, 5200], [5290, 5300, 5310]
    assert sorted(kept) == [*thousands, *hundreds, *tens, 5317, 5318, 5319, 5320]


@pytest.mark.slow
def test_status_shows_shares_movements_and_outliers(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            for name in NAMES[:2]:
                one.light(name, 0.01)
            one.light(NAMES[2], 0.01, make=lambda carried, key: carried + 100.0)
            await one.until(lambda: one.version >= 3)
            line = one.link("operator/alice")
            told = json.loads((await line.look()).told)
            await line.close()
            assert set(told["versions"][-1]["shares"]) == set(NAMES)
            assert sum(told["versions"][-1]["shares"].values()) == pytest.approx(1, abs=1e-3)
            found = {one["name"]: one["movement"] for one in told["learners"]}
            assert [name for name in NAMES if found[name]["outlier"]] == [NAMES[2]]
            assert found[NAMES[2]]["clipped"] > 0

    asyncio.run(go())
