"""Targets for every token: losses, counts, scores and training by hand, without a transformer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import archipel as ap
from archipel.core.metrics import metric
from archipel.core.types import IGNORED, Plan
from archipel.federation.wire.body import InvalidUpdate
from archipel.federation.wire.messages import decode_plan, decode_scored, encode_plan, encode_scored
from archipel.learner.learner import TrainingContext
from archipel.learner.probes import loss_moments, mean_loss, score, squared_gradient_norm
from archipel.learner.tokens import token_counts, token_cross_entropy, token_losses
from tests.learner.one_learner import learner, trained, work_of
from tests.transformers.small_transformers import spoken


class NextToken(nn.Module):
    """A table of what follows what; it cuts off the padding, as transformers do."""

    def __init__(self, tokens: int = 259) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(tokens, 8)
        self.head = nn.Linear(8, tokens)

    def forward(self, x: Tensor) -> Tensor:
        ids, mask = x.unbind(1)
        outputs: Tensor = self.head(self.table(ids[:, : int(mask.sum(dim=1).max())]))
        return outputs


@pytest.fixture
def work() -> TrainingContext:
    source = spoken()
    return work_of(NextToken(), source.x, source.y, loss=token_cross_entropy)


def test_losses_and_counts_leave_out_what_has_no_target() -> None:
    outputs = torch.log(torch.tensor([[[0.5, 0.5], [0.25, 0.75]], [[0.1, 0.9], [0.5, 0.5]]]))
    targets = torch.tensor([[0, 1, IGNORED], [0, IGNORED, IGNORED]])  # outputs are without the third position
    expected = torch.tensor([0.5 * 0.75, 0.1]).log().neg()
    torch.testing.assert_close(token_losses(outputs, targets), expected)
    torch.testing.assert_close(token_cross_entropy(outputs, targets), expected.sum() / 3)
    assert token_counts(outputs, targets).tolist() == [[0, 2], [1, 0]]
    nothing = torch.full((2, 3), IGNORED)
    assert float(token_cross_entropy(outputs, nothing)) == 0
    assert token_counts(outputs, nothing).tolist() == [[0, 0], [0, 0]]


def test_a_score_does_not_depend_on_how_many_texts_are_tried_at_a_time(work: TrainingContext) -> None:
    vector, every = work.layout.vector(work.module), torch.arange(len(work.x))
    whole, pieces = score(work, vector, every), score(replace(work, rows=3), vector, every)
    assert whole.tokens is not None
    assert pieces.tokens is not None
    assert whole.tokens.tolist() == pieces.tokens.tolist()
    assert int(whole.tokens.sum()) == int((work.y != IGNORED).sum())
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert metric("loss", whole) == pytest.approx(mean_loss(work, every), rel=1e-6)
    with torch.no_grad():
        assert float(token_cross_entropy(work.module(work.x), work.y)) == pytest.approx(metric("loss", whole), rel=1e-6)


def test_moments_and_gradients_are_of_single_texts(work: TrainingContext) -> None:
    vector, every = work.layout.vector(work.module), torch.arange(4)
    losses = [token_cross_entropy(work.module(work.x[[i]]), work.y[[i]]).item() for i in range(4)]
    mean, square = loss_moments(work, vector, every)
    assert mean == pytest.approx(sum(losses) / 4, rel=1e-5)
    assert square == pytest.approx(sum(loss**2 for loss in losses) / 4, rel=1e-5)
    assert squared_gradient_norm(work, vector, every, None) == squared_gradient_norm(work, vector, every, 1)


def test_gradients_of_pieces_add_up_to_those_of_the_batch(work: TrainingContext) -> None:
    start = work.layout.vector(work.module)
    plan = Plan(batch=10, rate=0.5)
    whole, pieces = (
        trained(work, start, replace(plan, accumulate=count), who=learner(torch.arange(20))).vector for count in (1, 3)
    )
    assert not torch.equal(whole, start)
    torch.testing.assert_close(pieces, whole, atol=1e-6, rtol=1e-5)


def test_pieces_of_a_batch_in_a_whole_run() -> None:
    data = ap.data.digits().split(learners=2, sizes=(50, 50))
    runs = [
        ap.simulate(ap.fedavg(batch=16, accumulate=count), data, ending=ap.Ending(rounds=2), execution="workers")
        for count in (1, 4)
    ]
    torch.testing.assert_close(runs[1].model, runs[0].model, atol=1e-6, rtol=1e-5)
    with pytest.raises(ValueError, match="cannot be stacked: its mini-batches are computed in 4 pieces"):
        ap.simulate(ap.fedavg(accumulate=4), data, execution="stacked")


def test_a_whole_run_is_scored_by_tokens() -> None:
    data = spoken().natural(test="own", stimuli=0)
    run = ap.simulate(ap.fedavg(rate=1.0, batch=4), data, model=NextToken, ending=ap.Ending(rounds=4))
    assert run.metric == "perplexity"
    first, last = run.scores[0][1].metrics, run.scores[-1][1].metrics
    assert set(last) == {"loss", "perplexity", "token_accuracy"}
    assert last["perplexity"] < first["perplexity"] / 2
    assert run.execution_reason == "not stacked, because its examples are texts, whose padding depends on their batch"


@pytest.mark.parametrize("metric", ["token_accuracy", "perplexity", "loss"])
def test_opinions_weigh_by_tokens(metric: str) -> None:
    data = spoken().natural(test="own", stimuli=0)
    weighting = ap.ByDistributedValidation(metric)
    run = ap.simulate(
        replace(ap.fedavg(rate=1.0, batch=4), weighting=weighting),
        data,
        model=NextToken,
        validation=0.3,
        ending=ap.Ending(rounds=3),
    )
    weights = {weight for _, commit in run.commits[1:] for weight in commit.weights}
    assert len(weights) > 1


@pytest.mark.parametrize(
    ("evaluation", "told"),
    [
        (ap.Evaluation(metric="accuracy"), "scored by accuracy, and every token has a target; use one of loss, perpl"),
        (None, "The targets go up to 124, and the model has 50 outputs a token; give it as many as there are tokens"),
    ],
)
def test_metrics_and_targets_that_do_not_fit(evaluation: ap.Evaluation | None, told: str) -> None:
    def few_outputs() -> nn.Module:
        module = NextToken()
        if evaluation is None:
            module.head = nn.Linear(8, 50)
        return module

    with pytest.raises(ValueError, match=told):
        ap.simulate(ap.fedavg(), spoken().split(learners=2), model=few_outputs, evaluation=evaluation)


def test_a_metric_of_tokens_needs_tokens() -> None:
    data = ap.data.digits().split(learners=2)
    with pytest.raises(
        ValueError, match="scored by perplexity, which needs a target for every token, and 'digits' has"
    ):
        ap.simulate(ap.fedavg(), data, evaluation=ap.Evaluation(metric="perplexity"))


def test_counts_of_tokens_on_the_wire(work: TrainingContext) -> None:
    found = score(work, work.layout.vector(work.module), torch.arange(5))
    said = encode_scored(found)
    back = decode_scored(said, count=5, classes=None, bins=0, per_token=True)
    assert back.tokens is not None
    assert found.tokens is not None
    assert (back.loss, back.tokens.tolist()) == (found.loss, found.tokens.tolist())
    assert decode_scored(said, count=5, classes=None, bins=0).tokens is None  # nobody has asked for tokens
    for wrong in ((), (1,), (1, 2, 3), (2**63, 0)):
        del said.tokens[:]
        said.tokens.extend(wrong)
        with pytest.raises(InvalidUpdate, match="a count of tokens"):
            decode_scored(said, count=5, classes=None, bins=0, per_token=True)
    plan = Plan(accumulate=4)
    assert decode_plan(encode_plan(plan, 1)) == plan
