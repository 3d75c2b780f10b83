"""RADFed's partitioner: the optimum is one, the random table is near it and another, margins are exact."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from archipel.data import reconcile as module
from archipel.data.reconcile import TableMargins, Target, gaps, indicator, loss, optimum, randomised, reconcile


def problem(
    seed: int, learners: int = 8, classes: int = 3, categories: int = 4, blocks: bool = False
) -> tuple[TableMargins, list[Target]]:
    """Classes and one feature with all their combinations, drawn independently; learners' classes fixed in blocks."""
    random = np.random.default_rng(seed)
    codes = np.indices((classes, categories)).reshape(2, -1)
    columns = random.integers(9, 60, codes.shape[1])  # enough for nine learners, whatever the rest
    sizes = 1 + random.multinomial(columns.sum() - learners, random.dirichlet(np.ones(learners)))
    shares = [random.dirichlet(np.full(d, 0.1), learners) for d in (classes, categories)]
    wanted = [Target(code, share * sizes[:, None]) for code, share in zip(codes, shares, strict=True)]
    if not blocks:
        return TableMargins(sizes[:, None], columns, np.zeros_like(columns)), wanted
    supply = [columns[codes[0] == c].sum() for c in range(classes)]
    rows = np.stack([random.multinomial(total, random.dirichlet(np.ones(learners))) for total in supply], axis=1)
    return TableMargins(rows, columns, codes[0]), wanted[1:]


def transported(margins: TableMargins) -> tuple[np.ndarray, np.ndarray]:
    """The margins as linear equations of a flattened table."""
    learners, kinds = len(margins.rows), len(margins.columns)
    rows = [
        np.outer(np.arange(learners) == k, margins.block == b).ravel()
        for k in range(learners)
        for b in range(margins.rows.shape[1])
    ]
    columns = [np.outer(np.ones(learners), np.arange(kinds) == u).ravel() for u in range(kinds)]
    return np.array(rows + columns, dtype=float), np.concatenate([margins.rows.ravel(), margins.columns])


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_no_table_is_better_than_the_optimum(seed: int, blocks: bool) -> None:
    margins, wanted = problem(seed, blocks=blocks)
    table = optimum(margins, wanted, np.random.default_rng(seed))
    equations, right = transported(margins)
    assert equations @ table.ravel() == pytest.approx(right, abs=1e-5)
    assert table.min() >= 0
    # by convexity no table's loss is lower than this one's by more than what a straight line to it could gain
    slope = np.sum([2 * gap @ indicator(one).T for gap, one in zip(gaps(table, wanted), wanted, strict=True)], axis=0)
    best = linprog(slope.ravel(), A_eq=equations, b_eq=right)
    assert best.success
    assert slope.ravel() @ table.ravel() - best.fun <= 0.01 * loss(table, wanted)


def test_formula_1_is_solved_by_the_first_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    margins, wanted = problem(0, categories=1)
    exact = optimum(margins, wanted[:1], np.random.default_rng(0))
    monkeypatch.setattr(module, "STEPS", 1)
    assert optimum(margins, wanted[:1], np.random.default_rng(1)) == pytest.approx(exact, abs=1e-6)


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 4), st.integers(1, 5), st.booleans())
@settings(max_examples=30)
def test_margins_are_exact(seed: int, learners: int, classes: int, categories: int, blocks: bool) -> None:
    margins, wanted = problem(seed, learners, classes, categories, blocks)
    table = reconcile(margins, wanted, np.random.default_rng(seed))
    assert table.min() >= 0
    assert table.sum(0).tolist() == margins.columns.tolist()
    for b in range(margins.rows.shape[1]):
        assert table[:, margins.block == b].sum(1).tolist() == margins.rows[:, b].tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("categories", "blocks"), [(1, False), (6, False), (6, True)])
def test_the_solution_is_random_and_near_the_optimum(categories: int, blocks: bool) -> None:
    margins, wanted = problem(5, learners=20, classes=4, categories=categories, blocks=blocks)
    wanted = wanted[:1] if categories == 1 else wanted
    best = optimum(margins, wanted, np.random.default_rng(0))
    tables = [randomised(best, margins, wanted, np.random.default_rng(seed)) for seed in (1, 2)]
    least = loss(best, wanted) ** 0.5
    for table in tables:
        assert np.abs(table - best).sum() > 0.005 * best.sum()  # not the optimum
        assert table.sum(0) == pytest.approx(margins.columns)
        assert table.min() >= 0
        assert loss(table, wanted) ** 0.5 <= 1.15 * least
    assert np.abs(tables[0] - tables[1]).sum() > 0.0005 * best.sum()
    whole = [reconcile(margins, wanted, np.random.default_rng(seed)) for seed in (1, 2, 1)]
    assert (whole[0] != whole[1]).any()
    assert (whole[0] == whole[2]).all()
    assert loss(whole[0].astype(float), wanted) ** 0.5 <= 1.2 * least


def test_one_learner_gets_everything() -> None:
    margins, wanted = problem(0, learners=1)
    assert reconcile(margins, wanted, np.random.default_rng(0)).tolist() == [margins.columns.tolist()]


# RADFed's Table I was made by the authors' published script with these seeds of numpy. Its sizes come out to the
# example, and so do its C-scores, which decides how Algorithm 3 is to be read.
@pytest.mark.parametrize(
    ("seed", "supply", "concentration", "sizes", "c_score"),
    [
        (1020, [211560, 280440], 0.1, (110, 33300, 4920, 5110), 0.79),
        (10, [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958], 1, (3, 3363, 700, 667), 0.70),
        (233, [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958], 0.1, (12, 3327, 700, 658), 1.29),
        (2366, [6000] * 10, 0.1, (1, 2849, 600, 605), 1.29),
    ],
    ids=["COVCLS", "MNIST-1", "MNIST-0.1", "Cifar10"],
)
def test_table_one_from_the_draws_of_its_authors(
    seed: int, supply: list[int], concentration: float, sizes: tuple[int, ...], c_score: float
) -> None:
    random, columns = np.random.RandomState(seed), np.array(supply)
    shares, classes = random.dirichlet(np.ones(100)), random.dirichlet(np.full(len(supply), concentration), 100)
    rows = np.round(shares * columns.sum()).astype(np.int64)
    assert (rows.min(), rows.max(), round(rows.mean()), int(rows.std())) == sizes
    rows[rows.argmax()] -= rows.sum() - columns.sum()
    margins = TableMargins(rows[:, None], columns, np.zeros_like(columns))
    wanted = [Target(np.arange(len(columns)), classes * rows[:, None])]
    table = reconcile(margins, wanted, np.random.default_rng(0))
    found = np.abs(table / rows[:, None] - columns / columns.sum()).sum(1).mean()
    assert found == pytest.approx(c_score, abs=0.04)
