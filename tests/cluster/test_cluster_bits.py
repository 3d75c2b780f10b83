"""Simulations on a Ray cluster of several nodes on this machine: same bits as without, whatever is lost."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.core.algorithm import Algorithm
from archipel.runs.run import Run
from archipel.simulation.checkpoint import Checkpoint
from archipel.simulation.cluster import actor_pool, connection, opening
from archipel.simulation.cluster.connection import Cluster, ClusterError
from archipel.simulation.cluster.executor import ClusterExecutor
from archipel.simulation.cluster.fingerprint import Fingerprint, fingerprint
from archipel.simulation.simulate import finished, prepare
from archipel.simulation.simulator import Simulator
from tests.cluster.conftest import Machines
from tests.waiting import until

pytestmark = pytest.mark.slow


OPEN: list[Simulator] = []
"""Simulators of the present test, which hold actors until they are closed."""


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


def data() -> Any:
    return ap.data.digits().split(learners=6, sizes="powerlaw", classes=3)


def pictures() -> Any:
    digits = ap.data.digits()
    pictures = ap.data.from_arrays(digits.x.reshape(-1, 1, 8, 8).numpy(), digits.y.numpy())
    return pictures.split(learners=6, sizes="powerlaw", classes=3).augmented(pad=1)


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )


class HalfPrecision(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.bfloat16()).float()


def frozen_base() -> nn.Module:
    base = HalfPrecision(64, 16, dtype=torch.bfloat16).requires_grad_(False)
    return nn.Sequential(base, nn.ReLU(), nn.Linear(16, 10))


def ready(algorithm: Algorithm, cluster: str | Cluster | None, **settings: Any) -> Simulator:
    settings = {"ending": ap.Ending(rounds=12), "fleet": ap.Fleet(fast=3, slow=3), **settings}
    islands = settings.pop("data", data)()
    simulator = prepare(algorithm, islands, cluster=cluster, **settings)
    OPEN.append(simulator)
    return simulator


def whole(simulator: Simulator) -> Run:
    simulator.run()
    return finished(simulator)


def local(algorithm: Algorithm, **settings: Any) -> Run:
    simulator = ready(algorithm, None, **settings)
    simulator.begin()
    return whole(simulator)


def same(one: Run, other: Run) -> None:
    assert torch.equal(one.model, other.model)
    assert one.records == other.records
    assert one.execution == other.execution


def executor(simulator: Simulator) -> ClusterExecutor:
    assert isinstance(simulator.executor, ClusterExecutor)
    return simulator.executor


def wait_for_actors(simulator: Simulator, count: int) -> None:
    """Wait until this many actors are ready."""
    pool = executor(simulator).pool

    def ready_now() -> bool:
        pool.tick()
        pool.pause(0.2)  # a look at the pool costs more than other conditions
        return len(pool.ready) == count

    until(ready_now, lambda: f"{count} actors; {len(pool.ready)} are ready")


METHODS: dict[str, tuple[int, Callable[[], Algorithm], dict[str, Any]]] = {
    "fedavg, native": (2, lambda: ap.fedavg(fraction=0.5), {}),
    "fedprox, workers": (2, ap.fedprox, {"execution": "workers"}),
    "async_dvw with cycles": (2, ap.async_dvw, {"execution": "stacked"}),
    "async_fedavg": (2, ap.async_fedavg, {"execution": "plain"}),
    "async_dvw by epochs, submitted early": (2, ap.async_dvw, {"execution": "workers", "ending": ap.Ending(rounds=4)}),
    "fedavg, stacked": (1, lambda: ap.fedavg(momentum=0.9, epochs=2), {"execution": "stacked"}),
    "fedadam, convolutions": (1, ap.fedadam, {"model": convolutions, "execution": "workers"}),
    "fedavg, frozen in bfloat16": (1, ap.fedavg, {"model": frozen_base, "execution": "workers"}),
    "fedbuff, augmented": (1, lambda: ap.fedbuff(buffer=2), {"data": pictures, "model": convolutions}),
    "fed2a": (1, ap.fed2a, {}),
    "hdafl": (1, lambda: ap.hdafl(fraction=0.5), {}),
    "divide_and_conquer": (1, lambda: ap.divide_and_conquer(prepass=1, epochs=1, tuning_epochs=1), {}),
    "radfed": (1, lambda: ap.radfed(fraction=0.5, hops=2), {}),
    "scaffold": (1, lambda: ap.scaffold(fraction=0.5), {}),
    "apfl, fine-tuned": (
        1,
        lambda: replace(ap.apfl(adaptive=True), personal=ap.FineTuned(1), objective=ap.ModelContrast()),
        {"ending": ap.Ending(rounds=3)},
    ),
    "phases and an objective": (
        1,
        lambda: replace(ap.fedntd(), planners=(ap.PrivateLayers("head"), ap.HeadFirst("head", 1))),
        {"ending": ap.Ending(rounds=3)},
    ),
}
"""Methods and their nodes: two show that order does not matter, and one that everything a method needs travels."""


@pytest.mark.parametrize("name", METHODS)
def test_the_bits_are_those_of_one_machine(ray_cluster: Machines, name: str) -> None:
    nodes, make, settings = METHODS[name]
    ray_cluster.keep(nodes)
    simulator = ready(make(), "auto", **settings)
    simulator.begin()
    wait_for_actors(simulator, nodes)
    same(whole(simulator), local(make(), **settings))


# ----------------------------------------------------------------------------------------------------- what gets lost


def lose(simulator: Simulator, loss: Callable[[], None], left: int) -> Run:
    """Run a little, lose something, see it noticed, and run to the end."""
    simulator.begin()
    wait_for_actors(simulator, 2)
    simulator.run(events=8)
    assert simulator.stopped is None
    loss()
    with pytest.warns(ap.ArchipelWarning, match="is lost; its work is done again"):
        run_after_a_loss(simulator)
    assert len(executor(simulator).pool.ready) >= left
    return finished(simulator)


def run_after_a_loss(simulator: Simulator) -> None:
    """Look at the actors while the run stands still, so that it cannot be over before; then run to the end."""
    cluster = executor(simulator)

    def noticed() -> bool:
        cluster.look()
        cluster.pool.pause(0.2)
        return cluster.losses > 0

    until(noticed, "the loss of an actor")
    simulator.run()


def test_an_actor_that_is_killed(machines: Machines) -> None:
    simulator = ready(ap.async_dvw(), "auto")
    run = lose(simulator, lambda: os.kill(executor(simulator).pool.ready[0].process, signal.SIGKILL), left=1)
    same(run, local(ap.async_dvw()))


def test_a_node_that_is_killed(machines: Machines) -> None:
    simulator = ready(ap.fedavg(), "auto", execution="workers")
    run = lose(simulator, lambda: machines.kill(machines.nodes[0]), left=1)
    same(run, local(ap.fedavg(), execution="workers"))


def test_all_nodes_are_killed_and_the_driver_goes_on(machines: Machines) -> None:
    simulator = ready(ap.async_fedavg(), "auto")
    same(lose(simulator, lambda: machines.keep(0), left=0), local(ap.async_fedavg()))


def test_a_node_that_is_stopped_and_silent(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = ready(ap.fedavg(), "auto", execution="workers")
    with ExitStack() as stopped:

        def stop() -> None:
            stopped.enter_context(machines.stopped(machines.nodes[0]))
            monkeypatch.setattr(actor_pool, "SILENT", 4.0)

        run = lose(simulator, stop, left=0)  # on a busy machine the other one may be silent as long
    same(run, local(ap.fedavg(), execution="workers"))


def test_a_node_that_joins_in_mid_run_gets_work(machines: Machines) -> None:
    machines.keep(1)
    simulator = ready(ap.fedavg(), "auto", execution="workers")
    simulator.begin()
    wait_for_actors(simulator, 1)
    simulator.run(events=8)
    machines.add()
    wait_for_actors(simulator, 2)
    same(whole(simulator), local(ap.fedavg(), execution="workers"))


def test_a_checkpoint_goes_on_with_another_number_of_nodes(machines: Machines, tmp_path: Path) -> None:
    begun = ready(ap.async_dvw(), "auto")
    begun.begin()
    wait_for_actors(begun, 2)
    begun.run(events=15)
    Checkpoint(tmp_path).save(begun)
    begun.close()
    machines.keep(1)
    resumed = ready(ap.async_dvw(), "auto")
    Checkpoint(tmp_path).load(resumed)
    wait_for_actors(resumed, 1)
    same(whole(resumed), local(ap.async_dvw()))


# ------------------------------------------------------------------------------------------------------ what is refused


class Failing(nn.Module):
    """Fails in training, in a process that has not made it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10)
        self.home = os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.home and torch.is_grad_enabled():
            raise ArithmeticError("a loss of a kind")
        out: Tensor = self.inner(x)
        return out


def test_an_error_in_training_names_node_and_learner_and_shows_the_traceback(machines: Machines) -> None:
    simulator = ready(ap.fedavg(), "auto", model=Failing, execution="workers")
    simulator.begin()
    wait_for_actors(simulator, 2)
    with pytest.raises(ClusterError) as caught:
        simulator.run()
    for part in ("of learner ", f"on node {socket.gethostname()}", "Traceback", "ArithmeticError: a loss of a kind"):
        assert part in str(caught.value)


def test_an_error_at_the_start_of_an_actor_is_told(machines: Machines) -> None:
    simulator = ready(ap.fedavg(), "auto", model=Unwilling, execution="workers")
    simulator.begin()
    with pytest.raises(ClusterError, match=r"(?s)cannot start on node .*ArithmeticError: not here"):
        simulator.run()


class Unwilling(nn.Linear):
    """Cannot be moved to a device in a process that has not made it, which is the first thing an actor does."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.home = os.getpid()

    def to(self, *args: Any, **kwargs: Any) -> Any:
        if os.getpid() != self.home:
            raise ArithmeticError("not here")
        return super().to(*args, **kwargs)


class Locked(nn.Module):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10)
        self.inner.register_forward_hook(self._hook())

    def _hook(self) -> Callable[..., object]:
        lock = threading.Lock()
        return lambda *_: lock.locked()

    def __deepcopy__(self, memo: Any) -> nn.Module:
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def test_a_network_that_cannot_travel(machines: Machines) -> None:
    with pytest.raises(ClusterError, match="Locked cannot be sent to other machines"):
        ready(ap.fedavg(), "auto", model=Locked, execution="plain")


def test_other_versions_are_refused_by_name_or_allowed(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = replace(fingerprint(), torch="1.0", processor="SSE2")
    monkeypatch.setattr(actor_pool, "fingerprint", lambda: mine)
    simulator = ready(ap.fedavg(), "auto")
    simulator.begin()
    with pytest.raises(ClusterError, match=r"torch 1\.0 here, .* there; processor SSE2 here, .* there.*--mixed"):
        simulator.run()
    simulator.close()
    mixed = ready(ap.fedavg(), Cluster("auto", mixed=True))
    mixed.begin()
    with pytest.warns(ap.ArchipelWarning, match="computes other bits than this machine: torch 1"):
        wait_for_actors(mixed, 2)
    mixed.close()


def test_examples_that_do_not_fit_go_through_a_shared_folder(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(opening, "SHARE", 1e-9)
    with pytest.raises(
        ClusterError, match=r"the examples take .* MB, and the object store of node .* --cluster-folder"
    ):
        ready(ap.fedavg(), "auto")
    simulator = ready(ap.fedavg(), Cluster("auto", folder=str(tmp_path / "examples")))
    simulator.begin()
    wait_for_actors(simulator, 2)
    same(whole(simulator), local(ap.fedavg()))


def test_an_address_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 1.0)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]  # bound, but nobody listens
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
            with pytest.raises(ClusterError, match="nobody answers at this address within 1 s"):
                connection.check_listening(address)


@pytest.mark.parametrize("address", ["", "somewhere", "host:", ":6379", "ray://", "http://host:1/x"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ValueError, match='must be "local", "auto", "host:port" or "ray://host:port"'):
        Cluster(address)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match="needs Ray, which is not installed: pip install"):
        connection.ray_module()


def test_fingerprints_differ_field_by_field() -> None:
    mine = Fingerprint("abc", "3.11.7", "2.13.0", "2.4.6", "AVX2", "avx2")
    assert mine.differences(mine) == []
    assert mine.differences(replace(mine, archipel="def", native="absent")) == [
        "archipel abc here, def there",
        "native avx2 here, absent there",
    ]
