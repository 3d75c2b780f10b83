"""Rollback: an earlier version's numbers become the next version."""

from __future__ import annotations

from archipel.core.context import ControllerContext
from archipel.core.records import Restored
from archipel.core.types import Cancel, Model, RolledBack

REASON = "the model was rolled back"


def roll_back(context: ControllerContext, event: RolledBack) -> None:
    """Make the event's model the next version, and forget all that follows from the versions after it.

    Updates that wait were trained from those versions, so they are refused; open tasks are cancelled; merge and server
    begin anew, since their memories hold the same updates. Private layers stay with their learners.
    """
    state = context.state
    for update in (*state.dequeue([*state.queue]), *state.arrive()):
        context.algorithm.protocol.wasted(context.view("protocol"))
        context.refuse(update.task, update.learner, REASON)
    for inquiry in [*state.inquiries.values()]:
        if inquiry.update is not None:
            state.answer(inquiry.task)
    for assignment in state.out.values():
        if not assignment.cancelled:
            assignment.cancelled = True
            context.issue(Cancel(assignment.task))
    _reset(context, "merge", "server")
    state.version += 1
    name = f"v{state.version}"
    context.models.write(name, context.models.read(event.model).clone())
    state.set_model(Model(name, (name,) * len(context.layout.layers)), {})
    state.vectors.discard(event.model)
    context.record(Restored(state.version, event.version))
    context.sweep()


def _reset(context: ControllerContext, *roles: str) -> None:
    """Drop what the parts with these roles, and those inside them, remember."""
    for role in [role for role in context.state.memory if role.split(".")[0] in roles]:
        del context.state.memory[role]
        context.state.vectors.release_all(role)
    for name in [name for name in context.models.names() if "/" in name and name.split("/")[0].split(".")[0] in roles]:
        context.models.drop(name)
