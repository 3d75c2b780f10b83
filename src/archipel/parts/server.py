"""Server optimiser: how the proposal becomes the model.

All work on delta = proposal - model, only on the layers that are proposed: elsewhere neither the model nor the
optimiser's memory moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from archipel.checks import at_least, between, more_than
from archipel.parts.merge import Proposal
from archipel.parts.part import Part
from archipel.state import View


class Server(Part):
    def step(self, view: View, proposal: Proposal) -> Tensor:
        """The next model as a new vector."""
        current = view.models.read(view.model.name)
        following = current.clone()
        for piece in view.layout.slices(proposal.layers):
            self.move(view, piece, current[piece], proposal.vector[piece], following[piece])
        return following

    def move(self, view: View, piece: slice, current: Tensor, proposal: Tensor, following: Tensor) -> None:
        """Write the next model of this piece into `following`."""
        raise NotImplementedError

    def moment(self, view: View, name: str, initial: float = 0.0) -> Tensor:
        """A vector as long as the model that the optimiser remembers."""
        full = view.name(name)
        if not view.memory.get(name):
            view.memory[name] = True
            view.models.write(full, torch.full((view.layout.size,), float(initial)))
        return view.models.read(full)


@dataclass(frozen=True)
class Replace(Server):
    """w <- w + rate (proposal - w); at rate 1 the proposal itself (RADFedm: rate is alpha of Alg. 2, line 14)."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        more_than(0, "Replace", rate=self.rate)

    def move(self, view: View, piece: slice, current: Tensor, proposal: Tensor, following: Tensor) -> None:
        if self.rate == 1:  # w + (proposal - w) is not the proposal to the last bit
            following.copy_(proposal)
        else:
            following.add_(proposal - current, alpha=self.rate)


@dataclass(frozen=True)
class Momentum(Server):
    """FedAvgM: m <- beta m + delta; w <- w + rate m."""

    rate: float = 1.0
    beta: float = 0.9

    def __post_init__(self) -> None:
        more_than(0, "Momentum", rate=self.rate)
        between("Momentum", "beta", self.beta, 0, 1)

    def move(self, view: View, piece: slice, current: Tensor, proposal: Tensor, following: Tensor) -> None:
        m = self.moment(view, "m")[piece]
        m.mul_(self.beta).add_(proposal - current)
        following.add_(m, alpha=self.rate)


@dataclass(frozen=True)
class _Adaptive(Server):
    """Reddi et al., algorithm 2: w <- w + rate m / (sqrt(v) + tau), as in RADFed Alg. 2, lines 15 to 17."""

    rate: float = 0.01
    """Server learning rate eta."""
    beta1: float = 0.9
    tau: float = 1e-4
    """Adaptivity: added to the root of v."""
    initial: float = 0.0
    """v of the first round (v_-1)."""

    def __post_init__(self) -> None:
        more_than(0, type(self).__name__, rate=self.rate)
        between(type(self).__name__, "beta1", self.beta1, 0, 1)
        more_than(0, type(self).__name__, tau=self.tau)
        at_least(0, type(self).__name__, initial=self.initial)

    def move(self, view: View, piece: slice, current: Tensor, proposal: Tensor, following: Tensor) -> None:
        delta = proposal - current
        m = self.moment(view, "m")[piece]
        v = self.moment(view, "v", self.initial)[piece]
        m.mul_(self.beta1).add_(delta, alpha=1 - self.beta1)
        self.accumulate(v, delta * delta)
        following.addcdiv_(m, v.sqrt().add_(self.tau), value=self.rate)

    def accumulate(self, v: Tensor, square: Tensor) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Adagrad(_Adaptive):
    """FedAdagrad: v <- v + delta^2."""

    def accumulate(self, v: Tensor, square: Tensor) -> None:
        v.add_(square)


@dataclass(frozen=True)
class Adam(_Adaptive):
    """FedAdam: v <- beta2 v + (1 - beta2) delta^2."""

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        between("Adam", "beta2", self.beta2, 0, 1)

    def accumulate(self, v: Tensor, square: Tensor) -> None:
        v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)


@dataclass(frozen=True)
class Yogi(_Adaptive):
    """FedYogi: v <- v - (1 - beta2) delta^2 sign(v - delta^2)."""

    beta2: float = 0.99

    def __post_init__(self) -> None:
        super().__post_init__()
        between("Yogi", "beta2", self.beta2, 0, 1)

    def accumulate(self, v: Tensor, square: Tensor) -> None:
        v.sub_(square * torch.sign(v - square), alpha=1 - self.beta2)
