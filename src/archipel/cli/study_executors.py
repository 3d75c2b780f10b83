"""How the learners of a study will be trained, why, and what can be changed about it: `archipel doctor study.toml`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from archipel.cli.folding import MARGIN, heading, write
from archipel.simulation.simulate import prepare
from archipel.study.build import build_algorithm, build_data, build_settings
from archipel.study.files import read_study
from archipel.study.grid import cells
from archipel.study.own_code import Code

ADVICE = {
    "in place": "write y = y + x instead of y += x where y is a constant of the network",
    "branches on the numbers": "choose by torch.where(condition, first, second) instead of `if`",
    "reads a number out": "compute with tensors instead of .item(), float() or int()",
    "autograd.Function": "give the function setup_context() and generate_vmap_rule = True",
    "out of torch": "compute in torch instead of numpy",
    "that is not saved": "save the buffer, which makes it a part of the model, or compute it in __init__()",
    "changes an attribute": "keep what the network counts in a buffer (register_buffer) and change it in place",
    "Python's or numpy's generator": "draw by torch.rand, torch.randn or bernoulli_, which use the run's seed",
    "comes out differently": "change buffers in place (copy_, mul_, add_) instead of assigning them",
    "keeps tensors from one operation": "leave out checkpointing: the network is small",
    "rules of its own": "leave out max_norm, scale_grad_by_freq and sparse of embeddings",
    "is not elementwise": "use SGD, Adam, AdamW or RMSprop",
    "parameter of it has a hook": "leave out the hook of the parameter (register_hook)",
    "computes in 16 bits": "leave out torch.autocast: the network is small",
    "computed in": "leave out `accumulate`: it saves memory, not time",
}
"""What a user can change, by words in the reason why a network is not stacked."""


@dataclass(frozen=True)
class MethodExecution:
    """How the learners of a method are trained."""

    method: str
    execution: str
    reason: str
    """Why no faster executor was chosen; empty if there is none, or the study names one."""
    advice: str
    """What can be changed about that; empty: nothing, or nothing needs to be."""


def executions(path: Path, code: Code) -> Iterator[MethodExecution]:
    """Yield how the learners of every method of a study will be trained."""
    seen = set()
    for cell in cells(read_study(path, code=code)):
        algorithm = build_algorithm(cell.study)
        if algorithm.name in seen:
            continue
        seen.add(algorithm.name)
        islands = build_data(cell.study).islands
        simulator = prepare(algorithm, islands, **build_settings(cell.study, islands))
        executor = simulator.executor
        simulator.close()
        yield MethodExecution(algorithm.name, executor.name, executor.reason, advice_on(executor.reason))


def advice_on(reason: str) -> str:
    """Return what can be changed about a reason; empty: nothing."""
    return next((advice for sign, advice in ADVICE.items() if sign in reason), "")


def show_executions(found: list[MethodExecution]) -> None:
    """Print how the learners of a study will be trained."""
    heading("How learners are trained")
    for one in found:
        write(f"{one.execution}{': ' if one.reason else ''}{one.reason}", MARGIN, name=one.method)
        if one.reason and one.execution == "workers":
            write("It costs speed: learners are trained one by one, not many in one step.", MARGIN)
        if one.advice:
            write(f"To make it faster: {one.advice}.", MARGIN)
