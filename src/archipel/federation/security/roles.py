"""What operators may do: a viewer looks, an operator also stops learners, an admin also lets them in and rolls back."""

from __future__ import annotations

from typing import Literal

OperatorRole = Literal["viewer", "operator", "admin"]

STOP = ("pause", "resume", "withdraw")
ACTIONS: dict[OperatorRole, tuple[str, ...]] = {
    "viewer": (),
    "operator": STOP,
    "admin": (*STOP, "readmit", "rollback"),
}
"""What each role may ask for, beside looking."""


def objection(name: str, role: OperatorRole, action: str) -> str | None:
    """Return why an operator may not do this, or None."""
    if action in ACTIONS[role]:
        return None
    able = [other for other, actions in ACTIONS.items() if action in actions]
    needed = f"that takes the role {' or '.join(able)}" if able else f"there is no action {action[:100]!r}"
    return f"{name} is listed as {role}; {needed}."
