"""Messages between the controller, the engine and the learners. Read this first.

Commands, named in the imperative, go from the controller to the engine; events, named in the past tense, come back.
All are plain data: they can be saved, sent over a wire, compared and replayed.

Laws of an engine: every `Train`, `Evaluate` and `AddUp` is answered once, by its event or by `Failed`; `Cancel` is
answered by `Failed(task, "cancelled")`; a later answer is not applied. So a barrier means "no task
is open" and cannot hang.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from archipel.core.checks import one_of
from archipel.core.plan import CurrentPhase as CurrentPhase
from archipel.core.plan import Cycle as Cycle
from archipel.core.plan import Local as Local
from archipel.core.plan import Phase as Phase
from archipel.core.plan import Plan as Plan
from archipel.core.plan import Reports as Reports
from archipel.core.records import Record
from archipel.core.scored import PooledScore as PooledScore
from archipel.core.scored import Scored as Scored
from archipel.core.scored import ScoreTable as ScoreTable
from archipel.core.sparse_counts import SparseCounts as SparseCounts
from archipel.core.spent import Spent as Spent

HOME = "home"
"""The controller's own site: where stimuli and a global test set live, if there is one."""

Role: TypeAlias = Literal["train", "validation", "test"]
Distance: TypeAlias = Literal["correlation", "cosine", "euclidean"]
TextTask: TypeAlias = Literal["causal-lm", "masked-lm", "sequence-classification", "token-classification"]
IGNORED = -100
"""The target of a token that is not to be predicted, as in torch."""
AUC_BINS = 1024
"""Bins of a histogram of class scores: AUC is exact up to ties within a bin."""


# ---------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True, slots=True)
class Model:
    """A model by name: the vector itself lives in the engine's store.

    The manifest holds a stamp for each layer, changed whenever the layer changes: models with the same stamp have
    the same numbers there, so only layers whose stamp the other side does not have are sent.
    """

    name: str
    manifest: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Probe: how good is this model on the site's own validation or test part?"""

    part: Literal["validation", "test"]
    bins: int = 0
    """Bins of the histogram of class scores, which AUC is computed from; 0: none."""


@dataclass(frozen=True, slots=True)
class Consistency:
    """Probe: do the layers of two models agree on which stimuli are similar (Fed2A formulas 5 to 10)?"""

    distance: Distance

    def __post_init__(self) -> None:
        one_of("Consistency", "distance", self.distance, ("correlation", "cosine", "euclidean"))


Probe: TypeAlias = Score | Consistency


@dataclass(frozen=True, slots=True)
class Consistent:
    """Answer to `Consistency`: rc of formula 10 for each layer, in the layout's order."""

    layers: tuple[float, ...]


Result: TypeAlias = Scored | Consistent
"""One site's answer to a probe."""


SiteAnswers: TypeAlias = ScoreTable | tuple[Consistent | None, ...]
"""The sites' answers to a `Score` or a `Consistency` (None: no answer), in the order they were asked."""


def collect_answers(probe: Probe, results: Sequence[Result | None]) -> SiteAnswers:
    """Return the results of single sites as the answers to one probe; a result of another kind counts as missing."""
    if isinstance(probe, Score):
        return ScoreTable.of([result if isinstance(result, Scored) else None for result in results])
    return tuple(result if isinstance(result, Consistent) else None for result in results)


@dataclass(frozen=True, slots=True)
class Metrics:
    """A learner's report on its training, beside the model."""

    epochs: float = 0.0
    losses: tuple[float, ...] = ()
    """Mean validation loss of the received model, then after each epoch."""
    validation: Scored | None = None
    """The trained model on the learner's own validation part."""
    gradient_norm: float | None = None
    """Mean squared norm of the gradient at the trained model (RADFed Alg. 2, line 3 of ClientUpdate)."""
    classes: tuple[int, ...] = ()
    """Training examples of each class; empty for tasks without classes."""
    training_loss: float | None = None
    """Mean loss of the received model over the learner's training examples."""
    squared_loss: float | None = None
    """Mean of the squared losses of its single training examples."""
    spent: Spent | None = None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one task moved, as the engine measured them."""

    down: int = 0
    """From the controller to the sites."""
    up: int = 0
    """From the sites to the controller."""
    sites: int = 1
    """Sites they went to or came from; each was sent its own copy of the model."""


# ------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True)
class Train:
    """Have a learner train this model by this plan."""

    task: int
    learner: str
    model: Model
    plan: Plan
    key: int
    """Seed of the task's randomness. Otherwise the plans of a round are equal."""


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Have these sites evaluate this model; a probe that compares two models also gets a reference.

    The engine asks them in parallel and answers when the last answer has arrived or is given up.
    """

    task: int
    sites: tuple[str, ...]
    model: Model
    probe: Probe
    reference: Model | None = None
    record: bool = False
    """Whether it is for the records only: it costs no virtual time, and its bytes are counted apart."""
    pooled: bool = False
    """Whether the engine adds the answers up without showing any single one, and answers with `Pooled`."""


@dataclass(frozen=True, slots=True)
class AddUp:
    """Add up the updates of these training tasks without showing any single one."""

    task: int
    tasks: tuple[int, ...]
    learners: tuple[str, ...]
    """The learners of these tasks, in the same order."""
    weights: tuple[int, ...]
    layers: tuple[str, ...]
    """The layers that are added up; all learners have sent them."""
    start: str
    """The model that all tasks carried, by name."""
    absent: tuple[str, ...] = ()
    """Learners of the round without an update; in a simulation they drop out of the sum."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Tell the learner to stop at the end of its epoch and send its result."""

    task: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give up a task: it is answered by Failed(task, "cancelled")."""

    task: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Send `Woke(tag)` after so many seconds."""

    after: float
    tag: str


@dataclass(frozen=True, slots=True)
class Keep:
    """Store this record, stamped with the engine's time."""

    record: Record


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""

    reason: str


Command: TypeAlias = Train | Evaluate | AddUp | Finish | Cancel | Wake | Keep | Stop


# --------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Trained:
    """A learner sent its model; the engine has put the vector into the store under this name."""

    task: int
    model: str
    """Empty if the numbers stay with the learner until they are added up."""
    layers: tuple[str, ...]
    """The layers that were sent."""
    steps: int
    metrics: Metrics = Metrics()
    traffic: Traffic = Traffic()


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The answers of the sites that were asked, in their order; some may be missing (lost, left, late)."""

    task: int
    results: SiteAnswers
    traffic: Traffic = Traffic()


@dataclass(frozen=True, slots=True)
class Pooled:
    """What the scores of the sites that were asked add up to, where the controller must not see single ones."""

    task: int
    results: PooledScore
    traffic: Traffic = Traffic()


@dataclass(frozen=True, slots=True)
class Summed:
    """Updates were added up; the engine has put the model with their weighted mean into the store."""

    task: int
    model: str
    tasks: tuple[int, ...]
    """The training tasks whose updates are in the sum; the other learners dropped out."""
    weight: int
    """Sum of the weights that they have sent."""
    traffic: Traffic = Traffic()


@dataclass(frozen=True, slots=True)
class Progress:
    """A learner has finished another epoch of its task, and has made this many steps in all."""

    task: int
    steps: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A task or evaluation will not be answered: lost, late, refused, crashed, left or cancelled."""

    task: int
    reason: str
    traffic: Traffic = Traffic()


@dataclass(frozen=True, slots=True)
class Woke:
    tag: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A learner has joined and may be given tasks."""

    learner: str
    examples: int | None
    """Size of its training part; None if it withholds that (RADFed)."""
    validation: int = 0
    """Size of its validation part."""
    test: int = 0
    """Size of its own test part."""
    group: str = ""
    """The group whose thresholds apply (Metis gives fast and slow learners their own)."""
    role: Role = "train"
    """Learners held out for validation or test only evaluate models (RADFed)."""
    fresh: bool = True
    """Whether it has no private layers yet, or has lost them."""


@dataclass(frozen=True, slots=True)
class Left:
    learner: str


@dataclass(frozen=True, slots=True)
class RolledBack:
    """An operator has rolled the model back to an earlier version."""

    version: int
    """The version whose numbers become the next version."""
    model: str
    """The name of the vector that holds them."""


Event: TypeAlias = Trained | Evaluated | Pooled | Summed | Progress | Failed | Woke | Joined | Left | RolledBack
