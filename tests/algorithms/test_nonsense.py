"""Every setting of every constructor, given values that make no sense: one sentence says what it should be."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import archipel as ap
from archipel import algorithms
from archipel.core.types import Local

NONSENSE: tuple[Any, ...] = (-1, 2.5, "x", None, float("nan"), float("inf"), {}, (1,), object(), True)


def settings(name: str) -> list[str]:
    own = [
        one.name for one in inspect.signature(getattr(ap, name)).parameters.values() if one.kind is not one.VAR_KEYWORD
    ]
    return [*own, *(key for key in Local.__annotations__ if key not in own)]


@pytest.mark.parametrize("name", algorithms.__all__)
def test_a_setting_is_refused_in_a_sentence(name: str) -> None:
    refused = 0
    for setting in settings(name):
        for value in NONSENSE:
            try:
                getattr(ap, name)(**{setting: value})
            except ValueError as error:
                refused += 1
                said = str(error)
                assert setting in said or str(value) in said, (setting, value, said)
                assert said.endswith((".", "?", "'")), said
                assert "\n" not in said
    assert refused >= 5 * len(settings(name)), "of ten values at least five make no sense anywhere"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("fedavg", {"epochs": 2.5}, "fedavg: epochs should be a whole number, got 2.5."),
        ("fedavg", {"batch": 1e300}, "fedavg: batch should be a whole number, got 1e+300."),
        ("fedavg", {"equally": "yes"}, "fedavg: equally should be true or false, got 'yes'."),
        ("fedavg", {"deadline": "soon"}, "fedavg: deadline should be a number or None, got 'soon'."),
        ("fedavg", {"optimiser": 0}, "fedavg: optimiser should be a text, got 0."),
        ("fedavg", {"options": {"lr": 1.0}}, "Plan: options has 'lr'; give rate=... instead."),
        ("fedper", {"private": 3}, "fedper: private should be a text or texts, got 3."),
        ("fedper", {"private": ["fc1", 2]}, "fedper: private should be a text or texts, got ['fc1', 2]."),
        ("tifl", {"chances": 0.5}, "tifl: chances should be a mapping or None, got 0.5."),
        ("plu", {"last": "x"}, "plu: last should be a whole number, got 'x'."),
        ("radfed_i", {"gamma": None}, "radfed_i: gamma should be a number, got None."),
    ],
)
def test_what_a_refusal_says(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        getattr(ap, name)(**given)


def test_a_whole_number_is_a_number() -> None:
    assert ap.fedprox(mu=1, rate=1) == ap.fedprox(mu=1.0, rate=1.0)


def test_a_tier_that_is_no_group_is_refused() -> None:
    data, fleet = ap.data.digits().split(learners=4), ap.Fleet(fast=2, slow=2)
    message = "ByTier: chances names 'slwo', and no learner is in such a group. Groups: fast, slow."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        ap.simulate(ap.tifl({"fast": 0.7, "slwo": 0.3}), data, fleet=fleet)


@pytest.mark.parametrize(
    "make", [lambda: ap.fedper(private=()), lambda: ap.fedbabu(frozen=()), lambda: ap.plu(deep=())]
)
def test_layers_that_name_nothing_are_refused(make: Any) -> None:
    data = ap.data.digits().split(learners=3)
    with pytest.raises(ValueError, match=r"no layer is given\. Layers of this model: fc1, head\."):
        ap.simulate(make(), data, ending=ap.Ending(rounds=1))
