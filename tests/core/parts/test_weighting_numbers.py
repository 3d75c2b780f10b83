"""What an update counts, number by number."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from archipel.core.parts import (
    ByConsistency,
    ByDistributedValidation,
    ByExamples,
    ByFreshness,
    ByGradientNorm,
    Equally,
    Mean,
    Product,
    Replace,
)
from archipel.core.parts.weighting import Weighting
from archipel.core.types import HOME, Consistency, Consistent, Metrics, Score, Scored
from tests.core.parts.by_hand import Bench, layout


@pytest.fixture
def bench() -> Bench:
    return Bench(layout(conv=1, fc=1))


# ----------------------------------------------------------------------------------------- examples, or all alike


def test_fedavg_weighs_by_examples(bench: Bench) -> None:
    assert ByExamples().weigh(bench.view(), bench.update(examples=37)) == 37.0


def test_examples_that_are_withheld_cannot_be_weighed_by(bench: Bench) -> None:
    assert ByExamples().weigh(bench.view(), bench.update("b", examples=None)) is None
    assert Equally().weigh(bench.view(), bench.update("b", examples=None)) == 1.0


# ---------------------------------------------------------------------------------------------------- freshness


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        # FedAsync: alpha itself
        (ByFreshness("constant"), {0: 1.0, 1: 1.0, 50: 1.0}),
        # (s + 1)^-1/2: 1/1, 1/sqrt 4, 1/sqrt 9, 1/sqrt 100
        (ByFreshness("poly", a=0.5), {0: 1.0, 3: 1 / 2, 8: 1 / 3, 99: 1 / 10}),
        # (s + 1)^-2
        (ByFreshness("poly", a=2), {0: 1.0, 1: 1 / 4, 4: 1 / 25}),
        # 1 up to b = 4, then 1 / (10 (s - 4) + 1): s = 5 gives 1/11, s = 6 gives 1/21, s = 14 gives 1/101
        (ByFreshness("hinge", a=10, b=4), {0: 1.0, 4: 1.0, 5: 1 / 11, 6: 1 / 21, 14: 1 / 101}),
        # (2/e)^s: 2 / 2.718281828 = 0.7357588823, 4 / 7.389056099 = 0.5413411329
        (ByFreshness("exp"), {0: 1.0, 1: 0.7357588823428847, 2: 0.5413411329464507}),
        (ByFreshness("inv"), {0: 1.0, 1: 1 / 2, 3: 1 / 4, 9: 1 / 10}),
        # the natural logarithm: 1 / (0.6931471806 + 1), 1 / (1.0986122887 + 1)
        (ByFreshness("log"), {0: 1.0, 1: 0.5906161091496412, 2: 0.4765053580405043}),
    ],
    ids=lambda value: value.curve if isinstance(value, ByFreshness) else "",
)
def test_freshness_curves(bench: Bench, part: Any, expected: Any) -> None:
    found = {s: part.weigh(bench.view(), bench.update(stale=s)) for s in expected}
    assert found == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("curve", ["poly", "hinge", "exp", "inv", "log"])
def test_every_curve_falls_and_never_exceeds_one(curve: Any) -> None:
    part = ByFreshness(curve, a=10 if curve == "hinge" else 0.5)
    values = [part.at(s) for s in range(40)]
    assert all(0 < later <= earlier <= 1 for earlier, later in pairwise(values))
    assert values[39] < 0.25
    assert part.at_most_one


def test_staleness_as_xie_counts_it_is_one_more() -> None:
    # s(t - tau) of a fresh update: poly (1 + 1)^-.5; hinge forgives b - 1 commits of others
    bench = Bench(layout(w=1))
    own = [
        ByFreshness("poly", 0.5, b=4, counts_own_commit=True),
        ByFreshness("hinge", 10.0, b=4, counts_own_commit=True),
    ]
    found = [[part.weigh(bench.view(), bench.update(stale=s)) for s in (0, 3, 4)] for part in own]
    assert found == [pytest.approx([2**-0.5, 5**-0.5, 6**-0.5]), [1.0, 1.0, 1 / 11]]


def test_freshness_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="curve should be one of constant, poly, hinge, exp, inv, log, got 'hing'"):
        ByFreshness("hing")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ByFreshness: a should be more than 0, got 0"):
        ByFreshness("poly", a=0)
    with pytest.raises(ValueError, match="ByFreshness: b should be at least 0, got -1"):
        ByFreshness("hinge", b=-1)


# ------------------------------------------------------------------------------------------- TVW: formula 4 in full


def formula_4(sizes: list[int], staleness: list[int], f: Callable[[int], float]) -> list[float]:
    """TW of Fed2A, letter by letter: n_k / n_t, f(t, k) / f(t), then normalised by TW_t."""
    n_t = sum(sizes)
    f_t = sum(f(s) for s in staleness)
    tw = [n / n_t * f(s) / f_t for n, s in zip(sizes, staleness, strict=True)]
    tw_t = sum(tw)
    return [value / tw_t for value in tw]


CURVES = {
    "exp": lambda s: (math.e / 2) ** (-s),
    "inv": lambda s: 1 / (s + 1),
    "log": lambda s: 1 / (math.log(s + 1) + 1),
}


def weights_of(part: Any, bench: Bench, updates: Any) -> Any:
    return [part.weigh(bench.view(), update) for update in updates]


def test_tvw_worked_out() -> None:
    # n = 10, 30, 60, so n_k / n_t = .1, .3, .6; s = 0, 1, 3, so f = 1, 1/2, 1/4 and f(t) = 7/4
    # TW_k = .1 x 4/7, .3 x 2/7, .6 x 1/7 = .4/7, .6/7, .6/7; TW_t = 1.6/7; normalised: 1/4, 3/8, 3/8
    assert formula_4([10, 30, 60], [0, 1, 3], CURVES["inv"]) == pytest.approx([0.25, 0.375, 0.375], rel=1e-15)
    # the factors that all share cancel: 10 x 1, 30 / 2, 60 / 4 = 10, 15, 15
    bench = Bench(layout(w=1))
    updates = [
        bench.update("a", [4.0], examples=10, stale=0),
        bench.update("b", [8.0], examples=30, stale=1),
        bench.update("c", [16.0], examples=60, stale=3),
    ]
    weights = weights_of(Product(ByExamples(), ByFreshness("inv")), bench, updates)
    assert weights == [10.0, 15.0, 15.0]
    # w = 4/4 + 3 x 8/8 + 3 x 16/8 = 1 + 3 + 6
    assert bench.commit(Mean(), Replace(), updates, weights) == [10.0]


@pytest.mark.parametrize("curve", sorted(CURVES))
@pytest.mark.parametrize(
    ("sizes", "staleness"),
    [([1500, 2500, 1900], [0, 2, 7]), ([900, 1500], [3, 3]), ([7, 1, 400, 33, 5], [0, 1, 0, 12, 4])],
)
def test_tvw_is_formula_4_for_every_curve(bench: Bench, curve: Any, sizes: list[int], staleness: list[int]) -> None:
    updates = [bench.update(examples=n, stale=s) for n, s in zip(sizes, staleness, strict=True)]
    weights = weights_of(Product(ByExamples(), ByFreshness(curve)), bench, updates)
    normalised = [weight / sum(weights) for weight in weights]
    assert normalised == pytest.approx(formula_4(sizes, staleness, CURVES[curve]), rel=1e-13)


def test_fed2a_weighs_every_layer_by_freshness_times_consistency() -> None:
    # Algorithm 1, lines 8, 13 and 17. TW = 10, 15, 15 (above); rc of layer conv 1, .4, .2, of layer fc .3, 0, .6
    # conv: 10, 6, 3 of 19; fc: 3, 0, 9 of 12
    probe = Consistency("cosine")
    bench = Bench(layout(conv=1, fc=1))
    rows = [("a", 10, 0, (1.0, 0.3), [19.0, 4.0]), ("b", 30, 1, (0.4, 0.0), [38.0, 99.0])]
    rows.append(("c", 60, 3, (0.2, 0.6), [57.0, 8.0]))
    updates = [
        bench.update(name, numbers, examples=n, stale=s, evidence=[(HOME, probe, Consistent(rc))])
        for name, n, s, rc, numbers in rows
    ]
    weights = weights_of(Product(ByExamples(), ByFreshness("inv"), ByConsistency("cosine")), bench, updates)
    assert weights == [pytest.approx(w) for w in [(10.0, 3.0), (6.0, 0.0), (3.0, 9.0)]]
    # conv: (10 x 19 + 6 x 38 + 3 x 57) / 19 = 10 + 12 + 9 = 31; fc: (3 x 4 + 9 x 8) / 12 = 7
    assert bench.commit(Mean(), Replace(), updates, weights) == pytest.approx([31.0, 7.0], rel=1e-6)


# ------------------------------------------------------------------------------------- distributed validation (DVW)

OWN = Scored(8, 4.0, np.array([[3, 1], [0, 4]]))
OTHER = Scored(8, 8.0, np.array([[2, 2], [1, 3]]))
# pooled: [[5, 3], [1, 7]], 16 examples, losses 12
SCORE = Score("validation")


def asked(*results: Scored | None) -> Any:
    return [(f"site {i}", SCORE, result) for i, result in enumerate(results)]


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("micro_f1", 0.75),  # TP 12, FP 4, FN 4: 24 / (24 + 4 + 4)
        ("accuracy", 0.75),  # 12 / 16
        ("macro_f1", 47 / 63),  # 10 / (10 + 1 + 3) = 5/7 and 14 / (14 + 3 + 1) = 7/9: (45 + 49) / 63 / 2
        ("binary_f1", 7 / 9),
        ("geometric_mean", math.sqrt(35) / 8),  # recalls 5/8 and 7/8
        ("matthews", 32 / math.sqrt(3840)),  # (7 x 5 - 3 x 1) / sqrt(10 x 8 x 8 x 6)
        ("loss", 4 / 3),  # 12 / 16 = 3/4, and one over that
    ],
)
def test_dvw_pools_the_confusion_matrices(bench: Bench, name: str, weight: Any) -> None:
    part = ByDistributedValidation(name)
    update = bench.update(metrics=Metrics(validation=OWN), evidence=asked(OTHER))
    assert part.weigh(bench.view(), update) == pytest.approx(weight, rel=1e-13)


def test_dvw_by_auc_pools_the_histograms(bench: Bench) -> None:
    part = ByDistributedValidation("auc")
    assert part.probe == Score("validation", bins=1024)
    assert part.needs.reports == ("validation scores",)
    idle = [[0, 0], [0, 0]]
    # class 1, [others, own] by bin: together others 2, 1 and own 1, 2 of two bins
    own = Scored(3, 0.0, np.eye(2, dtype=int), np.array([idle, [[2, 0], [0, 1]]]))
    other = Scored(3, 0.0, np.eye(2, dtype=int), np.array([idle, [[0, 1], [1, 1]]]))
    # own in the upper bin: above 2, ties with 1 = 2.5, twice; own in the lower bin: ties with 2 = 1; of 9 pairs
    update = bench.update(metrics=Metrics(validation=own), evidence=[("b", part.probe, other)])
    assert part.weigh(bench.view(), update) == pytest.approx(6 / 9, rel=1e-15)


def test_dvw_is_not_the_mean_of_the_sites_scores(bench: Bench) -> None:
    # 1 of 1 right here, 1 of 4 right there: pooled 2/5, the mean would be 5/8
    here, there = Scored(1, 0.0, np.array([[1, 0], [0, 0]])), Scored(4, 0.0, np.array([[0, 3], [0, 1]]))
    update = bench.update(metrics=Metrics(validation=here), evidence=asked(there))
    assert ByDistributedValidation().weigh(bench.view(), update) == 0.4


def test_dvw_a_correlation_below_zero_is_worth_nothing(bench: Bench) -> None:
    wrong = Scored(4, 4.0, np.array([[0, 2], [2, 0]]))  # Matthews: -1
    update = bench.update(metrics=Metrics(validation=wrong))
    assert ByDistributedValidation("matthews").weigh(bench.view(), update) == 0.0


def test_dvw_loss_that_is_not_finite_is_no_evidence(bench: Bench) -> None:
    for loss in (math.nan, math.inf):
        update = bench.update(metrics=Metrics(validation=Scored(4, loss)))
        assert ByDistributedValidation("loss").weigh(bench.view(), update) is None
    perfect = bench.update(metrics=Metrics(validation=Scored(4, 0.0)))
    weight = ByDistributedValidation("loss").weigh(bench.view(), perfect)
    assert isinstance(weight, float)
    assert math.isfinite(weight)


@pytest.mark.parametrize(
    ("quorum", "came", "suffices"),
    [
        # three sites are asked and the learner has an opinion of its own: four
        (0.5, 1, True),  # 2 of 4 >= .5 x 4
        (0.5, 0, False),  # 1 of 4
        (0.75, 2, True),  # 3 of 4
        (0.75, 1, False),
        (1.0, 3, True),
        (1.0, 2, False),
        (0.25, 0, True),  # its own opinion alone
    ],
)
def test_dvw_quorum(bench: Bench, quorum: float, came: Any, suffices: bool) -> None:
    results = [OTHER] * came + [None] * (3 - came)
    update = bench.update(metrics=Metrics(validation=OWN), evidence=asked(*results))
    weight = ByDistributedValidation(quorum=quorum).weigh(bench.view(), update)
    # OWN has 7 of 8 right, OTHER 5 of 8; missing opinions are left out, not counted as wrong
    assert weight == (pytest.approx((7 + 5 * came) / (8 + 8 * came)) if suffices else None)


def test_dvw_without_any_opinion_cannot_weigh(bench: Bench) -> None:
    assert ByDistributedValidation().weigh(bench.view(), bench.update()) is None


def test_dvw_an_opinion_on_no_examples_is_none(bench: Bench) -> None:
    empty = Scored(0, 0.0, np.zeros((2, 2), dtype=int))
    update = bench.update(metrics=Metrics(validation=OWN), evidence=asked(empty, empty))
    assert ByDistributedValidation(quorum=0.5).weigh(bench.view(), update) is None
    assert ByDistributedValidation(quorum=0.3).weigh(bench.view(), update) == 7 / 8


def test_dvw_a_learner_without_validation_examples_is_not_held_against_itself(bench: Bench) -> None:
    # others without a validation part are not asked, so its own empty one is no missing opinion either
    empty = Scored(0, 0.0, np.zeros((2, 2), dtype=int))
    update = bench.update(metrics=Metrics(validation=empty), evidence=asked(OTHER))
    assert ByDistributedValidation(quorum=1.0).weigh(bench.view(), update) == 5 / 8


def federation(bench: Bench) -> None:
    for name in "abcdef":
        bench.join(name, validation=5)
    bench.join("without validation", validation=0)
    bench.join("held out", validation=5, role="test")
    bench.join("gone", validation=5, active=False)


def test_dvw_asks_all_other_learners_that_can_tell(bench: Bench) -> None:
    federation(bench)
    questions = list(ByDistributedValidation().ask(bench.view(), bench.update("c")))
    assert questions == [(tuple("abdef"), SCORE, None)]


def test_dvw_asks_so_many_drawn_anew_for_each_update(bench: Bench) -> None:
    federation(bench)
    part = ByDistributedValidation(evaluators=2)
    seen = set()
    for _ in range(60):
        update = bench.update("c")
        ((sites, _, _),) = part.ask(bench.view(), update)
        assert [(sites, SCORE, None)] == part.ask(bench.view(), update), "a replay asks the same"
        assert len(sites) == 2
        seen.add(sites)
    # every pair of the five others, in order of their names: 5 x 4 / 2
    assert seen == {(x, y) for x in "abdef" for y in "abdef" if x < y}
    ((everybody, _, _),) = ByDistributedValidation(evaluators=9).ask(bench.view(), bench.update("c"))
    assert everybody == tuple("abdef")


def test_dvw_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match=r"metric 'microf1' is not known\. Did you mean 'micro_f1'"):
        ByDistributedValidation("microf1")
    with pytest.raises(ValueError, match="quorum should be above 0 and at most 1, got 0"):
        ByDistributedValidation(quorum=0)
    with pytest.raises(ValueError, match="evaluators should be at least 1, got 0"):
        ByDistributedValidation(evaluators=0)


def test_only_weights_by_loss_may_exceed_one() -> None:
    assert ByDistributedValidation("micro_f1").at_most_one
    assert not ByDistributedValidation("loss").at_most_one


# ----------------------------------------------------------------------------------- consistency and gradient norm


def test_rce_asks_home_to_compare_with_the_current_model(bench: Bench) -> None:
    part = ByConsistency("euclidean")
    assert list(part.ask(bench.view(), bench.update())) == [((HOME,), Consistency("euclidean"), bench.state.model)]
    assert part.needs.stimuli


def test_rce_weighs_layer_by_layer(bench: Bench) -> None:
    probe = Consistency("cosine")
    answered = bench.update(evidence=[(HOME, probe, Consistent((0.9, 0.4)))])
    assert ByConsistency().weigh(bench.view(), answered) == (0.9, 0.4)
    assert ByConsistency().weigh(bench.view(), bench.update(evidence=[(HOME, probe, None)])) is None


def test_hdafl_other_option_weighs_by_the_norm_of_the_gradient(bench: Bench) -> None:
    # learners report the squared norm
    assert ByGradientNorm().weigh(bench.view(), bench.update(metrics=Metrics(gradient_norm=6.25))) == 2.5
    assert ByGradientNorm().weigh(bench.view(), bench.update()) is None
    assert ByGradientNorm().needs.reports == ("gradient norm per batch",)


# ---------------------------------------------------------------------------------------------------------- product


def test_product_of_a_number_and_layers(bench: Bench) -> None:
    probe = Consistency("cosine")
    update = bench.update(examples=10, stale=1, evidence=[(HOME, probe, Consistent((0.5, 0.25)))])

    def weigh(*parts: Weighting) -> float | tuple[float, ...] | None:
        return Product(*parts).weigh(bench.view(), update)

    assert weigh(ByExamples(), ByFreshness("inv")) == 5.0
    assert weigh(ByExamples(), ByConsistency()) == (5.0, 2.5)
    assert weigh(ByConsistency(), ByExamples()) == (5.0, 2.5)
    assert weigh(ByExamples(), ByFreshness("inv"), ByConsistency()) == (2.5, 1.25)


def test_product_of_layers_and_layers(bench: Bench) -> None:
    update = bench.update(
        evidence=[
            (HOME, Consistency("cosine"), Consistent((0.5, 0.25))),
            (HOME, Consistency("euclidean"), Consistent((0.5, 1.0))),
        ]
    )
    assert Product(ByConsistency(), ByConsistency("euclidean")).weigh(bench.view(), update) == (0.25, 0.25)


def test_product_of_two_validations_pools_each_opinion_once(bench: Bench) -> None:
    # both ask the same question, so the answers of one must not be pooled with those of the other
    bench.join("a", validation=8)
    bench.join("b", validation=8)
    part = Product(ByDistributedValidation("accuracy"), ByDistributedValidation("matthews"))
    update = bench.update("a", metrics=Metrics(validation=OWN))
    questions = list(part.ask(bench.view(), update))
    update = bench.update(
        "a",
        metrics=Metrics(validation=OWN),
        evidence=[(site, probe, OTHER) for sites, probe, _ in questions for site in sites],
    )
    # 12/16 x 32 / sqrt 3840, as above
    assert part.weigh(bench.view(), update) == pytest.approx(0.75 * 32 / math.sqrt(3840), rel=1e-13)


def test_product_lacks_evidence_where_a_factor_does(bench: Bench) -> None:
    part = Product(ByExamples(), ByDistributedValidation())
    assert part.weigh(bench.view(), bench.update()) is None


def test_product_asks_and_reports_what_its_factors_do(bench: Bench) -> None:
    federation(bench)
    part = Product(ByDistributedValidation(evaluators=1), ByConsistency(), ByGradientNorm(), ByGradientNorm())
    questions = list(part.ask(bench.view(), bench.update("c")))
    assert [type(probe) for _, probe, _ in questions] == [Score, Consistency]
    assert part.needs.reports == ("validation", "gradient norm per batch")
    assert (part.needs.validation, part.needs.stimuli, part.at_most_one) == (True, True, False)
    plain = Product(Equally(), ByFreshness())
    assert (plain.needs.validation, plain.needs.stimuli, plain.at_most_one) == (False, False, True)


def test_product_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="two weightings or more, got 1"):
        Product(ByExamples())
    with pytest.raises(ValueError, match=r"0\.5 is not a Weighting; write a subclass of Weighting"):
        Product(ByExamples(), 0.5)  # type: ignore[arg-type]
