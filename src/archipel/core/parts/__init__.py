"""The parts that algorithms are made of."""

from archipel.core.parts.all_data import AllData
from archipel.core.parts.central_noise import CentralNoise
from archipel.core.parts.changes import FairChange, MeanChange, NormalisedChange
from archipel.core.parts.class_mean import MeanByClass
from archipel.core.parts.clipping import NormClipped
from archipel.core.parts.descent import Descent, MetaDescent, MixedDescent, MoreauDescent
from archipel.core.parts.ending import Ending
from archipel.core.parts.evaluation import Evaluation
from archipel.core.parts.frozen import FrozenLayers
from archipel.core.parts.local_noise import LocalNoise
from archipel.core.parts.lora_ranks import LoraRanks, StackedLora, ZeroPadded
from archipel.core.parts.matched import LayerByLayer, MatchedMean
from archipel.core.parts.merge import Community, Mean, Merge, Mix, Proposal
from archipel.core.parts.objective import LogitCalibration, ModelContrast, NotTrueDistillation, Objective
from archipel.core.parts.part import Part
from archipel.core.parts.personal import FineTuned, KeptModel, MixedHead, MixedModel, Personal, PersonalPhase
from archipel.core.parts.phases import HeadFirst
from archipel.core.parts.planning import (
    Decay,
    DivideAndConquer,
    PeriodicLayers,
    Planner,
    PrivateLayers,
    Proximal,
    ValidationCycle,
)
from archipel.core.parts.plateau import Plateau
from archipel.core.parts.protocol import Protocol, Relay, Rounds, Stream
from archipel.core.parts.recall import MedianStaleness, Recall
from archipel.core.parts.robust import GeometricMedian, Krum, Median, TrimmedMean
from archipel.core.parts.secure_sum import SecureSum
from archipel.core.parts.selection import ByImportance, Everyone, LatinSquare, Poisson, Selection, Uniform
from archipel.core.parts.server import Adagrad, Adam, Momentum, Replace, Server, Yogi
from archipel.core.parts.shifts import ControlVariates, DynamicMean, DynamicRegulariser, LearnerMomentum
from archipel.core.parts.utility_selection import ByLoss, ByTier, ByUtility
from archipel.core.parts.weighting import (
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
    "AllData",
    "ByConsistency",
    "ByDistributedValidation",
    "ByExamples",
    "ByFreshness",
    "ByGradientNorm",
    "ByImportance",
    "ByLoss",
    "ByTier",
    "ByUtility",
    "CentralNoise",
    "Community",
    "ControlVariates",
    "Decay",
    "Descent",
    "DivideAndConquer",
    "DynamicMean",
    "DynamicRegulariser",
    "Ending",
    "Equally",
    "Evaluation",
    "Everyone",
    "FairChange",
    "FineTuned",
    "FrozenLayers",
    "GeometricMedian",
    "HeadFirst",
    "KeptModel",
    "Krum",
    "LatinSquare",
    "LayerByLayer",
    "LearnerMomentum",
    "LocalNoise",
    "LogitCalibration",
    "LoraRanks",
    "MatchedMean",
    "Mean",
    "MeanByClass",
    "MeanChange",
    "Median",
    "MedianStaleness",
    "Merge",
    "MetaDescent",
    "Mix",
    "MixedDescent",
    "MixedHead",
    "MixedModel",
    "ModelContrast",
    "Momentum",
    "MoreauDescent",
    "NormClipped",
    "NormalisedChange",
    "NotTrueDistillation",
    "Objective",
    "Part",
    "PeriodicLayers",
    "Personal",
    "PersonalPhase",
    "Planner",
    "Plateau",
    "Poisson",
    "PrivateLayers",
    "Product",
    "Proposal",
    "Protocol",
    "Proximal",
    "Recall",
    "Relay",
    "Replace",
    "Rounds",
    "SecureSum",
    "Selection",
    "Server",
    "StackedLora",
    "Stream",
    "TrimmedMean",
    "Uniform",
    "ValidationCycle",
    "Weighting",
    "Yogi",
    "ZeroPadded",
]
