"""Callers without a certificate cannot end a controller, whatever they open; and what ends one is no wrong command."""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from archipel.federation.controller.descriptors import BESIDE, EACH, FEWEST, RESERVE, most_connections
from tests import waiting
from tests.federation.stage import LONGEST, Crowd, Process, Setting, Stage, set_up

NEVER = 1_000_000
SOFT, HARD = 256, 400
FEW_FILES = f"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({SOFT}, {HARD}))
from archipel.cli import main
main()
"""
DISK_FAILS = """
from archipel.federation.storage.durable_controller import DurableController

def take(self, *_):
    raise OSError(28, "No space left on device")

DurableController.take = take
from archipel.cli import main
main()
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return set_up(tmp_path_factory.mktemp("endless"), Setting('"async_fedavg"', NEVER))


def until(done: Callable[[], Any], process: Process) -> None:
    """Wait while the controller lives."""
    waiting.until(lambda: process.ended or done(), process.last_words)
    assert not process.ended, f"exit code {process.wait(LONGEST)}\n{process.last_words()}"


def test_more_idle_connections_than_files_do_not_end_it(endless: Stage) -> None:
    process = endless.controller(code=FEW_FILES)
    with ExitStack() as connections, Crowd(endless) as crowd:
        until(lambda: crowd.kept > 4, process)
        for _ in range(HARD + 100):
            connections.enter_context(socket.create_connection(("127.0.0.1", endless.port)))
        heard = crowd.kept
        until(lambda: crowd.kept > heard + 20, process)
        files = len(os.listdir(f"/proc/{process.controller}/fd"))
        assert files < RESERVE + (HARD - RESERVE) // 2, "half of what is not in reserve is for connections"
        assert '"restarts"' not in process.said
    process.kill()


def test_learners_come_in_when_idle_connections_have_timed_out(endless: Stage) -> None:
    """They were there first, and took all places."""
    process = endless.controller(code=FEW_FILES)
    until(lambda: process.listening, process)
    with ExitStack() as connections:
        for _ in range(HARD + 100):
            connections.enter_context(socket.create_connection(("127.0.0.1", endless.port)))
        with Crowd(endless) as crowd:
            until(lambda: crowd.kept > 4, process)
    process.kill()


def test_an_error_of_the_disk_while_it_runs_is_worth_another_start(endless: Stage) -> None:
    """Exit code 2 says that the command is wrong, and systemd does not start it again."""
    process = endless.controller(code=DISK_FAILS)
    with Crowd(endless):
        assert process.wait(LONGEST) == 1
    assert "listening" in process.said
    assert "No space left on device" in process.said
    assert "Nothing that was acknowledged is lost; run the same command again to continue" in process.said


def test_an_address_that_is_taken_is_a_wrong_command(endless: Stage) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", endless.port))
        taken.listen()
        process = endless.controller()
        assert process.wait(LONGEST) == 2
    assert "Cannot listen on" in process.said


@pytest.mark.parametrize(
    ("files", "learners", "connections"),
    [
        (1024, 3, (1024 - RESERVE) // 2),
        (65_536, 3, BESIDE + EACH * 3),
        (65_536, 5000, BESIDE + EACH * 5000),
        (100, 3, FEWEST),
    ],
)
def test_connections_leave_files_for_the_rest(
    files: int, learners: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert most_connections(learners) == connections
