"""A tree's states and gradients are those of its sequences; its masks agree; it says when not."""

import copy
import importlib.util
import random
from functools import partial

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from composer_pipeline.errors import InputError
from composer_pipeline.testing.training import tiny_recipe
from tests.trainers.trl.toy import Largest
from trainers.common import shared_prefix
from trainers.common.attention import NAME
from trainers.common.policy import Policy, tree_attention
from trainers.common.rows import Row
from trainers.common.shared_prefix import SharedStates, why_not
from trainers.common.trees import BLOCK, Item, Layout, Tree, block_mask, trees_of, visible

SIZES = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
PROMPT = [3, 7, 1, 9, 4, 2]
ROWS = [
    Row(PROMPT, [5, 6, 8]),
    Row(PROMPT, [5, 9, 8, 2], 1, 2),  # shares its first token, and ends before its last
    Row(PROMPT, [11]),
    Row([3, 7, 1, 9, 12, 2], [5, 6]),  # another window
    Row([20, 21, 22], [5, 6, 8]),  # another tree
]


def wide_norm(norm, hidden):
    """Transformers' own rounds to float32."""
    return norm.weight * hidden * (hidden.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()


def llama(dtype=torch.float64, **changes):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES | changes)).to(dtype)
    for module in model.modules():
        if isinstance(module, LlamaRMSNorm):
            module.forward = partial(wide_norm, module)
    return model.eval()


def student(model):
    return Policy(model, pad=0, device="cpu")


def shared(rows=ROWS, limit=100):
    return trees_of([Item("c", i, [row]) for i, row in enumerate(rows)], limit)


def gradient(model, states, rows):
    """Return the gradient of a sum of log p² over the rows, and that of the states' way back."""
    model.zero_grad()
    sum((piece**2).sum() for piece in states.logps(rows)).backward()
    if isinstance(states, SharedStates):
        states.backward(again=False)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_equal_beginnings_are_kept_once():
    trees = shared()
    assert [len(of.tree) for of in trees] == [12, 5]
    first = next(of.tree for of in trees if len(of.items) == 4)
    assert [first.tokens[n] for n in first.places(ROWS[0])] == [2, 5, 6]
    assert first.depths[first.places(ROWS[3])[-1]] == 6
    tree, size = Tree(), 0
    for row in ROWS:
        size, before = len(tree), list(tree.tokens)
        tree.add(row)
    tree.cut(size)
    assert tree.tokens == before
    tree.add(ROWS[-1])
    assert len(tree) == size + 5


def test_every_row_is_in_one_tree_and_trees_keep_to_the_limit():
    for limit in (1, 9, 12, 100):
        trees = shared(ROWS * 2, limit)
        assert sorted(item.row for of in trees for item in of.items) == list(range(10))
        assert all(len(of.tree) <= limit or len(of.items) == 1 for of in trees)
    assert [len(of.tree) for of in shared(limit=12)] == [len(of.tree) for of in shared()]
    # A multiplicity costs nothing.
    assert sum(len(of.tree) for of in shared(ROWS * 2)) == 17


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_gradient_is_that_of_separate_forwards(attention, tied):
    model = llama(tie_word_embeddings=tied, attn_implementation=attention)
    apart = gradient(model, student(model), ROWS)
    together = gradient(model, SharedStates(student(model), shared()), ROWS)
    assert float((together - apart).norm() / apart.norm()) < (
        1e-10 if attention == "sdpa" else 1e-7
    )  # eager's softmax is float32
    single = llama(torch.float32, tie_word_embeddings=tied, attn_implementation=attention)
    narrow = gradient(single, SharedStates(student(single), shared()), ROWS).double()
    assert float((narrow - apart).norm() / apart.norm()) < 1e-5


def test_two_ways_back_add_up_to_one():
    """As a measured step runs them: each channel by itself through the same forward."""
    model = llama()
    states = SharedStates(student(model), shared())
    whole = gradient(model, SharedStates(student(model), shared()), ROWS)
    model.zero_grad()
    pieces = states.logps(ROWS)
    for i, piece in enumerate(pieces):
        (piece**2).sum().backward(retain_graph=True)
        states.backward(again=i < len(pieces) - 1)
    parts = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert float((parts - whole).norm() / whole.norm()) < 1e-12


def path_of(tree, node):
    """Return a node and all before it, by their tokens' nodes."""
    path = set()
    while node >= 0:
        path.add(node)
        node = tree.parents[node]
    return path


def random_trees(seed, count=3, rows=12):
    """Return trees whose rows branch anywhere, also at a branch that is no longer the last."""
    draw = random.Random(seed)

    def row():
        prompt = [draw.randrange(2) for _ in range(draw.randrange(1, 60))]
        return Row(prompt, [5] * draw.randrange(1, 9))

    return [Tree([row() for _ in range(rows)]) for _ in range(count)]


def test_a_packed_row_has_whole_blocks_and_at_least_two():
    """torch compiles a row of one block by itself."""
    for tokens, blocks in ((9, 2), (2 * BLOCK, 2), (2 * BLOCK + 1, 3), (3 * BLOCK, 3)):
        layout = Layout([Tree([Row([1], [2] * tokens)])], 0, packed=True)
        assert layout.ids.shape[-1] == blocks * BLOCK


@pytest.mark.parametrize("packed", [False, True])
def test_masks_show_the_path_and_nothing_else(packed):
    for trees in ([of.tree for of in shared()], random_trees(1), random_trees(2)):
        layout = Layout(trees, 0, packed=packed)
        seen = visible(layout.ends)
        padding = torch.ones(layout.ids.shape, dtype=torch.bool)
        for i, tree in enumerate(trees):
            for node in range(len(tree)):
                row, at = layout.at(i, node)
                path = {layout.at(i, other) for other in path_of(tree, node)}
                assert {(row, k) for k in seen[row, at].nonzero().flatten().tolist()} == path
                assert int(layout.ids[row, at]) == tree.tokens[node]
                assert int(layout.positions[row, at]) == tree.depths[node] == len(path) - 1
                padding[row, at] = False
        alone = torch.eye(seen.shape[-1], dtype=torch.bool)
        for row, at in padding.nonzero().tolist():
            assert torch.equal(seen[row, at], alone[at])


def test_blocks_cover_what_is_seen_and_full_ones_hold_nothing_else():
    whole = [Tree([Row([1], [2] * 3 * BLOCK)])]  # ends with a block
    for trees in (whole, *(random_trees(seed, rows=8 * (seed + 1)) for seed in range(6))):
        layout = Layout(trees, 0, packed=True)
        mask, seen = block_mask(layout.ends, "cpu"), visible(layout.ends)[0]
        tiles = seen.unfold(0, BLOCK, BLOCK).unfold(1, BLOCK, BLOCK).flatten(2)
        full = taken(mask.full_kv_num_blocks, mask.full_kv_indices)
        part = taken(mask.kv_num_blocks, mask.kv_indices)
        assert not (full & part).any()
        assert torch.equal(full | part, tiles.any(-1))
        assert torch.equal(full, tiles.all(-1))


def taken(counts, indices):
    """Return the table of blocks that a mask reads."""
    table = torch.zeros(indices.shape[-2:], dtype=torch.bool)
    for i, count in enumerate(counts[0, 0].tolist()):
        table[i, indices[0, 0, i, :count].long()] = True
    return table


def test_flex_attention_computes_what_the_dense_mask_does():
    from torch.nn.attention.flex_attention import flex_attention

    layout = Layout(random_trees(3), 0, packed=True)
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, layout.ids.shape[-1], 8).unbind()
    dense = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible(layout.ends).unsqueeze(1)
    )
    flex = flex_attention(query, key, value, block_mask=block_mask(layout.ends, "cpu"))
    torch.testing.assert_close(flex, dense)


@pytest.mark.parametrize("size", [8192, 16384])
def test_a_mask_of_blocks_holds_no_tensor_beyond_the_rows_own_size(size):
    prompt = [i % 31 for i in range(size - 600)]
    rows = [Row(prompt, [k] * 129) for k in range(4)]
    with Largest() as largest:
        layout = Layout([Tree(rows)], 0, packed=True)
        block_mask(layout.ends, "cpu")
    assert layout.ids.shape[-1] == size
    assert largest.numel <= 1.01 * size


def test_a_model_that_does_not_keep_to_the_mask_is_found_by_numbers():
    recipe = tiny_recipe("toy", data={"max_prompt_tokens": 64, "max_completion_tokens": 8})
    assert why_not(student(llama(torch.float32)), recipe) is None
    torch.manual_seed(0)
    window = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=20)).eval()
    said = why_not(student(window), recipe)
    assert said == "the attention of model mistral does not respect a block mask"
    assert (
        why_not(
            student(window),
            tiny_recipe(
                "toy",
                data={"max_prompt_tokens": 64, "max_completion_tokens": 8},
                shared_prefix="off",
            ),
        )
        == "the recipe says shared_prefix: off"
    )
    demands = recipe.model_copy(update={"shared_prefix": "on"})
    with pytest.raises(InputError, match="shared_prefix: on, but the attention of model mistral"):
        why_not(student(window), demands)
    # In bf16 rounding hides it, so the probe widens the model while it runs.
    narrow = copy.deepcopy(window).to(torch.bfloat16)
    before = {name: p.clone() for name, p in narrow.named_parameters()}
    assert why_not(student(narrow), recipe.model_copy(update={"dtype": "bf16"})) == said
    assert all(torch.equal(before[name], p) for name, p in narrow.named_parameters())
    assert why_not(student(llama(torch.bfloat16)), recipe) is None
    # A window that only the last tokens of a row reach, and one that no row reaches.
    late = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=68)).eval()
    assert why_not(student(late), recipe) == said
    wide = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=100)).eval()
    assert why_not(student(wide), recipe) is None
    gpt2 = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    )
    assert why_not(student(gpt2.eval()), recipe) is None


def test_a_device_that_is_full_says_nothing_about_a_model():
    """Or a run would read its rows apart, at several times the cost, and blame the model."""

    def full(_):
        raise torch.OutOfMemoryError("no memory")

    model = llama(torch.float32)
    model.model.layers[1].mlp.down_proj.forward = full
    with pytest.raises(torch.OutOfMemoryError):
        why_not(student(model), tiny_recipe("toy"))


def test_a_probe_leaves_the_model_as_it_was():
    recipe = tiny_recipe("toy")
    trained = llama(torch.float32).train()
    assert why_not(student(trained), recipe) is None
    assert trained.training
    # Also where a module refuses the mask while it is wide.
    narrow = llama(torch.bfloat16)
    before = {name: p.clone() for name, p in narrow.named_parameters()}

    def refuse(_):
        raise ValueError("no")

    narrow.model.layers[1].mlp.down_proj.forward = refuse
    assert why_not(student(narrow), recipe) == "model llama does not take a block mask (no)"
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}
    assert all(torch.equal(before[name], p) for name, p in narrow.named_parameters())


def test_states_know_a_gradient_that_is_not_finite():
    states = SharedStates(student(llama()), shared())
    assert states.finite()
    (piece, *_) = states.logps(ROWS)
    (piece.sum() * torch.inf).backward()
    assert not states.finite()


def test_without_flex_attention_a_sentence_says_what_to_do(monkeypatch):
    told = Policy(llama(torch.float32), pad=0, device="cuda")
    recipe = tiny_recipe("toy")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "triton" or None)
    assert shared_prefix._no_flex(told) is None
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    said = why_not(told, recipe)
    assert said is not None
    assert "no module triton" in said
    assert "set attention: eager" in said
    assert not told.packed
    told.packed = True
    with tree_attention(told):
        assert told.model.config._attn_implementation == NAME
    assert told.model.config._attn_implementation == "sdpa"
