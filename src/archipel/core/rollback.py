"""Rollback: an earlier version's numbers become the next version."""

from __future__ import annotations

from collections.abc import Collection

from archipel.core.context import ControllerContext
from archipel.core.records import Restored
from archipel.core.types import Cancel, Model, RolledBack

REASON = "the model was rolled back"


def roll_back(context: ControllerContext, event: RolledBack) -> None:
    """Make the event's model the next version, and forget everything that follows from later versions.

    Waiting updates were trained from those versions, so they are refused; open tasks are cancelled; merge, server
    and planners that remember updates begin anew. Private layers stay with their learners.
    """
    state = context.state
    for update in (*state.dequeue([*state.queue]), *state.arrive()):
        context.algorithm.protocol.wasted(context.view("protocol"))
        context.refuse(update.task, update.learner, REASON)
    for inquiry in [*state.inquiries.values()]:
        if inquiry.update is not None:
            state.answer(inquiry.task)
    if state.sum is not None and not state.sum.cancelled:
        state.sum.cancelled = True
        context.issue(Cancel(state.sum.task))
    for assignment in state.out.values():
        if not assignment.cancelled:
            assignment.cancelled = True
            context.issue(Cancel(assignment.task))
    planners = [f"planner.{i}" for i, planner in enumerate(context.algorithm.planners) if planner.remembers_updates]
    _reset(context, "merge", "server", *planners)
    state.version += 1
    name = f"v{state.version}"
    context.models.write(name, context.models.read(event.model).clone())
    state.set_model(Model(name, (name,) * len(context.layout.layers)), {})
    state.vectors.discard(event.model)
    context.record(Restored(state.version, event.version, state.rounds))
    context.sweep()


def _reset(context: ControllerContext, *roles: str) -> None:
    """Drop the memories of the parts with these roles and of those inside them; vectors that open tasks name stay."""
    state = context.state
    for role in [role for role in state.memory if _belongs(role, roles)]:
        del state.memory[role]
        state.vectors.release_all(role)
    for name in context.models.names():
        if "/" in name and _belongs(name.split("/")[0], roles) and name not in state.vectors.counts:
            context.models.drop(name)


def _belongs(role: str, roles: Collection[str]) -> bool:
    """Return whether this is one of these roles, or the role of a part inside them."""
    return any(role == one or role.startswith(f"{one}.") for one in roles)
