"""Metis / DVW: distributed validation weighting and adaptive update frequency.

D. Stripelis and J. L. Ambite, Accelerating Federated Learning in Heterogeneous Data and Computational Environments.

Implemented: Algorithm 1, synchronous and asynchronous; the O(M) community model (section III); momentum SGD (eq. 2);
distributed validation weighting by pooled confusion matrices (section IV, eq. 3) and by other metrics; validation
cycles with C1, C2 and tombstones, and recall by effective staleness, C3 (section V). Defaults are those of its
CIFAR-10 runs: eta .05, gamma .75, batch 100, uf 4, 5 % validation.

Read so (docs/decisions/0001 to 0005): a cycle ends at the first failure after the tombstones; the first epoch is
compared with the loss of the received model; the median is over all cycles so far, from the 20th, or over the first 20
(`recall_window`); a recalled learner ends its running epoch; a learner's own
score travels with its update, so 9 of 10 learners are asked; momentum does not survive between tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Unpack

from archipel.algorithms.constructor import constructor
from archipel.core.algorithm import Algorithm
from archipel.core.parts.all_data import AllData
from archipel.core.parts.merge import Community
from archipel.core.parts.planning import ValidationCycle
from archipel.core.parts.protocol import Rounds, Stream
from archipel.core.parts.recall import MedianStaleness
from archipel.core.parts.weighting import ByDistributedValidation
from archipel.core.types import Local, Plan

CIFAR10: Local = {"epochs": 4, "batch": 100, "rate": 0.05, "momentum": 0.75}


@constructor
def async_fedavg(**local: Unpack[Local]) -> Algorithm:
    """AsyncFedAvg: the community model is the mean of all learners' latest models, weighted by examples."""
    return Algorithm("async_fedavg", protocol=Stream(), merge=Community(), plan=Plan(**(CIFAR10 | local)))


@constructor
def sync_dvw(
    metric: str = "micro_f1",
    *,
    quorum: float = 0.5,
    evaluators: int | None = None,
    choice: Literal["drawn", "representative"] = "drawn",
    all_data_after: int | None = None,
    **local: Unpack[Local],
) -> Algorithm:
    """SyncDVW: rounds of all learners, each update weighted by how well all learners find it does on their data.

    metric: of the pooled opinions, which is the weight; quorum: share of the opinions that must come in.
    evaluators: ask only so many learners for their opinion; None: all.
    choice: of evaluators: drawn at random, or so that together they have everybody's shares of the classes.
    all_data_after: version from which on learners train on their validation parts too, and keep their last weights;
        None: never.
    """
    return Algorithm(
        "sync_dvw",
        protocol=Rounds(),
        weighting=ByDistributedValidation(metric, quorum, evaluators, choice, all_data_after),
        planners=_all_data(all_data_after),
        plan=Plan(**(CIFAR10 | local)),
    )


@constructor
def async_dvw(
    adaptive: bool = True,
    metric: str = "micro_f1",
    loss: float | Mapping[str, float] = 0.0,
    tombstones: int | Mapping[str, int] = 1,
    at_most: int = 50,
    recall_after: int = 20,
    recall_window: int | None = None,
    *,
    quorum: float = 0.5,
    evaluators: int | None = None,
    choice: Literal["drawn", "representative"] = "drawn",
    all_data_after: int | None = None,
    **local: Unpack[Local],
) -> Algorithm:
    """AsyncDVW: the community model is the mean of all learners' latest models, weighted by distributed validation.

    adaptive: each learner finds its own update frequency by its validation loss and staleness; else `epochs` is it.
    metric: of the pooled opinions, which is the weight.
    loss: VC_loss, an epoch fails unless it lowers the loss by more per cent; one number, or one for each group.
    tombstones: VC_tomb, failures allowed in a cycle; one number, or one for each group, {"fast": 0, "slow": 1}.
    at_most: epochs after which a cycle ends anyway.
    recall_after: cycles before the median of a learner's staleness counts.
    recall_window: cycles that the median is over, a learner's first ones; None: all so far.
    quorum: share of the opinions that must come in.
    evaluators: ask only so many learners for their opinion; None: all.
    choice: of evaluators: drawn at random, or so that together they have everybody's shares of the classes.
    all_data_after: version from which on learners train on their validation parts too, and keep their last weights;
        None: never.
    """
    cycles = (ValidationCycle(loss, tombstones, at_most),) if adaptive else ()
    return Algorithm(
        "async_dvw",
        protocol=Stream(),
        weighting=ByDistributedValidation(metric, quorum, evaluators, choice, all_data_after),
        merge=Community(),
        planners=(*cycles, *_all_data(all_data_after)),
        recall=MedianStaleness(recall_after, recall_window) if adaptive else None,
        plan=Plan(**(CIFAR10 | local)),
    )


def _all_data(after: int | None) -> tuple[AllData, ...]:
    return () if after is None else (AllData(after),)
