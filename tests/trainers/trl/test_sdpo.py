"""SDPO's teachers, divergences, clip and gate, on a model of a few tokens."""

import copy
import math
from typing import Any

import msgspec
import pytest
import torch
from torch.testing import assert_close
from transformers import TrainerCallback

from composer_pipeline.errors import InputError
from composer_pipeline.losses.divergence import eopd, generalized_jsd, taid
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.rows import Hint
from tests.trainers.trl import toy
from trainers.common.base_pass import score
from trainers.common.base_scores import BaseScores, gate
from trainers.common.checkpoints import ChannelStates, earlier_state, state_file
from trainers.common.policy import Policy

OFF = {name: {"weight": 0} for name in ("grpo", "dpo", "sft")}


def recipe_of(inner=3, rounds=2, lora=8, **sdpo: Any):
    return tiny_recipe(
        "toy", channels={**OFF, "sdpo": {"rows_per_step": 4, "hint_gain": False, **sdpo}},
        diloco={"replicas": 1, "rounds": rounds, "inner_steps": inner},
        lora={"r": lora, "targets": "all-linear"}, learning_rate=1e-2,
        data={"max_prompt_tokens": 64, "max_completion_tokens": 8},
    )  # fmt: skip


def logits(model, prompt, response):
    ids = torch.tensor([[*prompt, *response]])
    return model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double()


def spans(trainer, teacher):
    """Return student and teacher logits (N, V) over all spans of the first window."""
    model = trainer.policy.model
    pieces: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for hint in trainer.channels[0].drawn(0):
        span = slice(hint.start, hint.start + hint.length)
        pieces[0].append(logits(model, hint.prompt_ids, hint.response_ids)[span])
        pieces[1].append(logits(teacher, hint.teacher_prompt_ids, hint.response_ids)[span])
    return torch.cat(pieces[0]).detach(), torch.cat(pieces[1]).detach()


JSD = {"jsd_beta": 0.3, "temperature": 1.7}
TAID = {"divergence": "taid"}
EOPD = {"divergence": "eopd"}


@pytest.mark.parametrize("lora", [8, 0])
@pytest.mark.parametrize(
    ("options", "formula"),
    [
        (JSD, lambda s, t: generalized_jsd(s, t, beta=0.3, temperature=1.7)),
        (TAID, lambda s, t: taid(s, t, t=0.4)),
        (EOPD, eopd),
    ],
)
def test_the_loss_is_the_recipes_divergence_from_the_model_before_training(
    make, toy_base, shake, lora, options, formula
):
    """With an adapter, and where every parameter is trained."""
    trainer = make(recipe_of(lora=lora, **options))
    shake(trainer, 0.05)
    total = float(trainer.training_step(trainer.model, {}).detach())
    student, teacher = spans(trainer, toy_base)
    assert total == pytest.approx(float(formula(student, teacher).mean()), rel=1e-4)
    plain = float(generalized_jsd(student, teacher, beta=0.5).mean())
    assert total != pytest.approx(plain, rel=1e-3)


def test_a_live_teacher_is_the_student(make, shake):
    trainer = make(recipe_of(teacher="live"))
    shake(trainer, 0.05)
    total = float(trainer.training_step(trainer.model, {}).detach())
    student, teacher = spans(trainer, trainer.policy.model)
    assert total == pytest.approx(
        float(generalized_jsd(student, teacher, beta=0.5).mean()), rel=1e-4
    )


def test_the_loss_does_not_depend_on_how_a_window_is_split(make, shake):
    """A token counts the same in whichever micro-batch it stands."""
    totals: list[float] = []
    calls: list[int] = []
    for at_once in (100_000, 1):
        trainer = make(recipe_of(teacher="frozen").model_copy(
            update={"shared_prefix": "off", "micro_batch_tokens": at_once}
        ))  # fmt: skip
        shake(trainer, 0.05)
        sdpo = trainer.channels[0]
        seen: list[int] = []
        honest = sdpo.loss
        sdpo.loss = lambda student, rows, window, honest=honest, seen=seen: (
            seen.append(len(rows)) or honest(student, rows, window)
        )
        totals.append(float(trainer.training_step(trainer.model, {}).detach()))
        calls.append(len(seen))
    assert calls == [1, 4]
    assert totals[1] == pytest.approx(totals[0], rel=1e-5)


@pytest.mark.parametrize("lora", [8, 0])
def test_the_average_follows_the_student_after_each_step(make, lora):
    trainer = make(recipe_of(teacher="ema", ema_rate=0.25, lora=lora))
    seen: list[list[torch.Tensor]] = []
    follow = trainer.follow
    start = [p.detach().clone() for p in trainer.policy.parameters()]

    def watched():
        seen.append([p.detach().clone() for p in trainer.policy.parameters()])
        follow()

    trainer.follow = watched
    trainer.train()
    want = start
    for now in seen:
        want = [w + 0.25 * (n - w) for w, n in zip(want, now, strict=True)]
    average = list(trainer.channels[0]._teacher.state().values())
    assert len(seen) == 6
    for have, should in zip(average, want, strict=True):
        assert_close(have, should, rtol=1e-4, atol=1e-6)
    # The student itself is left as it was.
    for now, last in zip(trainer.policy.parameters(), seen[-1], strict=True):
        assert torch.equal(now, last)


def test_the_average_does_not_follow_a_student_that_diverged(make):
    """The parameters come back with the next commit; an average of them never would."""
    trainer = make(recipe_of(teacher="ema", ema_rate=0.25))
    teacher = trainer.channels[0]._teacher
    before = {name: tensor.clone() for name, tensor in teacher.state().items()}
    with torch.no_grad():
        for parameter in trainer.policy.parameters():
            parameter += 1
        next(iter(trainer.policy.parameters())).view(-1)[0] = torch.nan
    teacher.follow()
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state().items())


@pytest.mark.parametrize("options", [{"teacher": "ema", "ema_rate": 0.3}, {"divergence": "taid"}])
def test_a_restart_goes_on_with_teacher_and_schedule(make, tmp_path, options):
    after: dict[int, tuple[dict[str, Any], Any]] = {}
    whole = make(recipe_of(**options), states=ChannelStates(tmp_path, 0, keep_all=True))
    honest = whole.follow

    def at_each():
        honest()
        after[whole.state.global_step] = copy.deepcopy(whole.channels[0].state())

    whole.follow = at_each
    whole.train()
    # Inner steps are 3: after 4 steps of the run the state is that of the round before.
    for skip, restored in ((3, 3), (4, 3), (6, 6)):
        again = make(
            recipe_of(**options), states=ChannelStates(tmp_path, 0, keep_all=True), skip_steps=skip
        )
        _same(again.channels[0].state(), after[restored])
    begun = make(recipe_of(**options), states=ChannelStates(tmp_path, 0))
    assert begun.channels[0].state()[1] != after[3][1] or options.get("teacher") == "ema"
    assert not any(torch.equal(t, after[3][0][n]) for n, t in begun.channels[0].state()[0].items())


def _same(have, want):
    assert have[1] == want[1]
    assert have[0].keys() == want[0].keys()
    assert all(torch.equal(have[0][name], want[0][name]) for name in want[0])


def test_a_replica_without_a_state_of_its_own_takes_anothers(make, tmp_path):
    recipe = recipe_of(teacher="ema", ema_rate=0.3)
    whole = make(recipe, states=ChannelStates(tmp_path, 1))
    whole.train()
    state = whole.channels[0].state()
    assert [f.name for f in sorted((tmp_path / "replicas" / "slot-1").iterdir())] == [
        "channels-00000003.safetensors", "channels-00000006.safetensors",
    ]  # fmt: skip
    again = make(recipe, states=ChannelStates(tmp_path, 0), skip_steps=6)
    _same(again.channels[0].state(), state)
    file = state_file(tmp_path, 6)
    assert file is not None
    later = make(recipe, states=ChannelStates(tmp_path / "other", 0, first=file))
    _same(later.channels[0].state(), state)
    # Another replica's state of the same step is not its own.
    file.parent.with_name("slot-0").mkdir()
    others = file.parent.with_name("slot-0") / file.name
    others.write_bytes(file.with_name("channels-00000003.safetensors").read_bytes())
    own = make(recipe, states=ChannelStates(tmp_path, 1), skip_steps=6)
    _same(own.channels[0].state(), state)
    assert state_file(tmp_path, 6, prefer=1) == file
    assert state_file(tmp_path, 6, prefer=2) == others, "the lowest slot's"


def test_a_state_is_kept_before_the_round_is_contributed(make, tmp_path):
    kept: list[bool] = []

    class Contributes(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            kept.append(state_file(tmp_path, state.global_step) is not None)

    states = ChannelStates(tmp_path, 0)
    make(
        recipe_of(teacher="ema", inner=2, rounds=1), states=states, callbacks=[Contributes()]
    ).train()
    assert kept == [False, True]


def test_a_dropped_step_moves_neither_teacher_nor_schedule(make):
    trainer = make(recipe_of(divergence="taid", teacher="ema"))
    channel = trainer.channels[0]
    honest = channel.loss

    def once_nan(*args):
        channel.loss = honest
        return honest(*args) * float("nan")

    channel.loss = once_nan
    seen: list[Any] = []
    follow = trainer.follow

    def watched():
        follow()
        seen.append(copy.deepcopy(channel.state()[1]))

    trainer.follow = watched
    trainer.train()
    assert seen[0] == {"t": seen[0]["t"], "previous": None, "momentum": 0.0}
    assert all(math.isfinite(s["previous"]) for s in seen[1:])


def test_taids_target_moves_with_the_steps(make):
    trainer = make(recipe_of(inner=4, divergence="taid"))
    seen: list[float] = []
    trainer._on_event = lambda kind, step, numbers: seen.append(numbers["sdpo_taid_t"])
    trainer.train()
    assert seen[0] == pytest.approx(0.4)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(0.4 + 0.6 * 7 / 8, abs=1e-3)


def test_the_importance_clip_weights_each_token(make, toy_base, shake):
    trainer = make(recipe_of(importance_clip=1.05))
    shake(trainer, 0.05)
    total = float(trainer.training_step(trainer.model, {}).detach())
    student, teacher = spans(trainer, toy_base)
    ratios = []
    for hint in trainer.channels[0].drawn(0):
        target = torch.tensor(hint.response_ids)[:, None]
        now, old = (
            logits(model, hint.prompt_ids, hint.response_ids).log_softmax(-1).gather(-1, target)
            for model in (trainer.policy.model, toy_base)
        )
        ratio = (now - old).exp().clamp(max=1.05).detach()[:, 0]
        ratios.append(ratio[hint.start : hint.start + hint.length])
    weights = torch.cat(ratios)
    assert weights.min() < 1
    want = (generalized_jsd(student, teacher, beta=0.5) * weights).mean()
    assert total == pytest.approx(float(want), rel=1e-4)


# -- the gate ----------------------------------------------------------------------------


def test_the_gain_is_what_the_hint_does_to_right_and_wrong(toy_base, tmp_path):
    data = toy.rows()
    with_target, without = data.hints[0], msgspec.structs.replace(data.hints[1], target_ids=[])
    data = msgspec.structs.replace(data, hints=[with_target, without])
    scores = score(Policy(toy_base, pad=4, device="cpu"), recipe_of(), data, tmp_path)

    def logp(prompt, response):
        with torch.no_grad():
            values = logits(toy_base, prompt, response).log_softmax(-1)
        return float(values.gather(-1, torch.tensor(response)[:, None]).sum())

    def effect(hint: Hint, response):
        return logp(hint.teacher_prompt_ids, response) - logp(hint.prompt_ids, response)

    want = effect(with_target, with_target.target_ids) - effect(
        with_target, with_target.response_ids
    )
    assert scores.gains()[with_target.id] == pytest.approx(want, rel=1e-4)
    alone = -effect(without, without.response_ids)
    assert scores.gains()[without.id] == pytest.approx(alone, rel=1e-4)
    assert want > 0


def test_only_hints_that_help_pass_and_the_share_is_said():
    data = toy.rows()
    gains = {hint.id: (i - 3.0) for i, hint in enumerate(data.hints)}  # the fourth gains nothing
    kept, numbers = gate(recipe_of(hint_gain=True), data, gains)
    assert [hint.id for hint in kept.hints] == [hint.id for hint in data.hints[4:]]
    assert kept.hints[0] == data.hints[4]
    assert numbers["hints_seen"] == len(data.hints)
    assert numbers["hints_kept_share"] == pytest.approx(12 / 16)
    assert numbers["hint_gain_p50"] == pytest.approx(4.5)
    everything, same = gate(recipe_of(hint_gain=False), data, gains)
    assert len(everything.hints) == len(data.hints)
    assert same == numbers
    with pytest.raises(InputError, match=r"none of 16 hints.*channels\.sdpo\.hint_gain"):
        gate(recipe_of(hint_gain=True), data, dict.fromkeys(gains, 0.0))
    off = tiny_recipe("toy", channels={**OFF, "sdpo": {"weight": 0}, "sft": {}})
    assert gate(off, data, {}) == (data, {})


def test_scores_are_read_as_they_were_written(tmp_path, toy_base):
    data = toy.rows()
    recipe = tiny_recipe("toy", channels={name: {} for name in ("grpo", "sdpo", "dpo", "sft")})
    scores = score(Policy(toy_base, pad=4, device="cpu"), recipe, data, tmp_path)
    assert BaseScores.load(tmp_path) == scores
    assert set(scores.gains()) == {hint.id for hint in data.hints}
    group = data.groups[0]
    if group.id in scores.answers():
        assert [len(a) for a in scores.answers()[group.id]] == [2, 2]
    assert all(math.isfinite(v) and v < 0 for pair in scores.references().values() for v in pair)


def test_a_nightly_run_finds_the_state_beside_its_adapter(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    nightly = tiny_recipe("toy", start_from=str(tmp_path))
    assert earlier_state(nightly) is None
    (folder / "channels.safetensors").write_bytes(b"")
    assert earlier_state(nightly) == folder / "channels.safetensors"
    assert earlier_state(tiny_recipe("toy")) is None
