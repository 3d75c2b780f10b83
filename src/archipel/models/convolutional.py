"""Convolutional networks: the 2-CNNs of all papers, VGG9, the 1D-CNN, and small versions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from archipel.core.checks import at_least, between, more_than


def cifar10_2cnn(classes: int = 10, size: int = 32, width: float = 1.0) -> nn.Module:
    """Build the CIFAR-10 2-CNN of the TensorFlow tutorial that Metis trains (section VI, footnote 2).

    classes: number of classes; size: side of the images, a multiple of 4; the tutorial crops them to 24.
    width: of its hidden layers relative to the tutorial's, for scales that cannot afford them.
    """
    at_least(2, "cifar10_2cnn", classes=classes)
    more_than(0, "cifar10_2cnn", width=width)
    channels, wide, narrow = (max(1, round(width * number)) for number in (64, 384, 192))
    if size < 4 or size % 4:
        raise ValueError(
            f"cifar10_2cnn: size should be a multiple of 4 (two pools halve it), got {size}. "
            "CIFAR-10 has 32, the tutorial's crop 24."
        )
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(3, channels, 5, padding=2),
            relu1=nn.ReLU(),
            # on an even side both TensorFlow's "SAME" and ceil_mode pad the far edge only
            pool1=nn.MaxPool2d(3, stride=2, ceil_mode=True),
            norm1=_tutorial_norm(),
            conv2=nn.Conv2d(channels, channels, 5, padding=2),
            relu2=nn.ReLU(),
            norm2=_tutorial_norm(),
            pool2=nn.MaxPool2d(3, stride=2, ceil_mode=True),
            flatten=nn.Flatten(),
            fc1=nn.Linear(channels * (size // 4) ** 2, wide),
            relu3=nn.ReLU(),
            fc2=nn.Linear(wide, narrow),
            relu4=nn.ReLU(),
            head=nn.Linear(narrow, classes),
        )
    )


def _tutorial_norm() -> nn.Module:
    # tf.nn.lrn(4, bias=1, alpha=0.001 / 9, beta=0.75): TensorFlow takes a radius and sums over the window, PyTorch
    # takes the size of the window and its mean
    return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)


def femnist_cnn(classes: int = 62, hidden: int = 2048) -> nn.Module:
    """Build LEAF's 2-CNN for 28 x 28 grey images, which Metis trains on ExtendedMNIST (section VI, footnote 2).

    classes: number of classes; hidden: width of the fully connected layer.

    With `hidden=512` it is McMahan's CNN.
    """
    at_least(2, "femnist_cnn", classes=classes)
    at_least(1, "femnist_cnn", hidden=hidden)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 32, 5, padding=2),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * 7 * 7, hidden),
            relu3=nn.ReLU(),
            head=nn.Linear(hidden, classes),
        )
    )


def hdafl_cnn(classes: int = 62) -> nn.Module:
    """Build HDAFL's two convolutional and two fully connected layers (section 5.1), with widths from Table 4's costs.

    classes: number of classes.

    The paper gives no widths. Its costs are 0.06248 MB for a learner's shared layers in a round, which is 16,379
    numbers of four bytes, and 0.0663 MB with the head, which leaves about 16 numbers for each of 62 classes. These
    widths have 16,379 numbers before the head and 992 in it; no linear head has FedAvg's costs to the last digit
    (docs/decisions/0056).
    """
    at_least(2, "hdafl_cnn", classes=classes)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 27, 3),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(27, 26, 3),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(26 * 5 * 5, 15),
            relu3=nn.ReLU(),
            head=nn.Linear(15, classes),
        )
    )


def fed2a_cnn_fmnist() -> nn.Module:
    """Build Fed2A's CNN for FMNIST (section 4.1): Table 3's 206,592 shallow and 3,413,770 deep parameters."""
    return _fed2a_cnn(in_channels=1, size=28, channels=(64, 128), hidden=(256, 512), classes=10)


def fed2a_cnn_cifar10() -> nn.Module:
    """Build Fed2A's CNN for CIFAR-10 (section 4.1): Table 3's 829,184 shallow and 9,574,154 deep parameters."""
    return _fed2a_cnn(in_channels=3, size=32, channels=(128, 256), hidden=(256, 512), classes=10)


def fed2a_cnn_germants() -> nn.Module:
    """Build Fed2A's CNN for GermanTS (section 4.1): Table 3's 209,792 shallow and 2,403,499 deep parameters.

    The text halves the convolutions' channels and keeps the rest, which gives 53,696 and 2,513,195. Table 3 is matched
    exactly if the channels stay and the two fully connected layers are halved. This follows the table, because the
    paper's traffic is computed from it.
    """
    return _fed2a_cnn(in_channels=3, size=32, channels=(64, 128), hidden=(128, 256), classes=43)


def _fed2a_cnn(
    in_channels: int, size: int, channels: tuple[int, int], hidden: tuple[int, int], classes: int
) -> nn.Module:
    # the paper gives neither kernels nor padding: 5 x 5 without padding matches Table 3
    pooled = (size - 4 - 4) // 2
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(in_channels, channels[0], 5),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(channels[0], channels[1], 5),
            relu2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(channels[1] * pooled**2, hidden[0]),
            relu3=nn.ReLU(),
            fc2=nn.Linear(hidden[0], hidden[1]),
            relu4=nn.ReLU(),
            head=nn.Linear(hidden[1], classes),
        )
    )


def vgg9(classes: int = 10, in_channels: int = 3, dropout: float = 0.0, width: float = 1.0) -> nn.Module:
    """Build the VGG9 for 32 x 32 images of Divide-and-Conquer (section 4.1), which is FedMA's.

    classes: number of classes; in_channels: channels of the images, 3 for colours.
    dropout: probability of dropout before `fc1` and before `head`; FedMA has 0.1, and D&C trains "as in" FedMA.
    width: of its hidden layers relative to FedMA's, for scales that cannot afford them.

    Whole channels are dropped with half the probability after the second pool. The default is 0, because a network that
    draws is trained by plain execution only.
    """
    at_least(2, "vgg9", classes=classes)
    at_least(1, "vgg9", in_channels=in_channels)
    between("vgg9", "dropout", dropout, 0, 1)
    more_than(0, "vgg9", width=width)
    *channels, hidden = (max(1, round(width * number)) for number in (32, 64, 128, 128, 256, 256, 512))
    return _vgg(classes, in_channels, channels, hidden, dropout)


def small_vgg(classes: int = 10, in_channels: int = 3, dropout: float = 0.0) -> nn.Module:
    """Build VGG9 with a quarter of its widths: the same nine layers, a sixteenth of the parameters.

    classes: number of classes; in_channels: channels of the images, 3 for colours.
    dropout: as `vgg9` has it.
    """
    at_least(2, "small_vgg", classes=classes)
    at_least(1, "small_vgg", in_channels=in_channels)
    between("small_vgg", "dropout", dropout, 0, 1)
    return vgg9(classes, in_channels, dropout, width=0.25)


def _vgg(classes: int, in_channels: int, channels: Sequence[int], hidden: int, dropout: float) -> nn.Module:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = in_channels
    for number, wider in enumerate(channels, start=1):
        layers[f"conv{number}"] = nn.Conv2d(width, wider, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU()
        width = wider
        if number % 2 == 0:
            layers[f"pool{number // 2}"] = nn.MaxPool2d(2)
        if number == 4 and dropout:
            layers["dropout1"] = nn.Dropout2d(dropout / 2)
    layers["flatten"] = nn.Flatten()
    if dropout:
        layers["dropout2"] = nn.Dropout(dropout)
    layers["fc1"] = nn.Linear(width * 4 * 4, hidden)
    layers["relu7"] = nn.ReLU()
    layers["fc2"] = nn.Linear(hidden, hidden)
    layers["relu8"] = nn.ReLU()
    if dropout:
        layers["dropout3"] = nn.Dropout(dropout)
    layers["head"] = nn.Linear(hidden, classes)
    return nn.Sequential(layers)


def packet_cnn(classes: int, length: int = 10) -> nn.Module:
    """Build a 1D-CNN over the sizes of a flow's first ten packets, as HDAFL classifies traffic (section 3.2).

    classes: number of classes; length: packets of a flow.

    The input is [batch, length] or [batch, 1, length]. The paper gives no widths. With these, and the paper's 35
    classes, the layers before the head hold 0.879 of the parameters, as Table 5's gains imply (28.9 / 32.9).
    """
    at_least(2, "packet_cnn", classes=classes)
    at_least(6, "packet_cnn", "two convolutions and a pool shorten it", length=length)
    return nn.Sequential(
        OrderedDict(
            flow=nn.Flatten(),
            channel=nn.Unflatten(1, (1, length)),
            conv1=nn.Conv1d(1, 32, 3),
            relu1=nn.ReLU(),
            conv2=nn.Conv1d(32, 64, 3),
            relu2=nn.ReLU(),
            pool=nn.MaxPool1d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * ((length - 4) // 2), 100),
            relu3=nn.ReLU(),
            head=nn.Linear(100, classes),
        )
    )


def small_cnn(channels: int = 1, size: int = 28, classes: int = 10) -> nn.Module:
    """Build two convolutions and a head, from no paper, for images of any side: two cores train it in seconds.

    channels: channels of the images, 1 for grey; size: side of the images; classes: number of classes.
    """
    at_least(1, "small_cnn", channels=channels)
    at_least(4, "small_cnn", "two pools halve it", size=size)
    at_least(2, "small_cnn", classes=classes)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 8, 3, padding=1),
            relu1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(8, 16, 3, padding=1),
            relu2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            head=nn.Linear(16 * (size // 4) ** 2, classes),
        )
    )
