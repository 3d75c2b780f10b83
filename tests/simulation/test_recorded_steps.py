"""Steps that are recorded for two and three learners and replayed for others: what is noted, left out and joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap

from archipel.core.types import Plan
from archipel.executors.choice import choose, executor_of
from archipel.executors.plain import Plain
from archipel.executors.recorded_step import RecordedStep
from archipel.executors.recording import DRAWS, PerLearner, Recorder, Recording, UnrecordableError, recorded
from archipel.executors.simplify import descending, simplified
from archipel.executors.stacked_draws import LearnersDraws, draw_forms
from archipel.executors.stacked_networks import network
from benchmarks.zoo_networks import Kind
from tests.simulation.test_zoo import apart, context_of, trained

Body = Callable[[Mapping[str, Tensor]], Sequence[Tensor]]


def inputs(learners: int) -> dict[str, Tensor]:
    """Return a weight and inputs of each learner."""
    drawn = torch.Generator().manual_seed(learners)
    return {
        "w": torch.randn(learners, 4, 3, generator=drawn),
        "b": torch.randn(learners, 3, generator=drawn),
        "x": torch.randn(learners, 5, 4, generator=drawn),
    }


def recording_of(body: Body) -> Recording:
    def begun(learners: int) -> tuple[dict[str, Tensor], Callable[[], Sequence[Tensor]]]:
        given = inputs(learners)
        return given, lambda: body(given)

    return recorded(begun)


def replayed(recording: Recording, given: Mapping[str, Tensor], times: int = 1) -> list[Tensor]:
    ready = RecordedStep(recording).prepare(len(given["x"]), given, 0.1, None)
    for _ in range(times):
        for call in ready.calls:
            call()
    return [*ready.results]


def gradients(given: Mapping[str, Tensor]) -> Sequence[Tensor]:
    w, b = given["w"].detach().requires_grad_(), given["b"].detach().requires_grad_()

    def loss(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
        return (torch.tanh(nn.functional.linear(x, w.T, b)) * torch.arange(3)).square().sum()

    return torch.autograd.grad(vmap(loss)(w, b, given["x"]).sum(), (w, b))


@pytest.mark.parametrize("learners", [1, 2, 7])
@pytest.mark.parametrize("change", [lambda recording: recording, simplified], ids=["as recorded", "simplified"])
def test_a_recording_is_replayed_for_any_number_of_learners(learners: int, change: Callable[..., Recording]) -> None:
    recording = change(recording_of(gradients))
    given = inputs(learners)
    for times in (1, 2):  # what is computed once must still be there in the second step
        found = replayed(recording, given, times)
        for mine, expected in zip(found, gradients(given), strict=True):
            torch.testing.assert_close(mine, expected)


def test_sizes_grow_with_the_learners() -> None:
    recording = recording_of(lambda given: [given["x"].flatten(0, 1) * 2])
    (call,) = simplified(recording).calls
    assert call.args[0].shape == (PerLearner(0, 5), 4)


def test_fewer_and_larger_operations_are_left() -> None:
    recording = recording_of(gradients)
    names = [call.name for call in simplified(recording).calls]
    assert len(names) < len(recording.calls) / 2
    assert names.count("aten::baddbmm") == 1, "the bias is added while the product is made"
    assert not {"aten::view", "aten::expand", "aten::transpose.int", "aten::detach", "aten::add.Tensor"} & {*names}


def test_a_descent_is_joined_with_the_product_that_it_descends_along() -> None:
    recording = descending(simplified(recording_of(gradients)), ("w", "b"))
    assert [call.name for call in recording.calls].count("aten::baddbmm_") == 1
    assert recording.results == ()
    given, before = inputs(4), inputs(4)
    replayed(recording, given)
    for name, gradient in zip(("w", "b"), gradients(before), strict=True):
        torch.testing.assert_close(given[name], before[name] - 0.1 * gradient)


def test_a_weight_is_not_changed_before_it_has_been_used() -> None:
    """The gradient with respect to the input of a layer needs its weight as it was."""

    def chain(given: Mapping[str, Tensor]) -> Sequence[Tensor]:
        w, b = given["w"].detach().requires_grad_(), given["b"].detach().requires_grad_()
        once = torch.bmm(given["x"], w) + b.unsqueeze(1)
        return torch.autograd.grad(torch.bmm(once, w.transpose(1, 2)).square().sum(), (w, b))

    recording = descending(simplified(recording_of(chain)), ("w", "b"))
    given, before = inputs(3), inputs(3)
    replayed(recording, given)
    for name, gradient in zip(("w", "b"), chain(before), strict=True):
        torch.testing.assert_close(given[name], before[name] - 0.1 * gradient)


def test_memory_is_used_again() -> None:
    def long(given: Mapping[str, Tensor]) -> Sequence[Tensor]:
        y = given["x"]
        for _ in range(50):
            y = (y * 2).sin()
        return [y]

    ready = RecordedStep(simplified(recording_of(long))).prepare(2, given := inputs(2), 0.1, None)
    for call in ready.calls:
        call()
    torch.testing.assert_close(ready.results[0], long(given)[0])
    assert ready.results[0].untyped_storage().nbytes() < 8 * given["x"].nbytes


def test_what_depends_on_nothing_is_computed_once() -> None:
    ready = RecordedStep(recording_of(lambda given: [given["x"] + torch.arange(4.0).exp()])).prepare(
        2, inputs(2), 0.1, None
    )
    assert len(ready.calls) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda given: [given["x"] * float(given["w"].sum())], "reads a number out of a tensor"),
        (lambda given: [given["x"][given["x"] > 0]], "sizes of its tensors depend on their numbers"),
        (lambda given: [given["x"].reshape(-1, 4)[torch.randperm(5)]], "draws random numbers by aten.randperm"),
        (lambda given: [given["x"] * len(given["x"]) ** 0.5], "depend on the number of learners"),
        (lambda given: [sum((row for row in given["x"]), torch.zeros(5, 4))], "the operations differ"),
        (lambda given: [given["x"].to_sparse().to_dense()], "sparse"),
    ],
    ids=["number", "mask", "order", "factor", "loop", "sparse"],
)
def test_what_cannot_be_recorded_says_why(body: Body, reason: str) -> None:
    with pytest.raises(UnrecordableError, match=reason):
        recording_of(body)


def test_a_number_that_is_the_same_in_each_step_may_be_read() -> None:
    recording = recording_of(lambda given: [given["x"] * float(torch.arange(4.0).sum())])
    torch.testing.assert_close(replayed(recording, given := inputs(3))[0], given["x"] * 6)


# ---------------------------------------------------------------------------------------------------- random numbers


@pytest.mark.parametrize("chance", [0.1, 1 / 3, 0.5, 0.9])
def test_dropout_draws_the_bits_of_bernoulli(chance: float) -> None:
    """A stack compares uniform numbers with the chance, which takes a third of the time."""
    generator = torch.Generator()
    expected = torch.empty(10_001).bernoulli_(chance, generator=generator.manual_seed(5))
    state = generator.get_state()
    found = torch.empty(10_001, dtype=torch.float64).uniform_(generator=generator.manual_seed(5)) < chance
    assert torch.equal(found.float(), expected)
    assert torch.equal(generator.get_state(), state)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(0.3),
        nn.Dropout1d(0.3),
        nn.AlphaDropout(0.3),
        nn.Sequential(nn.Flatten(), nn.Unflatten(1, (3, 4)), nn.Dropout(0.4), nn.Dropout(0.1)),
    ],
    ids=["dropout", "dropout1d", "alpha", "two"],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_stack_draws_what_each_learner_draws_alone(layer: nn.Module, turned: bool) -> None:
    """With short batches too, and where numbers lie in memory in another order."""
    layer.train()

    def alone(x: Tensor) -> Tensor:
        outputs: Tensor = layer(x.transpose(0, 1).contiguous().transpose(0, 1) if turned else x)
        return outputs

    class Alone(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return alone(x)

    x = torch.randn(3, 5, 3, 4)
    draws = LearnersDraws(draw_forms(Alone(), x[0]))
    with torch.random.fork_rng(devices=[]), Recorder({}) as recorder:
        for own in x:
            alone(own)
    calls = [call for call in recorder.calls if call.name in DRAWS]
    calls = calls[: len(calls) // 3]
    targets = [torch.empty(3, *form.sizes(5)) for form in draws.forms]
    ready = [draws.ready(n, target, call) for n, (target, call) in enumerate(zip(targets, calls, strict=True))]
    draws.present = [5, 2, 4]
    for learner in range(3):
        draws.seed(learner, 11 * learner)
    for draw in ready:
        draw()
    for learner, present in enumerate(draws.present):
        with torch.random.fork_rng(devices=[]), Recorder({}) as recorder:
            torch.default_generator.manual_seed(11 * learner)
            alone(x[learner, :present])
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(11 * learner)
            for call, target in zip([c for c in recorder.calls if c.name in DRAWS], targets, strict=True):
                (place,) = call.outputs
                assert place is not None
                shape, stride = ([int(str(size)) for size in sizes] for sizes in (place.shape, place.stride))
                expected = torch.empty_strided(shape, stride).bernoulli_(call.args[1])
                assert torch.equal(target[learner, : len(expected)], expected)


# ---------------------------------------------------------------------------------------- networks not in the zoo


class Own(nn.Module):
    """A network with a forward pass of one function."""

    def __init__(self, run: Callable[..., Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, **dict(self.named_children()))


class Square(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *above: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]  # type: ignore[attr-defined]
        return 2 * x * above[0]


class Average(nn.Module):
    """Keeps a mean of what it sees, in place."""

    middle: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.register_buffer("middle", torch.zeros(64))

    def forward(self, x: Tensor) -> Tensor:
        self.middle.mul_(0.9).add_(x.detach().mean(dim=0), alpha=0.1)
        scores: Tensor = self.head(x - self.middle)
        return scores


def squared(x: Tensor, head: nn.Module) -> Tensor:
    scores: Tensor = Square.apply(head(x))  # type: ignore[no-untyped-call]
    return scores


def tied(x: Tensor, down: nn.Linear, head: nn.Linear) -> Tensor:
    scores: Tensor = head(nn.functional.linear(torch.tanh(down(x)), down.weight.T))
    return scores


def causal(x: Tensor, layer: nn.Module, head: nn.Module) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(8)
    scores: Tensor = head(layer(x.view(-1, 8, 8), src_mask=mask, is_causal=True).flatten(1))
    return scores


def recur(x: Tensor, cell: nn.LSTMCell, head: nn.Module) -> Tensor:
    h = c = torch.zeros(len(x), 6)
    for step in x.view(-1, 8, 8).unbind(1):
        h, c = cell(step, (h, c))
    scores: Tensor = head(h)
    return scores


def grown(x: Tensor, head: nn.Module) -> Tensor:
    y = torch.zeros(x.shape)
    y += x
    y[:, :3] *= 2
    scores: Tensor = head(y)
    return scores


def skipped(x: Tensor, inner: nn.Module, head: nn.Module) -> Tensor:
    scores: Tensor = head(x + inner(x) * torch.empty(len(x), 1).bernoulli_(0.8))
    return scores


def noisy(x: Tensor, head: nn.Module) -> Tensor:
    scores: Tensor = head(x + 0.1 * torch.randn_like(x))
    return scores


HEAD = 64, 10
OTHERS: dict[str, Callable[[], nn.Module]] = {
    "autograd function": lambda: Own(squared, head=nn.Linear(*HEAD)),
    "average in place": Average,
    "batches that depend": lambda: Own(lambda x, head: head(x - x.mean(dim=0)), head=nn.Linear(*HEAD)),
    "bilinear": lambda: Own(lambda x, head: head(*x.chunk(2, dim=1)), head=nn.Bilinear(32, 32, 10)),
    "causal mask": lambda: Own(
        causal, layer=nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), head=nn.Linear(*HEAD)
    ),
    "convolution, 1-D": lambda: nn.Sequential(
        nn.Unflatten(1, (4, 16)), nn.Conv1d(4, 4, 3, groups=2), nn.PReLU(4), nn.Flatten(), nn.Linear(56, 10)
    ),
    "gaussian noise": lambda: Own(noisy, head=nn.Linear(*HEAD)),
    "gated": lambda: nn.Sequential(nn.Linear(64, 16), nn.GLU(), nn.Linear(8, 10)),
    "in place": lambda: Own(grown, head=nn.Linear(*HEAD)),
    "LSTM cell": lambda: Own(recur, cell=nn.LSTMCell(8, 6), head=nn.Linear(6, 10)),
    "mean of all batches": lambda: nn.Sequential(nn.Linear(*HEAD), nn.BatchNorm1d(10, momentum=None)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(*HEAD)),
    "stochastic depth": lambda: Own(skipped, inner=nn.Linear(64, 64), head=nn.Linear(*HEAD)),
    "tied": lambda: Own(tied, down=nn.Linear(64, 6), head=nn.Linear(*HEAD)),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(*HEAD)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_stacked_and_come_to_the_same_models(name: str) -> None:
    sizes, plan = (7, 12, 4), Plan(epochs=2, batch=5, rate=0.1)
    at_hand = context_of(Kind(OTHERS[name]), sizes)
    start = at_hand.layout.vector(at_hand.module).clone()
    assert choose(at_hand, plan) == ("stacked", "")
    expected = trained(Plain(at_hand), at_hand, start, plan, sizes)
    assert apart(trained(executor_of(at_hand, plan), at_hand, start, plan, sizes), expected, start) < 1e-4


def weighted(outputs: Tensor, targets: Tensor) -> Tensor:
    """A mean by the weights of classes, which is no mean of single examples' losses."""
    return nn.functional.cross_entropy(outputs, targets, weight=torch.arange(1.0, 11.0))


def without_some(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets of 3 are left out, of which no batch of the trial may have one."""
    return nn.functional.cross_entropy(outputs, torch.where(targets == 3, -100, targets))


@pytest.mark.slow
@pytest.mark.parametrize("loss", [weighted, without_some])
def test_losses_of_whole_batches_are_stacked_by_the_length_of_batches(loss: Callable[..., Tensor]) -> None:
    sizes, plan = (7, 12, 7, 12), Plan(epochs=2, batch=5, rate=0.1, reports=("losses",))
    at_hand = context_of(Kind(lambda: nn.Linear(*HEAD), loss=loss), sizes)
    start = at_hand.layout.vector(at_hand.module).clone()
    assert choose(at_hand, plan) == ("stacked", "")
    assert network(at_hand).whole
    expected = trained(Plain(at_hand), at_hand, start, plan, sizes)
    assert apart(trained(executor_of(at_hand, plan), at_hand, start, plan, sizes), expected, start) < 1e-4
