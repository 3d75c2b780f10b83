"""The measures, by runs written by hand and by short simulations."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

import archipel as ap
from archipel.report.measures import (
    COLUMNS,
    MeasureColumn,
    Measured,
    Spread,
    ahead,
    chosen_target,
    decimals,
    marks,
    measure,
    number,
    plain,
    shown,
)
from archipel.runs.history import scoring
from tests.made_runs import written


def one(runs: Sequence[ap.Run], **asked: Any) -> Measured:
    (found,) = measure(runs, marks(runs, **asked))
    return found


# --------------------------------------------------------------------------------------------------------- one run


def test_the_final_score_is_over_the_last_fifth_and_the_swing_its_width() -> None:
    found = one([written([0.0, 0.9, 0.1, 0.2, 0.3, 0.4, 0.8, 0.5])])  # the last two of seven rounds
    assert [found.final.mean, found.final.n] == pytest.approx([0.65, 1])
    assert math.isnan(found.final.deviation)
    assert found.swing.mean == pytest.approx(0.3)
    assert (found.last.mean, found.best.mean) == (0.5, 0.9)
    assert found.stretch == "the last fifth of a run's local rounds"
    assert found.validated.n == 0, "there are no validation learners"


def test_final_scores_over_different_budgets_are_not_ranked() -> None:
    runs = [written([0.0, top], name=name, seed=seed) for name, top in (("a", 0.5), ("b", 0.9)) for seed in (0, 1)]
    first = ahead(measure(runs, marks(runs)), FINAL_SCORE)
    assert first is not None
    assert first.method == "b"
    runs[2:] = [replace(run, budget="seconds") for run in runs[2:]]
    assert ahead(measure(runs, marks(runs)), FINAL_SCORE) is None
    with pytest.raises(ValueError, match=r"the runs named 'b' were scored differently: .* local rounds; .* seconds"):
        one([runs[2], replace(runs[3], budget="rounds")])


def test_scores_at_a_time_and_at_local_rounds_are_the_last_by_then() -> None:
    run = written([0.0, 0.1, 0.2, 0.3, 0.4], every=10, rounds=3)  # scored at rounds 0, 3, 6, 9, 12: hops count
    found = one([run], seconds=29.9, rounds=9)
    assert found.at_seconds.mean == 0.2
    assert found.at_rounds.mean == 0.3


def test_sums_of_floats_do_not_push_a_score_out_of_its_time() -> None:
    early, late = written([0.0, 0.5], every=12.799999999999999), written([0.0, 0.7], every=12.8, name="fedprox")
    first, second = measure([early, late], marks([early, late]))
    assert (first.at_seconds.mean, second.at_seconds.mean) == (0.5, 0.7)


def test_what_a_target_took_is_counted_to_the_first_score_that_meets_it() -> None:
    found = one([written([0.0, 0.3, 0.6, 0.4, 0.8], every=10, rounds=3)], target=0.6)
    assert found.target_seconds.mean == 20
    assert found.target_rounds.mean == 6
    assert found.target_commits.mean == 2
    assert found.target_megabytes.mean == 2 * 3.5, "up, down and for weighing; scoring does not count"


def test_a_target_that_the_untrained_model_meets_took_nothing() -> None:
    found = one([written([0.5, 0.6])], target=0.5)
    assert (found.target_seconds.mean, found.target_commits.mean, found.target_megabytes.mean) == (0, 0, 0)


def test_what_whole_runs_took() -> None:
    found = one([written([0.0, 0.3, 0.6, 0.4], every=10, rounds=2, stale=3)])
    assert (found.up.mean, found.down.mean, found.weighing.mean, found.total.mean) == (6, 3, 1.5, 10.5)
    assert found.models.mean == 12
    assert (found.commits.mean, found.rounds.mean, found.seconds.mean, found.staleness.mean) == (3, 6, 30, 3)


def test_of_loss_the_lower_is_the_better() -> None:
    found = one([written([2.0, 1.5, 0.5, 0.8], metric="loss")], target=1.5)
    assert found.best.mean == 0.5
    assert found.target_commits.mean == 1


def test_a_run_that_diverged_has_no_final_score_instead_of_an_older_one() -> None:
    for lost in (math.nan, math.inf):
        found = one([written([2.0, 0.5, 0.4, 0.3, lost], metric="loss")])
        assert found.final.n == found.last.n == found.swing.n == found.at_seconds.n == 0
        assert found.best.mean == 0.3


def test_a_run_without_commits_or_scores_measures_nothing_and_breaks_nothing() -> None:
    found = one([written([math.nan])])
    assert found.final.n == found.last.n == found.best.n == found.target_seconds.n == found.staleness.n == 0
    assert math.isnan(found.target)
    assert found.commits.mean == 0


# ------------------------------------------------------------------------------------------------------- over runs


def test_means_and_sample_deviations_are_over_the_runs_of_a_method() -> None:
    runs = [written([0.0, score], seed=seed) for seed, score in enumerate((0.5, 0.6, 0.7))]
    found = one(runs)
    assert found.runs == 3
    assert found.seeds == (0, 1, 2)
    assert [found.final.mean, found.final.deviation, found.final.n] == pytest.approx([0.6, 0.1, 3])


def test_runs_that_miss_the_target_are_left_out_and_counted() -> None:
    runs = [written([0.0, *scores], seed=seed) for seed, scores in enumerate(((0.2, 0.8), (0.8, 0.8), (0.2, 0.2)))]
    found = one(runs, target=0.8)
    assert found.runs == 3
    assert found.target_seconds == Spread(15.0, math.sqrt(50), 2)
    assert one(runs, target=0.9).target_seconds.n == 0


def test_settings_make_methods_and_folds_make_runs() -> None:
    runs = [
        written([0.0, 0.1 * rate + 0.01 * fold], settings={"rate": rate}, fold=fold)
        for rate in (1, 2)
        for fold in (0, 1)
    ]
    found = measure(runs, marks(runs))
    assert [(m.method, m.runs, m.seeds, m.folds) for m in found] == [
        ("fedavg, rate=1", 2, (0,), (0, 1)),
        ("fedavg, rate=2", 2, (0,), (0, 1)),
    ]


def test_runs_of_one_name_that_are_no_repetitions_are_not_averaged() -> None:
    home, away = written([0.0, 0.5]), written([0.0, 0.5], seed=1, scored_at="learners")
    with pytest.raises(
        ValueError, match="'fedavg' were scored differently: accuracy on the global test set, over the last fif"
    ):
        measure([home, away], marks([home, away]))
    other = written([0.0, 0.5], seed=1, algorithm="Algorithm(name='fedavg', protocol=Rounds(1.0))")
    with pytest.raises(ValueError, match=r"different algorithms: .*Rounds\(0\.5\)\); .*Rounds\(1\.0\)\)\. Report them"):
        measure([home, other], marks([home, other]))


def test_tuning_may_choose_another_algorithm_for_every_run() -> None:
    runs = [written([0.0, 0.5], seed=rate, algorithm=f"fedavg({rate})", tuned={"rate": rate}) for rate in (1, 2)]
    assert one(runs).runs == 2


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({}, "accuracy on the global test set"),
        ({"scored_mean": "learners"}, "accuracy on the global test set"),
        ({"scored_at": "learners"}, "accuracy pooled over the learners' own test parts"),
        (
            {"scored_at": "learners", "scored_mean": "learners"},
            "accuracy averaged over the learners' own test parts",
        ),
        ({"scored_at": "held-out test"}, "accuracy pooled over the learners held out for the test"),
    ],
)
def test_the_words_say_where_and_how_a_run_was_scored(others: Mapping[str, Any], words: str) -> None:
    assert scoring(written([0.0, 0.5], **others)) == words


# ------------------------------------------------------------------------------------------------- where they meet


@pytest.mark.parametrize(
    ("bests", "target"),
    [
        ((0.97,), 0.95),
        ((0.95,), 0.95),  # .95 / .05 is 18.999999999999996
        ((0.97, 0.62), 0.95),  # one of two is half
        ((0.97, 0.88, 0.62), 0.85),
        ((0.97, 0.88, 0.62, 0.5), 0.85),
    ],
)
def test_the_target_is_the_largest_multiple_of_a_twentieth_that_half_of_the_methods_reach(
    bests: list[float], target: float
) -> None:
    assert chosen_target("accuracy", [[written([0.0, best, 0.1])] for best in bests]).value == target


def test_the_target_goes_by_the_mean_of_a_methods_runs() -> None:
    assert chosen_target("accuracy", [[written([0.0, best]) for best in (0.9, 0.7)]]).value == 0.8


@pytest.mark.parametrize(
    ("best", "target"), [(0.2341, 0.24), (0.55, 0.55), (1234.0, 1300.0), (0.0, 0.0), (-1.27, -1.2)]
)
def test_a_loss_to_reach_has_two_digits(best: float, target: float) -> None:
    assert chosen_target("loss", [[written([5000.0, best], metric="loss")]]).value == target


def test_methods_meet_where_the_shortest_run_ends_unless_asked_otherwise() -> None:
    runs = [written([0.0, 0.5, 0.6], every=10), written([0.0, 0.5], every=30, rounds=5, name="radfed")]
    chosen = marks(runs)
    assert (chosen.seconds.value, chosen.rounds.value) == (20, 2)
    asked = marks(runs, seconds=5, rounds=1, target=0.4)
    assert (asked.seconds.value, asked.rounds.value, asked.targets["accuracy"].value) == (5, 1, 0.4)
    assert {asked.seconds.why, asked.rounds.why, asked.targets["accuracy"].why} == {"as asked"}


def test_each_metric_has_a_target_of_its_own() -> None:
    runs = [written([0.0, 0.5]), written([2.0, 0.31], metric="loss", name="regression")]
    assert {metric: mark.value for metric, mark in marks(runs).targets.items()} == {"accuracy": 0.5, "loss": 0.31}
    assert [found.target for found in measure(runs, marks(runs))] == [0.5, 0.31]
    with pytest.raises(ValueError, match=r"the target 0\.9 would hold for accuracy and loss"):
        marks(runs, target=0.9)


@pytest.mark.parametrize("asked", [{"seconds": 0.0}, {"seconds": math.inf}, {"rounds": 0}, {"target": math.nan}])
def test_invalid_places_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"report: {next(iter(asked))} should be"):
        marks([written([0.0, 0.5])], **asked)


def test_nothing_is_compared_with_nothing() -> None:
    with pytest.raises(ValueError, match="no runs"):
        marks([])


# ------------------------------------------------------------------------------------------------------ who is ahead

FINAL_SCORE, SECONDS_TO_TARGET, COMMITS = (
    next(column for column in COLUMNS if column.name == name) for name in ("final", "target_seconds", "commits")
)


def ahead_in(column: MeasureColumn, **methods: Sequence[Sequence[float]]) -> str | None:
    """Return which methods are ahead, by the scores of every method's runs; the target is .5."""
    runs = [
        written([0.0, *scores], name=name, seed=seed)
        for name, seeds in methods.items()
        for seed, scores in enumerate(seeds)
    ]
    first = ahead(measure(runs, marks(runs, target=0.5)), column)
    return None if first is None else first.method


@pytest.mark.slow
def test_ahead_is_who_leads_by_more_than_a_deviation() -> None:
    assert ahead_in(FINAL_SCORE, a=[[0.80], [0.82]], b=[[0.70], [0.72]]) == "a"
    assert ahead_in(FINAL_SCORE, a=[[0.80], [0.82]], b=[[0.60], [0.80]]) is None, "b's deviation is .14"
    assert ahead_in(FINAL_SCORE, a=[[0.80], [0.82]], b=[[0.70], [0.72]], c=[[0.81], [0.805]]) is None


def test_one_run_tells_no_deviation_so_nobody_is_ahead() -> None:
    assert ahead_in(FINAL_SCORE, a=[[0.8]], b=[[0.1]]) is None
    assert ahead_in(FINAL_SCORE, a=[[0.8], [0.8]]) is None, "nor is who is alone"


def test_to_a_target_only_those_compete_whose_every_run_reaches_it() -> None:
    slow, fast, lame = [[0.1, 0.9], [0.1, 0.9]], [[0.9, 0.9], [0.9, 0.9]], [[0.9, 0.9], [0.1, 0.1]]
    assert ahead_in(SECONDS_TO_TARGET, slow=slow, fast=fast) == "fast"
    assert ahead_in(SECONDS_TO_TARGET, slow=slow, lame=lame) == "slow"


def test_more_or_fewer_commits_are_neither_better_nor_worse() -> None:
    assert ahead_in(COMMITS, a=[[0.1], [0.1]], b=[[0.1, 0.1], [0.1, 0.1]]) is None


def test_who_was_not_scored_alike_is_not_compared() -> None:
    runs = [written([0.0, 0.8], seed=seed) for seed in (0, 1)]
    runs += [written([0.0, 0.1], name="hdafl", seed=seed, scored_at="learners") for seed in (0, 1)]
    assert ahead(measure(runs, marks(runs)), FINAL_SCORE) is None


def test_a_lower_loss_is_ahead() -> None:
    runs = [written([9.0, 9.0 - seed / 100], name="a", seed=seed, metric="loss") for seed in (0, 1)]
    runs += [written([9.0, 1.0 - seed / 100], name="b", seed=seed, metric="loss") for seed in (0, 1)]
    first = ahead(measure(runs, marks(runs)), FINAL_SCORE)
    assert first is not None
    assert first.method == "b"


# ---------------------------------------------------------------------------------------------------------- as text


def test_every_measure_has_a_column() -> None:
    measures = [field.name for field in fields(Measured) if field.type == "Spread"]
    assert measures == [column.name for column in COLUMNS]


@pytest.mark.parametrize(
    ("value", "text"), [(0.8, "0.8"), (12.799999999999999, "12.8"), (86400.0, "86,400"), (20, "20")]
)
def test_marks_are_told_in_few_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_columns_numbers_have_the_digits_that_tell_them_apart() -> None:
    scores = [one([written([0.0, score])]) for score in (1.0, 0.5)]
    assert decimals(FINAL_SCORE, scores) == 3
    assert decimals(FINAL_SCORE, [one([written([1.0, 0.000321], metric="loss")])]) == 6
    assert decimals(COMMITS, scores) == 0
    traffic = next(column for column in COLUMNS if column.name == "weighing")
    assert decimals(traffic, scores) == 2, "0.50 MB"


def test_numbers_are_shown_with_their_deviation_where_there_is_one() -> None:
    assert shown(Spread(1234.5678, 0.25, 3), 2) == ("1,234.57", "0.25")
    assert shown(Spread(0.5, math.nan, 1), 3) == ("0.500", "")
    assert shown(Spread.of([]), 3) == ("", "")


def test_measures_are_json() -> None:
    told = plain(one([written([math.nan])]))
    assert json.loads(json.dumps(told, allow_nan=False))["final"] == {"mean": None, "deviation": None, "n": 0}


# ---------------------------------------------------------------------------------------------------- by simulations


@pytest.fixture(scope="module")
def simulated() -> dict[str, ap.Run]:
    data = ap.data.digits().split(learners=6, sizes=(120,) * 6, classes=3)
    methods = (
        ap.fedavg(epochs=2, batch=16, rate=0.1),
        ap.radfed(fraction=0.5, hops=3, epochs=2, batch=16, rate=0.1),
        ap.async_dvw(batch=16, rate=0.1, at_most=2),
    )
    return {
        method.name: ap.simulate(method, data, fleet=ap.Fleet(fast=3, slow=3), ending=ap.Ending(rounds=9))
        for method in methods
    }


@pytest.mark.slow
def test_a_simulation_measures_as_its_own_summary_tells(simulated: dict[str, ap.Run]) -> None:
    for name, run in simulated.items():
        found = one([run])
        assert run.summary().splitlines()[:3] == [
            f"{name}: accuracy {found.final.mean:.4f} over the last fifth of 9 local rounds "
            f"(last version {found.last.mean:.4f}, best {found.best.mean:.4f})",
            f"  {found.commits.mean:.0f} commits, {found.rounds.mean:.0f} local rounds in {found.seconds.mean:,.1f} s, "
            f"{len(run.of(ap.records.Handed))} tasks handed out, 0 not applied",
            f"  {found.models.mean:.0f} models moved: {found.down.mean:.2f} MB to learners, "
            f"{found.up.mean:.2f} MB back, {found.weighing.mean:.2f} MB for weighing",
        ]


def test_a_target_that_ended_a_simulation_took_all_of_it() -> None:
    """The run stops at its target, so what the target took is what the run took: told apart, they must agree."""
    data = ap.data.digits().split(learners=6, sizes=(120,) * 6)
    run = ap.simulate(ap.fedavg(epochs=2, batch=16, rate=0.1), data, ending=ap.Ending(rounds=30, target=0.7))
    found = one([run], target=0.7)
    assert 1 < len(run.commits) < 30
    assert found.target_seconds == found.seconds
    assert found.target_rounds == found.rounds
    assert found.target_commits == found.commits
    assert found.target_megabytes == found.total


@pytest.mark.slow
def test_staleness_is_that_of_the_records(simulated: dict[str, ap.Run]) -> None:
    assert one([simulated["fedavg"]]).staleness.mean == 0
    stale = [versions for _, commit in simulated["async_dvw"].commits for versions in commit.stale_versions]
    assert statistics.mean(stale) > 1, "slow learners are overtaken"
    assert one([simulated["async_dvw"]]).staleness.mean == pytest.approx(statistics.mean(stale))


def test_a_relay_is_measured_in_hops(simulated: dict[str, ap.Run]) -> None:
    found = one([simulated["radfed"]])
    assert found.rounds.mean == 3 * found.commits.mean == 9
