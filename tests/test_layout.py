"""Models are vectors: which slice is which layer, there and back."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from archipel.core.binding import Binding
from archipel.core.layout import Layout
from archipel.kernels.reference import TorchKernels
from archipel.models import logistic_regression, mlp, small_cnn, small_lstm, small_resnet, vgg9

NETWORKS = {
    "mlp": lambda: (mlp(6, 3, hidden=(5, 4)), torch.randn(7, 6)),
    "cnn": lambda: (small_cnn(1, 8, 3), torch.randn(7, 1, 8, 8)),
    "resnet": lambda: (small_resnet(3), torch.randn(7, 3, 8, 8)),
    "lstm": lambda: (small_lstm(9), torch.randint(0, 9, (7, 5))),
}


@pytest.fixture(params=list(NETWORKS))
def network(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return NETWORKS[request.param]()


class Backwards(nn.Module):
    """Registered in one order, called in another."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(3, 2)
        self.unused = nn.Linear(1, 1)
        self.norm = nn.BatchNorm1d(3)
        self.first = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.norm(self.first(x)))


# ------------------------------------------------------------------------------------------------------------ order


def test_layers_stand_in_the_order_they_are_called() -> None:
    module = Backwards()
    assert Layout.of(module, torch.zeros(1, 4)).names == ("first", "norm", "norm.buffers", "last", "unused")
    # without an example, in the order they were registered
    assert Layout.of(module).names == ("last", "unused", "norm", "norm.buffers", "first")


def test_looking_at_the_order_changes_nothing() -> None:
    module = Backwards().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    Layout.of(module, torch.ones(2, 4))
    assert module.training
    assert not module.norm._forward_pre_hooks
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_layer_that_is_called_twice_stands_where_it_is_called_first() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.b = nn.Linear(2, 2)
            self.a = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.a(self.b(self.a(x)))

    assert Layout.of(Twice(), torch.zeros(1, 2)).names == ("a", "b")


def test_slices_and_sizes_by_hand() -> None:
    layout = Layout.of(Backwards(), torch.zeros(1, 4))
    # first 4 x 3 + 3 = 15; norm 3 + 3; statistics mean 3, variance 3, counter 1; last 3 x 2 + 2 = 8; unused 1 + 1
    assert [(layer.start, layer.stop) for layer in layout.layers] == [(0, 15), (15, 21), (21, 28), (28, 36), (36, 38)]
    assert layout.size == 38
    assert [layer.buffers for layer in layout.layers] == [False, False, True, False, False]
    assert [layer.kind for layer in layout.layers] == ["Linear", "BatchNorm1d", "BatchNorm1d", "Linear", "Linear"]
    assert layout.bytes((0, 2)) == 4 * (15 + 7)
    assert layout.slices((0, 1, 3)) == [slice(0, 21), slice(28, 36)]  # neighbours are joined
    assert layout.slices(()) == []
    assert layout.indices(["last", "first"]) == (0, 3)
    assert layout.indices(None) == (0, 1, 2, 3, 4)
    assert layout.index("norm.buffers") == 2
    assert (layout.knows("norm"), layout.knows("fc9")) == (True, False)


def test_buffers_that_are_not_saved_do_not_travel() -> None:
    module = nn.Linear(1, 1)
    module.register_buffer("scratch", torch.zeros(9), persistent=False)
    module.register_buffer("kept", torch.zeros(2))
    layout = Layout.of(module)
    assert layout.names == (".", "..buffers")
    assert layout.size == 1 + 1 + 2


def test_parameters_that_are_shared_stand_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3)
            self.head = nn.Linear(3, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Any) -> Any:
            return self.head(self.embedding(x))

    module = Tied()
    layout = Layout.of(module, torch.zeros(1, dtype=torch.int64))
    assert (layout.names, layout.size) == (("embedding",), 15)
    Binding(layout, module).bind(torch.arange(15.0))
    assert module.head.weight is module.embedding.weight
    assert module.head.weight.flatten().tolist() == list(range(15))


def test_every_layer_has_a_name_of_its_own() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))
            self.model = nn.Linear(2, 1)

        def forward(self, x: Any) -> Any:
            return self.scale * self.model(x)

    layout = Layout.of(Outer(), torch.zeros(1, 2))
    assert len(set(layout.names)) == len(layout.names) == 2


# ---------------------------------------------------------------------------------------------- there and back again


def test_a_vector_holds_all_that_the_module_saves(network: Any) -> None:
    module, x = network
    layout = Layout.of(module, x)
    entries = {entry.name for layer in layout.layers for entry in layer.entries}
    assert entries == set(module.state_dict())
    assert layout.size == sum(tensor.numel() for tensor in module.state_dict().values())


def emptied(module: nn.Module) -> nn.Module:
    """The same network with nothing in it."""
    fresh = copy.deepcopy(module)
    for tensor in fresh.state_dict().values():
        tensor.zero_()
    return fresh


def test_module_to_vector_to_module(network: Any) -> None:
    module, x = network
    module.train()(x)  # batch norms have counted a batch
    layout = Layout.of(module, x)
    vector = layout.vector(module)
    other = emptied(module)
    Binding(layout, other).bind(vector.clone())
    for name, tensor in module.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
        assert other.state_dict()[name].dtype == tensor.dtype, name
    assert torch.equal(layout.vector(other), vector)
    third = emptied(module)
    third.load_state_dict(layout.tensors(vector))
    with torch.no_grad():
        assert torch.equal(third.eval()(x), module.eval()(x))


def test_a_bound_module_is_a_view(network: Any) -> None:
    module, x = network
    layout = Layout.of(module, x)
    vector = layout.vector(module)
    Binding(layout, module).bind(vector)
    before = vector.clone()
    steps = torch.optim.SGD(module.parameters(), lr=0.1)
    module.train()
    nn.functional.cross_entropy(module(x), torch.arange(7) % 3).backward()
    steps.step()
    Binding(layout, module).collect(vector)
    # training the module has changed the vector, layer by layer
    for layer in layout.layers:
        piece = slice(layer.start, layer.stop)
        assert not torch.equal(vector[piece], before[piece]), layer.name
    assert torch.equal(layout.vector(module), vector)
    # and writing the vector changes the module, but for convolutions, which have their channels last
    vector.fill_(0.5)
    for name, parameter in module.named_parameters():
        convolution = parameter.dim() == 4
        assert bool((parameter == 0.5).all()) != convolution, name
        assert not convolution or parameter.is_contiguous(memory_format=torch.channels_last), name


def test_counters_are_brought_back() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    layout = Layout.of(module, torch.zeros(1, 2))
    vector = layout.vector(module)
    Binding(layout, module).bind(vector)
    for _ in range(4):
        module.train()(torch.randn(5, 2))
    assert vector[-1] == 0.0  # integers cannot be a view
    Binding(layout, module).collect(vector)
    assert vector[-1] == 4.0
    # a mean of counters is rounded, wherever the vector is read
    vector[-1] = 2.6
    Binding(layout, module).bind(vector)
    counter = module[1].num_batches_tracked
    assert isinstance(counter, torch.Tensor)
    assert int(counter) == 3
    assert counter.dtype == torch.int64
    assert int(layout.tensors(vector)["1.num_batches_tracked"]) == 3


def test_a_new_vector_does_not_share_memory_with_the_module() -> None:
    module = nn.Linear(2, 2)
    layout = Layout.of(module)
    vector = layout.vector(module)
    with torch.no_grad():
        module.weight.zero_()
    assert not torch.equal(vector[:4], torch.zeros(4))


# ---------------------------------------------------------------------------------------------------- layers by word

MLP = Layout.of(mlp(6, 3, hidden=(5, 4)), torch.zeros(1, 6))
CNN = Layout.of(small_cnn(1, 8, 3), torch.zeros(1, 1, 8, 8))
VGG = Layout.of(vgg9(), torch.zeros(1, 3, 32, 32))
LSTM = Layout.of(small_lstm(9), torch.zeros(1, 5, dtype=torch.int64))
RESNET = Layout.of(small_resnet(3), torch.zeros(1, 3, 8, 8))


@pytest.mark.parametrize(
    ("layout", "word", "names"),
    [
        (MLP, "all", ("fc1", "fc2", "head")),
        (MLP, "head", ("head",)),
        (MLP, "features", ("fc1", "fc2")),
        (MLP, "deep", ("fc2", "head")),  # without convolutions: all behind the first
        (MLP, "shallow", ("fc1",)),
        (MLP, "buffers", ()),
        (MLP, "fc1", ("fc1",)),
        (MLP, ("head", "fc1"), ("fc1", "head")),  # in the layout's order
        (MLP, ("head", "fc2", "head"), ("fc2", "head")),
        (CNN, "head", ("head",)),
        (CNN, "features", ("conv1", "conv2")),
        (CNN, "deep", ("head",)),  # the fully connected ones
        (CNN, "shallow", ("conv1", "conv2")),
        (VGG, "deep", ("fc1", "fc2", "head")),
        (VGG, "features", (*(f"conv{i}" for i in range(1, 7)), "fc1", "fc2")),
        (LSTM, "all", ("embedding", "lstm", "head")),
        (LSTM, "deep", ("lstm", "head")),
        (LSTM, "shallow", ("embedding",)),
        (LSTM, "head", ("head",)),
    ],
)
def test_layers_by_word(layout: Any, word: str, names: Any) -> None:
    assert layout.select("test", word) == names


def test_layers_of_a_resnet_by_word() -> None:
    assert RESNET.select("test", "head") == ("head",)
    assert RESNET.select("test", "features") == RESNET.names[:-1]
    assert RESNET.select("test", "deep") == ("head",)
    assert RESNET.select("test", "shallow") == RESNET.names[:-1]
    assert RESNET.names[0] == "conv"
    assert RESNET.names[-3:] == ("norm", "norm.buffers", "head")
    buffers = RESNET.select("test", "buffers")
    # 3 stages of one block with 2 norms, and the last norm
    assert len(buffers) == 7
    assert all(name.endswith((".norm1.buffers", ".norm2.buffers")) or name == "norm.buffers" for name in buffers)


def test_layers_by_the_module_that_holds_them() -> None:
    block = tuple(f"stage2.block1.{name}" for name in ("norm1", "norm1.buffers", "shortcut", "conv1", "norm2"))
    assert RESNET.select("test", "stage2")[:5] == block
    assert RESNET.select("test", "stage2") == RESNET.select("test", "stage2.block1")
    assert all(name.startswith("stage2.") for name in RESNET.select("test", "stage2"))
    assert RESNET.select("test", "norm") == ("norm", "norm.buffers")
    norms = RESNET.select("test", "norms")
    assert norms == tuple(name for name in RESNET.names if "norm" in name)
    assert {"norm", "norm.buffers", "stage2.block1.norm1"} <= set(norms)
    # a name is a whole name: `conv` is not the beginning of `conv1`
    assert RESNET.select("test", "conv") == ("conv",)
    with pytest.raises(ValueError, match="no layer named 'conv'"):
        CNN.select("test", "conv")


def test_a_net_of_one_layer_is_shallow() -> None:
    layout = Layout.of(logistic_regression(4, 2))
    assert layout.select("test", "deep") == ()
    assert layout.select("test", "shallow") == layout.select("test", "head") == ("head",)
    assert layout.select("test", "features") == ()


# --------------------------------------------------------------------------------------------------------- errors


def test_an_unknown_layer_is_told_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match=r"^PrivateLayers: no layer named 'fc3'\. Layers of this model: fc1, fc2, head\.$"
    ):
        MLP.select("PrivateLayers", ("fc1", "fc3"))
    told = r"no layer named 'stage9'\. Layers of this model, \d\d in all: [^ ]+(, [^ ]+){10} \.\.\. [^ ]+\. A piece"
    with pytest.raises(ValueError, match=told):
        RESNET.select("test", "stage9")


def test_a_module_without_parameters() -> None:
    with pytest.raises(ValueError, match="Layout: ReLU has no trainable parameters; give a module"):
        Layout.of(nn.ReLU())
    with pytest.raises(ValueError, match="has no trainable parameters"):
        Layout.of(nn.BatchNorm1d(3, affine=False))  # statistics alone cannot be trained


def test_parameters_that_are_not_float32() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(ValueError, match=r"parameter '1\.weight' is torch\.float64.*module\.float\(\)"):
        Layout.of(module)


@pytest.mark.parametrize(
    "vector", [torch.zeros(46), torch.zeros(1, 47), torch.zeros(47, dtype=torch.float64), torch.zeros(0)]
)
def test_a_vector_that_does_not_fit(vector: Any) -> None:
    module = mlp(6, 3, hidden=(5, 1))
    layout = Layout.of(module)
    assert layout.size == 35 + 6 + 6
    with pytest.raises(ValueError, match=r"^Binding: expected 47 numbers of torch\.float32 in one row, got shape"):
        Binding(layout, module).bind(vector)


def test_a_module_that_does_not_fit() -> None:
    layout = Layout.of(mlp(6, 3, hidden=(5,)))
    with pytest.raises(ValueError, match=r"expected 'fc1\.weight' with shape \(5, 6\), there is \(4, 6\)"):
        layout.vector(mlp(6, 3, hidden=(4,)))
    with pytest.raises(ValueError, match=r"expected 'fc1\.weight' with shape \(5, 6\), there is no such tensor"):
        layout.vector(nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("numbers", "verdict"),
    [
        ([1.0, -2.0], True),
        ([], True),
        ([1.0, float("nan")], False),
        ([float("inf"), 1.0], False),
        ([float("inf"), float("-inf")], False),
        ([3e38, 3e38], True),  # the sum overflows, the numbers do not
    ],
)
def test_finite(numbers: Any, verdict: bool) -> None:
    assert TorchKernels().finite(torch.tensor(numbers)) is verdict
