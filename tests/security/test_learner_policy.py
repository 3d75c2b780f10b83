"""A learner does for its controller what its own copy of the study asks for, and refuses the rest by name."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from archipel.core.types import Cycle, Phase, Plan
from archipel.federation.learner import agent as agent_module
from archipel.federation.learner.agent import MODELS, Training
from archipel.federation.learner.link import TurnedAway
from archipel.federation.learner.policy import LONGEST, Refusal
from archipel.federation.logs import Lines
from archipel.federation.wire import federation_pb2 as pb
from archipel.federation.wire import messages
from archipel.study.files import study_of
from archipel.study.local_site import take_part, try_out
from tests.security.lying_controller import Site, study
from tests.waiting import LIMIT, reached


@pytest.fixture
def site(tmp_path: Path) -> Callable[..., Site]:
    return lambda **sections: Site(study(**sections), tmp_path / "learner")


# ---------------------------------------------------------------------------------------------------------------- plans


def test_what_the_study_asks_for_is_done(site: Callable[..., Site]) -> None:
    one = site()
    assert one.train(one.honest).WhichOneof("result") == "trained"
    assert one.ask("test").WhichOneof("result") == "scored"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch": 1, "steps": 1}, "steps=1, and the study has None; batch=1, and the study has 32"),
        ({"epochs": 4_000_000_000}, "epochs=4000000000, and the study has 1"),
        ({"optimiser": "Adam"}, "optimiser='Adam', and the study has 'SGD'"),
        ({"options": {"maximize": True}}, "options={'maximize': True}, and the study has {}"),
        ({"momentum": 0.9}, "momentum=0.9, and the study has 0.0"),
        ({"rate": 100.0}, "rate=100.0, and the study has at most 0.05"),
        ({"proximal": 5.0}, "proximal=5.0, and the study has 0.0"),
        ({"shift": "planner.0/00.0"}, "it shifts gradients, and the study does not"),
        ({"phases": (Phase(1, ("head",)),)}, "phases=(Phase(epochs=1, trains=('head',)"),
        ({"trains": ()}, "trains=[], and the study has"),
        ({"uploads": ()}, "uploads=[], and the study has"),
        ({"reports": ("gradient norm per sample",)}, "reports=['gradient norm per sample'], and the study has []"),
        ({"reports": ("validation scores",)}, "reports=['validation scores'], and the study has []"),
        ({"reports": ("losses",)}, "reports=['losses'], and the study has []"),
    ],
)
def test_other_plans_are_refused_by_name(
    site: Callable[..., Site], changes: dict[str, Any], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    one = site()
    with caplog.at_level(logging.WARNING, "archipel.learner"):
        head = one.train(replace(one.honest, **changes))
    assert head.failed.startswith("this task is not of the study: ")
    assert words in head.failed
    assert [record.reason for record in caplog.records if record.message == "refused"] == [head.failed]  # type: ignore[attr-defined]
    assert one.agent.memory.trained == 0


OTHER: dict[str, Any] = {
    "epochs": 2,
    "steps": 3,
    "batch": 7,
    "rate": 0.5,
    "momentum": 0.5,
    "optimiser": "Adam",
    "options": {"weight_decay": 0.5},
    "accumulate": 2,
    "all_data": True,
    "cycle": Cycle(0.1, 1, 5),
    "trains": (),
    "phases": (Phase(1, ("head",)),),
    "uploads": (),
    "private": ("head",),
    "proximal": 0.5,
    "shift": "any",
    "reports": ("class counts",),
}


def test_every_field_of_a_plan_is_looked_at(site: Callable[..., Site]) -> None:
    """A field that is added to plans, and not to the policy, would be the controller's to choose."""
    one = site()
    policy = one.agent.island.policy
    policy.check_plan(one.honest)
    assert OTHER.keys() == {entry.name for entry in fields(Plan)}
    for name, value in OTHER.items():
        with pytest.raises(Refusal, match="this task is not of the study"):
            policy.check_plan(replace(one.honest, **{name: value}))


@pytest.mark.parametrize("names", [["elsewhere"], ["head", "fc1", "head"], ["x" * 10_000]])
def test_a_model_with_unknown_layers_is_refused_with_a_message(
    site: Callable[..., Site], names: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """It raised KeyError, which says nothing; found by fuzzing."""
    one = site()
    model = one._model(one._vector())
    model["enclosed"] = pb.Enclosed(layers=names, body=model["enclosed"].body)
    (head,) = one.do(pb.Order(train=pb.Train(task=1, plan=messages.encode_plan(one.honest, one.key()), **model)))
    assert head.failed == "InvalidUpdate; the learner's log tells more"
    assert len(str(caplog.records[-1].exc_info[1])) < 1000  # type: ignore[index]


def test_a_refusal_of_a_long_order_is_short(site: Callable[..., Site]) -> None:
    one = site()
    head = one.train(replace(one.honest, uploads=tuple(f"{number:01000}" for number in range(500))))
    assert len(head.failed) <= LONGEST


def test_orders_that_wait_hold_no_models(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that repeats a question has it answered; a learner with a model for each would run out of memory."""
    monkeypatch.setattr(agent_module, "MOST_ORDERS", 30)
    one = site()
    agent, held, models = one.agent, threading.Event(), 0
    fetch, scored = agent._model, agent._scorer.answer

    async def counted(*given: Any, **named: Any) -> Tensor:
        nonlocal models
        models += 1
        return await fetch(*given, **named)

    def waits(*given: Any) -> pb.Scored:
        held.wait(LIMIT)
        return scored(*given)

    monkeypatch.setattr(agent, "_model", counted)
    monkeypatch.setattr(agent._scorer, "answer", waits)
    model = one._model(one._vector())

    async def go() -> None:
        for task in range(50):
            await agent._obey(pb.Order(evaluate=pb.Evaluate(task=task, part="test", **model)))
        await reached(lambda: models >= MODELS, "the first questions")
        await asyncio.sleep(0)
        assert models == MODELS
        held.set()
        await asyncio.gather(*agent._order_tasks)

    asyncio.run(go())
    assert [head.WhichOneof("result") for head in one.told] == ["scored"] * 30


def test_steps_of_a_sum_that_wait_hold_no_numbers(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that comes again is answered again, with masked numbers as large as the model."""
    one, bodies, read = site(), 0, asyncio.Event()

    def masked(*_: object) -> tuple[pb.Head, memoryview]:
        nonlocal bodies
        bodies += 1
        return pb.Head(), memoryview(b"numbers")

    async def answer(head: pb.Head, *body: bytes) -> pb.Receipt:
        await read.wait()
        return pb.Receipt(verdict=pb.Receipt.KEPT)

    monkeypatch.setattr(agent_module, "reply_in_sum", masked)
    monkeypatch.setattr(one.agent.link, "answer", answer)

    async def go() -> None:
        for _ in range(50):
            await one.agent._obey(pb.Order(sum=pb.SumStep(task=3, phase="mask")))
        await reached(lambda: bodies >= MODELS, "the first answers")
        await asyncio.sleep(0)
        assert bodies == MODELS
        read.set()
        await asyncio.gather(*one.agent._order_tasks)

    asyncio.run(go())
    assert bodies == 50


def test_private_layers_are_not_available(site: Callable[..., Site]) -> None:
    one = site(algorithms="hdafl")
    assert one.honest.private
    head = one.train(replace(one.honest, private=(), uploads=None))
    assert "private=[], and the study has" in head.failed
    assert not one.agent.memory.private
    assert one.train(one.honest).WhichOneof("result") == "trained"
    assert not {layer.name for layer in one.told[-1].trained.layers} & set(one.honest.private)


def test_a_refused_order_does_not_end_the_task_before(site: Callable[..., Site]) -> None:
    one = site()
    going = one.agent.training = Training(pb.Train(task=99), one.honest)
    one.train(replace(one.honest, batch=1))
    assert one.agent.training is going
    assert not going.cancelled


def test_tasks_are_recalled_only_where_the_study_recalls(site: Callable[..., Site]) -> None:
    assert not site().agent.island.policy.recalls
    assert site(algorithms="async_dvw").agent.island.policy.recalls


# ------------------------------------------------------------------------------------------------------------ questions


@pytest.mark.parametrize(
    ("part", "bins"), [("Test", 0), ("validation", 0), ("", 0), ("train", 0), ("test", 1024), ("test", 40_000_000)]
)
def test_other_questions_are_refused(site: Callable[..., Site], part: str, bins: int) -> None:
    head = site().ask(part, bins)
    assert head.failed.startswith(f"this question is not of the study: part={part!r}, bins={bins}")


@pytest.mark.parametrize("part", ["Test", "TEST", "test ", "test"])
def test_a_part_that_the_operator_refuses_is_refused_however_it_is_written(
    site: Callable[..., Site], part: str
) -> None:
    one = site()
    one.agent.refuses = frozenset({"test"})
    assert one.ask(part).WhichOneof("result") == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sync_dvw", "async_dvw"])
def test_refused_validation_is_told_by_no_report(site: Callable[..., Site], method: str) -> None:
    one = site(algorithms=method, validation=0.2)
    plan = one.agent.island.policy.plans[0]
    told = one.train(plan).trained
    assert told.HasField("validation")
    one.agent.refuses = frozenset({"validation"})
    told = one.train(plan).trained
    assert told.layers
    assert not told.HasField("validation")
    assert not told.losses
    assert one.ask("validation").failed == "the operator refuses to try models on the validation part"


def test_counting_queries_end_with_the_budget(site: Callable[..., Site]) -> None:
    """Crafted models that each count something are answered as often as the study scores a model, and no more."""
    one = site()
    allowed = one.agent.island.policy.budget.allowed(0)
    assert allowed is not None
    answers = [one.ask("test").WhichOneof("result") for _ in range(3 * allowed)]
    assert answers == ["scored"] * allowed + ["failed"] * 2 * allowed
    assert "questions were answered after 0 training tasks, and the study has no more: 1 about" in one.told[-1].failed
    one.train(one.honest)
    assert one.ask("test").WhichOneof("result") == "scored"
    assert one.ask("test").WhichOneof("result") == "failed"


def test_a_question_that_is_asked_again_is_answered_again(site: Callable[..., Site]) -> None:
    one = site()
    same = torch.zeros(one.layout.size)
    assert {one.ask("test", vector=same).WhichOneof("result") for _ in range(50)} == {"scored"}
    assert one.agent.memory.answered == 1


def test_the_budget_outlives_the_process(tmp_path: Path) -> None:
    one = Site(study(), tmp_path)
    one.train(one.honest)
    while one.ask("test").WhichOneof("result") == "scored":
        pass
    one.train(one.honest)  # writes it down
    answered = one.agent.memory.answered
    assert Site(study(), tmp_path).agent.memory.answered == answered > 0


def test_no_more_is_answered_than_the_run_has_versions(site: Callable[..., Site]) -> None:
    one = site(ending={"rounds": 2})
    budget = one.agent.island.policy.budget
    assert budget.allowed(10**6) == 2 * 3  # versions 0, 1 and 2, and as many in vain


# -------------------------------------------------------------------------------------------------- rows and statistics


def test_a_site_of_few_rows_does_not_take_part() -> None:
    raw = study(data={"source": "digits", "split": {"learners": 2, "sizes": [1000, 9], "test": "none"}})
    with pytest.raises(ValueError, match=r"This learner has 9 examples, .* At least 10 are needed"):
        take_part(study_of(raw), "01")
    island, narrowed = take_part(study_of(raw), "00")
    assert "at least 10 are needed" in try_out(narrowed, island)[0]


def test_a_study_whose_updates_rest_on_few_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="tasks of 9 examples"):
        take_part(study_of(study(training={"batch": 3, "steps": 3})), "00")
    take_part(study_of(study(training={"batch": 3, "steps": 4})), "00")


def standardised(tmp_path: Path) -> Site:
    data = {"source": "digits", "split": {"learners": 3}, "standardise": "global"}
    return Site(study(data=data, evaluation={"at": "home"}), tmp_path / "learner")


def joins(one: Site, **changes: Tensor | int) -> Coroutine[Any, Any, None]:
    mine = one.agent.island.moments
    assert mine is not None
    everybodys = replace(mine, **changes)  # type: ignore[arg-type]
    one.agent.link.welcome = pb.Welcome(heartbeat=1, silence=1, moments=messages.encode_moments(everybodys))  # type: ignore[attr-defined]
    return one.agent._join()


def test_statistics_that_set_examples_apart_are_refused(tmp_path: Path) -> None:
    one = standardised(tmp_path)
    mine = one.agent.island.moments
    assert mine is not None
    for changes in ({"squares": mine.squares / 1e8}, {"sum": mine.sum + 1e6}, {"count": 9}):
        with pytest.raises(ValueError, match="everybody's statistics are of"):
            asyncio.run(joins(one, **changes))
    asyncio.run(joins(one))


def test_statistics_are_told_once(tmp_path: Path) -> None:
    one = standardised(tmp_path)
    mine = one.agent.island.moments
    assert mine is not None
    asyncio.run(joins(one))
    again = standardised(tmp_path)
    with pytest.raises(ValueError, match="other statistics of everybody's features than before"):
        asyncio.run(joins(again, squares=mine.squares * 2))
    asyncio.run(joins(standardised(tmp_path)))


# ------------------------------------------------------------------------------------------------- a lying controller

ESCAPES = "over\x1b]0;owned\x07\x1b[2J\u202egnp.exe\x9b31m"


def test_escapes_do_not_reach_the_terminal(site: Callable[..., Site]) -> None:
    one = site()
    model = messages.encode_layers(one.layout.names, ["00" * 32] * len(one.layout.names))
    del model[0]
    one.do(pb.Order(stop=pb.Stop(reason=ESCAPES, model=model)))
    said = [one.agent.ended or "", str(TurnedAway(None, ESCAPES))]  # type: ignore[arg-type]
    try:
        raise ValueError(ESCAPES)
    except ValueError as error:
        record = logging.LogRecord("x", 30, "", 0, "failed", None, (type(error), error, error.__traceback__))
    said.append(Lines(as_json=False).format(record))
    for text in said:
        assert "over" in text
        assert not set(text) & set("\x1b\x07\u202e\x9b")


@pytest.mark.parametrize("layers", [0, 1])
def test_a_stop_without_layers_ends_the_run_and_not_the_learner(site: Callable[..., Site], layers: int) -> None:
    one = site()
    model = messages.encode_layers(one.layout.names[:layers], ["00" * 32] * layers)
    one.do(pb.Order(stop=pb.Stop(reason="over", model=model)))
    assert one.agent.ended == "over"
    assert one.agent.last_model is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_heartbeats_stay_within_reason(site: Callable[..., Site], seconds: float) -> None:
    one = site()
    one.agent.link.welcome = pb.Welcome(heartbeat=seconds, silence=seconds)  # type: ignore[attr-defined]
    asyncio.run(one.agent._join())
    assert 0.05 <= one.agent._heartbeat <= 3600
    assert 0.05 <= one.agent._silence <= 3600
