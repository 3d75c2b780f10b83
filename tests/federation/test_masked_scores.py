"""What a learner refuses when scores are added up, and that what it sends under one mask is always the same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from archipel.core.parts import SecureSum
from archipel.core.pooled_scores import ScoreNumbers
from archipel.core.types import Scored
from archipel.federation.learner import local_state
from archipel.federation.learner.local_state import StateFolder
from archipel.federation.learner.masked_scores import MOST, MaskedScores
from archipel.federation.learner.policy import Refusal
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import sum_steps
from archipel.privacy.secure_sum.sum_collector import SumCollector
from archipel.privacy.secure_sum.sum_messages import SecureSumRefused
from tests.federation.test_masked_updates import Trusting

NAMES = ("site-0", "site-1", "site-2")
NUMBERS = ScoreNumbers(2)


def counts(right: int) -> Scored:
    return Scored(9, 4.5, np.array([[right, 9 - right], [0, 0]]))


def learner(folder: Path, name: str = "site-0") -> MaskedScores:
    state = StateFolder(folder / name)
    state.memory.federation = "here"
    state.save()
    return MaskedScores(name, state, SecureSum(), Trusting())


def holding(folder: Path, name: str = "site-0") -> MaskedScores:
    """A learner that holds its score -4 of the model m."""
    one = learner(folder, name)
    one.hold(-4, "m", counts(5), NUMBERS)
    return one


def first(task: int = -4, training: int | None = None) -> pb.SumStep:
    step = pb.SumStep(task=task, phase="advertise", training=task if training is None else training)
    step.terms.CopyFrom(sum_steps.encode_terms(SecureSum()))
    return step


def others(one: MaskedScores) -> MaskedScores:
    """Ask for so many other scores that the first one gives way."""
    for task in range(-5, -5 - MOST, -1):
        one.hold(task, "n", counts(6), NUMBERS)
    return one


def added_up(one: MaskedScores) -> MaskedScores:
    one.answer(first())
    one.end(-4)
    return one


def up_to_masks(folder: Path) -> tuple[dict[str, MaskedScores], SumCollector, pb.SumStep]:
    """Three learners that have shared their secrets, and the request for site-0's numbers."""
    learners = {name: holding(folder, name) for name in NAMES}
    collector = SumCollector("here/-4", NAMES, least=3, threshold=0.75, verify=Trusting().verify)
    for one in learners.values():
        collector.take_keys(sum_steps.decode_keys(one.answer(first())[0].keys))
    collector.close()
    for name, one in learners.items():
        cohort = collector.cohort_for(name)
        step = pb.SumStep(task=-4, phase="share", told=sum_steps.encode_named(cohort.digests))
        step.keys.extend(map(sum_steps.encode_keys, cohort.keys.values()))
        collector.take_boxes(name, sum_steps.decode_named(one.answer(step)[0].given))
    collector.close()
    step = pb.SumStep(task=-4, phase="mask", told=sum_steps.encode_named(collector.boxes_for("site-0")))
    return learners, collector, step


def test_a_question_that_is_asked_again_is_not_counted_again(tmp_path: Path) -> None:
    assert not learner(tmp_path).holds(-4, "m")
    one = holding(tmp_path)
    assert one.holds(-4, "m")
    assert learner(tmp_path).holds(-4, "m"), "nor after a restart"


REFUSED: dict[str, tuple[Callable[[MaskedScores], object], type[Exception], str]] = {
    "another model": (lambda one: one.holds(-4, "n"), Refusal, "the score -4 was asked of another model before"),
    "another model at the same time": (lambda one: one.hold(-4, "n", counts(6), NUMBERS), Refusal, "another model"),
    "an earlier score": (lambda one: (one.answer(first()), one.holds(-3, "m")), Refusal, "-3 comes out of turn"),
    "one that gave way to others": (
        lambda one: others(one).holds(-4, "m"),
        Refusal,
        "the score -4 comes out of turn",
    ),
    "a score for an update": (lambda one: one.holds(0, "m"), Refusal, "the score 0 comes out of turn"),
    "one that was added up": (
        lambda one: added_up(one).holds(-4, "m"),
        Refusal,
        "the score -4 comes out of turn",
    ),
    "one that it has not": (lambda one: one.answer(first(-5)), SecureSumRefused, "it has no score -5"),
    "an update in its place": (lambda one: one.answer(first(training=7)), SecureSumRefused, "it has no score -4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_learner_refuses(case: str, tmp_path: Path) -> None:
    attempt, kind, sentence = REFUSED[case]
    with pytest.raises(kind, match=sentence):
        attempt(holding(tmp_path))


def test_a_score_goes_into_one_sum(tmp_path: Path) -> None:
    one = holding(tmp_path)
    one.answer(first())
    other = first()
    other.told.append(pb.Named(name="x"))  # another request for the same sum
    with pytest.raises(SecureSumRefused, match="the score -4 was in a sum before"):
        one.answer(other)


def test_a_score_that_gives_way_opens_no_sum_again(tmp_path: Path) -> None:
    one = holding(tmp_path)
    one.hold(-5, "n", counts(6), NUMBERS)
    one.answer(first(-5))
    for task in range(-6, -4 - MOST, -1):  # -4, which was never in a sum, gives way; -5 is still there
        one.hold(task, "n", counts(6), NUMBERS)
    again = first(-5)
    again.told.append(pb.Named(name="x"))
    with pytest.raises(SecureSumRefused, match="the score -5 was in a sum before"):
        one.answer(again)


def test_masked_numbers_are_the_same_whatever_was_asked_meanwhile_and_after_a_restart(tmp_path: Path) -> None:
    """Two counts under the same masks would tell their difference."""
    learners, _, step = up_to_masks(tmp_path)
    one = learners["site-0"]
    numbers = one.answer(step)[1]
    assert numbers is not None
    one.hold(-4, "m", counts(6), NUMBERS)  # of two questions at a time, the second
    with pytest.raises(Refusal):
        one.hold(-4, "n", counts(6), NUMBERS)
    for again in (one, learner(tmp_path)):
        found = again.answer(step)[1]
        assert found is not None
        assert found.tolist() == numbers.tolist()
    others(one)
    with pytest.raises(SecureSumRefused, match="it has no numbers for round -4 any more"):
        one.answer(step)


def test_a_restored_learner_leaves_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learners, _, step = up_to_masks(tmp_path)
    learners["site-0"].answer(step)
    state = StateFolder(tmp_path / "site-0")
    monkeypatch.setattr(local_state, "mark", lambda: "0.0 another start of the machine")
    state.save()
    again = MaskedScores("site-0", StateFolder(tmp_path / "site-0"), SecureSum(), Trusting())
    with pytest.raises(SecureSumRefused, match="it takes no part in round -4"):
        again.answer(step)
    assert not again._path.exists()


def test_the_state_is_saved_by_one_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores, sums and training save it from threads of their own, into one temporary file."""
    state, saved = StateFolder(tmp_path / "site-0"), list[bool]()

    def save(path: Path, value: object) -> None:
        with ThreadPoolExecutor(1) as another:
            saved.append(another.submit(state.lock.acquire, blocking=False).result())

    monkeypatch.setattr(local_state.CODEC, "save", save)
    state.save()
    assert saved == [False], "nobody else can begin meanwhile"
