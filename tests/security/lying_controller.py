"""A learner that is sent arbitrary orders, as by a malicious controller."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archipel.core.algorithm import Algorithm
from archipel.core.randomness import derive
from archipel.core.types import Plan
from archipel.federation.learner.agent import Agent
from archipel.federation.learner.local_state import StateFolder
from archipel.federation.learner.policy import SiteRules
from archipel.federation.storage.stored_models import as_bytes
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.study.build import build_algorithm
from archipel.study.files import study_of
from archipel.study.local_site import take_part


@dataclass
class Line:
    """A learner's connection to a controller that keeps its answers."""

    address: str = "nowhere"
    welcome: pb.Welcome = field(default_factory=pb.Welcome)
    told: list[pb.Head] = field(default_factory=list)
    sent: list[Tensor] = field(default_factory=list)
    """The numbers of each update."""

    async def join(self, hello: pb.Hello) -> pb.Welcome:
        return self.welcome

    async def answer(self, head: pb.Head, *body: bytes) -> pb.Receipt:
        self.told.append(head)
        if body:
            self.sent.append(torch.frombuffer(bytearray(body[-1]), dtype=torch.float32))
        return pb.Receipt(verdict=pb.Receipt.KEPT)


def study(**sections: Any) -> dict[str, Any]:
    """Three learners on digits, with changes."""
    return {
        "algorithms": "fedavg",
        "data": {"source": "digits", "split": {"learners": 3, "test": "own(0.2)"}},
        "ending": {"rounds": 50},
        "evaluation": {"at": "learners"},
        **sections,
    }


@dataclass
class Site:
    """A learner, and the orders that a malicious controller sends it."""

    raw: dict[str, Any]
    folder: Path
    rules: SiteRules = field(default_factory=SiteRules)

    def __post_init__(self) -> None:
        island, self.study = take_part(study_of(self.raw), "00", rules=self.rules)
        self.agent = Agent(Line(), island, StateFolder(self.folder), {}, "")  # type: ignore[arg-type]
        self.layout = island.work.layout
        self.honest = self._honest(build_algorithm(self.study))
        self.numbers = self.given = 0

    def _honest(self, algorithm: Algorithm) -> Plan:
        private = algorithm.private(self.layout)
        uploads = tuple(name for name in self.layout.names if name not in private)
        return replace(algorithm.plan, reports=algorithm.reports, private=private, uploads=uploads)

    @property
    def told(self) -> list[pb.Head]:
        return self.agent.link.told  # type: ignore[attr-defined,no-any-return]

    def do(self, *orders: pb.Order) -> list[pb.Head]:
        """Send it these orders; return its answers."""
        before = len(self.told)

        async def go() -> None:
            for order in orders:
                await self.agent._obey(order)
                await asyncio.gather(*self.agent._order_tasks)

        asyncio.run(go())
        return self.told[before:]

    def key(self) -> int:
        """The seed of the next task, as an honest controller has it."""
        self.given += 1
        return derive(self.study.seeds[0], "training", "00", self.given - 1)

    def train(self, plan: Plan, key: int | None = None) -> pb.Head:
        self.numbers += 1
        key = self.key() if key is None else key
        order = pb.Train(task=self.numbers, plan=messages.encode_plan(plan, key), **self._model(self._vector()))
        (head,) = self.do(pb.Order(train=order))
        return head

    def ask(self, part: str, bins: int = 0, vector: Tensor | None = None) -> pb.Head:
        self.numbers += 1
        model = self._model(self._vector() if vector is None else vector)
        (head,) = self.do(pb.Order(evaluate=pb.Evaluate(task=self.numbers, part=part, bins=bins, **model)))
        return head

    def _vector(self) -> Tensor:
        """Another model each time."""
        return torch.randn(self.layout.size, generator=torch.Generator().manual_seed(self.numbers)) / 10

    def _model(self, vector: Tensor) -> dict[str, Any]:
        pieces = [vector[layer.start : layer.stop] for layer in self.layout.layers]
        digests = [hashlib.sha256(as_bytes(piece)).hexdigest() for piece in pieces]
        body = self.agent.bodies.header(self.layout.indices(None)) + bytes(as_bytes(vector))
        enclosed = pb.Enclosed(layers=self.layout.names, body=body)
        return {"model": messages.encode_layers(self.layout.names, digests), "enclosed": enclosed}
