"""Build a run from a controller that has stopped and what its engine has recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from archipel.core.controller import Controller
from archipel.core.records import Stamped
from archipel.runs.run import Run
from archipel.runs.run_data import Participant


def run_of(
    controller: Controller,
    *,
    participants: Iterable[Participant],
    records: Sequence[Stamped],
    seconds: float,
    reason: str,
    execution: str,
    layers: Mapping[str, Mapping[str, int]],
    private: Mapping[str, Mapping[str, Tensor]],
    personal: Mapping[str, Tensor] | None = None,
    execution_reason: str = "",
) -> Run:
    """Return the run of a controller.

    seconds: on the engine's clock. reason: why it stopped. execution: how the learners were executed. layers: bytes
    sent, by kind and layer. private, personal: the learners' own layers and models, where the engine has them.
    execution_reason: why no faster way was chosen.
    """
    state, evaluation = controller.state, controller.evaluation
    assert evaluation is not None, "both engines give one"
    return Run(
        name=controller.algorithm.name,
        algorithm=repr(controller.algorithm),
        seed=state.seed,
        participants=tuple(participants),
        layout=controller.layout,
        model=controller.models.read(state.model.name),
        private=private,
        personal=personal or {},
        records=records,
        seconds=seconds,
        reason=reason,
        execution=execution,
        execution_reason=execution_reason,
        metric=evaluation.metric,
        scored_at=evaluation.at,
        scored_mean=evaluation.mean,
        rounds=state.rounds,
        budget=controller.ending.budget,
        traffic=dict(state.traffic),
        layers={kind: dict(ledger) for kind, ledger in layers.items()},
    )
