"""Secure sums whose controller or learners are killed in every phase; and what the disk holds meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from archipel.federation.learner.agent import Agent
from archipel.federation.learner.local_state import StateFolder
from archipel.federation.wire import federation_pb2 as pb
from archipel.runs.load import load_run
from tests.federation.in_one_process import Held, agent, hold, study
from tests.federation.stage import Process, free_port
from tests.federation.test_secure_rounds import papers as papers
from tests.waiting import LIMIT, reached

pytestmark = pytest.mark.slow

PHASES = ("advertise", "share", "mask", "confirm", "reveal")
KILLED = PHASES if os.environ.get("ARCHIPEL_CHAOS") else ("share", "reveal")
"""Phases in which the controller or a learner is killed; all of them take a minute each."""
METHOD = {"name": "fedavg", "privacy": "SecureSum(threshold=0.7)"}


def raw(**sections: Any) -> dict[str, Any]:
    four = {"algorithms": [METHOD], "data": {"split": {"learners": 4}}}
    return study(**{**four, **sections})


def rows(state: Path) -> list[tuple[int, str, str]]:
    """What the journal holds of sums: task, kind and learner."""
    try:
        with closing(sqlite3.connect(f"file:{state / 'journal.sqlite'}?mode=ro", uri=True)) as base:
            return list(base.execute("SELECT task, kind, learner FROM sums ORDER BY number"))
    except sqlite3.OperationalError:  # it is not there yet
        return []


def test_the_controller_is_killed_in_a_phase_and_the_run_goes_on(tmp_path: Path, papers: Path) -> None:
    port, rounds = free_port(), len(KILLED) + 1
    one = raw(ending={"rounds": rounds})
    one["federation"]["operators"] = []
    (tmp_path / "study.json").write_text(json.dumps(one))
    state = tmp_path / "state"
    arguments = ["controller", str(tmp_path / "study.json"), "--listen", f"127.0.0.1:{port}", "--json-log"]
    arguments += ["--tls", str(papers / "controller"), "--state", str(state)]

    async def go() -> list[Agent]:
        process = Process(arguments, tmp_path / "controller.log")
        agents = [agent(one, f"0{number}", tmp_path / f"0{number}", port, papers) for number in range(4)]
        beside = [asyncio.create_task(each.run()) for each in agents]
        last = -1

        def begun(phase: str) -> bool:
            return any(kind == phase and task > last for task, kind, _ in rows(state))

        try:
            for phase in KILLED:
                await reached(partial(begun, phase), f"the phase {phase}")
                keeper_too = phase == "mask"  # which starts a controller only so often
                await asyncio.to_thread(process.kill if keeper_too else process.kill_controller)
                last = max(task for task, _, _ in rows(state))
                if keeper_too:
                    process = Process(arguments, tmp_path / "controller.log")
                else:
                    process.go_on()
            code = await asyncio.to_thread(process.wait, LIMIT)
            assert code == 0, process.last_words()
            async with asyncio.timeout(LIMIT):
                await asyncio.gather(*beside)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if not process.ended:
                process.kill()
        return agents

    agents = asyncio.run(go())
    commits = [commit for _, commit in load_run(state / "run").commits]
    assert [len(commit.learners) for commit in commits] == [4] * rounds, "no sum was lost, and nobody with it"
    assert rows(state) == [], "nothing is left of a sum"
    for each in agents:
        given = [line for line in each.record._path.read_text().splitlines() if '"phase": "reveal"' in line]
        tasks = [json.loads(line)["task"] for line in given if '"answer": "sum"' in line]
        assert len(set(tasks)) == rounds


@pytest.mark.parametrize("phase", PHASES)
def test_a_learner_that_is_mute_from_a_phase_on_is_missed_by_nobody(phase: str, tmp_path: Path, papers: Path) -> None:
    async def meanwhile(held: Held) -> None:
        mute, federation = held.agents["03"], held.federation
        obey = mute._obey

        async def mutely(order: pb.Order) -> None:
            if order.sum.phase != phase:
                await obey(order)

        monkeypatch.setattr(mute, "_obey", mutely)

        def over() -> bool:
            for found in federation.sums._open.values():
                if found.collector.phase == phase and found.collector.waiting == {"03"}:
                    found.due = 0.0
            return federation.stopped is not None

        await reached(over, f"the end of a round without 03 from {phase} on")

    with pytest.MonkeyPatch.context() as monkeypatch:
        held = hold(raw(ending={"rounds": 1}), tmp_path, meanwhile, papers=papers)
    assert held.run is not None
    (commit,) = [commit for _, commit in held.run.commits]
    assert set(commit.learners) == {"00", "01", "02", *(["03"] if phase in ("confirm", "reveal") else [])}


def test_a_learner_is_killed_in_every_phase_and_is_in_every_sum(tmp_path: Path, papers: Path) -> None:
    """A round for each phase; the learner is a process that is killed with SIGKILL and started again."""
    raw_ = raw(ending={"rounds": len(KILLED)})
    raw_["federation"]["operators"] = []
    (tmp_path / "study.json").write_text(json.dumps(raw_))
    killed: list[str] = []

    async def meanwhile(held: Held) -> None:
        sums, port = held.federation.sums, held.agents["00"].link.address.rpartition(":")[2]
        arguments = ["learner", str(tmp_path / "study.json"), "--controller", f"localhost:{port}", "--json-log"]
        arguments += ["--tls", str(papers / "03"), "--state", str(tmp_path / "03")]
        process = Process(arguments, tmp_path / "03.log")
        last = -1

        def asked(phase: str) -> bool:
            return any(
                found.collector.phase == phase and task > last and "03" in found.command.learners
                for task, found in sums._open.items()
            )

        try:
            for phase in KILLED:
                await reached(partial(asked, phase), f"the phase {phase}")
                last = max(sums._open)
                await asyncio.to_thread(process.kill)
                killed.append(phase)
                process = Process(arguments, tmp_path / "03.log")
            await reached(lambda: held.federation.stopped is not None, "the end of the run")
            assert await asyncio.to_thread(process.wait, LIMIT) == 0, process.last_words()
        finally:
            if not process.ended:
                process.kill()

    held = hold(raw_, tmp_path, meanwhile, absent=("03",), papers=papers)
    assert killed == list(KILLED)
    assert held.run is not None
    assert [set(commit.learners) for _, commit in held.run.commits] == [{"00", "01", "02", "03"}] * len(KILLED)
    memory = StateFolder(tmp_path / "03").memory
    assert memory.sums == len(KILLED), "told again, it went on with the same round"


def test_what_is_on_the_disk_opens_no_update(tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all rows before anybody reveals: no share in clear, and masked numbers that look random."""
    seen: dict[str, Any] = {}

    async def meanwhile(held: Held) -> None:
        federation = held.federation
        finish = federation.sums._finish

        async def looks(found: Any) -> None:
            state = tmp_path / "state"
            seen["files"] = b"".join(path.read_bytes() for path in sorted(state.rglob("*")) if path.is_file())
            seen["rows"] = dict(found.masked)
            learners = {name: one.sums._learner for name, one in held.agents.items() if one.sums is not None}
            seen["secrets"] = [
                secret
                for one in learners.values()
                if one is not None
                for secret in (one._seed, one._masking.private_bytes_raw(), one._sharing.private_bytes_raw())
            ]
            seen["kinds"] = {kind for _, kind, _ in rows(state)}
            await finish(found)

        monkeypatch.setattr(federation.sums, "_finish", looks)

    hold(raw(ending={"rounds": 1}), tmp_path, meanwhile, papers=papers)
    assert seen["kinds"] >= {"advertise", "share", "mask", "confirm", "reveal", "closed"}
    assert all(secret not in seen["files"] for secret in seen["secrets"])
    for row in seen["rows"].values():
        length = int.from_bytes(row.content[:8], "little")
        numbers = np.frombuffer(row.content[8 + length :], "<u4")
        counts, _ = np.histogram(numbers, bins=32, range=(0, 2**32))
        assert stats.chisquare(counts).pvalue > 1e-9
