"""Secure sums in a simulation: all learners and the controller go through the protocol for real, in no virtual time."""

from __future__ import annotations

from archipel.core.controller import Controller
from archipel.core.parts.secure_sum import SecureSum, change_of_layers, mean_model
from archipel.core.parts.weighting import Equally
from archipel.core.types import AddUp, Failed, Summed, Traffic
from archipel.simulation.network import Wire


def add_up(controller: Controller, wire: Wire, command: AddUp) -> Summed | Failed:
    """Add up updates that are in the store, as their learners would; put the mean into the store."""
    from archipel.privacy.secure_sum.masks import BeyondRange  # imported late: they need the extra `privacy`
    from archipel.privacy.secure_sum.rehearsal import rehearse
    from archipel.privacy.secure_sum.sum_messages import SecureSumRefused

    settings, models, layout = controller.algorithm.privacy, controller.models, controller.layout
    assert isinstance(settings, SecureSum)
    pieces = layout.slices(layout.indices(command.layers))
    cohort = sorted({*command.learners, *command.absent})
    quantiser = settings.quantiser(len(cohort), isinstance(controller.algorithm.weighting, Equally))
    start = models.read(command.start)
    numbers = {
        learner: quantiser.encode(change_of_layers(models.read(f"t{task}"), start, pieces).numpy(), weight)
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
