"""A learner's updates in secure sums: each goes into one sum, weighted, rounded and with its part of the noise."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from archipel.core.parts.secure_sum import SecureSum
from archipel.federation.learner.local_state import StateFolder
from archipel.federation.learner.sum_rounds import Signatures, SumRounds
from archipel.federation.wire import federation_pb2 as pb
from archipel.privacy.accounting import Draws, epsilon
from archipel.privacy.secure_sum.masks import Whole
from archipel.privacy.secure_sum.sum_messages import SecureSumRefused

FILE = "sum.json"

log = logging.getLogger("archipel.learner")


@dataclass(frozen=True)
class SumSettings:
    """What the learner's own study says of sums."""

    sums: SecureSum
    equally: bool
    """All updates weigh the same."""
    noise: float = 0.0
    """That any sum of a cohort has at least, in clips."""
    budget: float = math.inf
    """Epsilon that this learner's sums never exceed."""

    def refusal(self, sums: int) -> str | None:
        """Return why a learner takes no part in its sum of this number, or None."""
        if math.isinf(self.budget) or self.cost(sums) <= self.budget:
            return None
        return f"the privacy budget of {self.budget:g} does not pay for sum {sums} of this learner"

    def cost(self, sums: int) -> float:
        """Return epsilon of so many sums."""
        return epsilon("summed", self.noise, (Draws(1, 1, sums),), self.sums.delta)


class MaskedUpdates(SumRounds):
    """The sums of a round's updates."""

    def __init__(
        self, name: str, folder: StateFolder, settings: SumSettings, examples: int, signatures: Signatures | None
    ) -> None:
        self._settings = settings
        self._weight = 1 if settings.equally else settings.sums.whole_weight(examples)
        super().__init__(FILE, name, folder, settings.sums, signatures)

    def _admit(self, step: pb.SumStep) -> None:
        memory, withheld = self._folder.memory, self._folder.memory.withheld
        if step.task <= memory.last_sum:
            raise SecureSumRefused(f"{self._name}: round {step.task} is not above {memory.last_sum}, the last one.")
        if withheld is None or withheld.task != step.training or list(withheld.layers) != list(step.layers):
            raise SecureSumRefused(f"{self._name}: it has no update of task {step.training} with these layers.")
        if withheld.sum is not None:
            raise SecureSumRefused(f"{self._name}: the update of task {step.training} was in round {withheld.sum}.")
        reason = self._settings.refusal(memory.sums + 1)  # a controller's word is not relied on
        if reason is not None:
            raise SecureSumRefused(f"{self._name}: {reason}.")
        with self._folder.lock:
            memory.last_sum = withheld.sum = step.task
            memory.sums += 1
            self._folder.save()

    def _numbers(self, task: int) -> Whole | None:
        withheld = self._folder.memory.withheld
        if withheld is None or withheld.sum != task:
            return None
        norm, clip = float(withheld.change.norm()), self._sums.clip
        if norm > clip:
            log.warning("the update is longer than the clip and scaled back", extra={"norm": norm, "clip": clip})
        quantiser = self._sums.quantiser(self._cohort, self._settings.equally, self._settings.noise)
        return quantiser.encode(withheld.change.numpy(), self._weight, self._noise_seed)

    def _forget(self) -> None:
        self._folder.memory.withheld = None
