"""A learner's state folder: private layers, kept vectors and last answers, which survive a crash.

What one training task leaves behind, its private layers, kept vectors and the answer that is owed, is written in one
file at once: a learner that is asked for the same task again gives the same answer and has not trained twice.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from archipel.core import types
from archipel.core.types import Metrics
from archipel.federation.learner.restored_files import is_restored, mark
from archipel.learner.example_budget import ExampleAccount
from archipel.storage.dataclass_codec import Codec


@dataclass(slots=True)
class Owed:
    """An answer to a training task that the controller has not confirmed."""

    task: int
    sequence: int
    layers: tuple[str, ...]
    """Those the plan asks for."""
    changed: tuple[str, ...]
    """Those among them that differ from the task's model: they are in `numbers`, one behind the other."""
    digests: dict[str, str]
    numbers: Tensor
    steps: int
    metrics: Metrics


@dataclass(slots=True)
class Withheld:
    """An update that goes into a secure sum, and into no other."""

    task: int
    layers: tuple[str, ...]
    change: Tensor
    """How far these layers moved, in float64, one behind the other."""
    sum: int | None = None
    """The sum that it was promised to."""


@dataclass(slots=True)
class HeldScore:
    """A score that goes into a secure sum, and into no other."""

    task: int
    question: str
    """By which it is known when it is asked again."""
    numbers: Tensor
    """In int64, as `ScoreNumbers` has them."""


@dataclass(slots=True)
class Memory:
    """The state of a learner that survives a crash."""

    sequence: int = 0
    """Answers it has given."""
    federation: str = ""
    """The federation of these answers: tasks of another one have the same numbers."""
    trained: int = 0
    """Training tasks it has done."""
    keys: int = 0
    """Seeds of its sequence that are used up."""
    answered: int = 0
    """Questions about models that it has answered."""
    moments: str = ""
    """SHA-256 of the statistics that its features are standardised by."""
    examples: ExampleAccount | None = None
    """The secret and the account of its examples, where it adds noise to its gradients."""
    private: dict[str, Tensor] = field(default_factory=dict)
    kept: dict[str, Tensor] = field(default_factory=dict)
    owed: Owed | None = None
    withheld: Withheld | None = None
    sums: int = 0
    """Secure sums that it took part in."""
    last_sum: int = -1
    """The last secure sum of updates that it took part in: each has a higher number."""
    held: list[HeldScore] = field(default_factory=list)
    """In the order in which they were counted."""
    last_score: int = 0
    """The last secure sum of scores that it took part in: each has a lower number."""
    mark: str = ""
    """By which the file is told from a copy of it."""


log = logging.getLogger("archipel.learner")

CODEC = Codec(types, Owed, Withheld, HeldScore, Memory, ExampleAccount)


class StateFolder:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "learner.safetensors"
        self.fresh = not self.path.exists()
        """There is nothing of an earlier life here."""
        self.memory: Memory = Memory() if self.fresh else CODEC.load(self.path)
        self.lock = threading.RLock()
        """Held while things change that are saved together: training, scores and sums have their own threads."""
        self.restored = not self.fresh and is_restored(self.path, self.memory.mark)
        """It may be behind what this learner has answered; an update that was in a sum must not be in another."""
        if self.restored and (self.memory.withheld is not None or self.memory.held):
            log.warning("the state was restored or moved, or the machine restarted: an update is in no secure sum")
            self.memory.withheld, self.memory.held = None, []

    def save(self) -> None:
        with self.lock:
            self.memory.mark = mark()
            CODEC.save(self.path, self.memory)
