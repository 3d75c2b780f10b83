"""Kill the controller of a real federation repeatedly, at random moments, and check what it kept.

    python -m tests.federation.chaos --protocol rounds stream relay --kills 100 --seed 0 --out FILE

Moments are drawn from a seed: while it opens its journal, some time after it listens, or as soon as something moves on
its disk (an upload, the journal, a snapshot). Some kills are of the controller, which its keeper starts again; others
of both, and the command is started again. Where each kill fell is read off the disk before the next process starts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from archipel.federation.controller.keeper import TRIES
from tests.federation.checker import Findings, check
from tests.federation.stage import LONGEST, Crowd, Process, Setting, Stage, set_up

MILLION: dict[str, Any] = {"features": 1_000, "hidden": (800, 250)}
"""A million parameters: 4 MB an update, which go in four pieces and do not fit into the order."""


def _thrice(name: str, algorithm: str) -> dict[str, Setting]:
    return {
        name: Setting(algorithm),
        f"{name}, files collected": Setting(algorithm, keep_updates=False),
        f"{name}, a million parameters": Setting(algorithm, **MILLION),
    }


PROTOCOLS = {
    "rounds": {**_thrice("fedavg", '"fedavg"'), "fedma": Setting('{ name = "fedma", gamma = 20.0 }')},
    "stream": {
        **_thrice("async_fedavg", '"async_fedavg"'),
        "async_dvw": Setting('{ name = "async_dvw", recall_after = 1 }'),
        "plu": Setting('{ name = "plu", buffer = 3, period = 2, last = 1 }', keep_updates=False),
    },
    "relay": _thrice("radfed", '{ name = "radfed", fraction = 0.6, hops = 3 }'),
}
UPDATES = {"rounds": 5, "stream": 1, "relay": 9}
"""Of a commit."""
A_LIFE = {"rounds": 3, "stream": 12, "relay": 2}
"""Commits that a controller may make before it is killed, so that the run outlasts all kills."""

Trigger = Callable[[Stage, Crowd, Process], bool]
"""Whether this is the moment."""


# ------------------------------------------------------------------------------------------------------- the moments


@dataclass(frozen=True)
class Moment:
    """When to kill next."""

    kind: str
    after: float
    """Seconds after the process began, after it listens, or after what is waited for."""
    updates: int = 0
    """Acknowledged ones that it waits for first."""


def draw(generator: random.Random, opening: float) -> Moment:
    """Draw a moment; `opening`: seconds until a process listens."""
    kind = generator.choices(
        ("opening", "listening", "acknowledged", "upload", "journal", "snapshot"), (1, 2, 2, 2, 2, 1.5)
    )[0]
    updates = generator.randrange(8)
    match kind:
        case "opening":
            return Moment(kind, generator.uniform(0.5, 1.02) * opening)
        case "listening" | "acknowledged":
            return Moment(kind, generator.uniform(0.005, 0.4), updates)
        case "upload":
            return Moment(kind, generator.choice((0.0, generator.uniform(0, 0.01))), updates)
        case _:
            return Moment(kind, generator.choice((0.0, generator.uniform(0, 0.004))), updates)


def wait_for(moment: Moment, stage: Stage, crowd: Crowd, process: Process, budget: int) -> None:
    """Wait for the moment, for a number of updates, or for the end of the controller."""
    if moment.kind == "opening":
        _until(lambda: process.ended or crowd.kept >= budget, process.began + moment.after)
        return
    _until(lambda: process.listening or process.ended, time.monotonic() + LONGEST)
    if moment.kind == "listening":
        _until(lambda: process.ended or crowd.kept >= budget, time.monotonic() + moment.after)
        return
    first = crowd.kept

    def over() -> bool:
        return process.ended or crowd.kept >= budget

    _until(lambda: over() or crowd.kept > first + moment.updates, time.monotonic() + LONGEST)
    moved = _moves(moment.kind, stage.state)
    _until(lambda: over() or moved(), time.monotonic() + 1)
    _until(over, time.monotonic() + moment.after)


def _until(done: Callable[[], bool], deadline: float) -> None:
    while not done() and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(0.0005, left))


def _moves(kind: str, state: Path) -> Callable[[], bool]:
    """Return a function that tells whether the controller's disk has changed since."""
    log = state / "journal.sqlite-wal"
    match kind:
        case "upload":
            return lambda: bool(_begun(state) & {"an upload", "a batch of uploads"})
        case "snapshot":
            return lambda: "a snapshot" in _begun(state)
        case "journal":
            before = log.stat().st_mtime_ns if log.exists() else 0
            return lambda: log.exists() and log.stat().st_mtime_ns != before
        case _:
            return lambda: True


def _begun(state: Path) -> set[str]:
    """What is being written."""
    found = set()
    for name in os.listdir(state / "blobs" / "unfinished"):
        with contextlib.suppress(FileNotFoundError):  # it is written now
            pack = _is_update(state / "blobs" / "unfinished" / name)
            found.add("an upload" if not name.startswith("own.") else "a batch of uploads" if pack else "a snapshot")
    return found


def where(stage: Stage, listened: bool, scratch: Path) -> list[str]:
    """Return what the killed controller was doing, from its disk and a copy of its journal."""
    if not (stage.state / "journal.sqlite").exists():
        return ["before there was a journal"]
    found = [] if listened else ["opening the journal"]
    found += [f"{what} was being written" for what in sorted(_begun(stage.state))]
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    for path in stage.state.glob("journal.sqlite*"):
        if not path.name.endswith("-shm"):
            shutil.copy(path, scratch)
    with closing(sqlite3.connect(scratch / "journal.sqlite")) as base:
        if not base.execute("SELECT 1 FROM sqlite_master WHERE name = 'facts'").fetchone():
            return ["before there was a journal"]
        events = "events" if stage.setting.keep_updates else "all_events"
        told = [json.loads(beside) for (beside,) in base.execute(f"SELECT beside FROM {events} WHERE learner NOT NULL")]
        kept = {delivery["blob"] for beside in told if (delivery := _plain(beside)) is not None}
        snapshot = base.execute("SELECT content FROM snapshots").fetchone()
        last = base.execute("SELECT max(number) FROM events WHERE learner NOT NULL").fetchone()[0] or 0
        handled = base.execute("SELECT max(number) FROM records").fetchone()[0] or 0
    content = "" if snapshot is None else snapshot[0]
    orphans = [
        path
        for path in (stage.state / "blobs").iterdir()
        if path.is_file() and path.name not in kept and path.name not in content and _is_update(path)
    ]
    found += ["a payload was on disk, not yet in the journal"] * bool(orphans)
    found += ["an update was in the journal, not yet handled"] * (last > handled)
    return found or ["between two updates"]


def _plain(beside: Any) -> dict[str, Any] | None:
    """The delivery in what the codec wrote beside an event."""
    if isinstance(beside, dict):
        if "blob" in beside:
            return beside
        for value in beside.values():
            if (found := _plain(value)) is not None:
                return found
    if isinstance(beside, list):
        for value in beside:
            if (found := _plain(value)) is not None:
                return found
    return None


def _is_update(path: Path) -> bool:
    """It has a header of safetensors; what snapshots write are bare numbers."""
    with path.open("rb") as file:
        return file.read(9)[8:9] == b"{"


# ------------------------------------------------------------------------------------------------------ a whole run


@dataclass
class Outcome:
    setting: str
    kills: int = 0
    kept: int = 0
    """Kills after which the keeper started the next controller."""
    where: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    findings: Findings = field(default_factory=Findings)


def campaign(
    stage: Stage,
    kills: int,
    seed: int,
    budget: int,
    kept: float = 1.0,
    *,
    crime: str | None = None,
    moments: Callable[[random.Random, float], Moment] = draw,
) -> Outcome:
    """Kill the controller a number of times, let it finish, and check.

    budget: updates in one life; kept: share of the kills that leave the keeper alone, as far as it goes on after them;
    crime: a law that they break, and then the run need not come to its end.
    """
    began = time.monotonic()
    killer = Killer(stage, kept, random.Random(seed), stage.controller(crime=crime), crime)
    outcome = killer.outcome
    try:
        with Crowd(stage) as crowd:
            while outcome.kills < kills and not killer.process.ended:
                crowd.most = budget * (outcome.kills + 1)
                moment = moments(killer.generator, killer.opening[killer.forked])
                wait_for(moment, stage, crowd, killer.process, crowd.most)
                if not killer.process.ended:
                    killer.kill()
            crowd.most = None
            if outcome.kills == kills:
                killer.let_end(crowd)
            if crowd.failure is not None:
                raise crowd.failure
    finally:
        killer.process.kill()
    replay = ("replay", str(stage.study), "--state", str(stage.state), "--json")
    outcome.findings = check(stage.state, stage.told(), stage.hosting, replay if crime is None else ())
    outcome.seconds = time.monotonic() - began
    return outcome


@dataclass
class Killer:
    """Kill one controller after the other, and record the moment of each kill."""

    stage: Stage
    kept: float
    generator: random.Random
    process: Process
    crime: str | None
    outcome: Outcome = field(init=False)
    opening: dict[bool, float] = field(init=False)
    """Seconds until a controller listens, if it was forked by a keeper or not."""

    def __post_init__(self) -> None:
        self.outcome = Outcome(self.stage.setting.algorithm)
        self.opening = {True: 0.5, False: 2.0 if self.stage.fresh else 0.5}

    @property
    def forked(self) -> bool:
        return self.process.restarts > 0

    def kill(self) -> None:
        """Kill the controller alone, or its keeper too, and have the next one started."""
        process = self.process
        if process.listening:
            self.opening[self.forked] = (process.listened_at or 0.0) - process.began
        alone = self.generator.random() < self.kept and process.restarts < TRIES - 1 and process.controller is not None
        if alone:
            process.kill_controller()
        else:
            process.kill()
        self.outcome.kills += 1
        self.outcome.kept += alone
        self.outcome.where.update(where(self.stage, process.listening, self.stage.folder / "scratch"))
        if alone:
            process.go_on()
        else:
            self.process = self.stage.controller(crime=self.crime)

    def let_end(self, crowd: Crowd) -> None:
        """Let the run finish; after a crime, wait for a few more updates."""
        if self.crime is None:
            code = self.process.wait(LONGEST)
            assert code == 0, f"The controller ended with {code}:\n{self.process.last_words()}"
            return
        before = crowd.kept
        _until(lambda: crowd.kept > before + 5 or self.process.ended, time.monotonic() + LONGEST)


def run(protocol: str, kills: int, seed: int, folder: Path | None, kept: float) -> list[Outcome]:
    """A protocol's settings, which share the kills."""
    outcomes = []
    settings = PROTOCOLS[protocol]
    for number, (name, setting) in enumerate(settings.items()):
        share = kills // len(settings) + (number < kills % len(settings))
        if not share:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as place:
            stage = set_up(Path(place), replace(setting, ending=A_LIFE[protocol] * (share + 1)), fresh=True)
            outcome = campaign(stage, share, seed + number, A_LIFE[protocol] * UPDATES[protocol], kept)
        outcome.setting = f"{protocol}: {name}"
        outcomes.append(outcome)
        print(f"{outcome.setting}: {outcome.kills} kills in {outcome.seconds:.0f} s. {outcome.findings}", flush=True)
    return outcomes


def table(outcomes: Sequence[Outcome]) -> str:
    heads = ("setting", "kills", "keeper left", "acknowledged", "lost", "twice", "commits", "replayed", "seconds")
    rows = [heads]
    for outcome in outcomes:
        found = outcome.findings
        lost = sum(len(found.wrong.get(kind, ())) for kind in ("lost", "payload lost", "other numbers"))
        twice = len(found.wrong.get("applied twice", ()))
        same = "to the bit" if found.clean else f"WRONG: {', '.join(found.wrong)}"
        rows.append(
            (
                *(outcome.setting, str(outcome.kills), str(outcome.kept), str(found.acknowledged), str(lost)),
                *(str(twice), str(found.commits), same, f"{outcome.seconds:.0f}"),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    total: Counter[str] = Counter()
    for outcome in outcomes:
        total.update(outcome.where)
    return "\n".join([*lines, "", "where the kills fell:", *(f"  {count:4} {what}" for what, count in total.items())])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.federation.chaos", description=__doc__)
    parser.add_argument("--protocol", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--kills", type=int, default=100, help="for each protocol")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=float, default=0.5, help="share of the kills that leave the keeper alone")
    parser.add_argument("--folder", type=Path, help="where the federations live meanwhile; a temporary one")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    given = parser.parse_args()
    logging.getLogger("archipel.learner").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and the controller ends too
    outcomes = []
    for number, protocol in enumerate(given.protocol):
        outcomes += run(protocol, given.kills, given.seed + 1_000 * number, given.folder, given.kept)
    print(table(outcomes))
    if given.out:
        told: dict[str, Any] = {
            "command": f"python -m tests.federation.chaos {' '.join(sys.argv[1:])}",
            "date": datetime.now(UTC).date().isoformat(),
            "runs": [{**asdict(outcome), "where": dict(outcome.where.most_common())} for outcome in outcomes],
        }
        given.out.write_text(json.dumps(told, indent=1) + "\n")
    sys.exit(not all(outcome.findings.clean for outcome in outcomes))


if __name__ == "__main__":
    main()
