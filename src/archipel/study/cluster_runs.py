"""The runs of a study on a Ray cluster, one on an actor at a time.

A run is executed in a temporary folder of its node. Its checkpoints travel to the driver with its progress, so that a
run whose node is lost is resumed on another one, and a study whose driver was killed on another cluster.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from archipel.simulation.cluster.actor import NodeActor, beside_work, node_name
from archipel.simulation.cluster.actor_pool import ActorPool, PooledActor
from archipel.simulation.cluster.connection import Cluster, ClusterError, reached
from archipel.storage.atomic_files import write_bytes
from archipel.study.execute import RunJob, execute
from archipel.study.files import study_of, write_study
from archipel.study.inputs import changed, files_of, hashes
from archipel.study.worker_pool import Began, Broke, Ended, Flag, Message, Tell, Told, done, stopped_by_hand

ATTEMPTS = 3
"""Losses of its actor after which a run counts as failed."""
CHECKPOINT, WHOLE, STUDY = "checkpoint.safetensors", "run.json", "study.toml"
LOOK = 0.25
"""Longest wait between two checks of the cluster, in seconds."""


class RunActor(NodeActor):
    """Executes one run at a time on a node; `ping` returns its messages meanwhile."""

    def start(self, threads: int) -> list[str]:
        """Prepare for runs that compute with this many threads."""
        self.threads = threads
        self.news: deque[Any] = deque()
        self.folder: Path | None = None
        self.sent = 0.0
        self.stopping = threading.Event()
        return []

    def run(
        self, job: RunJob, inputs: dict[str, bytes], expected: dict[str, str], begun: dict[str, bytes]
    ) -> tuple[Ended | Broke, dict[str, bytes]]:
        """Execute a run; return how it ended and the files of its folder.

        inputs: files beside the study. expected: hashes of all files that it names. begun: files of the run's folder,
        if it is resumed.
        """
        torch.set_num_threads(self.threads)
        self.stopping.clear()
        with tempfile.TemporaryDirectory(prefix="archipel-run-") as temporary:
            study, folder = Path(temporary) / "study", Path(temporary) / "run"
            write_files(study, inputs)
            write_files(folder, begun)
            self.folder, self.sent = folder, _changed(folder / CHECKPOINT)
            here = replace(job, study={**job.study, "folder": str(study)}, folder=str(folder))
            ended = done(partial(_execute, expected), 0, here, self._tell)
            self.folder = None
            return ended, read_files(folder)

    def _tell(self, news: Any) -> bool:
        self.news.append(news)
        return not self.stopping.is_set()

    @beside_work
    def ping(self) -> tuple[list[Any], dict[str, bytes]]:
        """Return the messages since the last call, and the files of the checkpoint if there is a newer one."""
        news = [self.news.popleft() for _ in range(len(self.news))]
        checkpoint: dict[str, bytes] = {}
        folder = self.folder
        if folder is not None and (changed := _changed(folder / CHECKPOINT)) > self.sent:
            with suppress(FileNotFoundError):  # the run has just ended
                checkpoint, self.sent = checkpoint_files(folder), changed
        return news, checkpoint

    @beside_work
    def stop(self) -> None:
        """Ask the run to save itself and to end soon."""
        self.stopping.set()


def _execute(expected: dict[str, str], job: RunJob, tell: Tell) -> bool:
    """Execute a run if this node has the same files as the driver."""
    different = changed(expected, hashes(study_of(job.study, code=job.code)))
    if different:
        raise ClusterError(
            f"node {node_name()} does not have {', '.join(different)} as the driver has it. Files outside the study's "
            "folder are not sent: copy them to every node, or put them beside the study."
        )
    return execute(job, tell)


def work_on_cluster(cluster: Cluster, jobs: Sequence[RunJob], threads: int, hear: Callable[[Message], None]) -> bool:
    """Do all runs on a cluster; return False if Ctrl-C has stopped them."""
    stop = threading.Event()
    with reached(cluster) as ray, stopped_by_hand(stop):
        _Runs(ray, cluster, jobs, threads, hear).work(stop)
    return not stop.is_set()


class _Runs:
    """The runs of a study: those that wait, and those that an actor executes."""

    def __init__(
        self, ray: Any, cluster: Cluster, jobs: Sequence[RunJob], threads: int, hear: Callable[[Message], None]
    ) -> None:
        self.ray = ray
        self.jobs = jobs
        self.threads = threads
        self.hear = hear
        self.pool = ActorPool(ray, cluster, RunActor, (threads,), self._heard)
        self.waiting = deque(range(len(jobs)))
        self.begun: set[int] = set()
        self.out: dict[int, PooledActor] = {}
        """Runs at work, by number, and their actors."""
        self.losses = Counter[int]()
        """Losses of actors, by run."""
        self._inputs: Any = None
        """Reference of the files that the study names."""

    def work(self, stop: Flag) -> None:
        """Do all runs; after a request to stop, wait for those at work."""
        asked = False
        try:
            while self.out or (self.waiting and not stop.is_set()):
                if stop.is_set() and not asked:
                    asked = True
                    for actor in self.out.values():
                        actor.handle.stop.remote()
                for actor in self.pool.tick():
                    self._take_back(actor)
                if not stop.is_set():
                    self._assign(stop)
                self.pool.wait(LOOK)
        finally:
            self.pool.close()

    def _assign(self, stop: Flag) -> None:
        for actor in self.pool.ready:
            if self.waiting and not actor.work:
                number = self.waiting.popleft()
                self._begin(number)
                reference = self._send(actor, self.jobs[number])
                actor.work.append(number)
                self.out[number] = actor
                self.pool.expect(actor, reference, partial(self._end, number), partial(self._fail, number))
        if (
            self.waiting and not self.pool.ready and not self.pool.expected
        ):  # no actor is left: this process executes it
            number = self.waiting.popleft()
            self._begin(number)
            self.hear(done(execute, number, self.jobs[number], lambda news: self._told(number, news, stop)))

    def _told(self, number: int, news: Any, stop: Flag) -> bool:
        self.hear(Told(number, news))
        return not stop.is_set()

    def _begin(self, number: int) -> None:
        if number not in self.begun:
            self.begun.add(number)
            self.hear(Began(number))

    def _send(self, actor: PooledActor, job: RunJob) -> Any:
        if self._inputs is None:
            together = [files_of(study_of(one.study, code=one.code)) for one in self.jobs]
            self._inputs = self.ray.put({name: data for files in together for name, data in files.items()})
        folder, expected = Path(job.folder), hashes(study_of(job.study, code=job.code))
        begun = checkpoint_files(folder) if (folder / CHECKPOINT).exists() else {}
        return actor.handle.run.remote(replace(job, mixed=actor.different), self._inputs, expected, begun)

    def _heard(self, actor: PooledActor, reply: tuple[list[Any], dict[str, bytes]]) -> None:
        news, checkpoint = reply
        for number in actor.work:
            for item in news:
                self.hear(Told(number, item))
            write_files(Path(self.jobs[number].folder), checkpoint)

    def _end(self, number: int, answer: tuple[Ended | Broke, dict[str, bytes]]) -> None:
        ended, files = answer
        self.out.pop(number).work.remove(number)
        job = self.jobs[number]
        whole = files.pop(WHOLE, None)
        files.pop(STUDY, None)
        write_files(Path(job.folder), files)
        write_study(job.study, Path(job.folder) / STUDY)
        if whole is not None:  # written last: a folder that has it is complete
            write_files(Path(job.folder), {WHOLE: whole})
        self.hear(replace(ended, job=number))

    def _fail(self, number: int, error: ClusterError) -> None:
        """Count a run as failed; what failed was not its own code."""
        self.out.pop(number).work.remove(number)
        self.hear(Broke(number, str(error), ""))

    def _take_back(self, actor: PooledActor) -> None:
        """Have the run of a lost actor resumed by another one, from its last checkpoint."""
        for number in reversed(actor.work):
            del self.out[number]
            self.losses[number] += 1
            if self.losses[number] < ATTEMPTS:
                self.waiting.appendleft(number)
            else:
                reason = f"cluster: the run was lost with {ATTEMPTS} actors, the last one on node {actor.node}."
                self.hear(Broke(number, reason, ""))
        actor.work = []


def _changed(path: Path) -> float:
    return path.stat().st_mtime if path.exists() else 0.0


def checkpoint_files(folder: Path) -> dict[str, bytes]:
    """Return a run's checkpoint and its records."""
    # read first: records that are appended later are cut off when it is loaded
    checkpoint = (folder / CHECKPOINT).read_bytes()
    return {path.name: path.read_bytes() for path in folder.glob("records-*.jsonl")} | {CHECKPOINT: checkpoint}


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by their relative paths."""
    found = sorted(folder.rglob("*")) if folder.exists() else []
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found if path.is_file()}


def write_files(folder: Path, files: dict[str, bytes]) -> None:
    """Write files, each whole or not at all, and a checkpoint after the records that it needs."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in sorted(files.items(), key=lambda file: file[0] == CHECKPOINT):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
