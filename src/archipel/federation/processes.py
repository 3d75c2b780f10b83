"""Run the two kinds of processes of a federation, from start to end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import grpc

from archipel.federation.controller.descriptors import raise_limit
from archipel.federation.controller.engine import Federation
from archipel.federation.controller.keeper import Life
from archipel.federation.controller.release_memory import limit_heap, release_startup_code, trim_heap
from archipel.federation.controller.service import serve
from archipel.federation.learner.agent import Agent
from archipel.federation.learner.link import Link
from archipel.federation.logs import printable

LINGER = 30.0
"""Seconds that a finished controller stays to tell learners that the run is over."""

SWITCH = 0.0005
"""Seconds after which a thread that can go on gets its turn. gRPC does its work in the event loop's thread, and a hand
that comes back from the disk or from hashing, which it does three times for a piece of a model, would wait up to ten
times as long each time."""

log = logging.getLogger("archipel.federation")


class Broken(Exception):
    """A running controller has failed; the message states the cause."""


def run_controller(
    open_federation: Callable[[], Federation],
    address: str,
    credentials: grpc.ServerCredentials | None,
    when_over: Callable[[Federation], None],
    metrics: tuple[str, int] | None,
    life: Life,
) -> Federation:
    """Hold a federation until its run is over, or somebody ends this process; what is on disk is whole either way.

    Raises `Broken` for whatever ends it once it has listened: it is not the command that was wrong, and starting it
    again may help.
    """
    limit_heap()
    raise_limit()
    sys.setswitchinterval(SWITCH)
    return asyncio.run(_controller(open_federation, address, credentials, when_over, metrics, life))


async def _controller(
    open_federation: Callable[[], Federation],
    address: str,
    credentials: grpc.ServerCredentials | None,
    when_over: Callable[[Federation], None],
    metrics: tuple[str, int] | None,
    life: Life,
) -> Federation:
    federation = open_federation()
    gc.collect()
    gc.freeze()  # modules, the study and the journal's beginning stay: nobody has to look through them again and again
    federation.status.restarts = life.restarts
    federation.meters.restarts.inc(life.restarts)
    if metrics is not None:
        federation.meters.serve(*metrics)
    release_startup_code()
    server, _ = await serve(federation, address, credentials)
    version = federation.durable.controller.state.version
    about = {"address": address, "tls": credentials is not None, "version": version, "pid": os.getpid()}
    if life.since is not None:
        about |= {"restarts": life.restarts, "seconds_down": round(time.monotonic() - life.since, 2)}
    ended = _when_asked_to_end()
    log.info("listening", extra=about)
    try:
        await _hold(federation, server, ended, when_over)
    except Exception as error:
        raise Broken(
            f"The controller ended at version {federation.durable.controller.state.version}: {error or type(error)}. "
            "Nothing that was acknowledged is lost; run the same command again to continue."
        ) from error
    return federation


async def _hold(
    federation: Federation,
    server: grpc.aio.Server,
    ended: asyncio.Future[None],
    when_over: Callable[[Federation], None],
) -> None:
    run = asyncio.create_task(federation.run())
    try:
        await asyncio.wait({run, ended}, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            run.result()
            await federation.log.in_writer(lambda: when_over(federation))
            await _say_goodbye(federation)
    finally:
        run.cancel()
        await server.stop(1.0)
        await federation.close()
        trim_heap()  # that connections leave; to end takes code and memory that would come on top of them


async def _say_goodbye(federation: Federation) -> None:
    """Stay until all learners that are there know that it is over, and have the last model."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER):
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


def ask(make_link: Callable[[], Link], action: str | None = None, learner: str = "", version: int = 0) -> Any:
    """Have the controller do something, and return what it says; without an action, the status."""

    async def call() -> Any:
        link = make_link()
        try:
            if action is None:
                return read_status((await link.look()).told)
            return printable((await link.steer(action, learner, version)).told)
        finally:
            await link.close()

    return asyncio.run(call())


def read_status(told: str) -> Any:
    """Return a controller's status, whose texts are safe for a terminal."""
    try:
        return _printable(json.loads(told))
    except RecursionError:
        raise ValueError("The controller's status is nested too deeply to be one of Archipel's.") from None


def _printable(told: Any) -> Any:
    """Return a JSON document whose texts are safe for a terminal."""
    match told:
        case str():
            return printable(told)
        case list():
            return [_printable(one) for one in told]
        case dict():
            return {printable(name): _printable(one) for name, one in told.items()}
    return told
