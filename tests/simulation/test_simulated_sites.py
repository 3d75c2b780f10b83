"""Sites are made of rows when they take part: the sizes that are told before are those they have then."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import archipel as ap
from archipel.data import from_arrays
from archipel.data.islands import Islands
from archipel.simulation import simulated_sites
from archipel.simulation.fleet import Fleet
from archipel.simulation.simulated_sites import SimulatedSites


def uneven(test: float | str) -> Islands:
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(600, 3, generator=draw)
    return from_arrays(x, torch.randint(0, 5, (600,), generator=draw)).split(30, sizes="powerlaw", test=test, stimuli=1)


@pytest.mark.parametrize("test", [0.2, "own", "none"])
@pytest.mark.parametrize("validation", [0.0, 0.05, 0.5])
def test_sizes_are_those_of_the_parts(test: float | str, validation: float) -> None:
    data = uneven(test)
    held_out = data.folds(3)[0].islands if test != "none" else data
    for islands in (data, held_out):
        fleet = Fleet(fast=len(islands.learners))
        sites = SimulatedSites(islands, fleet, fleet.assign(islands.sizes()), validation, seed=2)
        learners = [site.learner for site in sites.values()]
        assert sites.train_sizes.tolist() == [len(learner.train) for learner in learners]
        assert sites.validation_sizes.tolist() == [len(learner.validation) for learner in learners]
        assert sites.test_sizes.tolist() == [len(sites.test(name)) for name in sites]


@pytest.mark.slow
@pytest.mark.parametrize("make", [ap.hdafl, ap.async_dvw])
def test_a_run_does_not_depend_on_how_many_sites_are_kept(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> ap.Run:
        return ap.simulate(make(epochs=1, batch=16), uneven("own"), ending=ap.Ending(rounds=3), validation=0.2)

    whole = run()
    monkeypatch.setattr(simulated_sites, "MADE", 2)
    again = run()
    assert again.fingerprint() == whole.fingerprint()
    assert repr(again.records) == repr(whole.records)  # losses may be NaN
    assert again.private.keys() == whole.private.keys()
    for name, layers in whole.private.items():
        assert all(torch.equal(layer, again.private[name][kind]) for kind, layer in layers.items())
