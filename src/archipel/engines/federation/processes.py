"""The two processes of a federation, from their first breath to their last."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import mmap
import platform
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from archipel.engines.federation.agent import Agent
from archipel.engines.federation.engine import Federation
from archipel.engines.federation.link import Link
from archipel.engines.federation.service import serve

LINGER = 30.0
"""Seconds that a controller stays to tell learners that the run is over."""

GLIBC = sys.platform == "linux" and "glibc" in platform.libc_ver()
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""What glibc's mallopt calls them."""
APART = (1 << 20) + (1 << 14)
"""Bytes from which on memory comes from the system itself. Pieces of models are just below: for each, the system would
have to clear as many new pages."""

MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")
CODE = re.compile(r" r-xp .* /")
"""Of Linux' smaps: the lines that begin a new place in memory, and those among them where a file's code is."""

SWITCH = 0.0005
"""Seconds after which a thread that can go on gets its turn. gRPC does its work in the event loop's thread, and a hand
that comes back from the disk or from hashing, which it does three times for a piece of a model, would wait up to ten
times as long each time."""

log = logging.getLogger("archipel.federation")


def run_controller(
    open_federation: Callable[[], Federation],
    address: str,
    credentials: grpc.ServerCredentials | None,
    when_over: Callable[[Federation], None],
    metrics: tuple[str, int] | None = None,
    linger: float = LINGER,
) -> Federation:
    """Hold a federation until its run is over, or somebody ends this process; what is on disk is whole either way."""
    _give_memory_back()
    sys.setswitchinterval(SWITCH)
    return asyncio.run(_controller(open_federation, address, credentials, when_over, metrics, linger))


async def _controller(
    open_federation: Callable[[], Federation],
    address: str,
    credentials: grpc.ServerCredentials | None,
    when_over: Callable[[Federation], None],
    metrics: tuple[str, int] | None,
    linger: float,
) -> Federation:
    federation = open_federation()
    gc.collect()
    gc.freeze()  # modules, the study and the journal's beginning stay: nobody has to look through them again and again
    if metrics is not None:
        federation.meters.serve(*metrics)
    _forget_the_start()
    server, _ = await serve(federation, address, credentials)
    version = federation.book.controller.state.version
    log.info("listening", extra={"address": address, "tls": credentials is not None, "version": version})
    ended = _when_asked_to_end()
    run = asyncio.create_task(federation.run())
    try:
        await asyncio.wait({run, ended}, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            run.result()
            await federation.in_clerk(lambda: when_over(federation))
            await _say_goodbye(federation, linger)
    finally:
        run.cancel()
        await server.stop(1.0)
        await federation.close()
        if GLIBC:  # the holes that connections leave; to end takes code and memory that would come on top of them
            ctypes.CDLL(None).malloc_trim(0)
    return federation


def _give_memory_back() -> None:
    """Have freed memory go back to the system at once: a thousand connections leave holes in it that add up to as much
    as they use."""
    if GLIBC:
        library = ctypes.CDLL(None)
        for setting, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, APART), (M_TRIM_THRESHOLD, 1 << 22)):
            library.mallopt(setting, value)


def _forget_the_start() -> None:
    """Give back the code that was run to start, most of it torch's: what is called again comes back from its file.

    Only code of which every page is as in its file; a page that was changed would be lost.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    begin = end = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := MAPPING.match(line):
            begin, end = (int(place, 16) for place in found.groups()) if CODE.search(line) else (0, 0)
        elif begin and line.startswith("Anonymous:") and line.split()[1] == "0":
            library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


async def _say_goodbye(federation: Federation, seconds: float) -> None:
    """Stay until all learners that are there know that it is over, and have the last model."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not federation.everybody_knows:
                await asyncio.sleep(0.1)


def _when_asked_to_end() -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, end)
    return ended


def run_learner(make_agent: Callable[[], Agent]) -> Agent:
    """Take part until the run is over, or somebody ends this process."""
    return asyncio.run(_learner(make_agent))


async def _learner(make_agent: Callable[[], Agent]) -> Agent:
    agent = make_agent()
    run, ended = asyncio.create_task(agent.run()), _when_asked_to_end()
    await asyncio.wait({run, ended}, return_when=asyncio.FIRST_COMPLETED)
    if run.done():
        run.result()
    else:
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    return agent


def ask(make_link: Callable[[], Link], action: str | None = None, learner: str = "") -> Any:
    """Have the controller do something, and what it says; without an action, how the federation is doing."""

    async def call() -> Any:
        link = make_link()
        try:
            return json.loads((await link.look()).told) if action is None else (await link.steer(action, learner)).told
        finally:
            await link.close()

    return asyncio.run(call())
