"""Logistic regression and fully connected networks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from archipel.core.checks import at_least


def logistic_regression(features: int, classes: int) -> nn.Module:
    """Build logistic regression with one logit per class, which RADFed uses for mortality (eICU, section IV-B).

    features: numbers in an example; classes: number of classes.
    """
    at_least(1, "logistic_regression", features=features)
    at_least(2, "logistic_regression", classes=classes)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), head=nn.Linear(features, classes)))


def mlp(features: int, classes: int, hidden: Sequence[int] = (64, 64)) -> nn.Module:
    """Build a fully connected network, by default the 64-64 one of RADFed's Covertype (section IV-B).

    features: numbers in an example; classes: number of classes; hidden: widths of the hidden layers.

    The input is flattened, so images with `features` pixels are accepted too.
    """
    at_least(1, "mlp", features=features)
    at_least(2, "mlp", classes=classes)
    if not hidden:
        raise ValueError(
            "mlp: hidden should have at least one width, got none. "
            "A network without hidden layers is logistic_regression(features, classes)."
        )
    if min(hidden) < 1:
        raise ValueError(f"mlp: hidden widths should be at least 1, got {tuple(hidden)}.")
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    width = features
    for number, wider in enumerate(hidden, start=1):
        layers[f"fc{number}"] = nn.Linear(width, wider)
        layers[f"relu{number}"] = nn.ReLU()
        width = wider
    layers["head"] = nn.Linear(width, classes)
    return nn.Sequential(layers)


def mnist_mlp() -> nn.Module:
    """Build the network of RADFed's MNIST (section IV-B), which is McMahan's 200-200 one of 199,210 parameters."""
    return mlp(28 * 28, 10, hidden=(200, 200))


def small_mlp(features: int = 64, classes: int = 10) -> nn.Module:
    """Build a network with one hidden layer of 32, from no paper, for the 8 x 8 digits.

    features: numbers in an example; classes: number of classes.
    """
    at_least(1, "small_mlp", features=features)
    at_least(2, "small_mlp", classes=classes)
    return mlp(features, classes, hidden=(32,))
