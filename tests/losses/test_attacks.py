"""What a tired change of the losses would lose: scales, precision, detachment, refusals.

The oracles are autograd over torch's own ``kl_div`` and ``log_softmax`` in float64.
"""

import pytest
import torch
from torch.nn.functional import kl_div, log_softmax
from torch.testing import assert_close

from composer_pipeline.losses import divergence
from composer_pipeline.losses.divergence import fused_divergence
from composer_pipeline.losses.token_logps import token_logps


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(11)


def _rows(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    hidden, teacher = torch.randn(6, 5), torch.randn(6, 4)
    head, teacher_head = torch.randn(19, 5), torch.randn(19, 4)
    weights = torch.rand(6)
    return (*(t.to(dtype) for t in (hidden, head, teacher, teacher_head)), weights)


@pytest.mark.parametrize("scale", [0.0, 0.25, -2.0])
def test_the_scalar_that_comes_back_scales_both_gradients(scale: float) -> None:
    """α multiplies the loss after the kernel; a kernel that ignores it trains with α = 1."""
    hidden, head, teacher, teacher_head, weights = _rows()
    a, b = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    loss, _ = fused_divergence(a, b, teacher, teacher_head, weights.double(), beta=0.0)
    (scale * loss).backward()
    c, d = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    target = log_softmax(teacher @ teacher_head.T, -1)
    entries = kl_div(log_softmax(c @ d.T, -1), target, reduction="none", log_target=True)
    (scale * (entries.sum(-1) * weights.double()).sum()).backward()
    assert_close(a.grad, c.grad, rtol=0, atol=1e-12)
    assert_close(b.grad, d.grad, rtol=0, atol=1e-12)


def test_half_precision_inputs_are_summed_wide() -> None:
    """The head's gradient of many small bf16 chunks equals one wide sum, not a rounded one."""
    rows = 4096
    hidden = (torch.randn(rows, 8)).bfloat16().requires_grad_()
    head = torch.randn(32, 8).bfloat16().requires_grad_()
    teacher, teacher_head = torch.randn(rows, 8).bfloat16(), torch.randn(32, 8).bfloat16()
    weights = torch.full((rows,), 1.0)
    loss, values = fused_divergence(hidden, head, teacher, teacher_head, weights, chunk=1)
    loss.backward()
    assert values.dtype == torch.float32
    wide_hidden, wide_head = (t.detach().double().requires_grad_() for t in (hidden, head))
    wide, _ = fused_divergence(
        wide_hidden, wide_head, teacher.double(), teacher_head.double(), weights.double(), chunk=1
    )
    wide.backward()
    scale = float(wide_head.grad.abs().mean())
    error = (head.grad.double() - wide_head.grad).abs().mean() / scale
    assert float(error) < 0.01  # 0.002 measured; 0.06 where 4,096 chunks are added in bf16
    assert_close(loss.detach().double(), wide.detach(), rtol=0.01, atol=0)


def test_the_divergence_of_bf16_logits_is_taken_in_float32() -> None:
    """Without widening, each of a thousand entries of a softmax keeps three digits."""
    hidden, teacher = torch.randn(64, 16).bfloat16(), torch.randn(64, 16).bfloat16()
    head, teacher_head = torch.randn(2048, 16).bfloat16(), torch.randn(2048, 16).bfloat16()
    _, values = fused_divergence(hidden, head, teacher, teacher_head, torch.ones(64), beta=1.0)
    logits = hidden.double() @ head.double().T
    target = teacher.double() @ teacher_head.double().T
    want = divergence.generalized_jsd(logits, target, beta=1.0)
    assert_close(values.double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_log_probabilities_of_a_half_precision_model_are_wide(dtype: torch.dtype) -> None:
    hidden, head = torch.randn(40, 16).to(dtype), torch.randn(3000, 16).to(dtype)
    targets = torch.randint(0, 3000, (40,))
    got = token_logps(hidden, head, targets)
    assert got.dtype == torch.float32
    logits = hidden.double() @ head.double().T
    want = log_softmax(logits, -1).gather(-1, targets[:, None]).squeeze(-1)
    assert_close(got.double(), want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("top_k", [None, 4])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_no_gradient_reaches_a_teacher(beta: float, top_k: int | None) -> None:
    student, teacher = torch.randn(3, 9).requires_grad_(), torch.randn(3, 9).requires_grad_()
    divergence.generalized_jsd(student, teacher, beta=beta, top_k=top_k).sum().backward()
    divergence.taid(student, teacher, t=0.5).sum().backward()
    divergence.eopd(student, teacher).sum().backward()
    assert teacher.grad is None
    assert float(student.grad.abs().sum()) > 0


def test_an_infinite_logit_is_a_masked_entry() -> None:
    """Models mask entries with -inf; neither the value nor the gradient may become NaN."""
    student = torch.randn(2, 6).double()
    student[:, 2] = -torch.inf
    teacher = torch.randn(2, 6).double()
    teacher[:, 2] = -torch.inf
    asked = student.clone().requires_grad_()
    value = divergence.taid(asked, teacher, t=0.5)
    kept = [0, 1, 3, 4, 5]
    assert_close(value.detach(), divergence.taid(student[:, kept], teacher[:, kept], t=0.5))
    eye = torch.eye(6, dtype=torch.float64)
    finite = torch.where(torch.isinf(student), torch.full_like(student, -1e300), student)
    far = torch.where(torch.isinf(teacher), torch.full_like(teacher, -1e300), teacher)
    _, fused = fused_divergence(finite, eye, far, eye, torch.ones(2).double(), kind="taid", t=0.5)
    assert bool(torch.isfinite(fused).all())


@pytest.mark.parametrize("beta", [-0.1, 1.1])
def test_a_mixture_weight_outside_zero_to_one_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        divergence.generalized_jsd(torch.zeros(1, 3), torch.zeros(1, 3), beta=beta)
    hidden, head, teacher, teacher_head, weights = _rows()
    with pytest.raises(ValueError, match="beta"):
        fused_divergence(hidden, head, teacher, teacher_head, weights, beta=beta)
