"""Run a study, and read the folder of its results.

results/<title>/
  study.toml                      the study
  machine.json                    versions, processes and threads
  <method>[/<settings>]/seed-0/   a run: study.toml, split.safetensors, checkpoint.safetensors and what
                                  runs/save.py describes
  tuning/ tuning.json             runs that settings were chosen by, and what was chosen
  report/                         what `archipel report` writes
"""

from __future__ import annotations

import itertools
import json
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, overload

from archipel.core.checks import ArchipelWarning, require
from archipel.core.records import Record
from archipel.runs.load import load_run
from archipel.runs.run import Run
from archipel.runs.versions import versions
from archipel.simulation.cluster.connection import Cluster, reached
from archipel.simulation.simulate import prepare
from archipel.storage.atomic_files import write_text
from archipel.storage.lock import alone_in
from archipel.study.build import build_algorithm, build_data, build_settings
from archipel.study.cluster_runs import work_on_cluster
from archipel.study.execute import RunJob, execute
from archipel.study.files import read_study, write_study
from archipel.study.grid import GridCell, cells, slug
from archipel.study.inputs import changed, hashes
from archipel.study.schema import ReportSection, Study
from archipel.study.tuning import candidates, choose, tuned
from archipel.study.worker_pool import Broke, Message, cores, work_through

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


MACHINE, CHOICES = "machine.json", "tuning.json"
EARLIER = "earlier versions"
"""In machine.json: the versions that the study was begun or resumed with before."""


@dataclass(frozen=True, eq=False)
class Results(Sequence[Run]):
    """The finished runs of a study."""

    folder: Path
    title: str
    runs: tuple[Run, ...]
    notes: tuple[str, ...] = ()
    """Notes for readers of the figures."""
    unfinished: tuple[str, ...] = ()
    """Runs that were stopped or have failed, by their folders."""
    compared: ReportSection = field(default_factory=ReportSection)
    """The budget and target that they are compared at."""

    @overload
    def __getitem__(self, place: int) -> Run: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Run, ...]: ...
    def __getitem__(self, place: int | slice) -> Run | tuple[Run, ...]:
        return self.runs[place]

    def __len__(self) -> int:
        return len(self.runs)

    def to_pandas(self, kind: type[Record] | None = None) -> DataFrame:
        """Return all records, or those of one kind, with the method, seed and settings of their run."""
        from pandas import DataFrame, concat

        frames = []
        for run in self.runs:
            frame = run.to_pandas(kind)
            told = {"method": run.name, "seed": run.seed, **run.settings}
            for place, (key, value) in enumerate(told.items()):
                frame.insert(place, key, [value] * len(frame))
            frames.append(frame)
        return concat(frames, ignore_index=True) if frames else DataFrame()

    def plot(self) -> Figure:
        """Draw scores against virtual time, local rounds and megabytes, as a matplotlib figure."""
        from archipel.runs.score_curves import score_curves

        return score_curves(self.runs).figure

    def report(self, folder: str | Path | None = None) -> Path:
        """Write tables, figures and a page into the results' folder or another one; return the page's path."""
        from archipel.report.write import write_report

        return write_report(
            self.runs,
            self.folder / "report" if folder is None else Path(folder),
            title=self.title,
            notes=self.notes,
            target=self.compared.target,
            seconds=self.compared.seconds,
            rounds=self.compared.rounds,
        )


class Watcher:
    """Gets messages while a study runs. This one ignores them."""

    def begin(self, what: str, jobs: Sequence[GridCell]) -> None:
        """Get the runs that are about to start; messages name them by their place in the list."""

    def hear(self, message: Message) -> None:
        """Get a message that a run has started, made progress, ended or failed."""


class WarnsOfFailures(Watcher):
    """Warns of runs that fail."""

    def begin(self, what: str, jobs: Sequence[GridCell]) -> None:
        self.jobs = jobs

    def hear(self, message: Message) -> None:
        if isinstance(message, Broke):
            warnings.warn(f"{self.jobs[message.job].place} failed: {message.reason}", ArchipelWarning, stacklevel=2)


@dataclass(frozen=True)
class Parallelism:
    """How a study is executed. Threads stay the same on resume, since bits may depend on them."""

    processes: int
    threads: int
    cluster: Cluster | None = None
    live: bool = False
    """Runs write their records while they run, for the live page."""


def run_study(
    study: Study | str | Path,
    folder: str | Path | None = None,
    *,
    processes: int | None = None,
    cluster: str | Cluster | None = None,
    watcher: Watcher | None = None,
    live: bool = False,
) -> Results:
    """Run a study, or the rest of it, and return its results.

    folder: where the results go, results/<title> unless given; a study that was started there is resumed.
    processes: concurrent runs, by default one for each core; a script that uses more than one needs an
    `if __name__ == "__main__":`.
    cluster: "local", "auto" or an address of a Ray cluster. Several runs are spread over it, and a single one spreads
    its learners.
    live: write records while runs go on, so that `archipel view` on the folder shows them.
    """
    cluster = Cluster(cluster) if isinstance(cluster, str) else cluster
    study = study if isinstance(study, Study) else read_study(study)
    folder = Path(folder) if folder is not None else Path("results") / slug(study.title)
    watcher = watcher or WarnsOfFailures()
    jobs = cells(study)
    tried = candidates(study, jobs) if study.tune else []
    if not (folder / "study.toml").exists():
        _check_methods(jobs)
    used = cluster if _unfinished(jobs, folder) else None
    with nullcontext() if used is None else reached(used), alone_in(folder):  # a wrong address leaves no folder behind
        if (folder / "study.toml").exists():
            _check_same_study(study, folder)
        else:
            write_json(folder / "inputs.json", hashes(study))
            write_json(folder / "runs.json", [str(job.place) for job in jobs])
            write_study(study.raw, folder / "study.toml")  # written last: a folder that has it is complete
        machine = replace(_parallelism(folder, processes, cluster, max(len(jobs), len(tried))), live=live)
        if _unfinished(jobs, folder):
            _compare_versions(folder)
        if tried:
            # a choice is kept: a failed candidate that runs again could change it
            if not (folder / CHOICES).exists() and not _execute_unfinished("tuning", tried, folder, machine, watcher):
                return load_results(folder)
            choices = choose(tried, [_run_in(folder / cell.place) for cell in tried])
            write_json(folder / CHOICES, [choice.told() for choice in choices])
            jobs = tuned(jobs, tried, choices)
        _execute_unfinished("running", jobs, folder, machine, watcher)
        return load_results(folder)


def _execute_unfinished(
    what: str, jobs: Sequence[GridCell], folder: Path, machine: Parallelism, watcher: Watcher
) -> bool:
    """Execute unfinished runs; return False if Ctrl-C stopped them. A run that fails leaves an error.txt."""
    left = _unfinished(jobs, folder)
    watcher.begin(what, left)

    def hear(message: Message) -> None:
        if isinstance(message, Broke):
            place = folder / left[message.job].place
            place.mkdir(parents=True, exist_ok=True)
            (place / "error.txt").write_text(f"{message.reason}\n\n{message.story}")
        watcher.hear(message)

    tasks = [
        RunJob(
            job.study.raw,
            str(folder / job.place),
            dict(job.settings),
            dict(job.tuned),
            job.fold,
            job.study.own_code.allowed,
            machine.cluster if len(left) == 1 else None,
            machine.live,
        )
        for job in left
    ]
    if machine.cluster is not None and len(tasks) > 1:
        return work_on_cluster(machine.cluster, tasks, machine.threads, hear)
    return work_through(execute, tasks, machine.processes, machine.threads, hear)


def _unfinished(jobs: Sequence[GridCell], folder: Path) -> list[GridCell]:
    return [job for job in jobs if not (folder / job.place / "run.json").exists()]


def _run_in(place: Path) -> Run | None:
    """Load a run; return None if it has failed."""
    return load_run(place) if (place / "run.json").exists() else None


def load_results(folder: str | Path) -> Results:
    """Return the finished runs of a study, or the run in this folder, without running code of the study."""
    folder = Path(folder)
    if (folder / "run.json").exists():
        run = load_run(folder)
        return Results(folder, run.name, (run,))
    require(
        (folder / "runs.json").exists(),
        f"{folder} holds neither a study's results nor a run: there is no runs.json and no run.json in it.",
    )
    raw = tomllib.loads((folder / "study.toml").read_text(encoding="utf-8"))
    places = json.loads((folder / "runs.json").read_text())
    there = [place for place in places if (folder / place / "run.json").exists()]
    notes = []
    if (folder / CHOICES).exists():
        notes = [choice["sentence"] for choice in json.loads((folder / CHOICES).read_text())]
    notes += _changed_versions(folder)
    unfinished = [place for place in places if place not in there]
    if unfinished:
        notes.append(f"{len(unfinished)} of {len(places)} runs are not finished: {', '.join(unfinished)}.")
    return Results(
        folder,
        raw.get("title", Study.model_fields["title"].default),
        tuple(load_run(folder / place) for place in there),
        tuple(notes),
        tuple(unfinished),
        ReportSection.model_validate(raw.get("report", {})),
    )


def _check_methods(jobs: Sequence[GridCell]) -> None:
    """Prepare every method's first run and discard it, so that mistakes show before anything is written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ArchipelWarning)  # the runs themselves report it
        for job in {job.name: job for job in reversed(jobs)}.values():
            data = build_data(job.study).islands
            prepare(build_algorithm(job.study), data, **build_settings(job.study, data))


def _check_same_study(study: Study, folder: Path) -> None:
    """Refuse to resume another study, or one whose files have changed."""
    """Refuse to resume another study, or one whose files have changed."""
    way_out = f"Give another folder, or continue that study unchanged: archipel run --resume {folder}"
    begun = tomllib.loads((folder / "study.toml").read_text(encoding="utf-8"))
    require(begun == study.raw, f"{folder} holds the results of another study. {way_out}")
    other = changed(json.loads((folder / "inputs.json").read_text()), hashes(study))
    require(
        not other,
        f"{folder} was started with another {', '.join(other)}, and its results would mix runs of both. Give another "
        "folder, or restore the files.",
    )


def _parallelism(folder: Path, processes: int | None, cluster: Cluster | None, jobs: int) -> Parallelism:
    path = folder / MACHINE
    if path.exists():
        told = json.loads(path.read_text())
        return Parallelism(processes or told["processes"], told["threads"], cluster)
    processes = min(processes or cores(), jobs)
    threads = max(1, cores() // processes) if cluster is None else cluster.threads
    machine = Parallelism(processes, threads, cluster)
    write_json(path, {"processes": machine.processes, "threads": machine.threads, "versions": versions()})
    return machine


def _compare_versions(folder: Path) -> None:
    """Warn if the study was begun with other versions, by which bits may differ, and record both in machine.json."""
    path = folder / MACHINE
    told = json.loads(path.read_text())
    now = versions()
    if told["versions"] != now:
        write_json(path, {**told, "versions": now, EARLIER: [*told.get(EARLIER, []), told["versions"]]})
        (difference,) = _differences([told["versions"], now])
        warnings.warn(
            f"{folder} was begun with {difference}. The remaining runs use the present versions, and their bits may "
            "differ. For the same bits, stop and install the earlier versions.",
            ArchipelWarning,
            stacklevel=3,
        )


def _changed_versions(folder: Path) -> list[str]:
    """Return a note for the report if the study was resumed with other versions."""
    path = folder / MACHINE
    told = json.loads(path.read_text()) if path.exists() else {}
    history = [*told.get(EARLIER, []), *([told["versions"]] if told else [])]
    return [f"The study was begun with {difference}: runs may differ in bits." for difference in _differences(history)]


def _differences(history: Sequence[Mapping[str, str]]) -> list[str]:
    """Describe each change of versions: "torch 2.6.0 and resumed with torch 2.7.0"."""
    found = []
    for before, after in itertools.pairwise(history):
        names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        old, new = (", ".join(f"{name} {of.get(name, 'missing')}" for name in names) for of in (before, after))
        found.append(f"{old} and resumed with {new}")
    return found


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n")
