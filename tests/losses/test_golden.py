"""The losses equal numbers that upstream code produced (golden.json, numbers only)."""

import json
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from composer_pipeline.losses import divergence, preference, sdpo
from composer_pipeline.losses.divergence import fused_divergence
from composer_pipeline.losses.sdpo import TaidScheduler

GOLDEN = json.loads((Path(__file__).parent / "golden.json").read_text())


def tensor(values, grad=False):
    return torch.tensor(values, dtype=torch.float64).requires_grad_(grad)


def weighted(values, weights):
    return (values * weights).sum()


def close(got, want, tolerance=1e-12):
    want = want if isinstance(want, torch.Tensor) else tensor(want)
    assert_close(got.detach().double(), want, rtol=0, atol=tolerance)


def fused(student, teacher, weights, **options):
    """The kernel on logits: with the identity as head, hidden states are the logits."""
    vocabulary = student.shape[-1]
    eye = torch.eye(vocabulary, dtype=student.dtype)
    loss, _ = fused_divergence(
        student.reshape(-1, vocabulary), eye, teacher.reshape(-1, vocabulary), eye,
        weights.reshape(-1).to(student.dtype), chunk=3, **options,
    )  # fmt: skip
    return loss


OPSD = GOLDEN["opsd_generalized_jsd"]


@pytest.mark.parametrize("case", OPSD["cases"][:40])
def test_opsd_generalized_jsd(case):
    teacher, labels = tensor(OPSD["teacher_logits"]), torch.tensor(OPSD["labels"])
    weights = divergence.mean_weights(labels != -100)
    options = {k: case[k] for k in ("beta", "temperature", "token_clip")}
    student = tensor(OPSD["student_logits"], grad=True)
    loss = weighted(
        divergence.generalized_jsd(student, teacher, top_k=case["top_k"], **options), weights
    )
    loss.backward()
    close(loss, case["loss"])
    close(student.grad, case["grad_student"])
    if case["top_k"] is None:
        student = tensor(OPSD["student_logits"], grad=True)
        loss = fused(student, teacher, weights, kind="jsd", **options)
        loss.backward()
        close(loss, case["loss"])
        close(student.grad, case["grad_student"])


@pytest.mark.parametrize("case", OPSD["cases"][40:])
def test_opsd_reductions(case):
    entries = divergence.jsd_entries(
        tensor(OPSD["student_logits"]), tensor(OPSD["teacher_logits"]), beta=0.5
    )
    kept = torch.tensor(OPSD["labels"]) != -100
    got = {
        "sum": entries[kept].sum(),
        "mean": entries[kept].mean(),
        "none": entries[kept],
        "batchmean": entries.sum() / entries.shape[0],
    }[case["reduction"]]
    close(got, case["loss"])


def test_a_mask_is_never_taken_for_labels():
    student, teacher = tensor(OPSD["student_logits"]), tensor(OPSD["teacher_logits"])
    mask = (torch.tensor(OPSD["labels"]) != -100).long()
    values = divergence.generalized_jsd(student, teacher, beta=0.5)
    with pytest.raises(TypeError, match="mean_weights"):
        fused_divergence(student[0], torch.eye(7).double(), teacher[0], torch.eye(7), mask[0])
    bug = OPSD["seed_bug_mask_as_labels"]
    close(weighted(values, divergence.mean_weights(mask)), bug["correct"])
    assert abs(float(values.mean()) - bug["unmasked_all_tokens"]) < 1e-12


@pytest.mark.parametrize("case", GOLDEN["taid"]["cases"])
def test_taid(case):
    golden = GOLDEN["taid"]
    teacher, weights = (
        tensor(golden["teacher_logits"]),
        divergence.mean_weights(tensor(golden["mask"])),
    )
    for kernel in (False, True):
        student = tensor(golden["student_logits"], grad=True)
        if kernel:
            loss = fused(student, teacher, weights, kind="taid", t=case["t"])
        else:
            loss = weighted(divergence.taid(student, teacher, t=case["t"]), weights)
        loss.backward()
        close(loss, case["loss"], 1e-6)
        close(student.grad, case["grad_student"], 1e-6)
        if "loss_pure_float64" in case:
            close(loss, case["loss_pure_float64"])
            close(student.grad, case["grad_pure_float64"])


@pytest.mark.parametrize("case", GOLDEN["taid"]["scheduler"])
def test_taid_scheduler(case):
    scheduler = TaidScheduler(case["num_train_steps"], **case["kwargs"])
    for index, record in enumerate(case["trajectory"]):
        delta = scheduler.update(record["loss"], record["step"])
        assert scheduler.t == pytest.approx(record["t"], abs=1e-6)
        assert (delta is None) == (record["delta_t"] is None) == (index == 0)
        if delta is not None:
            assert delta == pytest.approx(record["delta_t"], abs=1e-6)
            assert scheduler.momentum == pytest.approx(record["momentum"], abs=1e-6)
        if index == 5:  # a resumed scheduler goes on where it was
            resumed = TaidScheduler(1)
            resumed.load_state_dict(scheduler.state_dict())
            scheduler = resumed


@pytest.mark.parametrize("case", GOLDEN["eopd"]["cases"])
def test_eopd(case):
    golden = GOLDEN["eopd"]
    teacher = tensor(golden["teacher_logits"])
    weights = divergence.mean_weights(tensor(golden["mask"]))
    options = {k: case[k] for k in ("tau", "alpha", "top_k")}
    for kernel in (False, True):
        student = tensor(golden["student_logits"], grad=True)
        if kernel:
            loss = fused(student, teacher, weights, kind="eopd", **options)
        else:
            loss = weighted(divergence.eopd(student, teacher, **options), weights)
        loss.backward()
        close(loss, case["loss"])
        close(student.grad, case["grad_student"])


@pytest.mark.parametrize("case", GOLDEN["simpo"]["cases"])
def test_simpo(case):
    golden = GOLDEN["simpo"]
    chosen = tensor(golden["policy_chosen_avg_logps"], grad=True)
    rejected = tensor(golden["policy_rejected_avg_logps"], grad=True)
    losses = preference.simpo(
        chosen, rejected, beta=case["beta"], gamma=case["gamma"],
        label_smoothing=case["label_smoothing"], hinge=case["loss_type"] == "hinge",
    )  # fmt: skip
    losses.mean().backward()
    close(losses, case["losses"])
    close(chosen.grad, case["grad_chosen"])
    close(rejected.grad, case["grad_rejected"])


@pytest.mark.parametrize("case", GOLDEN["trl_dpo"]["cases"])
def test_trls_losses_of_pairs(case):
    golden = GOLDEN["trl_dpo"]
    logps = tensor(golden["policy_token_logps"], grad=True)
    mask = torch.tensor(golden["completion_mask"])
    chosen, rejected = logps.sum(-1).chunk(2)
    chosen_tokens, rejected_tokens = mask.sum(-1).double().chunk(2)
    pairs = preference.Pairs(
        chosen, rejected, tensor(golden["ref_chosen_logps"]),
        tensor(golden["ref_rejected_logps"]), chosen_tokens, rejected_tokens,
    )  # fmt: skip
    losses = preference.pair_loss(
        case["loss_type"], pairs, beta=case["beta"], label_smoothing=case["label_smoothing"]
    )
    losses.mean().backward()
    close(losses.mean(), case["loss"])
    close(case["beta"] * pairs.margin.mean(), case["margin"])
    kept = mask[:, 1:].bool()
    close(logps.grad[kept], tensor(case["grad_policy_token_logps"])[kept])


def _trl_mean(values, mask):
    return ((values * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()


def _token_mean(values, mask):
    return (values * mask).sum() / mask.sum().clamp(min=1)


@pytest.mark.parametrize(
    "case", [case for case in GOLDEN["sdpo"]["cases"] if case["mode"] == "full_logits"]
)
@pytest.mark.parametrize(
    ("reduce", "value", "grad"),
    [
        (_trl_mean, "trl_loss", "trl_grad"),
        (_token_mean, "lasgroup_token_mean", "lasgroup_token_mean_grad"),
    ],
)
def test_sdpo(case, reduce, value, grad):
    golden = GOLDEN["sdpo"]
    student, teacher = tensor(golden["student_logits"], grad=True), tensor(golden["teacher_logits"])
    ids = torch.tensor(golden["completion_ids"]).unsqueeze(-1)
    mask = tensor(golden["response_mask"]) * tensor(golden["self_distillation_mask"])[:, None]
    values = divergence.generalized_jsd(student, teacher, beta=case["alpha"])
    if case["is_clip"] is not None:
        picked = student.log_softmax(-1).gather(-1, ids).squeeze(-1)
        old = tensor(golden["old_log_probs"])
        values = values * sdpo.importance_ratio(picked, old, clip=case["is_clip"])
    loss = reduce(values, mask)
    loss.backward()
    close(loss, case[value])
    close(student.grad, case[grad])


def test_importance_ratio_is_clipped_and_detached():
    logps = tensor([0.0, 0.0, -50.0], grad=True)
    ratio = sdpo.importance_ratio(logps, tensor([-0.5, -3.0, 0.0]), clip=2.0)
    assert not ratio.requires_grad
    close(ratio, torch.tensor([0.5, 1.0, -20.0], dtype=torch.float64).exp().clamp(max=2.0))


@pytest.mark.parametrize("case", GOLDEN["jsd_from_hidden"]["cases"])
def test_jsd_from_hidden(case):
    golden = GOLDEN["jsd_from_hidden"]
    hidden = tensor(golden["student_hidden"], grad=True)
    head = tensor(golden["lm_head_weight"], grad=True)
    teacher = tensor(golden["teacher_hidden"]).reshape(-1, 6)
    weights = divergence.mean_weights(tensor(golden["mask"]).reshape(-1))
    options = {"beta": case["beta"], "temperature": case["temperature"]}
    loss, _ = fused_divergence(
        hidden.reshape(-1, 6), head, teacher, head, weights, chunk=3, **options
    )
    loss.backward()
    close(loss, case["opsd_float64"])
    close(hidden.grad, case["grad_hidden"])
    close(head.grad, case["grad_weight"])
    single, _ = fused_divergence(
        hidden.detach().float().reshape(-1, 6), head.detach().float(), teacher.float(),
        head.detach().float(), weights.float(), **options,
    )  # fmt: skip
    assert_close(single.double(), tensor(case["opsd_float64"]), rtol=1e-5, atol=1e-6)
