"""`archipel reproduce` as people run it: the list, a table in 80 columns, typing errors, Ctrl-C and resuming."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from archipel.papers.catalogue import NAMES
from tests import forked
from tests.waiting import until

pytestmark = pytest.mark.slow

HELD = str(Path(__file__).with_name("held.py"))
PLAIN = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR", "ARCHIPEL_DATA")}
QUICK = ("hdafl-table4", "--scale", "smoke", "--jobs", "1")
"""Of digits, which come with the installation."""


def reproduce(*arguments: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return forked.archipel(["reproduce", *arguments], cwd, PLAIN | env, rendered=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A folder with a finished reproduction, and what was printed."""
    place = tmp_path_factory.mktemp("finished")
    return place, reproduce(*QUICK, cwd=place)


def test_the_list_names_all_with_what_they_claim(tmp_path: Path) -> None:
    plain, told = reproduce("--list", cwd=tmp_path), reproduce("--list", "--json", cwd=tmp_path)
    assert plain.returncode == told.returncode == 0, plain.stderr + told.stderr
    listed = json.loads(told.stdout)
    assert [one["name"] for one in listed] == list(NAMES)
    for one in listed:
        assert f"  {one['name']} " in plain.stdout
        assert one["title"] in plain.stdout
        assert all(claim in plain.stdout for claim in one["claims"])
        assert set(one["scales"]) == {"smoke", "small", "full"}
    verdicts = {one["name"]: one["verdicts"] for one in listed}
    assert verdicts["hdafl-table5"]["seeds"] == [0, 1, 2, 3, 4]
    held = "HDAFL saves more bytes than FedAvg"
    assert verdicts["hdafl-table5"]["holds"][held] is True
    assert re.search(rf"holds +{held}", plain.stdout)
    assert "(small, 5 seeds)" in plain.stdout


def test_a_table_the_claims_and_where_the_runs_are(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    place, shown = finished
    assert shown.returncode == 0, shown.stderr
    table = shown.stdout.partition("not judged")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert "50 of 100  HDAFL, rounds" in table
    assert "86.8  not run" in table
    # three rounds decide nothing
    assert "\nholds" not in shown.stdout
    assert "not judged: HDAFL needs fewer rounds" in shown.stdout
    assert "Runs and reports: results/hdafl-table4-smoke" in shown.stdout
    assert (place / "results" / "hdafl-table4-smoke" / "noniid-50" / "runs.json").exists()


def test_what_is_done_is_shown_again_and_not_done_again(
    finished: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    place, _ = finished
    results = place / "results" / "hdafl-table4-smoke"
    run = results / "noniid-50" / "hdafl" / "seed-0" / "run.json"
    before = run.stat().st_mtime_ns
    again = reproduce(*QUICK, "--json", cwd=place)
    assert again.returncode == 0, again.stderr
    assert run.stat().st_mtime_ns == before
    assert json.loads(again.stdout) == json.loads((results / "reproduction.json").read_text())


def test_another_reproduction_is_not_put_beside_it(finished: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    place, _ = finished
    results = place / "results" / "hdafl-table4-smoke"
    refused = reproduce("hdafl-table3", "--scale", "smoke", "--out", results, cwd=place)
    assert refused.returncode == 2
    assert "holds 'hdafl-table4 noniid-50, smoke'" in refused.stderr
    assert "Give another folder." in refused.stderr
    assert not (results / "iid-50").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("Dear diary")
    refused = reproduce(*QUICK, "--out", "mine", cwd=tmp_path)
    assert refused.returncode == 2
    assert "mine is there already, and no reproduction was begun in it." in refused.stderr
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["diary.txt"]


def test_a_name_that_is_not_there(tmp_path: Path) -> None:
    refused = reproduce("hdafl-tabel4", cwd=tmp_path)
    assert refused.returncode == 2
    assert "did you mean 'hdafl-table4'? --list names all." in refused.stderr


def test_missing_data_name_the_way_out(tmp_path: Path) -> None:
    refused = reproduce(
        "hdafl-table4", "--scale", "full", cwd=tmp_path, ARCHIPEL_DATA=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "c")
    )
    assert refused.returncode == 2
    assert "femnist: its files are not on this machine." in refused.stderr
    assert "FEMNIST is made by LEAF" in refused.stderr
    assert not (tmp_path / "results").exists()


def test_stopped_by_ctrl_c_and_resumed(tmp_path: Path) -> None:
    held = tmp_path / "held"
    held.mkdir()
    process = subprocess.Popen(
        [sys.executable, HELD, "reproduce", *QUICK, "--out", "my folder"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=PLAIN | {"HELD": str(held)},
    )
    until(lambda: any(held.iterdir()) or process.poll() is not None, "a run that is under way")
    process.send_signal(signal.SIGINT)
    printed, told = process.communicate(timeout=600)
    assert "running" in told
    assert process.returncode == 130, told
    assert "stopped; continue with: archipel reproduce hdafl-table4 --scale smoke --out 'my folder'" in told
    assert not printed
    on = reproduce(*QUICK, "--out", "my folder", cwd=tmp_path)
    assert on.returncode == 0, on.stderr
    assert (tmp_path / "my folder" / "reproduction.json").exists()
