"""`archipel learner`: the side of a federation that has the data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from archipel.cli.console import AllowCode, nearby, out, told
from archipel.cli.federation import Address, AsJsonLines, Changes, Insecure, Method, Papers, identity, link, on_the_line


class Probe(StrEnum):
    """What an operator may refuse."""

    validation = "validation"
    test = "test"
    moments = "moments"


def learner(
    study: Annotated[Path, typer.Argument(help="The study, the same as the controller's.")],
    controller: Address = "127.0.0.1:9443",
    papers: Papers = None,
    insecure: Insecure = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="One's own table; default: one's part of the study's data.")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder of private layers and answers that are owed; default: learner-NAME here."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only look at the data and train one step; nothing is sent, and the study's code needs --allow-code.",
        ),
    ] = False,
    refuse: Annotated[
        list[Probe] | None,
        typer.Option("--refuse", help="Do not try others' models on this part, or do not tell moments."),
    ] = None,
    algorithm: Method = None,
    change: Changes = None,
    allow_code: AllowCode = False,
    json_log: AsJsonLines = False,
) -> None:
    """Take part in a real federation with one's own data, which stay here.

    Killed at any moment and started again with the same --state, it goes on; what it had done is not done twice.
    """
    from archipel.federation.learner.agent import Agent
    from archipel.federation.learner.memory import Folder
    from archipel.federation.logs import say_on_stderr
    from archipel.federation.processes import run_learner
    from archipel.kernels.threads import threads
    from archipel.storage.lock import alone_in, closed
    from archipel.study.federate import hashes_of, layout_hash, save_model, take_part, try_out
    from archipel.study.files import read_study
    from archipel.study.own_code import Code

    who = identity(papers, insecure, controller)
    if who.kind != "learner":
        raise ValueError(f"--tls: is the certificate of {who}; a learner's is needed.")
    say_on_stderr(json_log)
    code: Code = "any" if allow_code else "none" if dry_run else "beside"
    chosen = read_study(study, algorithms=[algorithm] if algorithm else [], changes=change or [], code=code)
    island, narrowed = take_part(chosen, who.name, data)
    if dry_run:
        for line in try_out(narrowed, island):
            out.print(escape(line), highlight=False, soft_wrap=True)
        return
    place = state or Path(f"learner-{who.name}")
    with alone_in(closed(place)), threads(narrowed.simulation.threads), on_the_line(controller):
        agent = run_learner(
            lambda: Agent(
                link(controller, papers, insecure),
                island,
                Folder(place),
                hashes_of(narrowed),
                layout_hash(island.work.layout),
                frozenset(probe.value for probe in refuse or ()),
            )
        )
        if agent.ended is None:
            told.print("Stopped; the same command goes on.", highlight=False)
            raise typer.Exit(130)
        out.print(f"The run is over: {escape(agent.ended)}.", highlight=False)
        if agent.last_model is not None:
            save_model(island, agent.last_model, place / "model.safetensors")
            out.print(f"Model: {escape(nearby(place / 'model.safetensors'))}", soft_wrap=True, highlight=False)
