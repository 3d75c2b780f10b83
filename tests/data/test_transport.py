"""Tables with margins: what is projected is nearest, what is rounded keeps its margins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archipel.data.transport import project, rounded


def margins(random: np.random.Generator, rows: int, columns: int, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole margins from 1 with one total."""
    above, below = (
        1 + random.multinomial(total - size, random.dirichlet(np.full(size, 0.3))) for size in (rows, columns)
    )
    return above, below


@pytest.mark.slow
@given(st.integers(1, 12), st.integers(1, 12), st.integers(12, 5000), st.floats(-3, 2), st.integers(0, 10**6))
@settings(max_examples=80)
def test_a_projection_is_the_nearest_table(rows: int, columns: int, total: int, scale: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    n, c = margins(random, rows, columns, total)
    wanted = random.normal(size=(rows, columns)) * total * 10**scale
    table, (u, v) = project(wanted, n.astype(float), c.astype(float))
    # a table of this form with these margins is the nearest one (Karush, Kuhn and Tucker)
    assert table == pytest.approx(np.maximum(wanted + u[:, None] + v, 0))
    assert table.sum(1) == pytest.approx(n, abs=1e-6 * total)
    assert table.sum(0) == pytest.approx(c, abs=1e-6 * total)


def test_a_projection_by_hand() -> None:
    # row 0 wants everything of column 0; both margins are 1, 1: nearest to [[2, 0], [0, 0]] is the diagonal
    table, _ = project(np.array([[2.0, 0], [0, 0]]), np.ones(2), np.ones(2))
    assert table == pytest.approx(np.eye(2))
    # nothing wanted: everything alike
    table, duals = project(np.zeros((2, 3)), np.array([3.0, 6]), np.full(3, 3.0))
    assert table == pytest.approx(np.array([[1, 1, 1], [2, 2, 2]]))
    again, _ = project(np.zeros((2, 3)), np.array([3.0, 6]), np.full(3, 3.0), duals)
    assert again == pytest.approx(table)


@given(st.integers(1, 12), st.integers(1, 12), st.integers(12, 3000), st.integers(0, 10**6))
@settings(max_examples=60)
def test_rounding_keeps_margins_and_moves_less_than_one(rows: int, columns: int, total: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    n, c = margins(random, rows, columns, total)
    table, _ = project(random.normal(size=(rows, columns)) * total, n.astype(float), c.astype(float))
    whole = rounded(table, n, c, random)
    assert whole.sum(1).tolist() == n.tolist()
    assert whole.sum(0).tolist() == c.tolist()
    assert whole.min() >= 0
    assert np.abs(whole - table).max() < 1 + 1e-5


def test_rounding_errors_in_the_margins_do_no_harm() -> None:
    n, c = np.array([2, 2]), np.array([2, 2])
    assert rounded(np.array([[1 + 4e-7, 1], [1, 1 - 4e-7]]), n, c, np.random.default_rng(0)).tolist() == [
        [1, 1],
        [1, 1],
    ]
    # so far off that floor and ceiling do not do: still the right margins
    whole = rounded(np.array([[2.0, 0.0], [1.0, 1.0]]), n, c, np.random.default_rng(0))
    assert whole.sum(0).tolist() == whole.sum(1).tolist() == [2, 2]


def test_an_entry_is_rounded_up_about_as_often_as_its_fraction_says() -> None:
    table = np.array([[0.25, 0.75], [0.75, 0.25]])
    one = np.ones(2, np.int64)
    ups = sum(rounded(table, one, one, np.random.default_rng(seed))[0, 0] for seed in range(400))
    assert 60 < ups < 140
