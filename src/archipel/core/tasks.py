"""Training tasks: hand them out, check the updates that come back, and queue those that are valid."""

from __future__ import annotations

import math
from collections.abc import Sequence

from archipel.core.context import ControllerContext
from archipel.core.evidence import check_metrics, offer
from archipel.core.layout import chunks
from archipel.core.members import Member
from archipel.core.parts.privacy import SumInEngine
from archipel.core.parts.protocol import Send
from archipel.core.randomness import derive
from archipel.core.records import Handed, LearnerSpent, Returned
from archipel.core.state import Assignment, Update
from archipel.core.types import Finish, Model, Plan, Train, Trained

CHUNK = 1 << 21
"""Numbers of an update that are checked at a time; it may be on disk."""


def measure(context: ControllerContext) -> None:
    """Have every learner report on the initial model, if the selection needs these reports first."""
    if context.algorithm.selection.measures_first:
        for learner in context.view("selection").active():
            send(context, Send(learner, context.state.model), measures=True)


def measuring(context: ControllerContext) -> bool:
    """Return whether such a report is still missing."""
    out = context.state.out.values()
    return context.algorithm.selection.measures_first and any(assignment.measures for assignment in out)


def send(context: ControllerContext, decision: Send, *, measures: bool = False) -> None:
    """Hand out a task by the plan that the planners make for this learner; measures: train nothing, only report."""
    state = context.state
    member = state.members[decision.learner]
    plan = planned(context, member)
    if measures:
        if plan.shift is not None:
            state.vectors.discard(plan.shift)
        plan = plan.untrained()
    key = derive(state.seed, "training", member.name, member.given)
    member.given += 1
    task, model = context.next_task(), carried(context, member, decision.model)
    assignment = Assignment(
        task,
        decision.learner,
        model,
        plan,
        state.version,
        state.committed,
        decision.slot,
        decision.travels,
        measures=measures,
    )
    state.hand_out(assignment)
    if context.algorithm.recall is not None:
        context.algorithm.recall.watch(context.view("recall"), assignment)
    context.record(Handed(task, decision.learner, state.version, decision.slot))
    context.issue(Train(task, decision.learner, model, plan, key))


def planned(context: ControllerContext, member: Member) -> Plan:
    """Return the plan of a learner's next task, as made by the planners."""
    plan = context.plan
    for view, planner in context.planners:
        plan = planner.plan(view, member, plan)
    return plan


def carried(context: ControllerContext, member: Member, model: Model) -> Model:
    """Return the model of a learner's next task, as changed by the planners."""
    for view, planner in context.planners:
        model = planner.carried(view, member, model)
    return model


def receive(context: ControllerContext, assignment: Assignment, event: Trained) -> None:
    """Accept a learner's update, or refuse it."""
    context.count_traffic("train", event.traffic)
    invalid = _invalid(context, assignment, event)
    if invalid is not None:
        context.models.drop(event.model)
        waste(context, assignment, invalid)
        return
    update = _update(context, assignment, event)
    for view, part in context.parts:
        part.observe(view, update)
    if assignment.measures:
        context.models.drop(event.model)
    elif assignment.travels:
        context.state.travel(_travelled(context, update))
    else:
        offer(context, update)


def waste(context: ControllerContext, assignment: Assignment, reason: str) -> None:
    """Record a task that brought no update."""
    context.algorithm.protocol.wasted(context.view("protocol"))
    if assignment.cancelled and context.algorithm.privacy is not None:
        context.algorithm.privacy.given_up(context.view("privacy"), assignment.learner)
    context.refuse(assignment.task, assignment.learner, reason)


def progress(context: ControllerContext, assignment: Assignment, steps: int) -> None:
    """Record how many steps an open task has made, and recall tasks that have become too stale."""
    assignment.steps = steps
    if context.algorithm.recall is not None:
        context.algorithm.recall.watch(context.view("recall"), assignment)
        recall(context)


def recall(context: ControllerContext) -> None:
    """Tell learners to finish the tasks that the algorithm recalls."""
    part = context.algorithm.recall
    if part is not None:
        for task in sorted(part.overdue(context.view("recall"))):
            assignment = context.state.out[task]
            if not assignment.finishing:
                assignment.finishing = True
                context.issue(Finish(task))


def _invalid(context: ControllerContext, assignment: Assignment, event: Trained) -> str | None:
    """Return what is wrong with an update, or None. It is checked before it is weighed, because 0 x NaN is NaN."""
    plan, layout = assignment.plan, context.layout
    asked = plan.sends(layout.names)
    if event.layers != asked and not _suffice(context, event.layers, asked):
        unknown = [name for name in event.layers if not layout.knows(name)]
        if unknown:
            return f"unknown layer {unknown[0]!r}; layers of this model: {', '.join(layout.names)}"
        return f"sent the layers ({', '.join(event.layers)}), the plan asks for ({', '.join(asked)})"
    if event.model:
        shape = context.models.shape(event.model)
        if shape != (layout.size,):
            return f"{shape} numbers, the model has ({layout.size},)"
        for piece in chunks(layout.slices(layout.indices(event.layers)), CHUNK):
            if not context.kernels.finite(context.models.read(event.model, piece)):
                return "holds numbers that are not finite (NaN or infinity); lower the rate or look at the data"
    elif not isinstance(context.algorithm.privacy, SumInEngine):
        return "came without numbers"
    if event.steps < 0:
        return f"{event.steps} steps"
    norm = event.metrics.gradient_norm
    if any(report.startswith("gradient norm") for report in plan.reports) and (
        norm is None or not math.isfinite(norm) or norm < 0
    ):
        return f"gradient norm {norm!r}, the plan asks for a finite one"
    if "training loss" in plan.reports:
        for loss in (event.metrics.training_loss, event.metrics.squared_loss):
            if loss is None or not math.isfinite(loss) or loss < 0:
                return f"training loss {loss!r}, the plan asks for a finite one, at least 0"
    return None


def _suffice(context: ControllerContext, sent: Sequence[str], asked: Sequence[str]) -> bool:
    """Return whether these are the layers that the plan asks for, apart from optional ones."""
    missing = set(asked).difference(sent)
    alike = len(set(sent)) == len(sent) and set(sent) <= set(asked)
    return alike and missing <= context.algorithm.optional(context.layout)


def unwanted(context: ControllerContext) -> set[str]:
    """Return the layers that the next version does not use."""
    return {name for view, planner in context.planners for name in planner.unwanted(view)}


def _update(context: ControllerContext, assignment: Assignment, event: Trained) -> Update:
    """Return the update to be weighed; layers that were not sent are filled in from the task's model."""
    layout, unused = context.layout, unwanted(context)
    layers = layout.indices([name for name in event.layers if name not in unused] if unused else event.layers)
    sent = set(layers)
    missing = [place for place in range(len(layout.layers)) if place not in sent]
    if missing and event.model:
        context.models.complete(event.model, assignment.model.name, layout.slices(missing))
    manifest = tuple(event.model if place in sent else stamp for place, stamp in enumerate(assignment.model.manifest))
    context.record(
        Returned(
            event.task,
            assignment.learner,
            assignment.version,
            event.steps,
            event.metrics.epochs,
            event.layers,
            event.metrics.losses,
            assignment.finishing,
        )
    )
    spent = event.metrics.spent
    if spent is not None:
        context.record(
            LearnerSpent(event.task, assignment.learner, spent.epsilon, spent.delta, spent.noise, spent.rests)
        )
    return Update(
        task=event.task,
        learner=assignment.learner,
        model=Model(event.model, manifest),
        layers=layers,
        version=assignment.version,
        committed=assignment.committed,
        examples=context.state.members[assignment.learner].examples,
        steps=event.steps,
        slot=assignment.slot,
        metrics=check_metrics(context, event.metrics),
        path=(assignment.learner,),
        start=assignment.model.name,
        plan=assignment.plan,
    )


def _travelled(context: ControllerContext, update: Update) -> Update:
    """Add the examples, steps and layers of the slot's path so far (Relay)."""
    before = context.state.travelling.get(update.slot)
    if before is None:
        return update
    known = update.examples is not None and before.examples is not None
    update.examples = (update.examples or 0) + (before.examples or 0) if known else None
    update.steps += before.steps
    update.layers = tuple(sorted({*update.layers, *before.layers}))
    update.path = (*before.path, *update.path)
    update.start = before.start
    return update
