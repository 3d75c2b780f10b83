"""The randomness of a learner's tasks: its own copy of the study says which seed each of them may have.

A seed decides which examples are drawn and in which order they are seen. A controller that could choose it would try
many until the batches hold whom it is after.
"""

from __future__ import annotations

from archipel.core.randomness import derive
from archipel.federation.learner.local_state import Memory
from archipel.federation.learner.policy import Refusal

AHEAD = 1_000
"""Tasks that may come to nothing before one arrives: each has used up a seed."""
AT_FIRST = 1_000_000
"""The same for the first task of a process: the folder may be older than the last one, or empty."""


class TaskKeys:
    """Takes each seed of the learner's sequence once, in its order."""

    def __init__(self, seed: int, learner: str, memory: Memory) -> None:
        self._seed, self._learner, self._memory = seed, learner, memory
        self._last: tuple[int, int] | None = None
        """The last task and its seed: it may be handed out again, as after a broken line."""

    def check(self, task: int, key: int) -> None:
        """Refuse a seed that does not follow from the study's, or was used before."""
        if (task, key) == self._last:
            return
        begin = self._memory.keys
        for place in range(begin, begin + (AT_FIRST if self._last is None else AHEAD)):
            if derive(self._seed, "training", self._learner, place) == key:
                self._memory.keys, self._last = place + 1, (task, key)
                return
        raise Refusal("this task is not of the study: its seed is none of this learner's next ones")
