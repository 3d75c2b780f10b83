"""The parts that algorithms are made of."""

from archipel.parts.ending import Ending
from archipel.parts.evaluation import Evaluation
from archipel.parts.merge import Community, Mean, Merge, Mix, Proposal
from archipel.parts.part import Part
from archipel.parts.planning import (
    Decay,
    DivideAndConquer,
    PeriodicLayers,
    Planner,
    PrivateLayers,
    Proximal,
    ValidationCycle,
)
from archipel.parts.protocol import Protocol, Relay, Rounds, Stream
from archipel.parts.recall import MedianStaleness, Recall
from archipel.parts.selection import ByImportance, Everyone, Selection, Uniform
from archipel.parts.server import Adagrad, Adam, Momentum, Replace, Server, Yogi
from archipel.parts.weighting import (
    ByConsistency,
    ByDistributedValidation,
    ByExamples,
    ByFreshness,
    ByGradientNorm,
    Equally,
    Product,
    Weighting,
)

__all__ = [
    "Adagrad",
    "Adam",
    "ByConsistency",
    "ByDistributedValidation",
    "ByExamples",
    "ByFreshness",
    "ByGradientNorm",
    "ByImportance",
    "Community",
    "Decay",
    "DivideAndConquer",
    "Ending",
    "Equally",
    "Evaluation",
    "Everyone",
    "Mean",
    "MedianStaleness",
    "Merge",
    "Mix",
    "Momentum",
    "Part",
    "PeriodicLayers",
    "Planner",
    "PrivateLayers",
    "Product",
    "Proposal",
    "Protocol",
    "Proximal",
    "Recall",
    "Relay",
    "Replace",
    "Rounds",
    "Selection",
    "Server",
    "Stream",
    "Uniform",
    "ValidationCycle",
    "Weighting",
    "Yogi",
]
