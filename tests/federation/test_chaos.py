"""Kill the controller, lose nothing, continue: a short `make chaos`, and faulty controllers that it must catch."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.federation.chaos import A_LIFE, MILLION, PROTOCOLS, UPDATES, Moment, campaign
from tests.federation.checker import check
from tests.federation.stage import LONGEST, Crowd, Setting, Wire, set_up

pytestmark = pytest.mark.slow

KILLS = {
    "fedavg": 3,
    "fedma": 2,
    "async_fedavg, files collected": 4,
    "async_dvw": 2,
    "radfed": 2,
    "radfed, a million parameters": 1,
}
"""`make chaos` makes a hundred of each protocol."""


@pytest.mark.parametrize("name", KILLS)
def test_a_controller_that_is_killed_again_and_again_loses_nothing(name: str, tmp_path: Path) -> None:
    kills = KILLS[name]
    protocol = next(protocol for protocol, settings in PROTOCOLS.items() if name in settings)
    stage = set_up(tmp_path, replace(PROTOCOLS[protocol][name], ending=A_LIFE[protocol] * (kills + 1)))
    outcome = campaign(stage, kills, 7, A_LIFE[protocol] * UPDATES[protocol])
    assert outcome.kills == kills
    assert outcome.findings.clean, outcome.findings
    assert outcome.findings.commits == stage.setting.ending
    assert bool(outcome.findings.removed) is not stage.setting.keep_updates


@pytest.mark.parametrize(
    ("crime", "kind"),
    [("acknowledge-first", "lost"), ("payload-last", "payload lost"), ("apply-twice", "applied twice")],
)
def test_the_checker_finds_a_controller_that_breaks_the_law(crime: str, kind: str, tmp_path: Path) -> None:
    def soon(generator: random.Random, opening: float) -> Moment:
        """Wait until a learner has a receipt: the first controller makes no progress afterwards."""
        return Moment("acknowledged", generator.uniform(0, 0.03))

    stage = set_up(tmp_path, Setting('"async_fedavg"', 1_000))
    outcome = campaign(stage, 2, 7, 1_000, crime=crime, moments=soon)
    assert outcome.kills > 0
    assert kind in outcome.findings.wrong, outcome.findings


def test_connections_lost_during_uploads_lose_no_update(tmp_path: Path) -> None:
    stage = set_up(tmp_path, Setting('"fedavg"', 8, **MILLION))
    generator = random.Random(7)
    # 40 updates of 4 MB; after the last break all that is left gets through
    wire = Wire(stage, [generator.randrange(1 << 20, 8 << 20) for _ in range(15)])
    process = stage.controller()
    with Crowd(replace(stage, port=wire.port)):
        assert process.wait(LONGEST) == 0, process.last_words()
    told = stage.told()
    assert wire.cuts > 10
    assert {receipt["verdict"] for receipt in told} <= {"KEPT", "LATE"}, told  # none is refused for a broken line
    assert (findings := check(stage.state, told, stage.hosting)).clean, findings
    assert findings.journalled == 8 * 5, "an update of a round was wasted"
