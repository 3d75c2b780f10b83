"""A reader follows a commit from the simulator's loop to the arithmetic in a few hops (design 6, law 4)."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import archipel as ap
from archipel.simulation.simulate import prepare
from archipel.simulation.simulator import Simulator
from tests.simulation.engine_cases import small_islands

MOST_FRAMES = 7
"""Between the simulator's loop and the kernel, the kernel's own included."""
MOST_HOPS = 3
"""Between the simulator's loop and the protocol's decision."""


def stacks_at(function: str, simulator: Simulator) -> list[list[str]]:
    """Run to the end; return the calls below `Simulator.run` at every call of a function, outermost first."""
    stacks: list[list[str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == function:
            stacks.append(calls_below_loop(frame))

    sys.setprofile(note)
    try:
        simulator.begin()
        simulator.run()
    finally:
        sys.setprofile(None)
        simulator.close()
    return stacks


def calls_below_loop(frame: FrameType | None) -> list[str]:
    calls: list[str] = []
    while frame is not None and frame.f_code is not Simulator.run.__code__:
        calls.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")
        frame = frame.f_back
    return calls[::-1]


def prepared() -> Simulator:
    return prepare(ap.async_dvw(batch=8), small_islands(3), ending=ap.Ending(commits=4), execution="plain")


@pytest.mark.slow
def test_a_commit_is_few_frames_from_the_loop_to_the_kernel() -> None:
    stacks = stacks_at("replace_terms", prepared())
    assert len(stacks) >= 4, "each of four commits changes the community's sum"
    deepest = max(stacks, key=len)
    assert len(deepest) <= MOST_FRAMES, " -> ".join(deepest)


@pytest.mark.slow
def test_a_decision_is_three_hops_from_the_loop() -> None:
    stacks = stacks_at("decide", prepared())
    assert stacks
    deepest = max(stacks, key=len)
    hops = len(deepest) - 1  # the protocol's own frame is where the walk ends
    assert hops <= MOST_HOPS, " -> ".join(deepest)
