"""Planner: changes a learner's next plan. Planners form a chain; each receives the plan of the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from archipel.core.checks import at_least, more_than, one_of, require, share
from archipel.core.layout import Layout
from archipel.core.members import Member
from archipel.core.parts.divergence import first_divergent, layer_divergence
from archipel.core.parts.part import Composition, Needs, Part
from archipel.core.records import Divergence, Record
from archipel.core.state import Update, View
from archipel.core.types import Cycle, Model, Plan


class Planner(Part):
    remembers_updates = False
    """Whether its memory depends on updates and has to be reset after a rollback."""

    def conflicts(self, algorithm: Composition) -> str | None:
        if sum(type(planner) is type(self) for planner in algorithm.planners) > 1:
            return f"planners hold {type(self).__name__} more than once; one of them would be lost."
        return None

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        """Return the plan for this learner's next task, which starts from the current version."""
        raise NotImplementedError

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        """Return every plan that `plan` may derive from this one, each with its highest rate.

        A learner of a real federation refuses all others, so a planner that changes anything must override this.
        """
        return (plan,)

    def carried(self, view: View, learner: Member, model: Model) -> Model:
        """Return the model for this learner's next task, made from the one that the protocol hands out."""
        return model

    def private(self, layout: Layout) -> tuple[str, ...]:
        """Return the layers that this planner keeps private."""
        return ()

    def optional(self, layout: Layout) -> tuple[str, ...]:
        """Return the layers that a task's answer omits if they are unwanted when it ends."""
        return ()

    def unwanted(self, view: View) -> tuple[str, ...]:
        """Return the optional layers that the next version does not use."""
        return ()

    def notes(self, view: View) -> list[Record]:
        """Return records to write after a commit."""
        return []


def _conflict_over_epochs(planner: Planner, algorithm: Composition) -> str | None:
    """Return why a planner cannot set a task's epochs in this algorithm, or None."""
    mine, steps = type(planner).__name__, algorithm.plan.steps
    if steps is not None:
        return f"{mine} sets the epochs of a task, and the plan has steps={steps}; leave steps out."
    others = [
        type(other).__name__ for other in algorithm.planners if isinstance(other, DivideAndConquer | ValidationCycle)
    ]
    if len(others) > 1:
        return f"{' and '.join(sorted(others))} both set the epochs of a task; use one."
    return None


@dataclass(frozen=True)
class Proximal(Planner):
    """FedProx: adds (mu / 2) ||w - w'||^2 to the loss, w' being the model the task carried."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        at_least(0, "Proximal", mu=self.mu)

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        return replace(plan, proximal=self.mu)

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        return (replace(plan, proximal=self.mu),)


@dataclass(frozen=True)
class Decay(Planner):
    """Multiply the learning rate by `factor` at every version of the model."""

    factor: float = 0.9

    def __post_init__(self) -> None:
        share("Decay", "factor", self.factor)

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        return replace(plan, rate=plan.rate * self.factor**view.version)


@dataclass(frozen=True)
class ValidationCycle(Planner):
    """Adaptive update frequency: train until the local validation loss stops falling (Metis section V, C1 and C2).

    Thresholds are one number, or one for each group of learners: {"fast": 0, "slow": 1}.
    """

    loss: float | Mapping[str, float] = 0.0
    """VC_loss, in per cent."""
    tombstones: int | Mapping[str, int] = 0
    """VC_tomb: failures allowed in a cycle."""
    at_most: int = 100
    """Epochs after which a cycle ends anyway."""

    needs = Needs(validation=True)

    def conflicts(self, algorithm: Composition) -> str | None:
        return super().conflicts(algorithm) or _conflict_over_epochs(self, algorithm)

    def __post_init__(self) -> None:
        for group in self._groups():
            self.cycle_of(group)  # raises now for bad thresholds, and not during the run

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        return self._with_cycle(plan, learner.group)

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        return tuple(self._with_cycle(plan, group) for group in self._groups())

    def _with_cycle(self, plan: Plan, group: str) -> Plan:
        return replace(plan, cycle=self.cycle_of(group), reports=(*plan.reports, "losses"))

    def _groups(self) -> list[str]:
        groups = [set(value) for value in (self.loss, self.tombstones) if isinstance(value, Mapping)]
        require(
            len(groups) < 2 or groups[0] == groups[1],
            f"ValidationCycle: loss and tombstones name different groups: {self.loss} and {self.tombstones}.",
        )
        return sorted(groups[0]) if groups else [""]

    def cycle_of(self, group: str) -> Cycle:
        """Return the thresholds of a group."""
        loss = self.loss[self._known(group)] if isinstance(self.loss, Mapping) else self.loss
        tombstones = self.tombstones
        if isinstance(tombstones, Mapping):
            tombstones = tombstones[self._known(group)]
        return Cycle(loss, tombstones, self.at_most)

    def _known(self, group: str) -> str:
        require(
            group in self._groups(),
            f"ValidationCycle: no thresholds for learners of group {group!r}; groups given: "
            f"{', '.join(self._groups())}. Name them as the fleet does, or give one number for all.",
        )
        return group


@dataclass(frozen=True)
class PeriodicLayers(Planner):
    """PLU(R, P, D): deep layers are uploaded only in the last D rounds of every P (Fed2A section 3.3.1).

    In the first period all layers are uploaded.
    """

    period: int = 10
    """P."""
    last: int = 7
    """D."""
    deep: str | tuple[str, ...] = "deep"
    """The deep layers: names, or a word that `Layout.select` knows."""
    by: Literal["arrival", "hand-out"] = "arrival"
    """A task's round is the version that would follow when its answer arrives, so that a commit holds the deep layers
    of all its updates or of none (formula 12); or the version that would follow when it is handed out."""

    def __post_init__(self) -> None:
        one_of("PeriodicLayers", "by", self.by, ("arrival", "hand-out"))
        at_least(1, "PeriodicLayers", period=self.period)
        require(
            0 <= self.last <= self.period,
            f"PeriodicLayers: last (D) should be between 0 and the period {self.period}, got {self.last!r}.",
        )

    def check(self, layout: Layout) -> None:
        deep = layout.select("PeriodicLayers", self.deep)
        require(
            len(deep) < len(layout.layers),
            f"PeriodicLayers: all layers ({', '.join(layout.names)}) are deep, so nothing would be uploaded in most "
            "rounds; name the deep ones with deep=(...).",
        )

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        if self.by == "arrival" or self.uploads_deep(view.version + 1):
            return plan
        return self._without_deep(view.layout, plan)

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        return (plan,) if self.by == "arrival" else (plan, self._without_deep(layout, plan))

    def optional(self, layout: Layout) -> tuple[str, ...]:
        return layout.select("PeriodicLayers", self.deep) if self.by == "arrival" else ()

    def unwanted(self, view: View) -> tuple[str, ...]:
        return () if self.uploads_deep(view.version + 1) else self.optional(view.layout)

    def _without_deep(self, layout: Layout, plan: Plan) -> Plan:
        deep = layout.select("PeriodicLayers", self.deep)
        sent = layout.names if plan.uploads is None else plan.uploads
        return replace(plan, uploads=tuple(name for name in sent if name not in deep))

    def uploads_deep(self, round_: int) -> bool:
        """Return whether deep layers are uploaded in a round; rounds count from 1."""
        period, place = divmod(round_ - 1, self.period)
        return period == 0 or place >= self.period - self.last


@dataclass(frozen=True)
class PrivateLayers(Planner):
    """HDAFL: each learner trains and keeps these layers and never sends them.

    A learner's first task carries them (ClientInit of Alg. 1), also if it joins late.
    """

    layers: str | tuple[str, ...] = "head"
    """Names, or a word that `Layout.select` knows: `head` (HDAFL), `features` (LG-FedAvg), `norms` (FedBN), `all`,
    `buffers`."""

    def check(self, layout: Layout) -> None:
        self.private(layout)

    def private(self, layout: Layout) -> tuple[str, ...]:
        return layout.select("PrivateLayers", self.layers)

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        (planned,) = self.plans(view.layout, plan)
        return planned

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        mine = self.private(layout)
        sent = layout.names if plan.uploads is None else plan.uploads
        private = tuple(name for name in layout.names if name in (*plan.private, *mine))
        return (replace(plan, private=private, uploads=tuple(name for name in sent if name not in mine)),)


@dataclass(slots=True)
class SplitMemory:
    divergence: list[float] = field(default_factory=list)
    """Divergence of each layer at the last commit with two updates or more."""
    split: int | None = None
    """Index of the first class-specific layer, once it is found."""
    since: int | None = None
    """The version at which it was found."""


@dataclass(frozen=True)
class DivideAndConquer(Planner):
    """D&C: split the network where weights diverge, then train its two parts in turn, the other part frozen.

    After `prepass` rounds of the whole network, the split is found from the divergence of the local models. From then
    on, feature-learning rounds (the layers before the split, all epochs, full rate) and fine-tuning rounds (the layers
    after it, few epochs, half rate) alternate. Only the layers that train are sent.
    """

    prepass: int = 5
    """Rounds of the whole network before the split; 0 with a given split."""
    split: str | int | None = None
    """The last class-agnostic layer, by name or by number from 1 (Divide5 is 5); None: found by divergence."""
    epochs: int = 20
    """Epochs of the pre-pass and of feature learning."""
    tuning_epochs: int = 4
    """Epochs of fine-tuning."""
    tuning_rate: float = 0.5
    """Rate of fine-tuning relative to that of feature learning."""
    divergence: Literal["cosine", "euclidean", "direction"] = "cosine"
    """EQ3: cosine distance / ||W_1||, EQ2: ||W_1 - W_2|| / ||W_1||, or the cosine distance as it is."""
    threshold: float = 0.5
    """A layer is above the low plateau if its divergence exceeds the lowest layer's by more than this share of the
    range to the highest; the split is before the first such layer. There is a plateau if the lowest is below this
    share of the highest; else only the last layer is fine-tuned."""

    def __post_init__(self) -> None:
        at_least(0, "DivideAndConquer", prepass=self.prepass)
        at_least(1, "DivideAndConquer", epochs=self.epochs)
        at_least(1, "DivideAndConquer", tuning_epochs=self.tuning_epochs)
        more_than(0, "DivideAndConquer", tuning_rate=self.tuning_rate)
        one_of("DivideAndConquer", "divergence", self.divergence, ("cosine", "euclidean", "direction"))
        share("DivideAndConquer", "threshold", self.threshold)
        require(
            self.split is not None or self.prepass > 0,
            "DivideAndConquer: without a pre-pass the split cannot be found; give split=... or prepass of at least 1.",
        )

    @property
    def needs(self) -> Needs:
        return Needs(at_least=1 if self.split is not None else 2)

    def conflicts(self, algorithm: Composition) -> str | None:
        per_commit = algorithm.protocol.updates_per_commit
        if per_commit is not None and per_commit < self.needs.at_least:
            return (
                f"{type(self).__name__} compares the updates of a commit to find its split, and "
                f"{algorithm.protocol!r} commits one at a time. Give split=..., or a buffer of two or more."
            )
        behind = algorithm.planners[algorithm.planners.index(self) + 1 :]
        if any(isinstance(planner, PrivateLayers) for planner in behind):
            return "put PrivateLayers before DivideAndConquer, which trains private layers in every round."
        return super().conflicts(algorithm) or _conflict_over_epochs(self, algorithm)

    def check(self, layout: Layout) -> None:
        require(
            len(layout.parameter_layers) >= 2,
            f"DivideAndConquer: a network of one layer ({layout.names[0]}) cannot be split; give two or more.",
        )
        if self.split is not None:
            self._given(layout)

    def plan(self, view: View, learner: Member, plan: Plan) -> Plan:
        split = self.found(view)
        if view.version < self.prepass or split is None:
            return replace(plan, epochs=self.epochs)
        since = view.memory(SplitMemory).since
        tunes = (view.version - (self.prepass if since is None else since)) % 2 == 1
        return self._half(view.layout, plan, split, tunes)

    def plans(self, layout: Layout, plan: Plan) -> tuple[Plan, ...]:
        splits = layout.parameter_layers[1:] if self.split is None else (self._given(layout),)
        halves = (self._half(layout, plan, split, tunes) for split in splits for tunes in (False, True))
        return (*([replace(plan, epochs=self.epochs)] if self.prepass else []), *halves)

    def _half(self, layout: Layout, plan: Plan, split: int, tunes: bool) -> Plan:
        """Return the plan of a fine-tuning round or of a feature-learning round."""
        if tunes:
            mine, epochs, rate = layout.names[split:], self.tuning_epochs, plan.rate * self.tuning_rate
        else:
            mine, epochs, rate = layout.names[:split], self.epochs, plan.rate
        sent = layout.names if plan.uploads is None else plan.uploads
        # private layers train in every round: nobody else can train them
        trains = tuple(name for name in layout.names if name in mine or name in plan.private)
        return replace(
            plan,
            epochs=epochs,
            rate=rate,
            trains=trains,
            uploads=tuple(name for name in sent if name in mine),
        )

    def found(self, view: View) -> int | None:
        """Return the index of the first class-specific layer, once it is known."""
        return view.memory(SplitMemory).split if self.split is None else self._given(view.layout)

    def committed(self, view: View, updates: Sequence[Update]) -> None:
        if not all(update.model.name for update in updates):
            return  # they were added up, and no single one can be read
        memory = view.memory(SplitMemory)
        memory.divergence = layer_divergence(view, updates, self.divergence)
        if self.split is None and view.version >= self.prepass and memory.split is None and memory.divergence:
            memory.split = first_divergent(view.layout, memory.divergence, self.threshold)
            memory.since = view.version  # begin with feature learning, whenever the split is found

    def notes(self, view: View) -> list[Record]:
        divergence = view.memory(SplitMemory).divergence
        split = self.found(view)
        if not divergence:
            return []
        first = None if split is None else view.layout.names[split]
        return [Divergence(view.version, view.layout.names, tuple(divergence), self.divergence, first)]

    def _given(self, layout: Layout) -> int:
        parameter_layers = layout.parameter_layers
        if isinstance(self.split, str):
            last = layout.index(layout.select("DivideAndConquer", self.split)[-1])
        else:
            require(
                self.split is not None and 1 <= self.split < len(parameter_layers),
                f"DivideAndConquer: split should be between 1 and {len(parameter_layers) - 1} for the layers "
                f"{', '.join(layout.names[place] for place in parameter_layers)}; got {self.split!r}.",
            )
            last = parameter_layers[(self.split or 1) - 1]
        behind = [place for place in parameter_layers if place > last]
        require(
            bool(behind),
            f"DivideAndConquer: split={self.split!r} leaves no layer to fine-tune; "
            f"layers of this model: {', '.join(layout.names)}.",
        )
        return behind[0]
