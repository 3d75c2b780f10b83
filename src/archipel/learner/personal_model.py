"""The model that a learner uses for itself: the shared one, its own, or one that it has fine-tuned."""

from __future__ import annotations

from torch import Tensor

from archipel.core.parts.personal import ModelSources
from archipel.core.randomness import derive
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.objective_loss import class_counts
from archipel.learner.training import advance


def personal_model(work: TrainingContext, learner: Learner, shared: Tensor) -> Tensor:
    """Return a learner's model before any fine-tuning."""
    vector = learner.with_private(work.layout, shared.to(work.x.device))
    if work.personal is None:
        return vector
    kept = {name: one.to(vector.device) for name, one in learner.kept.items()}
    return work.personal.model(ModelSources(work.layout, vector, kept, class_counts(work, learner)))


def tuning_job(work: TrainingContext, learner: Learner, model: Tensor) -> Job | None:
    """Return the training that fine-tunes a learner's model; None if there is none, or nothing to train on.

    Its mini-batches are the same every time, so scores of two versions differ by the versions alone.
    """
    if work.tuning is None or len(learner.train) == 0:
        return None
    return Job(learner, work.tuning, model, None, derive(0, "tuning", learner.name), plain=True)


def used_model(work: TrainingContext, learner: Learner, shared: Tensor) -> Tensor:
    """Return the model that a learner uses for itself, fine-tuned where the algorithm says so."""
    model = personal_model(work, learner, shared)
    job = tuning_job(work, learner, model)
    if job is None:
        return model
    advance(work, job)
    return job.vector
