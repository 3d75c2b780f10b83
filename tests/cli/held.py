"""Run `archipel` with runs that stay at work until they are stopped, however fast the machine is.

Each run handles a few events, leaves a file named after its process in $HELD, and then makes no progress.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from archipel.cli import main
from archipel.simulation.simulator import Simulator

EVENTS = 5
PARENT = os.getppid()
going = Simulator.run


def run(self: Simulator, events: int | None = None, real_seconds: float | None = None) -> None:
    """Stand in for `Simulator.run`; workers import this file too, as multiprocessing's main module."""
    if self.handled < EVENTS:
        going(self, events=EVENTS - self.handled)
        assert self.stopped is None, "the run is too short to be held"
        Path(os.environ["HELD"], str(os.getpid())).touch()
    time.sleep(0.01)
    if os.getppid() != PARENT:  # the test is gone
        os._exit(1)


Simulator.run = run  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
