"""Data on islands: take a source, split it over learners, and every learner is an index array."""

from archipel.data.folds import Fold
from archipel.data.islands import Island, Islands
from archipel.data.source import Source, from_arrays
from archipel.data.sources import (
    cifar10,
    cifar100,
    covertype,
    digits,
    eicu,
    emnist,
    femnist,
    fmnist,
    gtsrb,
    heart_disease,
    iscx_vpn,
    mnist,
    shakespeare,
)
from archipel.data.split_file import load_split
from archipel.data.splits import stratified_validation
from archipel.data.standardise import Moments, combine, moments

__all__ = [
    "Fold",
    "Island",
    "Islands",
    "Moments",
    "Source",
    "cifar10",
    "cifar100",
    "combine",
    "covertype",
    "digits",
    "eicu",
    "emnist",
    "femnist",
    "fmnist",
    "from_arrays",
    "gtsrb",
    "heart_disease",
    "iscx_vpn",
    "load_split",
    "mnist",
    "moments",
    "shakespeare",
    "stratified_validation",
]
