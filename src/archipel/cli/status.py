"""`archipel status`: how a federation is doing."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from archipel.cli.console import AsJson, out, print_json
from archipel.cli.federation import Address, Insecure, Papers, identity, link, on_the_line


def status(
    controller: Address = "127.0.0.1:9443", papers: Papers = None, insecure: Insecure = None, json: AsJson = False
) -> None:
    """How a federation is doing: learners, tasks, version, score.

    A learner sees the federation and itself; an operator sees all learners.
    """
    from archipel.federation.processes import ask

    identity(papers, insecure, controller)
    with on_the_line(controller):
        told: dict[str, Any] = ask(lambda: link(controller, papers, insecure))
    if json:
        print_json(told)
        return
    score = "none yet" if told["score"] is None else f"{told['metric']} {told['score']:.4f}"
    doing = (
        f"over: {told['stopped']}" if told["stopped"] else told["waiting for"] and f"waits for {told['waiting for']}"
    )
    restarts = f"; killed and back {told['restarts']} times" if told["restarts"] else ""
    privacy = told["epsilon"]
    epsilon = "" if privacy is None else f", epsilon {privacy['spent']:.4g} at delta {privacy['delta']:g}"
    sentence = (
        f"version {told['version']}, {told['rounds']} local rounds, {told['seconds']} s, score {score}{epsilon}, "
        f"{told['updates waiting']} updates waiting{'; ' + doing if doing else ''}{restarts}"
    )
    out.print(escape(sentence), highlight=False, soft_wrap=True)
    spent = ["epsilon"] if any(one.get("epsilon") is not None for one in told["learners"]) else []
    table = Table("learner", "state", "examples", "training", "evaluating", "movement", *spent, "seen")
    for one in told["learners"]:
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
    _versions(told)
    _warn(told)


def _movement(learner: dict[str, Any]) -> str:
    """Return how far a learner's last update moved the model."""
    movement = learner["movement"]
    if movement is None:
        return ""
    clipped = f", clipped {movement['clipped']} times" if movement["clipped"] else ""
    return f"{movement['norm']:.3g} ({movement['medians']} x median{clipped})"


def _warn(told: dict[str, Any]) -> None:
    """Print what an operator should see to."""
    for one in told["certificates"]:
        if one["soon"]:
            ends = f"the certificate of {one['who']} expires on {one['expires'][:10]}; have a new one signed before"
            out.print(f"[yellow]note:[/] {escape(ends)}", highlight=False, soft_wrap=True)
    for one in told["learners"]:
        if one["capped"]:
            claims = f"{one['name']} claims more than anybody's share of: {', '.join(one['capped'])}; it is cut to that"
            out.print(f"[yellow]note:[/] {escape(claims)}", highlight=False, soft_wrap=True)
        movement = one["movement"]
        if movement is not None and movement["outlier"]:
            moved = f"the last update of {one['name']} moved the model {movement['medians']} times as far as the median"
            out.print(f"[yellow]note:[/] {escape(moved)}", highlight=False, soft_wrap=True)


def _versions(told: dict[str, Any]) -> None:
    """Print who made the last versions, with the largest share first."""
    if not told["versions"]:
        return
    table = Table("version", "shares")
    for one in told["versions"]:
        shares = sorted(one["shares"].items(), key=lambda item: -item[1])
        table.add_row(str(one["version"]), escape(", ".join(f"{name} {share:.0%}" for name, share in shares[:5])))
    out.print(table)
