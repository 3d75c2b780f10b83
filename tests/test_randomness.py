"""Randomness is a function of its key."""

import subprocess
import sys

import numpy as np

from archipel.core.randomness import derive, generator


def test_the_same_key_draws_the_same_and_another_key_does_not() -> None:
    assert generator(1, "a").integers(2**60) == generator(1, "a").integers(2**60)
    keys: list[tuple[int | str, ...]] = [(1, "a"), (1, "b"), (2, "a"), ("1", "a"), (1, "a", 0), (1, "a0"), (1,)]
    assert len({derive(*key) for key in keys}) == len(keys)


def test_a_generator_is_philox_under_its_key() -> None:
    expected = np.random.Generator(np.random.Philox(key=derive(3, "epoch", 1)))
    assert np.array_equal(generator(3, "epoch", 1).permutation(500), expected.permutation(500))


def test_parts_of_a_key_do_not_run_together() -> None:
    assert derive("ab", "c") != derive("a", "bc")
    assert derive(1, 2) != derive("1", "2")


def test_drawing_from_one_key_never_moves_another() -> None:
    alone = generator(0, "x").random(5)
    first = generator(0, "x")
    generator(0, "y").random(1000)
    assert np.array_equal(first.random(5), alone)


def test_a_new_process_draws_the_same() -> None:
    code = "from archipel.core.randomness import derive; print(derive(7, 'selection', 'round 3'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) == derive(7, "selection", "round 3")


def test_draws_are_spread_evenly() -> None:
    # 16 buckets of 4,000 keys: chi-square with 15 degrees of freedom is below 37.7 in 999 of 1,000 cases
    counts = np.bincount([derive(0, i) >> 59 for i in range(4000)], minlength=16)
    assert len(counts) == 16
    assert ((counts - 250) ** 2 / 250).sum() < 37.7
