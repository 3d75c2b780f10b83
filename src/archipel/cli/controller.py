"""`archipel controller`: the side of a federation that merges."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from archipel.cli.console import AllowCode, nearby, out, told
from archipel.cli.federation import AsJsonLines, Changes, Method, expiry, listening
from archipel.cli.loading import loading
from archipel.core.checks import require

if TYPE_CHECKING:
    from archipel.federation.controller.engine import Federation


def controller(
    study: Annotated[Path, typer.Argument(help="The study, in TOML, YAML or JSON; of one method and one seed.")],
    listen: Annotated[str, typer.Option(help="Address to listen at.", metavar="HOST:PORT")] = "127.0.0.1:9443",
    papers: Annotated[
        Path | None, typer.Option("--tls", help="Folder of the controller's certificate.", metavar="FOLDER")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS; on loopback only.")] = False,
    state: Annotated[
        Path, typer.Option(help="Folder of the journal and the models; what is in it is gone on with.")
    ] = Path("state"),
    results: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder of the finished run; default: run in the state's.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="Address of the metrics for Prometheus.", metavar="HOST:PORT")
    ] = None,
    revoked: Annotated[
        Path | None,
        typer.Option(
            help="File of revoked certificates' serial numbers, read again when it changes; default: revoked.txt in "
            "the state's folder.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    algorithm: Method = None,
    change: Changes = None,
    allow_code: AllowCode = False,
    json_log: AsJsonLines = False,
) -> None:
    """Hold a real federation: learners elsewhere train, and nothing that they sent is ever lost.

    Killed at any moment and started again with the same --state, it goes on as if nothing had happened.
    """
    with loading():  # one that was killed should be back soon
        from archipel.federation.controller.keeper import keep
        from archipel.federation.logs import say_on_stderr
        from archipel.federation.processes import run_controller
        from archipel.kernels.threads import threads
        from archipel.runs.save import save_run
        from archipel.storage.lock import alone_in, closed
        from archipel.study.federate import host
        from archipel.study.files import read_study
        from archipel.study.own_code import Code

    say_on_stderr(json_log)
    life = keep(state / "journal.sqlite")
    credentials = listening(listen, papers, insecure)
    require(revoked is None or revoked.is_file(), f"--revoked {revoked}: there is no such file.")
    meters = None if metrics is None else _place(metrics)
    code: Code = "any" if allow_code else "beside"
    hosting = host(read_study(study, algorithms=[algorithm] if algorithm else [], changes=change or [], code=code))
    place = results or state / "run"

    def opened() -> Federation:
        federation = hosting.open(state, revoked)
        if papers is not None:
            federation.certificates["controller"] = expires = expiry(papers)
            federation.meters.certificates.labels("controller").set(expires.timestamp())
        return federation

    def when_over(federation: Federation) -> None:
        run = hosting.run(federation)
        save_run(run, place, parquet=False)
        out.print(escape(run.summary()), highlight=False)
        out.print(f"Run: {escape(nearby(place))}", soft_wrap=True, highlight=False)

    with alone_in(closed(state)), threads(hosting.study.simulation.threads):
        federation = run_controller(
            opened,
            listen,
            credentials,
            when_over,
            meters,
            life,
        )
    if federation.stopped is None:
        version = federation.book.controller.state.version
        told.print(f"Stopped at version {version}; the same command goes on.", highlight=False)
        raise typer.Exit(130)


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    require(bool(host) and port.isdigit(), f"--metrics {address}: give HOST:PORT, as in 127.0.0.1:9464.")
    return host.strip("[]"), int(port)
