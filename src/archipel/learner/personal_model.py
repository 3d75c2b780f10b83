"""The model that a learner uses: the shared one, its own, or a fine-tuned one."""

from __future__ import annotations

from torch import Tensor

from archipel.core.parts.personal import ModelSources
from archipel.core.randomness import derive
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.objective_loss import class_counts
from archipel.learner.training import advance


def personal_model(work: TrainingContext, learner: Learner, shared: Tensor) -> Tensor:
    """Return a learner's personal model before fine-tuning."""
    vector = learner.with_private(work.layout, shared.to(work.x.device))
    if work.personal is None:
        return vector
    kept = {name: one.to(vector.device) for name, one in learner.kept.items()}
    return work.personal.model(ModelSources(work.layout, vector, kept, class_counts(work, learner)))


def tuning_job(work: TrainingContext, learner: Learner, model: Tensor) -> Job | None:
    """Return the job that fine-tunes a learner's model; None without fine-tuning or training examples.

    Its mini-batches are the same every time, so that scores of versions are comparable.
    """
    if work.tuning is None or len(learner.train) == 0:
        return None
    return Job(learner, work.tuning, model, None, derive(0, "tuning", learner.name), plain=True)


def used_model(work: TrainingContext, learner: Learner, shared: Tensor) -> Tensor:
    """Return the model that a learner uses, fine-tuned if the algorithm says so."""
    model = personal_model(work, learner, shared)
    job = tuning_job(work, learner, model)
    if job is None:
        return model
    advance(work, job)
    return job.vector
