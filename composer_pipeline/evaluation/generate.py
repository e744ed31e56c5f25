"""Prompts that a model has read once: what it answers, and how likely it finds given answers.

Belongs here: one forward over a batch of prompts, and what goes on from its cache. Does not belong
here: which prompts (``evaluation.rows``), several models (``evaluation.measure``) and what an
answer is worth (``evaluation.judge``). The one module of this room that imports torch at once.

Shapes: B prompts, P positions, R answer tokens, V vocabulary. Prompts are padded on the left, so
that every answer begins in the same column; answers on the right. Positions count real tokens.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Asked:
    """A model that has read a batch of prompts.

    Args:
        model: a causal language model.
        prompts: token ids, at least two a prompt; the last one is read with the answer.
        pad: id of padding positions; the mask hides them.
    """

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]], pad: int) -> None:
        self._model, self._pad = model, pad
        self._last = [prompt[-1] for prompt in prompts]
        width = max(len(prompt) for prompt in prompts) - 1
        ids = [[pad] * (width + 1 - len(p)) + list(p[:-1]) for p in prompts]
        mask = [[0] * (width + 1 - len(p)) + [1] * (len(p) - 1) for p in prompts]
        self._mask = self._tensor(mask)
        positions = (self._mask.cumsum(-1) - 1).clamp(min=0)
        with torch.no_grad():
            self._cache = model(
                input_ids=self._tensor(ids), attention_mask=self._mask, position_ids=positions,
                use_cache=True, logits_to_keep=1,
            ).past_key_values  # fmt: skip

    @torch.no_grad()
    def logps(self, answers: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return the log-probabilities of every token at every place of each answer.

        Args:
            answers: one for each prompt, at least one token each.

        Returns:
            One tensor (R, V) an answer, float32, in nats at temperature 1.
        """
        # Each token that is read predicts the next one, the prompt's last the answer's first.
        read = [[last, *answer[:-1]] for last, answer in zip(self._last, answers, strict=True)]
        width = max(map(len, read))
        ids = self._tensor([[*row, *[self._pad] * (width - len(row))] for row in read])
        real = self._tensor([[1] * len(row) + [0] * (width - len(row)) for row in read])
        logits = self._next(ids, torch.cat([self._mask, real], -1), copy.deepcopy(self._cache))
        rows = (row[: len(a)].float() for row, a in zip(logits, answers, strict=True))
        # Not log_softmax: without AVX-512 it adds up a vocabulary one after the other in float32,
        # and a whole answer was 1.4e-3 nats off.
        return [row - row.logsumexp(-1, keepdim=True) for row in rows]

    @torch.no_grad()
    def greedy(self, *, end: int, limit: int) -> list[list[int]]:
        """Return the likeliest token after token, for each prompt, up to and including ``end``.

        Args:
            end: id that ends an answer.
            limit: tokens of an answer at most; one that was cut does not end with ``end``.
        """
        cache, mask = copy.deepcopy(self._cache), self._mask
        ids = self._tensor([[last] for last in self._last])
        answers: list[list[int]] = [[] for _ in self._last]
        for _ in range(limit):
            mask = torch.cat([mask, torch.ones_like(ids)], -1)
            ids = self._next(ids, mask, cache).argmax(-1)
            for answer, token in zip(answers, ids[:, 0].tolist(), strict=True):
                if end not in answer[-1:]:
                    answer.append(token)
            if all(answer[-1] == end for answer in answers):
                break
        return answers

    def _next(self, ids: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Return the logits (B, R, V) behind each of ``ids`` (B, R); the cache grows by them."""
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        logits: Tensor = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
            use_cache=True,
        ).logits  # fmt: skip
        return logits

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self._model.device)


def of_tokens(logps: Tensor, answer: Sequence[int]) -> Tensor:
    """Return the log-probability of each token of an answer: (R, V) and R ids to (R,)."""
    targets = torch.tensor(list(answer), device=logps.device).unsqueeze(-1)
    return logps.gather(-1, targets).squeeze(-1)


def divergence(logps: Tensor, base: Tensor) -> Tensor:
    """Return KL(model || base) at each place, in nats: two (R, V) to (R,)."""
    return (logps.exp() * (logps - base)).sum(-1)
