"""What the verl trainer does around verl: dealing rows, positions in a batch, bad rows.

The engine itself runs in an environment of its own: ``make proof-verl``.
"""

import math

import pytest
import torch

from composer_pipeline.losses.step import StepOptions, StepRow, step_loss, token_divergence
from trainers.verl import loss as verl_loss
from trainers.verl.loss import ComposerLoss, predicting
from trainers.verl.trainer import dealt

VOCABULARY = 11
WEIGHTS = {"grpo": 1.0, "sdpo": 0.5, "dpo": 0.3, "sft": 0.2}


def row(channel, role, prompt, response, *, start=0, length=None, **fields):
    length = len(response) - start if length is None else length
    return StepRow(
        step=0, channel=channel, unit=f"0/{channel}", role=role, prompt_ids=prompt,
        response_ids=response, start=start, length=length, **fields,
    )  # fmt: skip


@pytest.fixture
def rows():
    return [
        row("grpo", "answer", [1, 2], [3, 4, 5], coefficient=0.1, advantage=0.5, rank=1,
            reference_logps=[-2.0, -2.0, -2.0]),
        row("grpo", "answer", [1, 2], [6], coefficient=0.1, advantage=-0.5, rank=-1,
            reference_logps=[-1.0]),
        row("sdpo", "plain", [1, 4], [7, 8, 9], start=1, length=2, coefficient=0.5),
        row("sdpo", "hinted", [1, 5, 6], [7, 8, 9], start=1, length=2),
        row("dpo", "chosen", [2, 3], [3, 3], coefficient=1.0, reference_logp=-4.0),
        row("dpo", "rejected", [2, 3], [4, 5, 6], reference_logp=-7.0),
        row("sft", "demonstration", [9, 1], [1, 2], coefficient=0.5),
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("limit", [1, 12, 1000])
def test_every_row_is_dealt_once_and_no_pair_is_split(rows, ranks, limit):
    hands, couples = dealt(rows, ranks, limit)
    read = sorted(i for hand in hands for i in hand if i >= 0)
    assert read == [i for i, one in enumerate(rows) if one.role != "hinted"]
    assert len({len(hand) for hand in hands}) == 1
    for hand in hands:
        assert len(hand) % (2 * couples) == 0
        for i in hand:
            if i >= 0 and rows[i].role == "chosen":
                assert hand.index(i) % 2 == 0
                assert hand[hand.index(i) + 1] == i + 1
    longest = max(one.size for one in rows)
    assert couples == 1 or 2 * couples * longest <= limit


def packed(rows, hand):
    """Return verl's columns of a micro-batch, and its logits as one packed row."""
    ids = [[*rows[i].prompt_ids, *rows[i].response_ids] if i >= 0 else [0, 0] for i in hand]
    nested = torch.nested.as_nested_tensor([torch.tensor(x) for x in ids], layout=torch.jagged)
    torch.manual_seed(0)
    logits = torch.randn(sum(map(len, ids)), VOCABULARY, requires_grad=True)
    return {"input_ids": nested, "row": torch.tensor(hand), "dp_size": 2}, logits


def outcome(loss, data, logits):
    """Call the loss as verl's engine does."""
    ids = data["input_ids"]
    output = {
        name: torch.nested.nested_tensor_from_jagged(values.squeeze(0), ids.offsets())
        for name, values in loss(student_logits=logits.unsqueeze(0), data=data).items()
    }
    return loss(model_output=output, data=data)[0]


def by_hand(rows, hand, taught, data, logits, options):
    """Return the same loss with each sequence taken out of the batch."""
    kept, logps, divergences = [], [], []
    pieces = logits.split(data["input_ids"].offsets().diff().tolist())
    for i, piece in zip(hand, pieces, strict=True):
        if i < 0:
            continue
        one = rows[i]
        ids = torch.tensor(one.response_ids[one.start : one.start + one.length]).unsqueeze(-1)
        first = len(one.prompt_ids) + one.start - 1
        at = piece[first : first + one.length]
        kept.append(one)
        logps.append(at.log_softmax(-1).gather(-1, ids).squeeze(-1))
        divergences.append(token_divergence(at, taught, options) if one.role == "plain" else at[:0])
    return step_loss(kept, logps, divergences, options)[0]


@pytest.fixture
def begun(rows):
    options = StepOptions(weights=WEIGHTS, off_policy_threshold=0.5)
    loss, taught = ComposerLoss(options), torch.randn(2, VOCABULARY)
    loss.begin(rows, {"0/sdpo": taught}, 0.0)
    return loss, taught


@pytest.mark.parametrize("shift", [0, -1])
def test_the_loss_reads_the_positions_that_predict_the_spans(rows, begun, shift, monkeypatch):
    loss, taught = begun
    hand = [4, 5, 0, 2, 6, 1, -1, -1]
    data, logits = packed(rows, hand)
    wanted = 2 * by_hand(rows, hand, taught, data, logits, loss.options)  # averaged over 2 ranks
    if shift:
        monkeypatch.setattr(
            verl_loss, "predicting",
            lambda one: slice(predicting(one).start + shift, predicting(one).stop + shift),
        )  # fmt: skip
    found = outcome(loss, data, logits)
    right = torch.autograd.grad(wanted, logits, retain_graph=True)[0]
    own = torch.autograd.grad(found, logits)[0]
    assert torch.allclose(own, right, atol=1e-6) is not bool(shift)


def test_filling_alone_has_a_gradient_of_zero(rows, begun):
    loss, _ = begun
    data, logits = packed(rows, [-1, -1])
    outcome(loss, data, logits).backward()
    assert not logits.grad.any()


def test_a_row_without_a_finite_loss_is_named_and_poisons_the_gradient(rows, begun):
    loss, _ = begun
    data, logits = packed(rows, [6, -1])
    with torch.no_grad():
        logits[1, 1] = -math.inf  # log p of the first taught token
    assert outcome(loss, data, logits).isnan()
    assert loss.faults == ["sft sft"]
