"""`archipel run` as people run it: in a terminal of 80 columns, in a pipe, stopped by Ctrl-C, resumed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import archipel as ap
from archipel.cli import main
from tests import forked
from tests.waiting import until

pytestmark = pytest.mark.slow

HELD = Path(__file__).with_name("held.py")
QUICK = ["--set", "ending.seconds=4"]
SHORT = [*QUICK, "-a", "fedavg", "-a", "fedasync", "--jobs", "2"]
PLAIN = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")} | {"TERM": "xterm"}


def archipel(*arguments: str | Path, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command without a terminal."""
    return forked.archipel(arguments, cwd, PLAIN | (env or {}), rendered=False)


def in_terminal(*arguments: str, cwd: Path, columns: int = 80) -> tuple[int, str]:
    """Run the command in a terminal; return its exit code and its output."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    process = forked.Forked(arguments, cwd, PLAIN, (there, there, there))
    os.close(there)
    written = b""
    while True:
        try:
            some = os.read(here, 65536)
        except OSError:  # the other side is closed
            break
        if not some:
            break
        written += some
    os.close(here)
    return process.wait(600), written.decode()


def seen(text: str) -> str:
    """A terminal's text without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def fingerprints(folder: Path) -> dict[str, str]:
    return {
        str(path.parent.relative_to(folder)): json.loads(path.read_text())["fingerprint"]
        for path in sorted(folder.rglob("run.json"))
    }


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a short study has run in a pipe."""
    folder = tmp_path_factory.mktemp("run")
    done = archipel("run", *SHORT, "--jobs", "1", "-o", "results", cwd=folder)
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder


def test_in_a_pipe_results_go_to_one_side_and_progress_to_the_other(there: Path) -> None:
    out, err = (there / "stdout").read_text(), (there / "stderr").read_text()
    assert "\x1b" not in out + err
    assert "fedavg" in out
    assert "fedasync" in out
    assert re.search(r"^Report: .*results/report/index.html$", out, re.MULTILINE)
    assert "fedavg, seed 0: score" in err
    run = ap.load_run(there / "results" / "fedavg" / "seed-0")
    assert f"{run.score:.4f}" in err
    assert (there / "results" / "report" / "index.html").exists()


def test_in_a_terminal_of_80_columns_it_moves_and_fits(tmp_path: Path) -> None:
    code, written = in_terminal("run", *QUICK, "-a", "fedavg", "-a", "async_dvw", cwd=tmp_path)
    assert code == 0
    for heading in ("virtual s", "version", "score", "MB", "at work"):
        assert heading in written
    assert "of 2 runs done" in written
    assert "\x1b[" in written  # it moves
    shown = seen(written)
    lines = [line for line in re.split(r"[\r\n]+", shown) if "Report:" not in line]  # a path is not folded
    assert max(map(len, lines)) <= 80
    assert "Report: " in shown
    assert (tmp_path / "results" / "digits" / "async_dvw" / "seed-0" / "run.json").exists()


def test_no_color_means_no_colour(tmp_path: Path) -> None:
    done = archipel("run", "-s", "training.rat=1", cwd=tmp_path, env={"NO_COLOR": "1"})
    assert done.returncode == 2
    assert "\x1b" not in done.stderr


def test_json_is_for_programs(tmp_path: Path) -> None:
    done = archipel("run", *QUICK, "-a", "fedavg", "-s", "seeds=[0,1]", "-j", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0
    told = json.loads(done.stdout)
    assert told["folder"] == "results/digits"
    (method,) = told["methods"]
    assert method["method"] == "fedavg"
    assert method["seeds"] == [0, 1]
    scores = [ap.load_run(tmp_path / "results" / "digits" / "fedavg" / f"seed-{s}").final_score for s in (0, 1)]
    assert method["final"]["mean"] == pytest.approx(sum(scores) / 2)
    assert Path(tmp_path, told["page"]).exists()


def test_a_second_study_does_not_touch_the_first(there: Path) -> None:
    before = fingerprints(there / "results")
    done = archipel("run", *QUICK, "-a", "fedavg", "-o", "results", cwd=there)
    assert done.returncode == 2
    assert "results exists already; give another --out, or continue it with --resume results." in done.stderr
    assert fingerprints(there / "results") == before


@contextlib.contextmanager
def held(*arguments: str, cwd: Path) -> Iterator[tuple[forked.Forked, Callable[[], int]]]:
    """The command in a session of its own, with runs that stay at work until they are stopped, and how many are."""
    place = cwd / "held"
    place.mkdir()
    with (cwd / "stderr").open("wb") as said:
        streams = (None, None, said.fileno())
        process = forked.Forked(arguments, cwd, PLAIN | {"HELD": str(place)}, streams, program=HELD, session=True)
    try:
        yield process, lambda: len(list(place.iterdir()))
    finally:
        with contextlib.suppress(ProcessLookupError):  # there only after a failure
            os.killpg(process.pid, signal.SIGKILL)


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal."""
    caught = re.search(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)


def test_ctrl_c_keeps_what_is_done_and_resume_ends_with_the_same_bits(there: Path, tmp_path: Path) -> None:
    with held("run", *SHORT, "-o", "cut", cwd=tmp_path) as (process, at_work):
        until(lambda: at_work() == 2 or process.poll() is not None, "two runs under way")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes
        code, err = process.wait(600), (tmp_path / "stderr").read_text()
    assert code == 130, err
    assert "Traceback" not in err
    assert "continue with: archipel run --resume cut" in err
    assert not fingerprints(tmp_path / "cut")
    assert (tmp_path / "cut" / "fedasync" / "seed-0" / "checkpoint.safetensors").exists()
    resumed = archipel("run", "--resume", "cut", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert fingerprints(tmp_path / "cut") == fingerprints(there / "results")
    again = archipel("run", "--resume", "cut", cwd=tmp_path)  # nothing is left to do: the table is shown again
    assert again.returncode == 0
    assert again.stdout.splitlines()[:-1] == resumed.stdout.splitlines()[:-1]


@pytest.mark.parametrize(
    ("sign", "runs"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGTERM, 2)],
    ids=["Ctrl-C while workers start", "SIGTERM while workers start", "SIGTERM while runs are at work"],
)
def test_a_signal_to_all_processes_stops_cleanly_from_the_first_moment_on(
    sign: signal.Signals, runs: int, tmp_path: Path
) -> None:
    """A terminal's Ctrl-C and a cluster's SIGTERM reach the workers too, perhaps before they have started."""
    study = ["-a", "fedasync", "-a", "fed2a", "-j", "2"]
    with held("run", *study, "-o", "cut", cwd=tmp_path) as (process, at_work):
        # python handles Ctrl-C from its start on, but SIGTERM only once the study does
        def ready() -> bool:
            return handles(process.pid, signal.SIGTERM) and at_work() >= runs

        until(lambda: ready() or process.poll() is not None, f"a study with {runs} runs at work")
        os.killpg(process.pid, sign)
        code, err = process.wait(600), (tmp_path / "stderr").read_text()
    assert code == 130, err
    assert "Traceback" not in err
    assert "failed" not in err
    assert "continue with: archipel run --resume cut" in err


def test_a_label_may_look_like_markup(tmp_path: Path) -> None:
    label = "x[/y] [bold]z"
    done = archipel("run", *QUICK, "-s", f"algorithms=[{{name='fedavg', label='{label}'}}]", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"{label}, seed 0: score" in done.stderr
    assert label in done.stdout


def test_a_run_that_fails_is_told_once_and_the_exit_code_says_so(tmp_path: Path) -> None:
    half_bad = ["-s", "grid.data.split.learners=[10,7]", "-s", "seeds=[0,1]"]  # the fleet has ten
    done = archipel("run", *QUICK, "-a", "fedavg", *half_bad, "-j", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("Fleet: it has 10 learners") == 1
    assert len(re.findall(r"failed: fedavg, learners=7, seed [01]: the same", done.stderr)) == 1
    assert "2 runs failed" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "2 of 4 runs are not finished" in done.stdout
    assert "learners=10" in done.stdout
    bad = tmp_path / "results" / "digits" / "fedavg" / "data.split.learners=7" / "seed-0"
    assert "Traceback" in (bad / "error.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run", "nowhere.toml"], "There is no study nowhere.toml. `archipel new DIR` makes one"),
        (["run", "-a", "fedavgg"], "Did you mean 'fedavg'?"),
        (["run", "-d", "digit"], "Did you mean 'digits'?"),
        (["run", "-s", "training.rat=1"], "training.rat: is not known; did you mean 'rate'?"),
        (["run", "--resume", "."], "holds no results of a study"),
        (["run", "--resume", ".", "-a", "fedavg"], "give no other arguments"),
        (["run", "-s", "data.split.learners=7"], "Fleet: it has 10 learners (5 fast, 5 slow), the data have 7 islands"),
        (["run", "-o", "/dev/null/results"], "a part of this path is a file, and a directory is needed"),
        (["run", "--jobs", "0"], "greater than or equal to 1"),
        (["runn"], "No such command 'runn'"),
    ],
)
def test_mistakes_are_a_line_or_two_and_exit_with_2(
    arguments: Sequence[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process: none of them starts a run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["archipel", *arguments])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # the command sets its own
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert told in said
    assert not list(tmp_path.iterdir())
    if "Usage:" not in said:
        assert len(said.strip().splitlines()) <= 2


def test_debug_shows_where_it_arose(tmp_path: Path) -> None:
    done = archipel("run", "-a", "fedavgg", "--debug", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "files.py" in done.stderr


def test_version_and_help() -> None:
    assert archipel("--version", cwd=Path.cwd()).stdout.strip() == ap.__version__
    helped = archipel("run", "--help", cwd=Path.cwd(), env={"COLUMNS": "80"})
    assert helped.returncode == 0
    for option in ("--algorithm", "--data", "--set", "--out", "--resume", "--jobs", "--json"):
        assert option in helped.stdout
    assert max(map(len, helped.stdout.splitlines())) <= 80
