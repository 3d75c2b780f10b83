"""Native execution on threads, in forks, and at the edges of its memory."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from archipel.core.types import Score
from archipel.executors.native import Native
from archipel.kernels.native.perceptron import NativeTraining
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.probes import Parts
from tests.forked import archipel
from tests.simulation.engine_cases import (
    PLAN,
    SIZES,
    against_plain,
    jobs,
    learners,
)
from tests.simulation.perceptrons import MORE, case, in_a_fork, on_threads, trained, tried, vectors
from tests.ways import needs_library

pytestmark = needs_library


# ------------------------------------------------------------------------------------------ the edges of what is there


@pytest.mark.parametrize("number", [200, 10**12, -1])
def test_examples_that_do_not_exist_are_an_error(number: int) -> None:
    at_hand, nothing = case(12, 17, 7), torch.empty(0, dtype=torch.int64)
    wrong = torch.tensor([3, number, 5])
    for learner in (Learner("a", wrong, nothing, nothing), Learner("a", torch.arange(9), wrong, nothing)):
        made = jobs(at_hand, [learner], [replace(PLAN, reports=("validation",))])
        with pytest.raises(ValueError, match="invalid examples: indices must be from 0 to 199"):
            Native(at_hand).submit(made)
    with pytest.raises(ValueError, match="invalid examples"):
        tried(at_hand, [wrong])


def walled(like: Tensor, before: bool) -> Tensor:
    """The same numbers directly before, or behind, a page that cannot be read."""
    page, size = mmap.PAGESIZE, like.numel() * like.element_size()
    pages = -(-size // page)
    room = mmap.mmap(-1, (pages + 1) * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    wall = address if before else address + pages * page
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(wall), page, 0) == 0
    start = page if before else pages * page - size
    numbers = torch.frombuffer(room, dtype=like.dtype, count=like.numel(), offset=start)
    return numbers.copy_(like.flatten()).view(like.shape)


@pytest.mark.slow
@pytest.mark.parametrize("before", [True, False], ids=["below", "above"])
def test_nothing_is_read_or_written_beside_what_was_given(before: bool) -> None:
    def train_and_try() -> str:
        at = partial(walled, before=before)
        for widths in ((1, 2), (12, 3), (17, 17, 7), (5, 33, 16, 62), (12, 65, 1, 17)):
            for examples in (1, 5, 50, 97):
                made = case(*widths, examples=examples)
                at_hand = replace(made, x=at(made.x), y=at(made.y))
                everything = at(torch.arange(examples))
                learner = Learner("a", everything, everything, everything)
                vector = at(made.layout.vector(made.module))
                plan = replace(MORE, reports=("validation",))
                job = Job(learner, plan, vector, vector, memory={"momentum": at(torch.zeros_like(vector))})
                way = Native(at_hand)
                way.submit([job])
                way.wait()
                tried(at_hand, [everything, everything], vector)
        return "whole"

    assert in_a_fork(train_and_try) == "whole"


def test_there_may_be_more_kinds_of_plans_than_are_kept() -> None:
    at_hand = case(12, 17, 7)
    who = learners(at_hand.x, (10,) * 20)
    plans = [replace(PLAN, rate=0.01 * (k + 1)) for k in range(20)]
    against_plain(Native(at_hand), who, plans)


@pytest.mark.slow
def test_examples_of_ever_other_sites_do_not_pile_up() -> None:
    """As many tensors as are kept on purpose, however many subsets of sites were asked."""
    at_hand = case(12, 3)
    way, vector = Native(at_hand), at_hand.layout.vector(at_hand.module)

    def ask(numbers: range) -> None:
        for _ in numbers:
            way.score(vector, Parts.of([torch.arange(150)] * 2), Score("test")).result()

    def held() -> int:
        gc.collect()
        return sum(type(thing) is Tensor and thing.shape == (300,) for thing in gc.get_objects())

    ask(range(300))
    before = held()
    ask(range(300, 600))
    assert held() <= before


# ---------------------------------------------------------------------------------------------- threads and processes


def begun(at_hand: TrainingContext, count: int = 20) -> tuple[Native, list[Job]]:
    """Jobs that are under way."""
    who = learners(at_hand.x, (len(at_hand.x) // count,) * count, [0] * count)
    way, made = Native(at_hand), jobs(at_hand, who, [replace(MORE, epochs=20, reports=("validation",))] * count)
    way.submit(made)
    return way, made


@pytest.mark.slow
def test_what_is_dropped_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory goes when no thread works on it any more."""
    done: list[tuple[bool, int]] = []
    let_go = NativeTraining.__del__

    def watched(training: NativeTraining) -> None:
        under_way = training._under_way
        let_go(training)
        done.append((under_way, training._record.task.done))

    monkeypatch.setattr(NativeTraining, "__del__", watched)
    way, made = begun(case(20, 33, 7))
    assert not done
    del way, made
    gc.collect()
    assert done == [(True, 1)] * 20


DROPPED = """
import gc, torch
import archipel as ap
from archipel.simulation.simulate import prepare
from tests.simulation.perceptrons import case
from tests.simulation.test_native_threads import begun

torch.set_num_threads(4)
for _ in range(3):  # everything is dropped while it is under way
    begun(case(64, 64, 10, examples=2000))
    gc.collect()
    rubbish = [torch.full((2000, 64), float("nan")) for _ in range(20)]  # in the place of what was dropped
data = ap.data.from_arrays(torch.randn(2000, 20), torch.arange(2000) % 10).split(6)
simulation = prepare(ap.async_dvw(adaptive=False, batch=16), data, fleet=ap.Fleet(fast=3, slow=3), execution="native")
simulation.begin()
while not simulation.evaluations.out:
    simulation.run(events=1)
del simulation
gc.collect()
left = begun(case(64, 64, 10, examples=2000))  # and the interpreter ends meanwhile
print("alive")
"""


@pytest.mark.slow
def test_a_process_may_drop_what_is_under_way_and_end() -> None:
    told = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", DROPPED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (told.returncode, told.stdout) == (0, "alive\n"), told.stderr


@pytest.mark.slow
def test_a_forked_process_trains_too() -> None:
    at_hand = case(20, 33, 7)
    who = learners(at_hand.x, SIZES)

    def train() -> Tensor:
        return vectors(trained(on_threads(4, Native(at_hand)), who, [MORE] * 6))

    ours = train()  # the threads are there now, and not in the fork
    assert torch.equal(ours, in_a_fork(train))
    assert torch.equal(ours, in_a_fork(lambda: in_a_fork(train)))
    assert torch.equal(ours, train())


@pytest.mark.slow
def test_a_fork_does_not_wait_for_what_its_parent_has_begun() -> None:
    """No thread of the child would finish it."""

    def fork() -> tuple[list[str], bool]:
        out = [begun(case(20, 33, 7))]  # with one thread, which does nothing before it waits

        def settle() -> str:
            with pytest.raises(RuntimeError, match="wait for it before forking"):
                out[0][0].wait()
            return "an error"

        def drop() -> str:
            out.clear()
            gc.collect()
            return "dropped"

        heard = [in_a_fork(settle), in_a_fork(drop)]
        way, made = out[0]
        way.wait()
        return heard, all(job.done for job in made)

    assert in_a_fork(fork) == (["an error", "dropped"], True)


INTERRUPTED = """
import os, signal, threading, torch
from dataclasses import replace
from archipel.executors.native import Native
from tests.simulation.engine_cases import PLAN, jobs, learners
from tests.simulation.perceptrons import case
from tests.waiting import until

handled = []
if {handler!r} == "goes on":
    signal.signal(signal.SIGINT, lambda *_: handled.append("handled"))
torch.set_num_threads({threads})
at_hand = case(64, 64, 10, examples=2000)
way, made = Native(at_hand), jobs(at_hand, learners(at_hand.x, (600, 600, 600)), [replace(PLAN, epochs={epochs})] * 3)
way.submit(made)
trainings = [training for training, _ in way._out.values()]


def interrupt():
    until(lambda: any(training._record.steps_done > 10 for training in trainings), "training in C")
    os.kill(os.getpid(), signal.SIGINT)


try:
    interrupting = threading.Thread(target=interrupt, daemon=True)
    interrupting.start()
    way.wait()
    interrupting.join()
    expected = jobs(at_hand, [job.learner for job in made], [job.plan for job in made])
    other = Native(at_hand)
    other.submit(expected)
    other.wait()
    print(*handled, "equal" if all(torch.equal(a.vector, b.vector) for a, b in zip(made, expected)) else "different")
except KeyboardInterrupt:
    way.close()
    print("interrupted", sum(training._record.steps_done < training._record.steps for training in trainings))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("handler", "threads", "epochs", "expected"),
    [("stops", 2, 2 * 10**4, "interrupted 3\n"), ("goes on", 1, 50, "handled equal\n")],
    ids=["KeyboardInterrupt", "a handler that goes on"],
)
def test_an_interrupt_is_handled_between_two_batches(threads: int, handler: str, epochs: int, expected: str) -> None:
    """A training that would take minutes ends soon; one that goes on comes to the same bits."""
    program = INTERRUPTED.format(threads=threads, handler=handler, epochs=epochs)
    told = archipel([], Path.cwd(), program=program, timeout=300)
    assert (told.returncode, told.stdout) == (0, expected), told.stderr
