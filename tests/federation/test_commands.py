"""The commands of a real federation, as people type them: from certificates to a report, and what they say when it
does not work.

Controller and learners are processes of their own, forked from one that has imported torch; the others, which only ask
them, run in this one: a second of start for each would be half a minute. The README's lines are typed as they stand
(test_docs.py).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from archipel.cli.program import app
from archipel.runs.load import load_run
from tests.forked import Forked
from tests.waiting import LIMIT, until

pytestmark = pytest.mark.slow

NETWORK = '''
import os
import time
from pathlib import Path

from torch import Tensor, nn


class Net(nn.Module):
    """Wait in each training step while the file $HOLD exists."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(features, 6)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        while self.training and "HOLD" in os.environ and Path(os.environ["HOLD"]).exists():
            time.sleep(0.02)
        return self.head(self.body(x).relu())
'''

STUDY = """
title = "two wards"
algorithms = [{ name = "fedavg", protocol = "Rounds(at_least=2)" }]

[data]
natural = { test = "own(0.25)" }
standardise = "global"

[data.source]
name = "from_csv"
path = "nobody_has_this.csv"
label = "ill"
site = "ward"
features = ["height_cm", "kind"]
categories = { kind = ["a", "b"] }
classes = ["no", "yes"]
ranges = { height_cm = [30, 250] }

[model]
name = "network.py:Net"

[ending]
rounds = 4

[federation]
learners = ["north", "south", "west"]
operators = ["alice"]
heartbeat = 0.5
keep_updates = true
"""

ROWS = [(f"{150 + 7 * i % 45}", "ab"[i % 3 == 0], ("no", "yes")[7 * i % 45 > 20]) for i in range(40)]


def table(path: Path, *, header: str = "height_cm,kind,ill", rows: list[tuple[str, str, str]] = ROWS) -> None:
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")


def said(*arguments: str | Path) -> str:
    """Run a command in this process that has to succeed; return its output."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert result.exit_code == 0, f"{result.output}{result.exception}"
    return result.stdout


def refused(*arguments: str | Path) -> str:
    """Run a command that has to exit with 2; return its message."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200"})
    assert isinstance(result.exception, ValueError | OSError), f"{result.output}{result.exception!r}"
    assert result.stdout == ""
    return str(result.exception)


def a_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


class Started:
    """A command as a process."""

    def __init__(self, arguments: list[str], folder: Path, name: str, hold: Path) -> None:
        self.out, self.errors = (folder / f"{name}.{end}" for end in ("out", "err"))
        for path in (self.out, self.errors):
            path.write_text("")
        environment = {**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "HOLD": str(hold)}
        with self.out.open("ab") as out, self.errors.open("ab") as errors:
            self.process = Forked(arguments, folder, environment, (None, out.fileno(), errors.fileno()))

    def end(self, number: signal.Signals) -> tuple[int, str]:
        os.kill(self.process.pid, number)
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for its end; return its exit code and its output."""
        return self.process.wait(LIMIT), self.out.read_text() + self.errors.read_text()


@dataclass
class Wards:
    """A folder with certificates, study and tables, and a port."""

    folder: Path
    port: int
    running: list[Started] = field(default_factory=list)

    @property
    def study(self) -> Path:
        return self.folder / "study.toml"

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    @property
    def hold(self) -> Path:
        """While this file exists, no learner finishes a training step."""
        return self.folder / "hold"

    def asks(self, who: str = "alice") -> list[str]:
        return ["--controller", self.address, "--tls", str(self.folder / "ca" / who)]

    def controller(self) -> Started:
        listen = ["--listen", f"127.0.0.1:{self.port}", "--tls", "ca/controller", "--json-log"]
        return self._started("controller", "controller", "study.toml", *listen)

    def learner(self, name: str) -> Started:
        return self._started(name, "learner", "study.toml", *self.asks(name), "--data", f"{name}.csv")

    def refused(self, *arguments: str) -> str:
        """Run a controller that has to exit with 2, as a process, since it forks; return its message."""
        code, told = self._started("controller", "controller", "study.toml", *arguments).ended()
        assert code == 2, told
        assert "Traceback" not in told
        return told

    def _started(self, name: str, *arguments: str) -> Started:
        one = Started([*arguments], self.folder, name, self.hold)
        self.running.append(one)
        return one

    def answers(self) -> bool:
        """Return whether a controller answers; a new channel is needed, as gRPC remembers a failure for a second."""
        return CliRunner().invoke(app, ["status", *self.asks()]).exit_code == 0

    def status(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(said("status", *self.asks(), "--json"))
        return told

    def states(self) -> dict[str, str]:
        return {one["name"]: one["state"] for one in self.status()["learners"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates, study and tables, to be read only."""
    folder = tmp_path_factory.mktemp("wards")
    (folder / "study.toml").write_text(STUDY)
    (folder / "network.py").write_text(NETWORK)
    for name in ("north", "south", "west", "east"):
        table(folder / f"{name}.csv")
    said("ca", "init", folder / "ca", "--no-passphrase")
    for arguments in (["controller"], *(["learner", name] for name in ("north", "south", "west", "east"))):
        said("ca", arguments[0], folder / "ca", *arguments[1:])
    said("ca", "operator", folder / "ca", "alice")
    return folder


@pytest.fixture
def wards(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wards]:
    for path in place.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    wards = Wards(tmp_path, a_port())
    yield wards
    for one in wards.running:
        one.process.kill()
        one.process.wait()


# ------------------------------------------------------------------------------------------------------- a whole life


def test_from_certificates_to_a_report(wards: Wards) -> None:
    wards.hold.touch()
    controller = wards.controller()
    until(lambda: "listening" in controller.errors.read_text(), "a controller that listens")
    assert "waits for 3 learners" in said("status", *wards.asks())
    assert "paused" not in wards.states().values()
    strangers_are_refused(wards)
    learners = {name: wards.learner(name) for name in ("north", "south", "west")}
    first_round(wards, learners)

    # with one learner less than a round needs it rests; both sides are stopped, and go on
    code, told = controller.end(signal.SIGTERM)
    assert code == 130
    assert "Stopped at version 1; run the same command again to continue." in told
    assert "No controller answers at localhost:" in refused("status", *wards.asks())
    code, told = learners["south"].end(signal.SIGINT)
    assert code == 130
    assert "Stopped; run the same command again to continue." in told
    controller, learners["south"] = wards.controller(), wards.learner("south")
    until(lambda: "joined" in learners["south"].errors.read_text(), "south to join again")
    until(wards.answers, "the controller to answer again")
    assert wards.states() == {"north": "paused", "south": "there", "west": "withdrawn"}
    assert wards.status()["version"] == 1
    assert refused("learner", wards.study, *wards.asks("south"), "--data", "south.csv").startswith(
        "learner-south is in use by another process"
    )
    assert said("operator", "resume", "north", *wards.asks()) == "north: resume at version 1\n"
    everybody_ends(wards, controller, learners)
    the_run_can_be_read(wards)


def strangers_are_refused(wards: Wards) -> None:
    assert "east is not on the study's list of learners" in refused(
        "learner", wards.study, *wards.asks("east"), "--data", "east.csv"
    )
    other = wards.folder / "other.toml"
    other.write_text(STUDY.replace("rounds = 4", "rounds = 5"))
    told = refused("learner", other, *wards.asks("north"), "--data", "north.csv", "--state", "elsewhere")
    assert f"The controller at {wards.address} refused: The study of north differs from the controller's in" in told
    assert "differs from the controller's in [ending]" in told
    assert "north may pause, resume and withdraw itself, not south" in refused(
        "operator", "pause", "south", *wards.asks("north")
    )
    assert "There is no learner somebody" in refused("operator", "pause", "somebody", *wards.asks())


def first_round(wards: Wards, learners: dict[str, Started]) -> None:
    """One learner is withdrawn from it, and one paused, whose update still comes."""
    until(lambda: sum(bool(one["training"]) for one in wards.status()["learners"]) == 3, "three learners at work")
    told = said("status", *wards.asks())
    assert told.startswith("version 0, 0 local rounds")
    assert all(name in told for name in learners)
    (alone,) = json.loads(said("status", *wards.asks("south"), "--json"))["learners"]
    assert alone["name"] == "south"  # a learner sees of the learners itself
    assert alone["examples"] == 30
    assert said("operator", "withdraw", "west", *wards.asks()) == "west: withdraw at version 0\n"
    assert said("operator", "pause", *wards.asks("north")) == "north: pause at version 0\n"
    assert wards.states() == {"north": "paused", "south": "there", "west": "withdrawn"}
    wards.hold.unlink()
    code, told = learners["west"].ended()
    assert code == 2
    assert "west has been withdrawn from this federation" in told
    until(lambda: wards.status()["version"] == 1, "the first commit")


def everybody_ends(wards: Wards, controller: Started, learners: dict[str, Started]) -> None:
    code, told = controller.ended()
    assert code == 0, told
    assert "fedavg: accuracy" in told
    assert "Run: state/run" in told
    assert all(json.loads(line)["at"] for line in controller.errors.read_text().splitlines())
    for name in ("north", "south"):
        code, told = learners[name].ended()
        assert code == 0, told
        assert "The run is over: 4 local rounds made." in told
        assert (wards.folder / f"learner-{name}" / "model.safetensors").exists()


def the_run_can_be_read(wards: Wards) -> None:
    run = load_run(wards.folder / "state" / "run")
    assert (len(run.commits), run.execution, run.metric) == (4, "federation", "accuracy")
    assert [one.name for one in run.participants] == ["north", "south", "west"]
    assert "fedavg" in said("report", wards.folder / "state" / "run")
    assert "version 4, digest" in said("replay", wards.study)
    again = json.loads(said("replay", wards.study, "--json"))
    assert again["version"] == 4
    assert again["audit"] > again["events"]


def test_killed_and_started_again(wards: Wards) -> None:
    """Kill both sides in the middle of a round; without TLS, as in a trial on one machine."""
    wards.hold.touch()
    asks = ["--controller", wards.address, "--insecure"]
    short = ["--set", "federation={learners=['north','south'],operators=['alice'],heartbeat=0.5}"]

    def start() -> tuple[Started, Started, Started]:
        listen = ["--listen", f"127.0.0.1:{wards.port}", "--insecure", *short]
        controller = wards._started("controller", "controller", "study.toml", *listen)
        north, south = (
            wards._started(name, "learner", "study.toml", *asks, f"learner/{name}", "--data", f"{name}.csv")
            for name in ("north", "south")
        )
        return controller, north, south

    def training() -> bool:
        result = CliRunner().invoke(app, ["status", *asks, "operator/alice", "--json"])
        return result.exit_code == 0 and all(one["training"] for one in json.loads(result.stdout)["learners"])

    first = start()
    until(training, "both learners at work")
    for one in first:
        assert one.end(signal.SIGKILL)[0] == -signal.SIGKILL
    wards.hold.unlink()
    for one in start():
        code, told = one.ended()
        assert code == 0, told
        assert "insecure: nothing is encrypted" in told
    assert len(load_run(wards.folder / "state" / "run").commits) == 4


# ----------------------------------------------------------------------------------------------------- errors in words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["learner", "study.toml", "--data", "north.csv"], "Give --tls FOLDER, the folder of your certificate; or,"),
        (["learner", "study.toml", "--tls", "ca/alice", "--data", "north.csv"], "is the certificate of operator/alice"),
        (
            ["learner", "study.toml", "--controller", "elsewhere:9443", "--insecure", "learner/north"],
            "elsewhere:9443: without TLS only this machine itself may be spoken to",
        ),
        (["learner", "study.toml", "--tls", "ca/north", "--data", "mine.csv"], "there is no file"),
        (["learner", "study.toml", "--tls", "ca/north"], "there is no file"),
        (["status", "--tls", "ca/controller"], "here it takes one of a learner or an operator"),
        (["status", "--insecure", "alice"], "--insecure alice: give a role and a name, such as learner/hospital-1"),
        (["replay", "study.toml", "--state", "elsewhere"], "elsewhere holds no journal"),
    ],
)
def test_what_cannot_be_done_is_said(wards: Wards, arguments: list[str], words: str) -> None:
    assert words in refused(*arguments)
    assert not (wards.folder / "state").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Give --tls FOLDER, the folder of the controller's certificate; or,"),
        (["--tls", "ca/controller", "--insecure"], "Give --tls FOLDER"),
        (["--insecure", "--listen", "0.0.0.0:9443"], "0.0.0.0:9443: without TLS only this"),
        (["--tls", "ca/north"], "is the certificate of learner/north"),
        (["--tls", "ca/nobody"], "--tls ca/nobody: is no folder"),
        (
            ["--tls", "ca/controller", "--set", "seeds=[0,1]"],
            "A federation runs one method once, and this study is of 2 runs. Choose: --algorithm NAME",
        ),
        (
            ["--tls", "ca/controller", "-s", "evaluation.at=home"],
            "the controller has no test set",
        ),
        (
            ["--tls", "ca/controller", "-s", "federation.wait_for=4"],
            "federation.wait_for is 4, and 3 training learners are listed.",
        ),
        (
            ["--tls", "ca/controller", "--metrics", "9464"],
            "--metrics 9464: give HOST:PORT",
        ),
    ],
)
def test_what_a_controller_cannot_do_is_said(wards: Wards, arguments: list[str], words: str) -> None:
    assert words in wards.refused(*arguments)
    assert not (wards.folder / "state").exists()


def test_a_process_that_cannot_begin_ends_with_two(wards: Wards) -> None:
    command = [sys.executable, "-m", "archipel.cli", "controller", "study.toml"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=wards.folder, env={**os.environ, "NO_COLOR": "1"})
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("error: Give --tls FOLDER, the folder of the controller's certificate; or,")
    assert "Traceback" not in ran.stderr


def test_a_port_that_is_taken(wards: Wards) -> None:
    with socket.socket() as there:
        there.bind(("127.0.0.1", wards.port))
        there.listen()
        told = wards.refused("--tls", "ca/controller", "--listen", f"127.0.0.1:{wards.port}")
    assert f"Cannot listen on 127.0.0.1:{wards.port}: is another process listening there" in told


def test_the_state_of_another_study(wards: Wards) -> None:
    listen = ["--tls", "ca/controller", "--listen", f"127.0.0.1:{wards.port}"]
    with socket.socket() as there:  # begun, and stopped at once
        there.bind(("127.0.0.1", wards.port))
        there.listen()
        wards.refused(*listen)
    told = wards.refused(*listen, "--set", "training.rate=0.5")
    assert "The state was begun with another study: they differ in [training]." in told


def test_a_dry_run_tells_of_the_data_and_sends_nothing(wards: Wards) -> None:
    told = said("learner", "study.toml", "--tls", "ca/north", "--data", "north.csv", "--dry-run", "--allow-code")
    assert "data: 30 examples to train on, 0 to validate, 10 to test, each of shape (3,)" in told
    assert "training: one step took the loss from" in told
    assert told.endswith("nothing was sent; leave --dry-run out to take part\n")
    assert not (wards.folder / "learner-north").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"header": "height_inch,kind,ill"}, "got 'height_cm'"),
        ({"rows": [(height, "ab"[i % 2], "perhaps") for i, (height, *_) in enumerate(ROWS)]}, "'perhaps'"),
        ({"rows": [(height, "c", ill) for height, _, ill in ROWS]}, "category 'kind' holds 'c' in row 1"),
        (
            {"rows": [(str(float(height) / 100), kind, ill) for height, kind, ill in ROWS]},
            "'height_cm' in 40 of 40 rows is not from 30 to 250",
        ),
        ({"rows": [("", *rest) for _, *rest in ROWS]}, "height_cm"),
    ],
    ids=["column", "label", "category", "unit", "gap"],
)
def test_a_dry_run_finds_data_that_do_not_fit_the_study(wards: Wards, changes: Any, words: str) -> None:
    table(wards.folder / "wrong.csv", **changes)
    dry_run = ("--data", "wrong.csv", "--dry-run", "--allow-code")
    assert words in refused("learner", "study.toml", "--tls", "ca/north", *dry_run)
