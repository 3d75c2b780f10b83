"""`archipel replay`: does the journal of a federation lead to the models it says?"""

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
    """Tell a new controller the journal of a federation, and see that it comes to the same models.

    Every version's digest is compared with the one that was written, and the audit's chain of hashes is followed. Needs
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
        replayed = hosting.replay(state)
    model = replayed.controller.state.model.name
    told = {
        "events": events,
        "version": replayed.controller.state.version,
        "digest": digest_of(replayed.models.digests(model)),
        "audit": rows,
    }
    if json:
        print_json(told)
        return
    out.print(
        f"{events} events told again: version {told['version']}, digest {told['digest']}, as it was written. "
        f"The audit's {rows} rows are whole.",
        soft_wrap=True,
        highlight=False,
    )
