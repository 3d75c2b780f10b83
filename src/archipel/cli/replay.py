"""`archipel replay`: check that the journal of a federation leads to the models that it records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from archipel.cli.console import AllowCode, AsJson, out, print_json
from archipel.cli.federation import Changes, Method


def replay(
    study: Annotated[Path, typer.Argument(help="The study of the federation.")],
    state: Annotated[Path, typer.Option(help="Folder of its journal and models.")] = Path("state"),
    algorithm: Method = None,
    change: Changes = None,
    allow_code: AllowCode = False,
    json: AsJson = False,
) -> None:
    """Replay the journal of a federation, and check that it leads to the same models.

    Compares every version's digest with the recorded one, and verifies the audit's chain of hashes. Needs
    federation.keep_updates = true in the study from the beginning of the run.
    """
    from archipel.federation.storage.journal import Journal
    from archipel.federation.storage.stored_models import digest_of
    from archipel.kernels.threads import threads
    from archipel.storage.lock import alone_in
    from archipel.study.federate import host
    from archipel.study.files import read_study
    from archipel.study.own_code import Code

    if not (state / "journal.sqlite").exists():
        raise FileNotFoundError(f"{state} holds no journal; give the --state folder of a controller.")
    code: Code = "any" if allow_code else "beside"
    hosting = host(read_study(study, algorithms=[algorithm] if algorithm else [], changes=change or [], code=code))
    with alone_in(state), threads(hosting.study.simulation.threads):
        journal = Journal(state / "journal.sqlite")
        rows = journal.check_audit()
        events, _ = journal.last()
        journal.close()
        again = hosting.replay(state)
    model = again.controller.state.model.name
    replayed = {
        "events": events,
        "version": again.controller.state.version,
        "digest": digest_of(again.models.digests(model)),
        "audit": rows,
    }
    if json:
        print_json(replayed)
        return
    out.print(
        f"{events} events replayed: version {replayed['version']}, digest {replayed['digest']}, as recorded. "
        f"The audit's {rows} rows are unchanged.",
        soft_wrap=True,
        highlight=False,
    )
