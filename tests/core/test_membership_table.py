"""Who is there: tables of joins and leaves. `hand.py` says how to read a row."""

from __future__ import annotations

import pytest

from archipel.algorithms import fedavg, sync_dvw
from archipel.core.parts import (
    Evaluation,
)
from archipel.core.state import validate
from archipel.core.types import (
    Joined,
    Left,
)
from tests.core.hand import (
    Hand,
    evaluated,
    joined,
    left,
    trained,
)


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
