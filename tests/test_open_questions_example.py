"""examples/open_questions: its page is what was measured, and its verdicts follow from the figures."""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.measured_example import load_measure


@pytest.fixture(scope="module")
def measure() -> ModuleType:
    return load_measure("open_questions")


def test_the_page_is_what_was_measured(measure: ModuleType) -> None:
    found = measure.measured()
    assert [(one.question, one.method, one.seed) for one in found] == list(measure.cases())
    assert measure.PAGE.read_text() == measure.page(found)


@pytest.mark.parametrize(
    ("gaps", "said"), [((1, 1.2, 0.9), "helps"), ((-1, -1.2, -0.9), "costs accuracy"), ((1, -1, 0.1), "no clear")]
)
def test_a_difference_counts_from_two_standard_errors(measure: ModuleType, gaps: tuple[float, ...], said: str) -> None:
    found = [measure.Result("q", "before", seed, 0.5, 0, 0) for seed in range(3)]
    found += [measure.Result("q", "after", seed, 0.5 + gap / 100, 0, 0) for seed, gap in enumerate(gaps)]
    assert said in measure.verdict("after", *measure.difference(found, "before", "after"))


@pytest.mark.slow
def test_cases_are_measured_again_as_they_were(measure: ModuleType) -> None:
    known = {(one.question, one.method, one.seed): one for one in measure.measured()}
    for name, question in measure.questions().items():
        method = list(question.methods)[-1]
        assert measure.measure(name, method, 0).accuracy == pytest.approx(known[name, method, 0].accuracy, abs=0.02), (
            name
        )
