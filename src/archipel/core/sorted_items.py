"""Sorted items: added and removed one by one, and looked up by their number."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import TypeVar, overload

T = TypeVar("T", str, tuple[float, str])

BLOCK = 1024
"""Most items in a block: adding or removing an item moves at most so many."""


class SortedItems(Sequence[T]):
    """Sorted items in blocks: adding or removing one costs the same however many there are."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        ordered = sorted(items)
        self._blocks: list[list[T]] = [ordered[start : start + BLOCK] for start in range(0, len(ordered), BLOCK)]
        self._lasts: list[T] = [block[-1] for block in self._blocks]
        """The last item of each block."""
        self._count = len(ordered)
        self._sums: list[int] = []
        """A Fenwick tree of the blocks' lengths, numbered from 1; empty if blocks were added or removed since."""

    def add(self, item: T) -> None:
        """Insert an item that is not in the list."""
        place = min(bisect_left(self._lasts, item), len(self._blocks) - 1)
        if place < 0:
            self._blocks.append([])
            self._lasts.append(item)
            self._sums = []
            place = 0
        block = self._blocks[place]
        insort(block, item)
        if len(block) > BLOCK:
            half = len(block) // 2
            self._blocks[place : place + 1] = [block[:half], block[half:]]
            self._lasts[place : place + 1] = [block[half - 1], block[-1]]
            self._sums = []
        else:
            self._lasts[place] = block[-1]
            self._grow(place, 1)
        self._count += 1

    def remove(self, item: T) -> None:
        """Remove an item that is in the list."""
        place = bisect_left(self._lasts, item)
        block = self._blocks[place]
        del block[bisect_left(block, item)]
        if block:
            self._lasts[place] = block[-1]
            self._grow(place, -1)
        else:
            del self._blocks[place], self._lasts[place]
            self._sums = []
        self._count -= 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        return chain.from_iterable(self._blocks)

    @overload
    def __getitem__(self, number: int) -> T: ...

    @overload
    def __getitem__(self, number: slice) -> list[T]: ...

    def __getitem__(self, number: int | slice) -> T | list[T]:
        if isinstance(number, slice):
            return list(self)[number]
        if not -self._count <= number < self._count:
            raise IndexError(f"item {number} of {self._count}")
        number %= self._count
        sums, place = self._block_sums(), 0
        step = 1 << (len(sums) - 1).bit_length()
        while step := step >> 1:  # walk down the tree past every subtree that ends before this item
            if place + step < len(sums) and sums[place + step] <= number:
                place += step
                number -= sums[place]
        return self._blocks[place][number]

    def holds(self, item: T) -> bool:
        """Return whether an item is in the list."""
        place = bisect_left(self._lasts, item)
        if place == len(self._blocks):
            return False
        block = self._blocks[place]
        return block[bisect_left(block, item)] == item

    def numbered(self) -> Callable[[int], T]:
        """Return what finds items by their number, for many at once: it is valid until an item is added or removed."""
        blocks, ends = self._blocks, list(accumulate(map(len, self._blocks)))

        def item(number: int) -> T:
            place = bisect_right(ends, number)
            return blocks[place][number - ends[place]]  # counted from the block's end

        return item

    def number(self, item: T) -> int:
        """Return how many items come before this one, which need not be in the list."""
        place = bisect_left(self._lasts, item)
        if place == len(self._blocks):
            return self._count
        before, sums = bisect_left(self._blocks[place], item), self._block_sums()
        while place:
            before += sums[place]
            place &= place - 1
        return before

    def _block_sums(self) -> list[int]:
        if not self._sums:
            sums = self._sums = [0, *map(len, self._blocks)]
            for place in range(1, len(sums)):
                above = place + (place & -place)
                if above < len(sums):
                    sums[above] += sums[place]
        return self._sums

    def _grow(self, block: int, items: int) -> None:
        """Add to the length of a block."""
        sums, place = self._sums, block + 1
        while place < len(sums):
            sums[place] += items
            place += place & -place
