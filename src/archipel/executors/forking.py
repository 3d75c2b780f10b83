"""Fork a process that serves requests over a pipe.

Threads do not help a small network: every operation needs the interpreter lock, whose handover takes longer than the
operation. A fork shares the data and the network without a copy, as the workers of torch's DataLoader do, computes with
one thread, and exits when its pipe closes.
"""

from __future__ import annotations

import gc
import mmap
import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor


def fork(serve: Callable[..., None], *arguments: Any) -> Connection:
    """Run serve(connection, *arguments) in a forked process; return this side's end of the pipe."""
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe()
    context.Process(target=_run, args=(near, serve, far, *arguments), daemon=True).start()
    far.close()
    return near


def _run(near: Connection, serve: Callable[..., None], *arguments: Any) -> None:
    near.close()  # else the pipe would never report its end
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    torch.set_num_threads(1)
    gc.freeze()  # a collection would write to shared pages and so copy them
    with suppress(EOFError, OSError):
        serve(*arguments)


def close_all(connections: list[Connection]) -> None:
    """Close pipes, so that the processes behind them exit."""
    for connection in connections:
        connection.close()
    connections.clear()


def shared_numbers(count: int) -> Tensor:
    """Return a float32 vector whose memory a process and its forks share."""
    return torch.frombuffer(mmap.mmap(-1, 4 * count), dtype=torch.float32)
