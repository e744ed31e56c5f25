"""Rows with equal beginnings as trees of tokens that go through the backbone once.

A channel's backward ends at the states, which are a leaf. The backbone's own backward runs once
for all channels, or once for each where their gradients are measured.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.common.attention import can_compile, is_fused
from trainers.common.policy import Policy, tree_attention
from trainers.common.ranks import is_sharded
from trainers.common.rows import Row, backbone_and_head
from trainers.common.trees import Item, Shared


class SharedStates(Policy):
    """A policy whose states are computed already; every requested row is in ``batch``."""

    shared = True

    def __init__(self, policy: Policy, batch: Sequence[Shared]) -> None:
        super().__init__(
            policy.model, pad=policy.pad, device=policy.device, autocast=policy._autocast
        )
        self.packed, self.widened = policy.packed, policy.widened
        self._trees = [of.tree for of in batch]
        # Only states that predict something are kept: their rows in the leaf, by tree and node.
        wanted = sorted(
            {
                (i, node)
                for i, of in enumerate(batch)
                for item in of.items
                for row in item.sequences
                for node in of.tree.places(row)
            }
        )
        self._index = {place: i for i, place in enumerate(wanted)}
        self._graph = self.read(self._trees, wanted)
        self._leaf = self._graph.detach().requires_grad_(self._graph.requires_grad)
        self._tree_of = {
            _key(row): i for i, of in enumerate(batch) for item in of.items
            for row in item.sequences
        }  # fmt: skip

    def states(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Return the states (N, H) that predict the rows' selected tokens, and these (N,)."""
        places, ids = list[int](), list[int]()
        for row in rows:
            tree = self._tree_of[_key(row)]
            places += [self._index[tree, node] for node in self._trees[tree].places(row)]
            ids += row.response[row.start : row.start + row.size]
        at = torch.tensor(places, dtype=torch.long, device=self.device)
        return self._leaf[at], torch.tensor(ids, dtype=torch.long, device=self.device)

    def finite(self) -> bool:
        """Return whether the gradient that has reached the states is finite."""
        return self._leaf.grad is None or bool(self._leaf.grad.isfinite().all())

    def backward(self, *, again: bool, always: bool = False) -> None:
        """Send the states' gradient, if any or ``always``, through the backbone."""
        grad = self._leaf.grad
        if grad is None and always:
            grad = torch.zeros_like(self._leaf)
        if grad is not None:
            torch.autograd.backward(self._graph, grad, retain_graph=again)
            self._leaf.grad = None


def _key(row: Row) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
    return tuple(row.prompt), tuple(row.response), row.start, row.size


#: Largest relative difference of states: of the model in float32, and of the compiled attention,
#: or a model that cannot be widened, in 16 bits: there rounding alone was seen to make 0.03.
NEAR, NEAR_HALF = 1e-4, 0.3
HALF = (torch.bfloat16, torch.float16)
#: Prompt tokens of the probe; more where an attention window is shorter than the run's rows.
PROMPT = 12
#: What models raise that do not support such a mask.
REFUSALS = (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError)


def why_not(policy: Policy, recipe: TrainingRecipe) -> str | None:
    """Return why rows cannot share forwards, or ``None``; raises where the recipe demands it."""
    if recipe.shared_prefix == "off":
        return "the recipe says shared_prefix: off"
    reason = _no_flex(policy) or _no_mask(policy, recipe)
    if reason and recipe.shared_prefix == "on":
        raise InputError(f"recipe field shared_prefix: on, but {reason}; use auto or off")
    policy.packed = reason is None and is_fused(policy.model, policy.device)
    return reason


def _no_flex(policy: Policy) -> str | None:
    if can_compile() or not is_fused(policy.model, policy.device):
        return None
    return (
        "FlexAttention is missing (no module triton): install a CUDA build of torch with triton,"
        " or set attention: eager"
    )


@torch.no_grad()
def _no_mask(policy: Policy, recipe: TrainingRecipe) -> str | None:
    """Try the model in float32 with a dense mask, and where it is fused the compiled call too."""
    model, config = policy.model, backbone_and_head(policy.model)[0].config
    rows, shared, trained = probe_rows(config, recipe), Shared(), model.training
    shared.take(Item("", None, rows), 0)
    exact = not any(map(is_sharded, model.parameters()))
    model.eval()
    try:
        with _widened(policy) if exact else nullcontext():
            apart = torch.cat([policy.states([row])[0] for row in rows]).float()
            off = [_distance(SharedStates(policy, [shared]).states(rows)[0], apart)]
        if is_fused(model, policy.device):
            policy.packed = True
            with tree_attention(policy):
                off.append(_distance(SharedStates(policy, [shared]).states(rows)[0], apart))
    except torch.OutOfMemoryError:
        raise
    except REFUSALS as error:
        return f"model {config.model_type} does not take a block mask ({error})"
    finally:
        policy.packed = False
        model.train(trained)
    if not off[0] < (NEAR if exact else NEAR_HALF) or not off[-1] < NEAR_HALF:
        return f"the attention of model {config.model_type} does not respect a block mask"
    return None


def _distance(states: Tensor, wanted: Tensor) -> float:
    return float((states.float() - wanted).norm() / wanted.norm())


@contextmanager
def _widened(policy: Policy) -> Iterator[None]:
    """Run a 16-bit model in float32: the parameters of a module are widened while it runs."""
    narrow: dict[Tensor, Tensor] = {}

    def widen(module: Any, _: Any) -> None:
        for parameter in module.parameters(recurse=False):
            narrow[parameter] = parameter.data
            parameter.data = parameter.data.float()

    def restore(module: Any, *_: Any) -> None:
        for parameter in module.parameters(recurse=False):
            parameter.data = narrow.pop(parameter)

    hooks, autocast = [], policy._autocast
    policy._autocast = nullcontext
    policy.widened = next(policy.model.parameters()).dtype in HALF
    for module in policy.model.modules():
        if any(p.dtype in HALF for p in module.parameters(recurse=False)):
            hooks += [
                module.register_forward_pre_hook(widen),
                module.register_forward_hook(restore),
            ]
    try:
        yield
    finally:
        policy._autocast, policy.widened = autocast, False
        for hook in hooks:
            hook.remove()
        for parameter, data in narrow.items():  # of a forward that was refused
            parameter.data = data


def probe_rows(config: Any, recipe: TrainingRecipe) -> list[Row]:
    """Return two answers to one prompt that is longer than any attention window."""
    longest = recipe.data.max_prompt_tokens + recipe.data.max_completion_tokens
    reach = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    bites = [size for size in reach if isinstance(size, int) and 0 < size < longest]
    prompt = max([PROMPT, *(min(2 * size, longest) for size in bites)])
    words = min(config.vocab_size, 32)
    return [
        Row([(7 * i + 3) % words for i in range(prompt)], [(i * i + k) % words for i in range(5)])
        for k in (1, 2)
    ]
