"""The files of each known data set, to tell which are on this machine without reading any."""

from __future__ import annotations

from collections.abc import Mapping

from archipel.data.fetch import DataFiles
from archipel.data.sources.cifar import CIFAR10, CIFAR100
from archipel.data.sources.covertype import WANTED as COVERTYPE
from archipel.data.sources.eicu import WANTED as EICU
from archipel.data.sources.emnist import CLASSES as EMNIST_SPLITS
from archipel.data.sources.emnist import wanted as emnist
from archipel.data.sources.femnist import WANTED as FEMNIST
from archipel.data.sources.gtsrb import WANTED as GTSRB
from archipel.data.sources.heart_disease import WANTED as HEART_DISEASE
from archipel.data.sources.iscx_vpn import wanted as iscx_vpn
from archipel.data.sources.mnist import FMNIST, MNIST
from archipel.data.sources.shakespeare import LEAF, PLAYS, TINY

DECIDES = {"emnist": "split", "iscx_vpn": "scenario", "shakespeare": "text"}
"""The argument that decides which files a source reads."""

FILES: Mapping[str, Mapping[str, DataFiles]] = {
    "cifar10": {"": CIFAR10.wanted()},
    "cifar100": {"": CIFAR100.wanted()},
    "covertype": {"": COVERTYPE},
    "digits": {},  # part of scikit-learn
    "eicu": {"": EICU},
    "emnist": {split: emnist(split) for split in EMNIST_SPLITS},
    "femnist": {"": FEMNIST},
    "fmnist": {"": FMNIST},
    "gtsrb": {"": GTSRB},
    "heart_disease": {"": HEART_DISEASE},
    "iscx_vpn": {scenario: iscx_vpn(scenario) for scenario in ("A2", "A1")},
    "mnist": {"": MNIST},
    "shakespeare": {"tiny": TINY, "plays": PLAYS, "leaf": LEAF},
}
"""By source, and by the value of the deciding argument; its default comes first."""


def wanted(source: str, options: Mapping[str, object]) -> DataFiles | None:
    """Return the files that a source reads with these arguments; None if it needs none."""
    variants = FILES[source]
    chosen = options.get(DECIDES.get(source, ""), next(iter(variants), ""))
    return variants.get(str(chosen))
