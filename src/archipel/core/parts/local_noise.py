"""Local noise: DP-SGD at the learner, so that its updates do not reveal any single one of its examples.

M. Abadi et al., Deep Learning with Differential Privacy, CCS 2016.

Implemented: in every step g = (sum over the batch of clip(gradient of one example) + noise x clip x N(0, I)) / B, over
all trainable parameters, private layers included; the plan's optimiser then steps along g. An example is in a batch
independently of the others, drawn anew in every step (`poisson`), or in one batch of every pass (`shuffled`). Noise and
batches come from a secret of the learner. All that follows, such as a proximal term, a shift, momentum, and the
controller's work on the update, is post-processing.

Like an objective it runs at the learners, each of which has it from its own copy of the study; it is never sent.
Readings (docs/decisions/0126): the number of a learner's examples is public; neighbouring runs differ in whether one
example adds to the sums of gradients. `archipel.learner.example_budget` keeps each learner's account.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from archipel.core.checks import at_least, more_than, one_of, require
from archipel.core.frozen_weights import copied
from archipel.core.layout import Layout
from archipel.core.members import Members
from archipel.core.parts.all_data import AllData
from archipel.core.parts.ending import Account, Ending
from archipel.core.parts.noise_terms import NoisePrivacy
from archipel.core.parts.part import Composition, Part
from archipel.core.parts.protocol import Relay, Rounds
from archipel.core.records import PrivacySpent
from archipel.core.state import Update, View
from archipel.core.types import Spent

GROUPS = (32, 16, 8, 4, 2, 1)
"""Numbers of groups that an error suggests for group normalisation: the largest that divides the channels."""


@dataclass(slots=True)
class ExampleSpending(Account):
    """Memory of `LocalNoise`: the learners' reports on their accounts."""

    latest: dict[str, Spent] = field(default_factory=dict)
    at_least: int = 1
    """Learners that a round needs."""

    def exhausted(self, members: Members) -> str | None:
        """Return why no further round is possible, or None."""
        willing = members.willing
        if willing >= self.at_least or not members.resting:
            return None
        left = "no learner has" if not willing else f"only {willing} learners have"
        return f"{left} privacy budget left for another task, and a round needs {self.at_least}"


@dataclass(frozen=True)
class LocalNoise(NoisePrivacy):
    """Differential privacy for single examples: each learner clips and noises its gradients, and accounts for them."""

    clip: float = 1.0
    """Largest norm of an example's gradient over all parameters that train; a longer one is scaled back."""
    batches: Literal["poisson", "shuffled"] = "poisson"
    """Poisson sampling, which amplifies privacy; or each example in one batch of every pass."""
    tasks: int | None = None
    """Tasks that a budget has to last for, where the noise is computed; default: those that a learner can expect in the
    ending's rounds, and their root beyond."""

    hides_updates = False
    merges = False
    statistics = ("none",)

    def __post_init__(self) -> None:
        super().__post_init__()
        more_than(0, "LocalNoise", clip=self.clip)
        one_of("LocalNoise", "batches", self.batches, ("poisson", "shuffled"))
        if self.tasks is not None:
            at_least(1, "LocalNoise", tasks=self.tasks)
            require(isinstance(self.tasks, int), f"LocalNoise: tasks should be a whole number, got {self.tasks!r}.")

    def conflicts(self, algorithm: Composition) -> str | None:
        """Return why other parts reveal more of the examples than noised gradients do, or None."""
        for report in algorithm.reports:
            if report.startswith("gradient norm") or report in ("class counts", "training loss"):
                asks = _asking(algorithm, report)
                return (
                    f"LocalNoise accounts for gradients, and {asks} has learners report their {report}, computed from "
                    "the same examples without noise. Use another part, or CentralNoise."
                )
        objective = algorithm.objective
        if objective is not None and objective.needs_counts:
            return (
                f"LocalNoise bounds what one example adds, and {objective!r} makes the loss of every example depend on "
                "how many there are of each class. Leave it out."
            )
        return self._conflict_at_learners(algorithm)

    def _conflict_at_learners(self, algorithm: Composition) -> str | None:
        """Return why learners would train by more than noised gradients, or None."""
        objective, descent, personal = algorithm.objective, algorithm.descent, algorithm.personal
        if objective is not None and objective.compares:
            return (
                f"LocalNoise needs a separate gradient for every example, and {objective!r} compares the inputs "
                "of a layer. Leave it out, or use CentralNoise."
            )
        if descent is not None:
            return (
                f"LocalNoise adds noise to the gradient of a mini-batch, and {descent!r} steps along something else. "
                "Leave it out, or use CentralNoise."
            )
        if personal is not None and personal.tuning(algorithm.plan) is not None:
            return (
                f"{personal!r} trains on the learner's examples without noise, and its scores are reported. Use "
                "KeptModel() with PersonalPhase(), which has noise too, or leave it out."
            )
        everything = next((planner for planner in algorithm.planners if isinstance(planner, AllData)), None)
        if everything is not None:
            return (
                f"LocalNoise accounts for the training part, and with {everything!r} tasks train on the validation "
                "part too. Leave one of them out."
            )
        return None

    def check_network(self, module: nn.Module, layout: Layout, examples: Tensor) -> None:
        """Refuse a network in which examples of a batch depend on each other."""
        for name, inner in module.named_modules():
            if isinstance(inner, nn.modules.batchnorm._BatchNorm):
                groups = next(count for count in GROUPS if inner.num_features % count == 0)
                raise ValueError(
                    f"LocalNoise clips the gradient of every example, and {type(inner).__name__} {name!r} mixes the "
                    f"examples of a batch. Use group normalisation: torch.nn.GroupNorm({groups}, {inner.num_features})."
                )
        probe = copied(module).train()
        before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            probe(examples)
        moved = [name for name, buffer in probe.named_buffers() if not torch.equal(buffer, before[name])]
        require(
            not moved,
            f"LocalNoise adds noise to gradients, and training updates {', '.join(moved)} from the examples "
            "without noise. Use layers without running statistics, such as torch.nn.GroupNorm.",
        )

    def begin(self, view: View, algorithm: Composition, ending: Ending, learners: int, private: Sequence[str]) -> None:
        self.tasks_of(algorithm, ending)  # raises if they are not known
        needed = algorithm.protocol.at_least if isinstance(algorithm.protocol, Rounds | Relay) else 1
        view.memory(ExampleSpending, lambda: ExampleSpending(at_least=needed))

    def tasks_of(self, algorithm: Composition, ending: Ending) -> int | None:
        """Return how many tasks a budget has to last for; None: until it is spent."""
        if self.noise is not None or self.tasks is not None:
            return self.tasks
        protocol, rounds = algorithm.protocol, ending.rounds or ending.commits
        require(
            isinstance(protocol, Rounds | Relay),
            f"LocalNoise: under {protocol!r} it is unknown how many tasks a learner will get. Give tasks=..., or "
            "noise=... beside epsilon; a learner then gets no more tasks before it exceeds epsilon.",
        )
        assert isinstance(protocol, Rounds | Relay)
        require(
            rounds is not None,
            f"LocalNoise: epsilon={self.epsilon} has to last for a number of tasks; give Ending(rounds=...), tasks=... "
            "or noise=....",
        )
        assert rounds is not None
        if isinstance(protocol, Relay) and ending.rounds is None:
            rounds *= protocol.hops
        expected = protocol.fraction * rounds
        return min(rounds, -int(-(expected + expected**0.5 * (protocol.fraction < 1)) // 1))

    def observe(self, view: View, update: Update) -> None:
        told = update.metrics.spent
        if told is not None:
            view.memory(ExampleSpending).latest[update.learner] = told
            if told.rests:
                view.state.members.rest(update.learner)

    def spent(self, view: View, version: int) -> PrivacySpent | None:
        """Return the account of the learner that has spent the most."""
        latest = view.memory(ExampleSpending).latest.values()
        most = max(latest, key=lambda told: told.epsilon, default=None)
        if most is None:
            return None
        return PrivacySpent(version, most.epsilon, most.delta, most.noise, self.clip, of="example")


def _asking(algorithm: Composition, report: str) -> str:
    """Return the part that asks learners for a report, for a message."""
    parts = (algorithm.selection, algorithm.weighting, algorithm.merge, *algorithm.planners)
    asking = [part for part in parts if isinstance(part, Part) and report in part.needs.reports]
    return repr(asking[0]) if asking else "the plan"
