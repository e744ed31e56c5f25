"""The losses' kernels on the device against their definitions in float64."""

import pytest
import torch

from composer_pipeline.losses.divergence import eopd, fused_divergence, generalized_jsd, taid
from composer_pipeline.losses.token_logps import token_logps
from tests.gpu.device import CUDA, DEVICE, on_a_gpu, relative

pytestmark = on_a_gpu
DEFINED = {"jsd": generalized_jsd, "taid": lambda s, t: taid(s, t, t=0.4), "eopd": eopd}
#: Of values, of the gradient of states, of that of the head. Both of the latter are multiplied in
#: the states' type; sums are float32, so that values are as exact in bf16 as in float32.
TOLERANCES = {torch.float32: (1e-5, 1e-4, 1e-4), torch.bfloat16: (1e-5, 1e-2, 1e-2)}


#: Rows and vocabulary.
SIZES = (300, 32_000) if CUDA else (40, 500)


def inputs(dtype, width=128):
    """Return states of student and teacher and a head, (N, H), (N, H), (V, H), by a seed."""
    draw = torch.Generator().manual_seed(0)
    rows, vocabulary = SIZES
    sizes = (rows, width), (rows, width), (vocabulary, width)
    found = [torch.randn(size, generator=draw).to(DEVICE, dtype) for size in sizes]
    found[2] = found[2] / width**0.5
    return [tensor.requires_grad_() for tensor in found]


def both(tensors, of):
    """Return values and gradients, as they are and in float64 on the CPU."""
    out = []
    for given in (tensors, [t.detach().cpu().double().requires_grad_() for t in tensors]):
        values, loss = of(given)
        loss.backward()
        out.append([values, given[0].grad, given[2].grad])
    return zip(*out, strict=True)


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize("kind", list(DEFINED))
def test_a_divergence_is_that_of_its_definition(kind, dtype):
    def of(given):
        student, teacher, head = given
        weights = torch.linspace(0.1, 1, len(student), device=student.device).to(torch.float32)
        if student.dtype is torch.float64:
            values = DEFINED[kind](student @ head.T, teacher @ head.detach().T)
            return values, (values * weights).sum()
        loss, values = fused_divergence(
            student, head, teacher, head.detach(), weights, kind=kind, t=0.4
        )
        return values, loss

    for (found, wanted), limit in zip(both(inputs(dtype), of), TOLERANCES[dtype], strict=True):
        assert relative(found, wanted) < limit


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
def test_log_probabilities_are_those_of_all_logits(dtype):
    ids = torch.arange(SIZES[0]) * 7

    def of(given):
        states, _, head = given
        if states.dtype is torch.float64:
            values = (states @ head.T).log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)
        else:
            values = token_logps(states, head, ids.to(DEVICE))
        return values, (values * values.detach().tanh()).sum()

    for (found, wanted), limit in zip(both(inputs(dtype), of), TOLERANCES[dtype], strict=True):
        assert relative(found, wanted) < limit
