"""Kill the controller, lose nothing, go on: a short form of `make chaos`, and controllers that the checker must catch."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest
from chaos import A_LIFE, PROTOCOLS, UPDATES, Moment, Setting, campaign, draw
from stage import set_up

KILLS = 6
SABOTAGE = Path(__file__).with_name("sabotage.py")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_controller_that_is_killed_again_and_again_loses_nothing(protocol: str, tmp_path: Path) -> None:
    algorithm = next(iter(PROTOCOLS[protocol].values()))
    stage = set_up(tmp_path, Setting(algorithm, A_LIFE[protocol] * (KILLS + 1)))
    outcome = campaign(stage, KILLS, 7, A_LIFE[protocol] * UPDATES[protocol], moments=draw)
    assert outcome.kills == KILLS
    assert outcome.findings.clean, outcome.findings
    assert outcome.findings.commits == stage.setting.ending


@pytest.mark.parametrize(
    ("crime", "kind"),
    [("acknowledge-first", "lost"), ("payload-last", "payload lost"), ("apply-twice", "applied twice")],
)
def test_the_checker_finds_a_controller_that_breaks_the_law(crime: str, kind: str, tmp_path: Path) -> None:
    def soon(generator: random.Random, opening: float) -> Moment:
        """While the law is broken: right after a learner was told that its update is safe."""
        return Moment("acknowledged", generator.uniform(0, 0.03))

    stage = set_up(tmp_path, Setting('"async_fedavg"', 1_000))
    command = (sys.executable, str(SABOTAGE), crime)
    outcome = campaign(stage, 2, 7, 1_000, command=command, moments=soon, to_the_end=False)
    assert outcome.kills > 0
    assert kind in outcome.findings.wrong, outcome.findings
