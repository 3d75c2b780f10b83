"""The benchmark of clusters: which parts run, what is stored, and how goals and shares are judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cluster, cluster_table

ROW = {"process of the driver": 0.008, cluster.RAY: 0.002, cluster.ACTORS: 0.006, cluster.DRIVER: 0.004}


def test_all_parts_run_unless_some_are_named_and_others_stay_stored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "cluster.json"
    for turn, given in enumerate(([], ["losses"])):
        for part in cluster.PARTS:
            monkeypatch.setattr(cluster, part, lambda repeats, part=part, turn=turn: {part: [turn, repeats]})
        monkeypatch.setattr(sys, "argv", ["cluster", *given, "--repeats", "2", "--out", str(out)])
        cluster.main()
    found = json.loads(out.read_text())
    assert {part: found[part][part] for part in cluster.PARTS} == {
        part: [int(part == "losses"), 2] for part in cluster.PARTS
    }
    assert found["machine"]["cores"] >= 1


def test_a_peak_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(cluster, "peak", asked.append)
    monkeypatch.setattr(sys, "argv", ["cluster", "--peak", "24"])
    cluster.main()
    assert asked == [24]


@pytest.mark.parametrize(("cores", "seconds"), [(1, 0.016), (2, 0.008), (8, 0.004)])
def test_the_pace_is_the_drivers_own_or_that_of_all_on_these_cores(
    cores: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(cores)))
    assert cluster.pace(ROW) == pytest.approx(seconds)


def test_an_actor_or_the_pace_limits_the_efficiency() -> None:
    few, many = ({"actors": actors, "seconds": 0.2} for actors in (2, 100))
    assert cluster.predicted(few, ROW, 0.004) == pytest.approx(0.2 / 0.206)
    assert cluster.predicted(many, ROW, 0.004) == pytest.approx(0.5)


def outcome(by: float) -> dict[str, Any]:
    """Return an outcome that reaches every goal by so much."""
    rows = [
        {"actors on": "driver's node", "actors": actors, "seconds": seconds, "efficiency": least + by}
        for (actors, seconds), least in cluster_table.KEPT_BUSY.items()
    ]
    ratios = [9.0, 1.25 - by, 0.1]  # the middle one counts
    return {
        "workloads": {name: {"time over local workers": ratios} for name in ("W1", "W3")},
        "sleeping": {"rows": rows},
        "losses": {"nothing lost": 99.0, "actor killed: seconds more": 10 - by},
        "memory": {
            "parameters": 10,
            "actors": 8,
            "learners": 64,
            "model (MB)": 40.0,
            "driver (MB)": 540 - by,
            "driver with a small network (MB)": 1.0,
        },
    }


@pytest.mark.parametrize(("by", "reached"), [(0.01, True), (-0.01, False)])
def test_goals_are_judged_one_by_one(by: float, reached: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster_table, "MEASURED", tmp_path)  # no race with Flower is stored there
    found = list(cluster_table.goals(outcome(by)))
    assert len(found) == 6
    assert [one.reached for one in found] == [reached] * 6, found


def test_what_was_not_measured_is_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster_table, "MEASURED", tmp_path)
    found = list(cluster_table.goals({name: outcome(1)[name] for name in ("losses", "memory")}))
    assert [one.reached for one in found] == [None] * 4 + [True] * 2
