"""Many jobs in several processes: every one is answered, whatever becomes of its process."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from archipel.study.worker_pool import (
    Began,
    Broke,
    Ended,
    Message,
    Told,
    cores,
    signals_blocked,
    stopped_by_hand,
    work_through,
)
from tests.forked import forked_workers as forked_workers
from tests.waiting import until


def twice(job: Any, tell: Callable[[Any], bool]) -> Any:
    """A job whose behaviour is chosen by its argument."""
    match job:
        case "fail":
            raise RuntimeError("as asked")
        case "refuse":
            raise ValueError("this is no number")
        case "die":
            os._exit(7)
        case "threads":
            return torch.get_num_threads()
        case "who":
            return os.getpid()
        case "long":
            counted = itertools.count()
            until(lambda: not tell(next(counted)), "a request to stop")
            return "stopped"
    tell(f"half of {job}")
    return 2 * job


def heard(jobs: list[Any], processes: int, threads: int = 1) -> tuple[bool, list[Message]]:
    messages: list[Message] = []
    return work_through(twice, jobs, processes, threads, messages.append), messages


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 3])
def test_every_job_is_answered_once(processes: int) -> None:
    jobs = [3, "fail", 5, "refuse", 7]
    whole, messages = heard(jobs, processes)
    assert whole
    for number in range(len(jobs)):
        mine = [message for message in messages if message.job == number]
        assert isinstance(mine[0], Began)
        assert sum(isinstance(message, Ended | Broke) for message in mine) == 1
        assert isinstance(mine[-1], Ended | Broke)
    ended = {message.job: message.result for message in messages if isinstance(message, Ended)}
    assert ended == {0: 6, 2: 10, 4: 14}
    broken = {message.job: message for message in messages if isinstance(message, Broke)}
    assert broken.keys() == {1, 3}
    assert broken[1].reason == "RuntimeError: as asked"
    assert "in twice" in broken[1].story
    assert broken[3].reason == "this is no number"
    assert {message.news for message in messages if isinstance(message, Told)} == {
        "half of 3",
        "half of 5",
        "half of 7",
    }


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_process_that_dies_costs_one_job() -> None:
    whole, messages = heard(["die", 2, "die", 4, 5], 2)
    assert whole
    broken = {message.job: message.reason for message in messages if isinstance(message, Broke)}
    assert broken.keys() == {0, 2}
    assert all("its process died (exit code 7)" in reason for reason in broken.values())
    assert {message.job: message.result for message in messages if isinstance(message, Ended)} == {1: 4, 3: 8, 4: 10}


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_processes_stay_for_the_next_job_and_have_their_threads() -> None:
    _, messages = heard(["who"] * 6 + ["threads"] * 2, 2, threads=3)
    answers = {message.job: message.result for message in messages if isinstance(message, Ended)}
    assert len({answers[job] for job in range(6)}) <= 2
    assert [answers[job] for job in (6, 7)] == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_asks_to_stop(processes: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    messages: list[Message] = []

    def hear(message: Message) -> None:
        messages.append(message)
        third = [one for one in messages if isinstance(one, Told) and one.news == 3]
        if third == [message]:  # one signal: a second would not wait
            os.kill(os.getpid(), signal.SIGINT)

    whole = work_through(twice, ["long", "long", "long", "long"], processes, 1, hear)
    assert not whole
    ended = [message for message in messages if isinstance(message, Ended)]
    begun = [message for message in messages if isinstance(message, Began)]
    assert len(ended) == len(begun) <= processes  # those at work came to an end, no other was begun
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_is_not_lost_while_a_process_is_started() -> None:
    stop = threading.Event()
    with stopped_by_hand(stop):
        with signals_blocked():
            os.kill(os.getpid(), signal.SIGINT)
        until(stop.is_set, "the signal that was sent while signals were blocked")


def test_the_cores_at_hand_are_those_this_process_may_use() -> None:
    assert cores() == len(os.sched_getaffinity(0))
