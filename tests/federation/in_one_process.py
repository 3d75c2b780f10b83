"""A whole federation in one process: the real engine and real agents, over real connections on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from archipel.federation.controller.engine import Federation
from archipel.federation.controller.service import serve
from archipel.federation.learner.agent import Agent
from archipel.federation.learner.link import Link
from archipel.federation.learner.local_state import StateFolder
from archipel.federation.security.round_signatures import RoundSignatures
from archipel.federation.security.tls import channel_credentials, server_credentials
from archipel.runs.run import Run
from archipel.study.federate import Hosting, hashes_of, host, layout_hash
from archipel.study.files import study_of
from archipel.study.local_site import take_part
from tests.waiting import LIMIT


@dataclass
class Held:
    """The files and the result of a federation."""

    hosting: Hosting
    federation: Federation
    agents: dict[str, Agent] = field(default_factory=dict)
    run: Run | None = None


def study(**sections: Any) -> dict[str, Any]:
    """Three learners on digits, with changes; they train one step after the other, as a task is defined."""
    raw: dict[str, Any] = {
        "algorithms": "fedavg",
        "simulation": {"execution": "plain"},
        "data": {"source": "digits", "split": {"learners": 3}},
        "ending": {"rounds": 3},
        "federation": {
            "operators": ["alice"],
            "keep_updates": True,
            "heartbeat": 0.5,
            "silence": 5 * LIMIT,
            "task_deadline": 5 * LIMIT,
        },
    }
    for name, section in sections.items():
        raw[name] = {**raw[name], **section} if isinstance(raw.get(name), dict) else section
    return raw


def hold(
    raw: dict[str, Any],
    folder: Path,
    meanwhile: Callable[[Held], Awaitable[None]] | None = None,
    absent: tuple[str, ...] = (),
    papers: Path | None = None,
) -> Held:
    """Run it to its end; `meanwhile` runs beside it, and `absent` learners never join. papers: certificates."""

    async def go() -> Held:
        hosting = host(study_of(raw))
        own = None if papers is None else papers / "controller"
        federation = hosting.open(folder / "state", certificates=own)
        credentials = None if own is None else server_credentials(own)
        server, port = await serve(federation, "127.0.0.1:0", credentials)
        held = Held(hosting, federation)
        for name in hosting.terms.learners:
            if name not in absent:
                held.agents[name] = agent(raw, name, folder / name, port, papers)
        beside = [asyncio.create_task(one.run()) for one in held.agents.values()]
        if meanwhile is not None:
            beside.append(asyncio.create_task(meanwhile(held)))  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(LIMIT):
                await federation.run()
                held.run = hosting.run(federation)
                await asyncio.gather(*beside)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await server.stop(None)
            await federation.close()
        return held

    return asyncio.run(go())


def agent(raw: dict[str, Any], name: str, folder: Path, port: int, papers: Path | None = None) -> Agent:
    island, narrowed = take_part(study_of(raw), name)
    own = (island, StateFolder(folder), hashes_of(narrowed), layout_hash(island.work.layout))
    if papers is None:
        return Agent(Link(f"127.0.0.1:{port}", None, f"learner/{name}"), *own)
    link = Link(f"localhost:{port}", channel_credentials(papers / name))
    return Agent(link, *own, signatures=RoundSignatures(papers / name))
