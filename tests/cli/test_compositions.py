"""The matrix of parts agrees with what algorithms accept, and accepted combinations run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations as pairs_of
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import archipel as ap
from archipel.cli.compositions import CONTROLLERS, LEARNERS, ROLES, Combination, choices, combinations, page, refusals
from archipel.core.algorithm import Algorithm
from archipel.data import Islands
from tests.cli.small_program import app

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compositions.md"
SITES = 6


def pairs(one: Combination) -> set[tuple[tuple[str, str], ...]]:
    return set(pairs_of([*one.parts.items()], 2))


def test_the_page_is_as_it_would_be_written() -> None:
    assert PAGE.read_text() == page()


def test_every_part_takes_part() -> None:
    for role, kind in ROLES.items():
        exported = {name for name in ap.parts.__all__ if issubclass(getattr(ap.parts, name), kind)}
        assert exported - {kind.__name__} <= set(choices(role))


@pytest.mark.slow
@pytest.mark.parametrize("roles", [CONTROLLERS, LEARNERS], ids=["controller", "learners"])
def test_every_refusal_names_a_part_and_a_way_out(roles: tuple[str, ...]) -> None:
    found = [one for one, _ in combinations(roles)]
    told = refusals(found, roles)
    assert sum(refusal.count for refusal in told) == sum(one.refused is not None for one in found)
    for refusal in told:
        said_of = {name.split("(")[0] for names in refusal.names.values() for name in names or ()}
        assert any(name in refusal.sentence for name in said_of), refusal
        assert any(word in refusal.sentence.lower() for word in ("use ", "add ", "give ", "leave ")), refusal


@pytest.mark.slow
def test_the_command() -> None:
    result = CliRunner().invoke(app, ["algorithms", "--compose", "--json"], catch_exceptions=False)
    told = json.loads(result.stdout)
    both = [[one for one, _ in combinations(roles)] for roles in (CONTROLLERS, LEARNERS)]
    assert [Combination(**one) for one in told] == [one for group in both for one in group]
    text = " ".join(CliRunner().invoke(app, ["algorithms", "--compose"], catch_exceptions=False).stdout.split())
    assert all(f"of {len(group):,} combinations can be made" in text for group in both)
    assert "ControlVariates follows each learner's own movement" in text


# --------------------------------------------------------------------------------------------------- what is made runs


ADAPTERS = {"LoraRanks", "StackedLora", "ZeroPadded"}
"""Parts that need a network with adapters: tests/transformers runs them."""


def covering(roles: tuple[str, ...]) -> Iterator[tuple[Combination, Algorithm]]:
    """Yield a few valid combinations that cover every valid pair of parts."""
    every = ((one, made) for one, made in combinations(roles) if made is not None)
    good = [(one, made) for one, made in every if ADAPTERS.isdisjoint(one.parts.values())]
    left = set().union(*(pairs(one) for one, _ in good))
    if roles == LEARNERS:  # protocols and planners come up together among the controller's parts
        left = {pair for pair in left if not {role for role, _ in pair} <= {"protocol", "planner"}}
    while left:
        best = max(good, key=lambda item: len(pairs(item[0]) & left))
        left -= pairs(best[0])
        yield best


@pytest.fixture(scope="module")
def data() -> Islands:
    source = ap.data.digits()
    few = torch.arange(0, len(source.x), 13)
    return ap.data.from_arrays(source.x[few], source.y[few], "few").split(SITES, stimuli=2)


@pytest.mark.slow
@pytest.mark.parametrize(("roles", "at_least"), [(CONTROLLERS, 100), (LEARNERS, 50)], ids=["controller", "learners"])
def test_every_pair_that_goes_together_runs(data: Islands, roles: tuple[str, ...], at_least: int) -> None:
    tried = 0
    for one, algorithm in covering(roles):
        protocol = ap.Relay(1.0, 2) if one.parts["protocol"] == "Relay" else algorithm.protocol
        small = replace(algorithm, protocol=protocol, plan=ap.Plan(batch=8))
        try:
            found = ap.simulate(small, data, ending=ap.Ending(commits=1), validation=0.2, execution="plain")
        except ValueError as error:
            pytest.fail(f"{one}: {error}")
        assert found.commits, one
        tried += 1
    assert tried > at_least
