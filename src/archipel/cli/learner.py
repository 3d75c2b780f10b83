"""`archipel learner`: the side of a federation that has the data."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from archipel.cli.console import AllowCode, nearby, notices, out
from archipel.cli.federation import (
    Address,
    AsJsonLines,
    Certificates,
    Changes,
    Insecure,
    Method,
    identity,
    link,
    on_the_line,
)

if TYPE_CHECKING:
    from archipel.federation.learner.agent import Agent
    from archipel.federation.security.round_signatures import RoundSignatures
    from archipel.study.schema import Study


class Refusable(StrEnum):
    """What an operator may refuse."""

    validation = "validation"
    test = "test"
    moments = "moments"


Table = Annotated[
    Path | None, typer.Option("--data", "-d", help="Your own table; default: your part of the study's data.")
]
State = Annotated[
    Path | None, typer.Option(help="Folder of private layers and unconfirmed answers; default: learner-NAME here.")
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Only check the data and train one step; nothing is sent, and the study's code needs --allow-code.",
    ),
]
Refuse = Annotated[
    list[Refusable] | None,
    typer.Option("--refuse", help="Do not evaluate others' models on this part, or do not send moments."),
]

Site = Annotated[
    Path | None,
    typer.Option(
        "--site",
        help="A file with the site's own rules, such as site.toml; they can only narrow what the study allows.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, help="Threads for a large network; default: simulation.threads of the study. A small one has one."
    ),
]
ShowLog = Annotated[
    bool, typer.Option("--log", help="Print the record of all orders and answers, one JSON object per line, and exit.")
]


def learner(
    study: Annotated[Path, typer.Argument(help="The study, the same as the controller's.")],
    controller: Address = "127.0.0.1:9443",
    certificates: Certificates = None,
    insecure: Insecure = None,
    data: Table = None,
    state: State = None,
    dry_run: DryRun = False,
    log: ShowLog = False,
    refuse: Refuse = None,
    site: Site = None,
    threads: Threads = None,
    algorithm: Method = None,
    change: Changes = None,
    allow_code: AllowCode = False,
    json_log: AsJsonLines = False,
) -> None:
    """Take part in a real federation with your own data, which never leave this machine.

    If it is killed, start it again with the same --state: it continues, and repeats no finished work.
    """
    from archipel.federation.learner.agent import Agent
    from archipel.federation.learner.local_state import StateFolder
    from archipel.federation.learner.policy import Probes
    from archipel.federation.logs import say_on_stderr
    from archipel.federation.processes import run_learner
    from archipel.kernels.threads import threads as torch_threads
    from archipel.storage.lock import alone_in, closed
    from archipel.study.federate import hashes_of, layout_hash
    from archipel.study.files import read_study
    from archipel.study.local_site import take_part, try_out
    from archipel.study.own_code import Code
    from archipel.study.site_file import SiteFile, read_site

    name = _own_name(certificates, insecure, controller)
    place = state or Path(f"learner-{name}")
    if log:
        _print_record(place)
        return
    say_on_stderr(json_log)
    demands = SiteFile() if site is None else read_site(site)
    code: Code = demands.code or ("any" if allow_code else "none" if dry_run else "beside")
    chosen = read_study(study, algorithms=[algorithm] if algorithm else [], changes=change or [], code=code)
    island, narrowed = take_part(chosen, name, data, demands.rules)
    count = threads or narrowed.simulation.threads
    if dry_run:
        _print_lines(try_out(narrowed, island, count))
        return
    refuses: frozenset[Probes] = frozenset(part.value for part in refuse or ())
    with alone_in(closed(place)), torch_threads(count), on_the_line(controller):
        own = (StateFolder(place), hashes_of(narrowed), layout_hash(island.work.layout), refuses)
        signed = _signatures(certificates, narrowed, place)
        agent = run_learner(lambda: Agent(link(controller, certificates, insecure), island, *own, signatures=signed))
        _finish(agent, place)


def _own_name(certificates: Path | None, insecure: str | None, controller: str) -> str:
    """Return the name in the certificate, which must be a learner's."""
    who = identity(certificates, insecure, controller)
    if who.kind != "learner":
        raise ValueError(f"--tls: is the certificate of {who}; a learner's is needed.")
    return who.name


def _signatures(certificates: Path | None, study: Study, place: Path) -> RoundSignatures | None:
    """Return what signs keys of secure sums and verifies others'; revoked.txt in the state folder applies here too."""
    from archipel.federation.security.revocation import REVOKED, RevocationList
    from archipel.federation.security.round_signatures import RoundSignatures

    if certificates is None:
        return None
    listed = [one if isinstance(one, str) else one.name for one in study.federation.learners]
    return RoundSignatures(certificates, listed, RevocationList(place / REVOKED))


def _print_record(place: Path) -> None:
    """Print the record of a learner's orders and answers."""
    from archipel.federation.learner.order_record import read_record

    _print_lines(read_record(place))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _finish(agent: Agent, place: Path) -> None:
    """Say how it ended, and save the last model."""
    from archipel.study.local_site import save_model

    if agent.ended is None:
        notices.print("Stopped; run the same command again to continue.", highlight=False)
        raise typer.Exit(130)
    out.print(f"The run is over: {escape(agent.ended)}.", highlight=False)
    if agent.last_model is not None:
        save_model(agent.island, agent.last_model, place / "model.safetensors")
        out.print(f"Model: {escape(nearby(place / 'model.safetensors'))}", soft_wrap=True, highlight=False)
