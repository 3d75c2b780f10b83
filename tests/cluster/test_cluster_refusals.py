"""What a cluster is not given, and what is refused: one clear sentence each."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.cli.run import cluster_of
from archipel.simulation.cluster import actor, connection, opening
from archipel.simulation.cluster.connection import Cluster, ClusterError
from archipel.simulation.cluster.fingerprint import Fingerprint, code_differences, installed_code, is_users
from archipel.simulation.cluster.out_of_memory import out_of_memory
from tests.cluster.conftest import Machines
from tests.cluster.fake_ray import FakeRay, installed, real
from tests.cluster.runs import executor_of, local, ready, same, wait_for_actors, whole


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


@pytest.mark.slow
def test_an_error_in_training_names_node_learner_and_task_and_shows_the_traceback(machines: Machines) -> None:
    simulator = ready(ap.fedavg(), "auto", model=Failing)
    wait_for_actors(simulator, 2)
    with pytest.raises(ClusterError) as caught:
        simulator.run()
    for part in ("of learner 0", ", task ", f"on node {socket.gethostname()} (", "Traceback", "a loss of a kind"):
        assert part in str(caught.value)


@pytest.mark.slow
def test_examples_and_models_lie_in_memory_that_the_node_shares(machines: Machines, tmp_path: Path) -> None:
    for cluster, place in ((Cluster("auto"), "/plasma"), (Cluster("auto", folder=str(tmp_path)), str(tmp_path))):
        simulator = ready(ap.fedavg(), cluster, ending=ap.Ending(commits=1))
        wait_for_actors(simulator, 2)
        for one in executor_of(simulator).pool.ready:
            assert place in real.get(one.handle.mapping.remote())
        same(whole(simulator), local(ap.fedavg(), ending=ap.Ending(commits=1)))
        simulator.close()


def test_an_error_at_the_start_of_an_actor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeRay())
    monkeypatch.setattr(actor, "executor_of", _raising(ArithmeticError("not here")))
    simulator = ready(ap.fedavg(), "auto")
    with pytest.raises(ClusterError, match=r"(?s)cannot start on node machine \d: .*ArithmeticError: not here"):
        simulator.run()


class Locked(nn.Module):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 10)
        self.inner.register_forward_hook(self._hook())

    def _hook(self) -> Callable[..., None]:
        lock = threading.Lock()

        def hook(*_: object) -> None:
            with lock:
                pass

        return hook

    def __deepcopy__(self, memo: Any) -> nn.Module:
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)
        return out


def test_a_network_that_cannot_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, FakeRay())
    with pytest.raises(ClusterError, match=r"Locked cannot be sent to other machines: cannot pickle '_thread\.lock'"):
        ready(ap.fedavg(), "auto", model=Locked)


def test_examples_that_do_not_fit_go_through_a_shared_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, FakeRay())
    monkeypatch.setattr(opening, "SHARE", 1e-9)
    with pytest.raises(
        ClusterError, match=r"the examples take .* MB, and the object store of node .* --cluster-folder"
    ):
        ready(ap.fedavg(), "auto")
    same(whole(ready(ap.fedavg(), Cluster("auto", folder=str(tmp_path / "examples")))), local(ap.fedavg()))
    assert sorted(path.name for path in (tmp_path / "examples").iterdir()) == ["inputs.npy", "targets.npy"]


def test_an_address_where_nobody_listens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]  # bound, but nobody listens
        for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", f"[::1]:{port}"):
            with pytest.raises(ClusterError, match=r"nobody answers at this address \(Connection refused\)"):
                connection.check_address(address)
        monkeypatch.setattr(real, "is_initialized", lambda: False)  # other tests are connected
        study = ap.read_study(algorithms=["fedavg"], data="digits")
        with pytest.raises(ClusterError, match="nobody answers"):
            ap.run_study(study, tmp_path / "results", cluster=f"127.0.0.1:{port}")
        assert not (tmp_path / "results").exists(), "the right address would be refused: the folder is there already"
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        with pytest.raises(ClusterError, match=f"cluster '127.0.0.1:{port}': nobody answers"):
            connection.check_address("auto")


@pytest.mark.parametrize("address", ["somewhere", "127.0.0.1:abc", "127.0.0.1"])
def test_a_variable_that_holds_no_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ValueError, match='cluster: RAY_ADDRESS must be "local", .* got \'' + address):
        connection.check_address("auto")


def test_options_of_a_cluster_without_a_cluster() -> None:
    for given in (("cpus=2", False, None), (None, True, None), (None, False, Path())):
        with pytest.raises(ValueError, match="give --cluster too"):
            cluster_of(None, *given)
    assert cluster_of(None, None, False, None) is None


@pytest.mark.parametrize("address", ["", "somewhere", "host:", ":6379", "ray://", "http://host:1/x", "host:65536"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(ValueError, match='must be "local", "auto", "host:port" or "ray://host:port"'):
        Cluster(address)


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterError, match="needs Ray, which is not installed: pip install"):
        connection.ray_module()


def test_errors_of_ray_become_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older Ray, an older Python, no gRPC for ray://, and what Ray says of a token without our own look at it."""
    from ray._private.utils import check_version_info

    with pytest.raises(RuntimeError) as older:
        check_version_info({"ray_version": "2.40.0", "python_version": "3.9.1"}, "this machine")
    chained = ConnectionError("Failed to connect to Ray cluster at head:6379")
    chained.__cause__ = RuntimeError("ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken")
    for error, sentence in (
        (older.value, "its Ray or Python is of another version. Install the same .* Ray: 2.40.0 Python: 3.9.1"),
        (chained, "asks for a token, and this machine's is missing or another one. Set RAY_AUTH_MODE=token"),
        (ImportError("Ray Client requires pip package `ray[client]`"), "ray:// needs gRPC: pip install"),
        (
            ConnectionAbortedError("Initialization failure from server:\nTraceback\nRuntimeError: Proxy failed\n"),
            "could not start a server for this driver in 3 attempts. .* Ray reports: RuntimeError: Proxy failed$",
        ),
        (ConnectionError("no cluster"), "no Ray cluster was found .no cluster.. Start one with `ray start --head`"),
        (ValueError("first\nsecond"), "cluster 'auto': first$"),
    ):
        monkeypatch.setattr(real, "init", _raising(error))
        with pytest.raises(ClusterError, match=sentence):
            connection._connect(real, "auto")


def test_a_server_for_the_driver_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's proxy forks it among threads of gRPC, which fails now and then."""
    answers = [ConnectionAbortedError("Initialization failure from server:\n..."), None]

    def init(**settings: Any) -> None:
        if error := answers.pop(0):
            raise error

    monkeypatch.setattr(real, "init", init)
    connection._connect(real, "auto")
    assert not answers


def _raising(error: Exception) -> Callable[..., None]:
    def raise_it(*given: Any, **settings: Any) -> None:
        raise error

    return raise_it


# ------------------------------------------------------------------------------------------------- what must be equal


def test_fingerprints_differ_field_by_field() -> None:
    mine = Fingerprint("abc", "3.11.7", "2.13.0", "2.4.6", "AVX2", "avx2")
    assert mine.differences(mine) == []
    assert mine.differences(replace(mine, archipel="def", native="absent")) == [
        "archipel abc here, def there",
        "native avx2 here, absent there",
    ]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    ("things", "modules"),
    [
        ([nn.Linear(1, 1), nn.functional.cross_entropy, None, 3], []),  # torch is compared by its version
        ([loss, Failing], []),  # the user's own code is sent along
        ([pytest.MonkeyPatch(), pytest.raises], ["_pytest.monkeypatch", "_pytest.raises"]),
    ],
)
def test_code_that_is_installed_is_compared_file_by_file(things: Sequence[object], modules: list[str]) -> None:
    found = installed_code(things)
    assert sorted(found) == modules
    assert code_differences(found) == []
    for name in found:
        assert code_differences({name: "other"}) == [f"{name} other here, {found[name]} there"]


def test_packages_are_installed_wherever_they_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`pip install --user` and path files put them outside the environment; they are not sent by value."""
    for name in ("site-packages", "dist-packages", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of_{name[:4]}.py").write_text("class Thing: pass")
        monkeypatch.syspath_prepend(tmp_path / name)
    users, installed_ones = importlib.import_module("of_mine"), map(importlib.import_module, ("of_site", "of_dist"))
    assert is_users(users)
    assert not any(map(is_users, installed_ones))
    monkeypatch.setitem(sys.modules, "another_name_of_it", users)
    with opening._by_value(real):
        assert "of_mine" in real.cloudpickle.list_registry_pickle_by_value()
    assert "of_mine" not in real.cloudpickle.list_registry_pickle_by_value()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "an allocation failed. This machine has"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            "Tried to allocate 2.00 GiB. This machine has",
        ),
        (RuntimeError("shapes do not match"), ""),
    ],
)
def test_errors_of_memory_are_told_from_others(error: Exception, told: str) -> None:
    assert (told in out_of_memory(error)) is True
    assert bool(out_of_memory(error)) is bool(told)
