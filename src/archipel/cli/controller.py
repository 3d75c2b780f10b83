"""`archipel controller`: the side of a federation that merges."""

from __future__ import annotations

import logging
import secrets
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from archipel.cli.console import AllowCode, nearby, notices, out
from archipel.cli.federation import AsJsonLines, Changes, Method, expiry, listening
from archipel.cli.loading import loading
from archipel.core.checks import require
from archipel.live.access import is_loopback, parse_address
from archipel.live.page_process import PageProcess, PageSettings

if TYPE_CHECKING:
    from archipel.federation.controller.engine import Federation
    from archipel.study.federate import Hosting


TOKEN = "live-token"
"""File in the state's folder with the token of the live page."""

Listen = Annotated[str, typer.Option(help="Address to listen on.", metavar="HOST:PORT")]
ControllerCertificates = Annotated[
    Path | None, typer.Option("--tls", help="Folder of the controller's certificate.", metavar="FOLDER")
]
WithoutTls = Annotated[bool, typer.Option("--insecure", help="Without TLS; on loopback only.")]
State = Annotated[Path, typer.Option(help="Folder of the journal and the models; a run found in it is continued.")]
Results = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder of the finished run; default: run, in the state folder.")
]
Live = Annotated[
    str | None,
    typer.Option(
        help="Address of a page that shows the federation in a browser, such as localhost:9444; from other machines it "
        "requires an operator's certificate or the token in the state folder.",
        metavar="HOST:PORT",
    ),
]
Metrics = Annotated[str | None, typer.Option(help="Address of the metrics for Prometheus.", metavar="HOST:PORT")]

Revoked = Annotated[
    Path | None,
    typer.Option(
        help="File of revoked certificates' serial numbers, read again when it changes; default: revoked.txt in "
        "the state's folder.",
        metavar="FILE",
        show_default=False,
    ),
]


def controller(
    study: Annotated[Path, typer.Argument(help="The study, in TOML, YAML or JSON; of one method and one seed.")],
    listen: Listen = "127.0.0.1:9443",
    certificates: ControllerCertificates = None,
    insecure: WithoutTls = False,
    state: State = Path("state"),
    results: Results = None,
    metrics: Metrics = None,
    live: Live = None,
    revoked: Revoked = None,
    algorithm: Method = None,
    change: Changes = None,
    allow_code: AllowCode = False,
    json_log: AsJsonLines = False,
) -> None:
    """Run the controller of a real federation, whose learners train on other machines.

    No acknowledged update is lost: if the controller is killed, start it again with the same --state, and it continues.
    """
    with loading():  # a killed controller should restart quickly
        from archipel.federation.controller.keeper import keep
        from archipel.federation.logs import say_on_stderr
        from archipel.federation.processes import run_controller
        from archipel.kernels.threads import threads
        from archipel.storage.lock import alone_in, closed
        from archipel.study.federate import host
        from archipel.study.files import read_study
        from archipel.study.own_code import Code

    say_on_stderr(json_log)
    life = keep(state / "journal.sqlite")
    credentials = listening(listen, certificates, insecure)
    require(revoked is None or revoked.is_file(), f"--revoked {revoked}: there is no such file.")
    meters = None if metrics is None else _place(metrics)
    code: Code = "any" if allow_code else "beside"
    hosting = host(read_study(study, algorithms=[algorithm] if algorithm else [], changes=change or [], code=code))
    identity = ["--insecure", "operator/NAME"] if insecure else ["--tls", "FOLDER"]
    reach = shlex.join(["--controller", listen, *identity])
    page = None if live is None else _page(live, hosting, state, revoked, certificates)
    opened = partial(_open, hosting, state, revoked, certificates, page, reach)
    when_over = partial(_save, hosting, results or state / "run")
    with alone_in(closed(state)), threads(hosting.study.simulation.threads):
        federation = run_controller(opened, listen, credentials, when_over, meters, life)
    if federation.stopped is None:
        version = federation.durable.controller.state.version
        notices.print(f"Stopped at version {version}; run the same command again to continue.", highlight=False)
        raise typer.Exit(130)


def _open(
    hosting: Hosting,
    state: Path,
    revoked: Path | None,
    certificates: Path | None,
    settings: PageSettings | None,
    reach: str,
) -> Federation:
    """Open the federation of a state folder and its page, and note when the controller's own certificate expires."""
    federation = hosting.open(state, revoked, certificates)
    if certificates is not None:
        federation.status.record_certificate("controller", expiry(certificates))
    if settings is not None:
        from archipel.federation.controller.live_status import tell_page

        page = PageProcess(settings)  # before gRPC begins its threads, which a fork would find half done
        log = logging.getLogger("archipel.federation")
        page.announce(
            lambda url: log.info("live page opened", extra={"url": url.partition("?")[0]}),
            lambda reason: log.error("live page failed", extra={"reason": reason}),
        )
        federation.workers.start(tell_page(federation, page.tell, hosting.study.title, f" {reach}"))
    return federation


def _page(live: str, hosting: Hosting, state: Path, revoked: Path | None, certificates: Path | None) -> PageSettings:
    """Return the settings of the page; from other machines it needs TLS, and a token is drawn once."""
    from archipel.federation.security.revocation import REVOKED
    from archipel.storage.atomic_files import write_text
    from archipel.storage.lock import closed

    host, _ = parse_address(live)
    require(
        certificates is not None or is_loopback(host),
        f"--live {live}: without TLS the page must be on loopback, as localhost:9444. Give --tls, or use a tunnel.",
    )
    token = None
    if not is_loopback(host):
        path = closed(state) / TOKEN
        if not path.exists():
            write_text(path, secrets.token_urlsafe(24) + "\n")
        token = path.read_text().strip()
    return PageSettings(
        str(state.resolve()),
        live,
        federation=True,
        certificates=None if certificates is None else str(certificates.resolve()),
        operators=tuple(hosting.terms.operators),
        revoked=str((revoked or state / REVOKED).resolve()),
        token=token,
    )


def _save(hosting: Hosting, place: Path, federation: Federation) -> None:
    """Save the run of a federation that is over."""
    from archipel.runs.save import save_run

    run = hosting.run(federation)
    save_run(run, place, parquet=False)
    out.print(escape(run.summary()), highlight=False)
    out.print(f"Run: {escape(nearby(place))}", soft_wrap=True, highlight=False)
    for failure in hosting.tell_trackers(run, place):
        notices.print(f"[yellow]note:[/] {escape(failure)}", soft_wrap=True, highlight=False)


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    require(bool(host) and port.isdigit(), f"--metrics {address}: give HOST:PORT, as in 127.0.0.1:9464.")
    return host.strip("[]"), int(port)
