"""States that are saved and restored. `hand.py` says how to read a row."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from archipel.algorithms import fedavg
from archipel.core.controller import Controller
from archipel.core.parts import (
    Ending,
    Mix,
)
from archipel.core.types import (
    Joined,
    Train,
)
from archipel.kernels import kernels
from archipel.simulation.vectors import MemoryModels
from tests.core.hand import (
    LAYOUT,
    Hand,
    evaluated,
    joined,
    left,
    trained,
)
from tests.core.table_hands import relay, stream, three_with_opinions


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
    assert list(hand.state.members.idle) == list(again.state.members.idle)


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
