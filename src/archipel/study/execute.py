"""Execute one run of a study in a folder: start or resume it, report progress, save it at the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from archipel.core.checks import ArchipelWarning
from archipel.core.records import Scores, Stamped
from archipel.kernels.threads import threads
from archipel.runs.run import Run
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.cluster.connection import Cluster, ClusterLost
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Simulator
from archipel.study.build import build_algorithm, build_data, build_settings
from archipel.study.files import study_of, write_study
from archipel.study.live_file import LiveFile
from archipel.study.own_code import Code
from archipel.trackers import Tracker, tracker

LIVE_PAGE = "the live page"
"""Its name in notices."""
LOOK = 0.2
"""Real seconds between two progress reports of a run."""
SAVE = 20.0
"""Real seconds between two checkpoints: the most work that a failure of the machine can cost."""


@dataclass(frozen=True)
class RunJob:
    """A run to execute, as plain data that can be sent to another process."""

    study: dict[str, Any]
    """The study of this run alone, as written."""
    folder: str
    settings: Mapping[str, Any]
    """The grid's settings for it."""
    tuned: Mapping[str, Any]
    """The settings that tuning has chosen for it."""
    fold: int | None
    code: Code = "beside"
    """Which code the study may run."""
    cluster: Cluster | None = None
    """Where its learners are trained; None: in this process."""
    live: bool = False
    """Whether to write its records to a file while it runs, for the live page."""
    mixed: str = ""
    """How the machine that executes it differs from the one that began the study."""


@dataclass(frozen=True)
class RunProgress:
    """The progress of a run."""

    share: float
    """Share of its ending, from 0 to 1."""
    seconds: float
    """Virtual time."""
    version: int
    rounds: int
    score: float | None
    megabytes: float
    at_work: int
    """Training tasks that are out."""


@dataclass(frozen=True)
class RunNotice:
    """The text of a warning."""

    text: str


def execute(job: RunJob, tell: Callable[[RunProgress | RunNotice], bool]) -> bool:
    """Execute a run or the rest of it; return False if it was stopped before its end."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ArchipelWarning)
        simulator, saved = _ready(job)
    for warning in caught:
        if issubclass(warning.category, ArchipelWarning):
            tell(RunNotice(str(warning.message)))
    audience = Audience(job, simulator, tell)
    try:
        with threads(study_of(job.study, code=job.code).simulation.threads):
            whole = _carry_on(job, simulator, saved, audience, tell)
    except BaseException:
        audience.end(None)
        raise
    finally:
        simulator.close()
    audience.end(whole)
    return whole is not None


def _carry_on(
    job: RunJob,
    simulator: Simulator,
    saved: Checkpoint,
    audience: Audience,
    tell: Callable[[RunProgress | RunNotice], bool],
) -> Run | None:
    """Run to the end and save; return None if the run was stopped."""
    metric = simulator.controller.evaluation.metric if simulator.controller.evaluation else ""
    heard, score, last_saved = 0, None, simulator.worked
    while True:
        try:
            simulator.run(real_seconds=LOOK)
        except ClusterLost:
            saved.save(simulator)
            raise
        for stamped in simulator.records[heard:]:
            audience.record(stamped)
            if isinstance(stamped.record, Scores):
                score = stamped.record.metrics.get(metric)
        heard = len(simulator.records)
        progress = _progress(simulator, score)
        audience.look(progress.share)
        go_on = tell(progress)
        if simulator.stopped is not None:
            break
        if simulator.worked - last_saved > SAVE or not go_on:
            saved.save(simulator)
            last_saved = simulator.worked
        if not go_on:
            return None
    saved.save(simulator)
    run = replace(finished(simulator), settings=job.settings, tuned=job.tuned, fold=job.fold)
    run.save(job.folder)
    return run


class Audience:
    """The trackers of a run, and the file that its live page reads.

    One that fails is dropped with a notice, so that no training is lost because of a chart.
    They get all records of a run, of a resumed one too.
    """

    def __init__(self, job: RunJob, simulator: Simulator, tell: Callable[[RunProgress | RunNotice], bool]) -> None:
        self.tell = tell
        self.listeners: dict[str, Tracker] = {}
        folder = Path(job.folder)
        title = f"{job.study.get('title', 'study')} {folder.parent.name} {folder.name}"
        names = job.study.get("trackers", [])
        # paths of this machine are private
        settings = flat_settings({key: value for key, value in job.study.items() if key not in ("folder", "trackers")})
        for name in names if isinstance(names, list) else [names]:
            self.listeners[name] = tracker(name)
        if job.live:
            about = {"settings": job.settings, "tuned": job.tuned, "fold": job.fold}
            self.listeners[LIVE_PAGE] = LiveFile(simulator, about)
        for name, listener in list(self.listeners.items()):
            self._each(name, partial(listener.begin, title, settings, folder))

    def record(self, stamped: Stamped) -> None:
        for name, listener in list(self.listeners.items()):
            self._each(name, partial(listener.record, stamped))

    def look(self, share: float) -> None:
        """Report the progress of the run."""
        listener = self.listeners.get(LIVE_PAGE)
        if isinstance(listener, LiveFile):
            self._each(LIVE_PAGE, partial(listener.look, share))

    def end(self, run: Run | None) -> None:
        for name, listener in list(self.listeners.items()):
            self._each(name, partial(listener.end, run))

    def _each(self, name: str, say: Callable[[], None]) -> None:
        try:
            say()
        except Exception as error:
            del self.listeners[name]
            self.tell(RunNotice(f"{name} has stopped receiving this run: {error}"))


def _ready(job: RunJob) -> tuple[Simulator, Checkpoint]:
    study = study_of(job.study, code=job.code)
    folder = Path(job.folder)
    (folder / "error.txt").unlink(missing_ok=True)  # of an attempt that failed
    data = build_data(study)
    settings = build_settings(study, data.islands)
    simulator = prepare(build_algorithm(study), data.islands, cluster=job.cluster, **settings)
    if job.mixed:
        simulator.executor.reason = "; ".join(filter(None, (simulator.executor.reason, job.mixed)))
    saved = Checkpoint(folder)
    if saved.exists():
        saved.load(simulator)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_study(job.study, folder / "study.toml")
        data.split.save_split(folder / "split.safetensors")
        simulator.begin()
    return simulator, saved


def flat_settings(raw: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return a study as dotted keys, as trackers show it."""
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        if isinstance(value, dict):
            flat |= flat_settings(value, f"{before}{key}.")
        elif isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            flat |= flat_settings(value[0], f"{before}{key}.")
        else:
            flat[before + key] = value[0] if isinstance(value, list) and len(value) == 1 else value
    return flat


def _progress(simulator: Simulator, score: float | None) -> RunProgress:
    state, ending = simulator.controller.state, simulator.controller.ending
    moved = sum(n for kind, n in state.traffic.items() if kind.endswith("bytes") and not kind.startswith("score"))
    share = ending.share(simulator.clock.now, state.rounds, state.version, moved)
    return RunProgress(
        share=1.0 if simulator.stopped is not None else share,
        seconds=simulator.clock.now,
        version=state.version,
        rounds=state.rounds,
        score=score,
        megabytes=moved / 2**20,
        at_work=len(simulator.flights.out),
    )
