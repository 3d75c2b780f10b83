"""The page in a browser: what it shows of a run whose every moment is known, and what it must never do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from archipel.live.http_server import LiveServer
from tests.live.scenes import HOSTILE
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page(chromium: Any, server: LiveServer) -> Iterator[Any]:
    opened = chromium.new_page(viewport={"width": 1280, "height": 900})
    opened.complaints, opened.requested = [], []
    opened.on("console", lambda message: opened.complaints.append(message.text))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("request", lambda request: opened.requested.append(request.url))
    opened.goto(server.url)
    until(lambda: opened.evaluate("page.state.timeline.commit.time.length") == 2, "both versions")
    until(lambda: opened.locator("#runs tbody tr").count() == 3, "the table of runs")
    yield opened
    opened.close()


def tiles(page: Any) -> dict[str, str]:
    """Return the numbers of the tiles by their names, without the small print."""
    script = """[...document.querySelectorAll('.tiles div')].map(
        one => [one.children[0].textContent, one.children[1].firstChild.textContent])"""
    return dict(page.evaluate(script))


def go_to(page: Any, moment: float) -> None:
    """Move the slider, and wait until the page shows that moment."""
    # in one script: a drawing between two would count as one of that moment
    script = f"""() => {{ const slider = document.querySelector('#clock input');
        slider.value = 1000 * {moment} / page.state.end; slider.dispatchEvent(new Event('input'));
        return Number(document.documentElement.dataset.drawn); }}"""
    before = page.evaluate(script)
    until(lambda: page.evaluate("Number(document.documentElement.dataset.drawn)") > before, "a drawing")


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        (
            1.5,
            {
                "version": "0",
                "accuracy": "–",
                "at work": "2",
                "idle": "1",
                "silent": "0",
                "tasks out": "2",
                "queue": "1",
            },
        ),
        (3.5, {"version": "1", "accuracy": "0.5000", "at work": "2", "idle": "0", "refused": "1", "moved": "3 MB"}),
        (
            6.0,
            {
                "version": "2",
                "accuracy": "0.7500",
                "at work": "0",
                "idle": "2",
                "silent": "1",
                "refused": "0",
                "moved": "6 MB",
            },
        ),
    ],
)
def test_the_slider_shows_the_state_as_it_was(page: Any, moment: float, expected: dict[str, str]) -> None:
    go_to(page, moment)
    assert tiles(page) | expected == tiles(page)


def test_the_slider_moves_the_versions_and_the_curve(page: Any) -> None:
    go_to(page, 3.5)
    assert page.locator("#versions tbody tr").count() == 1
    assert "accuracy" in page.locator("#curves-head").inner_text().lower()
    assert "fedavg</b> 0.5000" in page.locator(".plot").get_attribute("aria-label")
    page.keyboard.press("End")
    go_to(page, 6)
    assert page.locator("#versions tbody tr").count() == 2
    assert "fedavg</b> 0.7500" in page.locator(".plot").get_attribute("aria-label")


def test_keys_step_from_version_to_version(page: Any) -> None:
    go_to(page, 6)
    page.locator("h1").click()
    page.keyboard.press("ArrowLeft")
    until(lambda: tiles(page)["version"] == "1", "version 1")
    page.keyboard.press("ArrowRight")
    until(lambda: tiles(page)["version"] == "2", "version 2")


def test_norms_of_a_finished_run_are_there_at_every_moment(page: Any) -> None:
    go_to(page, 1)
    assert page.locator("#norms tbody tr").count() == 0
    go_to(page, 3)
    rows = [row.split("\t") for row in page.locator("#norms tbody tr").all_inner_texts()]
    assert rows == [[HOSTILE, "2.5", "1.25 ×", "1"], ["a", "2", "1 ×", "0"]]
    go_to(page, 6)
    rows = [row.split("\t") for row in page.locator("#norms tbody tr").all_inner_texts()]
    assert rows == [["a", "9", "18 ×", "1"], [HOSTILE, "0.5", "1 ×", "1"]]
    assert "0 outliers" in page.locator("#norms").inner_text(), "among two nobody is in the minority"


def test_epsilon_is_a_tile(page: Any) -> None:
    go_to(page, 3)
    assert tiles(page)["epsilon"] == "1.25"
    go_to(page, 6)
    assert tiles(page)["epsilon"] == "2.5"


def test_a_study_shows_its_runs_side_by_side_and_what_is_left(page: Any) -> None:
    assert page.locator("#runs-head").inner_text() == "Runs: 2 of 3 finished, 1 left"
    rows = page.locator("#runs tbody tr").all_inner_texts()
    assert "0.7500" in rows[0]
    assert "waiting" in rows[2]


def test_a_method_can_be_hidden(page: Any) -> None:
    button = page.locator(".legend button", has_text="fedasync")
    shown = "page.state && document.querySelector('.legend button[aria-pressed=false]') !== null"
    assert not page.evaluate(shown)
    button.click()
    assert page.evaluate(shown)
    button.click()
    assert not page.evaluate(shown)


def test_the_axis_can_be_chosen(page: Any) -> None:
    page.locator(".choice button", has_text="megabytes").click()
    until(lambda: "against megabytes" in page.locator(".plot").get_attribute("aria-label"), "the other axis")
    page.locator(".choice button", has_text="time").click()
    until(lambda: "against time" in page.locator(".plot").get_attribute("aria-label"), "the first axis")


def test_a_click_on_a_learner_tells_its_story(page: Any) -> None:
    go_to(page, 6)
    page.locator(".gantt").get_by_role("button", name="c, silent").click()
    story = page.locator("#story").inner_text()
    assert "silent since 4.00 s" in story
    assert "not applied: late" in story
    page.keyboard.press("Escape")
    assert not page.locator("#story").is_visible()


def test_a_click_on_a_version_tells_who_made_it(page: Any) -> None:
    go_to(page, 6)
    page.locator("#versions button", has_text="2").first.click()
    story = page.locator("#story").inner_text()
    assert "Version 2" in story
    assert "3 MB moved since the version before" in story
    first = page.locator("#story tbody tr").first.inner_text()
    assert first.split() == ["a", "4", "0.6", "75", "%", "3", "0"]
    page.keyboard.press("Escape")


def test_what_users_wrote_is_text(page: Any) -> None:
    page.locator(".gantt .name", has_text="onerror").click()
    assert page.locator("#story-head").inner_text() == HOSTILE
    page.keyboard.press("Escape")
    assert page.evaluate("document.title").startswith("<script>")
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('img, b').length") == 0
    assert page.evaluate('quoted("a\'b")') == "'a'\\''b'"


def test_everything_has_a_name_for_a_screen_reader(page: Any) -> None:
    kinds = "button, input, select, canvas:not([aria-hidden], .plot *), [role=img], [role=region], section"
    nameless = f"""[...document.querySelectorAll("{kinds}")].filter(one =>
        !(one.ariaLabel || one.getAttribute('aria-labelledby') || one.textContent.trim())).map(one => one.outerHTML)"""
    assert page.evaluate(nameless) == []
    assert page.locator("#clock input").get_attribute("aria-valuetext")


@pytest.mark.parametrize("width", [360, 390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_never_wider_than_the_screen(page: Any, width: int, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 800})
    until(lambda: page.evaluate("document.documentElement.clientWidth") == width, "the new width")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(246, 248, 249)"
    assert dark == (scheme == "dark")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_print_leaves_out_what_only_a_screen_needs(page: Any) -> None:
    page.emulate_media(media="print")
    assert not page.locator("#clock").is_visible()
    assert page.locator("#curves").is_visible()
    page.emulate_media(media="screen")


def test_the_browser_complains_of_nothing_and_asks_nobody_else(page: Any, server: LiveServer) -> None:
    assert page.complaints == []
    assert {url for url in page.requested if not url.startswith("data:")} <= {
        url for url in page.requested if url.startswith(server.url)
    }
    # the listeners do notice: see that the next complaint, a script that the policy forbids, arrives
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))"
    )
    until(lambda: page.evaluate("1") == 1 and len(page.complaints) == 1, "the complaint")
    assert "Content Security Policy" in page.complaints[0]
    assert page.evaluate("window.hacked") is None
