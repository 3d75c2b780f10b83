"""The final score, by runs written by hand and by simulations."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import archipel as ap
from archipel.core.parts.ending import BudgetUnit
from archipel.core.records import Committed, Restored, Scores, Stamped
from archipel.runs.final_score import final_score, final_stretch
from tests.made_runs import written


def committed(version: int, rounds: int) -> Committed:
    return Committed(version, rounds, ("a",), (("a",),), (version,), ((1.0,),), (0,), (0,), (0,), {})


def run_of(
    commits: Sequence[tuple[float, int]],
    scores: dict[int, float],
    *,
    budget: BudgetUnit,
    seconds: float = 0.0,
    rounds: int = 0,
    validation: dict[int, float] | None = None,
    metric: str = "accuracy",
) -> ap.Run:
    """Versions from 1 on by their (seconds, local rounds), and the scores and validation scores of some of them."""
    records = [Stamped(time, committed(version, count)) for version, (time, count) in enumerate(commits, start=1)]
    judged = {} if validation is None else {version: {metric: score} for version, score in validation.items()}
    for version, score in scores.items():
        records.append(Stamped(0.0, Scores(version, 0, {metric: score}, 10, 1, judged.get(version, {}))))
    run = written([0.0], metric=metric)
    return replace(run, records=tuple(records), seconds=seconds, rounds=rounds, budget=budget)


# ------------------------------------------------------------------------------------------------- the same stretch


def way(moment: float) -> float:
    """The score of the model that is there at a moment of a run of five: it changes at 1, 2, 3, 4 and 4.5."""
    return sum(moment >= change for change in (1, 2, 3, 4, 4.5)) / 10


@pytest.mark.slow
def test_five_commits_and_five_thousand_of_the_same_models_have_the_same_final_score_by_time() -> None:
    seldom = run_of(
        [(at, 0) for at in (1.0, 2.0, 3.0, 4.0, 4.5)],
        {version: way(at) for version, at in enumerate((0.0, 1.0, 2.0, 3.0, 4.0, 4.5))},
        budget="seconds",
        seconds=5.0,
    )
    times = [number / 1000 for number in range(1, 5001)]
    often = run_of(
        [(at, 0) for at in times],
        {version: way(at) for version, at in enumerate([0.0, *times])},
        budget="seconds",
        seconds=5.0,
    )
    assert (len(seldom.commits), len(often.commits)) == (5, 5000)
    assert seldom.final_score == pytest.approx(0.45)  # half a second of .4 and half a second of .5
    assert often.final_score == pytest.approx(seldom.final_score, abs=1e-12)


@pytest.mark.slow
def test_five_commits_and_five_thousand_of_the_same_models_have_the_same_final_score_by_rounds() -> None:
    scores = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    seldom = run_of([(0.0, count) for count in range(1, 6)], dict(enumerate(scores)), budget="rounds", rounds=5)
    # a thousand commits in each round; the one that completes it is counted with it, those before it are not yet
    often = run_of(
        [(0.0, number // 1000) for number in range(1, 5001)],
        {0: 0.0} | {number: scores[math.ceil(number / 1000)] for number in range(1, 5001)},
        budget="rounds",
        rounds=5,
    )
    assert seldom.final_score == 0.5
    assert often.final_score == pytest.approx(0.5)
    earlier = [final_score(run, "rounds", 3) for run in (seldom, often)]
    assert earlier == [pytest.approx(0.3)] * 2


# --------------------------------------------------------------------------------------------------- by hand numbers


def test_a_version_counts_as_long_as_it_was_the_current_one() -> None:
    run = run_of([(50.0, 1), (85.0, 2), (95.0, 3)], {0: 0.0, 1: 0.4, 2: 0.6, 3: 0.8}, budget="seconds", seconds=100.0)
    assert run.final_score == pytest.approx((5 * 0.4 + 10 * 0.6 + 5 * 0.8) / 20)
    assert run.score == 0.8
    assert final_score(run, end=50.0) == 0.0, "the untrained model was the current one from 40 to 50"
    assert final_score(run, "rounds", 2) == 0.6, "another budget of the same run"


def test_a_version_that_was_not_scored_counts_with_the_score_before_it() -> None:
    commits = [(10.0 * number, number) for number in range(1, 11)]
    run = run_of(commits, {0: 0.0, 3: 0.3, 9: 0.9}, budget="seconds", seconds=100.0)
    assert run.final_score == pytest.approx((0.3 + 0.9) / 2)
    assert replace(run, budget="rounds", rounds=10).final_score == 0.9, "rounds 9 and 10"


def test_a_relay_counts_between_its_aggregations() -> None:
    run = run_of([(0.0, 100), (0.0, 200), (0.0, 300)], {1: 0.3, 2: 0.6, 3: 0.9}, budget="rounds", rounds=300)
    assert run.final_score == pytest.approx((59 * 0.6 + 0.9) / 60)


def test_versions_of_one_round_share_it() -> None:
    # two commits a round, the second of which completes it
    run = run_of(
        [(0.0, count // 2) for count in range(1, 11)],
        {version: version / 10 for version in range(11)},
        budget="rounds",
        rounds=5,
    )
    assert final_stretch(run) == [(0.9, 0.5), (1.0, 0.5)]


def test_a_round_that_was_begun_belongs_to_the_budget() -> None:
    """As where it ended by commits."""
    run = run_of([(0.0, 0), (0.0, 0), (0.0, 1), (0.0, 1)], {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4}, budget="rounds", rounds=1)
    assert run.final_score == 0.4
    first = run_of([(0.0, 0), (0.0, 0)], {1: 0.1, 2: 0.3}, budget="rounds", rounds=0)
    assert first.final_score == pytest.approx(0.2)


def test_the_last_fifth_of_the_rounds_is_rounded_up() -> None:
    for rounds, counted in ((1, 1), (5, 1), (6, 2), (20, 4), (21, 5)):
        run = written([0.0, *(float(version) for version in range(1, rounds + 1))])
        assert run.final_score == pytest.approx(rounds - (counted - 1) / 2)


def test_scores_may_come_in_another_order_than_versions() -> None:
    run = run_of([(90.0, 1), (95.0, 2)], {2: 0.5, 1: 0.3, 0: 0.1}, budget="seconds", seconds=100.0)
    assert run.final_score == pytest.approx((10 * 0.1 + 5 * 0.3 + 5 * 0.5) / 20)
    first_scored_late = run_of([(90.0, 1), (95.0, 2)], {2: 0.5}, budget="seconds", seconds=100.0)
    assert first_scored_late.final_score == 0.5


def test_single_scores_and_none() -> None:
    for budget in ("seconds", "rounds"):
        assert run_of([], {0: 0.1}, budget=budget).final_score == 0.1
        assert run_of([], {0: 0.1}, budget=budget, seconds=9.0, rounds=9).final_score == 0.1
        assert math.isnan(run_of([], {}, budget=budget).final_score)


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_a_score_that_is_not_finite_counts_only_in_the_stretch(lost: float) -> None:
    early = run_of([(70.0, 1), (75.0, 2)], {1: lost, 2: 0.5}, budget="seconds", seconds=100.0)
    assert early.final_score == 0.5
    late = run_of([(70.0, 1), (90.0, 2)], {1: 0.5, 2: lost}, budget="seconds", seconds=100.0)
    assert math.isnan(late.final_score)


# ---------------------------------------------------------------------------------------------------------- budgets


@pytest.mark.parametrize(
    ("ending", "budget"),
    [
        (ap.Ending(rounds=5), "rounds"),
        (ap.Ending(commits=5), "rounds"),
        (ap.Ending(rounds=5, target=0.9, patience=3), "rounds"),
        (ap.Ending(rounds=5, bytes=100), "rounds"),
        (ap.Ending(seconds=5), "seconds"),
        (ap.Ending(seconds=5, rounds=5), "seconds"),
        (ap.Ending(bytes=100), "seconds"),
    ],
)
def test_the_ending_says_what_the_budget_is(ending: ap.Ending, budget: BudgetUnit) -> None:
    assert ending.budget == budget


def test_runs_stopped_early_are_measured_over_what_they_used() -> None:
    data = ap.data.digits().split(learners=6, sizes=(120,) * 6)
    run = ap.simulate(ap.fedavg(epochs=2, batch=16, rate=0.1), data, ending=ap.Ending(rounds=30, target=0.7))
    assert "target 0.7 reached" in run.reason
    assert (run.budget, run.rounds < 30) == ("rounds", True)
    counted = [scores.metrics["accuracy"] for _, scores in run.scores][-math.ceil(run.rounds / 5) :]
    assert run.final_score == pytest.approx(sum(counted) / len(counted))


@pytest.mark.parametrize(("reason", "budget"), [("4 local rounds made", "rounds"), ("time is up", "seconds")])
def test_runs_saved_before_there_were_budgets_are_scored_from_their_records(
    reason: str, budget: BudgetUnit, tmp_path: Path
) -> None:
    run = written([0.0, 0.1, 0.2, 0.3, 0.4], reason=reason, budget=budget)
    run.save(tmp_path)
    told = json.loads((tmp_path / "run.json").read_text())
    assert told.pop("budget") == budget
    assert told.pop("final_score") == run.final_score
    (tmp_path / "run.json").write_text(json.dumps(told))
    again = ap.load_run(tmp_path)
    assert (again.budget, again.final_score) == (budget, run.final_score)


# ----------------------------------------------------------------------------------------------- at the best validation


def test_the_version_that_validates_best_is_tested() -> None:
    test, validation = {0: 0.1, 1: 0.5, 2: 0.6, 3: 0.9}, {0: 0.1, 1: 0.7, 2: 0.7, 3: 0.3}
    run = run_of([(1.0, 1), (2.0, 2), (3.0, 3)], test, budget="rounds", rounds=3, validation=validation)
    assert run.validated_score == 0.5, "of equal ones the earliest"
    assert "best 0.9000, at the best validation 0.5000)" in run.summary()
    losses = run_of([(1.0, 1), (2.0, 2)], test, budget="rounds", validation=validation, metric="loss")
    assert losses.validated_score == 0.1


def test_without_validation_learners_nothing_is_chosen_by_them() -> None:
    run = run_of([(1.0, 1)], {0: 0.1, 1: 0.5}, budget="rounds", rounds=1)
    assert math.isnan(run.validated_score)
    assert "validation" not in run.summary()
    lost = run_of([(1.0, 1)], {0: 0.1, 1: 0.5}, budget="rounds", validation={0: math.nan, 1: 0.2})
    assert lost.validated_score == 0.5


def test_one_run_is_scored_at_validation_and_test_learners(tmp_path: Path) -> None:
    islands = ap.data.digits().split(5).folds()[0].islands

    def scored(evaluation: ap.Evaluation | None) -> ap.Run:
        method, ending = ap.fedavg(batch=16, rate=0.1), ap.Ending(rounds=5)
        return ap.simulate(method, islands, ending=ending, evaluation=evaluation)

    both = scored(None)
    tested = scored(ap.Evaluation(at="held-out test", validation=False))
    validated = scored(ap.Evaluation(at="held-out validation"))
    assert both.fingerprint() == tested.fingerprint() == validated.fingerprint(), "scores change nothing"
    for (_, one), (_, test), (_, validation) in zip(both.scores, tested.scores, validated.scores, strict=True):
        assert one.metrics == pytest.approx(test.metrics)
        assert one.validation == pytest.approx(validation.metrics)
        assert (one.examples, one.sites) == (test.examples, test.sites)
        assert test.validation == validation.validation == {}
    by_validation = [scores.metrics["accuracy"] for _, scores in validated.scores]
    best = by_validation.index(max(by_validation))
    assert both.validated_score == both.scores[best][1].metrics["accuracy"]
    both.save(tmp_path)
    assert ap.load_run(tmp_path).validated_score == both.validated_score
    assert "validation.accuracy" in both.rows(Scores)[0]


@pytest.mark.parametrize(("budget", "score"), [("seconds", 0.6), ("rounds", 0.6)])
def test_a_version_that_was_rolled_back_to_counts_as_one(budget: BudgetUnit, score: float) -> None:
    """Of the last two seconds, or rounds, the restored version stands for one and the commit after it for the other."""
    run = run_of([(float(n), n) for n in range(1, 9)], {}, budget=budget, seconds=10.0, rounds=10)
    more = [
        Stamped(8.0, Restored(9, 4, 8)),
        Stamped(9.0, replace(committed(10, 10))),
        *(Stamped(9.0, Scores(version, 0, {"accuracy": value}, 10, 1)) for version, value in ((9, 0.4), (10, 0.8))),
    ]
    assert final_score(replace(run, records=(*run.records, *more))) == pytest.approx(score)
