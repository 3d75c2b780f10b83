"""What a learner of a federation refuses in a secure sum, and what it remembers when it is started again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from archipel.core.parts import SecureSum
from archipel.federation.learner import local_state, restored_files
from archipel.federation.learner.local_state import StateFolder, Withheld
from archipel.federation.learner.masked_updates import MaskedUpdates, SumSettings
from archipel.federation.learner.sum_rounds import reply_in_sum
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import sum_steps
from archipel.privacy.secure_sum.sum_collector import SumCollector
from archipel.privacy.secure_sum.sum_messages import RoundKeys, SecureSumRefused

SETTINGS = SumSettings(SecureSum(), equally=False)
NAMES = ("site-0", "site-1", "site-2")


class Trusting:
    """Takes a statement for its own signature."""

    def sign(self, statement: bytes) -> tuple[bytes, bytes]:
        return statement, b"certificate"

    def verify(self, keys: RoundKeys, statement: bytes) -> str | None:
        return None if keys.signature == statement else "it is forged"


def learner(folder: Path, name: str = "site-0") -> MaskedUpdates:
    """A learner that has an update of task 7, or what the folder holds."""
    state = StateFolder(folder / name)
    if state.fresh:
        state.memory.federation = "here"
        state.memory.withheld = Withheld(7, ("0", "1"), torch.arange(9, dtype=torch.float64) / 100)
        state.save()
    return MaskedUpdates(name, state, SETTINGS, 20, Trusting())


def first(task: int = 9, **changes: object) -> pb.SumStep:
    step = pb.SumStep(task=task, phase="advertise", training=7, layers=["0", "1"])
    step.terms.CopyFrom(sum_steps.encode_terms(SETTINGS.sums))
    for name, value in changes.items():
        setattr(step.terms, name, value)
    return step


class Sum:
    """A sum of three learners, gone through as far as a test wants."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.learners = {name: learner(folder, name) for name in NAMES}
        self.collector = SumCollector("here/9", NAMES, least=3, threshold=0.75, verify=Trusting().verify)
        for one in self.learners.values():
            self.collector.take_keys(sum_steps.decode_keys(one.answer(first())[0].keys))
        self.collector.close()

    def step(self, name: str) -> pb.SumStep:
        step = pb.SumStep(task=9, phase=self.collector.phase)
        if self.collector.phase == "share":
            cohort = self.collector.cohort_for(name)
            step.told.extend(sum_steps.encode_named(cohort.digests))
            step.keys.extend(map(sum_steps.encode_keys, cohort.keys.values()))
        else:
            boxes = self.collector.phase == "mask"
            told = self.collector.boxes_for(name) if boxes else self.collector.tags_for(name)
            step.told.extend(sum_steps.encode_named(told))
        return step

    def go_on(self) -> None:
        """Have everybody answer, and close the phase."""
        takes = {
            "share": self.collector.take_boxes,
            "mask": self.collector.take_sent,
            "confirm": self.collector.take_confirmed,
        }
        take = takes[self.collector.phase]
        for name, one in self.learners.items():
            take(name, sum_steps.decode_named(one.answer(self.step(name))[0].given))
        self.collector.close()


def test_a_learner_that_is_started_again_gives_the_same_answers(tmp_path: Path) -> None:
    one = Sum(tmp_path)
    for _ in range(4):
        before = one.learners["site-0"].answer(one.step("site-0"))
        again = learner(tmp_path).answer(one.step("site-0"))
        assert again[0] == before[0]
        assert (again[1] is None) == (before[1] is None)
        if before[1] is not None and again[1] is not None:
            assert again[1].tolist() == before[1].tolist()
        if one.collector.phase != "reveal":
            one.go_on()


def test_its_secrets_are_gone_when_the_round_is_over_and_nobody_else_can_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, seen, replaced = learner(tmp_path), list[int](), os.replace

    def looks(source: Path, target: Path) -> None:
        if target.name == "sum.json":
            seen.append(source.stat().st_mode & 0o777)
        replaced(source, target)

    monkeypatch.setattr(os, "replace", looks)
    one.answer(first())
    path = tmp_path / "site-0" / "sum.json"
    assert seen == [0o600], "not for a moment"
    assert path.stat().st_mode & 0o077 == 0
    one.end(9)
    assert not path.exists()
    assert one._folder.memory.withheld is None


REFUSED: dict[str, tuple[Callable[[MaskedUpdates], object], str]] = {
    "another clip": (lambda one: one.answer(first(clip=5.0)), "clip=5.0, and the study has 10.0"),
    "another threshold": (lambda one: one.answer(first(threshold=0.5)), "threshold=0.5, and the study has 0.75"),
    "a smaller cohort": (lambda one: one.answer(first(at_least=1)), "at_least=1, and the study has 3"),
    "other weights": (lambda one: one.answer(first(most_examples=9)), "most_examples=9, and the study has 1000"),
    "fewer bits": (lambda one: one.answer(first(bits=8)), "bits=8, and the study has 32"),
    "the same update again": (
        lambda one: (one.answer(first()), one.answer(first(10))),
        "the update of task 7 was in round 9",
    ),
    "an earlier round": (lambda one: (one.answer(first()), one.answer(first(8))), "round 8 is not above 9"),
    "another update": (
        lambda one: one.answer(pb.SumStep(task=9, phase="advertise", training=8, terms=first().terms)),
        "no update of task 8 with these layers",
    ),
    "a round it is not in": (
        lambda one: one.answer(pb.SumStep(task=3, phase="reveal")),
        "it takes no part in round 3",
    ),
    "out of turn": (
        lambda one: (one.answer(first()), one.answer(pb.SumStep(task=9, phase="reveal"))),
        "asked to reveal in round here/9, and it is at 'share'",
    ),
    "an unknown phase": (
        lambda one: (one.answer(first()), one.answer(pb.SumStep(task=9, phase="open"))),
        "there is no phase 'open'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_learner_refuses_what_its_study_does_not_ask(case: str, tmp_path: Path) -> None:
    attempt, sentence = REFUSED[case]
    with pytest.raises(Exception, match=sentence):
        attempt(learner(tmp_path))


def test_a_second_request_for_shares_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    one = Sum(tmp_path)
    for _ in range(3):
        one.go_on()
    true = one.step("site-0")
    one.learners["site-0"].answer(true)
    other = pb.SumStep(task=9, phase="reveal", told=true.told[:1])
    for asked in (one.learners["site-0"], learner(tmp_path)):
        head, _ = reply_in_sum(asked, other, 1)
        assert "asked to reveal twice in round 9" in head.failed


@pytest.mark.parametrize("what", ["an hour later", "another start of the machine", "an earlier version"])
@pytest.mark.parametrize("file", ["sum.json", "learner.safetensors"])
def test_a_round_that_was_restored_from_a_backup_is_left(
    file: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would tell one controller that site-1 has sent, and then give shares of its key."""
    one = Sum(tmp_path)
    for _ in range(2):
        one.go_on()
    site = one.learners["site-0"]
    site.answer(one.step("site-0"))
    again = learner(tmp_path)
    assert again.answer(one.step("site-0")) == site.answer(one.step("site-0")), "killed and started again, it goes on"
    state = StateFolder(tmp_path / "site-0")
    path, mark = tmp_path / "site-0" / file, state.memory.mark
    written, _, boot = mark.partition(" ")
    told = {"an hour later": f"{float(written) - 3600} {boot}", "another start of the machine": f"{written} other"}
    restored = told.get(what, "")
    if file == "sum.json":
        path.write_text(path.read_text().replace(json.loads(path.read_text())["mark"], restored))
    else:
        monkeypatch.setattr(local_state, "mark", lambda: restored)
        state.save()
    again = learner(tmp_path)
    with pytest.raises(SecureSumRefused, match="it takes no part in round 9"):
        again.answer(one.step("site-0"))
    with pytest.raises(SecureSumRefused, match="round 9 is not above 9" if file == "sum.json" else "is not above 9"):
        again.answer(first())
    assert not (tmp_path / "site-0" / "sum.json").exists()
    if file == "learner.safetensors":
        with pytest.raises(SecureSumRefused, match="it has no update of task 7"):
            again.answer(first(10))


def test_a_copied_file_is_known_by_its_change_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text(restored_files.mark())
    assert not restored_files.is_restored(path, path.read_text())
    monkeypatch.setattr(time, "time", lambda: path.stat().st_ctime - 300)
    old = restored_files.mark()
    os.utime(path, (time.time(), time.time()))  # as a backup sets it back
    assert restored_files.is_restored(path, old)


def test_a_study_without_sums_takes_part_in_none() -> None:
    head, body = reply_in_sum(None, first(), 1)
    assert (head.failed, len(body)) == ("the study has no secure sums", 0)


def test_without_certificates_there_are_no_secure_sums(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="whose keys are signed with certificates"):
        MaskedUpdates("site-0", StateFolder(tmp_path), SETTINGS, 20, None)


def test_a_damaged_request_ends_the_round_for_a_learner(tmp_path: Path) -> None:
    one = learner(tmp_path)
    one.answer(first())
    junk = pb.SumStep(task=9, phase="share", told=[pb.Named(name="x", data=os.urandom(9))])
    head, _ = reply_in_sum(one, junk, 1)
    assert "a cohort of 1 is smaller than 3" in head.failed
    head, _ = reply_in_sum(one, first(), 1)
    assert head.sum.keys.learner == "site-0", "what it has said it says again"
