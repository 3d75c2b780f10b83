"""What only the page of a federation has, from words of a controller that are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from archipel.live.federation_state import FederationState
from tests.live.conftest import serving
from tests.live.scenes import HOSTILE
from tests.waiting import until

pytestmark = pytest.mark.slow


def member(name: str, **more: Any) -> dict[str, Any]:
    told = {"name": name, "state": "there", "examples": 7, "capped": [], "training": [3], "evaluating": 0, "seen": 61.0}
    return {**told, **more}


STATUS: dict[str, Any] = {
    "name": "fedavg",
    "title": HOSTILE,
    "metric": "accuracy",
    "seconds": 9.0,
    "share": 0.5,
    "stopped": None,
    "moved": {},
    "tasks": 5,
    "updates waiting": 4,
    "evidence": 2,
    "reach": " --controller host:9443 --tls FOLDER",
    "certificates": [
        {"who": "learner/a", "expires": "2031-04-05T00:00:00", "soon": True},
        {"who": "learner/c", "expires": "2041-04-05T00:00:00", "soon": False},
    ],
    "learners": [member("a", capped=["weight"]), member(HOSTILE, state="gone", seen=None)],
}


def audit(number: int, who: str, what: str, **detail: Any) -> list[Any]:
    return [number, "2031-01-02T03:04:05.678", who, what, json.dumps(detail)]


def test_members_certificates_refusals_log_and_commands(chromium: Any, tmp_path: Path) -> None:
    state = FederationState(tmp_path)
    refused = audit(2, "learner/x", "refused", call="Join", reason=HOSTILE)
    state.federation |= {"refusals": [refused], "log": [audit(3, "operator/o", "paused", of={"a": 1}), refused]}
    state.tell(STATUS)
    state.timeline.flush()
    with serving(state) as server:
        page = chromium.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url)
        until(lambda: page.locator("#federation table").count() == 4, "all tables")
        text = page.locator("#federation").inner_text()
        for told in (
            "2 learners",
            "61.0 s ago",
            "cut: weight",
            "2031-04-05",
            "paused",
            "archipel status --controller",
        ):
            assert told in text, told
        assert "2041" not in text, "a certificate that does not end soon"
        assert page.locator("#federation [aria-label=Refusals] tbody tr").all_inner_texts() == [
            f"2031-01-02 03:04:05\tlearner/x\trefused\tcall Join, reason {HOSTILE}"
        ]
        tiles = page.locator("#now").inner_text()
        assert all(told in " ".join(tiles.split()) for told in ("tasks out 5", "queue 4", "evidence 2"))
        page.locator("#federation button", has_text="onerror").click()
        assert "archipel operator pause '<img" in page.locator("#story").inner_text()
        assert page.evaluate("window.hacked") is None
        assert complaints == []
        page.close()
