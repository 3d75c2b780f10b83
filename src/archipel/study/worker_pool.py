"""Execute many runs on the available cores: worker processes take one job after another and report progress.

Laws: every started job is answered once, by `Ended` or `Broke`, also when its process dies. After a request to stop no
job is started, and running ones end by themselves, because `tell` returns False.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, TypeAlias

import torch

from archipel.kernels.threads import threads as torch_threads

Tell: TypeAlias = Callable[[Any], bool]
"""Report on a job; False: the job should end soon."""
Work: TypeAlias = Callable[[Any, Tell], Any]
"""Execute a job; for other processes it must be a function that can be imported."""


class Flag(Protocol):
    """An event of threads or processes that is set by a request to stop."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...


@dataclass(frozen=True)
class Began:
    job: int


@dataclass(frozen=True)
class Told:
    job: int
    news: Any


@dataclass(frozen=True)
class Ended:
    job: int
    result: Any


@dataclass(frozen=True)
class Broke:
    job: int
    reason: str
    story: str
    """The traceback, for those who ask."""


Message: TypeAlias = Began | Told | Ended | Broke


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work_through(
    work: Work, jobs: Sequence[Any], processes: int, threads: int, hear: Callable[[Message], None]
) -> bool:
    """Execute all jobs, here or in several processes, with this many threads each; return False after Ctrl-C."""
    if processes > 1 and len(jobs) > 1:
        context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
        stop: Flag = context.Event()
        with stopped_by_hand(stop):
            _in_processes(context, work, jobs, min(processes, len(jobs)), threads, hear, stop)
    else:
        stop = threading.Event()
        with stopped_by_hand(stop), torch_threads(threads):
            _here(work, jobs, hear, stop)
    return not stop.is_set()


@contextlib.contextmanager
def stopped_by_hand(stop: Flag) -> Iterator[None]:
    """Request a stop on the first Ctrl-C or SIGTERM; exit at once on the second."""

    def ask(number: int, frame: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGINT and SIGTERM in processes started within: these signals reach all processes of a terminal or a job.

    They inherit the mask; this process requests them to stop. A signal that arrives meanwhile is delivered at the end,
    where an ignored one would be lost.
    """
    resource_tracker.ensure_running()  # the start of a process starts it, and that clears the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _here(work: Work, jobs: Sequence[Any], hear: Callable[[Message], None], stop: Flag) -> None:
    def tell(news: Any) -> bool:
        hear(Told(number, news))
        return not stop.is_set()

    for number, job in enumerate(jobs):
        if stop.is_set():
            return
        hear(Began(number))
        hear(done(work, number, job, tell))


def done(work: Work, number: int, job: Any, tell: Tell) -> Ended | Broke:
    """Do a job; return how it ended."""
    try:
        return Ended(number, work(job, tell))
    except Exception as error:  # a failed run must not stop the others
        # their messages are written for users
        foreseen = isinstance(error, ValueError | OSError | ImportError)
        return Broke(number, str(error) if foreseen else f"{type(error).__name__}: {error}", traceback.format_exc())


def _in_processes(
    context: multiprocessing.context.SpawnContext,
    work: Work,
    jobs: Sequence[Any],
    processes: int,
    threads: int,
    hear: Callable[[Message], None],
    stop: Flag,
) -> None:
    waiting = list(enumerate(jobs))[::-1]
    at_work: dict[Connection, tuple[int, multiprocessing.process.BaseProcess]] = {}
    processes_begun: list[multiprocessing.process.BaseProcess] = []

    def begin(connection: Connection, process: multiprocessing.process.BaseProcess) -> None:
        """Give a process its next job, or end it."""
        if waiting and not stop.is_set():
            number, job = waiting.pop()
            at_work[connection] = number, process
            hear(Began(number))
            connection.send((number, job))
        else:
            connection.send(None)
            connection.close()

    def employ() -> None:
        mine, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(work, theirs, stop, threads), daemon=True)
        with signals_blocked():
            process.start()
        processes_begun.append(process)
        theirs.close()
        begin(mine, process)

    try:
        for _ in range(processes):
            employ()
        _listen(at_work, waiting, begin, employ, hear, stop)
        for process in processes_begun:
            process.join()  # one that is still starting needs what this process shares with it
    except BaseException:
        for process in processes_begun:
            process.kill()  # they block other signals
        raise


def _listen(
    at_work: dict[Connection, tuple[int, multiprocessing.process.BaseProcess]],
    waiting: list[tuple[int, Any]],
    begin: Callable[[Connection, multiprocessing.process.BaseProcess], None],
    employ: Callable[[], None],
    hear: Callable[[Message], None],
    stop: Flag,
) -> None:
    """Handle the messages of all processes; give the next job to one that is done."""
    while at_work:
        for connection in wait(list(at_work)):
            assert isinstance(connection, Connection)
            number, process = at_work[connection]
            try:
                message = connection.recv()
            except (EOFError, ConnectionResetError):
                process.join()
                del at_work[connection]
                hear(Broke(number, f"its process died (exit code {process.exitcode}); was memory short?", ""))
                if waiting and not stop.is_set():
                    employ()
                continue
            hear(message)
            if isinstance(message, Ended | Broke):
                del at_work[connection]
                begin(connection, process)


def _serve(work: Work, connection: Connection, stop: Flag, threads: int) -> None:
    """Execute jobs in a worker process until there are no more, or the parent is gone."""
    torch.set_num_threads(threads)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while (task := connection.recv()) is not None:
            number, job = task

            def tell(news: Any, number: int = number) -> bool:
                connection.send(Told(number, news))
                return not stop.is_set()

            connection.send(done(work, number, job, tell))
