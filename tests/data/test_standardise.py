"""Features of mean 0 and deviation 1, by whose statistics, and of which examples."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from archipel.data import Island, Islands, Moments, Source, combine, digits, moments, standardise
from archipel.data.standardise import standardised_by


def at(*indices: int) -> Tensor:
    return torch.tensor(indices, dtype=torch.int64)


def scaled(train: Tensor, of: Tensor) -> Tensor:
    """What scikit-learn makes of it, with 0 for what does not vary."""
    if len(of) == 0:
        return of
    values = StandardScaler().fit(train.double().numpy()).transform(of.double().numpy())
    return torch.where(train.amax(0) == train.amin(0), 0.0, torch.from_numpy(values)).float()


@st.composite
def some_islands(draw: st.DrawFn) -> Islands:
    """Random features about random means, one that never varies and one that varies between learners only."""
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    roles: list[Any] = [
        "train",
        *draw(st.lists(st.sampled_from(["train", "test"]), min_size=len(sizes) - 1, max_size=9)),
    ]
    used, home, seen = sum(sizes), draw(st.integers(0, 6)), draw(st.integers(0, 2))
    total = used + home + seen + 3  # three examples of nobody
    x = random.normal(random.uniform(-1e4, 1e4, 4), [1, 100, 0.1, 5], (total, 4))
    x[:, 2] = 0.1
    order = torch.from_numpy(random.permutation(total))
    parts = order[:used].split(sizes)
    for number, part in enumerate(parts):
        x[part, 3] = number / 3
    shared = order[used : used + home]
    learners = tuple(
        Island(f"{number:02}", part, shared[torch.from_numpy(random.random(home) < 0.5)], role)
        for number, (part, role) in enumerate(zip(parts, roles, strict=False))
    )
    stimuli = order[used + home : used + home + seen]
    y = torch.from_numpy(random.integers(0, 2, total))
    islands = Islands(torch.from_numpy(x).float(), y, learners, shared, stimuli, 2, "random")
    return islands.with_own_test() if draw(st.booleans()) else islands


@pytest.mark.slow
@given(some_islands())
@settings(max_examples=60)
def test_global_statistics_are_those_of_the_pool(islands: Islands) -> None:
    before = islands.x.clone()
    new = islands.standardised("global")
    pool = torch.cat([learner.train for learner in islands.learners if learner.role == "train"])
    assert torch.allclose(new.x, scaled(islands.x[pool], islands.x), rtol=1e-4, atol=1e-5)
    assert (new.x[:, 2] == 0).all()
    varies = islands.x[pool].std(0, correction=0) > 0
    assert torch.allclose(new.x[pool].double().mean(0), torch.zeros(4).double(), atol=1e-5)
    assert torch.allclose(new.x[pool].double().std(0, correction=0)[varies], torch.ones(4).double()[varies], atol=1e-4)
    assert new.x.dtype == torch.float32
    # nothing but x is new, and the old one is as it was
    assert (new.y, new.learners, new.test, new.stimuli) == (islands.y, islands.learners, islands.test, islands.stimuli)
    assert torch.equal(islands.x, before)


@pytest.mark.slow
@given(some_islands())
@settings(max_examples=60)
def test_local_statistics_are_every_learners_own(islands: Islands) -> None:
    before = islands.x.clone()
    new = islands.standardised("local")
    pool = torch.cat([learner.train for learner in islands.learners if learner.role == "train"])
    for old, learner in zip(islands.learners, new.learners, strict=True):
        assert (learner.name, learner.role) == (old.name, old.role)
        assert torch.equal(learner.train, old.train)
        for then, now in ((old.train, learner.train), (old.test, learner.test)):
            expected = scaled(islands.x[old.train], islands.x[then])
            assert torch.allclose(new.x[now], expected, rtol=1e-4, atol=1e-5)
            assert torch.equal(new.y[now], islands.y[then])
        assert (new.x[learner.train][:, 2:] == 0).all()  # what varies between learners does not vary at any of them
        mine = new.x[learner.train].double()
        assert torch.allclose(mine.mean(0), torch.zeros(4).double(), atol=1e-5)
        if len(old.train) > 1:
            assert torch.allclose(mine.std(0, correction=0)[:2], torch.ones(2).double(), atol=1e-4)
        else:
            assert (mine == 0).all()
    home = torch.cat([islands.test, islands.stimuli])
    assert torch.equal(home, torch.cat([new.test, new.stimuli]))
    assert torch.allclose(new.x[home], scaled(islands.x[pool], islands.x[home]), rtol=1e-4, atol=1e-5)
    tests = torch.cat([learner.test for learner in new.learners])
    assert len(tests.unique()) == len(tests)  # every learner has copies of its own
    assert torch.equal(islands.x, before)


@pytest.mark.parametrize("statistics", ["global", "local"])
def test_no_test_example_moves_the_statistics(statistics: Literal["global", "local"]) -> None:
    islands = digits().split(4, classes=3).with_own_test()
    changed = islands.x.clone()
    tested = torch.cat([islands.test, islands.stimuli, *[learner.test for learner in islands.learners]])
    changed[tested] = 1e6
    trained = torch.cat([learner.train for learner in islands.learners])
    one = islands.standardised(statistics).x[trained]
    other = replace(islands, x=changed).standardised(statistics).x[trained]
    assert torch.equal(one, other)


def test_held_out_learners_do_not_move_global_statistics_and_have_local_ones() -> None:
    islands = digits().split(5).folds()[0].islands
    changed = islands.x.clone()
    held_out = [learner for learner in islands.learners if learner.role != "train"]
    for learner in held_out:
        changed[learner.train] *= 3
    trained = torch.cat([learner.train for learner in islands.learners if learner.role == "train"])
    twin = replace(islands, x=changed)
    assert torch.equal(islands.standardised("global").x[trained], twin.standardised("global").x[trained])
    one, other = islands.standardised("local").x, twin.standardised("local").x
    for learner in held_out:
        assert torch.allclose(one[learner.train], other[learner.train], atol=1e-5)


def test_by_hand() -> None:
    # learner 00 has 1, 3 and learner 01 has 10; both test on example 3 of the test set 3, 4; example 5 is nobody's
    x = torch.tensor([[1.0], [3], [10], [5], [4], [2]])
    learners = (Island("00", at(0, 1), at(3)), Island("01", at(2), at(3)))
    islands = Islands(x, torch.tensor([0, 1, 0, 1, 0, 1]), learners, at(3, 4), at(), 2, "six")
    new = islands.standardised("local")
    assert [learner.test.tolist() for learner in new.learners] == [[6], [7]]
    assert new.y.tolist() == [0, 1, 0, 1, 0, 1, 1, 1]
    deviation = (((1 - 14 / 3) ** 2 + (3 - 14 / 3) ** 2 + (10 - 14 / 3) ** 2) / 3) ** 0.5
    expected = [-1, 1, 0, *[(value - 14 / 3) / deviation for value in (5, 4, 2)], 3, 0]
    assert torch.allclose(new.x.flatten(), torch.tensor(expected))
    assert torch.allclose(islands.standardised("global").x.flatten(), (x.flatten() - 14 / 3) / deviation)


def test_own_test_parts_of_ones_own_need_no_copies() -> None:
    islands = digits().split(4).with_own_test()
    assert len(islands.standardised("local").x) == len(islands.x)


def test_the_yardstick_is_standardised_alike() -> None:
    islands = digits().split(6, "powerlaw", 2)
    assert torch.allclose(islands.standardised("global").x, islands.pooled().standardised("global").x, atol=1e-6)


def test_none_is_as_it_is() -> None:
    islands = digits().split(2)
    assert islands.standardised("none") is islands


@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(0, 100))
@settings(max_examples=40)
def test_moments_combine_to_those_of_the_pool(sizes: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    x = torch.from_numpy(random.normal(1e5, 1, (sum(sizes), 2, 3)))
    parts = [moments(x, part) for part in torch.arange(len(x)).split(sizes)]
    for whole in (combine(parts), combine(reversed(parts)), moments(x, torch.from_numpy(random.permutation(len(x))))):
        assert whole.count == len(x)
        assert torch.allclose(whole.mean, x.mean(0), rtol=1e-12)
        assert torch.allclose(whole.deviation, x.std(0, correction=0), rtol=1e-6, atol=1e-9)


def test_moments_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(100, 7)
    islands = Source(x, torch.zeros(100), None, "rand").split(3)
    whole, indices = islands.standardised("local"), torch.arange(99, -1, -1)
    at_once = moments(x, indices)
    monkeypatch.setattr(standardise, "CHUNK", 30)
    assert torch.allclose(moments(x, indices).squares, at_once.squares, rtol=1e-12)
    assert torch.allclose(islands.standardised("local").x, whole.x, atol=1e-6)


def test_moments_by_hand() -> None:
    measured = moments(torch.tensor([[1.0, 5], [3, 5], [99, 99]]), at(0, 1))
    assert (measured.count, measured.sum.tolist(), measured.squares.tolist()) == (2, [4, 10], [2, 0])
    assert (measured.mean.tolist(), measured.deviation.tolist()) == ([2, 5], [1, 0])
    assert measured.sum.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 1e8 / 3, -7.3e-9, 0])
def test_a_constant_is_known_for_one_among_many_examples(value: float, dtype: torch.dtype) -> None:
    x = torch.full((20_001, 1), value, dtype=dtype)
    parts = [moments(x, part) for part in torch.arange(len(x)).split(777)]
    assert combine(parts).deviation.tolist() == [0]
    assert moments(x, torch.arange(len(x))).deviation.tolist() == [0]
    # the smallest step away from it is no constant any more
    x[5] = torch.nextafter(x[5], torch.ones(1, dtype=dtype)) if dtype == torch.float32 else value + abs(value) / 1e6 + 1
    assert moments(x, torch.arange(len(x))).deviation[0] > 0


def test_a_large_mean_does_not_swallow_a_small_deviation() -> None:
    x = torch.tensor([[1.7e9 - 1], [1.7e9 + 1]], dtype=torch.float64)
    assert moments(x, at(0, 1)).deviation.tolist() == [1]


def test_images_go_pixel_by_pixel() -> None:
    x = torch.zeros(4, 1, 2, 2)
    x[:, 0, 0, 1] = torch.tensor([1.0, 3, 1, 3])
    islands = Source(x, at(0, 0, 0, 0), 1, "images").split(1, stimuli=0, test=0.25)
    new = islands.standardised("global").x
    assert new.shape == x.shape
    assert (new[:, 0, 0, 0] == 0).all()
    assert new[:, 0, 0, 1].std() > 0.5


def test_half_precision_stays_half() -> None:
    x = torch.rand(10, 2, dtype=torch.float16)
    islands = Source(x, torch.zeros(10), None, "half").split(2, stimuli=0)
    assert islands.standardised("local").x.dtype == torch.float16


def test_bad_input_is_refused() -> None:
    tokens = Source(torch.arange(20).reshape(10, 2), torch.zeros(10), None, "words").split(2)
    with pytest.raises(
        ValueError, match=r"x of 'words' holds torch.int64, and the mean of whole numbers such as token ids has no"
    ):
        tokens.standardised("global")
    assert tokens.standardised("none") is tokens
    with pytest.raises(ValueError, match=r"statistics should be one of none, global, local, .* Did you mean 'global'"):
        tokens.standardised("globl")  # type: ignore[arg-type]
    x = torch.rand(10, 3)
    x[:, 1] = torch.nan
    missing = Source(x, torch.zeros(10), None, "gaps").split(2)
    with pytest.raises(ValueError, match=r"learner '00' has 1 features of 3 without a finite mean and deviation. Fill"):
        missing.standardised("local")
    with pytest.raises(ValueError, match="no examples to measure"):
        moments(x, at())
    with pytest.raises(ValueError, match="no moments to combine"):
        combine([])


def test_moments_are_what_a_learner_would_send() -> None:
    # count, sum, squares: nothing else is needed at HOME
    sent = [Moments(2, at(4).double(), at(2).double()), Moments(1, at(10).double(), at(0).double())]
    assert combine(sent).mean.tolist() == [14 / 3]
    assert combine(sent).squares[0] == pytest.approx(1 + 9 + 100 - 14**2 / 3)


def federated(islands: Islands) -> list[tuple[Tensor, Tensor]]:
    """What learners with tables of their own make of their training and test parts: only moments travel."""
    tables = [
        (islands.x[learner.train].clone(), islands.x[learner.test].clone(), learner.role)
        for learner in islands.learners
    ]
    sent = [moments(train, torch.arange(len(train))) for train, _, role in tables if role == "train"]
    common = combine(sent)
    return [(standardised_by(train, common), standardised_by(test, common)) for train, test, _ in tables]


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Also -0 and 0 differ."""
    return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()


def same_as_simulated(islands: Islands) -> None:
    new = islands.standardised("global")
    for learner, (train, test) in zip(islands.learners, federated(islands), strict=True):
        assert same_bits(train, new.x[learner.train])
        assert same_bits(test, new.x[learner.test])


@pytest.mark.slow
@given(some_islands(), st.sampled_from([torch.float16, torch.float32, torch.float64]), st.sampled_from([1, 20, 2**22]))
@settings(max_examples=60)
def test_learners_with_tables_of_their_own_get_the_same_bits(islands: Islands, dtype: torch.dtype, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standardise, "CHUNK", chunk)
        same_as_simulated(replace(islands, x=islands.x.to(dtype)))


@pytest.mark.slow
@pytest.mark.parametrize("learners", [1, 7, 100])
def test_learners_of_digits_get_the_same_bits(learners: int) -> None:
    same_as_simulated(digits().split(learners, "powerlaw", "dirichlet(0.3)"))
    same_as_simulated(digits().split(learners, test="own"))


@pytest.mark.slow
def test_large_tables_get_the_same_bits() -> None:
    # enough rows for several threads and several chunks
    x = torch.randn(60_000, 90, generator=torch.Generator().manual_seed(0)) * 3 + 1000
    same_as_simulated(Source(x, torch.zeros(len(x)), None, "large").split(2, (47_000, 1000), stimuli=0))
    same_as_simulated(Source(x[:, :1].clone(), torch.zeros(len(x)), None, "narrow").split(2, stimuli=0))


def test_standardised_by_hand() -> None:
    x = torch.tensor([[1.0, 5, 7], [3, 5, 8]])
    by = Moments(4, torch.tensor([8.0, 20, 4]).double(), torch.tensor([16.0, 0, 4]).double())
    before = x.clone()
    new = standardised_by(x, by)
    assert new.tolist() == [[-0.5, 0, 6], [0.5, 0, 7]]
    assert (new.dtype, x.equal(before), new.data_ptr() == x.data_ptr()) == (torch.float32, True, False)
    # examples that lie otherwise in memory, or are none
    assert same_bits(standardised_by(x.T.contiguous().T, by), new)
    assert standardised_by(x.T.contiguous().T, by).is_contiguous()
    assert standardised_by(x[:0], by).shape == (0, 3)
    # one example at a time is all of them
    assert same_bits(torch.cat([standardised_by(row[None], by) for row in x]), new)


def test_unusable_moments_are_refused() -> None:
    x = torch.rand(3, 2)

    def by(count: int, total: list[float], squares: list[float]) -> Moments:
        return Moments(count, torch.tensor(total).double(), torch.tensor(squares).double())

    with pytest.raises(ValueError, match=r"standardised_by: x holds torch.int64, and the mean of whole numbers"):
        standardised_by(at(1, 2)[:, None], by(1, [1], [1]))
    with pytest.raises(ValueError, match=r"an example of x has shape \(2,\), the sums \(3,\) and the squares \(3,\)"):
        standardised_by(x, by(1, [1, 2, 3], [1, 2, 3]))
    # one number would fit every feature
    with pytest.raises(ValueError, match=r"an example of x has shape \(2,\), the sums \(2,\) and the squares \(1,\)"):
        standardised_by(x, by(1, [1, 2], [1]))
    with pytest.raises(ValueError, match=r"moments of 0 examples. Measure at least one"):
        standardised_by(x, by(0, [1, 2], [1, 2]))
    wrong: list[tuple[list[float], list[float]]]
    wrong = [([1, np.nan], [1, 1]), ([1, 1], [1, np.inf]), ([1, 1], [-1, 1])]
    for total, squares in wrong:
        with pytest.raises(ValueError, match=r"1 features of 2 have no finite mean and deviation"):
            standardised_by(x, by(2, total, squares))
