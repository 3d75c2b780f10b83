"""Large vectors reuse the memory of freed ones."""

from __future__ import annotations

from archipel.kernels.memory import LARGE, empty


def test_a_large_vector_takes_the_memory_of_one_that_nobody_looks_at() -> None:
    first, second = empty(LARGE), empty(LARGE)
    place = first.data_ptr()
    assert second.data_ptr() != place
    looking: list[object] = [first[5:7], first.numpy(), first.view(2, -1)]
    del first
    while looking:
        assert empty(LARGE).data_ptr() != place
        looking.pop()
    assert empty(LARGE).data_ptr() == place
