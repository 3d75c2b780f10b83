"""Small things that would have cost much: each was found by reading, and is held by a test since."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import tomlkit
import torch

from archipel.cli.replay import replay
from archipel.core.controller import Controller
from archipel.core.types import HOME, Evaluate, Joined, Left, Model, Score, Scored
from archipel.data.standardise import Moments
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.storage.durable_controller import CannotBeTold, IncomingEvent, ReplayDiffers
from archipel.federation.storage.journal import Journal
from archipel.federation.storage.stored_models import as_bytes
from archipel.federation.wire.body import InvalidUpdate
from archipel.federation.wire.messages import decode_moments, encode_layers, encode_moments
from archipel.storage.lock import alone_in
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.in_one_process import agent, hold, study


def test_the_list_of_learners_may_change_before_the_first_snapshot(tmp_path: Path) -> None:
    """`wait_for` follows from the list; the run began when it had another length."""
    raw = study(ending={"rounds": 100})
    begun = host(study_of(raw)).open(tmp_path)
    names = [*begun.terms.learners]
    for name in names:
        begun.durable.take([IncomingEvent(Joined(name, 10, 0, 10))], [], 0.0)
        begun.durable.handle()
    assert begun.durable.controller.state.begun
    begun.durable.close()
    longer = {**raw, "federation": {**raw["federation"], "learners": [*names, "another"]}}
    again = host(study_of(longer)).open(tmp_path)
    assert again.durable.out.keys() == begun.durable.out.keys()
    again.durable.close()
    assert host(study_of(longer)).replay(tmp_path).out.keys() == begun.durable.out.keys()


def test_another_study_is_refused_before_it_is_told_the_journal(tmp_path: Path) -> None:
    host(study_of(study())).open(tmp_path).durable.close()
    with pytest.raises(ValueError, match=r"another study: they differ in \[training\]"):
        host(study_of(study(training={"rate": 0.5}))).open(tmp_path)


def test_a_full_disk_leaves_the_audit_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.sqlite")
    with journal.write():
        journal.note("a", "first", {})
    pages = journal._base.execute("PRAGMA page_count").fetchone()[0]
    journal._base.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(sqlite3.OperationalError, match="full"), journal.write():
        journal.note("a", "too much", {"text": "x" * 1_000_000})
    journal._base.execute("PRAGMA max_page_count = 1000000")
    with journal.write():
        journal.note("a", "second", {})
    assert journal.check_audit() == 2


@pytest.mark.slow
def test_a_journal_that_lacks_events_does_not_pass_for_whole(tmp_path: Path) -> None:
    held = hold(study(), tmp_path)
    journal = Journal(tmp_path / "state" / "journal.sqlite")
    last, _ = journal.last()
    journal._base.execute("DELETE FROM events WHERE number > ?", (last // 2,))
    journal.close()
    with pytest.raises(ReplayDiffers, match="some are gone"):
        held.hosting.replay(tmp_path / "state")


def test_a_part_that_fails_names_the_event_and_goes_on_when_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosting = host(study_of(study()))
    begun = hosting.open(tmp_path)
    name = next(iter(begun.terms.learners))
    with monkeypatch.context() as broken:
        broken.setattr(Controller, "handle", lambda controller, event: 1 / 0)
        begun.durable.take([IncomingEvent(Joined(name, 10, 0, 10))], [], 0.0)
        with pytest.raises(CannotBeTold, match=r"Event 1 .*Joined.*ZeroDivisionError.*mend the code"):
            begun.durable.handle()
        begun.durable.close()
        with pytest.raises(CannotBeTold, match="Event 1 "):
            hosting.open(tmp_path)
    mended = hosting.open(tmp_path)
    assert mended.durable.controller.state.members[name].active
    mended.durable.close()


@pytest.mark.slow
def test_the_score_is_known_after_a_new_start(tmp_path: Path) -> None:
    held = hold(study(), tmp_path)
    assert held.run is not None

    async def again() -> float | None:
        federation = held.hosting.open(tmp_path / "state")
        await federation.close()
        return federation.status.score

    assert asyncio.run(again()) == held.run.score == held.federation.status.score


def test_moments_that_would_not_be_finite_together_are_refused_alone() -> None:
    far = torch.full((2,), 1e60, dtype=torch.float64)
    with pytest.raises(InvalidUpdate, match="too large"):
        decode_moments(encode_moments(Moments(1, far, torch.zeros(2, dtype=torch.float64))), (2,))


def loss_of(answer: object) -> float:
    assert isinstance(answer, Scored)
    return answer.loss


def test_models_tried_at_home_do_not_mix(tmp_path: Path) -> None:
    """Each takes the network for itself: asked all at once, they say what they say one by one."""
    hosting = host(study_of(study()))

    async def go() -> None:
        federation = hosting.open(tmp_path)
        models = federation.durable.replay.models
        for number in range(12):
            numbers = torch.randn(hosting.layout.size, generator=torch.Generator().manual_seed(number))
            models.write(f"v{100 + number}", numbers)
        questions = [Evaluate(number, (HOME,), Model(f"v{100 + number}", ()), Score("test")) for number in range(12)]
        home = federation.evaluations._home
        assert home is not None
        alone = [loss_of(home.answer(question)) for question in questions]
        together = await asyncio.gather(
            *(federation.workers.run_at_home(partial(home.answer, question)) for question in questions)
        )
        assert [loss_of(answer) for answer in together] == alone
        await federation.close()

    asyncio.run(go())


def test_a_learner_without_thresholds_is_named_before_anything_is_opened() -> None:
    thresholds = {"name": "async_dvw", "loss": {"fast": 1.0}, "tombstones": {"fast": 1}}
    named = study(algorithms=[thresholds], federation={"learners": [{"name": "a", "group": "fast"}, "b"]})
    with pytest.raises(ValueError, match="no thresholds for learners of group ''"):
        host(study_of(named))


def test_each_failure_in_a_row_rests_a_learner_for_longer() -> None:
    session = LearnerSession("a")
    rests = [session.rests_until if session.count_failure(task, 0.0, 0.0) else 0.0 for task in range(12)]
    assert rests[0] == 0.0
    assert rests[1] < rests[4] < rests[8]
    assert rests[-1] == 300.0
    assert session.count_failure(12, 0.0, 600.0)
    assert session.rests_until == 6000.0, "longer if the others waited for it"
    assert not session.count_failure(12, 0.0, 600.0), "the same task counts once"
    session.count_success()
    assert not session.count_failure(13, 0.0, 0.0)


def test_a_pause_that_the_journal_had_not_heard_of_is_told_at_the_next_start(tmp_path: Path) -> None:
    async def go() -> None:
        federation = host(study_of(study())).open(tmp_path)
        name = next(iter(federation.sessions))
        federation.durable.take([IncomingEvent(Joined(name, 10, 0, 10))], [], 0.0)
        federation.durable.handle()
        federation.admissions.paused.add(name)
        await federation.open()
        assert [pending.entry.event for pending in federation.log._pending] == [Left(name)]
        await federation.close()

    asyncio.run(go())


def test_layers_at_hand_are_taken_before_others_are_fetched(tmp_path: Path) -> None:
    """While a question's model is on its way, a task may put other layers in the place of those it stands on."""
    raw = study()
    learner = next(iter(host(study_of(raw)).terms.learners))

    async def go() -> None:
        one = agent(raw, learner, tmp_path, port=1)
        layout = one.island.work.layout
        numbers = {name: torch.full((layout.layers[layout.index(name)].size,), 7.0) for name in layout.names}
        first, *rest = layout.names
        digests = {name: hashlib.sha256(as_bytes(numbers[name])).hexdigest() for name in layout.names}
        one._layers = {digests[first]: numbers[first]}

        async def fetch(task: int, layers: Sequence[str], size: int, *, shift: bool = False) -> memoryview:
            one._layers = {}  # a task has come meanwhile
            header = one.bodies.header(layout.indices(layers))
            return memoryview(bytearray(header + b"".join(bytes(as_bytes(numbers[name])) for name in layers)))

        one.link.fetch = fetch  # type: ignore[method-assign]
        model = encode_layers(layout.names, [digests[name] for name in layout.names])
        vector = await one._model(0, model, None, keep=False)
        assert rest
        assert torch.equal(vector, torch.full((layout.size,), 7.0))
        await one.link.close()

    asyncio.run(go())


def test_a_folder_in_use_by_a_controller_is_not_replayed(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(tomlkit.dumps(study()))
    host(study_of(study())).open(tmp_path / "state").durable.close()
    with alone_in(tmp_path / "state"), pytest.raises(ValueError, match="in use by another process"):
        replay(tmp_path / "study.toml", tmp_path / "state")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells where code lies in memory")
def test_startup_code_is_released_and_loaded_again() -> None:
    program = (
        "import re, torch\n"
        "from pathlib import Path\n"
        "from archipel.federation.controller.release_memory import release_startup_code\n"
        "held = lambda: int(re.search(r'RssFile:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])\n"
        "before = held(); release_startup_code(); after = held()\n"
        "print(before, after, float(torch.ones(3) @ torch.ones(3)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    before, after, product = map(float, done.stdout.split())
    assert after < before / 2
    assert product == 3
