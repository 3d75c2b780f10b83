"""fluke's side: `fluke_side.py PROBLEM.npz` reads runs as lines of JSON and answers each with its curve."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.nets import EncoderHeadNet
from fluke.utils import FederationObserver
from fluke.utils.model import merge_models
from torch import nn

from benchmarks.peers.fluke_corrected import CORRECTED
from benchmarks.peers.problem import BATCH, HIDDEN, LEARNERS, RATE, ROUNDS, Problem, answer

PERSONAL = ("fedper", "fedbabu", "lg_fedavg", "ditto", "apfl", "fedrep")
"""Methods whose clients are given a model of their own."""
CLASSES = {
    "fedavg": "fedavg.FedAVG",
    "fedprox": "fedprox.FedProx",
    "fedavgm": "fedavgm.FedAVGM",
    "fednova": "fednova.FedNova",
    "scaffold": "scaffold.SCAFFOLD",
    "feddyn": "feddyn.FedDyn",
    "fedadam": "fedopt.FedOpt",
    "fedyogi": "fedopt.FedOpt",
    "fedadagrad": "fedopt.FedOpt",
    "fedper": "fedper.FedPer",
    "fedrep": "fedrep.FedRep",
    "fedbabu": "fedbabu.FedBABU",
    "lg_fedavg": "lg_fedavg.LGFedAVG",
    "ditto": "ditto.Ditto",
    "apfl": "apfl.APFL",
    "pfedme": "pfedme.PFedMe",
    "per_fedavg": "per_fedavg.PerFedAVG",
    "moon": "moon.MOON",
    "fedlc": "fedlc.FedLC",
    "fedbn": "fedbn.FedBN",
}


class Network(EncoderHeadNet):
    """The network in fluke's two parts, with normalisation before the activation if asked for."""

    def __init__(self, problem: Problem, normalised: bool = False) -> None:
        first, head = nn.Linear(problem.x.shape[1], HIDDEN), nn.Linear(HIDDEN, int(problem.y.max()) + 1)
        norms = [nn.BatchNorm1d(HIDDEN)] if normalised else []
        super().__init__(nn.Sequential(first, *norms, nn.ReLU()), head)
        known = [*first.parameters(), *head.parameters()]
        with torch.no_grad():
            for parameter, array in zip(known, problem.initial.values(), strict=True):
                parameter.copy_(torch.from_numpy(array))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x))


def client_settings(method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return what fluke's clients are given beside the optimiser."""
    own: dict[str, dict[str, Any]] = {
        "fedprox": {"mu": given.get("mu")},
        "feddyn": {"alpha": given.get("alpha"), "clipping": 0},
        "fedrep": {"tau": 1},
        "fedbabu": {"mode": "full", "fine_tuning_epochs": 0},
        "ditto": {"tau": given.get("personal_epochs"), "lam": given.get("weight")},
        "apfl": {"lam": given.get("share")},
        "pfedme": {"k": given.get("inner_steps")},
        "per_fedavg": {"mode": "FO", "beta": RATE},
        "moon": {"mu": given.get("mu"), "tau": given.get("tau")},
        "fedlc": {"tau": given.get("tau")},
    }
    return own.get(method, {})


def server_settings(method: str, given: dict[str, Any], equally: bool) -> dict[str, Any]:
    """Return what fluke's server is given."""
    adaptive = {"mode": method[3:], "lr": given.get("eta"), "tau": given.get("tau"), "beta2": 0.99}
    own: dict[str, dict[str, Any]] = {
        "fedavgm": {"momentum": given.get("beta")},
        "apfl": {"tau": 1},
        "pfedme": {"beta": given.get("beta")},
        **dict.fromkeys(("fedadam", "fedyogi", "fedadagrad"), adaptive),
    }
    return {"weighted": not equally, **own.get(method, {})}


def optimiser(method: str, given: dict[str, Any]) -> DDict:
    """Return the local optimiser."""
    if method == "pfedme":
        return DDict(lr=given["inner_rate"], lamda=given["weight"], mu=0.0)
    if method == "per_fedavg":
        return DDict(lr=given["alpha"])
    if method == "ditto":
        return DDict(name="SGD", lr=RATE)
    return DDict(name="SGD", lr=RATE, momentum=given.get("momentum", 0.0))


def used(method: str, corrected: bool) -> Callable[[Any, Any], nn.Module]:
    """Return what a learner uses for itself after a round, as the method has it."""

    def joined(client: Any, server: Any) -> nn.Module:
        model = deepcopy(client.model)
        shared = model.encoder if method == "fedbabu" else model.get_global()
        shared.load_state_dict(server.model.state_dict())
        return model

    def with_own_norms(client: Any, server: Any) -> nn.Module:
        model = deepcopy(server.model)
        model.encoder[1].load_state_dict(client.model.encoder[1].state_dict())
        return model

    if method == "fedbn":
        return with_own_norms
    if method in ("fedper", "fedrep", "fedbabu", "lg_fedavg"):
        return joined
    if method == "apfl" and corrected:
        return lambda client, server: merge_models(server.model, client.personalized_model, client.hyper_params.lam)
    if method in ("ditto", "apfl"):
        return lambda client, _: client.personalized_model
    if method == "pfedme":
        return lambda client, _: client.model
    if method == "feddyn" and corrected:
        return lambda _, server: server.cld_mdl  # the paper's theta; fluke scores the mean
    return lambda _, server: server.model


class Curve(FederationObserver):
    """Accuracy on all own test parts together, round by round."""

    def __init__(self, problem: Problem, method: str, corrected: bool) -> None:
        self.problem, self.use = problem, used(method, corrected)
        self.accuracies: list[float] = []
        self.federation: Any = None

    def end_round(self, round: int) -> None:
        right = 0
        for client, own in zip(self.federation.clients, self.problem.test, strict=True):
            model = self.use(client, self.federation.server).eval()
            with torch.no_grad():
                said = model(torch.from_numpy(self.problem.x[own])).argmax(1)
            right += int((said.numpy() == self.problem.y[own]).sum())
        self.accuracies.append(right / sum(map(len, self.problem.test)))


def run(problem: Problem, method: str, given: dict[str, Any], equally: bool, seed: int, corrected: bool) -> list[float]:
    """Run a method with a seed, as fluke has it or corrected."""
    FlukeENV().set_seed(seed)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    tensors = [(torch.from_numpy(problem.x[own]), torch.from_numpy(problem.y[own])) for own in problem.train]
    loaders = [FastDataLoader(x, y, num_labels=10, batch_size=BATCH, shuffle=True) for x, y in tensors]
    network = Network(problem, normalised=method == "fedbn")
    client = DDict(
        batch_size=BATCH,
        local_epochs=1,
        loss="CrossEntropyLoss",
        optimizer=optimiser(method, given),
        scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        # a new optimiser for every task where its momentum would be carried over
        persistency=not given.get("momentum"),
        **client_settings(method, given),
    )
    if method in PERSONAL:
        client.update(model=deepcopy(network))
    module, name = CLASSES[method].split(".")
    make = CORRECTED[method] if corrected else getattr(importlib.import_module(f"fluke.algorithms.{module}"), name)
    splitter = DataSplitter(DummyDataContainer(loaders, [None] * LEARNERS, None, 10))
    server = DDict(**server_settings(method, given, equally))
    parts = {"lg_fedavg": network.head, **dict.fromkeys(("fedper", "fedrep", "fedbabu"), network.encoder)}
    federation = make(LEARNERS, splitter, DDict(model=parts.get(method, network), client=client, server=server))
    if method == "fedrep":  # which gives all clients the same module
        for client_ in federation.clients:
            client_.model = deepcopy(client_.model)
    curve = Curve(problem, method, corrected)
    curve.federation = federation
    federation.set_callbacks(curve)
    federation.run(ROUNDS, 1)
    return curve.accuracies


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer(run)
