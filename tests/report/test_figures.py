"""The numbers that figures are drawn from, by runs written by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from archipel.core.layout import Layout
from archipel.core.records import (
    Committed,
    Divergence,
    Handed,
    PrivacySpent,
    Probed,
    Record,
    Refused,
    Returned,
    Scores,
    Shadow,
    Stamped,
)
from archipel.drawing.drawing import Drawing
from archipel.drawing.lines import POINTS, mean_line
from archipel.report.class_maps import class_heat_maps
from archipel.report.cycles import validation_cycles
from archipel.report.figures import FIGURES, draw_all
from archipel.report.gantt import gantt
from archipel.report.layer_divergence import layer_divergence
from archipel.report.privacy_budget import privacy_budget
from archipel.report.shadows import shadows
from archipel.report.staleness import staleness
from archipel.report.traffic import bytes_by_layer, traffic
from archipel.report.weights import weights
from archipel.runs.grouping import groups, label
from archipel.runs.run import Run
from archipel.runs.run_data import Participant
from archipel.runs.score_curves import score_curves, scores

pytest.importorskip("matplotlib")

MB = 2**20
LAYOUT = Layout.of(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))  # layers "0" and "1" of 9 and 8 numbers
ANN, BOB, CY = (
    Participant("ann", "fast", "train", 30, (20, 10)),
    Participant("bob", "slow", "train", 20, (0, 20)),
    Participant("cy", "fast", "test", 5, (5, 0)),
)


def written(records: Sequence[tuple[float, Record]], name: str = "fedavg", **others: Any) -> Run:
    told = {
        "algorithm": "",
        "seed": 0,
        "participants": (ANN, BOB, CY),
        "private": {},
        "seconds": max((time for time, _ in records), default=0.0),
        "reason": "time is up",
        "execution": "plain",
        "metric": "accuracy",
        "scored_at": "home",
        "scored_mean": "examples",
        "rounds": 0,
        "budget": "seconds",
        "traffic": {},
        "layers": {},
    } | others
    stamped = tuple(Stamped(time, record) for time, record in records)
    return Run(name=name, layout=LAYOUT, model=torch.zeros(LAYOUT.size), records=stamped, **told)  # type: ignore[arg-type]


def score(version: int, rounds: int, value: float, metric: str = "accuracy") -> Scores:
    return Scores(version, rounds, {metric: value}, examples=10, sites=1)


def commit(
    version: int,
    learners: Mapping[str, int],
    weights: Sequence[tuple[float, float]] = (),
    steps: Sequence[int] = (),
    overtaken: int = 0,
    traffic: Mapping[str, int] | None = None,
) -> Committed:
    """`learners` with their tasks."""
    return Committed(
        version=version,
        rounds=version,
        learners=tuple(learners),
        paths=tuple((learner,) for learner in learners),
        tasks=tuple(learners.values()),
        weights=tuple(weights) or ((1.0, 1.0),) * len(learners),
        stale_versions=(overtaken,) * len(learners),
        stale_steps=tuple(steps) or (1,) * len(learners),
        layers=(0, 1),
        traffic=dict(traffic or {}),
    )


def returned(
    task: int, learner: str, losses: Sequence[float] = (), layers: Sequence[str] = ("0", "1"), recalled: bool = False
) -> Returned:
    return Returned(task, learner, 0, 4, 1.0, tuple(layers), tuple(losses), recalled)


def drawn(drawing: Drawing | None) -> Drawing:
    assert drawing is not None
    assert all(len(row) == len(drawing.header) for row in drawing.rows)
    return drawing


def lines(drawing: Drawing, panel: int) -> list[list[tuple[float, float]]]:
    """The points of the lines in a panel."""
    return [
        list(map(tuple, np.column_stack((line.get_xdata(), line.get_ydata())).tolist()))
        for line in drawing.figure.axes[panel].get_lines()
    ]


EMPTY = written([])


def test_nothing_is_drawn_of_nothing() -> None:
    assert len(FIGURES) == 11
    assert [figure([EMPTY]) for figure in FIGURES if figure is not class_heat_maps] == [None] * 10
    assert class_heat_maps([replace(EMPTY, participants=(replace(ANN, labels=()),))]) is None
    assert draw_all([]) == []
    assert [drawing.name for drawing in draw_all([EMPTY])] == ["classes"]


# ---------------------------------------------------------------------------------------------------------- methods


def test_runs_of_one_name_and_setting_are_one_method() -> None:
    a, b, c = (written([], settings=settings) for settings in ({}, {"rate": 0.1, "algorithm.hops": 3}, {"rate": 0.2}))
    again = replace(b, seed=7)
    assert [label(run) for run in (a, b, c)] == ["fedavg", "fedavg, rate=0.1, algorithm.hops=3", "fedavg, rate=0.2"]
    assert groups([b, a, again, c]) == {label(b): [b, again], "fedavg": [a], label(c): [c]}
    assert next(iter(groups([b, a, again, c]))) == label(b)


# ----------------------------------------------------------------------------------------------------------- curves

TIME, ROUNDS, MOVED = "time (s)", "local rounds", "moved (MB)"
MOVES = {"train down bytes": 2 * MB, "train up bytes": MB, "evaluate down bytes": MB, "score down bytes": 100 * MB}
STREAM: list[tuple[float, Record]] = [
    (0.0, score(0, 0, 0.1)),
    (2.0, commit(1, {"ann": 0}, traffic=MOVES)),
    (2.0, score(1, 1, 0.5)),
    (3.0, commit(2, {"bob": 1}, traffic=MOVES | {"train up bytes": 3 * MB})),
    (3.0, score(2, 1, 0.6)),
    (4.0, score(2, 2, math.nan)),
]


def test_score_against_time_rounds_and_megabytes() -> None:
    drawing = score_curves([written(STREAM)])
    expected = {
        TIME: [(0, 0.1), (2, 0.5), (3, 0.6)],
        ROUNDS: [(0, 0.1), (1, 0.5)],  # the first of those in a round
        MOVED: [(0, 0.1), (4, 0.5), (6, 0.6)],
    }
    assert drawing.header[:4] == ("method", "metric", "axis", "place on the axis")
    assert drawing.rows == tuple(
        ("fedavg", "accuracy", axis, x, y, y, y, 1) for axis, points in expected.items() for x, y in points
    )
    assert [panel.get_xlabel() for panel in drawing.figure.axes] == [TIME, ROUNDS, MOVED]
    assert drawing.figure.axes[0].get_ylabel() == "accuracy"
    assert [lines(drawing, panel) for panel in range(3)] == [[points] for points in expected.values()]
    assert "accuracy on the global test set" in drawing.caption.lower()


def test_seeds_are_one_line_with_a_band() -> None:
    one = written([(0.0, score(0, 0, 0.1)), (2.0, score(1, 1, 0.5))])
    two = written([(0.0, score(0, 0, 0.3)), (1.0, score(1, 1, 0.5)), (4.0, score(2, 2, 0.8))], seed=1)
    drawing = score_curves([one, two])
    time = [row[3:] for row in drawing.rows if row[2] == TIME]
    assert [row[0] for row in time] == [0, 1, 2]  # as far as both go
    assert [row[1] for row in time] == pytest.approx([0.2, 0.4, 0.55])
    assert [row[2] for row in time] == pytest.approx([0.1, 0.3, 0.5])
    assert [row[3] for row in time] == pytest.approx([0.3, 0.5, 0.6])
    assert {row[4] for row in time} == {2}
    (band,) = drawing.figure.axes[0].collections
    assert band.get_datalim(drawing.figure.axes[0].transData).bounds == pytest.approx((0, 0.1, 2, 0.5))
    assert len(lines(drawing, 0)) == 1
    assert "lowest to the highest" in drawing.caption
    assert "lowest" not in score_curves([one]).caption


def test_seeds_that_share_no_stretch_and_very_long_lines() -> None:
    assert mean_line([{1.0: 0.5, 2.0: 0.7}, {3.0: 0.9}]).rows() == [(1.0, 0.5, 0.5, 0.5, 1), (2.0, 0.7, 0.7, 0.7, 1)]
    long = mean_line([{float(x): 2.0 * x for x in range(5 * POINTS)}])
    assert (len(long.x), long.x[0], long.x[-1]) == (POINTS, 0, 5 * POINTS - 1)
    assert long.mean == pytest.approx(2 * long.x)


def test_an_axis_with_very_unequal_lines_is_logarithmic() -> None:
    quick = written([(0.0, score(0, 0, 0.1)), (1.0, score(1, 1, 0.5))])
    long = written([(0.0, score(0, 0, 0.1)), (11.0, score(1, 2, 0.5))], name="hdafl")
    drawing = score_curves([quick, long])
    assert [panel.get_xscale() for panel in drawing.figure.axes] == ["log", "linear", "linear"]
    assert lines(drawing, 0) == [[(1, 0.5)], [(11, 0.5)]]  # 0 has no place on it
    assert lines(drawing, 1)[0] == [(0, 0.1), (1, 0.5)]


def test_a_loss_says_that_less_is_better() -> None:
    drawing = score_curves(
        [written([(t, score(0, t, v, "loss")) for t, v in enumerate((900.0, 20.0, 3.0))], metric="loss")]
    )
    assert drawing.figure.axes[0].get_ylabel() == "loss (lower is better)"
    assert drawing.figure.axes[0].get_yscale() == "log"
    assert {row[4] for row in drawing.rows} == {900.0, 20.0, 3.0}


def test_metrics_have_rows_of_panels_of_their_own() -> None:
    loss = written([(0.0, score(0, 0, 2.0, "loss")), (1.0, score(1, 1, 1.5, "loss"))], name="linear", metric="loss")
    drawing = score_curves([written(STREAM), loss])
    assert [panel.get_ylabel() for panel in drawing.figure.axes] == [
        "accuracy",
        "",
        "",
        "loss (lower is better)",
        "",
        "",
    ]
    assert drawing.figure.axes[3].get_yscale() == "linear"
    assert lines(drawing, 3) == [[(0, 2.0), (1, 1.5)]]


def test_scores_that_do_not_compare_say_so_in_the_legend() -> None:
    hdafl = written(STREAM, name="hdafl", scored_at="learners", scored_mean="learners")
    alike, mixed = score_curves([written(STREAM)]), score_curves([written(STREAM), hdafl])
    shown = [[text.get_text() for text in drawing.figure.legends[0].get_texts()] for drawing in (alike, mixed)]
    assert shown[0] == ["fedavg"]
    assert shown[1][0] == "fedavg: accuracy on the global test set"
    assert shown[1][1].startswith("hdafl: accuracy")
    assert "learners' own test parts" in shown[1][1]
    assert "(hdafl)" in mixed.caption


def test_runs_without_scores_are_no_curve() -> None:
    unscored = written([(0.0, Scores(0, 0, {"loss": 1.0}, 1, 1)), (1.0, score(1, 1, math.nan))], name="lost")
    assert scores([unscored]) is None
    with pytest.raises(ValueError, match="none of these runs has a score; give simulate an Evaluation"):
        score_curves([unscored])
    drawing = drawn(scores([unscored, written(STREAM)]))
    assert {row[0] for row in drawing.rows} == {"fedavg"}


def test_a_run_plots_itself() -> None:
    assert [panel.get_xlabel() for panel in written(STREAM).plot().axes] == [TIME, ROUNDS, MOVED]


# ------------------------------------------------------------------------------------------------------------ Gantt


def test_gantt_shows_tasks_from_hand_out_to_return() -> None:
    run = written(
        [
            (0.0, Handed(0, "ann", 0, 0)),
            (0.0, Handed(1, "bob", 0, 0)),
            (1.0, returned(0, "ann")),
            (3.0, returned(1, "bob")),
            (3.0, Refused(1, "bob", "too little evidence to weigh it")),
            (3.0, commit(1, {"ann": 0})),
            (3.0, Handed(2, "ann", 1, 0)),
            (3.0, Handed(3, "bob", 1, 0)),
            (3.5, Refused(2, "ann", "lost")),
            (3.6, Refused(2, "", "late: the task was closed before, its answer is not applied")),
            (4.0, commit(2, {"bob": 3})),
        ],
        seed=5,
    )
    drawing = drawn(gantt([run]))
    assert drawing.rows == (
        ("fedavg", 5, "ann", "fast", 0.0, 1.0, "returned"),
        ("fedavg", 5, "ann", "fast", 3.0, 3.5, "not applied"),
        ("fedavg", 5, "bob", "slow", 0.0, 3.0, "not applied"),
        ("fedavg", 5, "bob", "slow", 3.0, 4.0, "still out"),
        ("fedavg", 5, "", "", 3.0, 3.0, "commit"),
        ("fedavg", 5, "", "", 4.0, 4.0, "commit"),
    )
    (panel,) = drawing.figure.axes
    assert panel.get_title(loc="left") == "fedavg: 69% at work"  # 5.5 of 8 seconds
    assert [text.get_text() for text in panel.get_yticklabels()] == ["ann", "bob"]
    assert panel.get_xlim() == (0, 4)
    assert panel.get_xlabel() == TIME
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == ["fast", "slow", "idle"]


def test_gantt_shows_the_evaluation_of_others_models_as_work() -> None:
    run = written(
        [
            (0.0, Handed(0, "ann", 0, 0)),
            (0.0, Handed(1, "bob", 0, 0)),
            (1.0, returned(0, "ann")),
            (1.0, Probed(2, ("ann", "bob"), (1.0, 2.5))),
            (2.0, returned(1, "bob")),
            (4.0, commit(1, {"ann": 0})),
        ],
    )
    drawing = drawn(gantt([run]))
    assert [row[2:] for row in drawing.rows if row[-1] == "evaluated"] == [
        ("ann", "fast", 1.0, 2.0, "evaluated"),
        ("bob", "slow", 1.0, 3.5, "evaluated"),
    ]
    (panel,) = drawing.figure.axes
    # ann 1 + 1 seconds; bob 2, and 1.5 more after its training; the second in which it did both counts once
    assert panel.get_title(loc="left") == "fedavg: 69% at work"
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == ["fast", "slow", "evaluating", "idle"]


def test_gantt_shows_a_window_of_three_tasks_in_the_middle_method() -> None:
    def rounds(name: str, length: float) -> Run:
        each: list[list[tuple[float, Record]]] = [
            [(length * i, Handed(i, "ann", 0, 0)), (length * (i + 1), returned(i, "ann"))]
            for i in range(int(24 / length))
        ]
        return written([one for pair in each for one in pair], name=name)

    drawing = drawn(gantt([rounds("quick", 0.5), rounds("middle", 2.0), rounds("slow", 8.0)]))
    assert [panel.get_xlim() for panel in drawing.figure.axes] == [(0, 6)] * 3
    assert [row[4:6] for row in drawing.rows if row[0] == "slow"] == [(0.0, 6.0)]
    assert [row[4:6] for row in drawing.rows if row[0] == "middle"] == [(0.0, 2.0), (2.0, 4.0), (4.0, 6.0)]
    assert len([row for row in drawing.rows if row[0] == "quick"]) == 12


# -------------------------------------------------------------------------------------------------------- staleness


def test_staleness_is_a_histogram_for_each_learner() -> None:
    steps = [10, 12, 12, 90]
    run = written(
        [(float(i), commit(i, {"ann": i}, steps=[n], overtaken=1)) for i, n in enumerate(steps)]
        + [(9.0, commit(9, {"bob": 9}, steps=[40]))]
    )
    drawing = drawn(staleness([run]))
    for learner, own in (("ann", steps), ("bob", [40])):
        bins = [row[4:7] for row in drawing.rows if row[2] == learner]
        assert [low for low, _, _ in bins[1:]] == [high for _, high, _ in bins[:-1]]
        assert [count for _, _, count in bins] == [sum(low <= n < high for n in own) for low, high, _ in bins]
        assert sum(count for _, _, count in bins) == len(own)
    assert {row[2:4] + row[7:] for row in drawing.rows} == {("ann", "fast", 12.0), ("bob", "slow", 40)}
    (panel,) = drawing.figure.axes
    assert panel.get_title(loc="left") == "fedavg (median: fast 12, slow 40)"
    assert panel.get_xlabel() == "effective staleness (steps)"
    assert panel.get_xscale() == "linear"


def test_staleness_far_apart_is_on_a_logarithmic_scale() -> None:
    run = written([(float(i), commit(i, {"ann": i}, steps=[n], overtaken=1)) for i, n in enumerate((2, 3, 200))])
    drawing = drawn(staleness([run]))
    assert drawing.figure.axes[0].get_xscale() == "log"
    assert (drawing.rows[0][4], drawing.rows[-1][5]) == (2, 201)
    assert sum(row[6] for row in drawing.rows) == 3


def test_updates_that_nobody_overtakes_have_no_staleness_to_show() -> None:
    synchronous = written([(1.0, commit(1, {"ann": 0, "bob": 1}, steps=[10, 400]))])
    assert staleness([synchronous]) is None
    stream = written([(1.0, commit(1, {"ann": 0}, steps=[3], overtaken=2))], name="fedasync")
    assert {row[0] for row in drawn(staleness([synchronous, stream])).rows} == {"fedasync"}


# ----------------------------------------------------------------------------------------------------------- cycles


def test_cycles_are_spread_between_hand_out_and_return() -> None:
    run = written(
        [
            (1.0, Handed(0, "ann", 0, 0)),
            (1.0, Handed(1, "bob", 0, 0)),
            (3.0, returned(0, "ann", [2.0, 1.5, 1.0])),
            (4.0, Handed(2, "ann", 1, 0)),
            (5.0, returned(2, "ann", [1.2, 0.9], recalled=True)),
            (9.0, returned(1, "bob")),
        ],
        name="async_dvw",
    )
    drawing = drawn(validation_cycles([run]))
    ann = ("async_dvw", 0, "ann", "fast")
    assert drawing.rows == (
        (*ann, 1, 0, 1.0, 2.0, 0),
        (*ann, 1, 1, 2.0, 1.5, 0),
        (*ann, 1, 2, 3.0, 1.0, 0),
        (*ann, 2, 0, 4.0, 1.2, 1),
        (*ann, 2, 1, 5.0, 0.9, 1),
    )
    (panel,) = drawing.figure.axes
    assert panel.get_title(loc="left") == "async_dvw: learner ann (fast)"
    assert (panel.get_xlabel(), panel.get_ylabel()) == (TIME, "validation loss")
    assert lines(drawing, 0) == [
        [(1, 2.0), (2, 1.5), (3, 1.0)],
        [(1, 2.0)],
        [(4, 1.2), (5, 0.9)],
        [(4, 1.2)],
        [(5, 0.9)],  # recalled
    ]
    without = [stamped for stamped in run.records if getattr(stamped.record, "losses", ()) == ()]
    assert validation_cycles([replace(run, records=without)]) is None


def test_of_each_group_the_learner_in_the_middle_is_shown() -> None:
    people = tuple(Participant(name, group, "train", 9) for name, group in zip("abcde", "ffffs", strict=True))
    took = {"a": 1.0, "b": 3.0, "c": 2.0, "d": 9.0, "e": 5.0}
    records: list[tuple[float, Record]] = [(0.0, Handed(i, name, 0, 0)) for i, name in enumerate(took)]
    records += [(time, returned(i, name, [1.0, 0.5])) for i, (name, time) in enumerate(took.items())]
    drawing = drawn(validation_cycles([written(records, participants=people)]))
    assert [row[2] for row in drawing.rows] == ["c", "c", "e", "e"]
    assert len(drawing.figure.axes) == 2


# ---------------------------------------------------------------------------------------------------------- weights


def test_weights_are_means_over_the_layers_sent() -> None:
    run = written(
        [
            (1.0, returned(0, "ann")),
            (1.0, returned(1, "bob", layers=["1"])),
            (1.0, returned(2, "bob", layers=[])),
            (2.0, commit(1, {"ann": 0, "bob": 1}, [(1.0, 0.5), (0.9, 0.3)])),
            (3.0, commit(2, {"bob": 2}, [(0.9, 0.3)])),
        ]
    )
    drawing = drawn(weights([run]))
    assert [row[:5] for row in drawing.rows] == [("fedavg", 0, "ann", "fast", 2.0), ("fedavg", 0, "bob", "slow", 2.0)]
    assert [row[5] for row in drawing.rows] == pytest.approx([(9 * 1.0 + 8 * 0.5) / 17, 0.3])
    (panel,) = drawing.figure.axes
    assert (panel.get_xlabel(), panel.get_ylabel()) == (TIME, "weight as given")
    assert [text.get_text() for text in panel.texts] == ["bob", "ann"]


def test_methods_that_weigh_all_alike_have_no_weights_to_show() -> None:
    assert weights([written([(1.0, returned(0, "ann")), (2.0, commit(1, {"ann": 0}))])]) is None


def test_many_contributions_are_drawn_by_their_means() -> None:
    told: list[tuple[float, Record]] = []
    for i in range(100):
        told += [(i + 0.5, returned(i, "ann")), (i + 0.5, commit(i + 1, {"ann": i}, [(float(i), float(i))]))]
    run = written(told, seconds=100.0)
    points = [row[4:] for row in drawn(weights([run])).rows]
    assert points == [(2 * i + 1.0, 2 * i + 0.5) for i in range(50)]


# ---------------------------------------------------------------------------------------------------------- traffic


def test_traffic_counts_requests_models_and_megabytes() -> None:
    def run(seed: int, models: int) -> Run:
        moved = {
            "train down bytes": 4 * MB,
            "train up bytes": MB,
            "evaluate down bytes": 2 * MB,
            "score down bytes": MB,
        }
        counts = {"train down models": models, "train up models": 2, "evaluate down models": 9, "score down models": 77}
        told = [(1.0, returned(i, "ann")) for i in range(models)]
        return written(told, traffic=moved | counts, seed=seed)

    drawing = drawn(traffic([run(0, 3), run(1, 5)]))
    assert drawing.rows == (
        ("fedavg", "update requests", "updates", 4, 3, 5, 2),
        ("fedavg", "models exchanged", "to learners, to train", 4, 3, 5, 2),
        ("fedavg", "models exchanged", "back from learners", 2, 2, 2, 2),
        ("fedavg", "models exchanged", "to be weighed", 9, 9, 9, 2),
        ("fedavg", "moved (MB)", "to learners, to train", 4, 4, 4, 2),
        ("fedavg", "moved (MB)", "back from learners", 1, 1, 1, 2),
        ("fedavg", "moved (MB)", "to be weighed", 2, 2, 2, 2),
    )
    requests, models, moved = drawing.figure.axes
    assert [panel.get_xlabel() for panel in drawing.figure.axes] == [
        "update requests",
        "models exchanged",
        "moved (MB)",
    ]
    assert [text.get_text() for panel in (requests, models, moved) for text in panel.texts] == ["4", "15", "7"]
    bars: list[Any] = list(models.patches)
    assert [bar.get_width() for bar in bars] == [4, 2, 9]
    assert [bar.get_x() for bar in bars] == [0, 4, 6]


def test_bytes_by_layer_leave_scoring_out() -> None:
    fedavg = written(
        [], layers={"train down": {"0": 2 * MB, "1": MB}, "train up": {"0": MB}, "score down": {"0": 9 * MB}}
    )
    hdafl = written([], name="hdafl", layers={"train down": {"0": MB}, "evaluate down": {"0": MB // 2}})
    drawing = drawn(bytes_by_layer([fedavg, replace(fedavg, seed=1, layers={"train up": {"1": 3 * MB}}), hdafl]))
    assert drawing.rows == (
        ("fedavg", "0", 1.5),
        ("fedavg", "1", 2.0),
        ("hdafl", "0", 1.5),
        ("hdafl", "1", 0.0),
    )
    panel = drawing.figure.axes[0]
    assert [text.get_text() for text in panel.get_yticklabels()] == ["fedavg", "hdafl"]
    assert [text.get_text() for text in panel.texts] == ["1.5", "2", "1.5"]
    assert bytes_by_layer([replace(fedavg, layers={"score down": {"0": MB}})]) is None


# ------------------------------------------------------------------------------------------------------ divergences


def test_layer_divergence_marks_the_split() -> None:
    told = [
        (float(v), Divergence(v, ("0", "1"), (0.1 * v, math.nan if v == 7 else 1.0), "cosine", "1" if v > 3 else None))
        for v in range(1, 12)
    ]
    drawing = drawn(layer_divergence([written(told)]))
    assert [row[3] for row in drawing.rows if row[4] == "0"] == [1, 3, 5, 7, 9, 11]
    assert [row[3] for row in drawing.rows if row[4] == "1"] == [1, 3, 5, 9, 11]  # NaN is no number
    assert [row[5] for row in drawing.rows if row[4] == "0"] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9, 1.1])
    assert [row[6] for row in drawing.rows if row[4] == "0"] == ["", "", "1", "1", "1", "1"]
    (panel,) = drawing.figure.axes
    dashed = [line for line in panel.get_lines() if line.get_linestyle() == "--"]
    assert [np.asarray(line.get_xdata()).tolist() for line in dashed] == [[0.5, 0.5]]
    assert len(panel.get_lines()) == 7
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("layer", "divergence (cosine)")
    assert [text.get_text() for text in panel.get_xticklabels()] == ["0", "1"]
    nothing = Divergence(1, ("0", "1"), (math.nan, math.inf), "cosine", None)
    assert layer_divergence([written([(1.0, nothing)])]) is None


def test_epsilon_along_the_commits() -> None:
    spent = [(1.0, PrivacySpent(1, 0.5, 1e-5, 1.0, 0.1)), (2.0, PrivacySpent(2, 0.75, 1e-5, 1.0, 0.1))]
    drawing = drawn(privacy_budget([written(spent)]))
    assert drawing.rows == (("fedavg", 1.0, 0.5, 0.5, 0.5, 1), ("fedavg", 2.0, 0.75, 0.75, 0.75, 1))
    assert "at delta 1e-05" in drawing.caption
    assert privacy_budget([written([(1.0, Shadow(1, None, 0.5))])]) is None


def test_dc_and_dl() -> None:
    shadow = [(1.0, Shadow(1, None, 0.5)), (2.0, Shadow(2, 0.3, 0.7)), (3.0, Shadow(3, None, None))]
    drawing = drawn(shadows([written(shadow)]))
    assert drawing.rows == (
        ("fedavg", "DC", 2.0, 0.3, 0.3, 0.3, 1),
        ("fedavg", "DL", 1.0, 0.5, 0.5, 0.5, 1),
        ("fedavg", "DL", 2.0, 0.7, 0.7, 0.7, 1),
    )
    assert [panel.get_ylabel() for panel in drawing.figure.axes] == [
        "DC, from a centralised run",
        "DL, between local models",
    ]
    alone = drawn(shadows([written([(2.0, Shadow(2, 0.3, None))]), written([(2.0, Shadow(2, 0.5, None))], seed=1)]))
    assert [row[3:] for row in alone.rows] == [(pytest.approx(0.4), 0.3, 0.5, 2)]
    assert len(alone.figure.axes) == 1
    assert shadows([written([(1.0, Shadow(1, None, None))])]) is None


# ---------------------------------------------------------------------------------------------------------- classes


@pytest.mark.slow
def test_classes_of_those_who_train_once_for_each_split() -> None:
    other = replace(EMPTY, name="async_dvw", participants=(replace(ANN, labels=(19, 9)), BOB))
    drawing = drawn(class_heat_maps([EMPTY, replace(EMPTY, name="hdafl"), other]))
    assert drawing.rows == (
        ("fedavg; hdafl", "ann", 0, 20),
        ("fedavg; hdafl", "ann", 1, 10),
        ("fedavg; hdafl", "bob", 0, 0),
        ("fedavg; hdafl", "bob", 1, 20),
        ("async_dvw", "ann", 0, 19),
        ("async_dvw", "ann", 1, 9),
        ("async_dvw", "bob", 0, 0),
        ("async_dvw", "bob", 1, 20),
    )
    assert [part.get_suptitle() for part in drawing.figure.subfigs] == ["fedavg; hdafl", "async_dvw"]
    many = [
        replace(EMPTY, name=f"m{i}", participants=(replace(ANN, labels=(i, 1)), replace(BOB, labels=(1, 1))))
        for i in range(6)
    ]
    drawing = drawn(class_heat_maps(many))
    assert {row[0] for row in drawing.rows} == {"m0", "m1", "m2", "m3"}
    assert "first 4 of 6 tables" in drawing.caption
    assert "evenly" not in drawing.caption


@pytest.mark.slow
def test_classes_of_many_learners_are_a_sample() -> None:
    from matplotlib.patches import Rectangle

    crowd = tuple(replace(ANN, name=f"{place:04}", labels=(place, 1)) for place in range(1001))
    drawing = drawn(class_heat_maps([replace(EMPTY, participants=crowd)]))
    assert "Of 1,001 learners 200 are shown, evenly spaced by name." in drawing.caption
    assert len(drawing.rows) == 400
    assert drawing.rows[0] == ("fedavg", "0000", 0, 0)
    assert drawing.rows[-1] == ("fedavg", "1000", 1, 1)
    above, below = drawing.figure.subfigs[0].axes[:2]
    ends = above.patches[::199]
    assert [bar.get_height() for bar in ends if isinstance(bar, Rectangle)] == [1, 1001]
    assert below.get_xlabel() == "learner (200 of 1,001, evenly spaced)"
