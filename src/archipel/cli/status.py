"""`archipel status`: the state of a federation."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from archipel.cli.console import AsJson, out, print_json
from archipel.cli.federation import Address, Certificates, Insecure, identity, link, on_the_line


def status(
    controller: Address = "127.0.0.1:9443",
    certificates: Certificates = None,
    insecure: Insecure = None,
    json: AsJson = False,
) -> None:
    """Show the state of a federation: learners, tasks, version, score.

    A learner sees the federation and itself; an operator sees all learners.
    """
    from archipel.federation.processes import ask

    identity(certificates, insecure, controller)
    with on_the_line(controller):
        status: dict[str, Any] = ask(lambda: link(controller, certificates, insecure))
    if json:
        print_json(status)
        return
    score = "none yet" if status["score"] is None else f"{status['metric']} {status['score']:.4f}"
    doing = (
        f"over: {status['stopped']}"
        if status["stopped"]
        else status["waiting for"] and f"waits for {status['waiting for']}"
    )
    restarts = f"; restarted {status['restarts']} times" if status["restarts"] else ""
    privacy = status["epsilon"]
    epsilon = "" if privacy is None else f", epsilon {privacy['spent']:.4g} at delta {privacy['delta']:g}"
    sentence = (
        f"version {status['version']}, {status['rounds']} local rounds, {status['seconds']} s, score {score}{epsilon}, "
        f"{status['updates waiting']} updates waiting{'; ' + doing if doing else ''}{restarts}"
    )
    out.print(escape(sentence), highlight=False, soft_wrap=True)
    spent = ["epsilon"] if any(one.get("epsilon") is not None for one in status["learners"]) else []
    table = Table("learner", "state", "examples", "training", "evaluating", "movement", *spent, "seen")
    for one in status["learners"]:
        seen = "" if one["seen"] is None else f"{one['seen']} s ago"
        cells = (
            one["name"],
            one["state"],
            one["examples"],
            one["training"] or "",
            one["evaluating"] or "",
            _movement(one),
            *([None if one["epsilon"] is None else f"{one['epsilon']:.4g}"] if spent else []),
            seen,
        )
        table.add_row(*(escape("" if cell is None else str(cell)) for cell in cells))
    out.print(table)
    _versions(status)
    _warn(status)


def _movement(learner: dict[str, Any]) -> str:
    """Return how far a learner's last update moved the model."""
    movement = learner["movement"]
    if movement is None:
        return ""
    clipped = f", clipped {movement['clipped']} times" if movement["clipped"] else ""
    return f"{movement['norm']:.3g} ({movement['medians']} x median{clipped})"


def _warn(status: dict[str, Any]) -> None:
    """Print warnings for operators."""
    for one in status["certificates"]:
        if one["soon"]:
            ends = f"the certificate of {one['who']} expires on {one['expires'][:10]}; renew it before then"
            out.print(f"[yellow]note:[/] {escape(ends)}", highlight=False, soft_wrap=True)
    for one in status["learners"]:
        if one["capped"]:
            what = ", ".join(one["capped"])
            claims = f"{one['name']} claims more than the largest share allowed of: {what}; it is limited to that share"
            out.print(f"[yellow]note:[/] {escape(claims)}", highlight=False, soft_wrap=True)
        movement = one["movement"]
        if movement is not None and movement["outlier"]:
            moved = f"the last update of {one['name']} moved the model {movement['medians']} times as far as the median"
            out.print(f"[yellow]note:[/] {escape(moved)}", highlight=False, soft_wrap=True)


def _versions(status: dict[str, Any]) -> None:
    """Print who made the last versions, with the largest share first."""
    if not status["versions"]:
        return
    table = Table("version", "shares")
    for one in status["versions"]:
        shares = sorted(one["shares"].items(), key=lambda item: -item[1])
        table.add_row(str(one["version"]), escape(", ".join(f"{name} {share:.0%}" for name, share in shares[:5])))
    out.print(table)
