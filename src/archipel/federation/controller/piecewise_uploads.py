"""Updates that arrive in many pieces: one file each, resumed where a call was interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

from archipel.federation.controller.event_log import EventLog
from archipel.federation.controller.limiter import Limiter, Slot
from archipel.federation.controller.sessions import LearnerSession
from archipel.federation.controller.terms import RetryLater
from archipel.federation.controller.thread_pools import ThreadPools
from archipel.federation.controller.uploads import UpdateCheck, Upload
from archipel.federation.storage.blobs import Buffer
from archipel.federation.storage.stored_models import Delivery
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire.body import InvalidUpdate


class PiecewiseUploads:
    """Receive large updates."""

    def __init__(self, log: EventLog, workers: ThreadPools, large_pieces: Limiter) -> None:
        self._log = log
        self._workers = workers
        self._large_pieces = large_pieces
        self._blobs = log.durable.blobs
        self._uploading: set[str] = set()
        """Learners whose update is arriving."""
        self._unfinished: dict[str, str] = {}
        """The last interrupted upload of each learner; only one each, so that nobody can fill the disk."""
        for path in sorted(self._blobs.unfinished.iterdir(), key=lambda path: path.stat().st_mtime):
            self._supersede(path.name.rsplit(".", 2)[0], path.name)

    def stored(self, learner: str, parcel: pb.Parcel) -> int:
        """Return how many bytes of an interrupted upload are stored."""
        path = self._blobs.unfinished / _label(learner, parcel.task, parcel.sha256)
        return path.stat().st_size if path.exists() else 0

    async def take(
        self, session: LearnerSession, head: pb.Head, check: UpdateCheck, pieces: AsyncIterator[Buffer]
    ) -> Delivery:
        """Write an update's pieces into a file as they arrive; one upload per learner at a time."""
        expected = check.expected
        label = _label(session.name, head.task, head.sha256)
        if session.name in self._uploading:
            raise RetryLater("Another call is sending an update.")
        self._uploading.add(session.name)
        self._supersede(session.name, label)
        self._blobs.pin(expected.name)
        upload = Upload(self._blobs, label, check)
        try:
            upload.begin_at(head.offset)
            await self._take_pieces(session, upload, pieces)
            delivery = await self._workers.run(upload.finish)
        except BaseException as error:
            if isinstance(error, InvalidUpdate):
                upload.discard()
            self._blobs.unpin(expected.name)
            raise
        finally:
            upload.put_aside()
            self._uploading.discard(session.name)
        if not delivery.blob:
            self._blobs.unpin(expected.name)  # no layer had changed: there is no file
        return delivery

    async def _take_pieces(self, session: LearnerSession, upload: Upload, pieces: AsyncIterator[Buffer]) -> None:
        """Take all pieces in order; the next one arrives while a thread writes the one before."""
        here = upload.parcel.size
        taking: asyncio.Task[None] | None = None
        slot: Slot | None = None
        try:
            while here < upload.expected.size:
                slot = await self._large_pieces.acquire(session.name)
                data = await anext(pieces, None)
                if taking is not None:
                    await taking
                if data is None:
                    return
                here += len(data)
                taking = asyncio.create_task(self._workers.run(partial(upload.take, data)))
                taking.add_done_callback(partial(_release, slot))
                del data  # keep none in memory while waiting for a slot
                session.seen = self._log.now
            if taking is not None:
                await taking
        finally:
            if slot is not None:
                slot.release()
            if taking is not None:
                await asyncio.gather(taking, return_exceptions=True)  # until this returns its file is in use

    def _supersede(self, learner: str, label: str) -> None:
        """Remove the learner's unfinished upload before this one."""
        before = self._unfinished.get(learner)
        if before is not None and before != label:
            (self._blobs.unfinished / before).unlink(missing_ok=True)
        self._unfinished[learner] = label


def _release(slot: Slot, _: object) -> None:
    slot.release()


def _label(learner: str, task: int, sha256: bytes) -> str:
    """Return the name of the file in which an update arrives."""
    return f"{learner}.{task}.{sha256[:8].hex()}"
