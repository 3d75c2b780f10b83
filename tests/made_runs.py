"""Runs that were never run: records written by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

import archipel as ap
from archipel.core.records import Committed, Scores, Stamped
from archipel.runs.run_data import Participant

MB = 2**20


def _traffic_until(version: int) -> dict[str, int]:
    """Return what has travelled by a version: 2 MB up and 1 MB down for each, and more for evaluations and scores."""
    return {
        "train up bytes": 2 * version * MB,
        "train up models": 2 * version,
        "train down bytes": version * MB,
        "train down models": version,
        "evaluate down bytes": version * MB // 2,
        "evaluate down models": version,
        "score down bytes": 100 * version * MB,
        "score down models": 100 * version,
    }


def written(
    scores: Sequence[float],
    *,
    name: str = "fedavg",
    seed: int = 0,
    metric: str = "accuracy",
    every: float = 10.0,
    rounds: int = 1,
    stale: int = 0,
    **others: Any,
) -> ap.Run:
    """Return a run scored at every commit: scores[v] at second v * every and round v * rounds.

    Every commit takes 2 MB up and 1 MB down. A score of NaN is left out of the record, as the controller does it.
    """
    records, traffic = _records(scores, metric, every, rounds, stale)
    last = len(scores) - 1
    layout = ap.Layout.of(nn.Linear(1, 1))
    return ap.Run(
        **{
            "name": name,
            "algorithm": f"Algorithm(name={name!r}, protocol=Rounds(0.5))",
            "seed": seed,
            "participants": (Participant("a", "fast", "train", 60), Participant("b", "slow", "train", 40)),
            "layout": layout,
            "model": torch.zeros(layout.size),
            "private": {},
            "records": tuple(records),
            "seconds": last * every,
            "reason": "it was written so",
            "execution": "by hand",
            "metric": metric,
            "scored_at": "home",
            "scored_mean": "examples",
            "rounds": last * rounds,
            "budget": "rounds",
            "traffic": traffic,
            "layers": {},
            **others,
        }
    )


def _records(
    scores: Sequence[float], metric: str, every: float, rounds: int, stale: int
) -> tuple[list[Stamped], dict[str, int]]:
    """Return the records of such a run, and its traffic."""
    records: list[Stamped] = []
    traffic: dict[str, int] = {}
    for version, score in enumerate(scores):
        if version > 0:
            traffic = _traffic_until(version)
            commit = Committed(
                version, version * rounds, ("a",), (("a",),), (version,), ((1.0,),), (stale,), (stale,), (0,), traffic
            )
            records.append(Stamped(version * every, commit))
        metrics = {} if math.isnan(score) else {metric: score}
        records.append(Stamped(version * every, Scores(version, version * rounds, metrics, 100, 1)))
    return records, traffic
