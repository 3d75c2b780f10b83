"""What docstrings tell of settings is read right, and they tell it of every parameter that a study can give."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, Unpack, get_type_hints

import pytest

import archipel as ap
from archipel import algorithms, models
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.types import Cycle, Local, Plan
from archipel.data import Islands, Source, from_csv, from_npz_folder, from_parquet, sources
from archipel.simulation.fleet import Group
from archipel.study.docs import fields_of, parameters_of, settings_of, spelled, summary_of

CONSTRUCTORS: list[Callable[..., Any]] = [
    *(getattr(algorithms, name) for name in algorithms.__all__),
    *(getattr(models, name) for name in models.__all__),
    *(getattr(sources, name) for name in sources.__all__),
    *(Source.split, Source.natural, Source.colour_skew),
    *(from_csv, from_parquet, from_npz_folder),
    *(Islands.folds, Islands.standardised),
]


@pytest.mark.parametrize("constructor", CONSTRUCTORS, ids=lambda constructor: constructor.__name__)
def test_every_parameter_has_a_meaning(constructor: Callable[..., Any]) -> None:
    told = settings_of(constructor)
    local = fields_of(Plan) if constructor.__name__ in algorithms.__all__ else {}
    for name in parameters_of(constructor):
        meaning = told.get(name) or local.get(name)
        assert meaning, f"{constructor.__name__} does not say what {name} is: give its docstring a line '{name}: …'"
        assert "as in " not in meaning, f"{constructor.__name__}: a reader of {name} does not want to look elsewhere"
        assert not meaning.endswith((".", ";", ","))


def test_the_settings_of_local_training_are_all_told() -> None:
    assert set(Local.__annotations__) <= fields_of(Plan).keys()
    assert parameters_of(ap.async_fedavg) == list(Local.__annotations__)


class Further(TypedDict, total=False):
    colour: str
    size: int


def example(self: Any, a: int, b: int = 2, *rest: int, name: str = "", **further: Unpack[Further]) -> None:
    """An example: of a docstring.

    a, b: two numbers; None: neither; b is larger unless a: is. name: is no new one here
    and goes on in the next line; size: how large, as in "size: 3".
    nobody: is no parameter; colour is told below.

    A paragraph between, with a: colon.

    colour: red; or
    blue.
    """


def test_meanings_may_have_colons_and_semicolons_of_their_own() -> None:
    both = "two numbers; None: neither; b is larger unless a: is. name: is no new one here and goes on in the next line"
    assert settings_of(example) == {
        "a": both,
        "b": both,
        "colour": "red; or blue",
        "size": 'how large, as in "size: 3". nobody: is no parameter; colour is told below',
    }
    assert parameters_of(example) == ["a", "b", "name", "colour", "size"]
    assert summary_of(example) == "An example: of a docstring."


def test_functions_of_other_people() -> None:
    def silent(x, *more, **anything) -> None: ...  # type: ignore[no-untyped-def]

    assert (settings_of(silent), parameters_of(silent), summary_of(silent)) == ({}, ["x"], "")


def test_what_simulate_says_of_its_settings() -> None:
    told = settings_of(ap.simulate)
    assert told["fleet"] == "how fast the learners are; default: all fast"
    assert told["evaluation"].endswith("own test parts, whichever there is first")


@pytest.mark.parametrize("kind", [Plan, Cycle, Ending, Evaluation, ap.Stream, ap.Rounds, ap.Relay])
def test_every_field_has_its_string(kind: type) -> None:
    assert list(fields_of(kind)) == [field.name for field in fields(kind)]


def test_strings_under_fields() -> None:
    assert fields_of(Plan)["optimiser"] == "Any class of `torch.optim`, by name"
    assert fields_of(Group)["bandwidth"] == "Bytes a second, each way; None: transfers take no time"
    assert fields_of(Evaluation)["at"].startswith("The global test set at HOME; the training learners' own")
    # inherited from what Adam, Yogi and Adagrad have in common
    assert fields_of(ap.Adam)["tau"] == "Adaptivity: added to the root of v"
    assert fields_of(ap.Equally) == {}


def test_a_class_without_a_file() -> None:
    namespace: dict[str, Any] = {"dataclass": dataclass}
    exec("@dataclass\nclass Typed:\n    a: int = 0\n    'at a prompt'", namespace)
    assert fields_of(namespace["Typed"]) == {}


@pytest.mark.parametrize(
    ("hint", "text"),
    [
        (int, "int"),
        (float | None, "float | None"),
        (Literal["exp", "inv"] | None, "'exp' | 'inv' | None"),
        (str | tuple[str, ...], "str | tuple[str, ...]"),
        (float | Mapping[str, float], "float | Mapping[str, float]"),
        (Any, "Any"),
    ],
)
def test_types_as_people_write_them(hint: Any, text: str) -> None:
    assert spelled(hint) == text


def test_types_of_all_algorithms_can_be_spelled() -> None:
    for name in algorithms.__all__:
        for setting, hint in get_type_hints(getattr(algorithms, name)).items():
            assert setting == "local" or "typing." not in spelled(hint)
