"""The page: its text, its HTML as parsed, and its look in a browser."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import archipel as ap
from archipel.report.measures import marks, measure
from archipel.report.page import CURVES, Picture, laid_out, page
from archipel.report.write import write_report
from tests.made_runs import written

LIVE = {"Runs", "Now", "Score", "Learners", "Versions", "Traffic", "Norms", "Not applied", "Federation"}
"""Headings of the live page, which every report carries."""
HOSTILE = "<script>document.title='broken'</script>\"'&{title}$title{{title}}{%"
VOID = {"meta", "img", "br", "hr", "link", "input", "wbr"}


class Read(HTMLParser):
    """The elements of a page with their attributes and text; raises where tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in self.open:
            self.texts[tag][-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def told(runs: list[ap.Run], *pictures: Picture, title: str = "A title", notes: tuple[str, ...] = ()) -> Read:
    at = marks(runs)
    return Read(page(title, runs, at, measure(runs, at), pictures, notes))


def rising(name: str, top: float, seeds: int = 2, **others: Any) -> list[ap.Run]:
    """Runs whose scores settle at the top, a hundredth apart from seed to seed."""
    way = (0.2, 0.4, 0.6, 0.8, 1, 1, 1, 1, 1)
    return [
        written([0.0, *(top * part + seed / 100 for part in way)], name=name, seed=seed, **others)
        for seed in range(seeds)
    ]


# ------------------------------------------------------------------------------------------------------- as text


def test_it_is_put_together_as_a_page_should_be() -> None:
    picture = Picture("one", "A picture", "What it shows.", b"<svg/>", ("figures/one.png", "figures/one.svg"))
    curves = replace(picture, name=CURVES, title="Curves first")
    read = told([*rising("a", 0.5), *rising("b", 0.8)], picture, curves, notes=("A note.",))
    assert read.texts["h1"] == read.texts["title"] == ["A title"]
    assert [head for head in read.texts["h2"] if head not in LIVE] == [
        *("Notes", "Curves", "Every moment", "Measures", "Further figures", "What was run")
    ]
    assert len(read.all("table")) == len(read.texts["caption"]) == 4
    assert {one["scope"] for one in read.all("th")} == {"col", "row"}
    assert len(read.all("figure")) == len(read.all("figcaption")) == 2
    assert [one["alt"] for one in read.all("img")] == ["Curves first", "A picture"]
    order = [tag for tag, _ in read.elements if tag in ("img", "table")]
    assert order == ["img", *["table"] * 4, "img"], "the curves come first, the tables behind them"
    assert read.all("html")[0]["lang"] == "en"


def test_the_contents_lead_to_places_on_the_page() -> None:
    picture = Picture("one", "A picture", "What it shows.", b"<svg/>", ())
    read = told(rising("a", 0.5), picture, replace(picture, name=CURVES), notes=("A note.",))
    leads = [one["href"] for one in read.all("a") if one["href"].startswith("#")]
    assert leads == ["#notes", "#figure-score-curves", "#measures", "#figure-one", "#what-was-run"]
    assert {lead.removeprefix("#") for lead in leads} <= {one["id"] for _, one in read.elements if "id" in one}


def test_what_users_wrote_is_text_wherever_it_stands() -> None:
    runs = rising(HOSTILE, 0.5, settings={HOSTILE: HOSTILE}, reason=HOSTILE, execution=HOSTILE, algorithm=HOSTILE)
    picture = Picture(HOSTILE, HOSTILE, HOSTILE, b"<svg/>", (HOSTILE,))
    read = told(runs, picture, title=HOSTILE, notes=(HOSTILE,))
    harmless = told(rising("a", 0.5), Picture("a", "a", "a", b"<svg/>", ("a",)), title="a", notes=("a",))
    assert [tag for tag, _ in read.elements] == [tag for tag, _ in harmless.elements]
    assert read.texts["h1"] == [HOSTILE]
    assert HOSTILE in read.texts["code"][0]
    assert read.all("img")[0]["alt"] == HOSTILE
    names = {name for _, attributes in read.elements for name in attributes}
    assert names == {name for _, attributes in harmless.elements for name in attributes}


def test_an_algorithm_is_laid_out_by_its_parts() -> None:
    assert laid_out("Algorithm(name='a', merge=Mean())") == "Algorithm(\n    name='a',\n    merge=Mean(),\n)"
    for as_it_is in ("my own <thing>", "nothing"):
        assert laid_out(as_it_is) == as_it_is


def test_it_says_what_was_run_and_where_methods_are_compared() -> None:
    read = told([*rising("a", 0.5), *rising("b", 0.8)])
    assert read.texts["summary"][0] == "a: seeds 0, 1; 2 learners with 100 examples to train on"
    assert "Ended because it was written so. Executed by hand." in read.texts["details"][0]
    said = " ".join(read.texts["p"])
    assert "2 methods, 4 runs, scored by accuracy on the global test set." in said
    assert "compared at 90 s (where the shortest run ends), at 9 local rounds (where the run of fewest" in said
    assert "target accuracy 0.8 (the largest multiple of 0.05 that at least half of the methods reach)" in said


def test_all_that_tuning_chose_is_shown() -> None:
    runs = [run for rate in (1, 2) for run in rising("a", 0.5, 1, algorithm=f"a(rate={rate})", tuned={"rate": rate})]
    assert told(runs).texts["code"] == ["a(\n    rate=1,\n)", "a(\n    rate=2,\n)"]


def test_bold_is_who_is_ahead() -> None:
    read = told([*rising("a", 0.5), *rising("b", 0.8)])
    final, _, last, best, at_seconds, at_rounds = read.texts["td"][6:12]
    assert (final, last, best) == ("0.805 ± 0.007",) * 3
    bold = read.texts["strong"]
    assert bold.count("0.805") == len([final, last, best, at_seconds, at_rounds])
    assert "0.505" not in bold


def test_missing_numbers_are_told_and_counted() -> None:
    diverged = written([0.0, *[float("nan")] * 7], name="a", seed=7)
    read = told([*rising("a", 0.5), diverged, *rising("b", 0.8)])
    cells = read.texts["td"]
    assert cells[0] == "0.505 ± 0.007 (2 of 3)"
    assert "not reached" in cells
    assert "did they diverge?: a (1 of 3)." in read.texts["aside"][0]


def test_a_fair_comparison_has_no_cautions() -> None:
    assert "aside" not in told([*rising("a", 0.5), *rising("b", 0.8)]).texts


@pytest.mark.parametrize(
    ("others", "caution"),
    [
        (
            rising("b", 0.8, scored_at="learners", scored_mean="learners"),
            "scored differently, so their scores do not compare: a by accuracy on the global test set; "
            "b by accuracy averaged over the learners' own test parts.",
        ),
        (
            [written([0.0, 0.5, 0.6], name="b", every=45)],
            "have a single score in the last fifth of their budget, and single scores vary: b (1 of 1).",
        ),
        (
            rising("b", 0.8, budget="seconds"),
            "Final scores are taken over different budgets, so they do not compare: a over the last fifth of a run's "
            "local rounds; b over the last fifth of a run's seconds.",
        ),
        (
            rising("a", 0.5, 1),
            "share their seed with another run of their method, and copies of one run make a deviation ",
        ),
    ],
)
def test_what_does_not_compare_is_said(others: list[ap.Run], caution: str) -> None:
    assert caution in told([*rising("a", 0.5), *others]).texts["aside"][0]


def test_runs_that_end_before_the_place_of_comparison_are_named() -> None:
    runs = [*rising("a", 0.5), *rising("b", 0.8, every=20)]
    at = marks(runs, seconds=100, rounds=10)
    (caution,) = Read(page("A title", runs, at, measure(runs, at), ())).texts["aside"]
    assert "ended before 100 s and stand there with their last score: a (2 of 2)." in caution
    assert "ended before 10 local rounds and stand there with their last score: a (2 of 2), b (2 of 2)." in caution


# -------------------------------------------------------------------------------------------------- a whole report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of simulations, with all its figures."""
    data = ap.data.digits().split(learners=6, sizes=(120,) * 6, classes=3)
    fedavg, dvw = ap.fedavg(epochs=2, batch=16, rate=0.1), ap.async_dvw(batch=16, rate=0.1, at_most=2)
    runs = [
        ap.simulate(method, data, fleet=ap.Fleet(fast=3, slow=3), ending=ap.Ending(rounds=rounds), seed=seed)
        for method, rounds, seed in ((fedavg, 4, 0), (fedavg, 4, 1), (dvw, 4, 0), (replace(fedavg, name=HOSTILE), 1, 0))
    ]
    return write_report(runs, tmp_path_factory.mktemp("reports") / "report", title=HOSTILE)


@pytest.mark.slow
def test_all_links_lead_to_files_and_nothing_is_loaded_from_elsewhere(report: Path) -> None:
    read = Read(report.read_text(encoding="utf-8"))
    links = [one["href"] for one in read.all("a") if not one["href"].startswith("#")]
    assert "table.csv" in links
    assert len(links) == 1 + 3 * len(read.all("figure")) > 3
    assert all((report.parent / link).is_file() for link in links)
    for _, attributes in read.elements:
        loaded = [attributes[name] for name in ("src", "srcset", "data", "action", "poster") if name in attributes]
        assert all(address.startswith("data:image/svg+xml;base64,") for address in loaded)
    assert not read.all("link")
    assert not any(word in text for text in read.texts["style"] for word in ("@import", "url("))


class Browser:
    """Chromium, spoken to in the words of its DevTools over a pair of pipes."""

    def __init__(self, profile: Path) -> None:
        theirs, self.to = os.pipe()
        self.back, answers = os.pipe()
        # the protocol wants exactly the descriptors 3 and 4
        command = f'exec "$@" 3<&{theirs} 4>&{answers}'
        chromium = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
        self.process = subprocess.Popen(
            ["bash", "-c", command, "bash", *chromium, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(theirs, answers),
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(answers)
        self.heard = b""
        self.asked = 0
        self.events: list[dict[str, Any]] = []
        self.session: dict[str, str] = {}
        (target,) = (one for one in self.ask("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.asked += 1
        message = {"id": self.asked, "method": method, "params": parameters, **self.session}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self.hear()).get("id") != self.asked:
            self.events.append(answer)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def hear(self) -> dict[str, Any]:
        while b"\0" not in self.heard:
            assert select.select([self.back], [], [], 120)[0], "Chromium says nothing"
            more = os.read(self.back, 2**16)
            assert more, "Chromium has ended"
            self.heard += more
        first, _, self.heard = self.heard.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def open(self, path: Path) -> None:
        self.ask("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self.hear())

    def evaluate(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Strike a key where the focus is."""
        code = {"Enter": 13, "Tab": 9}[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": "\r"} if key == "Enter" else {}))
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def show(self, width: int, scheme: str = "light", media: str = "screen") -> None:
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        preference = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", media=media, features=[preference])

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=120)
        os.close(self.to)
        os.close(self.back)


@pytest.fixture(scope="module")
def browser(report: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if shutil.which("chromium") is None:
        pytest.skip("there is no chromium to open the page with")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    try:
        opened.open(report)
        yield opened
    finally:
        opened.close()


@pytest.mark.slow
def test_a_browser_shows_every_picture(browser: Browser) -> None:
    widths = browser.evaluate("[...document.images].map(image => image.complete ? image.naturalWidth : 0)")
    assert len(widths) > 3
    assert min(widths) > 300


@pytest.mark.slow
def test_a_browser_complains_of_nothing_and_asks_nothing_of_any_network(browser: Browser, report: Path) -> None:
    # each message of the console would be one of these events: see that the first of them is noticed
    browser.evaluate("console.error('a first one')")
    complaints = [
        event["params"]
        for event in browser.events
        if event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
    ]
    assert [complaint["args"][0]["value"] for complaint in complaints if "args" in complaint] == ["a first one"]
    assert len(complaints) == 1
    requests = [
        event["params"]["request"]["url"] for event in browser.events if event["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in requests if not url.startswith("data:")] == [report.as_uri()]


@pytest.mark.slow
def test_a_browser_runs_nothing_that_a_user_wrote(browser: Browser) -> None:
    assert browser.evaluate("document.title") == HOSTILE


COLUMN = "[...document.querySelectorAll('#measures table')[0].tBodies[0].rows].map(row => row.cells[1].dataset.value)"
HEAD = "document.querySelectorAll('#measures table')[0].tHead.rows[0].cells[1]"


@pytest.mark.slow
def test_a_click_on_a_head_sorts_by_it_and_another_the_other_way(browser: Browser) -> None:
    before = list(map(float, browser.evaluate(COLUMN)))
    assert len(before) == 3
    browser.evaluate(f"{HEAD}.firstElementChild.click()")
    assert list(map(float, browser.evaluate(COLUMN))) == sorted(before)
    assert browser.evaluate(f"{HEAD}.ariaSort") == "ascending"
    browser.evaluate(f"{HEAD}.firstElementChild.click()")
    assert list(map(float, browser.evaluate(COLUMN))) == sorted(before, reverse=True)
    assert browser.evaluate(f"{HEAD}.ariaSort") == "descending"
    assert sorted(before) != sorted(before, reverse=True)


@pytest.mark.slow
def test_the_keyboard_sorts_too(browser: Browser) -> None:
    browser.evaluate("document.querySelectorAll('#measures table')[0].tHead.rows[0].cells[0].firstElementChild.focus()")
    browser.press("Tab")
    assert browser.evaluate(f"document.activeElement.parentElement === {HEAD}")
    before = browser.evaluate(f"{HEAD}.ariaSort")
    browser.press("Enter")
    assert browser.evaluate(f"{HEAD}.ariaSort") in {"ascending", "descending"} - {before}


@pytest.mark.slow
def test_what_is_missing_stays_below(browser: Browser) -> None:
    table = "document.querySelectorAll('#measures table')[1]"
    column = f"[...{table}.tBodies[0].rows].map(row => row.cells[2].textContent)"
    for _ in range(2):
        browser.evaluate(f"{table}.tHead.rows[0].cells[2].firstElementChild.click()")
        cells = browser.evaluate(column)
        assert "not reached" not in cells[0]
        assert cells[-1] == "not reached"


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_no_wider_than_its_window(browser: Browser, width: int) -> None:
    browser.show(width)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_dark_and_light_are_as_the_reader_prefers_and_pictures_are_on_white(browser: Browser) -> None:
    shades = {}
    for scheme in ("light", "dark"):
        browser.show(1280, scheme)
        shades[scheme] = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        card = browser.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor")
        assert card == "rgb(255, 255, 255)"
    assert shades == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 25, 29)"}


@pytest.mark.slow
def test_paper_is_white_and_has_nothing_to_click_on(browser: Browser) -> None:
    browser.show(794, "dark", "print")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.evaluate("document.documentElement.scrollWidth") <= 794
