"""Learners that are killed, come late, are paused or withdrawn: what they had done is neither lost nor done twice."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import signal
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from archipel.core.records import Committed, Handed
from archipel.core.types import Failed, Joined, Left
from archipel.federation.learner.link import TurnedAway
from archipel.federation.learner.local_state import CODEC as MEMORY
from archipel.federation.storage.stored_models import as_bytes
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.pieces import Portion
from archipel.storage.dataclass_codec import Codec
from tests.federation.fault_proxy import FaultProxy
from tests.federation.in_one_process import study
from tests.federation.light import Answer, Light
from tests.federation.scene import HELD_LOSS, Scene, Site, scene
from tests.waiting import LIMIT

VICTIM = "02"
"""The learner with a process of its own."""
REFUSED_TO_STEER = ("refused", "Steer")


def three_rounds(method: str = "fedavg", **arguments: Any) -> dict[str, Any]:
    """Of a learner that can be held in its training, and two light ones."""
    return study(
        algorithms=[{"name": method, **arguments}],
        loss=HELD_LOSS,
        ending={"rounds": 3},
        evaluation={"every": 1000},
        federation={"heartbeat": 0.3, "silence": 5 * LIMIT},
    )


async def others(one: Scene) -> None:
    one.light("00")
    one.light("01")


@dataclass
class Gated(Light):
    """Sends no answer until the gate is open."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def _work_at(self, order: pb.Train) -> Answer:
        answer = await super()._work_at(order)
        await self.gate.wait()
        return answer


async def in_its_second_round(one: Scene) -> Site:
    """The victim, held in its training; the first round waits for a light learner until it can be."""
    one.light("00")
    last = one.light("01", kind=Gated)
    assert isinstance(last, Gated)
    site = one.site(VICTIM)
    await one.until(lambda: one.updates(VICTIM))
    site.hold()
    last.gate.set()
    await site.held()
    return site


async def over(one: Scene) -> torch.Tensor:
    """The last model."""
    await one.until(lambda: one.federation.stopped)
    replayed = one.federation.durable.replay
    return replayed.models.read(replayed.controller.state.model.name).clone()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The last model of a run in which nobody was killed."""

    async def go() -> torch.Tensor:
        async with scene(three_rounds(), tmp_path_factory.mktemp("undisturbed")) as one:
            await others(one)
            one.site(VICTIM)
            return await over(one)

    return asyncio.run(go())


# --------------------------------------------------------------------------------------------------------- kill -9


@pytest.mark.slow
def test_killed_while_it_trains(undisturbed: torch.Tensor, tmp_path: Path) -> None:
    """Twice; started again, it is asked again, and the run comes to the same bits."""

    async def go() -> None:
        async with scene(three_rounds(), tmp_path) as one:
            await others(one)
            site = one.site(VICTIM, held=True)
            for _ in range(2):
                await site.held()
                await site.kill()
                site = one.site(VICTIM, held=True)
            site.release()
            model = await over(one)
            assert torch.equal(model, undisturbed)
            assert len(await one.updates(VICTIM)) == 3
            assert not [event for event in await one.events() if isinstance(event, Failed)]
            await site.end()
            assert site.code == 0, site.said

    asyncio.run(go())


@pytest.mark.slow
def test_killed_with_an_answer_that_was_not_acknowledged(tmp_path: Path) -> None:
    """The answer in the folder is sent, though another training would have given other numbers."""

    async def go() -> None:
        async with scene(three_rounds(), tmp_path) as one, FaultProxy(one.port) as proxy:
            await others(one)
            site = one.site(VICTIM, proxy.port, held=True)
            await site.held()
            task = await one.at_work(VICTIM)
            proxy.stall(down=False)  # the answer does not get through
            site.release()
            await one.until(lambda: site.memory is not None and site.memory.owed is not None)
            await site.kill()
            proxy.cut()
            proxy.heal()
            memory = site.memory
            assert memory is not None
            assert memory.owed is not None
            owed, sequence = memory.owed, memory.sequence
            assert owed.task == task
            owed.numbers += 0.25
            place = 0
            for name in owed.changed:
                size = one.layout.layers[one.layout.index(name)].size
                piece = owed.numbers[place : place + size]
                owed.digests[name] = hashlib.sha256(as_bytes(piece)).hexdigest()
                place += size
            codec: Codec = MEMORY
            codec.save(site.folder / "learner.safetensors", memory)
            assert not await one.updates(VICTIM)
            one.site(VICTIM, proxy.port)
            await one.until(lambda: one.updates(VICTIM))
            answers = [line.answer for line in await one.lines() if line.answer and line.answer.learner == VICTIM]
            assert (answers[0].task, answers[0].sequence) == (task, sequence)
            files = [path.read_bytes() for path in (tmp_path / "state" / "blobs").iterdir() if path.is_file()]
            assert any(as_bytes(owed.numbers).tobytes() in file for file in files), "what arrived is what lay there"
            await over(one)
            assert len(await one.updates(VICTIM)) == 3
            assert not [event for event in await one.events() if isinstance(event, Failed)]

    asyncio.run(go())


@pytest.mark.slow
def test_killed_before_it_knew_that_its_answer_was_safe(
    undisturbed: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller has it and the receipt was lost: sent again, it is the same answer and is not applied twice."""

    async def go() -> None:
        async with scene(three_rounds(), tmp_path) as one, FaultProxy(one.port) as proxy:
            await others(one)
            site = one.site(VICTIM, proxy.port, held=True)
            reply = one.federation.answers.reply

            async def lost(name: str, portion: Portion) -> pb.Receipt:
                receipt = await reply(name, portion)
                if name == VICTIM:
                    proxy.stall(up=False)  # not before: the controller has to ask for the update itself
                return receipt

            await site.held()
            task = await one.at_work(VICTIM)
            monkeypatch.setattr(one.federation.answers, "reply", lost)
            site.release()
            await one.until(lambda: one.updates(VICTIM))
            await site.kill()
            monkeypatch.undo()
            assert site.memory is not None
            assert site.memory.owed is not None
            proxy.cut()
            proxy.heal()
            one.site(VICTIM, proxy.port)
            assert torch.equal(await over(one), undisturbed)
            trained = await one.updates(VICTIM)
            assert [event.task for event in trained].count(task) == 1
            assert len(trained) == 3
            told = [detail for who, what, detail in await one.audit() if (who, what) == (VICTIM, "update")]
            assert [row["verdict"] for row in told if row["task"] == task] == ["kept", "kept"], "it was told again"

    asyncio.run(go())


def private_of(site: Any) -> dict[str, torch.Tensor]:
    return {**site.memory.private, **site.memory.kept}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["hdafl", "ditto"])
def test_private_layers_and_kept_models_survive(method: str, tmp_path: Path) -> None:
    """Killed in its second round, with private layers: it comes to the bits of one that was not killed."""
    raw = three_rounds(method, fraction=1.0)

    async def go(folder: Path, kills: int) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        async with scene(raw, folder) as one:
            site = await in_its_second_round(one)
            for _ in range(kills):
                await site.held()
                before = private_of(site)
                assert before
                await site.kill()
                site = one.site(VICTIM, held=True)
                assert private_of(site).keys() == before.keys()
            site.release()
            model = await over(one)
            await site.end()
            joined = [event for event in await one.events() if isinstance(event, Joined) and event.learner == VICTIM]
            assert [event.fresh for event in joined] == [True]
            return model, private_of(site)

    model, private = asyncio.run(go(tmp_path / "undisturbed", 0))
    again, mine = asyncio.run(go(tmp_path / "killed", 2))
    assert torch.equal(model, again)
    assert private.keys() == mine.keys() != set()
    assert all(torch.equal(private[name], mine[name]) for name in private)


@pytest.mark.slow
def test_a_learner_that_lost_its_folder_says_so(tmp_path: Path) -> None:
    raw = three_rounds("hdafl", fraction=1.0)

    async def go() -> None:
        async with scene(raw, tmp_path) as one:
            site = await in_its_second_round(one)
            assert one.federation.sessions[VICTIM].private, "it has layers of its own, which are not sent"
            await site.kill()
            shutil.rmtree(site.folder)
            rows = len(await one.audit())
            site.release()
            one.site(VICTIM)
            await over(one)
            joined = [event for event in await one.events() if isinstance(event, Joined) and event.learner == VICTIM]
            assert [event.fresh for event in joined] == [True, True]
            sent = [
                detail["layers"]
                for who, what, detail in (await one.audit())[rows:]
                if (who, what) == ("controller", "sent") and detail["to"] == VICTIM
            ]
            assert sent[0] == len(one.layout.layers), "it gets all layers again"
            assert sent[1] < len(one.layout.layers)

    asyncio.run(go())


@pytest.mark.slow
def test_a_folder_of_another_federation(tmp_path: Path) -> None:
    """The same study started anew: an old answer does not answer the task of the same number."""

    async def first() -> None:
        async with scene(three_rounds(), tmp_path / "first") as one, FaultProxy(one.port) as proxy:
            await others(one)
            site = one.site(VICTIM, proxy.port, held=True)
            await site.held()
            proxy.stall(down=False)
            site.release()
            await one.until(lambda: site.memory is not None and site.memory.owed is not None)
            await site.kill()

    async def second() -> None:
        shutil.copytree(tmp_path / "first" / VICTIM, tmp_path / "second" / VICTIM)
        async with scene(three_rounds(), tmp_path / "second") as one:
            await others(one)
            site = one.site(VICTIM)
            await site.end()
            assert f"The folder of {VICTIM} holds answers and private layers of another federation" in " ".join(
                site.said.split()
            )
            assert not await one.events(VICTIM)

    asyncio.run(first())
    asyncio.run(second())


@pytest.mark.slow
def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(three_rounds(), tmp_path) as one:
            await others(one)
            first = one.site(VICTIM, held=True)
            await first.held()
            second = one.site(VICTIM)
            await second.end()
            assert "is in use by another process" in second.said
            assert second.code != 0, second.said
            first.release()
            await over(one)
            assert len(await one.updates(VICTIM)) == 3

    asyncio.run(go())


# ------------------------------------------------------------------------------------------- coming, pausing, leaving


def endless(method: str = "fedavg", wait_for: int = 2, **federation: Any) -> dict[str, Any]:
    return study(
        algorithms=[method],
        ending={"rounds": 100_000},
        evaluation={"every": 100_000},
        federation={"wait_for": wait_for, "keep_updates": True, "heartbeat": 0.2, "silence": 5 * LIMIT, **federation},
    )


@pytest.mark.slow
def test_a_learner_that_joins_late_gets_work(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(), tmp_path) as one:
            one.light("00", 0.05)
            one.light("01", 0.05)
            await one.until(lambda: one.version >= 3)
            assert not one.federation.sessions[VICTIM].orders
            one.agent(VICTIM)
            await one.until(lambda: one.commits_of(VICTIM))
            records = await one.records(Committed)
            assert records[0][1].learners == ("00", "01")
            assert records[-1][1].learners == ("00", "01", VICTIM)

    asyncio.run(go())


@pytest.mark.slow
@pytest.mark.parametrize("who", ["operator/alice", f"learner/{VICTIM}"])
def test_pause_and_resume(who: str, tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(wait_for=3), tmp_path) as one:
            one.light("00", 0.05)
            one.light("01", 0.05)
            one.agent(VICTIM)
            await one.until(lambda: one.commits_of(VICTIM))
            line = one.link(who)
            name = VICTIM if who.startswith("operator") else ""
            assert (await line.steer("pause", name)).told.startswith(f"{VICTIM}: pause at version ")
            await one.until(lambda: not one.federation.sessions[VICTIM].orders)
            paused = one.version
            await one.until(lambda: one.version >= paused + 4)
            assert state_of(one) == "paused"
            commits = [record.learners for _, record in await one.records(Committed)]
            assert VICTIM not in commits[-1]
            assert VICTIM not in commits[-2]
            before = one.federation.log.now
            await line.steer("resume", name)
            await one.until(lambda: committed_after(one, before))
            assert state_of(one) == "there"
            told = [(by, what) for by, what, _ in await one.audit() if what in ("pause", "resume")]
            assert told == [(who, "pause"), (who, "resume")]
            await line.close()

    asyncio.run(go())


def state_of(one: Scene) -> str:
    return str(one.federation.status._learner(VICTIM)["state"])


async def committed_after(one: Scene, before: float) -> bool:
    return any(time > before for time in await one.commits_of(VICTIM))


@pytest.mark.slow
def test_a_paused_learner_that_dies_at_its_task_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """The update of its task may still come, but is waited for with a timeout only."""

    async def go() -> None:
        async with scene(endless(wait_for=3, silence=600.0) | {"loss": HELD_LOSS}, tmp_path) as one:
            one.light("00", 0.05)
            one.light("01", 0.05)
            site = one.site(VICTIM, held=True)
            await site.held()
            task = await one.at_work(VICTIM)
            line = one.link("operator/alice")
            await line.steer("pause", VICTIM)
            await line.close()
            await site.kill()
            version = one.version
            await one.lose(VICTIM)
            await one.until(lambda: one.version >= version + 2)
            lost = [event for event in await one.events() if isinstance(event, Failed)]
            assert [(event.task, event.reason) for event in lost] == [(task, "lost: no heartbeat in 600 s")]

    asyncio.run(go())


@pytest.mark.slow
@pytest.mark.parametrize("who", ["operator/alice", f"learner/{VICTIM}"])
def test_withdrawn_for_good(who: str, tmp_path: Path) -> None:
    """Its task fails, its process ends with the reason, and it stays withdrawn when either side restarts."""
    raw = endless(wait_for=3)

    async def go() -> None:
        async with scene(raw, tmp_path) as one:
            one.light("00", 0.05)
            one.light("01", 0.05)
            site = one.site(VICTIM)
            await one.until(lambda: one.commits_of(VICTIM))
            line = one.link(who)
            await line.steer("withdraw", VICTIM)
            await site.end()
            assert f"{VICTIM} has been withdrawn from this federation" in site.said
            assert site.code != 0, site.said
            version = one.version
            await one.until(lambda: one.version >= version + 3)
            assert Left(VICTIM) in await one.events()
            if who.startswith("operator"):
                for action in ("pause", "resume", "withdraw"):
                    with pytest.raises(
                        TurnedAway, match=f"{VICTIM} has been withdrawn from this federation; an operator may"
                    ):
                        await line.steer(action, VICTIM)
            else:
                with pytest.raises(TurnedAway, match="has been withdrawn"):
                    await line.steer("resume", "")
            await line.close()
        async with scene(raw, tmp_path) as one:
            one.light("00", 0.05)
            one.light("01", 0.05)
            assert state_of(one) == "withdrawn"
            line = one.link(f"learner/{VICTIM}")
            with pytest.raises(TurnedAway, match=f"{VICTIM} has been withdrawn from this federation"):
                await line.join(one.hello())
            await line.close()
            assert one.federation.meters.refusals.labels("caller")._value.get() == 1
            version = one.version
            await one.until(lambda: one.version >= version + 2)

    asyncio.run(go())


@pytest.mark.slow
def test_a_learner_cannot_control_another(tmp_path: Path) -> None:
    async def go() -> None:
        async with scene(endless(wait_for=3), tmp_path) as one:
            for name in ("00", "01", VICTIM):
                one.light(name, 0.05)
            await one.until(lambda: one.commits_of(VICTIM))
            line = one.link("learner/00")
            for action in ("pause", "resume", "withdraw"):
                with pytest.raises(TurnedAway, match=f"00 may pause, resume and withdraw itself, not {VICTIM}"):
                    await line.steer(action, VICTIM)
            for action, name, reason in (
                ("stop", "", "There is no action 'stop'; use pause, resume, withdraw, readmit or rollback"),
                ("", "", "There is no action ''"),
            ):
                with pytest.raises(TurnedAway, match=reason):
                    await line.steer(action, name)
            await line.close()
            line = one.link("operator/alice")
            with pytest.raises(TurnedAway, match="There is no learner nobody; the study lists 00, 01, 02"):
                await line.steer("pause", "nobody")
            await line.close()
            assert state_of(one) == "there"

            async def refused() -> list[str]:
                return [by for by, what, detail in await one.audit() if (what, detail.get("call")) == REFUSED_TO_STEER]

            async def audited() -> bool:  # it is encoded beside
                return len(await refused()) == 6

            await one.until(audited)
            assert await refused() == ["00"] * 5 + ["alice"]

    asyncio.run(go())


# ------------------------------------------------------------------------------------------------- dead evaluators


class Silent(Light):
    """Trains, and never sends an opinion."""

    async def _evaluate(self, order: pb.Evaluate) -> None:
        return


class Opinionated(Light):
    """Of ten classes."""

    async def _evaluate(self, order: pb.Evaluate) -> None:
        count = self.hello.validation
        confusion = [0] * 100
        confusion[0], confusion[1] = count - 3, 3
        self.sequence += 1
        scored = pb.Scored(count=count, loss=1.0, classes=10, confusion=confusion)
        await self.link.answer(pb.Head(task=order.task, sequence=self.sequence, scored=scored))


@pytest.mark.slow
def test_a_dead_evaluator_costs_one_opinion(tmp_path: Path) -> None:
    """SyncDVW: a round waits for its opinions until the timeout; then it rests (tests/security)."""

    async def go() -> None:
        async with scene(endless("sync_dvw", wait_for=3, opinion_deadline=0.5), tmp_path) as one:
            one.light("00", kind=Opinionated)
            one.light("01", kind=Opinionated)
            one.light(VICTIM, kind=Silent)
            await one.until(lambda: one.version >= 3)
            (began, *_), commits = await one.records(Handed), await one.records(Committed)
            times = [began[0], *(time for time, _ in commits[:2])]
            assert all(after - before >= 0.5 for before, after in pairwise(times)), "no round gives up early"
            assert [len(record.learners) for _, record in commits[:3]] == [3, 3, 2]

    asyncio.run(go())


@pytest.mark.slow
def test_a_stopped_process_costs_its_opinions_and_rests(tmp_path: Path) -> None:
    """AsyncDVW with a stopped process of a learner that is asked about all updates."""

    async def go() -> None:
        async with scene(endless("async_dvw", wait_for=3, opinion_deadline=0.5), tmp_path) as one:
            one.light("00", 0.1, kind=Opinionated)
            one.light("01", 0.1, kind=Opinionated)
            site = one.site(VICTIM)
            await one.until(lambda: one.commits_of(VICTIM))
            site.send(signal.SIGSTOP)
            version = one.version
            await one.until(lambda: one.version >= version + 8)  # two may have had all opinions before
            assert {event.learner for event in await one.events() if isinstance(event, Left)} == {VICTIM}
            site.send(signal.SIGCONT)
            before = one.federation.log.now
            await one.until(lambda: committed_after(one, before))

    asyncio.run(go())


# ------------------------------------------------------------------------------------------------- refused probes


@pytest.mark.slow
def test_an_operator_may_refuse_to_try_others_models(tmp_path: Path) -> None:
    """It trains and is weighed by the others; its refusals are in the audit, with the reason."""

    async def go() -> None:
        async with scene(endless("sync_dvw", wait_for=3), tmp_path) as one:
            one.light("00", 0.1, kind=Opinionated)
            one.light("01", 0.1, kind=Opinionated)
            one.agent(VICTIM).refuses = frozenset({"validation"})
            await one.until(lambda: one.version >= 3)
            told = [
                detail["reason"] for who, what, detail in await one.audit() if (who, what) == (VICTIM, "no opinion")
            ]
            assert set(told) == {"the operator refuses to try models on the validation part"}
            assert all(VICTIM in record.learners for _, record in await one.records(Committed))

    asyncio.run(go())


def test_an_operator_may_refuse_to_tell_moments(tmp_path: Path) -> None:
    """Where the study needs them it cannot take part, and is told so."""

    async def go() -> None:
        raw = endless(wait_for=3) | {"data": {"source": "digits", "split": {"learners": 3}, "standardise": "global"}}
        async with scene(raw, tmp_path) as one:
            one.agent(VICTIM).refuses = frozenset({"moments"})
            with pytest.raises(TurnedAway, match=r"the learner tells none\. Does its operator refuse the moments\?"):
                await one.beside.pop()

    asyncio.run(go())
