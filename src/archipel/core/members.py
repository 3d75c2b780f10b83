"""The controller's learners; the lists of present and idle ones are updated at each change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from archipel.core.sorted_items import SortedItems
from archipel.core.types import Role


class SortedNames(SortedItems[str]):
    """Names in their order."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.holds(name)


@dataclass(slots=True)
class Member:
    """A learner as the controller knows it."""

    name: str
    examples: int | None
    validation: int
    test: int
    group: str
    role: Role
    active: bool = True
    given: int = 0
    """Training tasks it was given so far; also a key of its draws."""
    resting: bool = False
    """Whether it takes no more training tasks; it still evaluates models."""
    busy: int = 0
    """Its open training tasks, plus its updates that wait for a commit; 0: it may be given a task."""

    @property
    def idle(self) -> bool:
        """Whether it may be given a training task."""
        return not self.busy and self.active and not self.resting and self.role == "train"


@dataclass
class Members(Mapping[str, Member]):
    """All learners that ever joined, by name."""

    known: dict[str, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        by_role: dict[Role, list[str]] = {"train": [], "validation": [], "test": []}
        for member in self.known.values():
            if member.active:
                by_role[member.role].append(member.name)
        self._present = {role: SortedNames(names) for role, names in by_role.items()}
        training = [self.known[name] for name in by_role["train"]]
        self._idle = SortedNames(member.name for member in training if member.idle)
        self._changed: dict[str, bool] = {}
        """The learners that changed since `idle` was last read, and whether `_idle` lists them."""
        self.resting = sum(member.resting for member in training)
        """Training learners that are present and take no more tasks."""
        self._validating = SortedNames(member.name for member in training if member.validation > 0)

    def __getitem__(self, name: str) -> Member:
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)

    def present(self, role: Role) -> SortedNames:
        """Return the present learners of this role."""
        return self._present[role]

    @property
    def idle(self) -> SortedNames:
        """Learners that may be given a training task.

        The list is brought up to date when it is read: most learners return a task before anybody asks who is idle.
        """
        for name, listed in self._changed.items():
            if self.known[name].idle != listed:
                (self._idle.remove if listed else self._idle.add)(name)
        self._changed.clear()
        return self._idle

    @property
    def willing(self) -> int:
        """The number of training learners that are present and take tasks."""
        return len(self._present["train"]) - self.resting

    @property
    def validating(self) -> SortedNames:
        """Training learners that are present and have a validation part."""
        return self._validating

    def join(self, member: Member) -> None:
        """Add a learner, or update a known one, which keeps its tasks and their count."""
        before = self.known.get(member.name)
        if before is not None:
            member.given, member.busy, member.resting = before.given, before.busy, before.resting
            self.leave(member.name)
        self._changed.setdefault(member.name, False)
        self.known[member.name] = member
        if member.active:
            self._present[member.role].add(member.name)
            if member.role == "train":
                self.resting += member.resting
                if member.validation > 0:
                    self._validating.add(member.name)

    def leave(self, name: str) -> None:
        """Remove a learner from the lists of those present."""
        member = self.known[name]
        if not member.active:
            return
        self._changed.setdefault(name, member.idle)
        member.active = False
        self._present[member.role].remove(name)
        if member.role == "train":
            self.resting -= member.resting
            if member.validation > 0:
                self._validating.remove(name)

    def rest(self, name: str) -> None:
        """Give a learner no more training tasks."""
        member = self.known[name]
        if member.resting:
            return
        self._changed.setdefault(name, member.idle)
        member.resting = True
        if member.active and member.role == "train":
            self.resting += 1

    def engage(self, name: str) -> None:
        """Count an open task or a waiting update of this learner."""
        member = self.known[name]
        if not member.busy:
            self._changed.setdefault(name, member.idle)
        member.busy += 1

    def release(self, name: str) -> None:
        """Count one open task or waiting update less."""
        member = self.known[name]
        member.busy -= 1
        if not member.busy:
            self._changed.setdefault(name, False)
