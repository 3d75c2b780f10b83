"""Secure sums in a simulation: all learners and the controller go through the protocol for real, in no virtual time."""

from __future__ import annotations

from collections.abc import Sequence

from archipel.core.controller import Controller
from archipel.core.parts.secure_sum import SecureSum, change_of_layers, mean_model
from archipel.core.parts.weighting import Equally
from archipel.core.pooled_scores import ImpossibleScores, ScoreNumbers
from archipel.core.scored import PooledScore, ScoreTable
from archipel.core.types import AddUp, Failed, Pooled, Summed, Traffic
from archipel.privacy.noise import derived_key
from archipel.simulation.network import Wire


def seed_of(controller: Controller, task: int) -> bytes:
    """Return the seed of a learner's part of the noise, from the secret of the run; empty if there is none."""
    secret = controller.state.secret
    return bytes.fromhex(derived_key(secret, f"noise of task {task}")) if secret else b""


def add_up(controller: Controller, wire: Wire, command: AddUp) -> Summed | Failed:
    """Add up updates that are in the store, as their learners would; put the mean into the store."""
    from archipel.privacy.secure_sum.quantiser import BeyondRange  # imported late: they need the extra `privacy`
    from archipel.privacy.secure_sum.rehearsal import rehearse
    from archipel.privacy.secure_sum.sum_messages import SecureSumRefused

    settings, models, layout = controller.algorithm.privacy, controller.models, controller.layout
    assert isinstance(settings, SecureSum)
    pieces = layout.slices(layout.indices(command.layers))
    cohort = sorted({*command.learners, *command.absent})
    equally, noise = isinstance(controller.algorithm.weighting, Equally), settings.noise_of(controller.ending)
    quantiser = settings.quantiser(len(cohort), equally, noise)
    start = models.read(command.start)
    numbers = {
        learner: quantiser.encode(
            change_of_layers(models.read(f"t{task}"), start, pieces).numpy(), weight, seed_of(controller, task)
        )
        for task, learner, weight in zip(command.tasks, command.learners, command.weights, strict=True)
    }
    try:
        total = rehearse(
            cohort, f"round {command.task}", numbers, least=settings.at_least, threshold=settings.threshold
        )
        model, weight = mean_model(quantiser, total, len(numbers), start, pieces)
    except (BeyondRange, SecureSumRefused) as error:
        return Failed(command.task, str(error))
    models.write(f"s{command.task}", model)
    up = wire.add_up(command.layers, settings.bits, len(numbers))
    return Summed(command.task, f"s{command.task}", command.tasks, weight, Traffic(up=up, sites=len(numbers)))


def pool_scores(
    settings: SecureSum, numbers: ScoreNumbers, task: int, sites: Sequence[str], table: ScoreTable, traffic: Traffic
) -> Pooled | Failed:
    """Add up the scores in a table, as the sites that have answered would."""
    from archipel.privacy.secure_sum.masks import whole_type  # imported late: they need the extra `privacy`
    from archipel.privacy.secure_sum.rehearsal import rehearse
    from archipel.privacy.secure_sum.sum_messages import SecureSumRefused

    rows = tuple(row for row, answer in enumerate(table) if answer is not None)
    told = {
        sites[row]: numbers.encode(answer).view(whole_type(64))
        for row in rows
        if (answer := table.row(row)) is not None
    }
    try:
        total = rehearse(sorted(told), f"scores {task}", told, least=settings.at_least, threshold=settings.threshold)
        pooled = PooledScore(rows, numbers.decode(total, len(rows)))
    except (ImpossibleScores, SecureSumRefused) as error:
        return Failed(task, str(error), traffic)
    return Pooled(task, pooled, traffic)
