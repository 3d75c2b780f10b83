"""`archipel report`: what it finds, writes, prints and refuses."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from matplotlib.figure import Figure
from rich.console import Console
from typer.testing import CliRunner, Result

import archipel as ap
from archipel.cli.report import report, table
from archipel.core.records import Scores
from archipel.drawing.csv_tables import write_csv
from archipel.drawing.drawing import Drawing
from archipel.report import write
from archipel.report.measures import COLUMNS, marks, measure
from archipel.report.write import write_report
from tests.forked import composed
from tests.made_runs import written

app = typer.Typer()
app.command()(report)


def command(*arguments: Any) -> Result:
    """The command, its errors raised as they are: `archipel.cli.main` puts them into words."""
    return CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)


@pytest.fixture(autouse=True)
def one_small_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no figure: those of simulations are drawn in test_page.py, and files in test_figures_look.py."""

    def draw_all(runs: Sequence[ap.Run]) -> list[Drawing]:
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot([run.seed for run in runs])
        return [Drawing("small", "A small one", "Seeds.", figure, ("seed",), tuple((run.seed,) for run in runs))]

    monkeypatch.setattr(write, "draw_all", draw_all)
    monkeypatch.setattr(Figure, "savefig", composed)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two methods, two seeds each, saved at different depths."""
    for seed in (0, 1):
        written([0.0, 0.5, 0.6 + seed / 10], seed=seed).save(tmp_path / "runs" / "fedavg" / str(seed))
        written([0.0, 0.8, 0.9], name="radfed", seed=seed).save(tmp_path / "runs" / f"radfed-{seed}")
    return tmp_path / "runs"


# ----------------------------------------------------------------------------------------------------- what it writes


def test_it_writes_the_page_the_figures_and_the_table(saved: Path) -> None:
    told = command(saved)
    assert told.exit_code == 0
    assert told.stdout.splitlines()[-1] == f"Report: {saved / 'report' / 'index.html'}"
    assert sorted(path.relative_to(saved / "report").as_posix() for path in (saved / "report").rglob("*.*")) == [
        "figures/small.csv",
        "figures/small.png",
        "figures/small.svg",
        "index.html",
        "table.csv",
    ]
    assert sorted(path.name for path in saved.iterdir()) == ["fedavg", "radfed-0", "radfed-1", "report"]


def test_the_table_is_csv_with_all_measures(saved: Path) -> None:
    command(saved, "--target", 0.6)
    with open(saved / "report" / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["method"], row["runs"], row["target"]) for row in rows] == [
        ("fedavg", "2", "0.6"),
        ("radfed", "2", "0.6"),
    ]
    assert float(rows[0]["best"]) == pytest.approx(0.65)
    assert (rows[1]["target_seconds (s)"], rows[1]["target_seconds deviation"]) == ("10.0", "0.0")
    assert rows[0]["final over"] == "the last fifth of a run's local rounds"
    assert float(rows[0]["final"]) == float(rows[0]["last"]) == pytest.approx(0.65)
    assert len(rows[0]) == 5 + 3 * len(COLUMNS)


def test_no_cell_of_a_csv_file_is_a_formula(tmp_path: Path) -> None:
    dangerous = ["=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]
    harmless: list[object] = ["fedavg", "a=b", "-0.5", "+1e-3", "", -0.5, None, "'quoted"]
    write_csv(tmp_path / "table.csv", ["=head"], [dangerous, harmless])
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        header, first, second = csv.reader(file)
    assert header == ["'=head"]
    assert first == [f"'{cell}".replace("\r", " ") for cell in dangerous]
    assert second == ["" if cell is None else str(cell) for cell in harmless]


def test_a_methods_name_is_no_formula_in_the_table(saved: Path) -> None:
    run = replace(ap.load_run(saved / "radfed-0"), name="=1+1")
    write_report([run], saved / "report")
    with open(saved / "report" / "table.csv", newline="") as file:
        assert next(csv.DictReader(file))["method"] == "'=1+1"


def test_where_it_goes_what_it_is_called_and_where_methods_meet_can_be_asked_for(saved: Path, tmp_path: Path) -> None:
    there = tmp_path / "some" / "place"
    command(saved, "--out", there, "--title", "Mine", "--target", 0.55, "--seconds", 15, "--rounds", 1)
    text = (there / "index.html").read_text()
    assert "<h1>Mine</h1>" in text
    assert (
        "compared at 15 s (as asked), at 1 local rounds (as asked) and at the target accuracy 0.55 (as asked)" in text
    )
    assert not (saved / "report").exists()


@pytest.mark.slow
def test_the_same_runs_are_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        command(saved, "--out", tmp_path / name)
    for path in (tmp_path / "a").rglob("*.*"):
        assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


# ------------------------------------------------------------------------------------------------------ what it prints


def test_it_prints_a_table(saved: Path) -> None:
    *lines, _, _ = command(saved, "--target", 0.65).stdout.splitlines()
    assert lines[0].strip() == "accuracy on the global test set"
    assert [line.split() for line in lines[1:5]] == [
        ["final", "last", "reached", "s", "to", "MB", "to", "MB"],
        ["method", "score", "score", "0.65", "0.65", "0.65", "in", "all"],
        ["fedavg", "0.650", "±", "0.071", "0.650", "1", "of", "2", "20", "7.0", "7"],
        ["radfed", "0.900", "±", "0.000", "0.900", "2", "of", "2", "10", "3.5", "7"],
    ]


def test_json_is_the_only_thing_it_prints_if_asked(saved: Path) -> None:
    told = json.loads(command(saved, "--target", 0.65, "--json").stdout)
    assert told["page"] == str(saved / "report" / "index.html")
    assert (told["seconds"], told["rounds"], told["targets"]) == (20, 2, {"accuracy": 0.65})
    first, second = told["methods"]
    assert (first["method"], first["seeds"], first["scoring"]) == ("fedavg", [0, 1], "accuracy on the global test set")
    assert first["target_seconds"] == {"mean": 20, "deviation": None, "n": 1}
    assert second["target_megabytes"] == {"mean": 3.5, "deviation": 0, "n": 2}


def printed(runs: Sequence[ap.Run], width: int) -> str:
    text = io.StringIO()
    console = Console(width=width, file=text)
    console.print(table(measure(runs, marks(runs))))
    return text.getvalue()


@pytest.mark.parametrize("width", [80, 60])
def test_long_names_give_way_and_numbers_are_whole(width: int) -> None:
    long = "a_method_with_a_name_that_goes_on_and_on_" * 3
    runs = [written([0.0, 0.5, 0.7], name=long, seed=seed, every=123456.7, rounds=10) for seed in (0, 1)]
    runs += [written([0.0, 0.5, 0.8 + seed / 7], name="b", seed=seed, every=654321.9) for seed in (0, 1)]
    text = printed(runs, width)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for number in ("0.871 ± 0.101", "0.871", "0 of 2", "1 of 2", "1,308,643.8", "7"):
        assert number in text
    assert long in "".join(line.split(" ")[0] for line in text.splitlines())


def test_the_test_score_at_the_best_validation_stands_there_if_there_is_one() -> None:
    run = written([0.0, 0.7, 0.6])
    assert "valid." not in printed([run], 80)
    judged = [
        replace(one, record=replace(one.record, validation={"accuracy": 1 / (1 + abs(one.record.version - 1))}))
        if isinstance(one.record, Scores)
        else one
        for one in run.records
    ]
    lines = [line.split() for line in printed([replace(run, records=judged)], 80).splitlines()[1:4]]
    assert [line[:6] for line in lines] == [
        ["final", "last", "at", "best", "reached", "s"],
        ["method", "score", "score", "valid.", "0.7", "0.7"],
        ["fedavg", "0.600", "0.600", "0.700", "1", "of"],
    ]


def test_a_terminal_does_not_take_names_for_markup() -> None:
    runs = [written([0.0, 0.5], name="[red]fedavg[/red]")]
    assert "[red]fedavg[/red]" in printed(runs, 80)


def test_methods_not_scored_alike_are_announced(saved: Path) -> None:
    written([0.0, 0.9], name="hdafl", scored_at="learners", scored_mean="learners").save(saved / "hdafl")
    assert command(saved).stdout.splitlines()[0].strip() == "scored differently: the page says how"


# ------------------------------------------------------------------------------------------------ what it finds


def test_folders_inside_each_other_do_not_count_a_run_twice(saved: Path) -> None:
    told = json.loads(command(saved, saved / "fedavg", saved / "fedavg" / "0", "--json").stdout)
    assert [method["runs"] for method in told["methods"]] == [2, 2]


def test_a_copy_of_a_run_is_counted_once(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    told = json.loads(command(saved, tmp_path / "copy", "--json").stdout)
    assert [method["runs"] for method in told["methods"]] == [2, 2]
    assert "4 of the runs found are copies of others and were left out." in Path(told["page"]).read_text()


def test_a_method_that_two_studies_score_differently_is_shown_twice(saved: Path, tmp_path: Path) -> None:
    for seed in (0, 1):
        written([2.0, 0.5], seed=seed, metric="loss").save(tmp_path / "other" / str(seed))
    told = json.loads(command(saved, tmp_path / "other", "--json").stdout)
    assert [(method["method"], method["metric"], method["runs"]) for method in told["methods"]] == [
        ("fedavg (loss on the global test set)", "loss", 2),
        ("fedavg (accuracy on the global test set)", "accuracy", 2),
        ("radfed", "accuracy", 2),
    ]
    assert "The methods were scored differently" in Path(told["page"]).read_text()


def test_a_method_with_final_scores_over_two_budgets_is_shown_twice(saved: Path, tmp_path: Path) -> None:
    written([0.0, 0.5], seed=2, budget="seconds").save(tmp_path / "other")
    told = json.loads(command(saved, tmp_path / "other", "--json").stdout)
    assert [method["method"] for method in told["methods"][:2]] == [
        "fedavg (over the last fifth of a run's seconds)",
        "fedavg (over the last fifth of a run's local rounds)",
    ]


@pytest.mark.slow
def test_a_study_tells_which_of_its_runs_count_what_it_is_called_and_where_methods_meet(saved: Path) -> None:
    written([0.0, 0.99], name="tried").save(saved / "tuning" / "tried")
    (saved / "runs.json").write_text(json.dumps(["fedavg/0", "fedavg/1", "radfed-0", "radfed-2"]))
    (saved / "study.toml").write_text('title = "My study"\n[report]\ntarget = 0.55\n')
    (saved / "tuning.json").write_text(json.dumps([{"sentence": "The rate was chosen by hand."}]))
    for folders in ([saved], [saved.parent], [saved, saved / "tuning"]):
        told = json.loads(command(*folders, "--out", saved.parent / "out", "--json").stdout)
        assert [(method["method"], method["runs"]) for method in told["methods"]] == [("fedavg", 2), ("radfed", 1)]
        assert told["targets"] == {"accuracy": 0.55}
        text = (saved.parent / "out" / "index.html").read_text()
        assert "<h1>My study</h1>" in text
        assert "<p>The rate was chosen by hand.</p>" in text


def test_a_run_cut_off_is_no_finished_run(saved: Path) -> None:
    (saved / "radfed-1" / "run.json").unlink()
    told = json.loads(command(saved, "--json").stdout)
    assert [method["runs"] for method in told["methods"]] == [2, 1]


def test_no_runs_are_an_error_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"No finished run in .*: there is no run\.json\. Run a study"):
        command(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere: there is no such folder\. Give one"):
        command(tmp_path / "nowhere")


def test_a_damaged_run_is_named(saved: Path) -> None:
    (saved / "radfed-1" / "records.jsonl").write_text("{")
    with pytest.raises(ValueError, match=r"radfed-1 is damaged or incomplete: .* Run it again\."):
        command(saved)
    assert not (saved / "report").exists()


# ------------------------------------------------------------------------------------------------ what it replaces


def test_a_report_is_replaced_as_a_whole(saved: Path) -> None:
    command(saved, "--title", "The first")
    (saved / "report" / "figures" / "old.png").touch()
    command(saved, "--title", "The second")
    assert "<h1>The second</h1>" in (saved / "report" / "index.html").read_text()
    assert not (saved / "report" / "figures" / "old.png").exists()


def test_a_report_that_fails_leaves_the_old_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(saved, "--title", "The first")

    def fail(*_: Any) -> str:
        raise RuntimeError("no ink")

    monkeypatch.setattr(write, "page", fail)
    with pytest.raises(RuntimeError, match="no ink"):
        command(saved, "--title", "The second")
    assert "<h1>The first</h1>" in (saved / "report" / "index.html").read_text()
    assert not list(saved.glob(".*")), "nothing half done is left lying about"


def test_a_swap_that_fails_puts_the_old_one_back(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(saved, "--title", "The first")
    rename = os.rename

    def fail_for_the_new(source: Path, target: Path) -> None:
        if source.name.endswith(".unfinished"):
            raise OSError("the disk is tired")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_for_the_new)
    with pytest.raises(OSError, match="tired"):
        command(saved, "--title", "The second")
    assert "<h1>The first</h1>" in (saved / "report" / "index.html").read_text()


def test_nothing_but_a_report_is_replaced(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"exists and is not a report; it would be overwritten\. Give a folder of"):
        command(saved, "--out", saved)
    mine = tmp_path / "paper"
    (mine / "figures").mkdir(parents=True)
    with pytest.raises(ValueError, match="is not a report"):
        command(saved, "--out", mine)
    (mine / "index.html").write_text("<h1>My own page</h1>")
    with pytest.raises(ValueError, match="is not a report"):
        command(saved, "--out", mine)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not a report"):
        command(saved, "--out", tmp_path / "file")
    (tmp_path / "cycle").symlink_to("cycle")
    with pytest.raises(ValueError, match="is not a report"):
        command(saved, "--out", tmp_path / "cycle")
    assert (saved / "fedavg" / "0" / "run.json").exists()
    assert (mine / "index.html").read_text() == "<h1>My own page</h1>"


def test_an_empty_folder_may_be_filled(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    page = write_report([written([0.0, 0.5])], tmp_path / "new", notes=["A note."])
    assert page == tmp_path / "new" / "index.html"
    assert "<p>A note.</p>" in page.read_text()
