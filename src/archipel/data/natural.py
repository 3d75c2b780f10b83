"""Natural islands: learners are the sites that the data come from (writers, roles, hospitals, areas …)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from archipel.core.randomness import generator
from archipel.data.array_types import IntArray
from archipel.data.sizes import whole_number


def owners(source: str, counts: IntArray, at_least: int, learners: int | None, merged: bool, seed: int) -> IntArray:
    """Return the number of every site's learner, -1 for sites that are left out; counts are the sites' examples."""
    large = np.flatnonzero(counts >= whole_number("at_least", at_least))
    if len(large) < 2:
        raise ValueError(
            f"natural: {source!r} has {(counts > 0).sum()} sites with examples, {len(large)} of them with {at_least} "
            f"or more; two are needed. The largest have {np.sort(counts)[::-1][:3].tolist()} examples. "
            "Ask for fewer with at_least, or use split()."
        )
    if merged and learners is None:
        raise ValueError(
            "natural: merged=True distributes sites over learners. Give their number, such as learners=10."
        )
    wanted = len(large) if learners is None else whole_number("learners", learners)
    if wanted > len(large):
        raise ValueError(
            f"natural: learners={wanted}, but {source!r} has {len(large)} sites with {at_least} examples or more. "
            f"Ask for {len(large)} at most."
        )
    owner = np.full(len(counts), -1)
    drawn = generator(seed, "data", "sites").permutation(large)
    if merged:
        owner[drawn] = np.arange(len(drawn)) % wanted
    else:
        # in the order of the sites, whichever were drawn
        owner[np.sort(drawn[:wanted])] = np.arange(wanted)
    return owner


def named(numbers: Sequence[str], owner: IntArray, site_names: Sequence[str]) -> list[str]:
    """Return the learners' numbers with their sites' names, as parts of file names."""
    order = np.argsort(owner[owner >= 0], kind="stable")
    sites = np.flatnonzero(owner >= 0)[order]
    return [f"{number}-{plain(site_names[site])}" for number, site in zip(numbers, sites, strict=True)]


def plain(name: str) -> str:
    """Replace everything but letters, digits and dots in a name by underscores."""
    return re.sub(r"[^\w.]+", "_", name)
