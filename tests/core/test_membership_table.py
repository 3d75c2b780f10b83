"""Members: tables of joins and leaves. `hand.py` says how to read a row."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from archipel.algorithms import fedavg, sync_dvw
from archipel.core.members import Members
from archipel.core.parts import (
    Evaluation,
)
from archipel.core.state import validate
from archipel.core.types import (
    Joined,
    Left,
    Role,
)
from tests.core.hand import (
    Hand,
    evaluated,
    joined,
    left,
    trained,
)

ROLES: tuple[Role, ...] = ("train", "validation", "test")


def test_who_is_there_follows_joins_leaves_returns_and_changes_of_role() -> None:
    hand = Hand(fedavg(), learners=3)

    def there(event: Joined | Left) -> dict[str, list[str]]:
        hand.do(event)  # `validate` holds it against the members
        there = {role: list(hand.state.members.present(role)) for role in ROLES}
        assert list(hand.controller._context.view("protocol").active()) == there["train"]
        return {role: names for role, names in there.items() if names}

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
    ("broken", "law"),
    [
        (lambda members: members.present("train").remove("a"), "learners to train"),
        (lambda members: members.present("test").add("b"), "learners to test"),
        (lambda members: members.idle.add("a"), "idle learners"),
        (lambda members: members.idle.remove("c"), "idle learners"),
        (lambda members: members.validating.remove("c"), "learners with a validation part"),
        (lambda members: members.engage("c"), "tasks and updates of c"),
        (lambda members: members.release("a"), "tasks and updates of a"),
    ],
)
def test_what_is_kept_up_to_date_is_a_law(broken: Callable[[Members], None], law: str) -> None:
    hand = Hand(fedavg(), learners=2).play(
        (joined("a"),), (joined("b"), "train 0 a v0", "train 1 b v0"), (joined("c", validation=3),)
    )
    broken(hand.state.members)
    with pytest.raises(AssertionError, match=law):
        validate(hand.state, hand.models)


def test_a_use_of_a_vector_that_is_not_counted_breaks_a_law() -> None:
    hand = Hand(fedavg(), learners=1).play((joined("a"), "train 0 a v0"))
    hand.state.vectors.remove("v0")
    with pytest.raises(AssertionError, match="uses of vectors are not counted"):
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
