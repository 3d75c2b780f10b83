"""Central noise: clip every update, add Gaussian noise to their sum, and account for what that reveals.

B. McMahan et al., Learning Differentially Private Recurrent Language Models, 2018; G. Andrew et al., Differentially
Private Learning with Adaptive Clipping, 2021.

Implemented: w <- w' + (sum_k p_k clip(w_k - w'_k) + noise x clip x N(0, I)) / n, w'_k being the model that a task
carried. A change is clipped in the Euclidean norm over all layers that are sent, and p_k is at most 1, so no learner
moves the sum by more than `clip`. n is the number of learners that a round asks, however many answer; with `Poisson`
selection it is the expected number, and a round without learners gets noise like any other. Under a stream n is the
number of updates. Adaptive clipping is algorithm 1 of Andrew et al.: the share of changes within the clip gets noise
too and moves the clip.

Noise and draws of learners come from the controller's secret key, never from the study's seed, which all learners know.
Readings: docs/decisions/0085 and 0125; `archipel.privacy.accounting` states what a release costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from archipel.core.checks import between, more_than, require
from archipel.core.layout import chunks
from archipel.core.parts.changes import MeanChange
from archipel.core.parts.ending import Ending
from archipel.core.parts.merge import Mean, Merge, Proposal
from archipel.core.parts.noise_terms import NoisePrivacy, check_statistics, course_conflict
from archipel.core.parts.part import Composition
from archipel.core.parts.privacy import planned_by_updates
from archipel.core.parts.privacy_account import PrivacyAccount
from archipel.core.parts.protocol import Relay, Rounds
from archipel.core.parts.selection import Poisson, Uniform
from archipel.core.parts.weighting import ByFreshness, Equally, Product
from archipel.core.records import PrivacySpent
from archipel.core.state import Update, View
from archipel.privacy.accounting import Draws, Sampling, noise_for, rounds_for
from archipel.privacy.noise import limit, noised

BLOCK = 1 << 20
"""Numbers that are processed at a time; models may be on disk."""
COUNT_NOISE = 20
"""The count of changes within the clip has noise of the updates divided by this (Andrew et al., section 3)."""


@dataclass(frozen=True)
class CentralNoise(NoisePrivacy):
    """Differential privacy for whole learners: the controller clips, adds noise and accounts for it."""

    clip: float | Literal["adaptive"] = "adaptive"
    """Largest norm of an update's change over all layers sent; "adaptive": follow a quantile of the norms."""
    initial_clip: float = 0.1
    """Initial value of an adaptive clip."""
    quantile: float = 0.5
    """Share of the changes that an adaptive clip leaves as they are."""
    clip_rate: float = 0.2
    """Learning rate of an adaptive clip."""

    keyed = True
    statistics = ("none", "local")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.clip == "adaptive" or not isinstance(self.clip, str),
            f"CentralNoise: clip should be a norm such as 1.0, or 'adaptive', got {self.clip!r}.",
        )
        if not isinstance(self.clip, str):
            more_than(0, "CentralNoise", clip=self.clip)
        more_than(0, "CentralNoise", initial_clip=self.initial_clip, clip_rate=self.clip_rate)
        between("CentralNoise", "quantile", self.quantile, 0, 1)

    def conflicts(self, algorithm: Composition) -> str | None:
        """Return why other parts use single updates or data counts, which noise on the sum does not cover, or None."""
        if not _public(algorithm.weighting):
            return (
                "CentralNoise needs weights that do not depend on the data and are at most 1, unlike those of "
                f"{algorithm.weighting!r}. Use weighting=Equally(), or ByFreshness(...) under Stream."
            )
        if type(algorithm.merge) not in (Mean, MeanChange):  # subclasses may merge differently
            return f"CentralNoise adds noise to a sum, and {algorithm.merge!r} computes none. Use merge=Mean()."
        if isinstance(algorithm.protocol, Relay):
            return (
                f"CentralNoise bounds what one learner changes, and {algorithm.protocol!r} has others train its model "
                "further. Use Rounds(...) or Stream(...)."
            )
        planner = planned_by_updates(algorithm)
        if planner is not None:
            return (
                f"CentralNoise covers what the model reveals, and {planner!r} plans by single updates or losses. "
                "Leave it out; DivideAndConquer goes with a given split."
            )
        return course_conflict("CentralNoise", algorithm, _sampling(algorithm))

    def begin(self, view: View, algorithm: Composition, ending: Ending, learners: int, private: Sequence[str]) -> None:
        """Open the account of a run; compute the noise that its rounds need, unless it is given."""
        check_statistics("CentralNoise", view, private)
        require(bool(view.state.secret), "CentralNoise: the engine gave the controller no secret key for the noise.")
        self.warn_of_delta(learners, "learners", stacklevel=3)
        sampling = _sampling(algorithm)
        sampled, among = 1, 1
        if sampling != "counted" and isinstance(algorithm.protocol, Rounds):
            sampled, among = algorithm.protocol.asked(learners), learners
        rounds = ending.commits or ending.rounds
        noise = self.noise or self._noise(algorithm, sampling, sampled, among, rounds)
        if self.epsilon is not None and self.noise is not None and rounds is not None:
            self._check_rounds(sampling, sampled, among, rounds)
        budgets = [budget for budget in (self.epsilon, ending.epsilon) if budget is not None]
        account = PrivacyAccount(
            sampling=sampling,
            noise=noise,
            delta=self.delta,
            clip=self.initial_clip if isinstance(self.clip, str) else self.clip,
            budget=min(budgets, default=math.inf),
            sampled=sampled,
            among=among,
            divides=isinstance(algorithm.protocol, Rounds) and not algorithm.protocol.extra,
            asked=sampled if sampling == "poisson" else 0,
        )
        account.check_first("CentralNoise", "commit")
        view.memory(PrivacyAccount, lambda: account)

    def _noise(self, algorithm: Composition, sampling: Sampling, sampled: int, among: int, rounds: int | None) -> float:
        """Return the noise with which this many rounds keep to the budget."""
        assert self.epsilon is not None
        require(
            not algorithm.protocol.commits_while_training,
            f"CentralNoise: under {algorithm.protocol!r} it is unknown how often a learner will contribute. "
            f"Give noise=... beside epsilon={self.epsilon:g}; the run ends before it exceeds that.",
        )
        require(
            rounds is not None,
            f"CentralNoise: epsilon={self.epsilon:g} has to last for a number of rounds; give Ending(rounds=...) or "
            "Ending(commits=...), or give noise=... and end when the budget is spent.",
        )
        assert rounds is not None
        return noise_for(sampling, self.epsilon, (Draws(sampled, among, rounds),), self.delta)

    def _check_rounds(self, sampling: Sampling, sampled: int, among: int, rounds: int) -> None:
        assert self.epsilon is not None
        assert self.noise is not None
        paid = rounds_for(sampling, self.epsilon, self.noise, sampled, among, self.delta)
        require(
            paid >= rounds,
            f"CentralNoise: epsilon={self.epsilon:g} with noise={self.noise:g} pays for {paid} rounds, and the ending "
            f"asks for {rounds}. End after {paid}, raise one of them, or leave noise out to have it computed.",
        )

    def drawn(self, view: View, chosen: Sequence[str], sampled: int, among: int) -> None:
        account = view.memory(PrivacyAccount)
        if not account.counts_each:
            account.sampled, account.among = sampled, among
        if account.divides:
            account.asked = sampled if account.sampling == "poisson" else len(chosen)

    def spent(self, view: View, version: int) -> PrivacySpent | None:
        return view.memory(PrivacyAccount).spent(version)

    def refusal(self, view: View, updates: Sequence[Update]) -> str | None:
        """Refuse a commit that would exceed the budget; the run ends then."""
        account = view.memory(PrivacyAccount)
        cost = account.cost(update.learner for update in updates)
        if cost <= account.budget:
            return None
        account.following = cost
        return f"the privacy budget of {account.budget:g} does not pay for another commit"

    def merge(
        self,
        view: View,
        merge: Merge,
        updates: Sequence[Update],
        weights: Sequence[Sequence[float]],
        layers: Sequence[int],
    ) -> Proposal:
        account = view.memory(PrivacyAccount)
        account.spend(update.learner for update in updates)
        norms, size = [_norm(view, update) for update in updates], view.layout.size
        count = account.asked or len(updates)
        noise, count_noise = self._noises(account.noise, count)
        most = limit(account.clip, max(len(view.state.members), len(updates)), size)
        proposal, covered = view.kernels.empty(size), list[int]()
        for layer in layers:
            terms = [
                ClippedTerm(update, weight[layer], most / norm if norm > most else 1.0)
                for update, weight, norm in zip(updates, weights, norms, strict=True)
                if layer in update.layers and weight[layer] > 0
            ]
            if not terms and account.sampling != "poisson":
                continue
            covered.append(layer)
            divisor = _divisor(merge, terms, account.asked)
            for piece in chunks(view.layout.slices((layer,)), BLOCK):
                place = f"noise {account.releases} {piece.start}"
                whole = clipped_sum(view, terms, piece).numpy()
                noisy = torch.from_numpy(noised(view.state.secret, place, whole, noise * account.clip))
                proposal[piece] = _base(view, merge, terms, piece) + noisy / divisor
        if isinstance(self.clip, str):
            self._adapt(view, account, norms, count, count_noise)
        return Proposal(proposal, tuple(covered))

    def _noises(self, noise: float, count: int) -> tuple[float, float]:
        """Return the noise of the sum, in clips, and of the count; both together protect as `noise` does."""
        if not isinstance(self.clip, str):
            return noise, 0.0
        count_noise = max(count / COUNT_NOISE, noise)
        return (noise**-2 - (2 * count_noise) ** -2) ** -0.5, count_noise

    def _adapt(self, view: View, account: PrivacyAccount, norms: Sequence[float], count: int, noise: float) -> None:
        """Move the clip towards the quantile: C <- C exp(-rate (b - quantile)), b the noised share within it."""
        within = np.array([math.fsum((norm <= account.clip) - 0.5 for norm in norms)])
        (noisy,) = noised(view.state.secret, f"clip {account.releases}", within, noise)
        share = min(max(float(noisy) / count + 0.5, -1.0), 2.0)  # with few learners noise dominates
        account.clip *= math.exp(-self.clip_rate * (share - self.quantile))


class ClippedTerm(NamedTuple):
    """An update's term in the sum of a layer."""

    update: Update
    weight: float
    factor: float
    """Factor that scales its change down to the clip."""


def clipped_sum(view: View, terms: Sequence[ClippedTerm], piece: slice) -> Tensor:
    """Return the weighted sum of clipped changes of a piece, in float64."""
    whole = torch.zeros(piece.stop - piece.start, dtype=torch.float64)
    for term in terms:
        whole.add_(_change(view, term.update, piece), alpha=term.weight * term.factor)
    return whole


def _change(view: View, update: Update, piece: slice) -> Tensor:
    return view.models.read(update.model.name, piece).double() - view.models.read(update.start, piece).double()


def _norm(view: View, update: Update) -> float:
    """Return the norm of an update's change over all layers sent."""
    pieces = chunks(view.layout.slices(update.layers), BLOCK)
    changes = (_change(view, update, piece) for piece in pieces)
    return math.sqrt(math.fsum(float(torch.dot(change, change)) for change in changes))


def _base(view: View, merge: Merge, terms: Sequence[ClippedTerm], piece: slice) -> Tensor:
    """Return the base that changes are added to: models that are already public, mixed as by the merge."""
    starts = dict.fromkeys(term.update.start for term in terms)
    if isinstance(merge, MeanChange) or not terms:
        return view.models.read(view.model.name, piece).double()
    if len(starts) == 1:
        return view.models.read(next(iter(starts)), piece).double()
    whole = torch.zeros(piece.stop - piece.start, dtype=torch.float64)
    for term in terms:
        whole.add_(view.models.read(term.update.start, piece).double(), alpha=term.weight)
    return whole / math.fsum(term.weight for term in terms)


def _divisor(merge: Merge, terms: Sequence[ClippedTerm], asked: int) -> float:
    """Return what the merge divides a sum by: the number of updates, or their weights.

    In a round, all learners asked count, even those without a valid answer: the divisor must not reveal how many
    answered.
    """
    weights = 1.0 if isinstance(merge, MeanChange) or not terms else math.fsum(t.weight for t in terms) / len(terms)
    return weights * (asked or len(terms))


def _public(weighting: object) -> bool:
    """Return whether weights are at most 1 and do not depend on the data."""
    if isinstance(weighting, Product):
        return all(map(_public, weighting.factors))
    return isinstance(weighting, Equally | ByFreshness)


def _sampling(algorithm: Composition) -> Sampling:
    """Return how learners are drawn, as far as the draw amplifies privacy."""
    if isinstance(algorithm.selection, Poisson):
        return "poisson"
    drawn = isinstance(algorithm.protocol, Rounds) and algorithm.protocol.fraction < 1
    return "fixed" if drawn and isinstance(algorithm.selection, Uniform) else "counted"
