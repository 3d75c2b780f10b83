"""Known data sets, one function each: find or download the files, and decode them into one tensor."""

from archipel.data.sources.cifar import cifar10, cifar100
from archipel.data.sources.covertype import covertype
from archipel.data.sources.digits import digits
from archipel.data.sources.eicu import eicu
from archipel.data.sources.emnist import emnist
from archipel.data.sources.femnist import femnist
from archipel.data.sources.gtsrb import gtsrb
from archipel.data.sources.heart_disease import heart_disease
from archipel.data.sources.iscx_vpn import iscx_vpn
from archipel.data.sources.mnist import fmnist, mnist
from archipel.data.sources.shakespeare import shakespeare

__all__ = [
    "cifar10",
    "cifar100",
    "covertype",
    "digits",
    "eicu",
    "emnist",
    "femnist",
    "fmnist",
    "gtsrb",
    "heart_disease",
    "iscx_vpn",
    "mnist",
    "shakespeare",
]
