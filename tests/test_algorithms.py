"""Every method as a line that names its parts: what it is, that its repr rebuilds it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import archipel
from archipel import (
    Adagrad,
    Adam,
    Algorithm,
    ByConsistency,
    ByDistributedValidation,
    ByExamples,
    ByFreshness,
    ByGradientNorm,
    ByImportance,
    ByLoss,
    ByTier,
    ByUtility,
    Community,
    ControlVariates,
    Decay,
    DivideAndConquer,
    DynamicMean,
    DynamicRegulariser,
    Equally,
    Everyone,
    FairChange,
    FineTuned,
    FrozenLayers,
    HeadFirst,
    KeptModel,
    LayerByLayer,
    Layout,
    LearnerMomentum,
    LogitCalibration,
    MatchedMean,
    Mean,
    MeanChange,
    MedianStaleness,
    MetaDescent,
    Mix,
    MixedDescent,
    MixedModel,
    ModelContrast,
    Momentum,
    MoreauDescent,
    NormalisedChange,
    NotTrueDistillation,
    PeriodicLayers,
    PersonalPhase,
    Plan,
    PrivateLayers,
    Product,
    Proximal,
    Relay,
    Replace,
    Rounds,
    Stream,
    Uniform,
    ValidationCycle,
    Yogi,
    algorithms,
)
from archipel.models import mlp

CIFAR10 = Plan(epochs=4, batch=100, rate=0.05, momentum=0.75)
"""Metis section VI: eta, gamma and beta of its CIFAR-10 runs, and its best update frequency."""

# the papers, as lines; what is not named is Rounds(1.0), Uniform, ByExamples, Mean, Replace
LINES = {
    "fedavg": Algorithm("fedavg", Rounds(1.0), Uniform(), ByExamples(), Mean(), Replace(1.0)),
    "fedprox": Algorithm("fedprox", planners=(Proximal(0.01),)),
    # Reddi and RADFed section IV.E: beta1 .9, beta2 .99
    "fedadam": Algorithm("fedadam", server=Adam(0.01, 0.9, 1e-4, 0.0, 0.99)),
    "fedyogi": Algorithm("fedyogi", server=Yogi(0.01, 0.9, 1e-4, 0.0, 0.99)),
    "fedadagrad": Algorithm("fedadagrad", server=Adagrad(0.01, 0.9, 1e-4, 0.0)),
    # Metis section VI: a = .5, rho = .005; RADFed tunes alpha over .3, .6, .9
    "fedasync": Algorithm(
        "fedasync",
        Stream(1),
        weighting=ByFreshness("poly", 0.5),
        merge=Mix(0.6),
        planners=(Proximal(0.005),),
    ),
    "async_fedavg": Algorithm("async_fedavg", Stream(1), merge=Community(), plan=CIFAR10),
    "sync_dvw": Algorithm("sync_dvw", Rounds(1.0), weighting=ByDistributedValidation("micro_f1"), plan=CIFAR10),
    "async_dvw": Algorithm(
        "async_dvw",
        Stream(1),
        weighting=ByDistributedValidation("micro_f1"),
        merge=Community(),
        planners=(ValidationCycle(0.0, 1, 50),),
        recall=MedianStaleness(20),
        plan=CIFAR10,
    ),
    # Fed2A Table 4's footnote: PLU(300, 10, 7), TVW-inv; section 4.3: cosine
    "fed2a": Algorithm(
        "fed2a",
        Stream(5),
        weighting=Product(ByExamples(), ByFreshness("inv"), ByConsistency("cosine")),
        planners=(PeriodicLayers(10, 7, "deep"),),
    ),
    "plu": Algorithm("plu", Stream(5), planners=(PeriodicLayers(10, 7, "deep"),)),
    "tvw": Algorithm("tvw_inv", Stream(5), weighting=Product(ByExamples(), ByFreshness("inv"))),
    "rce": Algorithm("rce", Stream(5), weighting=ByConsistency("cosine")),
    # D&C section 4.2: a pre-pass of 5, 20 and 4 epochs, half the rate, .001 falling by 10 %
    "divide_and_conquer": Algorithm(
        "divide_and_conquer",
        Rounds(1.0),
        weighting=Equally(),
        planners=(DivideAndConquer(5, None, 20, 4, 0.5, "cosine"), Decay(0.9)),
        plan=Plan(epochs=20, rate=0.001),
    ),
    # Hsu et al. section 4.3: beta .9; Nguyen et al. section 5: K = 10, (1 + tau)^-1/2
    "fedavgm": Algorithm("fedavgm", server=Momentum(1.0, 0.9)),
    "fedbuff": Algorithm("fedbuff", Stream(10), weighting=ByFreshness("poly", 0.5), merge=MeanChange()),
    "fednova": Algorithm("fednova", merge=NormalisedChange()),
    # the published code for VGG9: 20 epochs, batch 64, SGD .01 and .9; sigma 1, sigma0 1, gamma 7, 5 iterations
    "fedma": Algorithm(
        "fedma",
        Rounds(1.0),
        weighting=Equally(),
        merge=MatchedMean(1.0, 1.0, 7.0, 5, 1.5),
        planners=(LayerByLayer(),),
        plan=Plan(epochs=20, batch=64, rate=0.01, momentum=0.9),
    ),
    # HDAFL section 5.1: 50 of 100, E = 1
    "hdafl": Algorithm("hdafl", Rounds(0.5), planners=(PrivateLayers("head"),), plan=Plan(epochs=1)),
    "lg_fedavg": Algorithm("lg_fedavg", Rounds(0.5), planners=(PrivateLayers("features"),), plan=Plan(epochs=1)),
    # Arivazhagan et al.: E = 4, .01; Li et al. (FedBN): E = 1, .01; Oh et al.: C = .1, .1, momentum .9
    "fedper": Algorithm("fedper", planners=(PrivateLayers("head"),), plan=Plan(epochs=4, rate=0.01)),
    "fedbn": Algorithm("fedbn", planners=(PrivateLayers("norms"),), plan=Plan(rate=0.01)),
    "fedbabu": Algorithm(
        "fedbabu",
        Rounds(0.1),
        planners=(FrozenLayers("head"),),
        personal=FineTuned(5),
        plan=Plan(rate=0.1, momentum=0.9),
    ),
    # Collins et al. section 5: C = .1, 10 epochs of the head and 1, batch 10, .01, momentum .5
    "fedrep": Algorithm(
        "fedrep",
        Rounds(0.1),
        planners=(PrivateLayers("head"), HeadFirst("head", 10)),
        plan=Plan(batch=10, rate=0.01, momentum=0.5),
    ),
    "fedlc": Algorithm("fedlc", objective=LogitCalibration(1.0)),
    # Lee et al.: the authors' config/fedntd.json
    "fedntd": Algorithm(
        "fedntd",
        Rounds(0.1),
        plan=Plan(epochs=5, batch=50, rate=0.01, momentum=0.9, options={"weight_decay": 1e-5}),
        objective=NotTrueDistillation(1.0, 1.0),
    ),
    # Li et al. (Ditto): lambda 1; Li et al. (MOON) section 4.1: mu 5, tau .5, 10 epochs of .01, .9, 1e-5, batch 64
    "ditto": Algorithm("ditto", weighting=Equally(), planners=(PersonalPhase(1.0, 1),), personal=KeptModel()),
    "moon": Algorithm(
        "moon",
        objective=ModelContrast(5.0, 0.5),
        plan=Plan(epochs=10, batch=64, rate=0.01, momentum=0.9, options={"weight_decay": 1e-5}),
    ),
    # Dinh et al.'s program for MNIST: lambda 15, K 5, .1, R 20, .005, 5 of 20; and what it runs Per-FedAvg with
    "pfedme": Algorithm(
        "pfedme",
        Rounds(0.25),
        weighting=Equally(),
        descent=MoreauDescent(15.0, 5, 0.1),
        personal=KeptModel(),
        plan=Plan(steps=20, batch=20, rate=0.005),
    ),
    "per_fedavg": Algorithm(
        "per_fedavg",
        Rounds(0.25),
        weighting=Equally(),
        descent=MetaDescent(0.005),
        personal=FineTuned(steps=1, rate=0.005, momentum=0.0),
        plan=Plan(steps=20, batch=40, rate=0.001),
    ),
    "apfl": Algorithm("apfl", weighting=Equally(), descent=MixedDescent(0.5), personal=MixedModel()),
    # Cho et al.: d = 10 of 100, m = 3 to 30; Lai et al. section 7: .9, .98, .2 and 95 %
    "power_of_choice": Algorithm("power_of_choice", Rounds(0.1), ByLoss(10), Equally()),
    "oort": Algorithm("oort", Rounds(0.1), ByUtility(0.9, 0.98, 0.2, 0.95)),
    "tifl": Algorithm("tifl", Rounds(0.1), ByTier()),
    # Li et al. section 4: q = 1 on synthetic data and Sent140
    "qfedavg": Algorithm("qfedavg", weighting=Equally(), merge=FairChange(1.0, 0.05)),
    # Karimireddy et al. section 7: eta_g = 1, 20 %; Acar et al. and Xu et al.: 10 %, 5 epochs of .1, batch 50, 1e-3
    "scaffold": Algorithm("scaffold", Rounds(0.2), weighting=Equally(), planners=(ControlVariates(),)),
    "feddyn": Algorithm(
        "feddyn",
        Rounds(0.1),
        weighting=Equally(),
        merge=DynamicMean(),
        planners=(DynamicRegulariser(0.01),),
        plan=Plan(epochs=5, batch=50, rate=0.1, options={"weight_decay": 1e-3}),
    ),
    "fedcm": Algorithm(
        "fedcm",
        Rounds(0.1),
        weighting=Equally(),
        planners=(LearnerMomentum(0.1),),
        plan=Plan(epochs=5, batch=50, rate=0.1, options={"weight_decay": 1e-3}),
    ),
    # RADFed: C = .1, E = 1, S and gamma of Table II
    "radfed": Algorithm("radfed", Relay(0.1, 15), weighting=Equally(), plan=Plan(epochs=1)),
    "radfed_i": Algorithm("radfed_i", Relay(0.1, 15), ByImportance(0.9, "sample"), Equally()),
    "radfed_p": Algorithm("radfed_p", Relay(0.1, 15), weighting=Equally(), planners=(Proximal(0.01),)),
    "radfed_m": Algorithm("radfed_m", Relay(0.1, 15), weighting=Equally(), server=Replace(0.6)),
    "radfed_a": Algorithm("radfed_a", Relay(0.1, 15), weighting=Equally(), server=Adam(0.01, tau=1e-4)),
    "local_only": Algorithm("local_only", planners=(PrivateLayers("all"),)),
    "centralised": Algorithm("centralised", pooled=True),
}

SETTINGS = [
    algorithms.fedavg(0.1, equally=True, deadline=30.0, epochs=5, batch=10, rate=0.1, momentum=0.9),
    algorithms.fedavg(optimiser="AdamW", options={"weight_decay": 1e-4, "betas": (0.9, 0.99)}, steps=7),
    algorithms.fedprox(1.0, 0.5),
    algorithms.fedadam(0.1, 1e-8, 0.01, 0.2),
    algorithms.fedasync(0.9, "hinge", concurrency=6),
    algorithms.fedasync(0.3, "constant", rho=0),
    algorithms.sync_dvw("matthews", quorum=0.9, evaluators=3),
    algorithms.async_dvw(False, "loss"),
    algorithms.async_dvw(loss={"fast": 0, "slow": 1}, tombstones={"fast": 4, "slow": 1}, at_most=9, recall_after=5),
    algorithms.fed2a(3, 60.0, 8, 5, ("fc1", "head"), "exp", "euclidean", rate=0.01),
    algorithms.tvw("log"),
    algorithms.divide_and_conquer(0, "conv5", 2, 0.1, "euclidean", 0.3, 1.0, 0.5, epochs=3),
    algorithms.divide_and_conquer(split=5),
    algorithms.fedper("deep", 0.5),
    algorithms.fedbabu(("fc2", "head"), 0.5),
    algorithms.tifl({"fast": 0.7, "slow": 0.3}, 20, 0.5),
    algorithms.qfedavg(0.1, 0.5, rate=0.2),
    algorithms.fedavgm(0.5, 0.1, 0.2),
    algorithms.fedbuff(3, 1.0, 0.5, 0.3, 6),
    algorithms.fednova(0.1, 0.5, rate=0.2),
    algorithms.fednova(momentum=0.9),
    algorithms.fedma(0.5, 2.0, 1.0, 3, 1.0, 0.5, epochs=2),
    algorithms.scaffold(0.5, 0.3),
    algorithms.fedrep(("fc2", "head"), 3, 0.5),
    algorithms.fedlc(0.5, 0.5),
    algorithms.ditto(0.5, 3, 0.5),
    algorithms.moon(1.0, 0.2, 0.5, epochs=1),
    algorithms.pfedme(5.0, 3, 0.05, 2.0, 0.5, epochs=2),
    algorithms.per_fedavg(0.01, "differences", 2, 0.5),
    algorithms.apfl(0.25, True, 0.5),
    algorithms.fedbabu(tuning_epochs=0),
    algorithms.fedntd(0.3, 2.0, 0.5),
    algorithms.feddyn(0.1, 0.3, epochs=1),
    algorithms.fedcm(0.3, 0.5, 0.2),
    algorithms.hdafl(private=("fc2", "head"), by_gradient_norm=True),
    algorithms.radfed_i(0.2, 80, 0.8, "batch", epochs=10, batch=256),
    replace(algorithms.radfed(), name="mixture", weighting=ByDistributedValidation(), selection=Everyone()),
]


# ------------------------------------------------------------------------------------------------------- what they are


def test_every_constructor_has_its_line() -> None:
    assert sorted(LINES) == sorted(algorithms.__all__)


@pytest.mark.parametrize("name", sorted(LINES))
def test_defaults_are_the_papers(name: str) -> None:
    assert getattr(algorithms, name)() == LINES[name]


@pytest.mark.parametrize("algorithm", [*LINES.values(), *SETTINGS], ids=lambda a: a.name)
def test_the_repr_rebuilds_it(algorithm: Any) -> None:
    again = eval(repr(algorithm), dict(vars(archipel)))
    assert again == algorithm
    assert repr(again) == repr(algorithm)


def test_settings_that_differ_make_algorithms_that_differ() -> None:
    texts = [repr(algorithm) for algorithm in [*LINES.values(), *SETTINGS]]
    assert len(set(texts)) == len(texts)
    assert algorithms.fedprox(0.1) != algorithms.fedprox(0.2)


def test_hinge_is_steep_and_poly_is_not() -> None:
    # RADFed section IV.E: a = 10, b = 4 for hinge, a = .5 for poly
    assert algorithms.fedasync(curve="hinge").weighting == ByFreshness("hinge", 10, 4)
    assert algorithms.fedasync(curve="poly").weighting == ByFreshness("poly", 0.5, 4)
    assert algorithms.fedasync(curve="hinge", a=3).weighting == ByFreshness("hinge", 3, 4)


def test_dvw_that_is_not_adaptive_neither_cycles_nor_recalls() -> None:
    plain = algorithms.async_dvw(adaptive=False)
    assert (plain.planners, plain.recall, plain.plan.epochs) == ((), None, 4)


def test_options_of_the_constructors() -> None:
    assert algorithms.fedavg(equally=True).weighting == Equally()
    assert algorithms.fedavg(0.1, deadline=9.0).protocol == Rounds(0.1, deadline=9.0)
    assert algorithms.hdafl(by_gradient_norm=True).weighting == ByGradientNorm()
    assert algorithms.fedasync(concurrency=6).protocol == Stream(concurrency=6)
    assert algorithms.fed2a(3, 60.0).protocol == Stream(3, 60.0)
    assert algorithms.radfed_m(alpha=0.3).server == Replace(0.3)
    assert algorithms.radfed_i(gamma=0.8, score="batch").selection == ByImportance(0.8, "batch")
    # D&C's epochs are those of the pre-pass and of feature learning
    (part, *_) = algorithms.divide_and_conquer(epochs=3).planners
    assert isinstance(part, DivideAndConquer)
    assert part.epochs == 3


@pytest.mark.parametrize("name", sorted(LINES))
def test_every_constructor_takes_the_settings_of_local_training(name: str) -> None:
    local: dict[str, Any] = {
        "epochs": 3,
        "batch": 7,
        "rate": 0.2,
        "optimiser": "RMSprop",
        "momentum": 0.1,
        "options": {"eps": 1e-6},
    }
    if name in ("fednova", "scaffold", "fedcm", "apfl"):  # they have to know what steps add up to
        local |= {"optimiser": "SGD", "momentum": 0.1 if name == "fednova" else 0.0}
    algorithm = getattr(algorithms, name)(**local)
    assert algorithm.plan == Plan(**local)


# ------------------------------------------------------------------------------------------ what follows from parts


def test_only_what_validates_reserves_validation_examples() -> None:
    validating = sorted(name for name, algorithm in LINES.items() if algorithm.validates)
    assert validating == ["async_dvw", "sync_dvw"]


def test_what_learners_have_to_report() -> None:
    assert LINES["fedavg"].reports == ()
    assert LINES["sync_dvw"].reports == ("validation",)
    assert algorithms.sync_dvw("auc").reports == ("validation scores",)
    assert LINES["async_dvw"].reports == ("validation", "progress")
    assert LINES["radfed_i"].reports == ("gradient norm per sample",)
    both = replace(LINES["radfed_i"], selection=ByImportance(score="batch"), weighting=ByGradientNorm())
    assert both.reports == ("gradient norm per batch",)  # asked for twice, told once


def test_parts_have_the_roles_their_memory_lives_under() -> None:
    roles = [role for role, _ in algorithms.divide_and_conquer().parts()]
    assert roles == ["protocol", "selection", "weighting", "merge", "server", "planner.0", "planner.1"]
    assert [role for role, _ in algorithms.async_dvw().parts()][-2:] == ["planner.0", "recall"]


LAYOUT = Layout.of(mlp(4, 2, hidden=(3, 3)), torch.zeros(1, 4))  # fc1, fc2, head


def test_private_layers_of_all_planners() -> None:
    assert LINES["fedavg"].private(LAYOUT) == ()
    assert LINES["hdafl"].private(LAYOUT) == ("head",)
    assert LINES["lg_fedavg"].private(LAYOUT) == ("fc1", "fc2")
    assert LINES["local_only"].private(LAYOUT) == ("fc1", "fc2", "head")


def test_a_model_that_a_part_cannot_work_with_is_refused_before_the_run() -> None:
    LINES["fed2a"].check(LAYOUT)
    with pytest.raises(ValueError, match=r"PrivateLayers: no layer named 'fc9'\. Layers of this model: fc1, fc2"):
        algorithms.hdafl(private="fc9").check(LAYOUT)
    with pytest.raises(ValueError, match="DivideAndConquer: split should be between 1 and 2"):
        algorithms.divide_and_conquer(split=3).check(LAYOUT)


# ----------------------------------------------------------------------------------------------- nonsense is refused


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            {"protocol": Relay(), "merge": Community()},
            r"Relay does not go with Community, .* at several learners\. Use Mean\(\)",
        ),
        (
            {"protocol": Stream(), "merge": Mix()},
            r"Mix takes the weight itself .* ByExamples\(\) gives weights above 1\. Use ByFreshness\(\.\.\.\)",
        ),
        (
            {"merge": Mix(), "weighting": Product(ByFreshness(), ByExamples())},
            r"Product\(ByFreshness\(.*ByExamples\(\)\) gives weights above 1",
        ),
        ({"merge": Mix(), "weighting": ByDistributedValidation("loss")}, "gives weights above 1"),
        ({"merge": Mix(), "weighting": ByGradientNorm()}, "gives weights above 1"),
        (
            {"recall": MedianStaleness()},
            r"under Rounds there are no commits while tasks are open\. Use Stream\(\), or leave",
        ),
        ({"protocol": Relay(), "recall": MedianStaleness()}, r"under Relay there are no commits .* Use Stream\(\)"),
        (
            {"protocol": Stream(buffer=1), "planners": (DivideAndConquer(),)},
            r"DivideAndConquer compares the updates of a commit .* commits one at a time\. Give split=\.\.\., or a",
        ),
        ({"planners": (Proximal(0.1), Decay(), Proximal(0.2))}, "planners hold Proximal more than once; one of them"),
        (
            {"planners": (DivideAndConquer(), ValidationCycle())},
            "DivideAndConquer and ValidationCycle both set the epochs of a task; use one",
        ),
        (
            {"planners": (DivideAndConquer(),), "plan": Plan(steps=10)},
            "DivideAndConquer sets the epochs of a task, and the plan has steps=10",
        ),
        (
            {"planners": (ValidationCycle(),), "plan": Plan(steps=10)},
            "steps=10",
        ),
        ({"protocol": "rounds"}, r"protocol should be a Protocol such as Rounds\(.*got 'rounds'"),
        ({"weighting": ByExamples}, r"weighting should be a Weighting such as ByExamples\(\), got <class"),
        ({"merge": Replace()}, r"merge should be a Merge such as Mean\(\), got Replace\(rate=1\.0\)"),
        ({"plan": {"epochs": 3}}, r"plan should be a Plan such as Plan\(.*got \{'epochs': 3\}"),
        ({"planners": (Equally(),)}, r"Equally\(\) in planners is not a Planner"),
        ({"protocol": Stream(), "recall": 20}, "recall .*20"),
    ],
)
def test_nonsense_is_refused_when_it_is_made(parts: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        Algorithm("mine", **parts)
    assert str(error.value).startswith("mine: "), "the algorithm is named"


@pytest.mark.parametrize(
    "parts",
    [
        {"protocol": Stream(buffer=2), "planners": (DivideAndConquer(),)},
        {"protocol": Stream(buffer=1), "planners": (DivideAndConquer(split=1),)},
        {"protocol": Relay(), "planners": (DivideAndConquer(), Decay())},
        {"protocol": Stream(), "merge": Mix(), "weighting": Product(ByFreshness(), ByDistributedValidation())},
        {"protocol": Stream(), "merge": Mix(), "weighting": Equally()},
        {"protocol": Rounds(), "merge": Community()},
        {"protocol": Relay(), "weighting": ByDistributedValidation()},
        {"protocol": Stream(), "planners": (PrivateLayers("head"), PeriodicLayers(deep="deep"))},
    ],
    ids=str,
)
def test_mixtures_that_no_paper_tried_are_not_refused(parts: Any) -> None:
    mine = Algorithm("mine", **parts)
    assert eval(repr(mine), dict(vars(archipel))) == mine


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: algorithms.fedavg(0), "Rounds: fraction should be above 0 and at most 1, got 0"),
        (lambda: algorithms.fedavg(1.2), r"Rounds: fraction should be above 0 and at most 1, got 1\.2"),
        (lambda: algorithms.fedavg("half"), "fedavg: fraction should be a number, got 'half'"),  # type: ignore[arg-type]
        (lambda: algorithms.fedavg(deadline=0), "Rounds: deadline should be more than 0, got 0"),
        (lambda: algorithms.fedavg(epochs=0), "Plan: epochs should be at least 1, got 0"),
        (lambda: algorithms.fedavg(steps=0), "Plan: steps should be at least 1, got 0"),
        (lambda: algorithms.fedavg(batch=0), "Plan: batch should be at least 1, got 0"),
        (lambda: algorithms.fedavg(rate=0), "Plan: rate should be more than 0, got 0"),
        (lambda: algorithms.fedavg(rate=float("inf")), "Plan: rate should be more than 0, got inf"),
        (lambda: algorithms.fedavg(momentum=1), "Plan: momentum should be at least 0 and below 1, got 1"),
        (lambda: algorithms.fedavg(momentum=-0.1), r"Plan: momentum should be at least 0 and below 1, got -0\.1"),
        (
            lambda: algorithms.fedavg(optimiser="Adam", momentum=0.9),
            r"momentum=0\.9 goes with SGD and RMSprop, not with Adam; give that optimiser's own settings in options=",
        ),
        (lambda: algorithms.async_fedavg(optimiser="Adam"), r"momentum=0\.75 goes with SGD and RMSprop, not with Adam"),
        (lambda: algorithms.fedprox(-1), "Proximal: mu should be at least 0, got -1"),
        (lambda: algorithms.fedasync(0), "Mix: alpha should be above 0 and at most 1, got 0"),
        (lambda: algorithms.fedasync(1.5), r"Mix: alpha should be above 0 and at most 1, got 1\.5"),
        (lambda: algorithms.fedasync(curve="hing"), r"got 'hing'\. Did you mean 'hinge'"),  # type: ignore[arg-type]
        (lambda: algorithms.fedasync(concurrency=0), "Stream: concurrency should be at least 1, got 0"),
        (lambda: algorithms.fed2a(0), "Stream: buffer should be at least 1, got 0"),
        (lambda: algorithms.fed2a(max_wait=0), "Stream: max_wait should be more than 0, got 0"),
        (lambda: algorithms.fed2a(period=5, last=7), r"last \(D\) should be between 0 and the period 5, got 7"),
        (lambda: algorithms.fed2a(distance="cosin"), r"got 'cosin'\. Did you mean 'cosine'"),  # type: ignore[arg-type]
        (lambda: algorithms.async_dvw(tombstones=-1), "Cycle: tombstones should be at least 0, got -1"),
        (lambda: algorithms.async_dvw(metric="f1"), "metric should be one of accuracy, micro_f1, macro_f1"),
        (lambda: algorithms.async_dvw(recall_after=0), "MedianStaleness: after should be at least 1, got 0"),
        (lambda: algorithms.async_dvw(steps=10), "steps=10"),
        (lambda: algorithms.divide_and_conquer(steps=10), "DivideAndConquer sets the epochs"),
        (
            lambda: algorithms.divide_and_conquer(prepass=0),
            "without a pre-pass the split cannot be found",
        ),
        (lambda: algorithms.fedavgm(beta=1.0), r"Momentum: beta should be at least 0 and below 1, got 1\.0"),
        (lambda: algorithms.fedbuff(buffer=0), "Stream: buffer should be at least 1, got 0"),
        (lambda: algorithms.fednova(mu=-1.0), r"fednova: mu should be at least 0, got -1\.0"),
        (lambda: algorithms.fednova(0.1, momentum=0.9), "takes momentum or decay, not both"),
        (lambda: algorithms.fednova(optimiser="Adam"), "the plan has Adam; use SGD"),
        (lambda: replace(algorithms.fednova(), plan=Plan(momentum=0.5)), r"momentum=0\.0, and the plan has 0\.5"),
        (lambda: replace(algorithms.fednova(momentum=0.5), protocol=Relay()), "use plain SGD"),
        (
            lambda: replace(algorithms.fedbuff(), weighting=ByExamples()),
            "MeanChange takes the weight itself as a factor",
        ),
        (lambda: algorithms.qfedavg(q=-1), "FairChange: q should be at least 0, got -1"),
        (lambda: replace(algorithms.qfedavg(), plan=Plan(rate=0.5)), r"rate=0\.05, and the plan has 0\.5; give both"),
        (lambda: algorithms.power_of_choice(0), "ByLoss: candidates should be at least 1, got 0"),
        (lambda: algorithms.oort(cutoff=0), "ByUtility: cutoff should be above 0 and at most 1, got 0"),
        (lambda: algorithms.tifl(credits=0), "ByTier: credits should be at least 1, got 0"),
        (lambda: algorithms.tifl({"slow": -1}), r"ByTier: chances\['slow'\]: chance should be at least 0, got -1"),
        (lambda: algorithms.fedma(sigma=0), "MatchedMean: sigma should be more than 0, got 0"),
        (lambda: algorithms.fedma(gamma=-1), "MatchedMean: gamma should be more than 0, got -1"),
        (lambda: algorithms.fedma(growth=0.9), r"MatchedMean: growth should be at least 1, got 0\.9"),
        (lambda: algorithms.fedma(iterations=-1), "MatchedMean: iterations should be at least 0, got -1"),
        (lambda: algorithms.divide_and_conquer(decay=0), "Decay: factor should be above 0 and at most 1, got 0"),
        (lambda: algorithms.radfed(hops=0), "Relay: hops should be at least 1, got 0"),
        (lambda: algorithms.radfed(1.2), r"Relay: fraction should be above 0 and at most 1, got 1\.2"),
        (lambda: algorithms.radfed_i(gamma=1), "ByImportance: gamma should be between 0 and 1, got 1"),
        (lambda: algorithms.radfed_m(alpha=0), "Replace: rate should be more than 0, got 0"),
        (lambda: algorithms.radfed_a(tau=0), "Adam: tau should be more than 0, got 0"),
    ],
)
def test_bad_settings_are_refused_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("name", sorted(LINES))
def test_an_unknown_keyword_is_named_with_the_nearest(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}: no setting 'epoch'\. Did you mean 'epochs'\? It has .*epochs, "):
        getattr(algorithms, name)(epoch=3)


def test_the_nearest_keyword_may_be_the_methods_own() -> None:
    with pytest.raises(TypeError, match=r"^fedavg: no setting 'fracton'\. Did you mean 'fraction'\?"):
        algorithms.fedavg(fracton=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^async_dvw: no setting 'evaluator'\. Did you mean 'evaluators'\?"):
        algorithms.async_dvw(evaluator=10)  # type: ignore[call-arg]


def test_an_algorithm_cannot_be_changed_after_it_was_checked() -> None:
    algorithm = algorithms.fedavg()
    with pytest.raises(AttributeError):
        algorithm.merge = Mix()  # type: ignore[misc]
    with pytest.raises(ValueError, match="gives weights above 1"):
        replace(algorithm, merge=Mix())
