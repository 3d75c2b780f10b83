"""What is kept up to date about learners and vectors equals what a walk over all of them finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.core import sorted_items
from archipel.core.members import Member, Members, SortedNames
from archipel.core.randomness import PERMUTED, draw_some, generator
from archipel.core.types import Role
from archipel.core.vector_uses import VectorUses

NAMES = st.integers(0, 60).map(str)


@pytest.mark.slow
@settings(max_examples=200)
@given(begin=st.sets(NAMES), changes=st.lists(NAMES, max_size=150), block=st.integers(1, 8))
def test_sorted_names_are_a_sorted_list(begin: set[str], changes: list[str], block: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sorted_items, "BLOCK", block)
        names, expected = SortedNames(begin), sorted(begin)
        for name in changes:
            assert (name in names) == (name in expected)
            assert names.number(name) == sum(other < name for other in expected)
            if name in expected:
                names.remove(name)
                expected.remove(name)
            else:
                names.add(name)
                expected = sorted([*expected, name])
            assert list(names) == expected
            assert [names[i] for i in range(len(names))] == expected
    if expected:
        assert (names[-1], names[1:3], len(names)) == (expected[-1], expected[1:3], len(expected))
    assert 7 not in names  # type: ignore[comparison-overlap]
    with pytest.raises(IndexError, match=rf"item {len(expected)} of {len(expected)}"):
        names[len(expected)]


def test_a_name_is_found_by_its_number_without_counting_all_blocks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_items, "BLOCK", 8)
    names = SortedNames(f"{number:04}" for number in range(4000))
    assert names[2000] == "2000"
    monkeypatch.setattr(names, "_blocks", Untouched(names._blocks))
    for number in range(1, 2000, 200):
        names.remove(f"{number:04}")
        assert (names[2000], names.number("2000")) == ("2001", 1999)
        names.add(f"{number:04}")
        assert (names[2000], names.number("2000")) == ("2000", 2000)


class Untouched(list[list[str]]):
    """A list that must not be iterated."""

    def __iter__(self) -> Iterator[list[str]]:
        raise AssertionError("all blocks are looked at")


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "engage", "release"]),
        st.sampled_from("abcdef"),
        st.sampled_from(["train", "validation", "test"]),
        st.integers(0, 1),
        st.booleans(),
    ),
    max_size=80,
)


@settings(max_examples=100)
@given(changes=CHANGES)
def test_members_are_listed_as_a_walk_finds_them(changes: list[tuple[str, str, Role, int, bool]]) -> None:
    found = Members()
    for what, name, role, validation, looked_at in changes:
        if what == "join":
            before = found.get(name)
            found.join(Member(name, 10, validation, 0, "", role))
            if before is not None:
                assert (found[name].given, found[name].busy) == (before.given, before.busy)
        elif name in found and (what != "release" or found[name].busy):
            getattr(found, what)(name)
        there = [one for one in found.values() if one.active]
        training = sorted(one.name for one in there if one.role == "train")
        assert list(found.present("train")) == training
        assert list(found.present("test")) == sorted(one.name for one in there if one.role == "test")
        if looked_at:  # whoever is idle is listed when somebody asks, however much has changed by then
            assert list(found.idle) == [name for name in training if not found[name].busy]
        assert list(found.validating) == [name for name in training if found[name].validation]
    again = Members(dict(found))
    assert [*again.idle] == [*found.idle], "a saved state lists them alike"


def test_a_learner_that_returns_its_task_before_anybody_looks_moves_in_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Members()
    for name in "abc":
        found.join(Member(name, 10, 0, 0, "", "train"))
    assert [*found.idle] == ["a", "b", "c"]
    moved: list[str] = []
    for move in (SortedNames.add, SortedNames.remove):

        def noted(names: SortedNames, name: str, move: Callable[[SortedNames, str], None] = move) -> None:
            moved.append(name)
            move(names, name)

        monkeypatch.setattr(SortedNames, move.__name__, noted)
    for step in (found.engage, found.engage, found.release, found.release):  # a task, then its update until the commit
        step("b")
    assert ([*found.idle], moved) == (["a", "b", "c"], [])
    found.engage("b")
    assert ([*found.idle], moved) == (["a", "c"], ["b"])


def test_a_vector_is_unneeded_once_and_only_when_nobody_names_it() -> None:
    uses = VectorUses()
    uses.add("a", "b", "a")
    uses.remove("a", "b")
    uses.discard("c")
    uses.discard("a")
    assert sorted(uses.unneeded()) == ["b", "c"]
    assert list(uses.unneeded()) == []
    uses.remove("a")
    uses.add("a")
    assert list(uses.unneeded()) == [], "it is named again"
    with pytest.raises(KeyError):
        uses.remove("nobody's")


@pytest.mark.parametrize("among", [1, 7, PERMUTED, PERMUTED + 1, 50 * PERMUTED])
@pytest.mark.parametrize("count", [1, 5, 100])
def test_a_draw_is_without_replacement_and_of_all_where_there_are_too_few(among: int, count: int) -> None:
    drawn = draw_some(generator(1, "draw"), count, among)
    assert len(drawn) == len(set(drawn)) == min(count, among)
    assert all(0 <= number < among for number in drawn)
    assert drawn == draw_some(generator(1, "draw"), count, among), "a replay draws the same"


def test_a_draw_from_many_is_fair_in_every_place() -> None:
    among = PERMUTED + 1
    first = [draw_some(generator(key, "fair"), 3, among)[0] for key in range(4000)]
    thirds = [sum(low <= number * 3 / among < low + 1 for number in first) for low in range(3)]
    assert all(abs(count - 4000 / 3) < 5 * (4000 * 2 / 9) ** 0.5 for count in thirds)
