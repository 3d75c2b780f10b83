"""What runs on a node: one actor, which trains and scores with the executor that the network calls for."""

from __future__ import annotations

import os
import socket
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archipel.core.frozen_weights import put_together
from archipel.core.types import ScoreTable
from archipel.executors.choice import executor_of
from archipel.kernels.threads import threads
from archipel.learner.learner import Job, Learner, TrainingContext
from archipel.learner.probes import Parts, score_parts
from archipel.simulation.cluster.fingerprint import Fingerprint, fingerprint
from archipel.simulation.cluster.requests import (
    Blueprint,
    JobFailure,
    JobReply,
    JobRequest,
    Vector,
    as_arrays,
    job_of,
    learner_of,
)


class TrainingActor:
    """Answers requests one after the other; `ping` is answered beside them."""

    def inspect(self) -> tuple[str, int, Fingerprint]:
        """Return the names of the node and of this process, and what their bits depend on."""
        return socket.gethostname(), os.getpid(), fingerprint()

    def start(
        self, blueprint: Blueprint, x: NDArray[Any] | str, y: NDArray[Any] | str, *frozen: NDArray[np.uint8]
    ) -> None:
        """Build the network and the executor.

        x, y: the examples, or paths of .npy files that all nodes can read. frozen: the bytes of the frozen weights,
        which all actors of a node share.
        """
        import ray.cloudpickle  # Ray's own serialisation, inside the user's own cluster

        torch.set_num_threads(blueprint.threads)
        module, loss, augment, objective, descent, local_noise = ray.cloudpickle.loads(blueprint.network)
        put_together(module, blueprint.frozen_shapes, map(_shared, frozen))
        device = blueprint.device
        examples = _data(x).to(device), _data(y).to(device)
        self.context = TrainingContext(
            module.to(device),
            blueprint.layout,
            loss,
            *examples,
            blueprint.classes,
            augment,
            objective,
            descent,
            rows=blueprint.rows,
            local_noise=local_noise,
        )
        self.blueprint = blueprint
        self.executor = executor_of(self.context, blueprint.plan, blueprint.way)
        self.learners: dict[int, Learner] = {}
        self.parts: dict[int, Parts] = {}

    def ping(self) -> None:
        """Answer, so that the driver knows that this node is alive."""

    def train(
        self, stacks: Sequence[Sequence[JobRequest]], epochs: int | None, *models: Vector
    ) -> tuple[list[JobReply] | JobFailure, Vector | None]:
        """Train stacks of jobs; return what has changed and their models, one a row, or how they failed."""
        torch.set_num_threads(self.blueprint.threads)
        vectors = [_shared(model).to(self.blueprint.device) for model in models]
        jobs = [[self._job(request, vectors) for request in stack] for stack in stacks]
        try:
            with self.executor.running():
                for stack in self._submissions(jobs):
                    self.executor.submit(stack, epochs)
                self.executor.wait()
        except Exception:
            names = tuple(job.learner.name for stack in jobs for job in stack)
            return JobFailure(socket.gethostname(), names, traceback.format_exc()), None
        done = [job for stack in jobs for job in stack]
        replies = [
            JobReply(job.epochs, job.losses, as_arrays(job.memory), as_arrays(job.kept), job.validation) for job in done
        ]
        return replies, np.stack([job.vector.cpu().numpy() for job in done])

    def _submissions(self, stacks: list[list[Job]]) -> list[list[Job]]:
        """Return what is submitted at a time: stacks as they are, single jobs together."""
        if all(len(stack) == 1 for stack in stacks):
            return [[job for stack in stacks for job in stack]]
        return stacks

    def _job(self, request: JobRequest, models: Sequence[Tensor]) -> Job:
        if request.examples is not None:
            self.learners[request.learner] = learner_of(request.examples)
        return job_of(request, self.learners[request.learner], models)

    def score(
        self,
        key: int,
        examples: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
        forget: bool,
        bins: int,
        model: Vector,
    ) -> ScoreTable | JobFailure:
        """Score a model on the examples of several sites.

        examples: their indices and the sizes of the parts, or None if this actor has them. forget: all parts it has.
        """
        if forget:
            self.parts.clear()
        if examples is not None:
            self.parts[key] = Parts(torch.from_numpy(examples[0].copy()), examples[1])
        try:
            with threads(self.blueprint.scoring_threads):
                vector = _shared(model).to(self.blueprint.device)
                return score_parts(self.context, vector, self.parts[key], bins)
        except Exception:
            return JobFailure(socket.gethostname(), (), traceback.format_exc())


def _data(source: NDArray[Any] | str) -> Tensor:
    return _shared(np.load(source, mmap_mode="r") if isinstance(source, str) else source)


def _shared(array: NDArray[Any]) -> Tensor:
    """Return an array as a tensor in the same memory, which is only read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns that it could be written to
        return torch.from_numpy(array)
