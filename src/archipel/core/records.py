"""Records: the history of a run. The controller says what happened, the engine adds the time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Committed:
    """A new version of the community model."""

    version: int
    rounds: int
    """Local-training rounds by then."""
    learners: tuple[str, ...]
    """The contributors; under Relay the last learner of each slot."""
    paths: tuple[tuple[str, ...], ...]
    """For each contribution, all learners that trained it."""
    tasks: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    """For each contribution its weight for each layer, as the weighting gave it; if more than 4,096 differ by layer,
    the mean over the layers instead."""
    stale_versions: tuple[int, ...]
    stale_steps: tuple[int, ...]
    """Effective staleness (Metis section V and fig. 4)."""
    layers: tuple[int, ...]
    """Indices of the layers that changed."""
    traffic: dict[str, int]
    """Bytes and models moved so far: train down/up, evaluate down, score down."""
    norms: tuple[float, ...] = ()
    """How far each contribution would have moved the model that its learner starts from; empty if not measured."""
    clipped: tuple[bool, ...] = ()
    """Which contributions were scaled back; empty where updates are not clipped."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A version's score."""

    version: int
    rounds: int
    metrics: dict[str, float]
    examples: int
    sites: int
    validation: dict[str, float] = field(default_factory=dict)
    """The same metrics at the validation learners, where there are any beside those it is scored at."""


@dataclass(frozen=True, slots=True)
class Handed:
    """A learner was given a task."""

    task: int
    learner: str
    version: int
    slot: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A learner's task came back."""

    task: int
    learner: str
    version: int
    """The version it had started from."""
    steps: int
    epochs: float
    layers: tuple[str, ...]
    losses: tuple[float, ...]
    """Its validation cycle (Metis fig. 3): the loss before the first epoch and after each."""
    recalled: bool
    """Whether it was asked to finish early (C3)."""


@dataclass(frozen=True, slots=True)
class Probed:
    """Sites began to evaluate a model for the controller, in parallel to training; written by the simulator."""

    task: int
    evaluators: tuple[str, ...]
    seconds: tuple[float, ...]
    """Seconds until each site's answer arrives."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Something was not applied: what, whose and why. The run continued without it."""

    task: int
    learner: str
    reason: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """Layer-wise weight divergence of the local models of a commit (D&C figs. 5 and 7)."""

    version: int
    names: tuple[str, ...]
    values: tuple[float, ...]
    kind: str
    split: str | None
    """The first class-specific layer, once it is known."""


@dataclass(frozen=True, slots=True)
class Membership:
    """A learner joined or left."""

    learner: str
    there: bool
    fresh: bool = False
    """Whether it has no private layers, or has lost them."""


@dataclass(frozen=True, slots=True)
class Shadow:
    """RADFed's divergences, by choice and in simulation only.

    DC(t) = ||w_FL - w_C|| / ||w_C|| from a centralised run on the same data; DL is formula 3 between local updates.
    """

    rounds: int
    dc: float | None
    dl: float | None


@dataclass(frozen=True, slots=True)
class Capped:
    """A learner claimed more than the largest share allowed for the first time; it is limited to that from then on."""

    learner: str
    what: str
    """weight, opinions or score."""
    most_share: float


@dataclass(frozen=True, slots=True)
class Restored:
    """A version has the numbers of an earlier one, to which an operator has rolled the model back."""

    version: int
    earlier: int
    rounds: int
    """Local-training rounds by then."""


@dataclass(frozen=True, slots=True)
class PrivacySpent:
    """The privacy that the versions up to this one have spent."""

    version: int
    epsilon: float
    delta: float
    noise: float
    """In units of the clip."""
    clip: float
    """The clip of the next commit's updates, or of all gradients of examples."""
    of: str = "learner"
    """Unit of protection: a learner's whole data, or one example; then epsilon is the largest of all learners."""


@dataclass(frozen=True, slots=True)
class LearnerSpent:
    """What a learner's updates up to this task reveal of any of its examples, as it reported."""

    task: int
    learner: str
    epsilon: float
    delta: float
    noise: float
    rests: bool
    """Its budget does not pay for another task."""


Record: TypeAlias = (
    Committed
    | Scores
    | Handed
    | Returned
    | Probed
    | Refused
    | Divergence
    | Membership
    | Shadow
    | Capped
    | Restored
    | PrivacySpent
    | LearnerSpent
)


@dataclass(frozen=True, slots=True)
class Stamped:
    """A record and the second it was written."""

    time: float
    record: Record
