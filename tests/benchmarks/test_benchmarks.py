"""The benchmark measures what it says: the same work everywhere, ratios that a hand can check. No speed is asserted."""

from __future__ import annotations

import hashlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archipel.core.parts import Mean
from benchmarks import __main__ as command
from benchmarks import aggregation, workloads
from benchmarks.contenders import archipel_, bare, centralised
from benchmarks.entries import ENTRIES, Entry
from benchmarks.measures import Spread, measure, other_work, ratio
from benchmarks.race import ROOT, lap
from benchmarks.results import Sorted
from benchmarks.targets import Target, judge
from benchmarks.targets import aggregation as judge_aggregation
from benchmarks.workloads import WORKLOADS, Workload, data, initial, mine, selections
from tests.ways import NATIVE

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run a contender in this process, and read its line."""
    threads = torch.get_num_threads()

    def one(contender: Any, *arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["contender", *arguments])
        contender.main()
        line: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
        return line

    yield one
    torch.set_num_threads(threads)


def line(ends: list[float], ready: float = 1.0, updates: int = 10, **others: float) -> dict[str, Any]:
    """What a contender would tell."""
    told = {"ready": ready, "rounds": ends, "updates": updates, "whole": ends[-1] + 1, "peak_mb": 100.0, "loss": 1.0}
    return {**told, "steps": 2 * updates, "version": "1", "setting": "by hand", "asked": None, **others}


# ---------------------------------------------------------------------------------------------------- workloads


def fingerprint(workload: Workload) -> str:
    digest = hashlib.sha256()
    for array in (*data(workload), *initial(workload), np.array(selections(workload))):
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def elsewhere(program: str) -> str:
    """What a program prints in a process of its own."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["W2", "tiny-images"])
def test_workloads_are_the_same_in_every_process(name: str) -> None:
    imports = "import hashlib, numpy as np; from benchmarks.workloads import *"
    program = f"{imports}\n{inspect.getsource(fingerprint)}\nprint(fingerprint(WORKLOADS[{name!r}]))"
    assert elsewhere(program) == fingerprint(WORKLOADS[name])


def test_workloads_need_numpy_alone() -> None:
    """Peers import them in environments of their own."""
    program = "import sys, benchmarks.contenders.protocol; print({'torch', 'archipel'} & set(sys.modules))"
    assert elsewhere(program) == "set()"


@pytest.mark.parametrize("name", ["tiny", "tiny-images"])
def test_workloads_are_what_their_record_says(name: str) -> None:
    workload = WORKLOADS[name]
    x, y = data(workload)
    assert x.shape == (workload.learners * workload.examples, *workload.shape)
    assert set(y) == set(range(workload.classes))
    assert len(x[mine(workload, workload.learners - 1)]) == workload.examples
    chosen = selections(workload)
    assert [len(set(some)) for some in chosen] == [workload.per_round] * workload.rounds


# --------------------------------------------------------------------------------------------------- contenders


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny", "tiny-images"])
def test_contenders_do_the_same_work(run: Run, name: str) -> None:
    """Batches are drawn by each contender itself, so only losses are compared here."""
    workload = WORKLOADS[name]
    loop = run(bare, "--workload", name)
    ours = run(archipel_, "--workload", name)
    pooled = run(centralised, "--workload", name)
    assert other_work(loop, workload, None) is None
    assert other_work(ours, workload, loop["loss"]) is None
    assert other_work(pooled, workload, None) is None
    for told in (loop, ours, pooled):
        assert len(told["rounds"]) == workload.rounds
        assert told["imported"] <= told["ready"] < told["rounds"][0] < told["rounds"][-1] <= told["stopped"]


@pytest.mark.slow
@pytest.mark.parametrize("execution", ["plain", "workers", "stacked", NATIVE])
def test_archipel_and_the_bare_loop_agree_where_batches_have_no_order(
    run: Run, monkeypatch: pytest.MonkeyPatch, execution: str
) -> None:
    tiny = WORKLOADS["tiny"]
    monkeypatch.setitem(workloads.WORKLOADS, "tiny", replace(tiny, batch=tiny.examples, epochs=3))
    loop = run(bare, "--workload", "tiny")
    ours = run(archipel_, "--workload", "tiny", "--execution", execution)
    assert ours["loss"] == pytest.approx(loop["loss"], abs=1e-5)
    assert execution in ours["setting"]


def test_streams_commit_as_often_as_asked(run: Run) -> None:
    for algorithm in ("async_fedavg", "async_dvw"):
        told = run(archipel_, "--workload", "tiny-stream", "--algorithm", algorithm, "--rounds", "15")
        assert other_work(told, replace(WORKLOADS["tiny-stream"], rounds=15), None) is None


def test_a_contender_says_what_it_cannot_do(run: Run) -> None:
    with pytest.raises(SystemExit) as ended:
        run(bare, "--workload", "tiny-stream")
    assert ended.value.code == 0


@pytest.mark.slow
def test_a_lap_is_watched_from_outside() -> None:
    (entry,) = (entry for entry in ENTRIES if entry.name == "bare, 1 thread")
    told = lap(entry, "tiny-images", rounds=1)
    assert told["whole"] > told["rounds"][-1]
    assert told["peak_mb"] > 50
    broken = lap(replace(entry, script="nobody"), "tiny-images")
    assert "nobody" in broken["failed"]


# ----------------------------------------------------------------------------------------------------- measures


def test_measures_by_hand() -> None:
    told = line([2.0, 2.5, 3.0, 3.5, 4.0], ready=1.0, updates=10)
    assert measure(told, "first second") == pytest.approx(10 / 3)
    assert measure(told, "warm") == pytest.approx(8 / 2)  # without the first of five rounds
    assert measure(told, "whole") == 5.0
    assert measure(line([2.0, 3.0]), "warm") == measure(line([2.0, 3.0]), "first second")  # too short to leave some out


def test_ratios_are_taken_within_a_repeat() -> None:
    ours = {0: line([2.0]), 1: line([5.0]), 2: line([3.0])}  # 10, 2.5 and 5 updates/s
    theirs = {0: line([3.0]), 1: line([9.0])}  # 5 and 1.25
    assert ratio(ours, theirs, "first second") == Spread(2.0, 2.0, 2.0)
    whole = ratio(ours, theirs, "whole")
    assert whole is not None
    assert whole.middle == pytest.approx((4 / 3 + 10 / 6) / 2)
    assert ratio(ours, {}, "whole") is None


def test_other_load_is_reported() -> None:
    workload = replace(WORKLOADS["tiny"], rounds=1)  # 3 updates of 4 steps, 3 classes
    same = {"updates": 3, "steps": 12, "loss": 0.5}
    assert other_work(same, workload, 0.5) is None
    assert other_work(same, workload, 0.55) is None  # a tenth of the way from log 3
    assert "loss" in str(other_work(same, workload, 0.6))
    assert "loss" in str(other_work({**same, "loss": float("nan")}, workload, 0.5))
    assert "11 steps" in str(other_work({**same, "steps": 11}, workload, 0.5))


def test_targets_are_judged_by_the_best_setting() -> None:
    laps = {
        "W2": {
            "archipel": {0: line([1.5])},  # 20 updates/s
            "bare, 1 thread": {0: line([3.0])},  # 5
            "bare, 2 threads": {0: line([6.0])},
        }
    }
    assert judge(Target("W2", "first second", ("bare",), 4.0), laps).reached is True
    assert judge(Target("W2", "first second", ("bare",), 4.1), laps).reached is False
    assert judge(Target("W2", "memory", ("bare",), 1.0), laps).reached is True
    assert judge(Target("W2", "first second", ("flower",), 30), laps).reached is None


def test_what_did_other_work_is_not_compared() -> None:
    workload = WORKLOADS["tiny"]
    updates = workload.rounds * workload.per_round
    good = line([2.0], updates=updates, steps=updates * workload.steps)
    laps = [
        {"workload": "tiny", "entry": "bare, 1 thread", "repeat": 0, **good},
        {"workload": "tiny", "entry": "archipel", "repeat": 0, **good},
        {"workload": "tiny", "entry": "pfl", "repeat": 0, **good, "loss": 2.0},
        {"workload": "tiny", "entry": "centralised, 1 thread", "repeat": 0, **good, "loss": 0.1},  # by nature
        {"workload": "tiny", "entry": "flower", "repeat": 0, "failed": "no such module"},
    ]
    found = Sorted({"laps": laps})
    assert set(found.comparable["tiny"]) == {"bare, 1 thread", "archipel", "centralised, 1 thread"}
    assert found.remarks["tiny", "pfl"].startswith("other work: final loss")
    assert found.remarks["tiny", "flower"] == "failed: no such module"


# -------------------------------------------------------------------------------------------------- aggregation


def test_aggregation_means_what_the_naive_way_means() -> None:
    federation = aggregation.Federation(3, 1000)
    proposal = Mean().merge(federation.view(), federation.updates, federation.alike())
    naive = aggregation.naive(federation.dictionaries(), [1.0, 2.0, 3.0])
    assert torch.allclose(proposal.vector, torch.cat([naive[f"layer{i}.weight"] for i in range(aggregation.LAYERS)]))


def test_commits_keep_the_community_model() -> None:
    federation = aggregation.Federation(4, 1000)
    commits = aggregation.Commits(federation)
    for _ in range(9):
        commits.one()
    weights = {0: 8 % 3, 1: 5 % 3, 2: 6 % 3, 3: 7 % 3}  # of each learner's last turn
    rows = {k: federation.models.read(federation.updates[k].model.name).double() for k in weights}
    expected = torch.stack([(1.0 + weights[k]) * rows[k] for k in weights]).sum(0)
    assert torch.allclose(federation.models.read("merge/sum"), expected)


@pytest.mark.slow
def test_aggregation_in_miniature() -> None:
    threads = torch.get_num_threads()
    cases = aggregation.cases(2000, [2, 4], 2, aggregation.Bandwidth(2**12))
    torch.set_num_threads(threads)
    assert all(case["triad GB/s"] > 0 and case["mean of triad"] > 0 for case in cases)
    said = [verdict.says for verdict in judge_aggregation(cases)]
    assert "commit at 2e+03 flat over N = 2, 4 within 1.1" in said
    assert len(said) == 3  # too small to hold the means against the bandwidth


# ------------------------------------------------------------------------------------------------- the command


def test_the_command_tells_and_keeps_what_it_finds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    workload = WORKLOADS["tiny"]
    updates = workload.rounds * workload.per_round

    def one(entry: Entry, *_: Any) -> dict[str, Any]:
        if entry.contender == "centralised":
            return {"failed": "no more memory"}
        seconds = 2.0 if entry.contender == "archipel" else 3.0
        return line([1.0 + seconds], updates=updates, steps=updates * workload.steps)

    monkeypatch.setattr("benchmarks.race.lap", one)
    monkeypatch.setenv("COLUMNS", "160")
    out = tmp_path / "results.json"
    given = ["--workloads", "tiny", "--contenders", "archipel", "bare", "centralised", "--repeats", "2"]
    monkeypatch.setattr(sys, "argv", ["benchmarks", *given, "--out", str(out)])
    command.main()
    told = capsys.readouterr().out
    assert "1.5" in told
    assert "failed: no more memory" in told
    results = json.loads(out.read_text())
    assert len(results["laps"]) == 2 * 5
    assert not {"host", "hostname", "path"} & set(results["machine"])
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--show", str(out)])
    command.main()
    assert capsys.readouterr().out == told
