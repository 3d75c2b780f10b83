"""The command line in a process that is forked from one that has imported what it needs: a start takes no second then.

The process is the command's own in all else: arguments, folder, environment, output and exit code. How the command
starts from nothing is tested in test_start_up.py, and how a report's figures are rendered in tests/report.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        *("torch", "sklearn.datasets", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"),
        *("archipel.algorithms", "archipel.models", "archipel.data.sources", "archipel.report.figures"),
        *("archipel.report.write", "archipel.study.execute", "archipel.study.results", "typer", "rich.live"),
    ]
)
"""Not the modules of the commands: they hold consoles, which look at the environment and at the output."""


def archipel(
    arguments: Sequence[str | Path],
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    *,
    rendered: bool = True,
    timeout: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run the command with its output in files. rendered: figures are rendered, and not only composed."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder) / name for name in ("out", "err")]
        where = dict(os.environ if environment is None else environment)
        process: Any = FORKS.Process(target=_live, args=(words, str(cwd), where, outputs, rendered))
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(words, timeout)
        out, err = (path.read_text() for path in outputs)
    return subprocess.CompletedProcess(words, process.exitcode, out, err)


def _live(arguments: list[str], cwd: str, environment: dict[str, str], outputs: list[Path], rendered: bool) -> None:
    """Be the command, in the new process."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for end, path in enumerate(outputs, 1):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, end)
    sys.stdout, sys.stderr = (open(end, "w", encoding="utf-8", closefd=False) for end in (1, 2))  # noqa: SIM115
    sys.argv[:] = ["archipel", *arguments]
    code: Any = 1
    try:
        from archipel.cli import main

        if rendered:
            main()
        else:
            with mock.patch("matplotlib.figure.Figure.savefig", composed):
                main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def composed(figure: Any, path: str | Path, **_: Any) -> None:
    """Write an empty picture in place of a figure."""
    Path(path).write_text('<svg xmlns="http://www.w3.org/2000/svg"/>' if str(path).endswith("svg") else "")
