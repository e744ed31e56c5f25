"""One whole step against a computation that shares no code with it: ``oracle``."""

import msgspec
import pytest

from composer_pipeline.testing.training import tiny_recipe
from tests.trainers.trl import oracle

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


@pytest.mark.parametrize("shared", ["on", "off"])
def test_the_gradient_of_a_step_is_that_of_the_formulas(make, recipe, uneven, shake, shared):
    trainer = make(recipe.model_copy(update={"shared_prefix": shared}), uneven)
    shake(trainer)
    found = {}
    for limit in (1_000_000, 900, 64):  # a window in one forward, in some, a row at a time
        trainer._micro_batch_tokens = limit
        total = float(trainer.training_step(trainer.model, {}).detach())
        found[limit] = (total, oracle.gradient(trainer.model))
    masked = next(c for c in trainer.channels if c.name == "grpo").numbers["masked"]
    want, gradient = oracle.step(trainer, uneven)
    assert gradient.norm() > 1e-3
    assert 0 < masked < 0.5  # the off-policy mask is at work
    for limit, (total, other) in found.items():
        assert total == pytest.approx(want, rel=1e-5), limit
        assert (other - gradient).norm() / gradient.norm() < 1e-5, limit
    first = found[1_000_000][1]
    apart = [float((g - first).norm() / first.norm()) for _, g in found.values()]
    assert max(apart) < 1e-5, apart


def test_each_weight_is_held_by_the_test_above(make, recipe, uneven, shake):
    """A hundredth of a channel's weight moves the whole step by more than that test allows."""
    trainer = make(recipe, uneven)
    shake(trainer)
    trainer.training_step(trainer.model, {})
    whole = oracle.gradient(trainer.model)
    assert [channel.name for channel in trainer.channels] == list(WEIGHTS)
    for channel in trainer.channels:
        channel.weight *= 1.01
        trainer.training_step(trainer.model, {})
        assert (oracle.gradient(trainer.model) - whole).norm() / whole.norm() > 1e-5, channel.name
        channel.weight /= 1.01
