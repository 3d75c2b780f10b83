"""Runs that write for the live page: the same bits, every record, and a page that grows."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import archipel as ap
from archipel.cli.program import app
from archipel.live.page_process import PageProcess, PageSettings
from archipel.live.run_folder import LIVE
from archipel.runs.record_lines import record_line
from archipel.study import execute as executing
from archipel.study import read_study
from archipel.study.execute import RunJob, RunNotice, RunProgress, execute
from archipel.study.grid import cells
from archipel.study.live_file import LiveFile
from tests.live.conftest import serving
from tests.live.scenes import film_run
from tests.waiting import until

pytestmark = pytest.mark.slow

SHORT = ["ending={rounds=3}", "evaluation={at='learners', mean='learners'}"]


def job(folder: Path, live: bool) -> RunJob:
    (cell,) = cells(read_study(algorithms=["fedavg"], changes=SHORT))
    return RunJob(cell.study.raw, str(folder), {}, {}, None, live=live)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> ap.Run:
    """Return the run without a page."""
    folder = tmp_path_factory.mktemp("alone")
    assert execute(job(folder, live=False), lambda news: True)
    return ap.load_run(folder)


def records_in(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if "record" in json.loads(line)]


def test_a_run_has_the_same_bits_with_the_page_also_when_it_is_stopped_at_every_look(
    alone: ap.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executing, "LOOK", 1e-4)
    whole, seen = [record_line(stamped) for stamped in alone.records], 0
    while not execute(job(tmp_path, live=True), lambda news: not isinstance(news, RunProgress)):
        written = records_in(tmp_path / LIVE)
        assert written == whole[: len(written)]
        assert len(written) >= seen
        seen = len(written)
    assert 0 < seen < len(whole)
    watched = ap.load_run(tmp_path)
    assert (watched.fingerprint(), repr(watched.records)) == (alone.fingerprint(), repr(alone.records))
    assert not (tmp_path / LIVE).exists()


def test_a_file_that_cannot_be_written_costs_no_training(
    alone: ap.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(LiveFile, "record", full)
    notes: list[object] = []

    def tell(news: object) -> bool:
        notes.append(news)
        return True

    assert execute(job(tmp_path, live=True), tell)
    told = [news.text for news in notes if isinstance(news, RunNotice)]
    assert told == ["the live page has stopped receiving this run: No space left on device"]
    assert ap.load_run(tmp_path).fingerprint() == alone.fingerprint()


def test_the_command_runs_with_a_page(alone: ap.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archipel.study.results.Results.report", lambda results: results.folder)  # figures take seconds
    changes = [part for change in SHORT for part in ("-s", change)]
    arguments = ["run", "-a", "fedavg", *changes, "-o", str(tmp_path / "r"), "--live", "--listen", "localhost:0"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert "Live: http://localhost:" in result.stderr
    assert ap.load_run(tmp_path / "r" / "fedavg" / "seed-0").fingerprint() == alone.fingerprint()


def test_the_pages_process_ends_with_its_parent(tmp_path: Path) -> None:
    page = PageProcess(PageSettings(str(tmp_path), "localhost:0"))
    with urllib.request.urlopen(page.url) as answer:
        assert b"uPlot" in answer.read()
    with pytest.raises(OSError, match="another program is listening there"):
        _ = PageProcess(PageSettings(str(tmp_path), page.url.removeprefix("http://").strip("/"))).url
    page.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(page.url)


def append(path: Path, lines: Sequence[object]) -> None:
    with path.open("a") as film:
        film.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def test_lines_of_many_runs_share_their_points_and_keep_their_last_scores(chromium: Any, tmp_path: Path) -> None:
    places = [f"r{number:02}" for number in range(15)]
    (tmp_path / "runs.json").write_text(json.dumps(places))
    for number, place in enumerate(places):
        (tmp_path / place).mkdir()
        about = {"name": place, "seed": 0, "metric": "accuracy", "participants": []}
        scores = [
            {"time": version + number / 100, "record": "Scores", "version": version, "rounds": version}
            | {"metrics": {"accuracy": (version % 97 + number) / 1000}}
            for version in range(1, 500)
        ]
        append(tmp_path / place / LIVE, [{"about": about}, *scores])
    with serving(tmp_path) as server:
        page = chromium.new_page()
        page.goto(server.url)
        until(lambda: page.evaluate("page.curves.plot?.data.length") == 16, "all lines")
        until(lambda: page.evaluate("Math.min(...page.state.feed.runs.map(run => run.curve[0].length))") == 499, "runs")
        points = "page.curves.draw() ?? page.curves.plot.data.map(line => [line.length, line.findLast(y => y != null)])"
        (places_of_all, _), *lines = page.evaluate(points)
        assert 499 <= places_of_all <= 601, "one for each column at most"
        assert [last for _, last in lines] == [(499 % 97 + number) / 1000 for number in range(15)]
        page.evaluate("page.curves.show([100, 110])")
        (zoomed, _), *_ = page.evaluate(points)
        assert 100 <= zoomed <= 12 * 15, "what is in view, in detail, and a neighbour on either side"
        page.close()


def test_the_page_grows_with_the_run(chromium: Any, tmp_path: Path) -> None:
    records = [record_line(stamped) for stamped in film_run().records]
    about = {"name": "fedavg", "seed": 0, "metric": "accuracy", "participants": []}
    append(tmp_path / LIVE, [{"about": about}, *records[:9]])
    with serving(tmp_path) as server:
        page = chromium.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.goto(server.url)
        scores = "page.state.feed.runs[0]?.curve[4] ?? []"
        until(lambda: page.evaluate("page.state.timeline.commit.time.length") == 1, "the first version")
        assert page.evaluate(scores) == []
        append(tmp_path / LIVE, records[9:13])
        until(lambda: page.evaluate(scores) == [0.5], "the first score")
        progress = {"time": 3.0, "share": 0.5, "layers": {"train up": {"fc": 2**20}}}
        append(tmp_path / LIVE, [*records[13:], {"progress": progress}])
        until(lambda: page.evaluate(scores) == [0.5, 0.75], "the second score")
        until(lambda: "0.7500" in (page.locator(".plot").get_attribute("aria-label") or ""), "the drawn score")
        until(lambda: "fc" in page.locator("#traffic").inner_text(), "traffic by layer")
        assert complaints == []
        page.close()
