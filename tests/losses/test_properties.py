"""Properties of the divergences and of the fused kernel that no golden number states."""

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from composer_pipeline.losses import divergence
from composer_pipeline.losses import divergence as fused
from composer_pipeline.losses.divergence import add_product_, fused_divergence
from composer_pipeline.losses.token_logps import token_logps


@pytest.fixture
def rows():
    torch.manual_seed(3)
    hidden, teacher = torch.randn(13, 5).double(), torch.randn(13, 4).double()
    head, teacher_head = torch.randn(17, 5).double(), torch.randn(17, 4).double()
    return hidden, head, teacher, teacher_head, torch.rand(13).double()


KINDS = [
    {"kind": "jsd", "beta": 0.5},
    {"kind": "jsd", "beta": 0.0, "temperature": 1.7},
    {"kind": "jsd", "beta": 1.0, "token_clip": 0.02},
    {"kind": "jsd", "beta": 0.3, "token_clip": 0.01, "temperature": 0.8},
    {"kind": "taid", "t": 0.4},
    {"kind": "eopd", "tau": 2.0, "top_k": 4},
]


@pytest.mark.parametrize("in_a_block", [1, 2, 64])
@pytest.mark.parametrize("options", KINDS)
def test_the_chunk_size_changes_nothing(rows, options, in_a_block, monkeypatch):
    monkeypatch.setattr(fused, "block_of", lambda *_, **__: in_a_block)
    results = []
    for chunk in (1, 4, 64):
        hidden, head = rows[0].clone().requires_grad_(), rows[1].clone().requires_grad_()
        loss, values = fused_divergence(hidden, head, *rows[2:], chunk=chunk, **options)
        (loss * 3).backward()
        results.append((loss.detach(), values, hidden.grad, head.grad))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("options", KINDS)
def test_the_kernel_equals_autograd_through_the_logits(rows, options):
    hidden, head, teacher, teacher_head, weights = rows
    plain = {k: v for k, v in options.items() if k != "kind"}
    function: Any = {
        "jsd": divergence.generalized_jsd, "taid": divergence.taid, "eopd": divergence.eopd,
    }[options["kind"]]  # fmt: skip
    a, b = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    values = function(a @ b.T, teacher @ teacher_head.T, **plain)
    (values * weights).sum().backward()
    c, d = hidden.clone().requires_grad_(), head.clone().requires_grad_()
    loss, per_token = fused_divergence(c, d, teacher, teacher_head, weights, **options)
    loss.backward()
    assert_close(per_token, values.detach(), rtol=0, atol=1e-12)
    assert_close(c.grad, a.grad, rtol=0, atol=1e-12)
    assert_close(d.grad, b.grad, rtol=0, atol=1e-12)


def test_no_active_token_is_a_zero_on_the_graph():
    hidden = torch.randn(0, 5, requires_grad=True)
    loss, values = fused_divergence(
        hidden, torch.randn(7, 5), torch.randn(0, 5), torch.randn(7, 5), torch.zeros(0)
    )
    loss.backward()
    assert float(loss) == 0
    assert values.numel() == 0
    assert hidden.grad is not None


def test_jsd_is_symmetric_bounded_and_zero_at_equality():
    torch.manual_seed(0)
    a, b = 3 * torch.randn(20, 30).double(), 3 * torch.randn(20, 30).double()
    half = divergence.generalized_jsd(a, b, beta=0.5)
    assert_close(half, divergence.generalized_jsd(b, a, beta=0.5))
    for beta in (0.1, 0.5, 0.9):
        bound = -beta * math.log(beta) - (1 - beta) * math.log(1 - beta)
        assert float(divergence.generalized_jsd(a, b, beta=beta).max()) <= bound
    for beta in (0.0, 0.3, 1.0):
        assert float(divergence.generalized_jsd(a, a, beta=beta).abs().max()) < 1e-12


def test_taid_at_zero_is_the_entropy_and_teaches_nothing():
    student = torch.randn(4, 9).double().requires_grad_()
    value = divergence.taid(student, torch.randn(4, 9).double(), t=0.0)
    value.sum().backward()
    assert_close(value.detach(), divergence.entropy(student.detach().log_softmax(-1)))
    assert float(student.grad.abs().max()) < 1e-12


def test_token_logps_equal_log_softmax_for_any_chunk():
    torch.manual_seed(1)
    hidden, head = torch.randn(9, 4).double(), torch.randn(11, 4).double()
    targets = torch.randint(0, 11, (9,))
    want = (hidden @ head.T).log_softmax(-1).gather(-1, targets[:, None]).squeeze(-1)
    for chunk in (2, 100):
        assert_close(token_logps(hidden, head, targets, chunk=chunk), want)
    assert token_logps(hidden[:0], head, targets[:0]).shape == (0,)


def test_log_probabilities_of_large_logits_are_finite():
    head, targets = 200.0 * torch.eye(3), torch.tensor([0, 1])
    hidden = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], requires_grad=True)
    got = token_logps(hidden, head, targets)
    assert got.tolist() == [0.0, -200.0]
    got.sum().backward()
    assert_close(hidden.grad, torch.tensor([[0.0, 0, 0], [-200.0, 200.0, 0]]))


@pytest.mark.parametrize("beta", [0.2, 0.9])
def test_a_token_that_one_side_rules_out_is_finite(beta):
    student, teacher = 200.0 * torch.eye(3), 200.0 * torch.eye(3).flip(0)
    hidden = student.clone().requires_grad_()
    loss, values = fused_divergence(hidden, torch.eye(3), teacher, torch.eye(3), torch.ones(3),
                                    beta=beta)  # fmt: skip
    want = divergence.generalized_jsd(student.double(), teacher.double(), beta=beta)
    assert_close(values.double(), want, rtol=1e-5, atol=1e-6)
    loss.backward()
    assert bool(hidden.grad.isfinite().all())


def test_a_second_backward_is_refused(rows):
    hidden = rows[0].clone().requires_grad_()
    loss, _ = fused_divergence(hidden, *rows[1:])
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward"):
        loss.backward()


def test_products_of_half_precision_are_added_unrounded():
    torch.manual_seed(2)
    grad, hidden = torch.randn(16, 30), torch.randn(16, 4).bfloat16()
    total = torch.ones(30, 4)
    add_product_(total, grad, hidden)
    assert_close(total.double(), 1 + grad.double().T @ hidden.double(), rtol=0, atol=1e-5)
