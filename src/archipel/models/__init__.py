"""The networks of the five papers, and small versions that two cores can train.

Every function returns a `torch.nn.Module` that returns logits, never probabilities. Children are registered in the
order in which they run, so a model's layers read from input to output, and the last one is always `head`. Initial
weights are PyTorch's defaults, drawn from the current seed. No activation works in place: a probe may keep the output
of a layer.
"""

from archipel.models.convolutional import (
    cifar10_2cnn,
    fed2a_cnn_cifar10,
    fed2a_cnn_fmnist,
    fed2a_cnn_germants,
    femnist_cnn,
    hdafl_cnn,
    packet_cnn,
    small_cnn,
    small_vgg,
    vgg9,
)
from archipel.models.linear import logistic_regression, mlp, mnist_mlp, small_mlp
from archipel.models.recurrent import shakespeare_lstm, small_lstm
from archipel.models.resnet import resnet50_cifar, resnet_cifar, small_resnet
from archipel.models.transformer import from_hf

__all__ = [
    "cifar10_2cnn",
    "fed2a_cnn_cifar10",
    "fed2a_cnn_fmnist",
    "fed2a_cnn_germants",
    "femnist_cnn",
    "from_hf",
    "hdafl_cnn",
    "logistic_regression",
    "mlp",
    "mnist_mlp",
    "packet_cnn",
    "resnet50_cifar",
    "resnet_cifar",
    "shakespeare_lstm",
    "small_cnn",
    "small_lstm",
    "small_mlp",
    "small_resnet",
    "small_vgg",
    "vgg9",
]
