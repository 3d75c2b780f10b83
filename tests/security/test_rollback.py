"""Versions can be rolled back: by command, journalled, replayed, and whenever the controller is killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from archipel.core.records import Restored
from archipel.core.types import Failed, RolledBack
from archipel.federation.controller.engine import Federation
from archipel.federation.learner.link import Link, TurnedAway
from archipel.federation.security.tls import channel_credentials
from archipel.federation.storage.durable_controller import IncomingEvent
from archipel.federation.storage.stored_models import _spaced
from archipel.study.federate import Hosting, host
from archipel.study.files import study_of
from benchmarks.federation.growth import Answers
from benchmarks.federation.growth import study as growing_study
from tests.federation.checker import check
from tests.federation.hand_made import NAMES, study
from tests.federation.scene import Scene, scene
from tests.federation.stage import LONGEST, Crowd, Setting, loop, set_up
from tests.waiting import until

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
        for line in written._waiting:  # journalled, and not handled when the controller was closed
            written.replay.tell(line)
        replayed = one.hosting.replay(tmp_path / "state")
        assert replayed.controller.state.version == written.controller.state.version
        model = written.controller.state.model.name
        assert torch.equal(replayed.models.read(model), written.models.read(model))
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
                light.link.answer = lambda *_: asyncio.Event().wait()  # type: ignore[assignment, method-assign]
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
def test_a_kill_at_any_moment_of_a_rollback_leaves_it_done_or_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the folder is what a kill leaves: it is made before every statement and every rename of a file."""
    hosting = host(study_of(growing_study("async_fedavg", 4)))
    one = Answers(hosting, tmp_path / "state")
    one.join(4)
    while one.durable.controller.state.version < 12:
        one.answer(1)
    durable, version = one.durable, one.durable.controller.state.version
    target = durable.models.earlier()[0]
    images: list[tuple[Path, bool]] = []
    promised = False

    def image(*_: object) -> None:
        images.append((tmp_path / f"image {len(images)}", promised))
        shutil.copytree(tmp_path / "state", images[-1][0])

    rename = os.replace

    def image_and_rename(*paths: Any) -> None:
        image()
        rename(*paths)

    monkeypatch.setattr(os, "replace", image_and_rename)
    durable.journal._base.set_trace_callback(image)
    delivery = durable.models.restore(target)
    durable.take([IncomingEvent(RolledBack(target, f"r{target}"), delivery=delivery)], [], 1e3)
    promised = True
    durable.handle()
    durable.snapshot()
    durable.journal._base.set_trace_callback(None)
    monkeypatch.setattr(os, "replace", rename)
    image()
    numbers = durable.models.read(f"v{version + 1}").clone()
    found = [after_kill(hosting, path) for path, _ in images]
    assert set(found) == {version, version + 1}
    assert found == sorted(found), "once it is done it stays done"
    assert all(reached == version + 1 for (_, promised), reached in zip(images, found, strict=True) if promised)
    for path, _ in images[found.index(version + 1) :]:
        again = Answers(hosting, path)
        assert torch.equal(again.durable.models.read(f"v{version + 1}"), numbers)
        again.durable.close()
    durable.close()


def after_kill(hosting: Hosting, folder: Path) -> int:
    """Open what a kill has left; return the version, to which one more update adds one."""
    again = Answers(hosting, folder)
    durable = again.durable
    version = durable.controller.state.version
    again.time = 1e3
    again.waiting.extend(out.command for out in durable.out.values() if not out.cancelled)
    again.give(*[IncomingEvent(Failed(task, "cancelled")) for task, out in durable.out.items() if out.cancelled])
    while durable.controller.state.version == version:  # a score may be asked for first
        assert again.waiting, "nobody is at work"
        again.answer(1)
    assert durable.controller.state.version == version + 1
    durable.close()
    return version


@pytest.mark.slow
def test_a_controller_that_is_killed_while_it_rolls_back(tmp_path: Path) -> None:
    """The real command, killed when the call has left and when it was answered; the checker replays the journal."""
    stage = set_up(tmp_path, Setting('"async_fedavg"', ending=60, operators=("alice",)))
    process = stage.controller()

    async def roll_back() -> str:
        link = Link(stage.address, channel_credentials(tmp_path / "ca" / "alice"), "")
        try:
            return (await link.steer("rollback", "", 0)).told
        finally:
            await link.close()

    def restored() -> list[str]:
        with closing(sqlite3.connect(f"file:{stage.state}/journal.sqlite?mode=ro", uri=True)) as base:
            return [text for (text,) in base.execute("SELECT record FROM records") if '"Restored"' in text]

    try:
        with Crowd(stage) as crowd:
            for number, wait_for_answer in enumerate((True, False, True)):
                until(lambda: crowd.kept >= 12 * (number + 1), "updates to be kept")  # noqa: B023
                calling = asyncio.run_coroutine_threadsafe(roll_back(), loop())
                if wait_for_answer:
                    assert "rolled back to version" in calling.result(LONGEST)
                process.kill_controller()
                if wait_for_answer:
                    promised = len(restored())
                    assert promised > number // 2
                process.go_on()
                calling.cancel()
            assert process.wait(LONGEST) == 0, process.last_words()
    finally:
        process.kill()
    assert len(restored()) in (2, 3)
    findings = check(stage.state, stage.told(), stage.hosting)
    assert findings.clean, findings
    assert findings.commits + len(restored()) == 60


@pytest.mark.slow
def test_only_an_admin_rolls_back_and_only_to_a_stored_version(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            for name in NAMES:
                one.light(name, 0.01)
            await one.until(lambda: one.version >= 3)
            for who in ("operator/bob", "learner/site-0"):
                with pytest.raises(TurnedAway, match=r"role admin|only an operator may roll"):
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
