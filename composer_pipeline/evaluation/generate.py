"""A model that has read a batch of prompts: its greedy answers, and log p of given answers.

Shapes: B prompts, P positions, R answer tokens, V vocabulary. Prompts are padded on the left, so
that every answer starts in the same column; answers on the right. Positions count real tokens.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class PromptedModel:
    """A model and its cache of a batch of prompts of at least two tokens.

    The last token of a prompt is read together with the answer.
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
        """Return log-probabilities over the vocabulary at each position of each answer.

        One tensor (R, V) per answer, float32, in nats at temperature 1.
        """
        # Each token read predicts the next one; the prompt's last predicts the answer's first.
        read = [[last, *answer[:-1]] for last, answer in zip(self._last, answers, strict=True)]
        width = max(map(len, read))
        ids = self._tensor([[*row, *[self._pad] * (width - len(row))] for row in read])
        real = self._tensor([[1] * len(row) + [0] * (width - len(row)) for row in read])
        logits = self._next(ids, torch.cat([self._mask, real], -1), copy.deepcopy(self._cache))
        rows = (row[: len(a)].float() for row, a in zip(logits, answers, strict=True))
        # Not log_softmax: without AVX-512 it sums a vocabulary sequentially in float32, which made
        # a whole answer 1.4e-3 nats wrong.
        return [row - row.logsumexp(-1, keepdim=True) for row in rows]

    @torch.no_grad()
    def greedy(self, *, end: int, limit: int) -> list[list[int]]:
        """Return each prompt's greedy answer of at most ``limit`` tokens, including ``end``."""
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
        # Logits (B, R, V) after each of ``ids`` (B, R); the cache grows by them.
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        logits: Tensor = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache,
            use_cache=True,
        ).logits  # fmt: skip
        return logits

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long, device=self._model.device)


def token_logps(logps: Tensor, answer: Sequence[int]) -> Tensor:
    """Return the log-probability of each token of an answer: (R, V) and R ids give (R,)."""
    targets = torch.tensor(list(answer), device=logps.device).unsqueeze(-1)
    return logps.gather(-1, targets).squeeze(-1)


def divergence(logps: Tensor, base: Tensor) -> Tensor:
    """Return KL(model || base) at each position, in nats: two (R, V) give (R,)."""
    return (logps.exp() * (logps - base)).sum(-1)
