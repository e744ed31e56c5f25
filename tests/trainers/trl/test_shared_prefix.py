"""A tree's states and gradients are those of its sequences; its masks agree; it says when not."""

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
from trainers.trl import shared_prefix
from trainers.trl.policy import Policy
from trainers.trl.rows import Row
from trainers.trl.shared_prefix import (
    Item,
    SharedStates,
    Tree,
    mask_of,
    masked_attention,
    padded_trees,
    trees_of,
    visible,
    why_not,
)

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


def test_masks_show_the_path_and_nothing_else():
    trees = [of.tree for of in shared()]
    seen = visible(trees)
    for i, tree in enumerate(trees):
        for node in range(len(tree)):
            path, at = set(), node
            while at >= 0:
                path.add(at)
                at = tree.parents[at]
            assert set(seen[i, node].nonzero().flatten().tolist()) == path
    b, q, k = torch.meshgrid(*(torch.arange(n) for n in seen.shape), indexing="ij")
    flex = mask_of(trees, "cpu")(b, torch.zeros_like(b), q, k)
    for i, tree in enumerate(trees):
        real = slice(0, len(tree))
        assert torch.equal(flex[i, real, real], seen[i, real, real])
        assert not flex[i, real, len(tree) :].any()
    assert flex.diagonal(dim1=1, dim2=2).all()
    ids, positions = padded_trees(trees, 0, "cpu")
    assert ids.shape == positions.shape == seen.shape[:2]
    assert positions[0].max() < ids.shape[1] - 1  # they begin again at a branch


def test_flex_attention_computes_what_the_dense_mask_does():
    from torch.nn.attention.flex_attention import flex_attention

    from trainers.trl.shared_prefix import block_mask

    trees = [of.tree for of in shared()]
    width = max(map(len, trees))
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 1, width, 8).unbind()
    dense = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=visible(trees).unsqueeze(1)
    )
    flex = flex_attention(query, key, value, block_mask=block_mask(trees, "cpu"))
    for i, tree in enumerate(trees):
        torch.testing.assert_close(flex[i, :, : len(tree)], dense[i, :, : len(tree)])


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
    # A window that no row of the run reaches does no harm.
    wide = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=100)).eval()
    assert why_not(student(wide), recipe) is None
    gpt2 = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    )
    assert why_not(student(gpt2.eval()), recipe) is None


def test_without_flex_attention_a_sentence_says_what_to_do(monkeypatch):
    told = Policy(llama(torch.float32), pad=0, device="cuda")
    recipe = tiny_recipe("toy")
    monkeypatch.setattr(shared_prefix, "_has", lambda name: name != "triton")
    said = why_not(told, recipe)
    assert said is not None
    assert "no module triton" in said
    assert "set attention: eager" in said
    with masked_attention(told):
        assert told.model.config._attn_implementation == "flex_attention"
    assert told.model.config._attn_implementation == "sdpa"
