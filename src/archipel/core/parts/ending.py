"""Ending: when the run is over."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

from archipel.core.checks import at_least, more_than, require
from archipel.core.layout import Layout
from archipel.core.members import Members
from archipel.core.state import State

BudgetUnit: TypeAlias = Literal["seconds", "rounds"]


class Account:
    """The privacy account of a method with differential privacy."""

    __slots__ = ()

    def exhausted(self, members: Members) -> str | None:
        """Return why the budget is exhausted, or None."""
        raise NotImplementedError


@dataclass(frozen=True)
class Ending:
    """The run ends at the first of these that is reached."""

    rounds: int | None = None
    """Local-training rounds; each hop of a Relay counts one."""
    commits: int | None = None
    """Versions of the community model."""
    seconds: float | None = None
    """Virtual seconds in a simulation, real ones in a federation."""
    bytes: int | None = None
    """Bytes moved for training and weighting, both ways."""
    epsilon: float | None = None
    """Privacy budget. With CentralNoise, the run ends before exceeding it; with LocalNoise, each learner gets no more
    tasks before exceeding it."""
    target: float | None = None
    """Score that ends the run."""
    patience: int | None = None
    """Scores in a row without a new best."""

    def __post_init__(self) -> None:
        for name in ("rounds", "commits", "bytes", "patience"):
            value = getattr(self, name)
            if value is not None:
                at_least(1, "Ending", **{name: value})
        if self.seconds is not None:
            more_than(0, "Ending", seconds=self.seconds)
        if self.epsilon is not None:
            more_than(0, "Ending", epsilon=self.epsilon)
        require(
            any(value is not None for value in (self.rounds, self.commits, self.seconds, self.bytes, self.epsilon)),
            "Ending: a target or patience alone may never be reached; give rounds, commits, seconds, bytes or epsilon "
            "as well.",
        )

    def __repr__(self) -> str:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return f"Ending({', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None)})"

    @property
    def budget(self) -> BudgetUnit:
        """The unit that the run is limited in: its final score is the mean over the last fifth of it."""
        counts = (self.rounds, self.commits, self.epsilon)
        by_rounds = self.seconds is None and any(count is not None for count in counts)
        return "rounds" if by_rounds else "seconds"

    def check(self, method: str, layout: Layout, private: Collection[str]) -> None:
        """Refuse an ending by bytes alone for a method that sends none."""
        others = (self.rounds, self.commits, self.seconds, self.epsilon)
        require(
            any(value is not None for value in others) or len(private) < len(layout.layers),
            f"Ending(bytes={self.bytes}) is never reached by {method}: all layers ({', '.join(layout.names)}) are "
            "private, and after a learner's first task nothing is sent. Give rounds, commits or seconds as well.",
        )

    def reached(self, state: State) -> str | None:
        """Return why the run is over, or None. `seconds` is not checked here: it arrives as a `Woke`."""
        if self.commits is not None and state.version >= self.commits:
            return f"{state.version} commits made"
        if self.rounds is not None and state.rounds >= self.rounds:
            return f"{state.rounds} local rounds made"
        if self.bytes is not None:
            kinds = [kind for kind in state.traffic if kind.endswith("bytes") and not kind.startswith("score")]
            moved = sum(state.traffic[kind] for kind in kinds)
            if moved >= self.bytes:
                return f"{moved:,} bytes moved"
        account = state.memory.get("privacy")
        return account.exhausted(state.members) if isinstance(account, Account) else None

    def share(self, seconds: float, rounds: int, commits: int, moved: int) -> float:
        """Return the share of the budget that is used, from 0 to 1: the largest over all limits."""
        limits = ((seconds, self.seconds), (rounds, self.rounds), (commits, self.commits), (moved, self.bytes))
        return min(1.0, max(used / limit for used, limit in limits if limit is not None))

    def satisfied(self, best: float | None, since_best: int, higher: bool) -> str | None:
        """Return why the scores end the run, or None."""
        if self.target is not None and best is not None and (best >= self.target if higher else best <= self.target):
            return f"target {self.target} reached"
        if self.patience is not None and since_best >= self.patience:
            return f"no progress in {since_best} scores"
        return None
