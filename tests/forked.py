"""Commands and programs in processes forked from one that has imported what they need: a start takes no second then.

The process is the command's own in all else: arguments, folder, environment, output and exit code. How the command
starts from nothing is tested in test_start_up.py, and how a report's figures are rendered in tests/report.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("torch", "torch._dynamo", "sklearn.datasets", "matplotlib.backends.backend_agg"),
        *("matplotlib.backends.backend_svg", "archipel.algorithms", "archipel.models", "archipel.data.sources"),
        *("archipel.report.figures", "archipel.report.write", "archipel.study.execute", "archipel.study.results"),
        *("archipel.study.federate", "archipel.federation.processes", "typer", "rich.live"),
    ]
)
"""One server for each process of pytest. Not the modules of the commands: they hold consoles, which look at the
environment and at the output."""


@dataclass(frozen=True)
class Start:
    """What a new process is told."""

    arguments: Sequence[str]
    cwd: str
    environment: Mapping[str, str]
    streams: Sequence[Connection]
    """Standard input, output and error."""
    program: Path | str | None = None
    session: bool = False
    rendered: bool = True


class Forked:
    """A process of the command, or of a program, with what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str | Path],
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        streams: tuple[int | None, int | None, int | None] = (None, None, None),
        *,
        program: Path | str | None = None,
        session: bool = False,
        rendered: bool = True,
    ) -> None:
        """streams: file descriptors in place of the null device; program: a file or source in the command's place;
        session: start a session of its own; rendered: figures are rendered, and not only composed."""
        nothing = os.open(os.devnull, os.O_RDWR)
        ends = [Connection(os.dup(nothing if end is None else end)) for end in streams]
        os.close(nothing)
        start = Start(
            [str(argument) for argument in arguments],
            str(cwd or Path.cwd()),
            dict(os.environ if environment is None else environment),
            ends,
            program,
            session,
            rendered,
        )
        self._process = FORKS.Process(target=_live, args=(start,), daemon=True)  # it ends with pytest
        self._process.start()
        for end in ends:
            end.close()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """Return its exit code, or minus the signal that killed it; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("archipel", timeout or 0.0)
        return code

    def kill(self) -> None:
        self._process.kill()


def archipel(
    arguments: Sequence[str | Path],
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    *,
    program: Path | str | None = None,
    rendered: bool = True,
    timeout: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run the command, or a program in its place, with its output in files.

    rendered: figures are rendered, and not only composed.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        streams = (None, out.fileno(), err.fileno())
        process = Forked(arguments, cwd, environment, streams, program=program, rendered=rendered)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        said = [_read(file) for file in (out, err)]
    return subprocess.CompletedProcess([str(argument) for argument in arguments], code, *said)


def _read(file: Any) -> str:
    file.seek(0)
    text: str = file.read()
    return text


def _live(start: Start) -> None:
    """Be the command, in the new process."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive whoever forked it
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whoever made the server may have blocked some, as worker_pool does
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # it may have children
    if start.session:
        os.setsid()
    os.chdir(start.cwd)
    os.environ.clear()
    os.environ.update(start.environment)
    for end, stream in enumerate(start.streams):
        os.dup2(stream.fileno(), end)
        stream.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = (_written(end) for end in (1, 2))
    sys.argv[:] = ["archipel", *start.arguments]
    code: Any = 1
    try:
        if start.rendered:
            _run(start.program)
        else:
            with mock.patch("matplotlib.figure.Figure.savefig", composed):
                _run(start.program)
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def _written(end: int) -> Any:
    """Open a stream as Python does: lines leave at once where a person reads them."""
    return open(end, "w", encoding="utf-8", closefd=False, buffering=1 if end == 2 or os.isatty(end) else -1)


def _run(program: Path | str | None) -> None:
    if isinstance(program, Path):
        runpy.run_path(str(program), run_name="__main__")
    elif program is not None:
        exec(program, {"__name__": "__main__"})
    else:
        from archipel.cli import main

        main()


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of `archipel.study.worker_pool` too, which otherwise begin from nothing."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda way: FORKS)


def composed(figure: Any, path: str | Path, **_: Any) -> None:
    """Write an empty picture in place of a figure."""
    Path(path).write_text('<svg xmlns="http://www.w3.org/2000/svg"/>' if str(path).endswith("svg") else "")
