"""A reader who follows one update through the real federation opens at most 20 files of it.

Counted are files of `archipel.federation`, on both sides of the wire. What the core does with an update is a walk of
its own, the same under every engine.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import archipel
from archipel.federation.learner.link import Link
from archipel.federation.storage.journal import Journal
from tests.federation.in_one_process import hold, study

ROOT = Path(archipel.__file__).parent
MOST = 20
BY_THE_CLOCK = ("_watch", "watch", "_beats")
"""Functions that run beside the update, whenever they happen to be due."""


class Walk:
    """Note the files of Archipel that are entered between a learner's reply and the commit's acknowledgement.

    On the learner's side what the call that brings its update does until the receipt is back, and not the task that it
    takes up meanwhile; on the controller's everything until the digest of the version that the update makes is in the
    journal too.
    """

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.updates = 0
        self.open: set[str] = set()
        self.committed = threading.Event()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        ours = path.startswith(str(ROOT)) and not path.endswith("_pb2.py")
        if not self.open or event != "call" or not ours:
            return
        learners = "/federation/learner/" in path or "commit" not in self.open
        if _is_under(frame, "traced_answer") if learners else not _is_under(frame, *BY_THE_CLOCK):
            self.files[str(Path(path).relative_to(ROOT))] += 1


def _is_under(frame: FrameType | None, *names: str) -> bool:
    """Return whether a call comes from a function of one of these names."""
    while frame is not None:
        if frame.f_code.co_name in names:
            return True
        frame = frame.f_back
    return False


@pytest.mark.slow
def test_a_walk_of_one_update_opens_at_most_twenty_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk()
    answer, commit = Link.answer, Journal.commit

    async def traced_answer(link: Link, head: Any, *body: Any) -> Any:
        walk.updates += head.HasField("trained")
        if walk.updates == 2 and head.HasField("trained"):  # the first one finds caches empty
            walk.open = {"receipt", "commit"}
        receipt = await answer(link, head, *body)
        walk.open.discard("receipt")
        if "commit" in walk.open:  # or the learner's next call would enter the controller's files beside the commit
            await asyncio.to_thread(walk.committed.wait, 60)
        return receipt

    def traced_commit(journal: Journal, *arguments: Any) -> str:
        written = commit(journal, *arguments)
        if walk.open:
            walk.open.discard("commit")
            walk.committed.set()
        return written

    monkeypatch.setattr(Link, "answer", traced_answer)
    monkeypatch.setattr(Journal, "commit", traced_commit)
    one_learner = {"source": "digits", "split": {"learners": 1}}
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        hold(study(data=one_learner, evaluation={"every": 100, "at": "home"}), tmp_path)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert walk.updates == 3
    assert not walk.open, "the walk came to its end"
    opened = "\n".join(f"{count:5} calls  {file}" for file, count in sorted(walk.files.items()))
    assert "federation/controller/answers.py" in walk.files, opened
    assert "core/controller.py" in walk.files, opened
    ours = [file for file in walk.files if file.startswith("federation/")]
    assert len(ours) <= MOST, f"{len(ours)} files of the federation:\n{opened}"
