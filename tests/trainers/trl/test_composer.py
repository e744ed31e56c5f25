"""ComposerTrainer: live channels in one optimizer step, true numbers, and runs that stop."""

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
from composer_pipeline.testing.training import tiny_recipe
from tests.trainers.trl import oracle
from tests.trainers.trl.toy import random_rows
from trainers.__main__ import sentence
from trainers.common import base_scores
from trainers.common import rows as batches
from trainers.common.base_pass import score
from trainers.common.base_scores import BaseScores
from trainers.common.gradients import BadSteps, DeadChannel
from trainers.common.policy import Policy
from trainers.common.rows import Row, backbone_and_head, micro_batches, padded, response_states
from trainers.trl.trainer import arguments

CHANNELS = ("grpo", "sdpo", "dpo", "sft")


def only(*names, **options):
    """Return ``channels`` of a recipe with weight 0 for all but ``names``."""
    off = {name: {"weight": 0} for name in CHANNELS if name not in names}
    return off | {name: options.get(name, {}) for name in names}


def events_of(**options):
    """Return a list, and a callback that fills it with (kind, step, numbers)."""
    seen: list[tuple[str, int, dict[str, Any]]] = []
    return seen, {"on_event": lambda kind, step, numbers: seen.append((kind, step, numbers))}


def channel(trainer, name):
    return next(c for c in trainer.channels if c.name == name)


@pytest.fixture(scope="module")
def ungated():
    return tiny_recipe("toy", norms_every=1)


def test_a_run_moves_the_model_and_says_true_numbers(make, ungated):
    seen, callback = events_of()
    trainer = make(ungated, **callback)
    before = {n: p.detach().clone() for n, p in trainable(trainer.model).items()}
    trainer.train()
    after = {n: p.detach() for n, p in trainable(trainer.model).items()}
    assert any(not torch.equal(before[n], after[n]) for n in before)
    assert [(kind, step) for kind, step, _ in seen] == [("step", 1), ("step", 2)]
    first, second = (numbers for _, _, numbers in seen)
    assert first["dpo_loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert first["dpo_margin"] == pytest.approx(0, abs=1e-4)
    assert second["dpo_loss"] != first["dpo_loss"]
    assert first["dpo_active"] == 2
    for name in CHANNELS:
        assert first[f"{name}_active"] > 0
        assert first[f"{name}_grad_norm"] > 1e-6
    shares = [first[f"{name}_grad_share"] for name in CHANNELS]
    assert sum(shares) == pytest.approx(1)
    assert -1 <= first["grpo_cos_sdpo"] <= 1
    assert first["grad_norm"] <= sum(first[f"{name}_grad_norm"] for name in CHANNELS)
    assert first["learning_rate"] == pytest.approx(1e-3)
    for key in ("seconds", "tokens", "tokens_per_second", "peak_memory_mib"):
        assert first[key] > 0
    windows = [(c, c.window(trainer.policy, 0)) for c in trainer.channels]
    assert first["tokens"] == sum(c.size(row) for c, rows in windows for row in rows)
    # The model is its own base at the first step, and moves then.
    assert first["grpo_best_logp"] == pytest.approx(first["grpo_best_logp_before"], abs=1e-3)
    assert first["grpo_worst_logp"] == pytest.approx(first["grpo_worst_logp_before"], abs=1e-3)
    assert second["grpo_best_logp"] > second["grpo_best_logp_before"]
    assert all(math.isfinite(value) for value in [*first.values(), *second.values()])


def test_norms_and_cosines_are_those_of_the_channels_alone(make, ungated, shake):
    trainer = make(ungated)
    shake(trainer)
    alone = {}
    channels = list(trainer.channels)
    for one in channels:
        trainer.channels = [one]
        trainer.training_step(trainer.model, {})
        alone[one.name] = torch.cat(
            [p.grad.flatten() for p in trainer.policy.parameters() if p.grad is not None]
        ).clone()
    trainer.channels = channels
    seen, callback = events_of()
    trainer._on_event = callback["on_event"]
    trainer.training_step(trainer.model, {})
    numbers = seen[-1][2]
    for name, gradient in alone.items():
        assert numbers[f"{name}_grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-4)
    want = torch.nn.functional.cosine_similarity(alone["sdpo"], alone["dpo"], dim=0)
    assert numbers["sdpo_cos_dpo"] == pytest.approx(float(want), abs=1e-4)
    total = torch.stack(list(alone.values())).sum(0).norm()
    assert numbers["grad_norm"] == pytest.approx(float(total), rel=1e-4)


def test_the_recipes_learning_rate_is_the_optimizers(make):
    ends = []
    for rate in (1e-3, 5e-4):
        recipe = tiny_recipe("toy", learning_rate=rate, channels=only("sft"))
        trainer = make(recipe)
        before = torch.cat([p.detach().flatten().clone() for p in trainer.policy.parameters()])
        trainer.train()
        now = torch.cat([p.detach().flatten() for p in trainer.policy.parameters()])
        ends.append(float((now - before).norm()))
    assert ends[0] == pytest.approx(2 * ends[1], rel=0.2)


@pytest.mark.parametrize(
    ("schedule", "warmup", "rates"),
    [("constant", 0, [1e-3, 1e-3]), ("constant", 1, [0, 1e-3]), ("linear", 0, [1e-3, 5e-4])],
)
def test_schedules_reach_the_optimizer(make, schedule, warmup, rates):
    seen, callback = events_of()
    recipe = tiny_recipe("toy", channels=only("sft"), schedule=schedule, warmup_steps=warmup)
    make(recipe, **callback).train()
    assert [numbers["learning_rate"] for _, _, numbers in seen] == pytest.approx(rates)


def test_a_step_has_the_recipes_optimizer_clip_and_decay(make, shake):
    """Stochastic gradient descent, written out: the clipped gradient and the pull to 0."""
    rate, clip, decay = 0.1, 1e-3, 0.1
    recipe = tiny_recipe(
        "toy", channels=only("sft"), optimizer="sgd", learning_rate=rate, max_grad_norm=clip,
        weight_decay=decay, diloco={"replicas": 1, "rounds": 1, "inner_steps": 1},
    )  # fmt: skip
    trainer = make(recipe)
    shake(trainer)
    parameters = trainer.policy.parameters()
    before = [p.detach().clone() for p in parameters]
    trainer.training_step(trainer.model, {})
    gradients = [p.grad.clone() for p in parameters]
    norm = torch.stack([g.norm() for g in gradients]).norm()
    assert norm > 2 * clip
    trainer.train()
    for p, was, gradient in zip(parameters, before, gradients, strict=True):
        pull = gradient * clip / norm + decay * was
        assert_close(p.detach() - was, -rate * pull, rtol=1e-3, atol=1e-6)


def test_reporters_and_the_seed_reach_transformers(tmp_path):
    given = arguments(tiny_recipe("toy", report_to=["tensorboard"], seed=7), tmp_path)
    assert (given.report_to, given.seed) == (["tensorboard"], 7)


# -- channels ----------------------------------------------------------------------------


def test_muon_moves_the_recipes_parameters(make, shake):
    """Against PyTorch's own, on the gradient that the step had: one matrix, no clip."""
    recipe = tiny_recipe(
        "toy", channels=only("sft"), optimizer="muon", learning_rate=0.01, max_grad_norm=1e6,
        weight_decay=0.1, diloco={"replicas": 1, "rounds": 1, "inner_steps": 1},
    )  # fmt: skip
    trainer = make(recipe)
    shake(trainer)
    matrix = next(p for p in trainer.policy.parameters() if p.ndim == 2)
    alone = torch.nn.Parameter(matrix.detach().clone())
    trainer.training_step(trainer.model, {})
    alone.grad = matrix.grad.clone()
    torch.optim.Muon([alone], lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw").step()
    trainer.train()
    assert_close(matrix.detach(), alone.detach(), rtol=1e-3, atol=1e-5)


def test_without_a_hint_sdpo_teaches_nothing(make, toy_data):
    recipe = tiny_recipe("toy", channels=only("sdpo", sdpo={"hint_gain": False}))
    trainer = make(recipe)  # a fresh adapter is the base model
    hint = toy_data.hints[0]
    same = msgspec.structs.replace(hint, teacher_prompt_ids=hint.prompt_ids)
    sdpo = channel(trainer, "sdpo")
    for row, silent in ((same, True), (hint, False)):
        sdpo.window(trainer.policy, 0)
        loss = sdpo.loss(trainer.policy, [row], [row])
        trainer.model.zero_grad()
        loss.backward()
        norm = sum(float(p.grad.norm()) for p in trainer.policy.parameters())
        assert (norm < 1e-8) == silent
        assert (float(loss.detach()) < 1e-9) == silent


def test_misaligned_responses_are_refused(make, toy_data, monkeypatch):
    recipe = tiny_recipe("toy", channels=only("sdpo", sdpo={"hint_gain": False}))
    trainer = make(recipe)
    sdpo, hint = channel(trainer, "sdpo"), toy_data.hints[0]
    honest = batches.response_states
    calls = []

    def shifted(backbone, rows, pad, device):
        states, ids = honest(backbone, rows, pad, device)
        calls.append(1)
        return states, ids + 1 if len(calls) == 1 else ids

    monkeypatch.setattr("trainers.common.policy.response_states", shifted)
    sdpo.window(trainer.policy, 0)
    with pytest.raises(ComposerError, match="different tokens"):
        sdpo.loss(trainer.policy, [hint], [hint])


def test_the_reference_is_the_untrained_model(make, shake):
    trainer = make(tiny_recipe("toy", channels=only("dpo")))
    shake(trainer)
    dpo = channel(trainer, "dpo")
    pair = dpo.drawn(0)[0]
    model = trainer.policy.model
    for ids, known in zip(
        (pair.chosen_ids, pair.rejected_ids), dpo._references[pair.id], strict=True
    ):
        whole = torch.tensor([[*pair.prompt_ids, *ids]])
        with torch.no_grad(), model.disable_adapter():
            logps = model(input_ids=whole).logits.log_softmax(-1)[0, len(pair.prompt_ids) - 1 : -1]
        want = logps.gather(-1, torch.tensor(ids)[:, None]).sum()
        assert known == pytest.approx(float(want), rel=1e-5)


def test_the_reported_dpo_loss_has_no_weights_in_it(make, toy_data, shake):
    pairs = [msgspec.structs.replace(p, weight=0.5 + i) for i, p in enumerate(toy_data.pairs)]
    losses = []
    for rows in (toy_data, msgspec.structs.replace(toy_data, pairs=pairs)):
        trainer = make(tiny_recipe("toy", channels=only("dpo")), rows)
        shake(trainer)
        total = float(trainer.training_step(trainer.model, {}).detach())
        losses.append((channel(trainer, "dpo").numbers["loss"], total))
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)
    assert losses[0][1] != pytest.approx(losses[1][1], rel=1e-3)


def test_grpo_does_not_depend_on_how_long_answers_may_be(make):
    found = []
    for limit in (64, 1024):
        recipe = tiny_recipe(
            "toy",
            channels=only("grpo"),
            data={"max_prompt_tokens": 400, "max_completion_tokens": limit, "max_tools_tokens": 0},
        )
        trainer = make(recipe)
        trainer.training_step(trainer.model, {})
        found.append(torch.cat([p.grad.flatten() for p in trainer.policy.parameters()]).clone())
    assert found[0].norm() > 0
    assert_close(found[0], found[1], rtol=1e-5, atol=1e-9)


def test_counts_of_an_answer_are_as_good_as_repeating_it(make, toy_data):
    """An answer given twice counts like two answers: so says the sum written out."""
    group = toy_data.groups[0]
    assert sorted(group.counts) == [1, 1, 2]
    split = [
        (ids, reward)
        for ids, n, reward in zip(group.completions, group.counts, group.rewards, strict=True)
        for _ in range(n)
    ]
    repeated = msgspec.structs.replace(
        group, completions=[a for a, _ in split], rewards=[r for _, r in split], counts=[1] * 4
    )
    found = []
    for row in (group, repeated):
        rows = msgspec.structs.replace(toy_data, groups=[row])
        trainer = make(tiny_recipe("toy", channels=only("grpo")), rows)
        trainer.training_step(trainer.model, {})
        found.append(torch.cat([p.grad.flatten() for p in trainer.policy.parameters()]).clone())
        assert channel(trainer, "grpo").numbers["reward"] == pytest.approx(
            sum(r for _, r in split) / 4
        )
    assert_close(found[0], found[1], rtol=1e-4, atol=1e-8)


def test_an_answer_that_fell_far_below_the_base_is_left_alone(make, toy_data, shake):
    recipe = tiny_recipe("toy", channels=only("grpo"))
    free = tiny_recipe("toy", channels=only("grpo", grpo={"off_policy_threshold": None}))
    group = toy_data.groups[0]
    rows = msgspec.structs.replace(toy_data, groups=[group])
    worst = group.rewards.index(min(group.rewards))
    numbers = []
    for chosen, lift in ((recipe, 0.0), (recipe, 0.6), (free, 0.6)):
        trainer = make(chosen, rows)
        grpo = channel(trainer, "grpo")
        base = [list(answer) for answer in grpo._base_logps[group.id]]
        base[worst] = [value + lift for value in base[worst]]  # as if the model had fallen
        grpo._base_logps = {group.id: base}
        trainer.training_step(trainer.model, {})
        grads = torch.cat([p.grad.flatten() for p in trainer.policy.parameters()])
        numbers.append((grpo.numbers["masked"], grads.clone()))
    assert numbers[0][0] == 0
    assert numbers[1][0] == pytest.approx(1 / len(group.completions))
    assert numbers[2][0] == 0
    assert_close(numbers[0][1], numbers[2][1], rtol=1e-5, atol=1e-9)
    assert (numbers[0][1] - numbers[1][1]).norm() > 0.05 * numbers[0][1].norm()


# -- runs that stop ----------------------------------------------------------------------


def test_losses_that_are_not_finite_end_the_run(make):
    seen, callback = events_of()
    diloco = {"replicas": 1, "rounds": 3, "inner_steps": 4}
    trainer = make(tiny_recipe("toy", diloco=diloco), **callback)
    dpo = channel(trainer, "dpo")
    honest = dpo.loss
    dpo.loss = lambda student, rows, window: (
        honest(student, rows, window) * (math.inf if trainer.state.global_step else 1)
    )
    with pytest.raises(
        BadSteps, match=r"step 4: channel dpo: loss \(inf\) is not finite for row p"
    ):
        trainer.train()
    assert [(kind, step) for kind, step, _ in seen] == [
        ("step", 1), ("bad_step", 2), ("bad_step", 3), ("bad_step", 4),
    ]  # fmt: skip


def test_a_learning_rate_that_destroys_the_model_ends_the_run(make):
    """The steps after it are not finite, or no channel has a gradient any more."""
    diloco = {"replicas": 1, "rounds": 3, "inner_steps": 4}
    with pytest.raises((BadSteps, DeadChannel)):
        make(tiny_recipe("toy", diloco=diloco, learning_rate=1e30)).train()


@pytest.mark.parametrize("shared_prefix", ["on", "off"])
@pytest.mark.parametrize("norms_every", [1, 4])
def test_one_bad_step_is_dropped_and_the_run_goes_on(make, norms_every, shared_prefix):
    """Whether or not the step keeps channels' gradients apart, and rows share their beginnings."""
    seen, callback = events_of()
    diloco = {"replicas": 1, "rounds": 1, "inner_steps": 4}
    # DPO's gradient is there already when SFT's loss turns out not to be finite.
    recipe = tiny_recipe(
        "toy", diloco=diloco, channels={**only("sft"), "dpo": {}}, norms_every=norms_every,
        shared_prefix=shared_prefix,
    )  # fmt: skip
    trainer = make(recipe, **callback)
    sft = channel(trainer, "sft")
    honest, parameters = sft.loss, []

    def spoiled(student, rows, window):
        step = trainer.state.global_step
        if step in (1, 2):
            parameters.append([p.detach().clone() for p in student.parameters()])
        return honest(student, rows, window) * (math.nan if step == 1 else 1)

    sft.loss = spoiled
    trainer.train()
    kinds = [kind for kind, _, _ in seen]
    assert kinds == ["step", "bad_step", "step", "step"]
    ids = {row.id for row in sft.drawn(1)}
    assert any(name in seen[1][2]["reason"] for name in ids)
    assert "channel sft: loss (nan)" in seen[1][2]["reason"]
    assert all(torch.equal(a, b) for a, b in zip(*parameters[:: len(parameters) - 1], strict=True))


@pytest.mark.parametrize("shared_prefix", ["on", "off"])
def test_a_gradient_that_is_not_finite_counts_too(make, shared_prefix):
    diloco = {"replicas": 1, "rounds": 1, "inner_steps": 4}
    recipe = tiny_recipe(
        "toy", diloco=diloco, channels=only("sft"), shared_prefix=shared_prefix
    )  # fmt: skip
    trainer = make(recipe)
    parameter = trainer.policy.parameters()[0]
    parameter.register_hook(lambda grad: grad * math.inf)
    with pytest.raises(BadSteps, match="channel sft: gradient is not finite"):
        trainer.train()


def test_only_bad_steps_in_a_row_end_the_run(make):
    """A run of a week may have more bad steps than the limit, each behind a good one."""
    seen, callback = events_of()
    diloco = {"replicas": 1, "rounds": 1, "inner_steps": 6}
    recipe = tiny_recipe("toy", diloco=diloco, channels=only("sft"))
    trainer = make(recipe, **callback)
    sft = channel(trainer, "sft")
    honest = sft.loss
    sft.loss = lambda student, rows, window: (
        honest(student, rows, window) * (math.nan if trainer.state.global_step % 2 else 1)
    )
    trainer.train()
    assert [kind for kind, _, _ in seen] == ["step", "bad_step"] * 3


def test_a_channel_without_gradient_for_a_round_ends_the_run(make, toy_data):
    flat = [msgspec.structs.replace(g, rewards=[0.5] * len(g.rewards)) for g in toy_data.groups]
    rows = msgspec.structs.replace(toy_data, groups=flat)
    diloco = {"replicas": 1, "rounds": 5, "inner_steps": 2}
    seen, callback = events_of()
    with pytest.raises(DeadChannel, match="channel grpo has a weight, but its gradient"):
        make(tiny_recipe("toy", diloco=diloco), rows, **callback).train()
    assert len(seen) == 2
    rows = msgspec.structs.replace(toy_data, hints=[])
    with pytest.raises(InputError, match="no row"):
        make(tiny_recipe("toy"), rows)


def test_a_round_that_begins_with_a_flat_group_or_a_bad_step_is_not_dead(make, toy_data):
    diloco = {"replicas": 1, "rounds": 1, "inner_steps": 3}
    recipe = tiny_recipe("toy", diloco=diloco)
    first = channel(make(recipe), "grpo").drawn(0)[0].id
    groups = [
        msgspec.structs.replace(g, rewards=[0.5] * len(g.rewards)) if g.id == first else g
        for g in toy_data.groups
    ]
    seen, callback = events_of()
    make(recipe, msgspec.structs.replace(toy_data, groups=groups), **callback).train()
    assert [numbers.get("grpo_grad_norm", -1) > 0 for _, _, numbers in seen] == [False, True, False]
    assert "grpo_grad_norm" not in seen[2][2], "measured until it was seen alive, no longer"
    trainer = make(recipe)
    sft = channel(trainer, "sft")
    honest = sft.loss
    sft.loss = lambda *a: honest(*a) * (math.nan if trainer.state.global_step == 0 else 1)
    trainer.train()
    assert trainer.state.global_step == 3


def test_a_channel_that_teaches_next_to_nothing_is_dead(make):
    channels: dict[str, Any] = {name: {} for name in CHANNELS} | {"sft": {"weight": 1e-12}}
    with pytest.raises(DeadChannel, match="channel sft"):
        make(tiny_recipe("toy", channels=channels)).train()


def test_out_of_memory_halves_the_micro_batch_once(make):
    recipe = tiny_recipe("toy", channels=only("sft"), micro_batch_tokens=1000)
    for failures in (1, 2):
        seen, callback = events_of()
        trainer = make(recipe, **callback)
        sft = channel(trainer, "sft")
        honest = sft.loss
        calls: list[int] = []

        def full(student, rows, window, calls=calls, honest=honest, failures=failures):
            calls.append(1)
            if len(calls) <= failures:
                raise torch.OutOfMemoryError("no memory")
            return honest(student, rows, window)

        sft.loss = full
        if failures == 1:
            trainer.train()
            assert [kind for kind, _, _ in seen] == ["out_of_memory", "step", "step"]
            assert seen[0][2] == {"micro_batch_tokens": 500}
        else:
            with pytest.raises(ComposerError, match="micro_batch_tokens 500, half of the recipe's"):
                trainer.train()


@pytest.mark.parametrize(("shared_prefix", "room"), [("on", 300), ("off", 400)])
@pytest.mark.parametrize("norms_every", [1, 4])
def test_a_step_in_halves_is_the_whole_one(
    build_trainer, toy_base, tiny_tokenizer, shake, norms_every, shared_prefix, room
):
    """On a device whose room ends behind a step's first forward, whose gradient is there then."""
    recipe = tiny_recipe(
        "toy", micro_batch_tokens=600, shared_prefix=shared_prefix, norms_every=norms_every,
        channels={"grpo": {"groups_per_step": 6}, "sdpo": {"rows_per_step": 8, "hint_gain": False},
                  "dpo": {"pairs_per_step": 6}, "sft": {"rows_per_step": 8}},
    )  # fmt: skip
    found = []
    for tokens in (None, room):
        seen, callback = events_of()
        trainer = build_trainer(toy_base, tiny_tokenizer, recipe, random_rows(24, 60), **callback)
        shake(trainer, 0.05)
        trainer.training_step(trainer.model, {})  # every channel was seen alive
        trainer.state.global_step = 1
        read = room_for(trainer, tokens)
        loss = float(trainer.training_step(trainer.model, {}).detach())
        found.append((loss, oracle.gradient(trainer.model), seen[-1][2]))
    assert [kind for kind, _, _ in seen] == ["step", "out_of_memory", "step"]
    assert max(read[:2]) > room >= max(read[2:])
    (whole, gradient, told), (loss, again, also) = found
    assert loss == pytest.approx(whole, rel=1e-5)
    assert (again - gradient).norm() / gradient.norm() < 1e-5
    differ = {"seconds", "tokens_per_second", "peak_memory_mib", "student_tokens"}
    for name in told.keys() - differ:
        assert also[name] == pytest.approx(told[name], rel=1e-4, abs=1e-5), name


def room_for(trainer, tokens):
    """Let forwards of more tokens fail behind the first; return the tokens of each."""
    read = []

    def look(_, args, given):
        if torch.is_grad_enabled():
            read.append(given["input_ids"].numel())
            if tokens and len(read) > 1 and read[-1] > tokens:
                raise torch.OutOfMemoryError("no memory")

    backbone_and_head(trainer.policy.model)[0].register_forward_pre_hook(look, with_kwargs=True)
    return read


# -- small parts -------------------------------------------------------------------------


def test_a_restarted_replica_takes_the_rows_that_come_next(make):
    diloco = {"replicas": 1, "rounds": 2, "inner_steps": 2}
    recipe = tiny_recipe("toy", diloco=diloco, channels=only("dpo"))
    rows: list[Any] = []
    for skip in (0, 2):
        trainer = make(recipe, skip_steps=skip)
        dpo = channel(trainer, "dpo")
        honest = dpo.window
        dpo.window = lambda student, step, honest=honest, to=rows: (
            to.append((step, [p.id for p in honest(student, step)])) or honest(student, step)
        )
        trainer.args.max_steps = 4 - skip
        trainer.train()
    assert [step for step, _ in rows] == [0, 1, 2, 3, 2, 3]
    assert rows[2:4] == rows[4:6]
    assert rows[0][1] != rows[2][1]


def test_the_base_pass_goes_on_with_the_missing_parts(toy_base, toy_data, tmp_path, monkeypatch):
    recipe = tiny_recipe("toy")
    student = Policy(toy_base, pad=4, device="cpu")
    first = score(student, recipe, toy_data, tmp_path)
    before = dict(first.answers())
    files = sorted((tmp_path / "base").glob("*.arrow"))
    assert [file.stem for file in files] == ["dpo", "grpo", "sdpo"]
    assert not list((tmp_path / "base" / "parts").iterdir())
    stamps = [file.stat().st_mtime_ns for file in files]
    files[1].unlink()
    monkeypatch.setattr(base_scores, "PART", 1)
    parts = []

    def killed(channel, done, of):
        parts.append((channel, done, of))
        if done == of - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(student, recipe, toy_data, tmp_path, killed)
    assert "grpo" not in BaseScores.load(tmp_path).of, "parts are no result"
    said: list[Any] = []
    again = score(student, recipe, toy_data, tmp_path, lambda *event: said.append(event))
    assert said == [("grpo", parts[-1][2], parts[-1][2])], "one part was missing"
    assert [f.stat().st_mtime_ns for f in (files[0], files[2])] == [stamps[0], stamps[2]]
    assert again.references() == first.references()
    for state, answers in before.items():
        for now, was in zip(again.answers()[state], answers, strict=True):
            assert now == pytest.approx(was, rel=1e-5)


def test_a_head_with_a_bias_is_refused(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    head = model.get_output_embeddings()
    head.bias = torch.nn.Parameter(torch.zeros(head.out_features))
    with pytest.raises(InputError, match="bias"):
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


def test_sft_counts_every_token_of_a_step_alike_however_its_rows_are_split(make, toy_data):
    longer = [
        msgspec.structs.replace(row, response_ids=[*row.response_ids[:1] * (1 + 2 * (i % 3)), 1])
        for i, row in enumerate(toy_data.demonstrations)
    ]
    rows = msgspec.structs.replace(toy_data, demonstrations=longer)
    found = {}
    for limit in (10_000, 1):
        recipe = tiny_recipe("toy", channels=only("sft"), shared_prefix="off")
        trainer = make(recipe, rows)
        trainer._micro_batch_tokens = limit
        loss = float(trainer.training_step(trainer.model, {}).detach())
        grads = [p.grad.flatten() for p in trainer.policy.parameters() if p.grad is not None]
        found[limit] = (loss, torch.cat(grads))
    assert len({len(row.response_ids) for row in channel(trainer, "sft").drawn(0)}) > 1
    assert found[1][0] == pytest.approx(found[10_000][0], rel=1e-5)
    torch.testing.assert_close(found[1][1], found[10_000][1], rtol=1e-4, atol=1e-6)


def test_padding_is_told_from_answers_by_length():
    """A pad id may be the end token, and a row's own end is no padding."""
    rows = [Row([5, 6], [7, 1]), Row([5], [1])]
    ids, mask = padded(rows, 1, "cpu")
    assert ids.tolist() == [[5, 6, 7, 1], [5, 1, 1, 1]]
    assert mask.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def test_micro_batches_hold_their_padding_and_every_row_once():
    sizes = [5, 30, 7, 29, 100, 6]
    packed = micro_batches(range(6), sizes, 60)
    assert sorted(i for batch in packed for i in batch) == list(range(6))
    for batch in packed:
        assert len(batch) == 1 or len(batch) * max(sizes[i] for i in batch) <= 60
    assert packed == [[4], [1, 3], [2, 5, 0]]
    assert micro_batches([], [], 10) == []


def test_trl_still_has_what_we_build_on():
    for name, parameters in {
        "_compute_loss": ["self", "model", "inputs"],
        "training_step": ["self", "model", "inputs", "num_items_in_batch"],
    }.items():
        assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters) == parameters
    source = inspect.getsource(GRPOTrainer._compute_loss)
    for key in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages"):
        assert f'inputs["{key}"]' in source
    assert 'inputs.get("sampling_per_token_logps"' in source
    assert "per_token_logps, entropies, aux_loss = self._get_per_token_logps_and_entro" in source
    assert "(per_token_loss.size(0) * self.max_completion_length)" in source


def test_events_read_as_sentences():
    step = {"event": "step", "slot": 1, "step": 2, "of": 6, "dpo_loss": 0.5, "grad_norm": 2.0}
    assert sentence(step) == "replica 1 step 2/6: dpo +0.5000, gradient +2.0000"
    bad = {"event": "bad_step", "slot": 0, "step": 3, "of": 6, "reason": "channel dpo: loss (nan)"}
    assert sentence(bad) == "replica 0 step 3: dropped, channel dpo: loss (nan)"
