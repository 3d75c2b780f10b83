"""Server optimiser: turns the merge's proposal into the next model.

All work on delta = proposal - model, and only on the proposed layers; elsewhere the model and the optimiser's memory
stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from archipel.core.checks import at_least, between, more_than
from archipel.core.parts.merge import Proposal
from archipel.core.parts.part import Part
from archipel.core.state import View


@dataclass(slots=True)
class MomentsMemory:
    written: list[str] = field(default_factory=list)
    """Moments in the store; the others still have their initial value."""


class Server(Part):
    def step(self, view: View, proposal: Proposal) -> Tensor | None:
        """Return the next model as a new vector; None, with the memory unchanged, if it would not be finite."""
        current = view.models.read(view.model.name)
        following = current.clone()
        moments = {name: self._moment(view, name, initial) for name, initial in self.moments().items()}
        statistics = [layer for layer in proposal.layers if view.layout.layers[layer].buffers]
        for piece in view.layout.slices(statistics):  # running statistics are no weights: take them as proposed
            following[piece] = proposal.vector[piece]
        for piece in view.layout.slices(layer for layer in proposal.layers if layer not in statistics):
            remembered = {name: moment[piece] for name, moment in moments.items()}
            self.move(remembered, current[piece], proposal.vector[piece], following[piece])
        if not all(view.kernels.finite(vector) for vector in (following, *moments.values())):
            return None
        for name, moment in moments.items():
            view.models.write(view.name(name), moment)
        view.memory(MomentsMemory).written = list(moments)
        return following

    def moments(self) -> dict[str, float]:
        """Return the names of the optimiser's vectors, with their initial values."""
        return {}

    def move(self, moments: dict[str, Tensor], current: Tensor, proposal: Tensor, following: Tensor) -> None:
        """Write the next model of a piece into `following`, and change the piece's moments in place."""
        raise NotImplementedError

    @staticmethod
    def _moment(view: View, name: str, initial: float) -> Tensor:
        """Return a copy of a moment, since a refused step must change nothing."""
        if name in view.memory(MomentsMemory).written:
            return view.models.read(view.name(name)).clone()
        return torch.full((view.layout.size,), float(initial))


@dataclass(frozen=True)
class Replace(Server):
    """w <- w + rate (proposal - w); at rate 1 the proposal itself (RADFedm: rate is alpha of Alg. 2, line 14)."""

    rate: float = 1.0

    def __post_init__(self) -> None:
        more_than(0, "Replace", rate=self.rate)

    def step(self, view: View, proposal: Proposal) -> Tensor | None:
        if self.rate == 1 and len(proposal.layers) == len(view.layout.layers):
            # nothing of the current model is left: no copy of it, whose new memory costs more than the merge itself
            return proposal.vector if view.kernels.finite(proposal.vector) else None
        return super().step(view, proposal)

    def move(self, moments: dict[str, Tensor], current: Tensor, proposal: Tensor, following: Tensor) -> None:
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

    def moments(self) -> dict[str, float]:
        return {"m": 0.0}

    def move(self, moments: dict[str, Tensor], current: Tensor, proposal: Tensor, following: Tensor) -> None:
        m = moments["m"]
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

    def moments(self) -> dict[str, float]:
        return {"m": 0.0, "v": self.initial}

    def move(self, moments: dict[str, Tensor], current: Tensor, proposal: Tensor, following: Tensor) -> None:
        delta = proposal - current
        m, v = moments["m"], moments["v"]
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
