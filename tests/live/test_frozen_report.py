"""A report carries the live page: it replays, zooms and hides methods in one file, and is read without scripts too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archipel.report import frozen_page
from archipel.report.measures import marks, measure
from archipel.report.page import page as report_page
from tests.live.scenes import HOSTILE, film_run
from tests.made_runs import written
from tests.waiting import until

pytestmark = pytest.mark.slow


def write(folder: Path) -> Path:
    runs = [film_run("<b>fedavg</b>"), written([0.1, 0.2, 0.3], name="fedasync", scored_at="learners")]
    at = marks(runs, target=None, seconds=None, rounds=None)
    path = folder / "index.html"
    path.write_text(report_page(HOSTILE, runs, at, measure(runs, at), ()), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def page(chromium: Any, report: Path) -> Iterator[Any]:
    opened = chromium.new_page()
    opened.complaints, opened.requested = [], []
    opened.on("console", lambda message: opened.complaints.append(message.text))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("request", lambda request: opened.requested.append(request.url))
    opened.goto(report.as_uri())
    until(lambda: opened.locator("#now dd").count() > 0, "the tiles")
    yield opened
    opened.close()


def test_the_slider_replays(page: Any) -> None:
    assert page.locator("#now dd").first.inner_text() == "2"
    page.evaluate("page.goTo(3.5)")
    until(lambda: page.locator("#now dd").first.inner_text() == "1", "version 1")
    page.evaluate("page.goTo(null)")
    until(lambda: page.locator("#now dd").first.inner_text() == "2", "version 2")


def test_curves_can_be_zoomed_and_methods_hidden(page: Any) -> None:
    before = page.evaluate("page.curves.plot.scales.x.max")
    page.get_by_label("Zoom in").click()
    until(lambda: page.evaluate("page.curves.plot.scales.x.max") < before, "the zoom")
    page.get_by_label("Show everything").click()
    until(lambda: page.evaluate("page.curves.plot.scales.x.max") == before, "everything")
    page.locator(".legend button", has_text="fedasync").click()
    until(lambda: page.evaluate("page.curves.plot.series.some(one => one.show === false)"), "a hidden method")


def test_tables_are_sorted_by_a_click(page: Any) -> None:
    head = page.locator("#measures table").first.locator("thead th").nth(1)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"


def test_names_are_text_nothing_is_asked_for_and_nothing_complained_of(page: Any, report: Path) -> None:
    assert page.locator("h1").inner_text() == HOSTILE
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('b').length") == 0
    assert page.complaints == []
    assert [url for url in page.requested if not url.startswith("data:")] == [report.as_uri()]


def test_it_is_read_without_scripts(chromium: Any, report: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert not page.locator("#live").is_visible()
    assert page.locator("#measures table").first.is_visible()
    context.close()


def test_runs_with_too_many_events_keep_their_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_page, "EVENTS", 6)
    text = write(tmp_path).read_text()
    assert '"left_out":true' in text
    assert '"curve":[[3.0,1,3.0,1,0.5],[5.0,2,6.0,2,0.75]],"events":[]' in text
