"""Reference counts of the store's vectors: a vector is dropped when nothing names it any more."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class VectorUses:
    """How often each vector is named by models, tasks, updates, evaluations and parts."""

    counts: dict[str, int] = field(default_factory=dict)
    held: dict[str, dict[str, int]] = field(default_factory=dict)
    """The parts' share of these counts, by role."""

    def __post_init__(self) -> None:
        self._released: set[str] = set()

    def add(self, *names: str) -> None:
        """Count one more use of each of these vectors."""
        for name in names:
            self.counts[name] = self.counts.get(name, 0) + 1

    def remove(self, *names: str) -> None:
        """Count one use less of each vector."""
        for name in names:
            left = self.counts[name] - 1
            if left:
                self.counts[name] = left
            else:
                del self.counts[name]
                self._released.add(name)

    def hold(self, role: str, *names: str) -> None:
        """Count one more use of each of these vectors by a part."""
        mine = self.held.setdefault(role, {})
        for name in names:
            mine[name] = mine.get(name, 0) + 1
        self.add(*names)

    def release(self, role: str, *names: str) -> None:
        """Count one use less of each of these vectors by a part."""
        mine = self.held.get(role, {})
        for name in names:
            mine[name] -= 1
            if not mine[name]:
                del mine[name]
        self.remove(*names)

    def release_all(self, role: str) -> None:
        """Release all vectors that a part holds."""
        for name, uses in self.held.pop(role, {}).items():
            self.remove(*(name,) * uses)

    def discard(self, name: str) -> None:
        """Mark a vector that was never referenced as unneeded."""
        self._released.add(name)

    def unneeded(self) -> Iterable[str]:
        """Return the vectors without references; each is returned once."""
        released, self._released = self._released, set()
        return [name for name in released if name not in self.counts]
