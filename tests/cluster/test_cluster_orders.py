"""Simulations on a fake cluster: any order of answers, any loss at any moment, and what is sent, without time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.core.algorithm import Algorithm
from archipel.simulation import flights
from archipel.simulation.cluster import actor_pool, cluster_tasks, executor, opening
from archipel.simulation.cluster.connection import Cluster, ClusterError, ClusterLost
from archipel.simulation.cluster.fingerprint import fingerprint
from archipel.simulation.cluster.placed_models import PlacedModels
from archipel.simulation.simulator import Simulator
from tests.cluster.conftest import SILENT
from tests.cluster.fake_ray import FakeRay, exceptions, installed
from tests.cluster.runs import LEARNERS, executor_of, local, ready, same, whole


def pool_of(simulator: Simulator) -> actor_pool.ActorPool:
    return executor_of(simulator).pool


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take actors for lost as a user's run does."""
    monkeypatch.setattr(actor_pool, "SILENT", SILENT)


METHODS: dict[str, tuple[Callable[[], Algorithm], dict[str, Any]]] = {
    "rounds": (lambda: ap.fedavg(epochs=1, batch=64), {"ending": ap.Ending(commits=4)}),
    "a stream": (lambda: ap.async_fedavg(epochs=1, batch=64), {"ending": ap.Ending(commits=25)}),
    "adaptive cycles": (lambda: ap.async_dvw(batch=64), {}),
    "stacks": (lambda: ap.fedprox(epochs=1, batch=64, momentum=0.5), {"execution": "stacked"}),
    "private layers": (
        lambda: replace(ap.fedavg(epochs=1, batch=64), planners=(ap.PrivateLayers("head"),)),
        {
            "model": lambda: nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)),
            "ending": ap.Ending(commits=4),
        },
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_any_order_and_any_loss_give_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch, silence: None, recwarn: pytest.WarningsRecorder
) -> None:
    make, settings = METHODS[name]
    alone = local(make(), **settings)
    seen = Counter[str]()

    def trouble(ray: FakeRay) -> None:
        drawn, alive = ray.random.random(), ray.alive
        if drawn < 0.06 and alive:
            ray.random.choice(alive).die()
            seen["killed"] += 1
        elif drawn < 0.10 and alive:
            ray.random.choice(alive).stopped = True
            seen["stopped"] += 1
        elif drawn < 0.18:
            ray.cores += 1
            seen["joined"] += 1

    for seed in range(6):
        ray = installed(monkeypatch, FakeRay(seed))
        ray.trouble = trouble
        simulator = ready(make(), "auto", **settings)
        same(whole(simulator), alone)
        seen["losses"] += executor_of(simulator).losses
    assert min(seen["killed"], seen["stopped"], seen["joined"], seen["losses"]) > 2, seen


@pytest.mark.slow
def test_a_silent_actor_is_given_up_within_five_seconds(
    monkeypatch: pytest.MonkeyPatch, silence: None, recwarn: pytest.WarningsRecorder
) -> None:
    for seed in range(8):
        ray = installed(monkeypatch, FakeRay(seed, cores=1))
        simulator = ready(ap.fedavg(), "auto")
        pool = pool_of(simulator)
        while not pool.ready:
            pool.tick()
            pool.wait(0.25)
        for _ in range(seed):  # another moment between two pings
            pool.tick()
            ray.now += 0.13
        ray.actors[0].stopped, stopped = True, ray.now
        while pool.actors:
            pool.tick()
            pool.wait(0.25)
        assert 2 < ray.now - stopped <= 5
        simulator.close()


def test_a_pause_of_the_driver_loses_nobody(monkeypatch: pytest.MonkeyPatch, silence: None) -> None:
    ray = installed(monkeypatch, FakeRay(0))
    simulator = ready(ap.fedavg(), "auto")
    simulator.run(events=4)
    ray.now += 1000
    simulator.run()
    assert executor_of(simulator).losses == 0


def test_nothing_waits_for_actors_that_never_start(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = installed(monkeypatch, FakeRay(0))
    monkeypatch.setattr(ray, "available_resources", lambda: {"CPU": 0.0})  # others have all cores
    simulator = ready(ap.fedavg(), "auto")
    began = ray.now
    run = whole(simulator)
    same(run, local(ap.fedavg()))
    assert ray.now - began < actor_pool.STARTING + 2


def test_a_task_that_kills_its_actors_is_computed_in_the_driver(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    ray = installed(monkeypatch, FakeRay(0, cores=1))

    def trouble(ray: FakeRay) -> None:
        for actor in ray.alive:
            if actor.calls and actor.calls[0][0] == "train":
                actor.die()

    ray.trouble = trouble
    simulator = ready(ap.fedavg(), "auto", ending=ap.Ending(commits=1))
    same(whole(simulator), local(ap.fedavg(), ending=ap.Ending(commits=1)))
    assert executor_of(simulator).losses >= executor.ATTEMPTS


def test_a_lost_head_ends_the_run_with_a_sentence_and_nothing_lost(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, silence: None
) -> None:
    ray = installed(monkeypatch, FakeRay(0))
    simulator = ready(ap.async_fedavg(), "auto")
    simulator.run(events=6)
    ray.head_answers = False
    for actor in ray.alive:
        actor.stopped = True
    while not pool_of(simulator).gone:
        simulator.run(events=1)
    with pytest.raises(ClusterLost, match=r"cluster 'auto' is lost: its head node no longer answers\. Resume"):
        simulator.run()
    saved = simulator.save()
    resumed = ready(ap.async_fedavg(), None)
    resumed.load(saved)
    resumed.records = simulator.records
    same(whole(resumed), local(ap.async_fedavg()))


# ------------------------------------------------------------------------------------------------------ what is sent


def sent(ray: FakeRay, method: str) -> list[int]:
    return [size for name, size in ray.sent if name == method]


@pytest.mark.slow
@pytest.mark.parametrize("method", [ap.fedavg, ap.fedprox, ap.fedbuff])
def test_a_model_is_put_once_per_version_and_tasks_are_small(
    method: Callable[..., Algorithm], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = installed(monkeypatch, FakeRay(1, cores=3))
    simulator = ready(method(), "auto", ending=ap.Ending(rounds=12))
    run = whole(simulator)
    models = [one for one in ray.puts if isinstance(one, np.ndarray) and one.shape == run.model.shape]
    assert 3 < len(models) <= len(run.commits) + 1
    assert len(ray.puts) == 3 + len(models)  # and the network, the inputs and the targets
    indices = sum(8 * len(simulator.sites[name].learner.train) for name in simulator.sites)
    sizes = sent(ray, "train")
    assert min(sizes) < 2000
    # each actor gets each learner's indices once at most
    assert sum(sizes) < 3 * indices + 2000 * len(sizes)


def test_a_model_is_read_where_ray_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeRay(0))
    simulator = ready(ap.fedavg(), "auto")
    simulator.run(events=LEARNERS + 1)
    contexts = [actor.thing.context for actor in pool_of(simulator).ray.actors]
    for context in contexts:
        assert not context.x.numpy().flags.owndata  # a view of what was put
        assert context.x.data_ptr() == contexts[0].x.data_ptr()


def test_a_vector_that_was_changed_in_place_is_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay()
    placed = PlacedModels(ray, 3)
    model = torch.zeros(3)
    first = placed.reference(model)
    assert placed.reference(model) is first
    model[1] = 1.0
    assert placed.reference(model).value.tolist() == [0, 1, 0]
    del model
    assert not placed._kept


def test_actors_forget_learners_and_are_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = installed(monkeypatch, FakeRay(0))
    monkeypatch.setattr(cluster_tasks, "LEARNERS_KEPT", 2)
    simulator = ready(ap.async_fedavg(), "auto", ending=ap.Ending(commits=20))
    same(whole(simulator), local(ap.async_fedavg(), ending=ap.Ending(commits=20)))
    assert all(len(actor.thing.learners) <= 2 for actor in ray.actors)


def test_all_actors_are_kept_busy_by_models_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for its time is with the nodes, so the driver's memory does not limit it."""
    monkeypatch.setattr(flights, "AHEAD", 1)
    monkeypatch.setattr(executor, "FETCHED", 1)
    ray = installed(monkeypatch, FakeRay(0, cores=4))
    busy: list[int] = []

    def trouble(ray: FakeRay) -> None:
        busy.append(sum(any(call[0] == "train" for call in actor.calls) for actor in ray.alive))

    ray.trouble = trouble
    settings = {"ending": ap.Ending(commits=40)}
    same(whole(ready(ap.async_fedavg(), "auto", **settings)), local(ap.async_fedavg(), **settings))
    assert max(busy) == 4


def test_results_of_tasks_that_were_cancelled_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeRay(0))
    fleet = ap.Fleet(
        ap.Group("away at times", 4, drop_rate=0.2, up=0.3, down=0.1, varies=0.5),
        ap.Group("attackers", 2, attack="noise(1)"),
    )
    settings = {"fleet": fleet, "ending": ap.Ending(commits=30)}
    simulator = ready(ap.async_fedavg(), "auto", **settings)
    simulator.run()
    assert len(executor_of(simulator)._training) <= len(simulator.flights.out)
    assert executor_of(simulator)._fetched <= len(simulator.flights.out) * simulator.context.layout.size
    same(whole(simulator), local(ap.async_fedavg(), **settings))


# --------------------------------------------------------------------------------------------------- what is refused


def test_gpus_are_asked_for_and_refused_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = installed(monkeypatch, FakeRay(0, cores=8, gpus=1))
    simulator = ready(ap.fedavg(), Cluster("auto", cpus=2, gpus=0.25))
    with pytest.raises(ClusterError, match=r"(?s)cannot start on node .*a GPU was asked for \(--per-actor\)"):
        simulator.run()
    assert (ray.asked["num_cpus"], ray.asked["num_gpus"]) == (2, 0.25)
    assert len(ray.actors) == 4  # so many fit on the GPU, and on the cores
    simulator.close()
    installed(monkeypatch, FakeRay(0, cores=8))
    with pytest.raises(
        ClusterError,
        match=r"an actor takes 1 core and 1 GPU \(--per-actor\), and no node has as much\. .* one \(012345\): 8 cores",
    ):
        ready(ap.fedavg(), Cluster("auto", gpus=1))
    with pytest.raises(ClusterError, match="an actor takes 16 cores"):
        ready(ap.fedavg(), Cluster("auto", cpus=16))


class Greedy(nn.Linear):
    """Asks for more memory than there is when it is trained."""

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            torch.empty(1 << 50)
        return super().forward(x)


def test_too_little_memory_says_what_was_asked_and_what_there_was(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeRay(0))
    simulator = ready(ap.fedavg(), "auto", model=lambda: Greedy(64, 10))
    with pytest.raises(
        ClusterError,
        match=r"node machine \d has too little memory for the computation of learner \d\d, task \d+: .*tried to "
        r"allocate 4503599627370496 bytes.* This machine has [\d,]+ MB free of [\d,]+ MB\.",
    ):
        simulator.run()
    simulator.close()


def test_an_actor_that_ray_ended_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = installed(monkeypatch, FakeRay(0))

    def trouble(ray: FakeRay) -> None:
        for actor in ray.alive:
            if actor.calls and actor.calls[0][0] == "train":
                actor.die(exceptions.OutOfMemoryError("15.9 GB of 16 GB were used"))

    ray.trouble = trouble
    with pytest.raises(
        ClusterError,
        match=r"node machine \d ran out of memory.*\(it has 1 core\).*Ray reports: 15.9 GB of 16 GB were used",
    ):
        ready(ap.fedavg(), "auto").run()


def test_an_object_store_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = installed(monkeypatch, FakeRay(0))
    simulator = ready(ap.fedavg(), "auto")

    def full(value: Any) -> Any:
        raise exceptions.ObjectStoreFullError("no room")

    monkeypatch.setattr(ray, "put", full)
    with pytest.raises(ClusterError, match=r"a model of 0 MB does not fit into.*--object-store-memory"):
        simulator.run()
    simulator.close()


def test_versions_that_differ_are_refused_or_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = installed(monkeypatch, FakeRay(0))
    ray.fingerprint = replace(fingerprint(), torch="1.0", processor="SSE2")
    simulator = ready(ap.fedavg(), "auto")
    with pytest.raises(ClusterError, match=r"torch .* here, 1\.0 there; processor .* here, SSE2 there.*--mixed"):
        simulator.run()
    simulator.close()
    mixed = ready(ap.fedavg(), Cluster("auto", mixed=True))
    with pytest.warns(ap.ArchipelWarning, match="computes other bits than this machine: torch"):
        run = whole(mixed)
    assert re.search(r"node machine \d computes other bits than this machine: torch", run.execution_reason)


def test_installed_code_that_differs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeRay(0))
    monkeypatch.setattr(opening, "installed_code", lambda objects: {"hypothesis.strategies": "0" * 12})
    simulator = ready(ap.fedavg(), "auto")
    with pytest.raises(ClusterError, match=r"hypothesis.strategies 000000000000 here, \w{12} there.*--mixed"):
        simulator.run()
    simulator.close()


def test_a_package_that_a_node_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeRay(0))
    monkeypatch.setattr(opening, "installed_code", lambda objects: {"not_there_at_all": "0" * 12})
    simulator = ready(ap.fedavg(), "auto")
    with pytest.raises(ClusterError, match=r"(?s)cannot start on node .*No module named 'not_there_at_all'"):
        simulator.run()
    simulator.close()
