"""The scores of all runs of a reproduction, kept beside its figures: what another way of scoring needs of them.

`archipel reproduce` writes them into the folder of its results as scores.json.gz.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archipel.papers.finished_runs import FinishedRuns
from archipel.runs.run import Run
from archipel.storage.atomic_files import write_bytes

SCORES_FILE = "scores.json.gz"


def scores_of_run(run: Run) -> dict[str, Any]:
    """Return a run's commits (second, version, local rounds) and scores (version, test score, validation score)."""
    return {
        "method": run.name,
        "seed": run.seed,
        "fold": run.fold,
        "metric": run.metric,
        "budget": run.budget,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "commits": [[time, commit.version, commit.rounds] for time, commit in run.commits],
        "scores": [
            [one.version, _told(one.metrics, run.metric), _told(one.validation, run.metric)] for _, one in run.scores
        ],
    }


def keep_scores(evidence: FinishedRuns) -> None:
    """Write the scores of all runs into the folder of the results."""
    found = {part.name: [scores_of_run(run) for run in evidence.results(part.name)] for part in evidence.trained()}
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
    write_bytes(evidence.folder / SCORES_FILE, gzip.compress(text.encode(), mtime=0))


def read_scores(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what was kept: the runs of each study."""
    found: dict[str, list[dict[str, Any]]] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def _told(metrics: Mapping[str, float], metric: str) -> float | None:
    value = metrics.get(metric, math.nan)
    return value if math.isfinite(value) else None
