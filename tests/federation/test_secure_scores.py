"""Scores in secure sums over the wire: the simulator's, after kills, and without any single one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from archipel.core.records import Refused
from archipel.federation.controller.site_evaluations import SiteEvaluations
from archipel.federation.controller.sum_totals import AddScores
from archipel.federation.learner.agent import Agent
from archipel.federation.learner.local_scorer import LocalScorer
from archipel.federation.learner.local_state import StateFolder
from archipel.federation.learner.masked_scores import MaskedScores
from archipel.federation.wire import federation_pb2 as pb
from archipel.privacy.secure_sum.masks import Whole
from archipel.runs.load import load_run
from tests.federation.in_one_process import Held, agent, hold, study
from tests.federation.stage import Process, free_port
from tests.federation.test_conformance import simulated
from tests.federation.test_secure_kills import KILLED, rows
from tests.federation.test_secure_rounds import papers as papers
from tests.waiting import LIMIT, reached

pytestmark = pytest.mark.slow


def raw(**sections: Any) -> dict[str, Any]:
    four = {
        "algorithms": [{"name": "fedavg", "privacy": "SecureSum(threshold=0.7)"}],
        "data": {"split": {"learners": 4, "test": "own(0.2)"}},
        "evaluation": {"at": "learners"},
    }
    return study(**{**four, **sections})


@pytest.mark.parametrize(
    "evaluation",
    [{"at": "learners"}, {"at": "learners", "metric": "auc"}, {"at": "validation parts"}],
    ids=lambda evaluation: f"{evaluation['at']} {evaluation.get('metric', '')}",
)
def test_scores_are_the_simulators_and_no_single_one_is_in_a_message_or_on_the_disk(
    evaluation: dict[str, Any], tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[pb.Scored] = []
    receive = SiteEvaluations.receive

    def hears(evaluations: SiteEvaluations, name: str, command: Any, head: pb.Head) -> pb.Receipt:
        told.append(head.scored)
        return receive(evaluations, name, command, head)

    monkeypatch.setattr(SiteEvaluations, "receive", hears)
    one = raw(evaluation=evaluation, ending={"rounds": 2})
    held = hold(one, tmp_path, papers=papers)
    expected = simulated(one)
    assert held.run is not None
    assert [scores for _, scores in held.run.scores] == [scores for _, scores in expected.scores]
    assert [scores.sites for _, scores in held.run.scores] == [4] * 3
    assert held.run.traffic == expected.traffic
    assert told == [pb.Scored()] * 12
    assert rows(tmp_path / "state") == []
    memories = [one.memory for one in held.agents.values()]
    assert [memory.last_score for memory in memories] == [-3] * 4
    # the run may end before a learner has the receipt of its last reply
    assert {score.task for memory in memories for score in memory.held} <= {-3}


def test_the_controller_is_killed_in_a_phase_of_a_score_and_the_score_is_the_same(tmp_path: Path, papers: Path) -> None:
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
        last = 0

        def begun(phase: str) -> bool:
            return any(kind == phase and task < last for task, kind, _ in rows(state))

        try:
            for phase in ("cohort", *KILLED):
                await reached(partial(begun, phase), f"the phase {phase}")
                await asyncio.to_thread(process.kill_controller)
                last = min((task for task, _, _ in rows(state) if task < 0), default=last)
                process.go_on()
            assert await asyncio.to_thread(process.wait, LIMIT) == 0, process.last_words()
            async with asyncio.timeout(LIMIT):
                await asyncio.gather(*beside)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if not process.ended:
                process.kill()
        return agents

    asyncio.run(go())
    run = load_run(state / "run")
    assert [scores for _, scores in run.scores] == [scores for _, scores in simulated(one).scores]
    assert rows(state) == []


def test_a_learner_is_killed_while_its_score_is_added_up_and_is_in_the_sum(tmp_path: Path, papers: Path) -> None:
    one = raw(ending={"rounds": len(KILLED)})
    one["federation"]["operators"] = []
    (tmp_path / "study.json").write_text(json.dumps(one))

    async def meanwhile(held: Held) -> None:
        sums, port = held.federation.sums, held.agents["00"].link.address.rpartition(":")[2]
        arguments = ["learner", str(tmp_path / "study.json"), "--controller", f"localhost:{port}", "--json-log"]
        arguments += ["--tls", str(papers / "03"), "--state", str(tmp_path / "03")]
        process = Process(arguments, tmp_path / "03.log")
        last = 0

        def asked(phase: str) -> bool:
            return any(
                found.collector.phase == phase and task < last and "03" in found.command.learners
                for task, found in sums._open.items()
            )

        try:
            for phase in KILLED:
                await reached(partial(asked, phase), f"the phase {phase} of a score")
                last = min(sums._open)
                await asyncio.to_thread(process.kill)
                process = Process(arguments, tmp_path / "03.log")
            await reached(lambda: held.federation.stopped is not None, "the end of the run")
            assert await asyncio.to_thread(process.wait, LIMIT) == 0, process.last_words()
        finally:
            if not process.ended:
                process.kill()

    held = hold(one, tmp_path, meanwhile, absent=("03",), papers=papers)
    assert held.run is not None
    assert [scores for _, scores in held.run.scores] == [scores for _, scores in simulated(one).scores]
    assert StateFolder(tmp_path / "03").memory.last_score == -1 - len(KILLED)


def test_a_learner_that_does_not_score_is_missed_by_nobody_and_too_few_give_no_score(
    tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = LocalScorer.answer

    def fails(scorer: LocalScorer, order: pb.Evaluate, *more: Any) -> pb.Scored:
        name = scorer._island.learner.name
        if name == "03" or (name == "02" and order.task < -1):
            raise ValueError("no score")
        return answer(scorer, order, *more)

    monkeypatch.setattr(LocalScorer, "answer", fails)
    held = hold(raw(ending={"rounds": 1}), tmp_path, papers=papers)
    assert held.run is not None
    assert [(scores.version, scores.sites) for _, scores in held.run.scores] == [(0, 3)]
    assert any("are needed" in refused.reason for _, refused in held.run.of(Refused))


def test_a_single_score_and_a_wrong_one_are_refused(
    tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner that sends its score in clear is not in the sum; one that sends another's count costs the score."""
    numbers, answer = MaskedScores._numbers, LocalScorer.answer

    def clear(scorer: LocalScorer, order: pb.Evaluate, *more: Any) -> pb.Scored:
        scored = answer(scorer, order, *more)
        return pb.Scored(count=5) if scorer._island.learner.name == "03" and order.task == -1 else scored

    def wrong(scores: MaskedScores, task: int) -> Whole | None:
        mine = numbers(scores, task)
        if scores._name == "02" and task == -2 and mine is not None:
            mine = mine.copy()
            mine[:3] += np.array([1, 0, 1], mine.dtype)
        return mine

    monkeypatch.setattr(LocalScorer, "answer", clear)
    monkeypatch.setattr(MaskedScores, "_numbers", wrong)
    held = hold(raw(ending={"rounds": 1}), tmp_path, papers=papers)
    assert held.run is not None
    assert [(scores.version, scores.sites) for _, scores in held.run.scores] == [(0, 3)]
    reasons = [refused.reason for _, refused in held.run.of(Refused)]
    assert any("were registered; one of 4 learners has not sent its score" in reason for reason in reasons)
    with closing(sqlite3.connect(tmp_path / "state" / "journal.sqlite")) as base:
        audit = " ".join(str(row) for row in base.execute("SELECT * FROM audit"))
    assert "the score of a single learner, which is to be added up" in audit


def test_whoever_leaves_while_a_score_waits_for_its_turn_is_not_waited_for(
    tmp_path: Path, papers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sum of scores is held back until the second is ready and a learner has left."""
    add_up, waits = SiteEvaluations._add_up, asyncio.Event()

    async def held_back(evaluations: SiteEvaluations, command: AddScores, *more: Any) -> None:
        if command.task == -1:
            await waits.wait()
        await add_up(evaluations, command, *more)

    async def meanwhile(held: Held) -> None:
        evaluations = held.federation.evaluations
        await reached(lambda: len(evaluations._ready) > 1, "a second score")
        for event in held.federation.departures.events(held.federation.sessions["03"], "it was withdrawn"):
            held.federation.log.post(event)
        await reached(lambda: not held.federation.log.state.members["03"].active, "that it has left")
        waits.set()

    monkeypatch.setattr(SiteEvaluations, "_add_up", held_back)
    held = hold(raw(ending={"rounds": 1}), tmp_path, meanwhile, papers=papers)
    assert held.run is not None
    assert [scores.sites for _, scores in held.run.scores] == [3, 3]
