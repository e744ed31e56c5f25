"""One whole step against a computation that shares no code with it: full logits, float64.

Every formula is written out again here, from the papers: clipped policy gradient at ratio 1 with
Dr. GRPO's constant length and the off-policy mask of DeepSeek-V3.2, generalised JSD, DPO, NLL.
"""

from math import log

import msgspec
import pytest
import torch
from torch.nn.functional import logsigmoid

from composer_pipeline.testing.training import tiny_recipe

WEIGHTS = {"grpo": 0.7, "sdpo": 1.3, "dpo": 0.45, "sft": 0.3}
BETA_DPO, BETA_JSD, TEMPERATURE, THRESHOLD = 0.3, 0.35, 1.4, 0.01


@pytest.fixture(scope="module")
def recipe():
    return tiny_recipe(
        "toy",
        channels={
            "grpo": {"weight": WEIGHTS["grpo"], "groups_per_step": 2,
                     "off_policy_threshold": THRESHOLD},
            "sdpo": {"weight": WEIGHTS["sdpo"], "rows_per_step": 3, "jsd_beta": BETA_JSD,
                     "temperature": TEMPERATURE, "hint_gain": False},
            "dpo": {"weight": WEIGHTS["dpo"], "pairs_per_step": 3, "beta": BETA_DPO},
            "sft": {"weight": WEIGHTS["sft"], "rows_per_step": 2},
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def uneven(toy_data):
    """The data with unequal spans, pair weights and multiplicities."""
    replace = msgspec.structs.replace
    spans = [(0, 2), (1, 1), (0, 1)] * 6
    hints = [
        replace(h, start=a, length=n) for h, (a, n) in zip(toy_data.hints, spans, strict=False)
    ]
    pairs = [replace(p, weight=0.5 + i) for i, p in enumerate(toy_data.pairs)]
    groups = [replace(g, counts=[i + 1 for i, _ in enumerate(g.counts)]) for g in toy_data.groups]
    return msgspec.structs.replace(toy_data, hints=hints, pairs=pairs, groups=groups)


def logps(model, prompt, response):
    """Return log p of each response token, and the logits that predict them, in float64."""
    ids = torch.tensor([[*prompt, *response]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()
    picked = logits.log_softmax(-1).gather(-1, torch.tensor(list(response))[:, None])
    return picked.squeeze(-1), logits


def naive(model, data, factors, length):
    """Return every channel's loss on the whole data, with a graph."""
    losses = dict.fromkeys(WEIGHTS, torch.zeros((), dtype=torch.float64))
    for group in data.groups:
        n = sum(group.counts)
        mean = sum(r * c for r, c in zip(group.rewards, group.counts, strict=True)) / n
        for answer, count, reward in zip(
            group.completions, group.counts, group.rewards, strict=True
        ):
            now, _ = logps(model, group.prompt_ids, answer)
            with torch.no_grad(), model.disable_adapter():
                base, _ = logps(model, group.prompt_ids, answer)
            fallen = float((base - now.detach()).mean())
            if reward < mean and fallen > THRESHOLD:
                continue
            term = -((now - now.detach()).exp() * (reward - mean)).sum() / length
            losses["grpo"] = losses["grpo"] + term * count / n / len(data.groups)
    tokens = sum(h.length for h in data.hints)
    for hint in data.hints:
        span = slice(hint.start, hint.start + hint.length)
        _, student = logps(model, hint.prompt_ids, hint.response_ids)
        with torch.no_grad(), model.disable_adapter():
            _, teacher = logps(model, hint.teacher_prompt_ids, hint.response_ids)
        s = (student[span] / TEMPERATURE).log_softmax(-1)
        t = (teacher[span] / TEMPERATURE).log_softmax(-1)
        m = torch.logaddexp(s + log(1 - BETA_JSD), t + log(BETA_JSD))
        jsd = BETA_JSD * (t.exp() * (t - m)).sum(-1) + (1 - BETA_JSD) * (s.exp() * (s - m)).sum(-1)
        losses["sdpo"] = losses["sdpo"] + jsd.sum() / tokens
    for pair in data.pairs:
        sides = []
        for response in (pair.chosen_ids, pair.rejected_ids):
            now = logps(model, pair.prompt_ids, response)[0].sum()
            with torch.no_grad(), model.disable_adapter():
                base = logps(model, pair.prompt_ids, response)[0].sum()
            sides.append(now - base)
        loss = -logsigmoid(BETA_DPO * (sides[0] - sides[1]))
        losses["dpo"] = losses["dpo"] + loss * factors[pair.id] / len(data.pairs)
    words = sum(len(d.response_ids) for d in data.demonstrations)
    for row in data.demonstrations:
        term = -logps(model, row.prompt_ids, row.response_ids)[0].sum() / words
        losses["sft"] = losses["sft"] + term
    return losses


def flat(model):
    return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("shared", ["on", "off"])
def test_the_gradient_of_a_step_is_that_of_the_formulas(make, recipe, uneven, shake, shared):
    trainer = make(recipe.model_copy(update={"shared_prefix": shared}), uneven)
    shake(trainer)
    found = {}
    for limit in (1_000_000, 900, 64):  # a window in one forward, in some, a row at a time
        trainer._micro_batch_tokens = limit
        total = float(trainer.training_step(trainer.model, {}).detach())
        found[limit] = (total, flat(trainer.model))
    seen = {channel.name: channel for channel in trainer.channels}
    drawn = msgspec.structs.replace(
        uneven,
        groups=seen["grpo"].drawn(0), hints=seen["sdpo"].drawn(0),
        pairs=seen["dpo"].drawn(0), demonstrations=seen["sft"].drawn(0),
    )  # fmt: skip
    assert [len(drawn.groups), len(drawn.hints), len(drawn.pairs)] == [2, 3, 3]
    mean = sum(p.weight for p in uneven.pairs) / len(uneven.pairs)
    sizes = [
        (len(a), c)
        for g in uneven.groups
        for a, c in zip(g.completions, g.counts, strict=True)
    ]  # fmt: skip
    length = sum(n * c for n, c in sizes) / sum(c for _, c in sizes)
    model = trainer.model.double()
    model.zero_grad()
    losses = naive(model, drawn, {p.id: p.weight / mean for p in uneven.pairs}, length)
    want = sum(WEIGHTS[name] * loss for name, loss in losses.items())
    want.backward()
    gradient = flat(model)
    assert gradient.norm() > 1e-3
    assert 0 < seen["grpo"].numbers["masked"] < 0.5  # the off-policy mask is at work
    for limit, (total, other) in found.items():
        assert total == pytest.approx(float(want.detach()), rel=1e-5), limit
        assert (other - gradient).norm() / gradient.norm() < 1e-5, limit
    first = found[1_000_000][1]
    apart = [float((g - first).norm() / first.norm()) for _, g in found.values()]
    assert max(apart) < 1e-5, apart


def test_each_weight_is_held_by_the_test_above(make, recipe, uneven, shake):
    """A hundredth of a channel's weight moves the whole step by more than that test allows."""
    trainer = make(recipe, uneven)
    shake(trainer)
    trainer.training_step(trainer.model, {})
    whole = flat(trainer.model)
    assert [channel.name for channel in trainer.channels] == list(WEIGHTS)
    for channel in trainer.channels:
        channel.weight *= 1.01
        trainer.training_step(trainer.model, {})
        assert (flat(trainer.model) - whole).norm() / whole.norm() > 1e-5, channel.name
        channel.weight /= 1.01
