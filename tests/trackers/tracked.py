"""What the tests of the trackers share: runs, the charts they should end in, and readers of what the tools stored."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import archipel as ap
from archipel.core.records import Committed, Divergence, Refused, Returned, Scores, Shadow
from archipel.simulation.simulate import prepare

MB = 2**20
SETTINGS = {"algorithm.name": "of a test", "seed": 3, "algorithm.rate": 0.5, "shadow": True, "data.sizes": [60, 60]}


# ------------------------------------------------------------------------------------------------------------ runs


@cache
def islands() -> ap.data.Islands:
    return ap.data.digits().split(learners=4, sizes=(60,) * 4)


@cache
def stream() -> ap.Run:
    """Commits one by one, with validation cycles, lost tasks, and scores that come after the next commit."""
    return ap.simulate(
        ap.async_dvw(batch=10, at_most=2),
        islands(),
        fleet=ap.Fleet(ap.Group("lossy", 4, drop_rate=0.3)),
        evaluation=ap.Evaluation(at="learners"),
        ending=ap.Ending(rounds=6),
    )


@cache
def relay() -> ap.Run:
    """A relay with two hops to a commit and all records of a shadow run."""
    return ap.simulate(ap.radfed(fraction=0.75, hops=2, batch=10), islands(), ending=ap.Ending(rounds=8), shadow=True)


def simulator() -> Any:
    """A run of 20 commits that can be cut off."""
    return prepare(ap.async_dvw(batch=10, at_most=2), islands(), ending=ap.Ending(rounds=5))


def committed(version: int, rounds: int = 1, stale: tuple[int, ...] = (0,), **traffic: int) -> Committed:
    """A commit by hand."""
    learners = tuple("abc"[: len(stale)])
    return Committed(
        version=version,
        rounds=rounds,
        learners=learners,
        paths=tuple((name,) for name in learners),
        tasks=tuple(range(len(stale))),
        weights=((1.0,),) * len(stale),
        stale_versions=stale,
        stale_steps=tuple(10 * n for n in stale),
        layers=(0,),
        traffic={kind.replace("_", " "): n for kind, n in traffic.items()},
    )


# ---------------------------------------------------------------------------------- what the charts should show


def charts_of(run: ap.Run) -> dict[str, dict[int, float]]:
    """Every chart by version, read off the records one chart after the other."""
    records = [stamped.record for stamped in run.records]
    charts: dict[str, dict[int, float]] = {}

    def point(chart: str, version: int, value: float) -> None:
        assert version not in charts.setdefault(chart, {}), "one point a version"
        charts[chart][version] = value

    if any(scores.version == 0 for _, scores in run.scores):
        for axis in ("seconds", "rounds", "megabytes"):
            point(f"axis/{axis}", 0, 0.0)
    for time, commit in run.commits:
        bytes_moved = {kind: n for kind, n in commit.traffic.items() if "bytes" in kind}
        point("axis/seconds", commit.version, time)
        point("axis/rounds", commit.version, commit.rounds)
        point("axis/megabytes", commit.version, sum(n for k, n in bytes_moved.items() if "score" not in k) / MB)
        point("commit/contributors", commit.version, len(commit.learners))
        point("commit/stale versions", commit.version, sum(commit.stale_versions) / len(commit.learners))
        point("commit/stale steps", commit.version, sum(commit.stale_steps) / len(commit.learners))
        for kind, n in bytes_moved.items():
            point(f"megabytes/{kind[:-6]}", commit.version, n / MB)
    begin = 0
    for place, record in enumerate(records):
        if isinstance(record, Committed):
            cycles = [r.losses for r in records[begin:place] if isinstance(r, Returned) and r.losses]
            if cycles:
                point("learners/loss before training", record.version, fmean(losses[0] for losses in cycles))
                point("learners/loss after training", record.version, fmean(losses[-1] for losses in cycles))
            refused = sum(isinstance(r, Refused) for r in records[:place])
            point("commit/refused so far", record.version, refused)
            begin = place
    for record in records:
        if isinstance(record, Scores):
            for metric, value in record.metrics.items():
                point(f"score/{metric}", record.version, value)
        if isinstance(record, Divergence):
            for name, value in zip(record.names, record.values, strict=True):
                point(f"divergence/layer {name}", record.version, value)
    rounds: list[float] = []
    for place, record in enumerate(records):
        if isinstance(record, Shadow):
            rounds += [] if record.dl is None else [record.dl]
            if record.dc is not None:
                version = max(r.version for r in records[:place] if isinstance(r, Committed))
                point("divergence/DC", version, record.dc)
                point("divergence/DL", version, fmean(rounds))
                rounds = []
    for name, value in final_of(run).items():
        point(name, len(run.commits), value)
    return charts


def final_of(run: ap.Run) -> dict[str, float]:
    moved = sum(run.traffic.get(f"{kind} bytes", 0) for kind in ("train down", "train up", "evaluate down"))
    return {
        "final/score": run.final_score,
        "final/last score": run.scores[-1][1].metrics["accuracy"],
        "final/seconds": run.seconds,
        "final/rounds": run.rounds,
        "final/commits": len(run.commits),
        "final/refused": len(run.refusals),
        "final/megabytes": moved / MB,
    }


# --------------------------------------------------------------------------------------------------------- readers


def read(tool: str, folder: Path) -> dict[str, dict[int, float]]:
    """Every chart by version, as the tool has stored it."""
    return {"tensorboard": read_tensorboard, "mlflow": read_mlflow, "wandb": read_wandb}[tool](folder)


def events(folder: Path) -> Any:
    """TensorBoard's own reader of everything in the folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def read_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    accumulated = events(folder)
    return {
        chart: once((e.step, e.value) for e in accumulated.Scalars(chart)) for chart in accumulated.Tags()["scalars"]
    }


def read_mlflow(folder: Path) -> dict[str, dict[int, float]]:
    from mlflow import MlflowClient

    client, run = MlflowClient(), (folder / "mlflow-run-id").read_text()
    return {
        chart: once((metric.step, metric.value) for metric in client.get_metric_history(run, chart))
        for chart in client.get_run(run).data.metrics
    }


def read_wandb(folder: Path) -> dict[str, dict[int, float]]:
    """The history, and at the last version what the summary alone has."""
    charts: dict[str, list[tuple[int, float]]] = {}
    final = {}
    for record in wandb_records(folder):
        for update in record.summary.update:
            key = update.key or "/".join(update.nested_key)
            if key.startswith("final/"):
                final[key] = json.loads(update.value_json)
        if record.WhichOneof("record_type") == "history":
            row = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            for chart, value in row.items():
                if "/" in chart:
                    charts.setdefault(chart, []).append((row["version"], value))
    found = {
        # a row has its axes, whichever of its version it is
        chart: dict(points) if chart.startswith("axis/") else once(points)
        for chart, points in charts.items()
    }
    last = max(found["axis/seconds"])
    return {**found, **{chart: {last: value} for chart, value in final.items()}}


def wandb_records(folder: Path) -> Iterator[Any]:
    """What is in the one file that `wandb sync` would send: a LevelDB log of Protocol Buffers."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    wandb.teardown()  # its other process ends the file a moment after a run has finished
    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    data, place, whole = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:  # the rest of a block is too small for a head
            place += left
            continue
        _, size, kind = struct.unpack("<IHB", data[place : place + 7])
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # all of a record, or its last part
            yield Record.FromString(whole)
            whole = b""


def once(points: Any) -> dict[int, float]:
    points = list(points)
    assert len({step for step, _ in points}) == len(points), f"a point was told twice: {points}"
    return dict(points)
