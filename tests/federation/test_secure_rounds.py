"""Secure sums over the wire: the simulator's bits, refusals, and what the disk holds meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from archipel.core.records import PrivacySpent
from archipel.federation.security.authority import create_authority, described, issue
from archipel.federation.security.revocation import RevocationList
from archipel.federation.security.round_signatures import RoundSignatures
from archipel.privacy.secure_sum.sum_messages import RoundKeys
from archipel.study.federate import host
from archipel.study.files import study_of
from tests.federation.in_one_process import hold, study
from tests.federation.test_conformance import simulated

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of a controller and four learners."""
    folder = tmp_path_factory.mktemp("authority") / "ca"
    create_authority(folder)
    issue(folder, "controller", hosts=["localhost"])
    for number in range(4):
        issue(folder, "learner", f"0{number}")
    return folder


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedadam": {"name": "fedadam", "privacy": "SecureSum(bits=64)"},
    "fedprox": {"name": "fedprox", "mu": 0.1},
    "hdafl": {"name": "hdafl", "fraction": 1.0},
    "hdafl, single scores": {"name": "hdafl", "fraction": 1.0, "privacy": "SecureSum(single_scores=True)"},
    "d&c, given split": {"name": "divide_and_conquer", "split": 1},
    "plu in rounds": {"name": "fedavg", "more_planners": ["PeriodicLayers(2, 1)"]},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_federation_comes_to_the_simulators_bits(method: str, tmp_path: Path, papers: Path) -> None:
    raw = study(
        algorithms=[{"privacy": "SecureSum()", **METHODS[method]}],
        data={"split": {"learners": 4}},
        ending={"rounds": 3},
    )
    held = hold(raw, tmp_path, papers=papers)
    expected = simulated(raw)
    assert held.run is not None
    assert len(held.run.commits) == 3
    assert torch.equal(held.run.model, expected.model)
    assert held.run.traffic == expected.traffic
    assert [c.weights for _, c in held.run.commits] == [c.weights for _, c in expected.commits]
    assert [scores for _, scores in held.run.scores] == [scores for _, scores in expected.scores]


def test_a_federation_tells_what_noised_sums_have_cost(tmp_path: Path, papers: Path) -> None:
    raw = study(
        algorithms=[{"name": "fedavg", "equally": True, "privacy": "SecureSum(epsilon=8.0, clip=0.5)"}],
        data={"split": {"learners": 4}},
        ending={"rounds": 2},
    )
    held = hold(raw, tmp_path, papers=papers)
    expected = simulated(raw)
    assert held.run is not None
    told, theirs = ([spent for _, spent in run.of(PrivacySpent)] for run in (held.run, expected))
    assert told == theirs
    assert len(told) == 2
    assert not torch.equal(held.run.model, expected.model), "noise follows from no seed"
    assert [agent.memory.sums for agent in held.agents.values()] == [2] * 4


def test_the_mean_of_single_learners_scores_is_refused_unless_the_study_allows_them() -> None:
    raw = study(algorithms=[{"name": "fedavg", "privacy": "SecureSum()"}], evaluation={"at": "learners"})
    raw["evaluation"]["mean"] = "learners"
    with pytest.raises(ValueError, match=r"adds up scores, and .* accept that they are seen with SecureSum\(single_"):
        host(study_of(raw))
    raw["algorithms"][0]["privacy"] = "SecureSum(single_scores=True)"
    host(study_of(raw))


def test_a_controller_without_certificates_is_refused(tmp_path: Path) -> None:
    hosting = host(study_of(study(algorithms=[{"name": "fedavg", "privacy": "SecureSum()"}])))
    with pytest.raises(ValueError, match="whose keys are signed with certificates"):
        hosting.open(tmp_path)


def test_signatures_count_only_with_a_valid_certificate_of_the_authority(papers: Path, tmp_path: Path) -> None:
    mine = RoundSignatures(papers / "00", listed=["00", "01"])
    other = tmp_path / "other"
    create_authority(other)
    issue(other, "learner", "01")

    def reason(signer: RoundSignatures, name: str = "01", checks: RoundSignatures = mine) -> str | None:
        keys = RoundKeys(name, bytes(32), bytes(32), bytes(32))
        signature, certificate = signer.sign(keys.statement("here/1"))
        signed = replace(keys, signature=signature, certificate=certificate)
        return checks.verify(signed, keys.statement("here/1"))

    honest = RoundSignatures(papers / "01")
    assert reason(honest) is None
    assert reason(honest, "00") == "the certificate is not that of learner/00"
    assert reason(RoundSignatures(papers / "02"), "02") == "the study does not list that learner"
    assert reason(RoundSignatures(other / "01")) == "the certificate is none of this federation's authority"
    assert reason(RoundSignatures(papers / "controller"), "controller") is not None
    serial = described(papers / "01").serial
    (tmp_path / "revoked.txt").write_text(serial)
    strict = RoundSignatures(papers / "00", revoked=RevocationList(tmp_path / "revoked.txt"))
    assert reason(honest, checks=strict) == "the certificate has been revoked"
    keys = RoundKeys("01", bytes(32), bytes(32), bytes(32), b"forged", honest.sign(b"")[1])
    assert mine.verify(keys, keys.statement("here/1")) == "another key has made it"
