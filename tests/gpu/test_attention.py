"""The compiled attention of packed trees: against the dense mask in float64, compiled how often."""

import random

import pytest
import torch

from tests.gpu.device import CUDA, DEVICE, compiled_graphs, needs_cuda, on_a_gpu, relative
from trainers.common import attention
from trainers.common.rows import Row
from trainers.common.trees import Layout, Tree, block_mask, visible

pytestmark = on_a_gpu
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2}


def layout_of(seed, rows, longest):
    draw = random.Random(seed)

    def row():
        prompt = [draw.randrange(2) for _ in range(draw.randrange(1, longest))]
        return Row(prompt, [5] * draw.randrange(1, 90))

    trees = [Tree([row() for _ in range(rows)]) for _ in range(2)]
    return Layout(trees, 0, packed=True)


def attend(layout, heads, width, dtype, *, learns=(True, True, True)):
    """Return query, key, value (1, heads, S, width), the result and a gradient for it."""
    draw = torch.Generator().manual_seed(0)
    sizes = [(1, n, layout.ids.shape[-1], width) for n in (*heads, heads[1])]
    inputs = [torch.randn(size, generator=draw).to(DEVICE, dtype) for size in sizes]
    for tensor, learning in zip(inputs, learns, strict=True):
        tensor.requires_grad_(learning)
    mask = block_mask(layout.ends, DEVICE)
    query, key, value = inputs
    out, _ = attention._forward(None, query, key, value, mask, width**-0.5)
    along = torch.randn(out.shape, generator=draw).to(DEVICE, dtype)
    if out.requires_grad:
        out.backward(along)
    return inputs, out, along


@pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)
@pytest.mark.parametrize(("heads", "width"), [((7, 1), 64), ((12, 2), 128), ((4, 4), 16)])
def test_attention_is_that_of_the_dense_mask(dtype, heads, width):
    layout = layout_of(1, rows=8, longest=200 if CUDA else 40)
    inputs, out, along = attend(layout, heads, width, dtype)
    exact = [t.detach().cpu().double().requires_grad_() for t in inputs]
    repeated = [t.repeat_interleave(heads[0] // heads[1], 1) for t in exact[1:]]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        exact[0], *repeated, attn_mask=visible(layout.ends).unsqueeze(1)
    ).transpose(1, 2)
    wanted.backward(along.cpu().double())
    assert relative(out, wanted) < TOLERANCES[dtype]
    for found, right in zip(inputs, exact, strict=True):
        assert relative(found.grad, right.grad) < TOLERANCES[dtype]


def test_one_graph_serves_every_length_and_everyone():
    for seed, rows in enumerate((1, 2, 4, 8, 16, 5)):
        layout = layout_of(seed, rows, longest=(60 if CUDA else 3) * rows + 2)
        attend(layout, (7, 1), 64, torch.bfloat16, learns=(seed % 2 == 0, False, True))
        with torch.no_grad():
            attend(layout, (7, 1), 64, torch.bfloat16, learns=(False, False, False))
        with torch.autocast(DEVICE, torch.bfloat16):
            attend(layout, (7, 1), 64, torch.float32)
    assert compiled_graphs() == 1


@needs_cuda
def test_memory_grows_with_the_length_not_its_square():
    peaks = {}
    for size in (4096, 8192, 16384, 16384):  # the last time nothing is left to compile
        rows = [Row([k % 31 for k in range(size - 600)], [n] * 129) for n in range(4)]
        layout = Layout([Tree(rows)], 0, packed=True)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        attend(layout, (12, 2), 128, torch.bfloat16)
        peaks[size] = torch.cuda.max_memory_allocated() - before
    print("bytes a token:", {size: round(peak / size) for size, peak in peaks.items()})
    assert peaks[16384] < 2.2 * peaks[8192]
