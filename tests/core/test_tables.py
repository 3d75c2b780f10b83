"""Tables of events and what follows from them, without an engine. `hand.py` says how to read a row."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np
import pytest
import torch

from archipel.algorithms import fedavg, fedprox, hdafl, plu, sync_dvw
from archipel.core.algorithm import Algorithm
from archipel.core.controller import Controller
from archipel.core.parts import (
    ByConsistency,
    ByDistributedValidation,
    ByExamples,
    Community,
    Ending,
    Equally,
    Evaluation,
    Everyone,
    Mean,
    MedianStaleness,
    Mix,
    PrivateLayers,
    Product,
    Relay,
    Rounds,
    Selection,
    Stream,
    Weighting,
)
from archipel.core.records import Committed, Handed, Membership, Refused, Returned, Scores
from archipel.core.state import View, validate
from archipel.core.types import (
    AUC_BINS,
    Consistency,
    Consistent,
    Evaluate,
    Failed,
    Joined,
    Left,
    Metrics,
    Score,
    Scored,
    ScoreTable,
    Traffic,
    Train,
    Wake,
)
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels
from tests.core.hand import (
    LAYOUT,
    Hand,
    Opinions,
    evaluated,
    failed,
    joined,
    left,
    progress,
    scored,
    trained,
    tried,
    untried,
    woke,
)


@dataclass(frozen=True)
class Script(Selection):
    """Picks who the script says: the n-th draw takes the n-th word, a letter a learner."""

    words: tuple[str, ...]

    def select(self, view: View, candidates: Sequence[str], count: int, draw: str) -> list[str]:
        number = int(draw.split()[-1])
        return [name for name in self.words[number] if name in candidates][:count]


def stream(buffer: int = 1, **settings: object) -> Algorithm:
    return Algorithm("stream", protocol=Stream(buffer, **settings), weighting=Equally())


# ---------------------------------------------------------------------------------------------------------- Rounds


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
    assert hand.trains[1].plan.key != hand.trains[4].plan.key, "its randomness goes on where it was"


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
    keys = [hand.trains[task].plan.key for hand, task in ((alone, 0), (together, 1), (alone, 1), (together, 3))]
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


# ----------------------------------------------------------------------------------------------------- who is there


def test_who_is_there_follows_joins_leaves_returns_and_changes_of_role() -> None:
    hand = Hand(fedavg(), learners=3)

    def there(event: Joined | Left) -> dict[str, list[str]]:
        hand.do(event)  # `validate` holds it against the members
        assert list(hand.controller._context.view("any").active()) == hand.state.there.get("train", [])
        return {role: list(names) for role, names in hand.state.there.items() if names}

    assert there(joined("b")) == {"train": ["b"]}
    assert there(joined("c", test=5)) == {"train": ["b", "c"]}
    assert there(joined("a")) == {"train": ["a", "b", "c"]}, "by name"
    assert there(joined("t", role="test", test=5)) == {"train": ["a", "b", "c"], "test": ["t"]}
    assert there(left("b")) == {"train": ["a", "c"], "test": ["t"]}
    assert there(left("b")) == {"train": ["a", "c"], "test": ["t"]}, "once is enough"
    assert there(left("nobody")) == {"train": ["a", "c"], "test": ["t"]}
    assert there(joined("c")) == {"train": ["a", "c"], "test": ["t"]}, "it joins again without having left"
    assert there(joined("c", role="validation", test=5)) == {"train": ["a"], "test": ["t"], "validation": ["c"]}
    assert there(joined("t")) == {"train": ["a", "t"], "validation": ["c"]}
    assert there(left("c")) == {"train": ["a", "t"]}
    assert there(joined("c", role="test", test=5)) == {"train": ["a", "t"], "test": ["c"]}, "back, in another role"
    assert there(joined("b", role="test", test=0)) == {"train": ["a", "t"], "test": ["b", "c"]}
    assert Evaluation(at="held-out test").sites(hand.state) == ["c"], "b has nothing to try a model on"
    assert Evaluation(at="held-out validation").sites(hand.state) == []
    assert Evaluation(at="learners").sites(hand.state) == []


@pytest.mark.parametrize(
    "there",
    [{}, {"train": ["a"]}, {"train": ["b", "a"]}, {"train": ["a", "b", "b"]}, {"train": ["a"], "test": ["b"]}],
    ids=["nobody", "one is missing", "not by name", "one is there twice", "in another role"],
)
def test_who_is_there_is_a_law(there: dict[str, list[str]]) -> None:
    hand = Hand(fedavg(), learners=2).play((joined("a"),), (joined("b"), "train 0 a v0", "train 1 b v0"))
    hand.state.there = {"train": ["a", "b"], "test": []}
    validate(hand.state, hand.models)  # a role that nobody has any more
    hand.state.there = there
    with pytest.raises(AssertionError, match="who is there"):
        validate(hand.state, hand.models)


def test_who_leaves_or_changes_its_role_is_not_asked_nor_given_work() -> None:
    Hand(sync_dvw(), learners=3).play(
        (joined("a", validation=5),),
        (joined("b", validation=5),),
        (joined("c", validation=5), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (joined("b", role="test", validation=5),),
        (trained(0), "ask 3 c t0"),
        (left("a"),),
        (trained(1), "ask 4 c t1"),
        (joined("a", validation=5),),
        (trained(2), "ask 5 a t2"),
        (evaluated(3),),
        (evaluated(4),),
        (evaluated(5), "v1 <- 0 1 2", "train 6 a v1", "train 7 c v1"),
    )


# ---------------------------------------------------------------------------------------------------------- Stream


def test_a_full_buffer_is_a_commit_and_only_contributors_get_the_new_model() -> None:
    hand = Hand(stream(2), learners=3).play(
        (joined("a"),),
        (joined("b"),),
        (joined("c"), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(2, 3.0),),  # c waits for the commit
        (trained(0, 1.0), "v1 <- 0 2", "train 3 a v1", "train 4 c v1"),
        (trained(1, 5.0),),
        (trained(4, 7.0), "v2 <- 1 4", "train 5 b v2", "train 6 c v2"),
    )
    assert hand.value == 6.0
    assert hand.last(Committed).stale_versions == (1, 0)


def test_staleness_is_stamped_at_the_commit_in_versions_and_in_steps() -> None:
    hand = Hand(stream(), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0, steps=4), "v1 <- 0", "train 2 a v1"),
        (trained(2, steps=5), "v2 <- 2", "train 3 a v2"),
        (trained(1, steps=3), "v3 <- 1", "train 4 b v3"),
    )
    assert [record.stale_versions for record in hand.all(Committed)] == [(0,), (0,), (2,)]
    assert [record.stale_steps for record in hand.all(Committed)] == [(4,), (5,), (4 + 5 + 3,)]


def test_a_buffer_that_waits_too_long_is_committed_and_an_old_timer_is_ignored() -> None:
    hand = Hand(stream(3, max_wait=5.0), learners=3).play(
        (joined("a"),),
        (joined("b"),),
        (joined("c"), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(0, 1.0), "wake 5 buffer 0"),
        (woke("buffer 0"), "v1 <- 0", "train 3 a v1"),
        (woke("buffer 0"),),
        (trained(1, 2.0), "wake 5 buffer 1"),
        (trained(2, 3.0),),
        (woke("buffer 0"),),
        (trained(3, 4.0), "v2 <- 3 1 2", "train 4 a v2", "train 5 b v2", "train 6 c v2"),
        (trained(5, 0.0), "wake 5 buffer 2"),
        (woke("buffer 1"),),  # the buffer of version 1 was full before its time
        (woke("buffer 2"), "v3 <- 5", "train 7 b v3"),
    )
    assert hand.state.version == 3


def test_a_timer_that_comes_before_the_evidence_commits_as_soon_as_that_is_in() -> None:
    algorithm = replace(sync_dvw(), protocol=Stream(3, max_wait=5.0))
    Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b"),),
        (joined("c"), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(1), "ask 3 a t1", "wake 5 buffer 0"),
        (woke("buffer 0"),),
        (evaluated(3), "v1 <- 1", "train 4 b v1"),
    )


def test_the_time_of_a_buffer_begins_with_its_first_update() -> None:
    algorithm = replace(sync_dvw(quorum=1.0), protocol=Stream(3, max_wait=5.0))
    hand = Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b"),),
        (joined("c"), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(1), "ask 3 a t1", "wake 5 buffer 0"),
        (failed(3),),
        # it is left out for lack of evidence: there is no new version, but its buffer is gone
        (woke("buffer 0"), "refused 1 too", "train 4 b v0"),
    )
    assert any(isinstance(command, Wake) for command in hand.do(trained(2))), "a new buffer, a new timer"
    hand.do(evaluated(5))
    assert hand.state.version == 0, "its time is not up yet"


def test_no_more_are_at_work_than_the_concurrency_allows() -> None:
    hand = Hand(stream(concurrency=2), learners=4)
    for name in "abcd":
        hand.do(joined(name))
    seen = set()
    for _ in range(20):
        assert len(hand.state.out) == 2
        seen |= {task.learner for task in hand.state.out.values()}
        hand.do(trained(min(hand.state.out)))
    assert hand.state.version == 20
    assert seen == set("abcd")
    assert hand.state.rounds == 10, "a local round of a stream: as many updates as work side by side"


def test_a_failed_learner_gets_a_new_task() -> None:
    Hand(stream(), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(1), "v1 <- 1", "train 2 b v1"),
        (failed(0), "refused 0 lost", "train 3 a v1"),
    )


def test_a_stream_commits_when_nothing_is_out() -> None:
    Hand(stream(3), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(1),),
        (trained(0), "v1 <- 0 1", "train 2 a v1", "train 3 b v1"),
        (trained(2),),
        (left("b"),),
        (failed(3, "left"), "refused 3 left", "v2 <- 2", "train 4 a v2"),
    )


def test_a_stream_hands_out_before_it_finds_that_nothing_is_out() -> None:
    hand = Hand(stream(2, concurrency=1), learners=2)
    hand.do(joined("a"))
    hand.do(joined("b"))
    hand.do(trained(0))
    assert hand.state.version == 0, "the other learner is idle: its update can fill the buffer"
    hand.do(trained(1))
    assert hand.last(Committed).tasks == (0, 1)


def test_who_joins_a_stream_is_given_a_task_at_once() -> None:
    Hand(stream(), learners=1).play((joined("a"), "train 0 a v0"), (joined("b"), "train 1 b v0"))


def three_with_opinions(order: str) -> Hand:
    algorithm = Algorithm("dvw", protocol=Stream(order=order), weighting=ByDistributedValidation(), merge=Community())
    return Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b", validation=5),),
        (joined("c", validation=5), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(0), "ask 3 b c t0"),
        (trained(1), "ask 4 a c t1"),
    )


def test_first_in_first_out_evidence_of_a_later_one_waits_in_line() -> None:
    three_with_opinions("arrival").play(
        (evaluated(4),),
        # each contributor gets the version that its update made
        (evaluated(3), "v1 <- 0", "train 5 a v1", "v2 <- 1", "train 6 b v2"),
    )


def test_or_whose_evidence_is_complete_first() -> None:
    hand = three_with_opinions("ready").play(
        (evaluated(4), "v1 <- 1", "train 5 b v1"),
        (evaluated(3), "v2 <- 0", "train 6 a v2"),
    )
    assert [record.stale_versions for record in hand.all(Committed)] == [(0,), (1,)]


# ----------------------------------------------------------------------------------------------------------- Relay


def relay(*script: str, hops: int = 2, fraction: float = 0.5) -> Algorithm:
    return Algorithm("relay", protocol=Relay(fraction, hops), selection=Script(script))


def four(algorithm: Algorithm, *expected: str) -> Hand:
    return Hand(algorithm, learners=4).play(
        (joined("a", 1),), (joined("b", 2),), (joined("c", 4),), (joined("d", 8), *expected)
    )


def test_models_travel_and_examples_and_steps_add_up_along_their_paths() -> None:
    hand = four(relay("ab", "cd", "ab"), "train 0 a v0", "train 1 b v0").play(
        (trained(1, 2.0, steps=3),),
        (trained(0, 1.0, steps=5), "train 2 c t0", "train 3 d t1"),
        (trained(2, 3.0, steps=7),),
        (trained(3, 6.0, steps=11), "v1 <- 2 3", "train 4 a v1", "train 5 b v1"),
    )
    commit = hand.last(Committed)
    assert commit.paths == (("a", "c"), ("b", "d"))
    assert commit.weights == ((5.0, 5.0), (10.0, 10.0))  # 1 + 4 and 2 + 8 examples
    assert commit.stale_steps == (5 + 7, 3 + 11)
    assert hand.value == 5.0  # (5 x 3 + 10 x 6) / 15
    assert (hand.state.committed, hand.state.rounds) == (26, 2), "each hop is a local round"


def test_a_slot_goes_to_the_learner_in_its_place() -> None:
    four(relay("ba", "ab", hops=3), "train 0 b v0", "train 1 a v0").play(
        (trained(0),),
        (trained(1), "train 2 a t0", "train 3 b t1"),
    )


def test_a_lost_hop_keeps_the_slots_model() -> None:
    hand = four(relay("ab", "cd", "ab"), "train 0 a v0", "train 1 b v0").play(
        (trained(0, 1.0),),
        (trained(1, 2.0), "train 2 c t0", "train 3 d t1"),
        (trained(3, 6.0),),
        (failed(2), "refused 2 lost", "v1 <- 0 3", "train 4 a v1", "train 5 b v1"),
    )
    assert hand.last(Committed).paths == (("a",), ("b", "d"))
    assert hand.last(Committed).weights == ((1.0, 1.0), (10.0, 10.0))


def test_a_slot_whose_first_hop_was_lost_sets_out_again() -> None:
    four(relay("ab", "cd", "ab"), "train 0 a v0", "train 1 b v0").play(
        (failed(0), "refused 0 lost"),
        (trained(1), "train 2 c v0", "train 3 d t1"),
        (failed(2), "refused 2 lost"),
        (failed(3), "refused 3 lost", "v1 <- 1", "train 4 a v1", "train 5 b v1"),
    )


def test_a_relay_in_which_all_hops_are_lost_passes_without_a_version() -> None:
    hand = four(relay("ab", "cd", "ab"), "train 0 a v0", "train 1 b v0").play(
        (failed(0), "refused 0 lost"),
        (failed(1), "refused 1 lost", "train 2 c v0", "train 3 d v0"),
        (failed(2), "refused 2 lost"),
        (failed(3), "refused 3 lost", "train 4 a v0", "train 5 b v0"),
    )
    assert (hand.state.version, hand.state.rounds) == (0, 2)


def test_where_too_few_are_there_the_slots_that_have_travelled_most_rest() -> None:
    hand = four(relay("ab", "c", "d", "abcd", hops=3), "train 0 a v0", "train 1 b v0").play(
        (failed(1), "refused 1 lost"),
        (trained(0), "train 2 c v0"),  # slot 1 has not travelled yet
        (trained(2), "train 3 d t0"),  # both have made one hop: slot 0 goes
        (trained(3), "v1 <- 3 2", "train 4 a v1", "train 5 b v1"),
    )
    assert hand.last(Committed).paths == (("a", "d"), ("c",))


def test_a_relay_waits_while_nobody_is_there() -> None:
    hand = Hand(relay("a", "ab", "b", fraction=1.0), learners=1).play(
        (joined("a"), "train 0 a v0"),
        (left("a"),),
        (failed(0, "left"), "refused 0 left"),
        (joined("b"), "train 1 b v0"),
        (trained(1, 2.0), "v1 <- 1", "train 2 b v1"),
    )
    assert hand.value == 2.0


def test_opinions_on_models_that_travelled() -> None:
    algorithm = replace(relay("ab", "ba", "ab", fraction=1.0), weighting=ByDistributedValidation())
    hand = Hand(algorithm, learners=2).play(
        (joined("a", validation=5),),
        (joined("b", validation=5), "train 0 a v0", "train 1 b v0"),
        (trained(0),),
        (trained(1), "train 2 b t0", "train 3 a t1"),
        (trained(2, 1.0, metrics=Metrics(validation=scored(1, 1))),),
        (trained(3, 3.0, metrics=Metrics(validation=scored(2, 0))), "ask 4 a t2", "ask 5 b t3"),
        (evaluated(5, (2, 0)),),
        (evaluated(4, (0, 2)), "v1 <- 2 3", "train 6 a v1", "train 7 b v1"),
    )
    assert hand.last(Committed).weights == ((0.25, 0.25), (1.0, 1.0))
    assert hand.value == pytest.approx(2.6)


# -------------------------------------------------------------------------------------------------------- evidence


def three_under_dvw(**settings: float) -> Hand:
    algorithm = Algorithm("dvw", protocol=Stream(), weighting=ByDistributedValidation(**settings), merge=Mean())
    own = Metrics(validation=scored(1, 1))
    return Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b", validation=5),),
        (joined("c", validation=5), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (trained(0, metrics=own), "ask 3 b c t0"),
    )


def test_the_others_are_asked_and_the_own_opinion_travels_with_the_update() -> None:
    hand = three_under_dvw().play((evaluated(3, (2, 2), (3, 1)), "v1 <- 0", "train 4 a v1"))
    assert hand.last(Committed).weights == ((0.6, 0.6),)  # (1 + 2 + 3) of 10


@pytest.mark.parametrize("said", [((2, 1), None), (None, (2, 1))], ids=["of c", "of b"])
def test_a_missing_opinion_is_left_out(said: tuple[tuple[int, int] | None, ...]) -> None:
    hand = three_under_dvw().play(
        (evaluated(3, *said), "v1 <- 0", "train 4 a v1"),
        (evaluated(3, (100, 0), (100, 0)), "refused 3 late"),
    )
    assert hand.last(Committed).weights == ((0.6, 0.6),)  # (1 + 2) of 5


def test_an_evaluator_that_leaves_is_a_missing_opinion() -> None:
    three_under_dvw().play(
        (left("c"),),
        (failed(2, "left"), "refused 2 left"),
        (evaluated(3, (1, 0), None), "v1 <- 0", "train 4 a v1"),
        (trained(1), "ask 5 a t1"),  # c is not asked any more
    )


none_at_all = pytest.mark.parametrize("answer", [evaluated(3, None, None), failed(3)], ids=["of each", "as a whole"])


@none_at_all
def test_without_a_quorum_the_update_is_left_out(answer: Opinions | Failed) -> None:
    hand = three_under_dvw(quorum=0.5).play((answer, "refused 0 too", "train 4 a v0"))  # one opinion of three
    assert hand.state.version == 0
    assert hand.last(Refused).reason == "too little evidence to weigh it"


@none_at_all
def test_a_lower_quorum_takes_the_learners_word(answer: Opinions | Failed) -> None:
    hand = three_under_dvw(quorum=0.3).play((answer, "v1 <- 0", "train 4 a v1"))
    assert hand.last(Committed).weights == ((0.5, 0.5),)


def test_only_so_many_evaluators_are_asked_and_only_those_with_a_validation_part() -> None:
    algorithm = Algorithm("dvw", protocol=Stream(), weighting=ByDistributedValidation(evaluators=1))
    hand = Hand(algorithm, learners=4)
    for name in "abcd":
        hand.do(joined(name, validation=0 if name == "d" else 5))
    asked = {}
    for _ in range(30):
        task = min(hand.state.out)
        learner = hand.state.out[task].learner
        commands = hand.do(trained(task, metrics=Metrics(validation=scored(1))))
        (question,) = (command for command in commands if isinstance(command, Evaluate))
        (site,) = question.sites
        asked.setdefault(learner, set()).add(site)
        hand.do(evaluated(question.task))
    assert asked == {"a": {"b", "c"}, "b": {"a", "c"}, "c": {"a", "b"}, "d": {"a", "b", "c"}}


def test_with_nobody_to_ask_the_update_is_weighed_at_once() -> None:
    Hand(sync_dvw(), learners=1).play(
        (joined("a", validation=5), "train 0 a v0"),
        (trained(0, metrics=Metrics(validation=scored(1))), "v1 <- 0", "train 1 a v1"),
    )


def test_home_is_asked_to_compare_the_update_with_the_model_of_the_day() -> None:
    from archipel.algorithms import rce

    hand = Hand(rce(buffer=2), learners=2)
    hand.do(joined("a"))
    hand.do(joined("b"))
    (question,) = (command for command in hand.do(trained(0, 2.0)) if isinstance(command, Evaluate))
    assert (question.sites, question.probe) == (("home",), Consistency("cosine"))
    assert question.reference is not None
    assert question.reference.name == "v0"
    hand.play(
        (trained(1, 4.0), "ask 3 home t1"),
        (evaluated(3, Consistent((1.0, 0.25))),),
        (evaluated(2, Consistent((1.0, 0.75))), "v1 <- 0 1", "train 4 a v1", "train 5 b v1"),
    )
    assert hand.values == (3.0, 2.5)
    assert hand.last(Committed).weights == ((1.0, 0.75), (1.0, 0.25))


def three_weighed_by(*factors: Weighting) -> Hand:
    algorithm = Algorithm("product", protocol=Stream(), weighting=Product(*factors), merge=Mean())
    return Hand(algorithm, learners=3).play(
        (joined("a", validation=5),),
        (joined("b", validation=5),),
        (joined("c", validation=5), "train 0 a v0", "train 1 b v0", "train 2 c v0"),
    )


@pytest.mark.parametrize("order", [(3, 4), (4, 3)], ids=["in order", "the other way"])
def test_two_probes_are_two_tasks_and_the_update_waits_for_both(order: tuple[int, int]) -> None:
    hand = three_weighed_by(ByDistributedValidation(), ByConsistency()).play(
        (trained(0, metrics=Metrics(validation=scored(1, 1))), "ask 3 b c t0", "ask 4 home t0"),
    )
    assert [question.probe for question in hand.questions.values()] == [Score("validation"), Consistency("cosine")]
    assert [inquiry.question for inquiry in hand.state.inquiries.values()] == [0, 1]
    answers = {3: evaluated(3, (2, 1), None), 4: evaluated(4, Consistent((1.0, 0.5)))}
    first, last = order
    hand.play((answers[first],), (answers[last], "v1 <- 0", "train 5 a v1"))
    assert hand.last(Committed).weights == (pytest.approx((0.6, 0.3)),)  # (1 + 2) of 5


def test_one_of_two_probes_that_fails_leaves_the_update_out_when_the_other_is_answered() -> None:
    three_weighed_by(ByDistributedValidation(), ByConsistency()).play(
        (trained(0, metrics=Metrics(validation=scored(1, 1))), "ask 3 b c t0", "ask 4 home t0"),
        (failed(4),),
        (evaluated(3), "refused 0 too", "train 5 a v0"),
    )


def test_the_same_sites_asked_by_two_probes_answer_each_with_what_it_asks_for() -> None:
    hand = three_weighed_by(ByDistributedValidation("accuracy"), ByDistributedValidation("auc")).play(
        (trained(0), "ask 3 b c t0", "ask 4 b c t0"),
    )
    both = np.zeros((2, 2, AUC_BINS), dtype=int)
    both[:, 1, -1] = both[:, 0, 0] = 2  # two of each class, and every score on its side
    sure = Scored(4, 0.0, np.array([[2, 0], [0, 2]]), both)
    hand.play(
        (evaluated(4, sure, sure),),
        (evaluated(3, (3, 1), (3, 1)), "v1 <- 0", "train 5 a v1"),
    )
    assert hand.last(Committed).weights == ((0.75, 0.75),)


def test_what_two_factors_ask_alike_is_one_task() -> None:
    hand = three_weighed_by(ByDistributedValidation("accuracy"), ByDistributedValidation("micro_f1")).play(
        (trained(0), "ask 3 b c t0"),
        (evaluated(3, (3, 1), (1, 3)), "v1 <- 0", "train 4 a v1"),
    )
    assert hand.last(Committed).weights == ((0.25, 0.25),)


def test_a_question_that_is_out_and_its_evidence_are_a_law() -> None:
    hand = three_under_dvw()
    update, inquiry = hand.state.queue[0], hand.state.inquiries.pop(3)
    with pytest.raises(AssertionError, match=r"update 0 waits for the questions \[0\]"):
        validate(hand.state, hand.models)
    hand.state.inquiries[3] = inquiry
    update.evidence[0].answers = ScoreTable.of((None, None))
    with pytest.raises(AssertionError, match=r"update 0 waits for the questions \[\]"):
        validate(hand.state, hand.models)


# ----------------------------------------------------------------------------------------------- layers and recall


def test_a_layer_that_nobody_sent_stays_and_its_stamp_says_so() -> None:
    hand = Hand(hdafl(1.0, private="1"), learners=2, initial=9.0)
    hand.play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0, (1.0, float("nan"))),),  # what was not sent is not looked at
        (trained(1, (3.0, 100.0)), "v1 <- 0 1", "train 2 a v1", "train 3 b v1"),
    )
    assert hand.values == (2.0, 9.0)
    assert hand.state.model.manifest == ("v1", "v0")
    assert hand.last(Committed).layers == (0,)
    assert hand.trains[2].plan.private == ("1",)


def test_a_model_that_travels_without_its_private_layers() -> None:
    algorithm = replace(relay("ab", "ba", "ab", fraction=1.0), planners=(PrivateLayers("1"),))
    hand = Hand(algorithm, learners=2, initial=9.0).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0, (1.0, 50.0)),),
        (trained(1, (2.0, 60.0)), "train 2 b t0", "train 3 a t1"),
    )
    assert hand.models.read("t0").tolist() == [1.0] * 6 + [9.0] * 3, "private layers do not travel"
    assert hand.trains[2].model.manifest == ("t0", "v0")


def test_periodic_layers_are_asked_for_by_version() -> None:
    hand = Hand(plu(buffer=1, period=2, last=1, deep="1", by="hand-out"), learners=1)
    hand.do(joined("a"))
    for _ in range(5):
        hand.do(trained(max(hand.trains)))
    assert [hand.trains[task].plan.uploads for task in range(6)] == [None, None, ("0",), None, ("0",), None]


def test_periodic_layers_are_used_by_the_version_at_arrival() -> None:
    hand = Hand(plu(buffer=1, period=2, last=1, deep="1"), learners=1)
    hand.do(joined("a"))
    wanted, changed = [], []
    for _ in range(6):
        task = max(hand.trains)
        assert hand.trains[task].plan.uploads is None
        wanted.append(hand.controller.wanted(task))
        hand.do(trained(task))  # with all layers, as a learner that has not asked
        changed.append(hand.controller.state.model.manifest[1])
    assert wanted == [("0", "1"), ("0", "1"), ("0",), ("0", "1"), ("0",), ("0", "1")]
    assert changed == ["v1", "v2", "v2", "v4", "v4", "v6"], "what is unwanted is not used"


def test_the_plan_carries_the_planners_settings() -> None:
    hand = Hand(fedprox(mu=0.5, rate=0.25), learners=1)
    hand.do(joined("a"))
    assert (hand.trains[0].plan.proximal, hand.trains[0].plan.rate) == (0.5, 0.25)


def recalled() -> Hand:
    """Two learners, each with two cycles of effective staleness 10 or more behind it."""
    algorithm = replace(stream(), merge=Community(), recall=MedianStaleness(after=2))
    return Hand(algorithm, learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0, steps=10), "v1 <- 0", "train 2 a v1"),
        (progress(2, 99),),  # one cycle is no median
        (trained(2, steps=10), "v2 <- 2", "train 3 a v2"),
    )


def test_a_task_above_the_median_of_its_learner_is_called_back_once() -> None:
    hand = recalled().play(
        (progress(3, 10),),
        (progress(3, 11), "finish 3"),
        (progress(3, 12),),
        (trained(3, steps=12), "v3 <- 3", "train 4 a v3"),
    )
    assert [record.recalled for record in hand.all(Returned)] == [False, False, True]


def test_a_commit_of_another_learner_may_call_a_task_back() -> None:
    recalled().play(
        (progress(3, 1),),
        (trained(1, steps=10), "v3 <- 1", "finish 3", "train 4 b v3"),
        (progress(2, 5),),  # a task that is not out any more
    )


# ---------------------------------------------------------------------------------------------------------- Ending


def one_learner(ending: Ending, evaluation: Evaluation | None = None, algorithm: Algorithm | None = None) -> Hand:
    return Hand(algorithm or fedavg(), learners=1, ending=ending, evaluation=evaluation)


def test_after_so_many_commits() -> None:
    hand = one_learner(Ending(commits=2)).play(
        (joined("a"), "train 0 a v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (trained(1), "v2 <- 1", "stop 2 commits made"),
        (joined("b"),),  # nothing follows any more
        (trained(1),),
    )
    assert hand.state.stopped == "2 commits made"


def test_after_so_many_local_rounds_with_or_without_versions() -> None:
    one_learner(Ending(rounds=2)).play(
        (joined("a"), "train 0 a v0"),
        (failed(0), "refused 0 lost", "train 1 a v0"),
        (trained(1), "v1 <- 1", "stop 2 local rounds made"),
    )


def wasteful() -> Hand:
    """A stream of two learners that has two local rounds to make, and one task left of them."""
    hand = Hand(stream(), learners=2, ending=Ending(rounds=2)).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (failed(0), "refused 0 lost", "train 2 a v0"),
        (trained(1), "v1 <- 1", "train 3 b v1"),
        (failed(2), "refused 2 lost", "train 4 a v1"),
    )
    assert hand.state.rounds == 1
    return hand


def test_tasks_that_bring_nothing_are_local_rounds_of_a_stream_too() -> None:
    hand = wasteful()
    hand.do(failed(3))
    assert hand.state.stopped == "2 local rounds made"


def test_nothing_is_handed_out_in_a_runs_last_words() -> None:
    wasteful().play((failed(3), "refused 3 lost", "stop 2 local rounds made"))


def test_hops_are_local_rounds() -> None:
    one_learner(Ending(rounds=2), algorithm=relay("a", "a", fraction=1.0)).play(
        (joined("a"), "train 0 a v0"),
        (trained(0), "train 1 a t0"),
        (trained(1), "v1 <- 1", "stop 2 local rounds made"),
    )


def test_after_so_many_seconds() -> None:
    one_learner(Ending(seconds=60.0)).play(
        (joined("a"), "wake 60 time is up", "train 0 a v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (woke("time is up"), "stop time is up"),
        (trained(1),),
    )


def test_after_so_many_bytes_both_ways() -> None:
    moved = Traffic(100, 50)
    hand = one_learner(Ending(bytes=400)).play(
        (joined("a"), "train 0 a v0"),
        (trained(0, traffic=moved), "v1 <- 0", "train 1 a v1"),
        (failed(1, traffic=Traffic(100)), "refused 1 lost", "train 2 a v1"),
        (trained(2, traffic=moved), "v2 <- 2", "stop 400 bytes moved"),
    )
    assert hand.last(Committed).traffic == {
        "train down bytes": 300,
        "train down models": 3,
        "train up bytes": 100,
        "train up models": 2,
    }


def test_bytes_for_weighing_count_and_bytes_for_scoring_do_not() -> None:
    hand = Hand(sync_dvw(), learners=2, ending=Ending(bytes=30), evaluation=Evaluation(at="learners")).play(
        (joined("a", validation=5, test=5),),
        (joined("b"), "score a v0", "train 0 a v0", "train 1 b v0"),
        (tried("v0", traffic=Traffic(1000)), "scored v0"),
        (trained(0),),
        (trained(1, traffic=Traffic(10, 10)), "ask 2 a t1"),
        (evaluated(2, traffic=Traffic(10)), "refused 0 too", "v1 <- 1", "score a v1"),
        (tried("v1"), "scored v1", "stop 30 bytes moved"),
    )
    assert hand.state.traffic["score down bytes"] == 1000
    assert hand.state.traffic["evaluate down bytes"] == 10


@pytest.mark.parametrize(
    "answer",
    [evaluated(3, None, (1, 0), traffic=Traffic(72, 0, 2)), failed(3, traffic=Traffic(72, 0, 2))],
    ids=["one of two", "both"],
)
def test_bytes_of_lost_opinions_count_too(answer: Opinions | Failed) -> None:
    hand = three_under_dvw(quorum=0.3).play((answer, "v1 <- 0", "train 4 a v1"))
    assert hand.last(Committed).traffic["evaluate down bytes"] == 72
    assert hand.last(Committed).traffic["evaluate down models"] == 2, "as many as sites it went to"


def test_when_the_target_is_reached() -> None:
    one_learner(Ending(commits=100, target=0.9), Evaluation()).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (tried("v0", (8, 2)), "scored v0"),
        (trained(0), "v1 <- 0", "score home v1", "train 1 a v1"),
        (tried("v1", (9, 1)), "scored v1", "stop target 0.9 reached"),
    )


def test_a_loss_is_to_fall_to_its_target() -> None:
    one_learner(Ending(commits=100, target=0.5), Evaluation(metric="loss")).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (tried("v0", Scored(10, 9.0)), "scored v0"),
        (trained(0), "v1 <- 0", "score home v1", "train 1 a v1"),
        (tried("v1", Scored(10, 5.0)), "scored v1", "stop target 0.5 reached"),
    )


def test_when_there_is_no_progress() -> None:
    hand = one_learner(Ending(commits=100, patience=2), Evaluation()).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (tried("v0", (5, 5)), "scored v0"),
        (trained(0), "v1 <- 0", "score home v1", "train 1 a v1"),
        (tried("v1", (5, 5)), "scored v1"),
        (trained(1), "v2 <- 1", "score home v2", "train 2 a v2"),
        (tried("v2", (6, 4)), "scored v2"),  # a new best
        (trained(2), "v3 <- 2", "score home v3", "train 3 a v3"),
        (tried("v3", (5, 5)), "scored v3"),
        (trained(3), "v4 <- 3", "score home v4", "train 4 a v4"),
        (tried("v4", (5, 5)), "scored v4", "stop no progress in 2 scores"),
    )
    assert hand.state.best == 0.6


def test_a_target_reached_by_an_old_version_has_the_last_one_scored_before_the_stop() -> None:
    one_learner(Ending(commits=100, target=0.9), Evaluation(every=2)).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (tried("v0", (1, 0)), "scored v0", "score home v1"),
        (trained(1),),  # the run is about to end: nothing is handed out
        (tried("v1", (1, 1)), "scored v1", "stop target 0.9 reached"),
    )


# ------------------------------------------------------------------------------------------------------ Evaluation


def test_every_so_many_commits_and_the_last_version_always() -> None:
    one_learner(Ending(commits=3), Evaluation(every=2)).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (tried("v0"), "scored v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (trained(1), "v2 <- 1", "score home v2", "train 2 a v2"),
        (trained(2), "v3 <- 2", "score home v3"),
        (tried("v3"), "scored v3"),  # version 2 is not scored yet
        (tried("v2"), "scored v2", "stop 3 commits made"),
    )


def test_every_so_many_seconds_if_there_is_something_new() -> None:
    one_learner(Ending(commits=9), Evaluation(every=None, seconds=30.0)).play(
        (joined("a"), "score home v0", "wake 30 score now", "train 0 a v0"),
        (tried("v0"), "scored v0"),
        (woke("score now"), "wake 30 score now"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (trained(1), "v2 <- 1", "train 2 a v2"),
        (woke("score now"), "score home v2", "wake 30 score now"),
        (tried("v2"), "scored v2"),
    )


def test_time_is_up_has_the_last_version_scored_before_the_stop() -> None:
    one_learner(Ending(seconds=60.0), Evaluation(every=None, seconds=100.0)).play(
        (joined("a"), "score home v0", "wake 60 time is up", "wake 100 score now", "train 0 a v0"),
        (tried("v0"), "scored v0"),
        (trained(0), "v1 <- 0", "train 1 a v1"),
        (woke("time is up"), "score home v1"),
        (trained(1),),
        (woke("score now"), "wake 100 score now"),
        (tried("v1"), "scored v1", "stop time is up"),
    )


@pytest.mark.parametrize(("mean", "accuracy"), [("examples", 0.6), ("learners", 0.75)])
def test_at_the_learners_own_test_parts(mean: str, accuracy: float) -> None:
    hand = Hand(fedavg(), learners=3, evaluation=Evaluation(at="learners", mean=mean)).play(
        (joined("b", test=8),),
        (joined("c", test=0),),
        (joined("t", test=5, role="test"),),
        (joined("a", test=2), "score a b v0", "train 0 a v0", "train 1 b v0", "train 2 c v0"),
        (tried("v0", (2, 0), (4, 4)), "scored v0"),
    )
    scores = hand.last(Scores)
    assert (scores.metrics["accuracy"], scores.examples, scores.sites) == (accuracy, 10, 2)


@pytest.mark.parametrize(("at", "site"), [("held-out test", "t"), ("held-out validation", "v")])
def test_at_learners_held_out(at: str, site: str) -> None:
    Hand(fedavg(), learners=1, evaluation=Evaluation(at=at, validation=False)).play(
        (joined("t", role="test", test=5),),
        (joined("v", role="validation", test=5),),
        (joined("a", test=5), f"score {site} v0", "train 0 a v0"),
        (tried("v0"), "scored v0"),
    )


@pytest.mark.parametrize(("at", "site"), [("held-out test", "t"), ("home", "home")])
def test_validation_learners_are_scored_beside_and_kept_apart(at: str, site: str) -> None:
    hand = Hand(fedavg(), learners=1, ending=Ending(commits=2), evaluation=Evaluation(at=at)).play(
        (joined("t", role="test", test=5),),
        (joined("v", role="validation", test=5),),
        (joined("w", role="validation", test=0),),
        (joined("a", test=5), f"score {site} v v0", "train 0 a v0"),
        (tried("v0", (4, 1), (1, 3)), "scored v0"),
        (trained(0), "v1 <- 0", f"score {site} v v1", "train 1 a v1"),
        (tried("v1", None, (1, 3)),),  # a version without a test score is not recorded
        (left("v"),),
        (trained(1), "v2 <- 1", f"score {site} v2"),
        (tried("v2", (5, 0)), "scored v2", "stop 2 commits made"),
    )
    first, last = hand.all(Scores)
    assert (first.metrics["accuracy"], first.examples, first.sites) == (0.8, 5, 1)
    assert first.validation["accuracy"] == 0.25
    assert (last.metrics["accuracy"], last.validation) == (1.0, {})


@pytest.mark.parametrize("answer", [tried("v1", None, None), untried("v1")], ids=["of each", "as a whole"])
def test_a_score_that_does_not_come_is_left_out_and_stops_nobody(answer: Opinions) -> None:
    hand = Hand(fedavg(), learners=2, ending=Ending(commits=1), evaluation=Evaluation(at="learners")).play(
        (joined("a", test=2),),
        (joined("b", test=8), "score a b v0", "train 0 a v0", "train 1 b v0"),
        (tried("v0", None, (6, 2)), "scored v0"),
        (trained(0),),
        (trained(1), "v1 <- 0 1", "score a b v1"),
        (answer, "stop 1 commits made"),
    )
    (scores,) = hand.all(Scores)
    assert (scores.metrics["accuracy"], scores.examples, scores.sites) == (0.75, 8, 1)


def test_scoring_goes_on_beside_the_rounds() -> None:
    Hand(fedavg(), learners=1, evaluation=Evaluation()).play(
        (joined("a"), "score home v0", "train 0 a v0"),
        (trained(0), "v1 <- 0", "score home v1", "train 1 a v1"),
        (tried("v1"), "scored v1"),
        (tried("v0"), "scored v0"),  # its vector is still there, though the model has moved on
    )


def test_how_often_a_model_is_scored_changes_nothing_else() -> None:
    def takes_part(evaluation: Evaluation | None) -> list[tuple[int, str, int]]:
        hand = Hand(fedavg(0.5), learners=4, evaluation=evaluation)
        for name in "abcd":
            hand.do(joined(name))
        for _ in range(8):
            for task in list(hand.state.out):
                hand.do(trained(task))
        return [(train.task, train.learner, train.plan.key) for train in hand.trains.values()]

    assert takes_part(None) == takes_part(Evaluation()) == takes_part(Evaluation(every=3))


# ----------------------------------------------------------------------------------------------------- saved states


def test_a_saved_state_goes_on_where_it_was() -> None:
    hand = three_with_opinions("arrival").play((evaluated(4, (2, 0), None),))  # one answer is in, the other out
    models = MemoryModels()
    for name in hand.models.names():
        models.write(name, hand.models.read(name).clone())
    again = Hand(hand.controller.algorithm, learners=3, state=copy.deepcopy(hand.state), models=models)
    rows = (
        (evaluated(3, (1, 3), (1, 0)), "v1 <- 0", "train 5 a v1", "v2 <- 1", "train 6 b v2"),
        (trained(2, 5.0), "ask 7 a b t2"),
    )
    again.trains, again.questions = dict(hand.trains), dict(hand.questions)
    hand.play(*rows)
    again.play(*rows)
    assert torch.equal(hand.vector, again.vector)
    assert hand.state.members == again.state.members
    assert hand.state.there == again.state.there


def test_either_an_initial_model_or_a_saved_state() -> None:
    both_or_none = "give either an initial model or a saved state"
    with pytest.raises(ValueError, match=both_or_none):
        Controller(fedavg(), LAYOUT, MemoryModels(), ending=Ending(rounds=1), kernels=kernels())
    with pytest.raises(ValueError, match=both_or_none):
        Controller(
            fedavg(),
            LAYOUT,
            MemoryModels(),
            ending=Ending(rounds=1),
            kernels=kernels(),
            initial=torch.zeros(LAYOUT.size),
            state=Hand(fedavg()).state,
        )


@pytest.mark.parametrize("vectors", [{}, {"v0": torch.zeros(8)}], ids=["none", "of another model"])
def test_a_saved_state_without_its_vectors_is_refused(vectors: dict[str, torch.Tensor]) -> None:
    models = MemoryModels()
    for name, vector in vectors.items():
        models.write(name, vector)
    with pytest.raises(ValueError, match="v0"):
        Hand(fedavg(), state=Hand(fedavg()).state, models=models)


def test_the_initial_model_is_looked_at() -> None:
    with pytest.raises(ValueError, match="expected 9 numbers"):
        Controller(fedavg(), LAYOUT, MemoryModels(), ending=Ending(rounds=1), kernels=kernels(), initial=torch.zeros(8))
    with pytest.raises(ValueError, match="not finite"):
        Hand(fedavg(), initial=float("inf"))
    with pytest.raises(ValueError, match="learners should be at least 1, got 0"):
        Hand(fedavg(), learners=0)


def test_the_initial_model_is_the_controllers_own_copy() -> None:
    mine = torch.zeros(LAYOUT.size)
    controller = Controller(fedavg(), LAYOUT, MemoryModels(), ending=Ending(rounds=1), kernels=kernels(), initial=mine)
    mine += 1
    assert not controller.models.read("v0").any()


def test_vectors_that_nobody_needs_are_dropped() -> None:
    hand = Hand(replace(stream(), merge=Mix(0.5)), learners=2).play(
        (joined("a"),),
        (joined("b"), "train 0 a v0", "train 1 b v0"),
        (trained(0), "v1 <- 0", "train 2 a v1"),
        (trained(2), "v2 <- 2", "train 3 a v2"),
    )
    assert sorted(hand.models.names()) == ["v0", "v2"], "v0 is still with b"


def test_commands_speak_of_learners_that_are_there() -> None:
    hand = Hand(fedavg(0.5), learners=3)
    for event in (joined("a"), joined("b"), left("b"), joined("c"), joined("d")):
        commands = hand.do(event)
    assert {command.learner for command in commands if isinstance(command, Train)} <= {"a", "c", "d"}
    assert isinstance(event, Joined)


def test_a_relay_keeps_one_vector_a_slot() -> None:
    """However many hops there are: the model of the hop before is dropped when the next has come."""
    hand = Hand(relay("a", "b", "a", "b", fraction=0.5, hops=4), learners=2)
    hand.do(joined("a"))
    hand.do(joined("b"))
    for task in range(3):
        hand.do(trained(task, float(task)))
        assert sorted(hand.models.names()) == sorted({"v0", f"t{task}"})
