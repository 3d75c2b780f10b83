"""Synchronous rounds: tables of events and what follows from them. `hand.py` says how to read a row."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from archipel.algorithms import fedavg, sync_dvw
from archipel.core.algorithm import Algorithm
from archipel.core.parts import (
    ByDistributedValidation,
    ByExamples,
    Everyone,
    Rounds,
)
from archipel.core.records import Committed, Handed, Membership, Returned
from archipel.core.types import (
    Evaluate,
    Metrics,
)
from tests.core.hand import (
    LAYOUT,
    Hand,
    evaluated,
    failed,
    joined,
    left,
    scored,
    trained,
    woke,
)


def test_a_round_opens_when_enough_have_joined_waits_for_all_and_commits() -> None:
    hand = Hand(fedavg(), learners=2).play(
        (joined("b", 30),),
        (joined("a", 10), "train 0 a v0", "train 1 b v0"),
        (trained(1, 3.0),),
        (trained(0, 1.0), "v1 <- 0 1", "train 2 a v1", "train 3 b v1"),
        (trained(2, 2.0),),
        (trained(3, 6.0), "v2 <- 2 3", "train 4 a v2", "train 5 b v2"),
    )
    assert hand.value == 5.0  # (10 x 2 + 30 x 6) / 40
    assert hand.state.rounds == 2
    assert [record.weights for record in hand.all(Committed)] == [((10.0, 10.0), (30.0, 30.0))] * 2


def test_what_is_written_down_of_a_round() -> None:
    hand = Hand(fedavg(epochs=2), learners=1)
    hand.play(
        (joined("a"), "train 0 a v0"),
        (trained(0, steps=7, metrics=Metrics(epochs=2.0)), "v1 <- 0", "train 1 a v1"),
    )
    assert hand.records == [
        Membership("a", there=True, fresh=True),
        Handed(0, "a", 0, 0),
        Returned(0, "a", 0, 7, 2.0, ("0", "1"), (), recalled=False),
        Committed(1, 1, ("a",), (("a",),), (0,), ((10.0, 10.0),), (0,), (7,), (0, 1), {}),
        Handed(1, "a", 1, 0),
    ]


def test_a_fraction_of_the_learners_takes_part_and_the_draw_is_the_seeds() -> None:
    def taking_part(seed: int) -> list[tuple[str, ...]]:
        hand = Hand(fedavg(0.5), learners=4, seed=seed)
        for name in "abcd":
            hand.do(joined(name))
        rounds = []
        for _ in range(8):
            rounds.append(tuple(task.learner for task in hand.state.out.values()))
            for task in list(hand.state.out):
                hand.do(trained(task))
        assert hand.state.version == 8
        return rounds

    first = taking_part(0)
    assert all(len(names) == 2 for names in first)
    assert len(set(first)) > 1, "every round draws anew"
    assert first == taking_part(0)
    assert first != taking_part(1)


@pytest.mark.parametrize(
    ("fraction", "learners", "tasks"), [(0.1, 10, 1), (0.29, 100, 29), (0.1, 4, 1), (0.5, 5, 2), (1.0, 3, 3)]
)
def test_how_many_take_part(fraction: float, learners: int, tasks: int) -> None:
    hand = Hand(fedavg(fraction), learners=learners)
    for number in range(learners):
        hand.do(joined(f"{number:03}"))
    assert len(hand.state.out) == tasks


def test_everyone_takes_part_whatever_the_fraction() -> None:
    Hand(replace(fedavg(0.5), selection=Everyone()), learners=2).play(
        (joined("a"),), (joined("b"), "train 0 a v0", "train 1 b v0")
    )


def test_a_deadline_cancels_and_the_rest_is_committed() -> None:
    hand = Hand(fedavg(deadline=10), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0", "wake 10 round 0"),
        (trained(0, 1.0),),
        (woke("round 0"), "cancel 1"),
        (woke("round 0"),),  # it is cancelled once
        (failed(1, "cancelled"), "refused 1 cancelled", "v1 <- 0", "train 2 a v1", "train 3 b v1", "wake 10 round 1"),
        (trained(1, 9.0), "refused 1 late"),
        (woke("round 0"),),  # an old round's timer says nothing of this one
        (trained(2, 4.0),),
        (trained(3, 6.0), "v2 <- 2 3", "train 4 a v2", "train 5 b v2", "wake 10 round 2"),
        (woke("round 1"),),
    )
    assert hand.value == 5.0
    assert "t1" not in hand.models.names(), "nobody needs what came late"


def test_an_answer_that_crosses_its_cancel_counts() -> None:
    hand = Hand(fedavg(deadline=10), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0", "wake 10 round 0"),
        (woke("round 0"), "cancel 0", "cancel 1"),
        (trained(1, 3.0),),
        (failed(0, "cancelled"), "refused 0 cancelled", "v1 <- 1", "train 2 a v1", "train 3 b v1", "wake 10 round 1"),
        (failed(1, "cancelled"), "refused 1 late"),
    )
    assert hand.value == 3.0


def test_a_deadline_does_not_wait_for_opinions_to_be_cancelled() -> None:
    Hand(replace(sync_dvw(), protocol=Rounds(deadline=10)), learners=2).play(
        (joined("a", validation=5),),
        (joined("b", validation=5), "train 0 a v0", "train 1 b v0", "wake 10 round 0"),
        (trained(0), "ask 2 b t0"),
        (woke("round 0"), "cancel 1"),
        (failed(1, "cancelled"), "refused 1 cancelled"),  # b's opinion of a is still out
        (evaluated(2), "v1 <- 0", "train 3 a v1", "train 4 b v1", "wake 10 round 1"),
    )


def test_a_round_in_which_all_fail_passes_without_a_version() -> None:
    hand = Hand(fedavg(), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (failed(1), "refused 1 lost"),
        (failed(0), "refused 0 lost", "train 2 a v0", "train 3 b v0"),
    )
    assert (hand.state.version, hand.state.rounds) == (0, 1)


def test_an_answer_twice_is_applied_once() -> None:
    hand = Hand(fedavg(), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0, 1.0),),
        (trained(0, 5.0), "refused 0 late"),
        (failed(0), "refused 0 late"),
        (trained(1, 3.0), "v1 <- 0 1", "train 2 a v1", "train 3 b v1"),
    )
    assert hand.value == 2.0


def test_who_joins_in_mid_round_takes_part_in_the_next() -> None:
    Hand(fedavg(), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (joined("c"),),
        (trained(0),),
        (trained(1), "v1 <- 0 1", "train 2 a v1", "train 3 b v1", "train 4 c v1"),
    )


def test_a_round_waits_for_as_many_as_it_needs() -> None:
    Hand(replace(fedavg(), protocol=Rounds(at_least=2)), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (left("b"),),
        (trained(0),),
        (failed(1, "left"), "refused 1 left", "v1 <- 0"),
        (joined("c"), "train 2 a v1", "train 3 c v1"),
    )


def test_a_leavers_update_still_counts_and_it_may_come_back() -> None:
    hand = Hand(fedavg(), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(1, 3.0),),
        (left("b"),),
        (trained(0, 1.0), "v1 <- 0 1", "train 2 a v1"),
        (joined("b"),),
        (trained(2, 1.0), "v2 <- 2", "train 3 a v2", "train 4 b v2"),
        (left("nobody"),),
    )
    assert [(record.learner, record.there) for record in hand.all(Membership)] == [
        ("a", True),
        ("b", True),
        ("b", False),
        ("b", True),
    ]
    assert hand.trains[1].key != hand.trains[4].key, "its random numbers continue"


def test_learners_held_out_are_not_trained_nor_waited_for() -> None:
    Hand(fedavg(), learners=2).play(
        (joined("a"),),
        (joined("t", role="test"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
    )


def test_a_tasks_key_depends_on_the_learner_and_its_count_alone() -> None:
    alone, together = Hand(fedavg(), learners=1), Hand(fedavg(), learners=2)
    alone.play((joined("a"), "train 0 a v0"), (trained(0), "v1 <- 0", "train 1 a v1"))
    together.play(
        (joined("0"),),
        (joined("a"), "train 0 0 v0", "train 1 a v0"),
        (trained(0),),
        (failed(1), "refused 1 lost", "v1 <- 0", "train 2 0 v1", "train 3 a v1"),
    )
    keys = [hand.trains[task].key for hand, task in ((alone, 0), (together, 1), (alone, 1), (together, 3))]
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert keys[0] != keys[2]


@pytest.mark.parametrize("weighting", [ByExamples(), ByDistributedValidation()], ids=lambda w: type(w).__name__)
def test_sums_do_not_depend_on_who_came_first(weighting: ByExamples | ByDistributedValidation) -> None:
    vectors = [torch.randn(LAYOUT.size, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    found = set()
    for order in permutations(range(4)):
        hand = Hand(Algorithm("any", weighting=weighting), learners=4)
        for k, name in enumerate("abcd"):
            hand.do(joined(name, 10 + k, validation=3))
        questions: list[Evaluate] = []
        for task in order:
            own = Metrics(validation=scored(task, 2))
            commands = hand.do(trained(task, vectors[task], metrics=own))
            questions += [command for command in commands if isinstance(command, Evaluate)]
        for question in reversed(questions):
            wrong = int(question.model.name[1:]) + 1
            hand.do(evaluated(question.task, *((ord(site) % 5, wrong) for site in question.sites)))
        assert hand.state.version == 1
        found.add(hand.vector.numpy().tobytes())
    assert len(found) == 1
