"""TRL's own functions, run beside ours on the same numbers."""

import copy
from types import SimpleNamespace

import msgspec
import pytest
import torch
from datasets import Dataset
from torch.testing import assert_close
from trl import DPOConfig, DPOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.gkd import GKDTrainer
from trl.experimental.sdpo import loss_utils

from composer_pipeline.losses.divergence import fused_divergence, generalized_jsd
from composer_pipeline.losses.preference import simpo
from composer_pipeline.losses.sdpo import importance_ratio
from composer_pipeline.testing.training import tiny_recipe
from tests.trainers.trl import toy
from trainers.common.base_scores import scored

BETAS = [0.0, 0.3, 0.5, 1.0]


@pytest.fixture
def draws():
    torch.manual_seed(3)
    return [torch.randn(2, 5, 11, dtype=torch.float64) * 2 for _ in range(2)]


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("temperature", [1.0, 1.3])
def test_jsd_is_gkds(draws, beta, temperature):
    student, teacher = draws
    labels = torch.tensor([[3, -100, 2, 5, -100], [1, 4, -100, -100, 9]])
    theirs = GKDTrainer.generalized_jsd_loss(
        student, teacher, labels=labels, beta=beta, temperature=temperature
    )
    kept = labels != -100
    ours = generalized_jsd(student, teacher, beta=beta, temperature=temperature)[kept].mean()
    assert_close(ours, theirs, rtol=1e-12, atol=0)


@pytest.mark.parametrize("beta", BETAS)
def test_the_fused_kernel_has_gkds_gradient(beta):
    torch.manual_seed(4)
    hidden = torch.randn(7, 6, dtype=torch.float64, requires_grad=True)
    head = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)
    taught = torch.randn(7, 6, dtype=torch.float64)
    weights = torch.full((7,), 1 / 7, dtype=torch.float64)
    kernel, _ = fused_divergence(
        hidden, head, taught, head, weights, beta=beta, temperature=1.3, chunk=3
    )
    # A scalar in front of the loss must reach both gradients.
    ours = torch.autograd.grad(2.5 * kernel, [hidden, head])
    theirs = GKDTrainer.generalized_jsd_loss(
        hidden @ head.T, taught @ head.detach().T, labels=torch.zeros(7, dtype=torch.long),
        beta=beta, temperature=1.3,
    )  # fmt: skip
    assert_close(kernel.detach(), theirs.detach(), rtol=1e-12, atol=1e-14)
    for mine, other in zip(ours, torch.autograd.grad(2.5 * theirs, [hidden, head]), strict=True):
        assert_close(mine, other, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("alpha", BETAS)
def test_sdpos_losses_are_trls(draws, alpha):
    student, teacher = draws
    theirs = loss_utils.compute_full_logit_self_distillation_loss(
        student, teacher, distillation_alpha=alpha
    )
    assert_close(generalized_jsd(student, teacher, beta=alpha), theirs, rtol=1e-12, atol=1e-14)


def test_sdpos_clip_is_trls(draws):
    ids = torch.tensor([[3, 0, 2, 5, 1], [1, 4, 7, 10, 9]])
    logps = [x.log_softmax(-1).gather(-1, ids[..., None])[..., 0] for x in draws]
    values = torch.ones_like(logps[0])
    clipped = loss_utils.apply_importance_sampling_clipping(values, *logps, 1.2)
    assert_close(values * importance_ratio(*logps, clip=1.2), clipped, rtol=1e-12, atol=1e-14)


def test_simpo_is_cpos():
    torch.manual_seed(5)
    chosen, rejected = torch.randn(2, 6, dtype=torch.float64)
    stub = SimpleNamespace(
        loss_type="simpo", simpo_gamma=0.7, beta=2.3, label_smoothing=0.1, alpha=0.0,
        accelerator=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    theirs, *_ = CPOTrainer.cpo_loss(stub, chosen, rejected)
    ours = simpo(chosen, rejected, beta=2.3, gamma=0.7, label_smoothing=0.1)
    assert_close(ours, theirs, rtol=1e-12, atol=0)


class _Tokenised(DPOTrainer):
    """TRL's trainer on rows that are tokens already."""

    def _prepare_dataset(self, dataset, *args, **options):
        return dataset


@pytest.mark.parametrize(
    ("kind", "smoothing"),
    [("sigmoid", 0.0), ("ipo", 0.0), ("apo_down", 0.0), ("sigmoid_norm", 0.0), ("robust", 0.2)],
)
def test_our_dpo_channel_is_trls_dpo_trainer(
    make, toy_base, toy_data, tiny_tokenizer, tmp_path, kind, smoothing
):
    """One window through both trainers: the same loss and the same gradient."""
    off = {name: {"weight": 0} for name in ("grpo", "sdpo", "sft")}
    trainer = make(
        tiny_recipe(
            "toy",
            channels={
                **off,
                "dpo": {
                    "beta": 0.4,
                    "pairs_per_step": 4,
                    "loss": kind,
                    "label_smoothing": smoothing,
                },
            },
            lora={"r": 0},
        )
    )
    moved = trainer.policy.model
    torch.manual_seed(6)
    with torch.no_grad():
        for parameter in moved.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    (dpo,) = trainer.channels
    ours = float(trainer.training_step(trainer.model, {}).detach())
    gradient = {name: p.grad.clone() for name, p in moved.named_parameters()}
    pairs = dpo.drawn(0)
    other = _Tokenised(
        model=copy.deepcopy(moved),
        ref_model=copy.deepcopy(toy_base),
        args=DPOConfig(
            output_dir=str(tmp_path / "dpo"), beta=0.4, per_device_train_batch_size=4, use_cpu=True,
            loss_type=[kind], label_smoothing=smoothing,
            bf16=False, report_to="none", disable_tqdm=True,
            activation_checkpointing=False,
        ),
        train_dataset=Dataset.from_dict(
            {
                "prompt_ids": [list(p.prompt_ids) for p in pairs],
                "chosen_ids": [list(p.chosen_ids) for p in pairs],
                "rejected_ids": [list(p.rejected_ids) for p in pairs],
            }
        ),
        processing_class=tiny_tokenizer,
    )  # fmt: skip
    other.model.zero_grad()
    (batch,) = list(other.get_train_dataloader())
    loss = other.compute_loss(other.model, batch)
    loss.backward()
    assert ours == pytest.approx(float(loss.detach()), rel=1e-5)
    assert abs(ours - 0.6931) > 0.01
    for name, parameter in other.model.named_parameters():
        assert_close(gradient[name], parameter.grad, rtol=1e-3, atol=1e-6)
    assert toy.held_out(toy_base)["margin"] < 0


def test_the_simpo_channel_is_simpo_of_means_and_needs_no_base_pass(make, toy_data):
    """By hand: mean log-probabilities of the model itself, and nothing of a base model."""
    off = {name: {"weight": 0} for name in ("grpo", "sdpo", "sft")}
    options = {"loss": "simpo", "beta": 2.0, "simpo_gamma": 0.3, "pairs_per_step": 4}
    recipe = tiny_recipe("toy", channels={**off, "dpo": options}, lora={"r": 0})
    assert scored(recipe) == []
    assert scored(tiny_recipe("toy", channels={**off, "dpo": {}})) == ["dpo"]
    uneven = [
        msgspec.structs.replace(pair, rejected_ids=[*pair.rejected_ids, *pair.chosen_ids] * 2)
        for pair in toy_data.pairs
    ]
    trainer = make(recipe, msgspec.structs.replace(toy_data, pairs=uneven))
    (dpo,) = trainer.channels
    window = dpo.window(trainer.policy, 0)
    loss = float(dpo.loss(trainer.policy, window, window).detach())
    assert dpo.numbers["active"] == 4
    x = torch.tensor([
        2.0 * (_mean_logp(trainer, p.prompt_ids, p.chosen_ids)
               - _mean_logp(trainer, p.prompt_ids, p.rejected_ids)) - 0.3
        for p in window
    ])  # fmt: skip
    assert loss == pytest.approx(float(-torch.nn.functional.logsigmoid(x).mean()), rel=1e-5)


def _mean_logp(trainer, prompt, response):
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        logps = trainer.policy.model(input_ids=ids).logits[0, :-1].log_softmax(-1)
    picked = logps.gather(-1, ids[0, 1:, None]).squeeze(-1)
    return float(picked[len(prompt) - 1 :].mean())
