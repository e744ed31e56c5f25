"""Models that cap or scale their logits: both kernels against the model's own logits."""

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    GraniteConfig,
)

from composer_pipeline.losses import divergence
from composer_pipeline.losses.divergence import LogitTransform, fused_divergence
from composer_pipeline.losses.token_logps import token_logps
from trainers.common.rows import backbone_and_head, logit_transform

SIZES = {
    "vocab_size": 37, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "attn_implementation": "eager",
}  # fmt: skip
#: A cap and factors that bend logits of this size well beyond the tolerance.
MODELS = {
    "gemma2": (Gemma2Config(**SIZES, final_logit_softcapping=0.7), LogitTransform(1.0, 0.7)),
    "cohere": (CohereConfig(**SIZES, logit_scale=2.5), LogitTransform(2.5)),
    "granite": (GraniteConfig(**SIZES, logits_scaling=0.4), LogitTransform(2.5)),
}


@pytest.fixture(params=sorted(MODELS))
def sides(request):
    """The model with its transform, and states and logits of student and teacher."""
    torch.manual_seed(4)
    config, want = MODELS[request.param]
    model = AutoModelForCausalLM.from_config(config).double()
    with torch.no_grad():  # logits of one and more, where a cap bends
        model.get_output_embeddings().weight.normal_()
    assert logit_transform(model) == want
    ids = torch.randint(3, 37, (2, 7))
    backbone, head = backbone_and_head(model)
    states = [backbone(input_ids=row[None]).last_hidden_state[0].detach() for row in ids]
    with torch.no_grad():
        logits = [model(input_ids=row[None]).logits[0] for row in ids]
    return want, head.detach(), states, logits


def _leaves(*tensors):
    return [t.clone().requires_grad_() for t in tensors]


@pytest.mark.parametrize(
    "options",
    [{"beta": 0.0}, {"beta": 0.5, "temperature": 1.7}, {"beta": 0.3, "token_clip": 0.001}],
)
def test_the_divergence_is_that_of_the_models_logits(sides, options):
    transform, head, (student, teacher), (logits, target) = sides
    weights = torch.rand(7, dtype=torch.float64)
    hidden, trained = _leaves(student, head)
    loss, values = fused_divergence(
        hidden, trained, teacher, head, weights, transform=transform, chunk=3, **options
    )
    loss.backward()
    assert_close(values, divergence.generalized_jsd(logits, target, **options))
    # The gradient by autograd, through the model's own way from states to logits.
    other, weight = _leaves(student, head)
    y = other @ weight.T * transform.scale
    y = y if transform.softcap is None else torch.tanh(y / transform.softcap) * transform.softcap
    assert_close(y.detach(), logits)
    (divergence.generalized_jsd(y, target, **options) * weights).sum().backward()
    assert_close(hidden.grad, other.grad, rtol=0, atol=1e-12)
    assert_close(trained.grad, weight.grad, rtol=0, atol=1e-12)


def test_log_probabilities_are_those_of_the_models_logits(sides):
    transform, head, (student, _), (logits, _) = sides
    targets, up = torch.randint(0, 37, (7,)), torch.randn(7, dtype=torch.float64)
    hidden, trained = _leaves(student, head)
    got = token_logps(hidden, trained, targets, transform=transform, chunk=3)
    (got * up).sum().backward()
    want = logits.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)
    assert_close(got.detach(), want)
    other, weight = _leaves(student, head)
    y = other @ weight.T * transform.scale
    y = y if transform.softcap is None else torch.tanh(y / transform.softcap) * transform.softcap
    (y.log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1) * up).sum().backward()
    assert_close(hidden.grad, other.grad, rtol=0, atol=1e-12)
    assert_close(trained.grad, weight.grad, rtol=0, atol=1e-12)


def test_the_slope_is_that_of_a_cap_and_a_scale_together():
    transform = LogitTransform(2.5, 0.7)
    y = torch.linspace(-1, 1, 9, dtype=torch.float64, requires_grad=True)
    (torch.tanh(y * 2.5 / 0.7) * 0.7).sum().backward()
    slope = transform.slope(transform.apply_(y.detach().clone()))
    torch.testing.assert_close(slope, y.grad)
