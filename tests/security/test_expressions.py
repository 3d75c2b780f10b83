"""Strings of a study: whatever they contain, a part is made or the study is refused, and nothing else runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archipel.study.files import study_of
from archipel.study.own_code import Code

EVIL = [
    "NormClipped(os.system('touch ran'))",
    "NormClipped(then=os:system('touch ran'))",
    "__import__('os').system('touch ran')",
    "(lambda: 0)()",
    "Mean().__class__()",
    "Mean.__init__()",
    "Mean(*[1])",
    "Mean(**{'a': 1})",
    "NormClipped(Mean().merge)",
    "[Mean()][0]",
    "Mean() if 1 else 2",
    "Median();Mean()",
    "Median()\nMean()",
    "Mean\x00()",
    "Merge()",
    "RobustMerge()",
    "os:system",
    ":system",
    "x.py:",
    "../x.py:Mean",
    "https://example.org/x.py:Mean",
    "x.py:Mean(os.system('touch ran'))",
    "Krum(9**9**9)",
    "Krum(" + "9" * 5000 + ")",
    "TrimmedMean(1e999)",
    "-" * 100_000 + "1",
    "(" * 5000,
    "NormClipped(" * 3000 + ")" * 3000,
    "Mean(" + "[" * 3000 + "]" * 3000 + ")",
]


@pytest.mark.parametrize("code", ["none", "beside"])
@pytest.mark.parametrize("text", EVIL, ids=lambda text: text[:30])
def test_malicious_strings_are_refused_with_a_message(
    text: str, code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    raw: dict[str, Any] = {
        "algorithms": [{"name": "fedavg", "weighting": "Equally()", "merge": text}],
        "data": {"source": "digits", "split": {"learners": 3}},
        "folder": str(tmp_path),
    }
    with pytest.raises(ValueError, match=r".") as caught:
        study_of(raw, code=code)
    assert "Traceback" not in str(caught.value)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("deep", ["-" * 500 + "9", "0." + "-" * 500 + "9", "(" * 80 + "9" + ",)" * 80, "~" * 60 + "1"])
def test_a_deeply_nested_argument_is_refused_with_a_message(deep: str) -> None:
    with pytest.raises(ValueError, match="is nested too deeply"):
        study_of({"algorithms": [{"name": "fedavg", "weighting": f"ByFreshness({deep})"}]}, code="none")
