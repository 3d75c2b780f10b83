"""A run written by hand whose state at every moment is known, and folders with it."""

from __future__ import annotations

from pathlib import Path

import archipel as ap
from archipel.core.records import (
    Committed,
    Handed,
    Membership,
    PrivacySpent,
    Record,
    Refused,
    Returned,
    Scores,
    Stamped,
)
from archipel.runs.run_data import Participant
from archipel.runs.save import save_run
from tests.made_runs import MB, written

HOSTILE = "<img src=x onerror=window.hacked=1>'\"$(reboot)"
"""A learner's name that would run, if it ever became markup."""


def returned(task: int, learner: str, version: int) -> Returned:
    return Returned(task, learner, version, 10, 1.0, ("0",), (2.0, 1.0), False)


def committed(
    version: int,
    tasks: tuple[int, int],
    stale: int = 0,
    norms: tuple[float, ...] = (),
    clipped: tuple[bool, ...] = (),
) -> Committed:
    traffic = {"train down bytes": 2 * version * MB, "train up bytes": version * MB, "score down bytes": 5 * MB}
    learners = ("a", HOSTILE)
    return Committed(
        version,
        version,
        learners,
        tuple((name,) for name in learners),
        tasks,
        ((0.6,), (0.2,)),
        (stale, 0),
        (0, 0),
        (0,),
        traffic,
        norms,
        clipped,
    )


FILM: tuple[tuple[float, Record], ...] = (
    *((0.0, Membership(name, True)) for name in ("a", HOSTILE, "c")),
    (0.0, Handed(1, "a", 0, 0)),
    (0.0, Handed(2, HOSTILE, 0, 1)),
    (0.0, Handed(3, "c", 0, 2)),
    (1.0, returned(1, "a", 0)),
    (2.0, returned(2, HOSTILE, 0)),
    (2.0, committed(1, (1, 2), norms=(2.0, 2.5), clipped=(False, True))),
    (2.0, PrivacySpent(1, 1.25, 1e-5, 2.0, 1.0)),
    (2.0, Handed(4, "a", 1, 0)),
    (2.0, Handed(5, HOSTILE, 1, 1)),
    (3.0, Scores(1, 1, {"accuracy": 0.5}, 10, 1)),
    (3.0, Refused(3, "c", f"late {HOSTILE}")),
    (4.0, Membership("c", False)),
    (4.0, returned(4, "a", 1)),
    (5.0, returned(5, HOSTILE, 1)),
    (5.0, committed(2, (4, 5), stale=3, norms=(9.0, 0.5), clipped=(True, False))),
    (5.0, PrivacySpent(2, 2.5, 1e-5, 2.0, 1.0)),
    (5.0, Scores(2, 2, {"accuracy": 0.75}, 10, 1)),
)


def film_run(name: str = "fedavg", seed: int = 0) -> ap.Run:
    """Return the run of the film."""
    return written(
        [0.5],
        name=name,
        seed=seed,
        records=tuple(Stamped(time, record) for time, record in FILM),
        participants=tuple(Participant(learner, "fast", "train", 10) for learner in ("a", HOSTILE, "c")),
        seconds=6.0,
        rounds=2,
        layers={"train down": {"0": 4 * MB}, "train up": {"0": 2 * MB}},
    )


def save_film(folder: Path) -> Path:
    """Save a study's folder: two methods, of which the second has no run yet."""
    save_run(film_run("<b>fedavg</b>"), folder / "first", parquet=False)
    save_run(written([0.1, 0.2, 0.3], name="fedasync"), folder / "second", parquet=False)
    (folder / "runs.json").write_text('["first", "second", "third"]')
    (folder / "study.toml").write_text('title = "<script>window.hacked=1</script>"\n')
    return folder
