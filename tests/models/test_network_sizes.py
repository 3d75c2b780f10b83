"""Parameter counts and settings by hand numbers: the papers' tables, and the code the papers point to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from archipel import models


def parameters(network: nn.Module, *prefixes: str) -> int:
    """How many numbers the children with these prefixes hold; all, if none is given."""
    return sum(p.numel() for name, p in network.named_parameters() if name.startswith(prefixes or ("",)))


def layers(network: nn.Module) -> list[str]:
    return [name for name, child in network.named_children() if parameters(child)]


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (models.logistic_regression(54, 2), 54 * 2 + 2),
        (models.mlp(54, 2), (54 * 64 + 64) + (64 * 64 + 64) + (64 * 2 + 2)),
        (models.mlp(54, 2, hidden=[5]), (54 * 5 + 5) + (5 * 2 + 2)),
        (models.mnist_mlp(), 199_210),  # as McMahan says
        (models.small_mlp(), (64 * 32 + 32) + (32 * 10 + 10)),
    ],
    ids=["logistic_regression", "mlp", "mlp with one layer", "mnist_mlp", "small_mlp"],
)
def test_fully_connected_networks(network: nn.Module, expected: int) -> None:
    assert parameters(network) == expected


@pytest.mark.parametrize(
    ("build", "shallow", "deep"),
    [
        (models.fed2a_cnn_fmnist, 206_592, 3_413_770),
        (models.fed2a_cnn_cifar10, 829_184, 9_574_154),
        (models.fed2a_cnn_germants, 209_792, 2_403_499),
    ],
    ids=["FMNIST", "CIFAR-10", "GermanTS"],
)
def test_fed2a_has_the_numbers_of_table_3(build: Callable[[], nn.Module], shallow: int, deep: int) -> None:
    network = build()
    assert layers(network) == ["conv1", "conv2", "fc1", "fc2", "head"]
    assert parameters(network, "conv") == shallow
    assert parameters(network, "fc", "head") == deep


def test_the_cifar10_2cnn_is_the_tutorials() -> None:
    assert parameters(models.cifar10_2cnn(size=24)) == sum(
        [5 * 5 * 3 * 64 + 64, 5 * 5 * 64 * 64 + 64, 6 * 6 * 64 * 384 + 384, 384 * 192 + 192, 192 * 10 + 10]
    )
    whole = models.cifar10_2cnn()
    assert parameters(whole, "fc1") == 8 * 8 * 64 * 384 + 384
    assert layers(whole) == ["conv1", "conv2", "fc1", "fc2", "head"]


def test_the_tutorials_normalisation_sums_nine_channels() -> None:
    norm = models.cifar10_2cnn().get_submodule("norm1")
    normed = norm(torch.full((1, 64, 1, 1), 3.0)).flatten()
    assert normed[32].item() == pytest.approx(3 / (1 + 0.001 / 9 * 9 * 9) ** 0.75)
    # the first channel has neighbours on one side only
    assert normed[0].item() == pytest.approx(3 / (1 + 0.001 / 9 * 5 * 9) ** 0.75)


def test_the_tutorials_pool_pads_the_far_edge_only() -> None:
    pool = models.cifar10_2cnn().get_submodule("pool1")
    rows = torch.tensor([1.0, 9, 2, 3]).view(1, 1, 4, 1).expand(1, 1, 4, 4)
    # rows 0 to 2, then rows 2 and 3; with the padding before row 0 it would be 9 and 9
    assert pool(rows)[0, 0, :, 0].tolist() == [9, 3]


def test_the_femnist_cnn_is_leafs_and_mcmahans() -> None:
    convolutions = (5 * 5 * 32 + 32) + (5 * 5 * 32 * 64 + 64)
    leaf = models.femnist_cnn()
    assert parameters(leaf) == convolutions + (7 * 7 * 64 * 2048 + 2048) + (2048 * 62 + 62)
    assert layers(leaf) == ["conv1", "conv2", "fc1", "head"]
    assert parameters(models.femnist_cnn(classes=10, hidden=512)) == 1_663_370  # as McMahan says


def test_vgg9_has_nine_layers_and_so_has_its_sibling() -> None:
    large, small = models.vgg9(), models.small_vgg()
    nine = ["conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2", "head"]
    assert layers(large) == layers(small) == nine
    widths = [3, 32, 64, 128, 128, 256, 256]
    convolutions = sum(9 * a * b + b for a, b in pairwise(widths))
    assert parameters(large, "conv") == convolutions
    assert parameters(large, "fc", "head") == (4096 * 512 + 512) + (512 * 512 + 512) + (512 * 10 + 10)
    assert parameters(small) == 219_706
    half = dict(models.vgg9(width=0.5).named_parameters())
    assert [len(half[f"{name}.bias"]) for name in nine] == [16, 32, 64, 64, 128, 128, 256, 256, 10]


def test_vgg9_drops_nothing_unless_asked_and_then_as_fedma_does() -> None:
    def dropped(network: nn.Module) -> list[tuple[type[nn.Module], float]]:
        kinds = (nn.Dropout, nn.Dropout2d)
        return [(type(module), module.p) for module in network.modules() if isinstance(module, kinds)]

    plain, fedma = models.vgg9(), models.vgg9(dropout=0.1)
    assert dropped(plain) == []
    assert dropped(fedma) == [(nn.Dropout2d, 0.05), (nn.Dropout, 0.1), (nn.Dropout, 0.1)]
    assert plain.state_dict().keys() == fedma.state_dict().keys()


def test_the_packet_cnn_shares_what_table_5_implies() -> None:
    network = models.packet_cnn(35)
    assert parameters(network) == (3 * 32 + 32) + (3 * 32 * 64 + 64) + (3 * 64 * 100 + 100) + (100 * 35 + 35)
    shared = 1 - parameters(network, "head") / parameters(network)
    # HDAFL's gain over FedAvg's: 28.9 / 32.9, 14.5 / 16.5 and 5.8 / 6.6, each rounded
    assert 28.85 / 32.95 < shared < 28.95 / 32.85


def test_the_small_cnn() -> None:
    assert parameters(models.small_cnn()) == (9 * 8 + 8) + (9 * 8 * 16 + 16) + (7 * 7 * 16 * 10 + 10)
    assert parameters(models.small_cnn(channels=3, size=8, classes=5)) == (9 * 3 * 8 + 8) + 1168 + (64 * 5 + 5)


def test_resnet50_has_eight_basic_blocks_a_stage() -> None:
    network = models.resnet50_cifar()
    # convolutions, projection, then two batch norms of two numbers a filter in each block
    stage1 = 16 * 9 * 16 * 16 + 16 * 16 + 16 * 2 * 16
    stage2 = (9 * 16 * 32 + 15 * 9 * 32 * 32) + 16 * 32 + (2 * 16 + 15 * 2 * 32)
    stage3 = (9 * 32 * 64 + 15 * 9 * 64 * 64) + 32 * 64 + (2 * 32 + 15 * 2 * 64)
    assert parameters(network, "stage1") == stage1
    assert parameters(network, "stage2") == stage2
    assert parameters(network, "stage3") == stage3
    assert parameters(network) == 9 * 3 * 16 + stage1 + stage2 + stage3 + 2 * 64 + (64 * 100 + 100) == 764_468
    assert [len(list(network.get_submodule(f"stage{n}").children())) for n in (1, 2, 3)] == [8, 8, 8]


def test_resnets_running_statistics_follow_as_in_tensorflow_and_faster_in_the_small_one() -> None:
    def momenta(network: nn.Module) -> set[float | None]:
        return {module.momentum for module in network.modules() if isinstance(module, nn.BatchNorm2d)}

    assert momenta(models.resnet_cifar(8, 10)) == {0.003}  # TensorFlow's decay of 0.997
    assert momenta(models.small_resnet()) == {0.1}


def test_a_resnet_block_keeps_its_raw_input_unless_it_projects() -> None:
    network = models.resnet_cifar(14, 10).eval()
    block1, block2 = network.get_submodule("stage1.block1"), network.get_submodule("stage1.block2")
    for block in (block1, block2):
        nn.init.zeros_(block.get_parameter("conv2.weight"))
    nn.init.zeros_(block1.get_parameter("shortcut.weight"))
    batch = torch.randn(2, 16, 4, 4)
    assert torch.equal(block1(batch), torch.zeros(2, 16, 4, 4))
    assert torch.equal(block2(batch), batch)


def test_the_lstms_have_three_layers() -> None:
    def lstm(inputs: int, hidden: int) -> int:
        return 4 * (inputs * hidden + hidden * hidden + 2 * hidden)

    large, small = models.shakespeare_lstm(), models.small_lstm()
    assert layers(large) == layers(small) == ["embedding", "lstm", "head"]
    assert parameters(large) == 80 * 8 + lstm(8, 256) + lstm(256, 256) + (256 * 80 + 80)
    assert parameters(models.shakespeare_lstm(layers=1)) == 80 * 8 + lstm(8, 256) + (256 * 80 + 80)
    assert parameters(small) == 80 * 8 + lstm(8, 64) + (64 * 80 + 80)


def test_the_lstm_reads_every_character_and_answers_after_the_last() -> None:
    torch.manual_seed(0)
    network = models.small_lstm(vocabulary=5)
    text = torch.tensor([[0, 1, 2, 3]])
    logits = network(text)
    assert not torch.equal(logits, network(torch.tensor([[4, 1, 2, 3]])))
    assert torch.allclose(logits, network(torch.cat([text, torch.tensor([[4, 0, 1, 2]])]))[:1])
