"""Another process scores models to the same bits, and nothing depends on it but time."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
import torch

import archipel as ap
from archipel.core.types import Score
from archipel.executors import fork_scorer
from archipel.executors.fork_scorer import ForkScorer, ScoreRequest
from archipel.executors.stacked import Stacked
from archipel.learner.probes import Parts, score_parts
from archipel.runs.run import Run
from archipel.simulation.simulate import finished, prepare
from tests.simulation.test_fork_pool import small_context

PARTS = Parts.of([torch.arange(3)])


class Squares(ForkScorer):
    """Answers with the square of a model's first number, plus the bins."""

    def score_here(self, model: torch.Tensor, parts: Parts, bins: int) -> Any:
        number = float(model[0])
        if number == 13:
            raise ValueError("not thirteen")
        return number * number + bins


class Sums(ForkScorer):
    """Answers at length with the sum of the examples."""

    def score_here(self, model: torch.Tensor, parts: Parts, bins: int) -> Any:
        return f"{int(parts.examples.sum())} " * fork_scorer.BYTES_OUT


class Processes(ForkScorer):
    """Answers with the process it runs in."""

    def score_here(self, model: torch.Tensor, parts: Parts, bins: int) -> Any:
        return os.getpid()


def answer(question: ScoreRequest) -> Any:
    """What a scorer of these tests says, which is no table."""
    return question.result()


def model(number: int) -> torch.Tensor:
    return torch.full((3,), float(number))


def test_answers_are_fetched_in_any_order() -> None:
    scorer = Squares(small_context())
    asked = [scorer.ask(model(number), PARTS, 1) for number in range(5)]
    assert [answer(asked[number]) for number in (4, 0, 2, 1, 3)] == [17, 1, 5, 2, 10]


def test_more_questions_than_there_is_room_for() -> None:
    scorer, numbers = Squares(small_context()), range(20, 20 + 3 * fork_scorer.QUESTIONS)
    asked = [scorer.ask(model(number), PARTS, 0) for number in numbers]
    assert [answer(one) for one in asked] == [number**2 for number in numbers]


def test_neither_side_waits_for_the_other_to_read() -> None:
    """Questions and answers that are larger than a pipe."""
    scorer = Sums(small_context())
    asked = [scorer.ask(model(0), Parts.of([torch.full((1 << 14,), number)]), 0) for number in range(10)]
    for number, one in enumerate(asked):
        assert answer(one) == f"{number << 14} " * fork_scorer.BYTES_OUT


def test_examples_are_sent_once_and_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_scorer, "PARTS_KEPT", 3)
    scorer = Sums(small_context())
    parts = [Parts.of([torch.tensor([number])]) for number in range(5)]
    for number in (0, 1, 0, 2, 3, 0, 4, 1, 3, 2, 2, 0):
        assert answer(scorer.ask(model(0), parts[number], 0)).startswith(f"{number} ")
        assert len(scorer._known) <= 3


def test_a_question_that_the_process_fails_at_is_answered_here() -> None:
    scorer = Squares(small_context())
    two, thirteen = (scorer.ask(model(number), PARTS, 0) for number in (2, 13))
    assert answer(two) == 4
    assert scorer.connections[0].poll(60)
    three = scorer.ask(model(3), PARTS, 0)  # asking reads what waits: the error is not this question's
    with pytest.raises(ValueError, match="not thirteen"):
        thirteen.result()
    assert answer(three) == 9
    assert answer(scorer.ask(model(4), PARTS, 0)) == 16


def test_a_question_whose_process_dies_is_answered_here() -> None:
    scorer = Processes(small_context())
    there = answer(scorer.ask(model(0), PARTS, 0))
    assert there != os.getpid()
    os.kill(there, signal.SIGKILL)
    assert answer(scorer.ask(model(0), PARTS, 0)) == os.getpid()


def test_questions_that_are_out_when_it_is_closed_are_answered_here() -> None:
    scorer = Processes(small_context())
    asked = scorer.ask(model(0), PARTS, 0)
    scorer.close()
    assert answer(asked) == os.getpid()


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("urgent", [False, True])
@pytest.mark.parametrize("worth", [0, 10**12])
def test_another_process_scores_only_where_it_gains(
    monkeypatch: pytest.MonkeyPatch, cores: int, urgent: bool, worth: int
) -> None:
    monkeypatch.setattr(fork_scorer, "WORTH_A_PROCESS", worth)
    context = small_context()
    scorer, vector = ForkScorer(context), context.layout.vector(context.module)
    scorer.cores = cores
    found = scorer.score(vector, PARTS, Score("test"), urgent=urgent).result()
    assert found.losses.tolist() == score_parts(context, vector, PARTS).losses.tolist()
    assert bool(scorer.connections) == (cores == 2 and not urgent and worth == 0)


@pytest.mark.slow
def test_scores_from_another_process_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(worth: int) -> tuple[Run, bool]:
        monkeypatch.setattr(fork_scorer, "WORTH_A_PROCESS", worth)
        algorithm = ap.async_dvw(adaptive=False, batch=16)
        data = ap.data.digits().split(learners=5, seed=1)
        fleet, ending = ap.Fleet(fast=3, slow=2), ap.Ending(commits=20)
        simulated = prepare(algorithm, data, fleet=fleet, ending=ending, execution="stacked")
        assert isinstance(simulated.executor, Stacked)
        simulated.executor.scorer.cores = 2
        simulated.begin()
        simulated.run()
        return finished(simulated), bool(simulated.executor.scorer.connections)

    here, none = run(10**12)
    there, some = run(0)
    assert (none, some) == (False, True)
    assert torch.equal(here.model, there.model)
    assert here.records == there.records
