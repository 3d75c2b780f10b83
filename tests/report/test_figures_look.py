"""What one sees: figures of short simulations and of odd ones are whole, legible and the same for the same runs."""

from __future__ import annotations

import builtins
import csv
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import archipel as ap
from archipel.core.records import Divergence, Handed
from archipel.data import Source
from archipel.drawing.drawing import Drawing
from archipel.drawing.style import COLOURS, STROKES, save, stroke
from archipel.report.class_maps import class_heat_maps
from archipel.report.figures import draw_all
from archipel.report.gantt import gantt
from archipel.report.staleness import staleness
from archipel.report.traffic import traffic
from archipel.report.weights import weights
from archipel.runs.grouping import label
from archipel.runs.run import Run
from archipel.runs.score_curves import score_curves

pytest.importorskip("matplotlib")

ALL = [
    "score-curves",
    "gantt",
    "traffic",
    "bytes-by-layer",
    "staleness",
    "validation-cycles",
    "weights",
    "layer-divergence",
    "shadows",
    "classes",
]


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    data = ap.data.digits().split(learners=6, sizes="powerlaw", classes=3)
    methods = (
        ap.fedavg(epochs=1, batch=64),
        ap.async_dvw(at_most=3, batch=64),
        ap.divide_and_conquer(epochs=1, prepass=2, batch=64),
    )
    return [
        ap.simulate(method, data, fleet=ap.Fleet(fast=3, slow=3), ending=ap.Ending(rounds=2), shadow=True)
        for method in methods
    ]


@pytest.fixture(scope="module")
def crowd() -> Run:
    """Of 100 learners."""
    x = torch.randn(1500, 3, generator=torch.Generator().manual_seed(0))
    data = ap.data.from_arrays(x, (x[:, 0] > 0).long()).split(learners=100)
    return ap.simulate(ap.fedasync(batch=4), data, fleet=ap.Fleet(fast=40, slow=60), ending=ap.Ending(rounds=2))


def look_at(drawing: Drawing) -> None:
    """Nothing is cut off, nothing is too small to read, and no legend lies on a panel."""
    figure = drawing.figure
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a layout that does not fit is a warning
        figure.draw_without_rendering()
    wide, high = figure.get_size_inches()
    box = figure.get_tightbbox()
    assert (min(box.x0, box.y0), max(box.x1 - wide, box.y1 - high)) == pytest.approx((0, 0), abs=0.05), drawing.name
    texts: list[Any] = figure.findobj(
        lambda artist: hasattr(artist, "get_fontsize") and bool(getattr(artist, "get_text", str)())
    )
    assert min(text.get_fontsize() for text in texts) >= 9, drawing.name
    for legend in figure.legends:
        assert not any(legend.get_window_extent().overlaps(panel.get_window_extent()) for panel in figure.axes)
    assert drawing.caption.endswith(".")
    assert len({len(drawing.header), *map(len, drawing.rows)}) == 1


def panels(drawing: Drawing) -> list[str]:
    return [panel.get_title(loc="left") for panel in drawing.figure.axes]


@pytest.mark.slow
def test_all_figures_of_three_methods(runs: list[Run]) -> None:
    drawings = draw_all(runs)
    assert [drawing.name for drawing in drawings] == ALL
    for drawing in drawings:
        look_at(drawing)
    curves, at_work = drawings[0], drawings[1]
    assert [len(panel.get_lines()) for panel in curves.figure.axes] == [3, 3, 3]
    assert [text.get_text() for text in curves.figure.legends[0].get_texts()] == [run.name for run in runs]
    assert [title.split(":")[0] for title in panels(at_work)] == [run.name for run in runs]


@pytest.mark.slow
def test_rows_agree_with_the_records(runs: list[Run]) -> None:
    curves = score_curves(runs)
    for run in runs:
        told = {time: score.metrics["accuracy"] for time, score in run.scores}
        drawn = {row[3]: row[4] for row in curves.rows if row[0] == run.name and row[2] == "time (s)"}
        assert drawn == told
        moved = {row[3]: row[4] for row in curves.rows if row[0] == run.name and row[2] == "moved (MB)"}
        last = run.commits[-1][1].traffic
        total = sum(n for kind, n in last.items() if kind.endswith("bytes") and not kind.startswith("score"))
        assert max(moved) == pytest.approx(total / 2**20)
        assert moved[max(moved)] == run.score
    stale = staleness(runs)
    assert stale is not None
    assert {row[0] for row in stale.rows} == {"async_dvw"}
    for learner, steps in runs[1].staleness().items():
        assert sum(row[6] for row in stale.rows if row[2] == learner) == len(steps)
    given = weights(runs)
    assert given is not None
    assert {row[5] for row in given.rows if row[0] == "fedavg"} == {float(one.examples) for one in runs[0].participants}
    at_work = gantt(runs)
    assert at_work is not None
    handed = [one for time, one in runs[0].of(Handed) if time < at_work.figure.axes[0].get_xlim()[1]]
    assert sum(row[0] == "fedavg" and row[6] != "commit" for row in at_work.rows) == len(handed) > 0


@pytest.mark.slow
def test_one_run_alone(runs: list[Run]) -> None:
    drawings = draw_all(runs[1:2])
    told = runs[1].divergences  # only if two learners come back at once
    assert [drawing.name for drawing in drawings] == [name for name in ALL if told or name != "layer-divergence"]
    assert not any("one run is shown" in drawing.caption for drawing in drawings)
    look_at(drawings[1])


def many(runs: list[Run], count: int) -> list[Run]:
    return [
        replace(
            runs[i % len(runs)], settings={"training.rate": i / 100, "algorithm.tombstones": {"fast": i, "slow": 1}}
        )
        for i in range(count)
    ]


@pytest.mark.slow
def test_25_methods_with_long_names(runs: list[Run]) -> None:
    methods = many(runs, 25)
    curves, at_work, exchanged = score_curves(methods), gantt(methods), traffic(methods)
    assert at_work is not None
    assert exchanged is not None
    for drawing in (curves, exchanged):
        look_at(drawing)
    strokes = {(line.get_color(), line.get_linestyle()) for line in curves.figure.axes[0].get_lines()}
    assert len(strokes) == 25
    assert len(at_work.figure.axes) == 12
    assert "At most 12 methods have a panel." in at_work.caption
    assert {row[0] for row in at_work.rows} == {label(run) for run in methods[:12]}
    names = [text.get_text().replace("\n", " ") for text in exchanged.figure.axes[0].get_yticklabels()]
    assert names == [label(run) for run in methods]


def test_methods_are_told_apart_by_colour_then_dashes() -> None:
    looks = [tuple(stroke(place).values()) for place in range(len(COLOURS) * len(STROKES))]
    assert len(set(looks)) == len(looks)
    assert len({colour for colour, _ in looks[: len(COLOURS)]}) == len(COLOURS)


@pytest.mark.slow
def test_100_learners_are_sampled(crowd: Run) -> None:
    at_work, stale, held = gantt([crowd]), staleness([crowd]), class_heat_maps([crowd])
    assert at_work is not None
    assert stale is not None
    assert held is not None
    for drawing in (at_work, stale):
        look_at(drawing)
        assert "At most 12 of 100 learners are shown" in drawing.caption
        assert 1 < len({row[2] for row in drawing.rows if row[2]}) <= 12
    rows = [text.get_text() for text in at_work.figure.axes[0].get_yticklabels()]
    assert len(rows) == 12
    groups = {one.name: one.group for one in crowd.participants}
    assert {groups[name] for name in rows} == {"fast", "slow"}
    assert len(held.rows) == 200


@pytest.mark.slow
def test_one_learner() -> None:
    data = ap.data.digits().split(learners=1)
    alone = [
        ap.simulate(method(batch=256), data, ending=ap.Ending(rounds=2)) for method in (ap.async_dvw, ap.local_only)
    ]
    drawings = draw_all(alone)
    assert {"score-curves", "gantt", "traffic", "validation-cycles", "classes"} <= {
        drawing.name for drawing in drawings
    }
    assert "staleness" not in {drawing.name for drawing in drawings}
    for drawing in drawings[:2]:
        look_at(drawing)


@pytest.mark.slow
def test_a_task_without_classes_has_no_heat_map() -> None:
    x = np.random.default_rng(0).normal(size=(80, 2)).astype(np.float32)
    data = ap.data.from_arrays(x, x[:, :1] * 3).split(learners=3)
    run = ap.simulate(
        ap.fedavg(batch=8, rate=0.05),
        data,
        model=lambda: nn.Linear(2, 1),
        ending=ap.Ending(rounds=3),
        evaluation=ap.Evaluation(metric="loss"),
    )
    drawings = draw_all([run])
    assert [drawing.name for drawing in drawings] == ["score-curves", "gantt", "traffic", "bytes-by-layer", "weights"]
    assert drawings[0].figure.axes[0].get_ylabel() == "loss (lower is better)"
    for drawing in drawings:
        look_at(drawing)


@pytest.mark.slow
def test_long_names_of_learners_are_not_cut_off() -> None:
    sites = ("St. John's University Hospital of Reykjavik", "Ulm", "Centre hospitalier universitaire Grenoble")
    source = Source(
        torch.arange(90.0)[:, None] / 90,
        torch.arange(90) % 2,
        2,
        "care",
        sites=torch.arange(90) // 30,
        site_names=sites,
    )
    run = ap.simulate(ap.fedasync(batch=16), source.natural(), ending=ap.Ending(rounds=2))
    drawings = draw_all([run])
    for drawing in drawings:
        look_at(drawing)
    shown = {text.get_text() for text in drawings[1].figure.axes[0].get_yticklabels()}
    assert shown == {one.name for one in run.participants}


@pytest.mark.slow
def test_a_fleet_that_takes_no_time(runs: list[Run]) -> None:
    at_once = replace(runs[0], seconds=0.0, records=[replace(stamped, time=0.0) for stamped in runs[0].records])
    at_work, given = gantt([at_once]), weights([at_once])
    assert at_work is not None
    assert given is not None
    for drawing in (at_work, given):
        look_at(drawing)
    assert panels(at_work) == ["fedavg: 0% at work"]


# ------------------------------------------------------------------------------------------------------------ files


@pytest.mark.slow
def test_files_are_png_svg_and_a_table(runs: list[Run], tmp_path: Path) -> None:
    drawing = score_curves(runs)
    written = save(drawing, tmp_path / "new folder" / "figures")
    assert [path.name for path in written] == ["score-curves.png", "score-curves.svg", "score-curves.csv"]
    assert written[0].read_bytes().startswith(b"\x89PNG\r\n")
    assert b"<svg" in written[1].read_bytes()
    with open(written[2], encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == drawing.header
    assert [tuple(map(float, row[3:])) for row in rows] == [tuple(map(float, row[3:])) for row in drawing.rows]
    assert b"\r" not in written[2].read_bytes()


@pytest.mark.slow
def test_the_same_runs_are_the_same_bytes(runs: list[Run], tmp_path: Path) -> None:
    def saved(drawings: Iterable[Drawing], folder: str) -> list[bytes]:
        return [path.read_bytes() for drawing in drawings for path in save(drawing, tmp_path / folder)]

    def chosen() -> list[Drawing]:
        return [drawing for figure in (traffic, class_heat_maps) if (drawing := figure(runs[:1])) is not None]

    first = saved(chosen(), "first")
    assert len(first) == 6
    assert saved(chosen(), "second") == first


def test_without_matplotlib_one_error_says_what_to_install(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"A figure needs matplotlib: pip install '\.\[plots\]'"):
        draw_all(runs)


@pytest.mark.slow
def test_a_name_is_no_formula(runs: list[Run], tmp_path: Path) -> None:
    """Two dollar signs are matplotlib's sign for mathematics, and this would be a broken formula."""
    for drawing in draw_all([replace(run, name=f"{run.name} $5_{{ and $6^") for run in runs]):
        save(drawing, tmp_path)
    assert "fedavg $5_{ and $6^" in (tmp_path / "score-curves.svg").read_text()


@pytest.mark.slow
def test_wide_ranges_have_plain_numbers_along_their_axes(runs: list[Run], tmp_path: Path) -> None:
    """By default the labels of a logarithmic axis are formulas."""
    wide = Divergence(1, ("fc1", "head"), (0.0001, 1.0), "cosine", None)
    last = runs[-1].records[-1]
    run = replace(runs[-1], records=(*runs[-1].records, replace(last, record=wide)))
    for drawing in draw_all([*runs[:-1], run]):
        save(drawing, tmp_path)
    texts = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert not [name for name, text in texts.items() if "mathdefault" in text]
    assert "0.001" in texts["layer-divergence.svg"]
