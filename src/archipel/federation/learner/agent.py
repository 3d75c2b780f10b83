"""A learner's process: it joins, carries out orders, and sends its answers until they are acknowledged.

Threads: the event loop sends and receives; one thread trains, another evaluates models, each with its own network. A
repeated order is carried out once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import grpc
import torch
from torch import Tensor

from archipel.core.types import Plan
from archipel.federation.learner.example_privacy import ExamplePrivacy
from archipel.federation.learner.link import Link, TurnedAway, bounded
from archipel.federation.learner.local_scorer import LocalScorer
from archipel.federation.learner.local_state import Memory, Owed, StateFolder
from archipel.federation.learner.local_trainer import LocalTrainer
from archipel.federation.learner.masked_scores import MaskedScores
from archipel.federation.learner.masked_updates import MaskedUpdates
from archipel.federation.learner.order_record import OrderRecord
from archipel.federation.learner.owed_answers import head_of, owe, withhold
from archipel.federation.learner.policy import Probes, Questions, Refusal, failure_reason, without_validation
from archipel.federation.learner.received_vectors import receive_shift, unpack
from archipel.federation.learner.site_data import LocalSite
from archipel.federation.learner.sum_rounds import Signatures, SumRounds, reply_in_sum
from archipel.federation.learner.task_keys import TaskKeys
from archipel.federation.logs import printable
from archipel.federation.storage.blobs import Buffer
from archipel.federation.storage.stored_models import as_bytes
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.federation.wire.body import Bodies
from archipel.learner.learner import Job
from archipel.learner.personal_model import used_model
from archipel.learner.training import report

GOODBYE = 60.0
"""Timeout in seconds for the last model."""

MODELS, MOST_ORDERS = 8, 10_000
"""Models in memory for training tasks, questions, and sums, at a time; and orders that wait or are carried out."""
LONGEST = 1000
"""Characters of the controller's messages that are shown."""

log = logging.getLogger("archipel.learner")


@dataclass
class Training:
    """The current training task."""

    order: pb.Train
    plan: Plan
    finishing: bool = False
    cancelled: bool = False
    steps: int = 0
    """Made so far."""


@dataclass
class Agent:
    link: Link
    island: LocalSite
    folder: StateFolder
    study: Mapping[str, str]
    layout: str
    refuses: frozenset[Probes] = frozenset()
    signatures: Signatures | None = None
    """Of the learner's certificate; needed for secure sums."""
    ended: str | None = None
    """Why the run ended."""
    last_model: Tensor | None = None
    """The model that this learner uses at the end: the last version with its own layers in it, or one of its own."""
    training: Training | None = None
    _layers: dict[str, Tensor] = field(default_factory=dict)
    """Layers that are held here, by their digests: of the model that came last, and of the answer that went last."""
    _order_tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.refuses |= self.island.refuses
        self.memory: Memory = self.folder.memory
        self.record = OrderRecord(self.folder.path.parent)
        self.bodies = Bodies(self.island.work.layout)
        self.island.learner.private, self.island.learner.kept = self.memory.private, self.memory.kept
        self._trainer = ThreadPoolExecutor(1, "trainer")
        self.trainer = LocalTrainer(self.island, torch.get_num_threads())
        self._evaluator = ThreadPoolExecutor(1, "evaluator")
        self._heartbeat, self._silence = 5.0, 30.0
        self._trainings, self._evaluations, self._summing = (asyncio.Semaphore(MODELS) for _ in range(3))
        self._lost = asyncio.Event()  # the controller has taken it for gone
        self._questions = Questions(self.island.policy, self.memory)
        self._keys = TaskKeys(self.island.seed, self.island.learner.name, self.memory)
        examples = len(self.island.learner.train)
        self.sums: MaskedUpdates | None = None
        self.scores: MaskedScores | None = None
        if (settings := self.island.sums) is not None:
            own = (self.island.learner.name, self.folder)
            self.sums = MaskedUpdates(*own, settings, examples, self.signatures)
            if settings.sums.hides_scores:
                self.scores = MaskedScores(*own, settings.sums, self.signatures)
        self._scorer = LocalScorer(self.island, self.scores)
        self._examples = ExamplePrivacy(self.island.budget, self.memory, examples, self.island.sums)
        self._settling: set[int] = set()  # tasks whose answers are on their way
        self._acknowledged: int | None = None  # the last task that was answered since it began to listen

    # ------------------------------------------------------------------------------------------------------- running

    async def run(self) -> None:
        """Take part until the run is over; raise `TurnedAway` if the controller rejects this learner."""
        beats = asyncio.create_task(self._beats())
        try:
            while self.ended is None:
                await self._join()
                if self.memory.owed is not None and self.training is None:
                    self._later(self._settle(self.memory.owed))
                await self._listen()
        finally:
            if self.training is not None:
                self.training.cancelled = True
            for task in (beats, *self._order_tasks):
                task.cancel()
            await asyncio.gather(beats, *self._order_tasks, return_exceptions=True)
            for pool in (self._trainer, self._evaluator):
                pool.shutdown(wait=True, cancel_futures=True)
            self.trainer.close()
            await self.link.close()

    async def _join(self) -> None:
        island, learner = self.island, self.island.learner
        hello = pb.Hello(
            protocol=messages.PROTOCOL,
            study=dict(self.study),
            layout=self.layout,
            examples=len(learner.train),
            validation=len(learner.validation),
            test=len(learner.test),
            fresh=self.folder.fresh,
            federation=self.memory.federation,
        )
        if island.moments is not None and "moments" not in self.refuses:
            hello.moments.CopyFrom(messages.encode_moments(island.moments))
        while True:
            welcome = await self.link.join(hello)
            self._heartbeat, self._silence = bounded(welcome.heartbeat), bounded(welcome.silence)
            if not welcome.wait:
                break
            log.info("waiting", extra={"reason": welcome.wait})
            await asyncio.sleep(min(1.0, self._heartbeat))
        if island.standardise is not None:
            self._standardise(welcome.moments)
        if self.folder.fresh:
            self.memory.federation = welcome.federation
            self.folder.save()
            self.folder.fresh = False
        log.info("joined", extra={"controller": self.link.address})

    def _standardise(self, said: pb.Moments) -> None:
        """Adopt the combined statistics once and for all: other ones later could reveal more about the data."""
        island = self.island
        assert island.moments is not None
        assert island.standardise is not None
        everybodys = messages.decode_moments(said, tuple(island.moments.sum.shape))
        island.policy.check_moments(island.moments, everybodys)
        digest = hashlib.sha256(said.SerializeToString(deterministic=True)).hexdigest()
        if self.memory.moments not in ("", digest):
            raise Refusal("the controller tells other statistics of everybody's features than before")
        self.memory.moments = digest
        island.work = island.standardise(everybodys)
        island.standardise = None
        self._scorer.begin_anew()

    async def _listen(self) -> None:
        """Receive orders until the connection is lost."""
        self._acknowledged = None
        self._lost.clear()
        lost = asyncio.create_task(self._lost.wait())
        orders = self.link.listen()
        try:
            while self.ended is None:
                following = asyncio.ensure_future(anext(orders))
                # the controller sends something at every heartbeat
                seconds = max(self._silence, 3 * self._heartbeat)
                await asyncio.wait({following, lost}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)
                    log.warning("the controller took us for gone" if lost.done() else "the controller is silent")
                    return
                await self._obey(following.result())
        except StopAsyncIteration:  # another process with this learner's name may have called
            log.warning("the controller hung up")
            await asyncio.sleep(min(1.0, self._heartbeat))
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
                raise TurnedAway(error.code(), error.details() or "") from None
            log.warning("the line broke", extra={"reason": error.details()})
            await asyncio.sleep(0.2)
        finally:
            lost.cancel()
            await orders.aclose()

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(self.link.rest(self._heartbeat))
            training = self.training
            steps = []
            if training is not None and "progress" in training.plan.reports and training.steps:
                steps = [pb.Steps(task=training.order.task, steps=training.steps)]
            if not steps and self.link.rest(self._heartbeat) > 0:
                continue  # it has answered in the meantime
            try:
                heard = await self.link.beat(pb.Pulse(steps=steps))
            except TurnedAway as error:
                log.warning("no answer from the controller", extra={"reason": str(error)})
                continue
            if heard.join:
                self._lost.set()

    async def _obey(self, order: pb.Order) -> None:
        self.record.order(order)
        if len(self._order_tasks) >= MOST_ORDERS and order.WhichOneof("what") != "stop":
            log.warning("the controller gives too many orders at a time; this one is left out")
            return
        match order.WhichOneof("what"):
            case "train":
                if self.training is None or self.training.order.task != order.train.task:
                    self._later(_in_turn(self._trainings, partial(self._train, order.train)))
            case "sum":
                self._later(_in_turn(self._summing, partial(self._add_up, order.sum)))
            case "evaluate":
                self._later(_in_turn(self._evaluations, partial(self._evaluate, order.evaluate)))
            case "finish" if self.training is not None and self.training.order.task == order.finish.task:
                self.training.finishing = self.island.policy.recalls
            case "cancel" if self.training is not None and self.training.order.task == order.cancel.task:
                self.training.cancelled = True
            case "stop":
                await self._keep_last(order.stop)
                self.ended = printable(order.stop.reason[:LONGEST])

    def _later(self, work: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except TurnedAway as error:
                log.warning("a task is not wanted any more", extra={"reason": str(error)})
            except Exception:
                log.exception("a task failed")

        task = asyncio.create_task(guarded())
        self._order_tasks.add(task)
        task.add_done_callback(self._order_tasks.discard)

    async def _give(self, head: pb.Head, *body: Buffer) -> pb.Receipt:
        """Send an answer until the controller has it, and add it to the learner's own record."""
        receipt = await self.link.answer(head, *body)
        self.record.answer(head, receipt)
        return receipt

    # ------------------------------------------------------------------------------------------------------ training

    async def _train(self, order: pb.Train) -> None:
        if order.task == self._acknowledged:
            return  # the order crossed the answer on the way
        owed = self.memory.owed
        if owed is not None and owed.task == order.task:
            await self._settle(owed)
            return
        training = None
        try:
            plan = messages.decode_plan(order.plan)
            self.island.policy.check_plan(plan)
            self._keys.check(order.task, order.plan.key)
            if "validation" in self.refuses:
                plan = without_validation(plan)
            if self.training is not None:  # one task at a time: the controller has given up the one before
                self.training.cancelled = True
            self.training = training = Training(order, plan)
            carried = await self._model(order.task, order.model, order.enclosed, keep=True)
            shift = None if plan.shift is None else await receive_shift(self.link, self.bodies, order, plan)
            loop = asyncio.get_running_loop()
            job = await loop.run_in_executor(self._trainer, lambda: self._work_at(training, carried, shift))
            owed = None
            if job is not None:
                unwanted = await self._unwanted()
                owed = await loop.run_in_executor(self._trainer, lambda: self._answer(training, job, carried, unwanted))
        except TurnedAway:
            raise
        except Exception as error:
            self.memory.sequence += 1
            head = pb.Head(task=order.task, sequence=self.memory.sequence, failed=failure_reason(error, order.task))
            await self._give(head)
            return
        finally:
            if self.training is training:
                self.training = None
        if owed is not None:
            await self._settle(owed)

    async def _unwanted(self) -> frozenset[str]:
        """Ask which of the layers that the study may leave out are not used now; none if nobody answers."""
        optional = self.island.policy.optional
        if not optional:
            return optional
        try:
            heard = await self.link.beat(pb.Pulse())
        except TurnedAway:
            return frozenset()
        return optional.intersection(heard.unwanted)

    def _work_at(self, training: Training, carried: Tensor, shift: Tensor | None) -> Job | None:
        """In the trainer's thread: the job, trained; None if nobody wants it any more."""
        work, device = self.island.work, self.island.work.x.device
        shift, key = None if shift is None else shift.to(device), training.order.plan.key
        carried, plan = carried.to(device), training.plan
        noise = self._examples.noise(plan, training.order.task)
        job = Job.begin(self.island.learner, work.layout, carried, plan, key, shift, work.objective, noise)
        while not job.done and not training.cancelled:
            self.trainer.advance(job)
            training.steps = job.steps
            if training.finishing:
                break
        return None if training.cancelled else job

    def _answer(self, training: Training, job: Job, carried: Tensor, unwanted: frozenset[str]) -> Owed | None:
        """In the trainer's thread: the answer, on disk; None if nobody wants it any more."""
        if training.cancelled:
            return None
        work, learner, plan = self.island.work, self.island.learner, training.plan
        vector = job.vector.cpu()
        metrics = report(work, job, vector.to(work.x.device), job.epochs)
        if "validation" in self.refuses:
            metrics = replace(metrics, losses=())  # a cycle has followed them
        layers = tuple(name for name in plan.sends(work.layout.names) if name not in unwanted)
        about, layout, memory = training.order, work.layout, self.memory
        with self.folder.lock:  # a sum that saves the folder meanwhile must not save half of it
            if not learner.keep(work.layout, plan.private, vector, work.kept_after(job.kept, vector)):
                raise ValueError("its private layers hold numbers that are not finite")
            metrics = self._examples.charged(metrics, plan, job.epochs)
            if self.sums is None:
                had = {layer.name: layer.sha256.hex() for layer in about.model}
                owed = owe(memory, layout, about.task, job, layers, had, metrics)
            else:
                owed = withhold(memory, layout, about.task, job, carried, layers, metrics)
            self.folder.save()
        return owed

    async def _settle(self, owed: Owed) -> None:
        """Send an answer until the controller has it, or no longer wants it."""
        if owed.task in self._settling:  # it was asked for again meanwhile
            return
        self._settling.add(owed.task)
        try:
            await self._bring(owed)
        finally:
            self._settling.discard(owed.task)

    async def _bring(self, owed: Owed) -> None:
        layout = self.island.work.layout
        head, header = head_of(owed, self.bodies)
        receipt = await self._give(head, header, as_bytes(owed.numbers))
        if receipt.verdict == pb.Receipt.REFUSED:
            log.error("the controller refused an update", extra={"task": owed.task, "reason": receipt.reason})
        else:
            log.info("answered", extra={"task": owed.task, "late": receipt.verdict == pb.Receipt.LATE})
            self._acknowledged = owed.task
        place = 0
        for name in owed.changed:
            size = layout.layers[layout.index(name)].size
            self._layers[owed.digests[name]] = owed.numbers[place : place + size]
            place += size
        if self.memory.owed is owed:
            self.memory.owed = None

    async def _add_up(self, step: pb.SumStep) -> None:
        """Go through a phase of a secure sum."""
        self.memory.sequence += 1
        loop, sequence = asyncio.get_running_loop(), self.memory.sequence
        sums: SumRounds | None = self.sums if step.task >= 0 else self.scores  # scores are numbered downwards
        head, body = await loop.run_in_executor(None, reply_in_sum, sums, step, sequence)
        receipt = await self._give(head, body)
        if sums is not None and step.phase == "reveal" and receipt.verdict == pb.Receipt.KEPT:
            sums.end(step.task)

    # ---------------------------------------------------------------------------------------------------- evaluation

    async def _evaluate(self, order: pb.Evaluate) -> None:
        learner = self.island.learner.snapshot()  # training may change it meanwhile
        self.memory.sequence += 1
        head = pb.Head(task=order.task, sequence=self.memory.sequence)
        try:
            scored = pb.Scored()
            if not self._scorer.keeps(order):
                self._questions.admit(order, self.refuses)
                vector = await self._model(order.task, order.model, order.enclosed, keep=order.keep)
                answer, loop = self._scorer.answer, asyncio.get_running_loop()
                scored = await loop.run_in_executor(self._evaluator, answer, order, vector, learner)
            head.scored.CopyFrom(scored)
        except TurnedAway:
            raise
        except Exception as error:
            head.failed = failure_reason(error, order.task)
        await self._give(head)

    # -------------------------------------------------------------------------------------------------------- models

    async def _model(self, task: int, model: Sequence[pb.Layer], enclosed: pb.Enclosed | None, keep: bool) -> Tensor:
        """Return a task's model from layers that are stored, that came with the order, and that have to be fetched."""
        layout, private = self.island.work.layout, set(self.memory.private)
        digests = {layer.name: layer.sha256.hex() for layer in model}
        if set(digests) != set(layout.names):
            raise ValueError(f"The controller's model has {len(digests)} layers, and the study's {len(layout.names)}.")
        # taken now: while something is fetched, another order may put other layers in their place
        found = {name: self._layers[digests[name]] for name in layout.names if digests[name] in self._layers}
        if enclosed is not None and enclosed.body:
            found |= unpack(self.bodies, bytearray(enclosed.body), enclosed.layers, digests)
        missing = [name for name in layout.names if name not in found and name not in private]
        if missing:
            size = self.bodies.size(layout.indices(missing))
            found |= unpack(self.bodies, await self.link.fetch(task, missing, size), missing, digests)
        vector = torch.zeros(layout.size)  # where it is zero, the learner's own layers will stand
        for name, numbers in found.items():
            layout.numbers_of(vector, name).copy_(numbers)
        if keep:
            self._layers = {digests[name]: layout.numbers_of(vector, name) for name in found}
        return vector

    async def _keep_last(self, stop: pb.Stop) -> None:
        try:
            async with asyncio.timeout(GOODBYE):  # the controller may be gone
                vector = await self._model(stop.task, stop.model, None, keep=False)
        except (TurnedAway, ValueError, TimeoutError) as error:
            log.warning("the last model did not come", extra={"reason": str(error)})
            return
        used = partial(used_model, self._scorer.work, self.island.learner.snapshot(), vector)
        self.last_model = (await asyncio.get_running_loop().run_in_executor(self._evaluator, used)).cpu()


async def _in_turn(turns: asyncio.Semaphore, work: Callable[[], Awaitable[None]]) -> None:
    """Wait for a turn: orders that are waiting hold no model."""
    async with turns:
        await work()
