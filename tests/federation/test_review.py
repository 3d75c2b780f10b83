"""Small things that would have cost much: each was found by reading, and is held by a test since."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from pathlib import Path

import pytest
import torch
from in_one_process import hold, study

from archipel.data.standardise import Moments
from archipel.durability.book import Entry, ReplayDiffers
from archipel.durability.journal import Journal
from archipel.engines.federation.body import Bad
from archipel.engines.federation.speech import hear_moments, say_moments
from archipel.study.federate import host
from archipel.study.files import study_of
from archipel.types import HOME, Evaluate, Joined, Model, Score


def test_the_list_of_learners_may_change_before_the_first_snapshot(tmp_path: Path) -> None:
    """`wait_for` follows from the list; the run began when it had another length."""
    raw = study(ending={"rounds": 100})
    begun = host(study_of(raw)).open(tmp_path)
    names = [*begun.terms.learners]
    for name in names:
        begun.book.take([Entry(Joined(name, 10, 0, 10))], [], 0.0)
        begun.book.handle()
    assert begun.book.controller.state.begun
    begun.book.close()
    longer = {**raw, "federation": {**raw["federation"], "learners": [*names, "another"]}}
    again = host(study_of(longer)).open(tmp_path)
    assert again.book.out.keys() == begun.book.out.keys()
    again.book.close()
    assert host(study_of(longer)).replay(tmp_path).out.keys() == begun.book.out.keys()


def test_another_study_is_refused_before_it_is_told_the_journal(tmp_path: Path) -> None:
    host(study_of(study())).open(tmp_path).book.close()
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
    assert journal.look_at_audit() == 2


def test_a_journal_that_lacks_events_does_not_pass_for_whole(tmp_path: Path) -> None:
    held = hold(study(), tmp_path)
    journal = Journal(tmp_path / "state" / "journal.sqlite")
    last, _ = journal.last()
    journal._base.execute("DELETE FROM events WHERE number > ?", (last // 2,))
    journal.close()
    with pytest.raises(ReplayDiffers, match="some are gone"):
        held.hosting.replay(tmp_path / "state")


def test_moments_that_would_not_be_finite_together_are_refused_alone() -> None:
    far = torch.full((2,), 1e60, dtype=torch.float64)
    with pytest.raises(Bad, match="too large"):
        hear_moments(say_moments(Moments(1, far, torch.zeros(2, dtype=torch.float64))), (2,))


def test_models_tried_at_home_do_not_mix(tmp_path: Path) -> None:
    """Each takes the network for itself: asked all at once, they say what they say one by one."""
    hosting = host(study_of(study()))

    async def go() -> None:
        federation = hosting.open(tmp_path)
        models = federation.book.course.models
        for number in range(12):
            numbers = torch.randn(hosting.layout.size, generator=torch.Generator().manual_seed(number))
            models.write(f"v{100 + number}", numbers)
        questions = [Evaluate(number, (HOME,), Model(f"v{100 + number}", ()), Score("test")) for number in range(12)]
        home = federation.home
        assert home is not None
        alone = [home.answer(question).loss for question in questions]
        together = await asyncio.gather(*(federation.in_home(partial(home.answer, question)) for question in questions))
        assert [answer.loss for answer in together] == alone
        await federation.close()

    asyncio.run(go())
