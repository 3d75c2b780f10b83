"""Personal models in a simulation: what every learner is scored with, and what is left of them at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from archipel.core.types import HOME
from archipel.executors.interface import Executor
from archipel.learner.learner import Job, TrainingContext
from archipel.learner.personal_model import personal_model, tuning_job
from archipel.simulation.simulated_sites import SimulatedSites

TUNED = 1 << 24
"""Parameters of all models that are fine-tuned together."""


def scored_models(
    context: TrainingContext, sites: SimulatedSites, names: Sequence[str], shared: Tensor, executor: Executor
) -> Iterator[Tensor]:
    """Yield the model that each of these sites is scored with; home has the shared one."""
    shared = shared.to(context.x.device)
    together = max(1, TUNED // context.layout.size)
    for start in range(0, len(names), together):
        models: list[Tensor | Job] = [
            shared if name == HOME else _model(context, sites, name, shared) for name in names[start : start + together]
        ]
        jobs = [model for model in models if isinstance(model, Job)]
        if jobs:
            executor.submit(jobs)
        for model in models:
            if isinstance(model, Job):
                executor.wait(model)
                yield model.vector
            else:
                yield model


def _model(context: TrainingContext, sites: SimulatedSites, name: str, shared: Tensor) -> Tensor | Job:
    learner = sites[name].learner
    model = personal_model(context, learner, shared)
    return tuning_job(context, learner, model) or model


def models_at_end(context: TrainingContext, sites: SimulatedSites, shared: Tensor) -> dict[str, Tensor]:
    """Return the models of the learners that keep one of their own."""
    if context.personal is None:
        return {}
    keeping = [name for name, kept in sites.kept.items() if kept]
    return {name: personal_model(context, sites[name].learner, shared).cpu() for name in keeping}
