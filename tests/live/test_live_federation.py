"""The page of a federation: what it shows, whom it admits, and that it outlives its controller."""

from __future__ import annotations

import contextlib
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from archipel.federation.security.authority import create_authority, issue
from archipel.live.federation_state import FederationState
from archipel.live.page_process import PageProcess, PageSettings
from tests.federation.stage import Crowd, Process, Setting, Stage, free_port, set_up
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a controller has no keeper"),
]


@contextlib.contextmanager
def controller(stage: Stage, live: str) -> Iterator[Process]:
    command = ["controller", str(stage.study), "--listen", stage.address, "--json-log", "--live", live]
    papers = ["--tls", str(stage.folder / "ca" / "controller"), "--state", str(stage.state)]
    process = Process([*command, *papers], stage.folder / "controller.log")
    try:
        until(lambda: process.listening, lambda: f"a controller that listens:\n{process.last_words()}")
        yield process
    finally:
        process.kill()


def test_the_page_shows_the_federation_and_comes_back_after_a_kill(chromium: Any, tmp_path: Path) -> None:
    stage = set_up(tmp_path, Setting('"async_fedavg"', 1_000_000, delay=0.02))
    live = f"localhost:{free_port()}"
    with Crowd(stage) as crowd, controller(stage, live) as process:
        until(lambda: "live page opened" in process.last_life(), process.last_words)
        page = chromium.new_page()
        page.goto(f"http://{live}/")
        versions = "page.state.timeline.commit.time.length"
        until(lambda: page.evaluate(versions) > 3, lambda: f"versions on the page:\n{process.last_words()}")
        until(lambda: page.locator("#federation tbody tr").count() >= len(stage.setting.names), "the members")
        text = page.locator("#federation").inner_text()
        assert all(name in text for name in stage.setting.names)
        assert f"archipel status --controller {stage.address} --tls FOLDER" in text
        before, server = page.evaluate(versions), page.evaluate("page.state.feed.server")
        process.kill_controller()
        until(lambda: not page.evaluate("page.state.feed.connected"), "the page without a server")
        assert page.evaluate(versions) >= before
        crowd.most = None
        process.go_on()
        until(lambda: page.evaluate("page.state.feed.server") != server, lambda: f"the page:\n{process.last_words()}")
        until(lambda: page.evaluate(versions) > before, lambda: f"more versions:\n{process.last_words()}")
        page.close()


def test_the_journal_is_read_as_it_grows(tmp_path: Path) -> None:
    stage = set_up(tmp_path, Setting('"async_fedavg"', 12))
    with Crowd(stage):
        process = stage.controller()
        assert process.wait(120) == 0, process.last_words()
    followed = FederationState(stage.state)
    while followed.poll():
        pass
    lines = [json.loads(line) for line in followed.timeline.events.read(0).splitlines()]
    assert [line[2] for line in lines if line[0] == "c"] == list(range(1, 13))
    assert {line[2] for line in lines if line[0] == "L"} == set(stage.setting.names)
    assert followed.federation["log"]
    assert all(row[3] == "refused" for row in followed.federation["refusals"])


def papers(folder: Path) -> Path:
    create_authority(folder)
    issue(folder, "controller", hosts=("127.0.0.1", "localhost"))
    issue(folder, "operator", "alice")
    issue(folder, "operator", "bob")
    issue(folder, "learner", "a")
    return folder


def get(url: str, ca: Path, who: str | None) -> int:
    context = ssl.create_default_context(cafile=str(ca / "controller" / "authority.pem"))
    context.check_hostname = False
    if who is not None:
        context.load_cert_chain(ca / who / "certificate.pem", ca / who / "key.pem")
    try:
        with urllib.request.urlopen(url, context=context) as answer:
            assert isinstance(answer, HTTPResponse)
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_beyond_this_machine_only_an_operators_certificate_or_the_token_opens_the_page(tmp_path: Path) -> None:
    ca = papers(tmp_path / "ca")
    settings = PageSettings(
        str(tmp_path),
        "0.0.0.0:0",
        federation=True,
        certificates=str(ca / "controller"),
        operators=("alice",),
        revoked=str(tmp_path / "revoked.txt"),
        token="a-secret-of-this-test",
    )
    page = PageProcess(settings)
    try:
        url = page.url.replace("0.0.0.0", "127.0.0.1").partition("?")[0]
        assert url.startswith("https://")
        assert {who: get(url, ca, who) for who in ("alice", "bob", "a", None)} == {
            "alice": 200,
            "bob": 403,
            "a": 403,
            None: 403,
        }
        assert get(f"{url}?token=a-secret-of-another", ca, None) == 403
        cookies = urllib.request.HTTPCookieProcessor()
        context = ssl.create_default_context(cafile=str(ca / "controller" / "authority.pem"))
        context.check_hostname = False
        opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), cookies)
        with opener.open(f"{url}?token=a-secret-of-this-test") as answer:
            assert answer.status == 200
            assert "token" not in answer.url
    finally:
        page.close()
