"""What comes over the wire is understood as it was meant, or refused with `InvalidUpdate`."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import nn

from archipel.core.layout import Layout
from archipel.core.types import Cycle, Metrics, Phase, Plan, Scored
from archipel.data.standardise import moments
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import HEADER, Bodies, InvalidUpdate

LAYOUT = Layout.of(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2)))
BODIES = Bodies(LAYOUT)
BOTH = LAYOUT.indices(None)
NUMBERS = LAYOUT.bytes(BOTH)


def body(change: Any = None, length: int | None = None) -> bytes:
    """A header for both layers, changed, and zeros."""
    told = json.loads(BODIES.header(BOTH)[8:])
    if change is not None:
        told = change(told)
    text = told if isinstance(told, bytes) else json.dumps(told).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + bytes(NUMBERS)


def look(whole: bytes) -> int:
    return BODIES.check_header(BOTH, whole[: 8 + HEADER], len(whole))


# ------------------------------------------------------------------------------------------------------------- bodies


def test_files_are_exchanged_with_safetensors_both_ways() -> None:
    vector = torch.arange(float(LAYOUT.size))
    whole = BODIES.header(BOTH) + vector.numpy().tobytes()
    assert {name: tensor.flatten().tolist() for name, tensor in load(whole).items()} == {
        name: tensor.flatten().tolist() for name, tensor in LAYOUT.tensors(vector).items()
    }
    theirs = save({name: tensor.clone() for name, tensor in LAYOUT.tensors(vector).items()})
    told = json.loads(theirs[8 : 8 + struct.unpack("<Q", theirs[:8])[0]])
    assert {name: entry["shape"] for name, entry in told.items()} == {
        name: list(tensor.shape) for name, tensor in LAYOUT.tensors(vector).items()
    }


def test_numbers_begin_behind_the_header_and_are_aligned() -> None:
    whole = body()
    assert look(whole) == len(whole) - NUMBERS
    assert look(body(lambda told: {"__metadata__": {"format": "pt"}, **told})) > look(whole)
    assert len(BODIES.header(BOTH)) % 8 == 0


def without(name: str) -> Any:
    return lambda told: {key: value for key, value in told.items() if key != name}


def with_entry(**changes: Any) -> Any:
    return lambda told: {**told, "0.weight": {**told["0.weight"], **changes}}


@pytest.mark.parametrize(
    ("whole", "reason"),
    [
        (b"", "a header of 0 bytes in a body of 0"),
        (b"1234567", "in a body of 7"),
        (body(length=HEADER + 1), "at most 1,048,576 are read"),
        (body(length=2**64 - 1), "a header of 18,446,744,073,709,551,615 bytes"),
        (body(lambda _: b"{"), "a header that is no JSON"),
        (body(lambda _: b"\xff\xfe\x00"), "a header that is no JSON"),
        (body(lambda _: b"[" * 100_000), "a header that is no JSON"),
        (body(lambda _: b"9" * 10_000), "a header that is no JSON"),
        (body(lambda _: b"null"), "a header that names no tensors"),
        (body(lambda _: {}), "tensor '0.weight' is missing"),
        (body(without("2.bias")), "tensor '2.bias' is missing"),
        (body(lambda told: {**told, "x" * 1000: 1}), "x' was not asked for"),
        (body(lambda told: {**told, "0.weight": 7}), "has the dtype None, expected F32"),
        (body(with_entry(dtype="F64")), "has the dtype F64, expected F32"),
        (body(with_entry(dtype=["F32"])), "has the dtype ['F32'], expected F32"),
        (body(with_entry(shape=[3, 2])), "has the shape [3, 2], expected [2, 3]"),
        (body(with_entry(shape=[6])), "has the shape [6], expected [2, 3]"),
        (body(with_entry(shape="x" * 10_000)), "expected [2, 3]"),
        (body(with_entry(data_offsets=[0, 2**70])), "expected [0, 24]"),
        (body(with_entry(data_offsets=[-24, 0])), "has the data_offsets [-24, 0], expected [0, 24]"),
        (body() + b"\x00", "bytes, expected "),
        (body()[:-1], "bytes, expected "),
    ],
)
def test_invalid_headers(whole: bytes, reason: str) -> None:
    with pytest.raises(InvalidUpdate) as caught:
        look(whole)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400, "nobody writes a novel into the log"


@pytest.mark.slow
@settings(max_examples=300)
@given(st.binary(max_size=300))
def test_any_bytes_at_all(whole: bytes) -> None:
    with pytest.raises(InvalidUpdate):
        look(whole)


# ------------------------------------------------------------------------------------------------------------- opinions


def scored(**changes: Any) -> pb.Scored:
    told: dict[str, Any] = {"count": 5, "loss": 1.0, "classes": 2, "confusion": [2, 1, 0, 2]}
    return pb.Scored(**(told | changes))


def test_an_opinion_decodes_to_what_was_encoded() -> None:
    confusion, histogram = np.array([[2, 1], [0, 2]]), np.array([[[1, 2], [1, 1]], [[0, 3], [2, 0]]])
    mine = Scored(5, 1.5, confusion, histogram)
    heard = messages.decode_scored(messages.encode_scored(mine), count=5, classes=2, bins=2)
    assert (heard.count, heard.loss) == (5, 1.5)
    assert heard.confusion is not None
    assert heard.histogram is not None
    assert np.array_equal(heard.confusion, confusion)
    assert np.array_equal(heard.histogram, histogram)
    regression = messages.decode_scored(messages.encode_scored(Scored(5, 1.5)), count=5, classes=None, bins=0)
    assert regression.confusion is None


@pytest.mark.parametrize(
    ("said", "bins", "reason"),
    [
        (scored(count=6), 0, "counts of 6 examples, 5 were registered"),
        (scored(loss=np.nan), 0, "a loss of nan"),
        (scored(loss=-np.inf), 0, "a loss of -inf"),
        (scored(confusion=[2, 1, 0, 1]), 0, "a confusion matrix of 4 examples, 5 were registered"),
        (scored(confusion=[2, 1, 0]), 0, "with 3 counts, expected (2, 2)"),
        (scored(cells=[0], confusion=[5, 0]), 0, "with 2 counts in 1 cells, expected (2, 2)"),
        (scored(cells=[0, 4], confusion=[3, 2]), 0, "not ascending places below 4"),
        (scored(cells=[2, 1], confusion=[3, 2]), 0, "not ascending places below 4"),
        (scored(cells=[1, 1], confusion=[3, 2]), 0, "not ascending places below 4"),
        (scored(cells=[1], confusion=[4]), 0, "a confusion matrix of 4 examples, 5 were registered"),
        (scored(cells=[1], confusion=[6]), 0, "counts 6 examples in one place, 5 were"),
        (scored(classes=3, cells=[1], confusion=[5]), 0, "of shape (3, 3)"),
        (scored(classes=2**32 - 1), 0, "of shape (4294967295, 4294967295)"),
        (scored(confusion=[2**64 - 1, 6, 0, 0]), 0, "counts 18446744073709551615 examples in one place, 5 were"),
        (scored(confusion=[2**63, 2**63, 5, 0]), 0, "in one place"),
        (scored(), 2, "a histogram of scores of shape (2, 2, 0) with 0 counts, expected (2, 2, 2)"),
        (scored(bins=2, histogram=[5, 0, 0, 0, 5, 0, 0]), 2, "with 7 counts"),
        (scored(bins=2, histogram=[5, 0, 0, 0, 4, 0, 0, 0]), 2, "does not count 5 examples for each class"),
        (scored(bins=2, histogram=[2**62, 2**62, 2**62, 2**62, 5, 0, 0, 0]), 2, "in one place"),
    ],
)
def test_invalid_opinions(said: pb.Scored, bins: int, reason: str) -> None:
    with pytest.raises(InvalidUpdate) as caught:
        messages.decode_scored(said, count=5, classes=2, bins=bins)
    assert reason in str(caught.value)


counts = st.integers(0, 2**64 - 1) | st.integers(0, 6)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.builds(
        pb.Scored,
        count=st.just(5) | counts,
        loss=st.floats(),
        classes=st.just(2) | st.integers(0, 2**32 - 1),
        confusion=st.lists(counts, max_size=6),
        cells=st.lists(st.integers(0, 5), max_size=4),
    )
)
def test_a_decoded_opinion_has_the_registered_number_of_examples(said: pb.Scored) -> None:
    """Whatever is said: either `InvalidUpdate`, or counts that add up, also for whoever adds them in int64."""
    try:
        heard = messages.decode_scored(said, count=5, classes=2, bins=0)
    except InvalidUpdate:
        return
    assert heard.confusion is not None
    assert heard.confusion.min() >= 0
    assert sum(np.asarray(heard.confusion).ravel().tolist()) == heard.count == 5


def test_metrics() -> None:
    mine = Metrics(2.5, (1.0, 0.5), Scored(5, 1.0, np.array([[5, 0], [0, 0]])), 3.0)
    said = messages.encode_metrics(mine, [], 7)
    plan = Plan(epochs=3, batch=10, reports=("losses", "validation", "gradient norm per batch"))
    heard = messages.decode_metrics(said, plan, examples=25, validation=5, classes=2)
    assert (heard.epochs, heard.losses, heard.gradient_norm) == (2.5, (1.0, 0.5), 3.0)
    assert said.steps == 7
    assert (heard.classes, heard.training_loss, heard.squared_loss) == ((), None, None)
    losses = messages.encode_metrics(Metrics(training_loss=2.0, squared_loss=5.0), [], 7)
    asked = Plan(epochs=3, batch=10, reports=("training loss",))
    heard = messages.decode_metrics(losses, asked, examples=25, validation=5, classes=2)
    assert (heard.training_loss, heard.squared_loss) == (2.0, 5.0)
    assert messages.decode_metrics(losses, plan, examples=25, validation=5, classes=2).training_loss is None
    counts = Plan(epochs=3, batch=10, reports=("class counts",))
    counted = messages.encode_metrics(Metrics(classes=(20, 5)), [], 7)
    assert messages.decode_metrics(counted, counts, examples=25, validation=5, classes=2).classes == (20, 5)
    assert messages.decode_metrics(counted, plan, examples=25, validation=5, classes=2).classes == (), "nobody asked"
    for claimed in ((20, 6), (25,), (20, 5, 0)):
        with pytest.raises(InvalidUpdate, match=f"{sum(claimed)} examples of {len(claimed)} classes, 25 of 2"):
            messages.decode_metrics(pb.Trained(classes=claimed), counts, examples=25, validation=5, classes=2)
    assert messages.decode_metrics(pb.Trained(), plan, examples=25, validation=5, classes=2) == Metrics()
    for wrong, reason in (
        (pb.Trained(epochs=np.inf), "inf epochs"),
        (pb.Trained(steps=2**63), "9223372036854775808 steps"),
        (pb.Trained(losses=[0.0] * 5), "5 losses, at most 4 of 3 epochs are taken"),
        (pb.Trained(validation=scored(count=4)), "counts of 4 examples"),
    ):
        with pytest.raises(InvalidUpdate, match=reason):
            messages.decode_metrics(wrong, plan, examples=25, validation=5, classes=2)


# ------------------------------------------------------------------------------------------- plans, layers and moments


@pytest.mark.parametrize(
    "plan",
    [
        Plan(),
        Plan(epochs=3, batch=7, rate=0.125, momentum=0.9, proximal=0.5, shift="planner.0/00.3"),
        Plan(steps=9, optimiser="Adam", options={"betas": (0.9, 0.99), "amsgrad": True, "eps": 1e-8}),
        Plan(cycle=Cycle(0.5, 2, 40), trains=("a",), uploads=(), private=("b",), reports=("validation", "losses")),
        Plan(epochs=3, phases=(Phase(2, ("head",)), Phase(1, ("fc1", "fc2")))),
        Plan(trains=(), uploads=("a", "b"), reports=("progress", "gradient norm per batch")),
    ],
)
def test_a_plan_decodes_to_what_was_encoded(plan: Plan) -> None:
    said = pb.Plan.FromString(messages.encode_plan(plan, 2**63).SerializeToString())
    heard = messages.decode_plan(said)
    assert said.key == 2**63
    assert {*heard.reports} == {*plan.reports}
    assert heard == Plan(**{**{f: getattr(plan, f) for f in Plan.__dataclass_fields__}, "reports": heard.reports})


def test_layers() -> None:
    said = messages.encode_layers(["a", "b"], ["00" * 32, "ff" * 32])
    assert [*messages.decode_layers(said).items()] == [("a", "00" * 32), ("b", "ff" * 32)]
    with pytest.raises(InvalidUpdate, match="layer 'a' twice"):
        messages.decode_layers([said[0], said[0]])
    with pytest.raises(InvalidUpdate) as caught:
        messages.decode_layers([pb.Layer(name="x" * 10**6, sha256=bytes(31))])
    assert "a SHA-256 of 31 bytes for layer 'xxx" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_moments() -> None:
    x = torch.randn(20, 2, 3)
    mine = moments(x, torch.arange(20))
    heard = messages.decode_moments(messages.encode_moments(mine), (2, 3))
    assert heard.count == 20
    assert torch.equal(heard.sum, mine.sum)
    assert torch.equal(heard.squares, mine.squares)
    with pytest.raises(InvalidUpdate, match="sums of 6 features, expected 7"):
        messages.decode_moments(messages.encode_moments(mine), (7,))
    for value in (np.nan, np.inf, 1e101):
        said = messages.encode_moments(mine)
        said.sum = np.full(6, value).tobytes()
        with pytest.raises(InvalidUpdate, match="moments that are none"):
            messages.decode_moments(said, (2, 3))


@settings(max_examples=200)
@given(st.binary(max_size=100))
def test_any_bytes_as_moments(data: bytes) -> None:
    said = pb.Moments(count=3, sum=data, squares=data)
    try:
        heard = messages.decode_moments(said, (2,))
    except InvalidUpdate:
        return
    assert bool(heard.deviation.isfinite().all())


def test_an_opinion_on_a_thousand_classes_is_small() -> None:
    confusion = np.zeros((1000, 1000), np.int64)
    confusion[::20, 3] = 2
    said = messages.encode_scored(Scored(100, 1.0, confusion))
    assert len(said.SerializeToString()) < 500
    heard = messages.decode_scored(said, count=100, classes=1000, bins=0)
    assert heard.confusion is not None
    assert np.array_equal(heard.confusion, confusion)
