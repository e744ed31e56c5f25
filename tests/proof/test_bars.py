"""The composer loss makes the small world's model better, and four mutations do not.

Every arm goes the whole way: session files, replay over HTTP, votes, normalisation, dataset,
windows, base pass, ``ComposerTrainer``, and the evaluation of held-out sessions.
"""

import msgspec
import pytest
import torch

from composer_pipeline.evaluation.results import BASE
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import TrainingData
from examples.proof.arms import ARMS, recipe_of_arm
from examples.proof.bars import (
    MEASURE,
    broken_against_base,
    broken_at_full_coverage,
    broken_at_half_coverage,
)
from tests.places import ROOT
from trainers.common import policy
from trainers.common.policy import Frozen

HALF, FULL = "half", "full"


def share(results, kind: str) -> float:
    values = [float(r.judgement.exact) for r in results if r.kind == kind]
    return sum(values) / len(values)


def at_half(arena, name: str, results) -> list[str]:
    found = {
        BASE: arena.base(), "no-sdpo": arena.arm("no-sdpo", HALF), name: results,
    }  # fmt: skip
    return said(name, broken_at_half_coverage(found, name, "no-sdpo"))


def at_full(arena, name: str, results) -> list[str]:
    found = {BASE: arena.base(), "sft": arena.arm("sft", FULL), name: results}
    return said(name, broken_at_full_coverage(found, name, "sft"))


def said(name: str, broken: list[str]) -> list[str]:
    print(f"{name}: {'; '.join(broken) or 'every bar is met'}")
    return broken


def test_the_base_makes_the_mistakes_and_nothing_else(arena):
    assert MEASURE == "exact"
    base = arena.base()
    for kind in ("hard_covered", "hard_uncovered"):
        assert share(base, kind) < 0.1
    for kind in ("easy", "recovery"):
        assert share(base, kind) > 0.98
    told = [r.logp_right_hinted - r.logp_right for r in base if r.logp_right_hinted is not None]
    assert sum(gain > 0 for gain in told) > 0.95 * len(told)


def test_composer_meets_every_bar(arena):
    assert at_half(arena, "composer", arena.arm("composer", HALF)) == []
    assert at_full(arena, "composer", arena.arm("composer", FULL)) == []


def test_without_sdpo_the_bar_fails(arena):
    assert at_half(arena, "alpha-0", arena.arm("no-sdpo", HALF))


def swapped(data: TrainingData) -> TrainingData:
    pairs = [
        msgspec.structs.replace(p, chosen_ids=p.rejected_ids, rejected_ids=p.chosen_ids)
        for p in data.pairs
    ]
    return msgspec.structs.replace(data, pairs=pairs)


def test_swapped_pairs_fail_the_bar(arena):
    results = arena.arm("swapped", FULL, ARMS["composer"].terms, swapped)
    assert at_full(arena, "swapped", results)


def test_a_hint_alignment_off_by_one_fails_the_bar(arena, monkeypatch):
    """The teacher's states are taken one token too late: another token's distribution is taught."""

    class Shifted(Frozen):
        def states(self, rows):
            states, ids, head = super().states(rows)
            return torch.roll(states, -1, 0), ids, head

    monkeypatch.setattr(policy, "Frozen", Shifted)
    results = arena.arm("off-by-one", HALF, ARMS["composer"].terms)
    # It did teach something else; that it helps nobody is not for want of a gradient.
    before = {r.state_id: r.logp_right for r in arena.arm("no-sdpo", HALF)}
    assert any(abs(r.logp_right - before[r.state_id]) > 1e-3 for r in results)
    assert at_half(arena, "off-by-one", results)


def test_a_live_teacher_without_anchor_fails_the_bar(arena):
    terms = {
        channel: {**options, **({"teacher": "live"} if channel == "sdpo" else {})}
        for channel, options in ARMS["composer"].terms.items()
        if channel != "sft"
    }
    results = arena.arm("live", HALF, terms, steps=90)  # it takes longer to fall
    assert at_half(arena, "live", results)


def test_the_shipped_recipe_stands_two_wrong_teachers_of_three(arena):
    """Terms and schedule of `recipes/train`; each consensus about a mistake is another mistake."""
    recipe = TrainingRecipe.load(ROOT / "recipes" / "train" / "default.yaml")
    arm = recipe_of_arm("shipped", seed=1, steps=60)
    assert recipe.schedule == arm.schedule == "cosine"
    shipped, tried = recipe.channels, arm.channels
    assert shipped.weights() == tried.weights()
    assert (shipped.sft.source, shipped.sdpo.teacher) == (tried.sft.source, tried.sdpo.teacher)
    results = arena.arm("shipped", FULL, wrong=2)
    assert share(results, "hard_uncovered") > share(arena.base(), "hard_uncovered")
    found = {BASE: arena.base(), "shipped": results}
    assert said("shipped", broken_against_base(found, "shipped", allowed=0.02)) == []


@pytest.fixture(autouse=True, scope="module")
def _table(arena):
    yield
    for (name, coverage), results in arena.results.items():
        kinds = ("hard_covered", "hard_uncovered", "easy", "recovery")
        print(
            f"{name:12s} {coverage:5s}", *(f"{kind} {share(results, kind):.3f}" for kind in kinds)
        )
