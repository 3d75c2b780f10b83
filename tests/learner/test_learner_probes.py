"""Trying a model: counts against scikit-learn, consistency against scipy and numpy, gradient norms against a loop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.spatial.distance
import torch
from sklearn.metrics import confusion_matrix, roc_auc_score
from torch import nn

from archipel.core.metrics import auc
from archipel.learner.probes import (
    Parts,
    consistency,
    dissimilarities,
    layer_outputs,
    mean_loss,
    score,
    score_parts,
    squared_correlation,
    squared_gradient_norm,
)
from archipel.models import mlp, small_cnn, small_lstm, small_resnet
from tests.learner.one_learner import at, clouds, slope, work_of

NETWORKS = {
    "mlp": lambda: (mlp(5, 4, hidden=(7, 6)), torch.randn(12, 5)),
    "cnn": lambda: (small_cnn(1, 8, 4), torch.randn(12, 1, 8, 8)),
    "resnet": lambda: (small_resnet(4, in_channels=1), torch.randn(12, 1, 8, 8)),
    "lstm": lambda: (small_lstm(4), torch.randint(0, 4, (12, 5))),
}


@pytest.fixture(scope="module")
def work() -> Any:
    torch.manual_seed(1)
    x, y = clouds(n=90, features=5, classes=4)
    return work_of(mlp(5, 4, hidden=(7, 6)), x, y, classes=4)


@pytest.fixture(scope="module")
def vector(work: Any) -> Any:
    return work.layout.vector(work.module)


def outputs_of(work: Any, vector: Any) -> torch.Tensor:
    """A forward pass that shares nothing with the probes but the weights."""
    module = mlp(5, 4, hidden=(7, 6))
    module.load_state_dict(work.layout.tensors(vector))
    with torch.no_grad():
        found: torch.Tensor = module.eval()(work.x)
    return found


# -------------------------------------------------------------------------------------------------------------- score


def test_score_counts_as_scikit_learn_does(work: Any, vector: Any) -> None:
    part = torch.arange(10, 80)
    found = score(work, vector, part)
    logits = outputs_of(work, vector)[part]
    expected = confusion_matrix(work.y[part], logits.argmax(1), labels=range(4))
    assert found.count == 70
    assert (found.confusion == expected).all()
    assert found.loss == pytest.approx(
        float(nn.functional.cross_entropy(logits, work.y[part], reduction="sum")), rel=1e-5
    )
    assert found.histogram is None


def test_score_of_several_sites_in_one_pass(work: Any, vector: Any) -> None:
    parts = [torch.arange(0, 30), at(), torch.arange(25, 90), at(3)]
    together = [*score_parts(work, vector, Parts.of(parts), bins=16)]
    for part, found in zip(parts, together, strict=True):
        alone = score(work, vector, part, bins=16)
        assert (found.count, found.loss) == (len(part), pytest.approx(alone.loss, rel=1e-6))
        assert (found.confusion == alone.confusion).all()
        assert (found.histogram == alone.histogram).all()
        assert found.confusion.sum() == len(part)
    assert [*score_parts(work, vector, Parts.of([]))] == []


def test_score_in_pieces_is_the_same(work: Any, vector: Any) -> None:
    whole = score(work, vector, torch.arange(90), bins=8)
    pieces = score(replace(work, rows=13), vector, torch.arange(90), bins=8)
    assert pieces.confusion is not None
    assert pieces.histogram is not None
    np.testing.assert_array_equal(pieces.confusion, whole.confusion)
    np.testing.assert_array_equal(pieces.histogram, whole.histogram)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert mean_loss(work, torch.arange(90)) == pytest.approx(whole.loss / 90, rel=1e-6)


def test_the_histogram_gives_the_area_under_the_curve(work: Any, vector: Any) -> None:
    part = torch.arange(90)
    probabilities = outputs_of(work, vector).softmax(1).numpy()
    found = score(work, vector, part, bins=32)
    # exactly the area of the scores cut into bins, ties counting one half
    levels = np.minimum((probabilities * 32).astype(int), 31)
    exact = np.mean([roc_auc_score(work.y == c, levels[:, c]) for c in range(4)])
    assert found.histogram is not None
    assert auc(found.histogram) == pytest.approx(exact, rel=1e-12)
    # and with fine bins that of the scores themselves
    fine = score(work, vector, part, bins=1 << 16)
    whole = roc_auc_score(work.y, probabilities, multi_class="ovr", average="macro")
    assert fine.histogram is not None
    assert auc(fine.histogram) == pytest.approx(whole, abs=1e-3)
    assert found.histogram.sum() == 90 * 4


def test_a_score_of_one_lies_in_the_last_bin() -> None:
    # logits 200 apart: the softmax is exactly 1 and 0
    work = work_of(nn.Linear(1, 2, bias=False), torch.tensor([[1.0]]), at(1), classes=2)
    found = score(work, torch.tensor([-100.0, 100.0]), at(0), bins=4)
    assert found.histogram is not None
    assert found.histogram.tolist() == [[[1, 0, 0, 0], [0, 0, 0, 0]], [[0, 0, 0, 0], [0, 0, 0, 1]]]


def test_score_without_classes_is_a_sum_of_losses() -> None:
    # w = 2: (2 x 1 - 1)^2 + (2 x 3 - 1)^2 = 1 + 25
    work = slope((1.0, 3.0, 9.0), (1.0, 1.0, 0.0))
    found = score(work, torch.tensor([2.0]), at(0, 1))
    assert (found.count, found.loss, found.confusion) == (2, 26.0, None)


@pytest.mark.parametrize("network", ["mlp", "cnn", "resnet", "lstm"])
def test_score_on_no_examples_is_an_empty_answer(network: Any) -> None:
    module, x = NETWORKS[network]()
    work = work_of(module, x, torch.arange(12) % 4, classes=4)
    found = score(work, work.layout.vector(module), at(), bins=4)
    assert found.confusion is not None
    assert found.histogram is not None
    assert (found.count, found.loss, found.confusion.sum(), found.histogram.sum()) == (0, 0.0, 0, 0)
    assert math.isnan(mean_loss(work, at()))


def test_a_probe_changes_nothing() -> None:
    torch.manual_seed(0)
    x, y = clouds(n=20, features=5, classes=2)
    work = work_of(nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)), x, y, classes=2)
    vector = work.layout.vector(work.module)
    before, rng = vector.clone(), torch.get_rng_state()
    everyone = torch.arange(20)
    for _ in range(2):
        score(work, vector, everyone)
        consistency(work, vector, vector, everyone, "cosine")
        squared_gradient_norm(work, vector, everyone, None)
        squared_gradient_norm(work, vector, everyone, 7)
    assert torch.equal(vector, before)
    assert torch.equal(torch.get_rng_state(), rng)
    assert all(parameter.grad is None for parameter in work.module.parameters())


# ---------------------------------------------------------------------------- consistency: Fed2A formulas 5 to 10


def test_distances_by_hand() -> None:
    # stimuli (3, 0), (0, 4), (3, 4); the upper triangle row by row: 12, 13, 23
    outputs = torch.tensor([[3.0, 0.0], [0.0, 4.0], [3.0, 4.0]], dtype=torch.float64)
    # formula 9: 5, 4, 3
    assert dissimilarities(outputs, "euclidean").tolist() == pytest.approx([5.0, 4.0, 3.0])
    # formula 8: cosines 0, 9 / 15, 16 / 20, taken from one
    assert dissimilarities(outputs, "cosine").tolist() == pytest.approx([1.0, 0.4, 0.2])
    # formula 7: (1, 2, 3) and (3, 2, 1) are opposite; (0, 0, 3) has deviations (-1, -1, 2) against (-1, 0, 1):
    # 3 / sqrt(2 x 6) = sqrt 3 / 2
    outputs = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    root = math.sqrt(3) / 2
    assert dissimilarities(outputs, "correlation").tolist() == pytest.approx([2.0, 1 - root, 1 + root])


@pytest.mark.parametrize("distance", ["correlation", "cosine", "euclidean"])
def test_distances_agree_with_scipy(distance: Any) -> None:
    outputs = np.random.default_rng(0).standard_normal((12, 9))
    found = dissimilarities(torch.from_numpy(outputs), distance)
    assert len(found) == 12 * 11 / 2
    np.testing.assert_allclose(found.numpy(), scipy.spatial.distance.pdist(outputs, distance), rtol=1e-9, atol=1e-12)


def test_fifty_stimuli_make_1225_distances() -> None:
    # Fed2A section 4.3; 86 make 3655
    assert len(dissimilarities(torch.randn(50, 3), "cosine")) == 1225
    assert len(dissimilarities(torch.randn(86, 3), "cosine")) == 3655


def test_a_silent_stimulus_is_like_nothing() -> None:
    outputs = torch.tensor([[0.0, 0.0], [1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    # cosine of (1, 2) and (2, 1): 4 / 5
    assert dissimilarities(outputs, "cosine").tolist() == pytest.approx([1.0, 1.0, 0.2])


def test_formula_10_by_hand() -> None:
    # (0, 1, 2) and (0, 1, 5): deviations (-1, 0, 1) and (-2, -1, 3): 5^2 / (2 x 14)
    a, b = (torch.tensor(values, dtype=torch.float64) for values in ([0.0, 1.0, 2.0], [0.0, 1.0, 5.0]))
    assert squared_correlation(a, b) == pytest.approx(25 / 28, rel=1e-14)
    # what is opposite is as consistent as what is alike: it is squared
    assert squared_correlation(a, -a) == pytest.approx(1.0)
    # formula 8 as printed is a similarity; its squared correlation is that of the distance
    assert squared_correlation(1 - a, b) == pytest.approx(25 / 28, rel=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_formula_10_agrees_with_numpy(seed: int) -> None:
    a, b = np.random.default_rng(seed).standard_normal((2, 45))
    expected = np.corrcoef(a, b)[0, 1] ** 2
    assert squared_correlation(torch.from_numpy(a), torch.from_numpy(b)) == pytest.approx(expected, rel=1e-9)


def test_a_constant_matrix_tells_nothing() -> None:
    flat, other = torch.full((10,), 0.3, dtype=torch.float64), torch.arange(10, dtype=torch.float64)
    assert squared_correlation(flat, flat + 5) == 1.0
    assert squared_correlation(flat, other) == 0.0
    assert squared_correlation(other, flat) == 0.0
    # constant but for rounding: 0.1 + 0.2 is not 0.3
    noise = torch.tensor([0.3, 0.1 + 0.2] * 5, dtype=torch.float64)
    assert squared_correlation(noise, other) == 0.0


@pytest.mark.parametrize("distance", ["correlation", "cosine", "euclidean"])
def test_consistency_of_every_layer_agrees_with_scipy_and_numpy(work: Any, vector: Any, distance: Any) -> None:
    torch.manual_seed(2)
    other = vector + 0.3 * torch.randn_like(vector)
    stimuli = torch.arange(20, 44)
    found = consistency(work, vector, other, stimuli, distance)
    triangles = []
    for weights in (vector, other):
        t = {name: value.double().numpy() for name, value in work.layout.tensors(weights).items()}
        h = work.x[stimuli].double().numpy()
        rows = []
        for name in ("fc1", "fc2", "head"):
            h = h @ t[f"{name}.weight"].T + t[f"{name}.bias"]
            rows.append(scipy.spatial.distance.pdist(h, distance))
            h = np.maximum(h, 0)
        triangles.append(rows)
    expected = [np.corrcoef(a, b)[0, 1] ** 2 for a, b in zip(*triangles, strict=True)]
    assert len(found.layers) == len(work.layout.names) == 3
    assert found.layers == pytest.approx(expected, rel=1e-4)
    assert all(0.0 < rc < 1.0 for rc in found.layers)


def test_a_model_is_consistent_with_itself(work: Any, vector: Any) -> None:
    assert consistency(work, vector, vector, torch.arange(20), "cosine").layers == pytest.approx((1.0, 1.0, 1.0))
    # and a layer of zeros sees no likenesses at all
    gone = vector.clone()
    head = work.layout.layers[-1]
    gone[head.start : head.stop] = 0.0
    assert consistency(work, gone, vector, torch.arange(20), "euclidean").layers[2] == 0.0


def test_what_layers_put_out() -> None:
    # images: all channels and places of a stimulus in one row; statistics stand with their layer
    torch.manual_seed(0)
    x = torch.randn(3, 3, 8, 8)
    work = work_of(small_resnet(4), x, at(0, 1, 2), classes=4)
    outputs = dict(zip(work.layout.names, layer_outputs(work, work.layout.vector(work.module), at(2, 0)), strict=True))
    assert outputs["conv"].shape == (2, 16 * 8 * 8)
    assert outputs["head"].shape == (2, 4)
    assert outputs["norm"].shape == (2, 64 * 2 * 2)
    assert torch.equal(outputs["norm"], outputs["norm.buffers"])
    with torch.no_grad():
        expected = work.module.eval().get_submodule("conv")(x[[2, 0]]).reshape(2, -1)
    torch.testing.assert_close(outputs["conv"], expected.double())


def test_what_recurrent_layers_put_out() -> None:
    torch.manual_seed(0)
    x = torch.randint(0, 9, (4, 6))
    work = work_of(small_lstm(9), x, at(0, 1, 2, 3), classes=9)
    embedding, lstm, head = layer_outputs(work, work.layout.vector(work.module), torch.arange(4))
    assert embedding.shape == (4, 6 * 8)
    assert lstm.shape == (4, 6 * 64)  # the states of all characters, one row a stimulus
    assert head.shape == (4, 9)
    with torch.no_grad():
        states, _ = work.module.get_submodule("lstm")(work.module.get_submodule("embedding")(x))
    torch.testing.assert_close(lstm, states.reshape(4, -1).double(), rtol=1e-5, atol=1e-6)


class Wrapped(nn.Module):
    """A network whose one layer happens to be called `model`."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(2, 2, bias=False)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.model(x))


def test_a_layer_called_model_is_that_layer() -> None:
    work = work_of(Wrapped(), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), at(0, 1), classes=2)
    # weights ((1, 0), (0, -1)): what the layer puts out is negative there, what the network puts out is not
    (found,) = layer_outputs(work, torch.tensor([1.0, 0.0, 0.0, -1.0]), at(0, 1))
    assert found.tolist() == [[1.0, -2.0], [3.0, -4.0]]


# --------------------------------------------------------------------------------- gradient norms (RADFed, HDAFL)


def test_squared_gradient_norms_by_hand() -> None:
    # w = 1, gradients 2 x (w x - y): of (1, 0) 2, of (2, 0) 8, of (1, 2) -2
    work = slope((1.0, 2.0, 1.0), (0.0, 0.0, 2.0))
    one = torch.tensor([1.0])
    # Algorithm 2, line 3 of ClientUpdate: (4 + 64 + 4) / 3
    assert squared_gradient_norm(work, one, at(0, 1, 2), None) == pytest.approx(24.0, rel=1e-6)
    # section III.B, mini-batches of two: (2 + 8) / 2 = 5 and -2 alone: (25 + 4) / 2
    assert squared_gradient_norm(work, one, at(0, 1, 2), 2) == pytest.approx(14.5, rel=1e-6)
    # one batch of all: (2 + 8 - 2) / 3
    assert squared_gradient_norm(work, one, at(0, 1, 2), 100) == pytest.approx(64 / 9, rel=1e-6)


def loop(work: Any, vector: Any, examples: Any, batch: int) -> float:
    """The same with autograd, one batch after the other."""
    work.binding.bind(vector)
    work.module.eval()
    norms = []
    for chosen in examples.split(batch):
        loss = nn.functional.cross_entropy(work.module(work.x[chosen]), work.y[chosen])
        gradients = torch.autograd.grad(loss, list(work.module.parameters()))
        norms.append(sum(float((g.double() ** 2).sum()) for g in gradients))
    return sum(norms) / len(norms)


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_squared_gradient_norms_agree_with_a_plain_loop(network: Any) -> None:
    torch.manual_seed(0)
    module, x = NETWORKS[network]()
    work = work_of(module, x, torch.arange(12) % 4, classes=4)
    vector = work.layout.vector(module)
    examples = torch.arange(12)
    per_sample = squared_gradient_norm(work, vector, examples, None)
    assert per_sample == pytest.approx(loop(work, vector, examples, 1), rel=1e-4)
    per_batch = squared_gradient_norm(work, vector, examples, 5)  # the last of two
    assert per_batch == pytest.approx(loop(work, vector, examples, 5), rel=1e-4)
    # a mean of gradients is no longer than the gradients are
    assert squared_gradient_norm(work, vector, examples, 4) < per_sample
