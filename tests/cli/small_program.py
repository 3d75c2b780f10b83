"""Three commands as a program of their own, with the error handling of the real one, which tests run as a process."""

import os
import subprocess
from pathlib import Path

import typer

from archipel.cli import main
from archipel.cli import program as real
from archipel.cli.algorithms import algorithms
from archipel.cli.data import app as data
from archipel.cli.doctor import doctor
from tests.forked import archipel

app = typer.Typer(pretty_exceptions_enable=False)
app.command("algorithms")(algorithms)
app.command("doctor")(doctor)
app.add_typer(data, name="data")


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it as another process, whose output goes into a pipe of 80 columns."""
    # one thread: tests run side by side
    set_ = {"COLUMNS": "80", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    return archipel(arguments, Path.cwd(), os.environ | set_ | environment, program=Path(__file__))


if __name__ == "__main__":
    real.app = app
    main()
