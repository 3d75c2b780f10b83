"""A controller does not choose the randomness of a learner's tasks: it follows from the study, each seed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from archipel.core.randomness import derive
from archipel.federation.learner.local_state import Memory
from archipel.federation.learner.policy import Refusal
from archipel.federation.learner.task_keys import AHEAD, TaskKeys
from tests.security.lying_controller import Site, study

WORDS = "its seed is none of this learner's next ones"


def key(place: int, seed: int = 3, learner: str = "a") -> int:
    return derive(seed, "training", learner, place)


def test_seeds_come_in_order_and_some_may_be_left_out() -> None:
    keys = TaskKeys(3, "a", Memory())
    for task, place in enumerate((0, 1, 5, 5 + AHEAD)):
        keys.check(task, key(place))
    for place in (0, 5, 5 + AHEAD, 7 + 2 * AHEAD):
        with pytest.raises(Refusal, match=WORDS):
            keys.check(9, key(place))


def test_a_task_that_comes_again_has_its_seed_again_and_no_other_task_has_it() -> None:
    keys = TaskKeys(3, "a", Memory())
    for _ in range(3):
        keys.check(4, key(0))
    with pytest.raises(Refusal, match=WORDS):
        keys.check(5, key(0))


@pytest.mark.parametrize("wrong", [key(0, seed=4), key(0, learner="b"), 0, 17])
def test_seeds_of_others_are_refused(wrong: int) -> None:
    memory = Memory()
    keys = TaskKeys(3, "a", memory)
    keys.check(0, key(0))
    with pytest.raises(Refusal, match=WORDS):
        keys.check(1, wrong)
    assert memory.keys == 1


def test_a_learner_that_lost_its_folder_finds_where_the_controller_is() -> None:
    keys = TaskKeys(3, "a", Memory())
    keys.check(0, key(20 * AHEAD))
    with pytest.raises(Refusal, match=WORDS):
        keys.check(1, key(19 * AHEAD))


@pytest.mark.slow
def test_a_seed_that_the_study_does_not_give_trains_nothing(tmp_path: Path) -> None:
    one = Site(study(), tmp_path)
    first = one.key()
    assert one.train(one.honest, first).WhichOneof("result") == "trained"
    head = one.train(one.honest, first)
    assert head.failed == f"this task is not of the study: {WORDS}"
    assert one.train(one.honest, 12345).failed == head.failed
    assert one.agent.memory.trained == 1
    assert one.train(one.honest).WhichOneof("result") == "trained"
    again = Site(study(), tmp_path)
    assert again.train(again.honest, first).failed == head.failed, "a restart forgets nothing"
