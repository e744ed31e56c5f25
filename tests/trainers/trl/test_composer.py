"""ComposerTrainer: three live channels in one optimizer step, normalised once."""

import inspect
import math
from typing import Any

import msgspec
import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from composer_pipeline.diloco.callback import trainable
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.losses.divergence import generalized_jsd
from composer_pipeline.testing.training import tiny_recipe
from trainers.trl import batches, composer
from trainers.trl.batches import Row, Stream, backbone_and_head, response_states
from trainers.trl.composer import ComposerTrainer, EmptyChannel, _Window

pytestmark = pytest.mark.slow


@pytest.fixture
def make(tiny_model, tokenizer, data, tmp_path):
    def build(recipe=None, rows=None, **options):
        return ComposerTrainer(
            model=AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32),
            recipe=recipe or tiny_recipe(tiny_model),
            data=rows or data,
            output_dir=tmp_path,
            tokenizer=tokenizer,
            **options,
        )

    return build


def grads(trainer):
    found = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
    trainer.model.zero_grad()
    return found


def total_norm(found):
    return math.sqrt(sum(float(g.square().sum()) for g in found.values()))


def shake(trainer):
    """Give the adapter a value: a fresh one is zero, and so are some gradients."""
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in trainable(trainer.model).values():
            parameter.add_(0.3 * torch.randn_like(parameter))


def test_three_channels_are_live_and_do_not_depend_on_accumulation(make, tiny_model):
    results = []
    for parts in (1, 4):
        steps: list[Any] = []
        recipe = tiny_recipe(tiny_model, gradient_accumulation_steps=parts)
        trainer = make(recipe, on_step=lambda step, numbers, to=steps: to.append(numbers))
        before = {n: p.detach().clone() for n, p in trainable(trainer.model).items()}
        output = trainer.train()
        after = {n: p.detach() for n, p in trainable(trainer.model).items()}
        assert any(not torch.equal(before[n], after[n]) for n in before)
        results.append((steps, output.training_loss, after))
    steps, loss, after = results[0]
    assert len(steps) == 2
    for numbers in steps:
        assert numbers["grpo_active"] > 100
        assert numbers["sdpo_active"] > 50
        assert numbers["dpo_active"] == 2
    assert steps[0]["dpo_loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert steps[0]["sdpo_loss"] > 0
    assert steps[0]["zero_variance"] == 0
    for other, other_loss, other_after in results[1:]:
        assert other_loss == pytest.approx(loss, rel=1e-5)
        for a, b in zip(steps, other, strict=True):
            assert a == pytest.approx(b, rel=1e-4, abs=1e-7)
        for name, value in after.items():
            assert_close(other_after[name], value, rtol=1e-3, atol=1e-5)


def test_each_channel_has_a_gradient_of_its_own(make, tiny_model):
    norms = {}
    for channel in ("grpo", "sdpo", "dpo"):
        weights = {c: {"weight": float(c == channel)} for c in ("grpo", "sdpo", "dpo")}
        recipe = tiny_recipe(tiny_model, channels=weights)
        trainer = make(recipe)
        shake(trainer)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        batch = [{"prompt": "0"} for _ in range(4)]
        loss = trainer._compute_loss(trainer.model, trainer._prepare_inputs(batch))
        trainer.accelerator.backward(loss)
        norms[channel] = total_norm(grads(trainer))
    assert all(norm > 1e-8 for norm in norms.values()), norms


def test_sdpo_is_the_divergence_from_the_hinted_base_model(make, data):
    trainer = make()
    shake(trainer)
    hint = data.hints[0]
    trainer._window = _Window([], [hint])
    loss = trainer._sdpo(trainer.model, hint)
    loss.backward()
    assert total_norm(grads(trainer)) > 1e-8
    model = trainer.model

    def logits(prompt):
        ids = torch.tensor([[*prompt, *hint.response_ids]])
        return model(input_ids=ids).logits[0, len(prompt) - 1 : -1]

    with torch.no_grad():
        student = logits(hint.prompt_ids)
        with model.disable_adapter():
            teacher = logits(hint.teacher_prompt_ids)
        values = generalized_jsd(student, teacher, beta=0.5)
    want = values[hint.start : hint.start + hint.length].mean()
    assert_close(loss.detach(), want, rtol=1e-4, atol=1e-9)


def test_sdpo_is_the_token_mean_of_its_window(make, data):
    trainer = make()
    shake(trainer)
    short, long = data.hints[0], data.hints[1]
    short = msgspec.structs.replace(short, start=20, length=3)

    def window(*hints):
        trainer._window = _Window([], list(hints))
        total = sum(float(trainer._sdpo(trainer.model, hint).detach()) for hint in hints)
        return total, trainer._window.active["sdpo"]

    both, tokens = window(short, long)
    assert tokens == short.length + long.length
    alone = [window(hint)[0] * hint.length for hint in (short, long)]
    assert both == pytest.approx(sum(alone) / tokens, rel=1e-5)


def test_without_a_hint_sdpo_teaches_nothing(make, data):
    trainer = make()  # a fresh adapter is the base model
    hint = data.hints[0]
    same = msgspec.structs.replace(hint, teacher_prompt_ids=hint.prompt_ids)
    for row, silent in ((same, True), (hint, False)):
        trainer._window = _Window([], [row])
        loss = trainer._sdpo(trainer.model, row)
        loss.backward()
        norm = total_norm(grads(trainer))
        assert (norm < 1e-9) == silent
        assert (float(loss.detach()) < 1e-9) == silent


def test_misaligned_responses_are_refused(make, data, monkeypatch):
    trainer = make()
    hint = data.hints[0]
    trainer._window = _Window([], [hint])
    honest = batches.response_states
    calls = []

    def shifted(backbone, rows, pad, device):
        states, ids = honest(backbone, rows, pad, device)
        calls.append(1)
        return states, ids.roll(1) if len(calls) == 1 else ids

    monkeypatch.setattr(composer, "response_states", shifted)
    with pytest.raises(ComposerError, match="different tokens"):
        trainer._sdpo(trainer.model, hint)


def test_dpo_compares_with_the_untrained_model(make, data, tmp_path):
    file = tmp_path / "reference.json"
    trainer = make(reference_file=file)
    pair = trainer._pairs[0]
    trainer._window = _Window([pair], [])

    def loss():
        value = trainer._dpo(trainer.model, pair)
        trainer.model.zero_grad()
        return trainer._window.loss.pop("dpo"), value

    assert loss()[0] == pytest.approx(math.log(2), abs=1e-6)
    shake(trainer)  # the policy moves, the reference does not
    assert abs(loss()[0] - math.log(2)) > 1e-4
    saved = msgspec.json.decode(file.read_bytes())
    assert set(saved) == {p.id for p in trainer._pairs}
    model = trainer.model
    for ids, known in zip((pair.chosen_ids, pair.rejected_ids), saved[pair.id], strict=True):
        whole = torch.tensor([[*pair.prompt_ids, *ids]])
        with torch.no_grad(), model.disable_adapter():
            logps = model(input_ids=whole).logits.log_softmax(-1)[0, len(pair.prompt_ids) - 1 : -1]
        want = logps.gather(-1, torch.tensor(ids)[:, None]).sum()
        assert known == pytest.approx(float(want), rel=1e-5)


def weighted(data, *weights, rest=1.0):
    """Return the data with weights of its first pairs, and of the others."""
    given = [*weights, *[rest] * (len(data.pairs) - len(weights))]
    pairs = [msgspec.structs.replace(p, weight=w) for p, w in zip(data.pairs, given, strict=True)]
    return msgspec.structs.replace(data, pairs=pairs)


@pytest.mark.parametrize(("weights", "rest"), [((0.5, 1.5), 1.0), ((1.0, 4.0), 2.0)])
def test_a_pairs_weight_scales_its_loss_and_its_gradient(make, data, weights, rest):
    def window(rows, *pairs):
        trainer = make(rows=rows)
        shake(trainer)
        trainer._references = {data.pairs[0].id: (-9.0, -9.0), data.pairs[1].id: (-90.0, -9.0)}
        trainer._window = _Window(list(pairs), [])
        loss = sum(trainer._dpo(trainer.model, pair) for pair in pairs)
        loss.backward()
        seen = trainer._window
        return float(loss.detach()), grads(trainer), seen.loss["dpo"], seen.extra

    a, b = data.pairs[:2]
    changed = weighted(data, *weights, rest=rest)
    total = sum(weights) + rest * (len(data.pairs) - 2)
    factors = [weight * len(data.pairs) / total for weight in weights]
    loss, gradient, dpo, extra = window(changed, *changed.pairs[:2])
    alone = [window(data, pair) for pair in (a, b)]
    means = [sum(f * one[at] for f, one in zip(factors, alone, strict=True)) / 2 for at in (0, 2)]
    assert [loss, dpo] == pytest.approx(means, rel=1e-5)
    plain = window(data, a, b)
    assert abs(loss - plain[0]) > 1e-3
    assert extra["dpo_margin"] == pytest.approx(plain[3]["dpo_margin"], rel=1e-5)
    for name, value in gradient.items():
        want = sum(f * one[1][name] for f, one in zip(factors, alone, strict=True)) / 2
        assert_close(value, want, rtol=1e-4, atol=1e-7)


def test_equal_weights_change_nothing_bit_for_bit(make, data, tiny_model):
    recipe = tiny_recipe(tiny_model, channels={c: {"weight": 0} for c in ("grpo", "sdpo")})
    ends = []
    for rows in (data, weighted(data, rest=0.7)):
        trainer = make(recipe, rows)
        loss = trainer.train().training_loss
        ends.append((loss, {n: p.detach() for n, p in trainable(trainer.model).items()}))
    (loss, plain), (other, after) = ends
    assert loss == other
    assert all(torch.equal(plain[name], after[name]) for name in plain)


def test_a_weighted_channel_that_sees_nothing_fails_the_run(make, data, tiny_model):
    flat = [msgspec.structs.replace(g, rewards=[0.5] * len(g.rewards)) for g in data.groups]
    rows = msgspec.structs.replace(data, groups=flat)
    recipe = tiny_recipe(tiny_model, fail_after_empty_steps=1)
    with pytest.raises(EmptyChannel, match="channel grpo has weight 1 but no active token"):
        make(recipe, rows).train()
    rows = msgspec.structs.replace(data, hints=[])
    with pytest.raises(InputError, match="no row"):
        make(recipe, rows)


def test_a_model_with_soft_capped_logits_is_refused(make, tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.config.final_logit_softcapping = 30.0
    with pytest.raises(InputError, match="final_logit_softcapping"):
        backbone_and_head(model)


def test_padding_does_not_change_the_states(tiny_model):
    backbone, head = backbone_and_head(AutoModelForCausalLM.from_pretrained(tiny_model))
    assert head.shape == (49152, 32)
    short, long = Row([5, 6, 7], [8, 9]), Row(list(range(10, 30)), [31, 32, 33], start=1, length=2)
    with torch.no_grad():
        together, ids = response_states(backbone, [short, long], 2, "cpu")
        alone = [response_states(backbone, [row], 2, "cpu")[0] for row in (short, long)]
    assert ids.tolist() == [8, 9, 32, 33]
    assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_replicas_share_the_rows_and_a_restart_goes_on():
    rows = list(range(10))
    shares = [Stream(rows, seed=3, slot=slot, replicas=2).take(5) for slot in range(2)]
    assert sorted(shares[0] + shares[1]) == rows
    stream = Stream(rows, seed=3, slot=1, replicas=2)
    first, second = stream.take(7), stream.take(7)
    again = Stream(rows, seed=3, slot=1, replicas=2)
    again.take(7)
    assert again.take(7) == second
    assert set(first) == set(shares[1])
    assert Stream([1], seed=0, slot=1, replicas=2).take(3) == [1, 1, 1]


def test_recorded_answers_come_in_order_for_repeated_prompts(make):
    trainer = make()
    out = composer._recorded_groups(["0", "0", "1", "0", "0", "1"], trainer)
    group = trainer._groups["0"]
    assert [out["completion_ids"][i] for i in (0, 1, 3, 4)] == group.completions
    assert [out["recorded"][i] for i in (0, 1, 3, 4)] == group.rewards
    assert out["logprobs"] is None


def test_trl_still_has_the_hooks_that_we_override():
    for name, parameters in {
        "_compute_loss": ["self", "model", "inputs"],
        "_prepare_inputs": ["self", "generation_batch"],
        "_generate_and_score_completions": ["self", "inputs"],
        "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
    }.items():
        assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters) == parameters
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    for key in ("completion_ids", "completion_mask", "prompt_ids", "prompt_mask", "advantages"):
        assert f'"{key}": {key}' in source
    assert "rollout_func(prompts, self)" in inspect.getsource(GRPOTrainer._generate)


def test_events_read_as_sentences():
    from trainers.trl.__main__ import sentence

    step = {"event": "step", "slot": 1, "step": 2, "of": 6, "dpo_loss": 0.5, "dpo_active": 2.0}
    assert sentence(step) == "replica 1 step 2/6: dpo +0.5000 (2 active)"
    committed = {"event": "round", "round": 1, "of": 2, "included": [0, 1]}
    assert sentence(committed) == "round 1/2 committed by replicas 0, 1"
