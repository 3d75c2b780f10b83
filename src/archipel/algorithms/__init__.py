"""Constructors of every method of the five papers and of the methods that they compare with."""

from archipel.algorithms.apfl import apfl
from archipel.algorithms.ditto import ditto
from archipel.algorithms.divide_and_conquer import divide_and_conquer
from archipel.algorithms.fed2a import fed2a, plu, rce, tvw
from archipel.algorithms.fedasync import fedasync
from archipel.algorithms.fedavg import fedavg
from archipel.algorithms.fedavgm import fedavgm
from archipel.algorithms.fedbabu import fedbabu
from archipel.algorithms.fedbn import fedbn
from archipel.algorithms.fedbuff import fedbuff
from archipel.algorithms.fedcm import fedcm
from archipel.algorithms.feddyn import feddyn
from archipel.algorithms.fedlc import fedlc
from archipel.algorithms.fedma import fedma
from archipel.algorithms.fednova import fednova
from archipel.algorithms.fedntd import fedntd
from archipel.algorithms.fedopt import fedadagrad, fedadam, fedyogi
from archipel.algorithms.fedper import fedper
from archipel.algorithms.fedprox import fedprox
from archipel.algorithms.fedrep import fedrep
from archipel.algorithms.hdafl import hdafl, lg_fedavg
from archipel.algorithms.metis import async_dvw, async_fedavg, sync_dvw
from archipel.algorithms.moon import moon
from archipel.algorithms.oort import oort
from archipel.algorithms.per_fedavg import per_fedavg
from archipel.algorithms.pfedme import pfedme
from archipel.algorithms.power_of_choice import power_of_choice
from archipel.algorithms.qfedavg import qfedavg
from archipel.algorithms.radfed import radfed, radfed_a, radfed_i, radfed_m, radfed_p
from archipel.algorithms.scaffold import scaffold
from archipel.algorithms.tifl import tifl
from archipel.algorithms.yardsticks import centralised, local_only

__all__ = [
    "apfl",
    "async_dvw",
    "async_fedavg",
    "centralised",
    "ditto",
    "divide_and_conquer",
    "fed2a",
    "fedadagrad",
    "fedadam",
    "fedasync",
    "fedavg",
    "fedavgm",
    "fedbabu",
    "fedbn",
    "fedbuff",
    "fedcm",
    "feddyn",
    "fedlc",
    "fedma",
    "fednova",
    "fedntd",
    "fedper",
    "fedprox",
    "fedrep",
    "fedyogi",
    "hdafl",
    "lg_fedavg",
    "local_only",
    "moon",
    "oort",
    "per_fedavg",
    "pfedme",
    "plu",
    "power_of_choice",
    "qfedavg",
    "radfed",
    "radfed_a",
    "radfed_i",
    "radfed_m",
    "radfed_p",
    "rce",
    "scaffold",
    "sync_dvw",
    "tifl",
    "tvw",
]
