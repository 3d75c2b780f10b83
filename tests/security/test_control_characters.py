"""Text of others never reaches a terminal as something that it obeys: studies, site files, errors, warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archipel.cli.program import app, say
from archipel.study import formats
from archipel.study.files import read_study
from archipel.study.formats import read_file
from archipel.study.site_file import read_site

ESCAPES = ("\x1b[2J", "\x1b]0;owned\x07", "\x9b31m", "\u202egnp", "\x00", "\x7f", "\u2066x")


@pytest.mark.parametrize("escape", ESCAPES)
@pytest.mark.parametrize("place", ["title", "key", "deep"])
def test_a_study_holds_no_control_characters(tmp_path: Path, escape: str, place: str) -> None:
    raw = {
        "title": {"title": f"a{escape}"},
        "key": {f"a{escape}": 1},
        "deep": {"algorithms": [{"name": "fedavg", "label": [f"a{escape}"]}]},
    }[place]
    path = tmp_path / "study.json"
    path.write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="holds the control character") as caught:
        read_study(path)
    assert str(caught.value).isprintable()


def test_the_line_of_a_control_character_is_told(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    path.write_text('min_rows = 20\nrefuse = ["\\u001b[2J"]\n')
    with pytest.raises(ValueError, match=r"site.toml, line 2: .* holds the control character"):
        read_site(path)


def test_texts_in_many_languages_and_of_many_lines_stay(tmp_path: Path) -> None:
    title = "Übergrößen \u00a0 日本語 👩\u200d🔬\tand\nmore\r\n"
    path = tmp_path / "study.json"
    path.write_text(json.dumps({"title": title}))
    assert read_file(path)[0]["title"] == title


def test_nested_aliases_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines for each doubling: a study of a kilobyte kept every command busy for ever."""
    monkeypatch.setattr(formats, "MOST_PLACES", 1000)
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60)]
    path = tmp_path / "study.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match="more than 1,000 keys and items"):
        read_file(path)
    path.write_text("\n".join(lines[:5]))
    assert len(read_file(path)[0]) == 5


@pytest.mark.parametrize("escape", ESCAPES)
def test_an_error_is_printed_without_control_characters(escape: str, capsys: pytest.CaptureFixture[str]) -> None:
    say(ValueError(f"no {escape} such thing"))
    said = capsys.readouterr().err
    assert "such thing" in said
    assert not set(said) & set("\x1b\x07\x9b\u202e\x00\x7f\u2066")


@pytest.mark.slow
def test_a_command_refuses_such_a_study(tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text('algorithms = ["fed\\u001b]0;owned\\u0007avg"]\n')
    done = CliRunner().invoke(app, ["run", str(tmp_path / "study.toml")])
    assert "holds the control character" in str(done.exception)
