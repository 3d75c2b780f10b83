"""Data on islands: split a source over learners, each of which is an index array into its examples."""

from archipel.data.augment import Augment
from archipel.data.features import bucketed
from archipel.data.heatmap import heat_map
from archipel.data.in_memory import from_arrays, from_dataset
from archipel.data.island import Island
from archipel.data.islands import Fold, Islands
from archipel.data.own import from_csv, from_hf, from_npz_folder, from_parquet
from archipel.data.scores import SizeStatistics, c_score, class_distances, size_statistics
from archipel.data.source import Source, load_split
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
from archipel.data.splits import stratified_validation
from archipel.data.standardise import Moments, combine, moments
from archipel.data.texts import from_text_csv, from_texts
from archipel.data.tokenizers import ByteTokenizer

__all__ = [
    "Augment",
    "ByteTokenizer",
    "Fold",
    "Island",
    "Islands",
    "Moments",
    "SizeStatistics",
    "Source",
    "bucketed",
    "c_score",
    "cifar10",
    "cifar100",
    "class_distances",
    "combine",
    "covertype",
    "digits",
    "eicu",
    "emnist",
    "femnist",
    "fmnist",
    "from_arrays",
    "from_csv",
    "from_dataset",
    "from_hf",
    "from_npz_folder",
    "from_parquet",
    "from_text_csv",
    "from_texts",
    "gtsrb",
    "heart_disease",
    "heat_map",
    "iscx_vpn",
    "load_split",
    "mnist",
    "moments",
    "shakespeare",
    "size_statistics",
    "stratified_validation",
]
