"""Import many modules quickly, and so that Ctrl-C ends the import cleanly."""

import contextlib
import gc
import os
import signal
from collections.abc import Iterator

STOPPED = 130
"""Exit code after Ctrl-C, as shells have it."""


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Import modules without garbage collection; Ctrl-C meanwhile ends the process with one line.

    Imports make 300,000 objects, nearly all of which stay: collecting takes a tenth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    installed = stop_at_once()
    try:
        yield
    finally:
        if installed:
            interruptible()
        if collects:
            gc.enable()


def stop_at_once() -> bool:
    """Exit on Ctrl-C without an exception: torch swallows one while it is imported, others show a traceback.

    Return False and change nothing if the signal is ignored or handled already, or outside the main thread.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    with contextlib.suppress(ValueError):  # only the main thread handles signals
        signal.signal(signal.SIGINT, _stop)
        return True
    return False


def interruptible() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(*_: object) -> None:
    os.write(2, b"Stopped.\n")
    os._exit(STOPPED)
