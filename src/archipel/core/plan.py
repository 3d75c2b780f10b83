"""What one training task asks of a learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias, TypedDict

from archipel.core.checks import at_least, between, more_than, require

Reports: TypeAlias = Literal[
    "validation",
    "validation scores",
    "losses",
    "progress",
    "gradient norm per sample",
    "gradient norm per batch",
    "class counts",
    "training loss",
]


@dataclass(frozen=True, slots=True)
class Cycle:
    """Stop when the loss on the learner's own validation part stops falling (Metis section V, C1 and C2)."""

    loss: float = 0.0
    """VC_loss: an epoch fails if the loss did not fall by more than this many per cent."""
    tombstones: int = 0
    """VC_tomb: failures allowed; one more ends the cycle."""
    at_most: int = 100
    """Epochs after which the cycle ends anyway: a tiny validation part may never fail."""

    def __post_init__(self) -> None:
        at_least(0, "Cycle", loss=self.loss)
        at_least(0, "Cycle", tombstones=self.tombstones)
        at_least(1, "Cycle", at_most=self.at_most)


@dataclass(frozen=True, slots=True)
class Phase:
    """Epochs of a task in which only some layers train; each phase begins with a new optimiser."""

    epochs: int
    trains: tuple[str, ...]
    rate: float = 1.0
    """Learning rate, relative to the plan's."""
    proximal: float | None = None
    """Weight of the proximal term; None: the plan's."""
    of: str = ""
    """The kept vector that it trains instead of the task's model. Its first value is the model that the task
    carried."""

    def __post_init__(self) -> None:
        at_least(1, "Phase", epochs=self.epochs)
        more_than(0, "Phase", rate=self.rate)
        if self.proximal is not None:
            at_least(0, "Phase", proximal=self.proximal)


class CurrentPhase(NamedTuple):
    """The phase that an epoch belongs to."""

    plan: Plan
    """The task's plan with the phase's settings."""
    end: int
    """The epoch at which it ends."""
    of: str
    """The kept vector that it trains; empty: the task's model."""


@dataclass(frozen=True)
class Plan:
    """What one task asks of a learner."""

    epochs: int = 1
    """Passes over the learner's training data (the update frequency uf of Metis)."""
    steps: int | None = None
    """Mini-batches instead of epochs, over several passes if needed."""
    batch: int = 32
    """Examples of a mini-batch; a learner with fewer trains on all it has at once."""
    rate: float = 0.05
    """Learning rate."""
    momentum: float = 0.0
    """Attenuation of the momentum (gamma of Metis eq. 2); it does not survive between tasks."""
    optimiser: str = "SGD"
    """Any class of `torch.optim`, by name."""
    options: Mapping[str, float | bool | tuple[float, ...]] = field(default_factory=dict)
    """Further arguments of the optimiser, such as {"weight_decay": 1e-4}."""
    accumulate: int = 1
    """Number of pieces a mini-batch is computed in, to save memory; their gradients are added up."""
    all_data: bool = False
    """Also train on the examples that are reserved for validation."""
    cycle: Cycle | None = None
    """Stop by validation loss instead of after a fixed number of epochs."""
    trains: tuple[str, ...] | None = None
    """Layers that train; the others are frozen. None: all."""
    phases: tuple[Phase, ...] = ()
    """The task's phases in order; empty: all epochs train the same layers."""
    uploads: tuple[str, ...] | None = None
    """Layers that are sent back. None: all that are not private."""
    private: tuple[str, ...] = ()
    """Layers that never leave the learner; it keeps them between tasks."""
    proximal: float = 0.0
    """Weight of (1/2)||w - w'||^2 in the loss, w' being the model the task carried."""
    shift: str | None = None
    """Name of the vector added to every gradient (SCAFFOLD's c - c_i); its trained, shared layers are sent."""
    reports: tuple[Reports, ...] = ()
    """What the learner reports beside its model."""

    def __post_init__(self) -> None:
        at_least(1, "Plan", epochs=self.epochs)
        if self.steps is not None:
            at_least(1, "Plan", steps=self.steps)
        at_least(1, "Plan", batch=self.batch)
        at_least(1, "Plan", accumulate=self.accumulate)
        more_than(0, "Plan", rate=self.rate)
        between("Plan", "momentum", self.momentum, 0, 1)
        at_least(0, "Plan", proximal=self.proximal)
        for name, own in (("lr", "rate"), ("momentum", "momentum")):
            require(name not in self.options, f"Plan: options has {name!r}; give {own}=... instead.")
        require(
            self.momentum == 0 or self.optimiser in ("SGD", "RMSprop"),
            f"Plan: momentum={self.momentum} goes with SGD and RMSprop, not with {self.optimiser}; "
            "give that optimiser's own settings in options={...}.",
        )
        require(
            self.steps is None or self.cycle is None,
            f"Plan: steps={self.steps} and a validation cycle both end a task; give one of them.",
        )
        require(
            not (self.all_data and self.cycle is not None),
            "Plan: a task that trains on all data has no validation part left for its cycle; leave one of them out.",
        )
        if self.phases:
            total = sum(phase.epochs for phase in self.phases)
            require(
                total == self.epochs and self.steps is None and self.cycle is None,
                f"Plan: phases of {total} epochs need a task of as many epochs, and this one has epochs={self.epochs}, "
                f"steps={self.steps} and cycle={self.cycle}.",
            )

    def phase(self, epoch: int) -> CurrentPhase:
        """Return the phase that an epoch belongs to."""
        end = 0
        for phase in self.phases:
            end += phase.epochs
            if epoch < end:
                proximal = self.proximal if phase.proximal is None else phase.proximal
                rate, shift = self.rate * phase.rate, None if phase.of else self.shift
                settings: dict[str, Any] = {"trains": phase.trains, "rate": rate, "proximal": proximal, "shift": shift}
                return CurrentPhase(replace(self, epochs=end, phases=(), **settings), end, phase.of)
        return CurrentPhase(self, self.epochs, "")

    def own_epochs(self, epochs: int) -> int:
        """Return how many of the first epochs train the task's model and not a kept vector."""
        apart, end = 0, 0
        for phase in self.phases:
            begin, end = end, end + phase.epochs
            apart += max(0, min(epochs, end) - begin) if phase.of else 0
        return epochs - apart

    def untrained(self) -> Plan:
        """Return the plan of a task that trains and sends nothing: the learner reports on the model it receives."""
        return replace(self, epochs=1, steps=None, cycle=None, trains=(), uploads=(), shift=None, phases=())

    def sends(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return which of these layers go back to the controller."""
        if self.uploads is None and not self.private:
            return names
        uploads = names if self.uploads is None else self.uploads
        return tuple(name for name in names if name in uploads and name not in self.private)


class Local(TypedDict, total=False):
    """The settings of local training that every algorithm's constructor takes: the first fields of `Plan`."""

    epochs: int
    steps: int | None
    batch: int
    rate: float
    momentum: float
    optimiser: str
    options: Mapping[str, float | bool | tuple[float, ...]]
    accumulate: int
