"""Identities: names, and their URIs in certificates, such as archipel:learner/hospital-1."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from archipel.core.checks import require

SCHEME = "archipel:"
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
RESERVED = ("authority", "controller", "home", "issued")
"""Names that mean something else: folders of an authority, and the controller's own site."""

Kind = Literal["controller", "learner", "operator"]
"""The kinds of holders of a certificate."""
KINDS: tuple[Kind, ...] = ("controller", "learner", "operator")


@dataclass(frozen=True)
class Identity:
    """Who calls the controller; as text, learner/hospital-1."""

    kind: Literal["learner", "operator"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def check_name(kind: str, name: str) -> None:
    """Refuse a name that makes no folder and no part of a URI."""
    require(
        NAME.fullmatch(name) is not None,
        f"{kind} {name[:100]!r}: a name should be 1 to 64 letters (A to Z), digits, dots, underscores and hyphens, and "
        f"not begin with a dot.",
    )
    require(
        name.lower() not in RESERVED,
        f"{kind} {name!r}: {', '.join(RESERVED)} mean something else here. Give it another name.",
    )


def title(kind: Kind, name: str) -> str:
    """Return what follows the scheme in a certificate's URI; there is only one controller, which has no name."""
    return "controller" if kind == "controller" else f"{kind}/{name}"


def titles(uris: Sequence[str]) -> list[str]:
    """Return what the URIs of Archipel's scheme say."""
    return [uri.removeprefix(SCHEME) for uri in uris if uri.startswith(SCHEME)]


def holder(title: str) -> tuple[Kind, str] | None:
    """Return kind and name of a title such as learner/hospital-1, or None if it is none."""
    if title == "controller":
        return "controller", "controller"
    who = identity_of(title)
    return None if who is None else (who.kind, who.name)


@lru_cache(maxsize=4096)  # asked at every call
def identity_of(title: str) -> Identity | None:
    """Return whom a title means, or None unless it is a learner or an operator."""
    kind, _, name = title.partition("/")
    try:
        check_name(kind, name)
    except ValueError:
        return None
    return Identity(kind, name) if kind in ("learner", "operator") else None  # type: ignore[arg-type]  # just compared


def request_command(title: str) -> str:
    """Return the command that makes a new key and a request for a title such as learner/hospital-1."""
    kind, _, name = title.partition("/")
    return f"archipel ca request {kind} {name}".rstrip()
