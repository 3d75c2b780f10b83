"""The keeper starts another controller at once when one is killed; other ends of either process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from archipel.federation.controller.keeper import TRIES
from archipel.storage.lock import alone_in
from tests.federation.checker import check
from tests.federation.stage import Crowd, Process, Setting, Stage, set_up
from tests.waiting import LIMIT, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a controller has no keeper"),
]

NEVER = 1_000_000


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """An endless federation without learners."""
    return set_up(tmp_path_factory.mktemp("endless"), Setting('"async_fedavg"', NEVER))


@pytest.fixture
def process(endless: Stage) -> Iterator[Process]:
    one = endless.controller()
    listens(one)
    yield one
    one.kill()


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One that runs undisturbed."""
    one = set_up(tmp_path_factory.mktemp("looked at"), Setting('"async_fedavg"', NEVER), fresh=True).controller()
    listens(one)
    yield one
    one.kill()


def listens(process: Process) -> None:
    until(lambda: process.listening, lambda: f"a controller that listens:\n{process.last_words()}")


def torch_lies_at(pid: int | None) -> str:
    """The addresses of torch in a process: the same after a fork, and others if the process has imported it itself."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next(line.split()[0] for line in lines if line.endswith("/libtorch_cpu.so"))


def test_a_controller_that_is_killed_is_back_at_once_with_its_federation(tmp_path: Path) -> None:
    stage = set_up(tmp_path, Setting('"async_fedavg"', 40, delay=0.05))
    with Crowd(stage) as crowd:
        process = stage.controller()
        listens(process)
        for kills, number in enumerate((signal.SIGKILL, signal.SIGSEGV), 1):
            heard, pid = crowd.kept, process.controller
            until(lambda: crowd.kept > heard + 4, process.last_words)  # noqa: B023
            process.kill_controller(number)
            process.go_on()
            listens(process)
            assert process.controller not in (None, pid)
            assert torch_lies_at(process.controller) == torch_lies_at(process.pid), "it has what its keeper imported"
            assert f'"event": "the controller was killed by signal {number:d} (' in process.last_life()
            assert re.search(rf'"event": "listening".*"restarts": {kills}, "seconds_down": \d', process.last_life())
        assert process.wait(LIMIT) == 0, process.last_words()
    replay = ("replay", str(stage.study), "--state", str(stage.state), "--json")
    findings = check(stage.state, stage.told(), stage.hosting, replay)
    assert findings.clean, findings
    assert findings.commits == 40


def test_a_reported_error_is_not_retried(tmp_path: Path) -> None:
    stage = set_up(tmp_path, Setting('"fedavg"', NEVER))
    with alone_in(stage.state):
        process = stage.controller()
        assert process.wait(LIMIT) == 2
    assert "is in use by another process" in process.said
    assert "restarting it" not in process.said


@pytest.mark.parametrize(("whom", "number"), [("keeper", signal.SIGTERM), ("controller", signal.SIGINT)])
def test_both_processes_end_on_a_signal_to_either(process: Process, number: signal.Signals, whom: str) -> None:
    pid = process.pid if whom == "keeper" else process.controller
    assert pid is not None
    os.kill(pid, number)
    assert process.wait(LIMIT) == 130
    assert "Stopped at version 0; run the same command again to continue." in process.said
    assert "killed" not in process.said


def test_a_signal_while_starting_ends_both(endless: Stage) -> None:
    process = endless.controller()
    until(lambda: process.controller, process.last_words)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(LIMIT) == 130
    assert "killed" not in process.said


def test_a_controller_goes_with_its_keeper_and_leaves_the_folder_free(endless: Stage, process: Process) -> None:
    process.kill()  # and looks that the controller is gone
    with alone_in(endless.state):
        pass


def test_a_controller_that_is_killed_again_and_again_is_given_up(endless: Stage, process: Process) -> None:
    for number in range(TRIES):
        until(lambda: process.controller, process.last_words)
        process.kill_controller(signal.SIGKILL if number < TRIES - 1 else signal.SIGBUS)
        process.go_on()
    assert process.wait(LIMIT) == 1
    (told,) = (line for line in process.said.splitlines() if '"level": "error"' in line)
    assert f"the controller was killed by signal {signal.SIGBUS:d} (Bus error), the 5th time within 60 s" in told
    assert str(endless.state / "journal.sqlite") in told
    assert process.said.count("restarting it") == TRIES - 1


def test_the_two_processes_have_their_own_names(looked_at: Process) -> None:
    assert Path(f"/proc/{looked_at.pid}/comm").read_text() == "archipel-keeper\n"
    assert Path(f"/proc/{looked_at.controller}/comm").read_text() == "archipel\n"
    assert f'"pid": {looked_at.controller}' in looked_at.said


def test_the_keeper_has_no_threads_and_nothing_of_grpc(looked_at: Process) -> None:
    """Threads and connections do not survive a fork. numpy's BLAS ends its own threads before one."""
    assert len(list(Path(f"/proc/{looked_at.pid}/task").iterdir())) == 1
    opened = [os.readlink(link) for link in Path(f"/proc/{looked_at.pid}/fd").iterdir()]
    assert not [name for name in opened if name.startswith(("socket:", "anon_inode:")) or "state" in name], opened


def test_torch_computes_on_all_cores_after_the_fork() -> None:
    """Its threads start at the first use; a child would wait for ever for a pool started before the fork."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "import archipel.cli.controller, archipel.study.federate, torch\n"
        "from archipel.federation.controller.keeper import keep\n"
        "if sys.argv[1] == 'used': torch.set_num_threads(2); torch.ones(1 << 22).sum()\n"
        "life = keep(Path('journal'))\n"
        "if sys.argv[1] == 'used' and life.restarts: sys.exit('it waited without end')\n"
        "signal.alarm(3 if sys.argv[1] == 'used' else 120)\n"
        "torch.set_num_threads(2)\n"
        "print(float(torch.ones(1 << 22).sum()), len(os.listdir('/proc/self/task')) > 1, life.restarts, flush=True)\n"
        "if life.restarts == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    def ran(how: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, timeout=300)

    assert ran("unused").stdout.splitlines() == [f"{float(1 << 22)} True 0", f"{float(1 << 22)} True 1"]
    assert "it waited without end" in ran("used").stderr  # so this test can fail
