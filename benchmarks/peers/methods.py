"""What is compared: a method, the peers that have it, and the settings that both sides are given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CORRECTED = "fluke, corrected"
"""fluke's methods with the changes of fluke_corrected.py."""
CORRECTED_FEDLAB = "fedlab, corrected"
"""FedLab's q-FedAvg with the loss of the received model."""


@dataclass(frozen=True)
class Method:
    """Settings by the names of Archipel's constructor; a peer's side translates them."""

    name: str
    peers: tuple[str, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    equally: bool = False
    """Whether learners count the same instead of by their examples."""


METHODS = (
    Method("fedavg", ("fluke", "fedlab"), {}),
    Method("fedprox", ("fluke", "fedlab"), {"mu": 0.5}),
    Method("fedavgm", ("fluke", CORRECTED), {"beta": 0.6}),
    Method("fednova", ("fluke", CORRECTED), {"momentum": 0.5}),
    Method("qfedavg", ("fedlab", CORRECTED_FEDLAB), {"q": 1.0}, equally=True),
    Method("scaffold", ("fluke", "fedlab"), {}, equally=True),
    Method("feddyn", ("fluke", CORRECTED, "fedlab"), {"alpha": 0.1}, equally=True),
    Method("fedadam", ("fluke", CORRECTED), {"eta": 0.03, "tau": 1e-2}),
    Method("fedyogi", ("fluke", CORRECTED), {"eta": 0.03, "tau": 1e-2}),
    Method("fedadagrad", ("fluke", CORRECTED), {"eta": 0.1, "tau": 1e-2}),
    Method("fedper", ("fluke",), {}),
    Method("fedrep", ("fluke",), {"head_epochs": 1}),
    Method("fedbabu", ("fluke",), {"tuning_epochs": 0}),
    Method("lg_fedavg", ("fluke",), {}),
    Method("ditto", ("fluke",), {"weight": 0.5, "personal_epochs": 1}, equally=True),
    Method("apfl", ("fluke", CORRECTED), {"share": 0.5}, equally=True),
    Method(
        "pfedme", ("fluke", CORRECTED), {"weight": 5.0, "inner_steps": 3, "inner_rate": 0.1, "beta": 1.0}, equally=True
    ),
    Method("per_fedavg", ("fluke", CORRECTED), {"alpha": 0.05}, equally=True),
    Method("moon", ("fluke",), {"mu": 1.0, "tau": 0.5}),
    Method("fedlc", ("fluke",), {"tau": 0.5}),
    Method("fedbn", ("fluke",), {}),
    Method("fedasync", ("flgo",), {"alpha": 0.6, "a": 0.5, "rho": 0.005}),
    Method("fedbuff", ("flgo",), {"buffer": 3, "a": 0.5, "eta": 1.0}, equally=True),
    Method("power_of_choice", ("flgo",), {"candidates": 10, "fraction": 0.5}, equally=True),
    Method("tifl", ("flgo",), {"credits": 10, "fraction": 0.5}),
)
