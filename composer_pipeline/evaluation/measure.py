"""Measuring models at evaluation states: their greedy answers, and log p of recorded actions.

Shapes: B prompts, P positions, R answer tokens, V vocabulary. Prompts are padded on the left, so
that every answer starts in the same column; answers on the right. Positions count real tokens.
"""

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.evaluation.judge import Judge
from composer_pipeline.evaluation.results import BASE, StateResult
from composer_pipeline.evaluation.states import EvaluationState, Row, batches, rows_of
from composer_pipeline.training.chat_template import AnswerReader
from composer_pipeline.training.windows import Windows

#: Default positions of a batch.
BATCH_TOKENS = 16_384
#: Numbers in the log-probabilities of one answer of a batch: half a GiB in float32.
BATCH_LOGITS = 2**27


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

    def sums(self, answers: Sequence[Sequence[int]]) -> list[float]:
        """Return the log-probability of each answer as a whole, in nats."""
        return [
            float(token_logps(logps, answer).sum())
            for logps, answer in zip(self.logps(answers), answers, strict=True)
        ]

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


@dataclass(frozen=True)
class Arm:
    """One model of a comparison."""

    name: str
    #: A causal language model in evaluation mode; arms may share it.
    model: Any
    #: Whether its LoRA adapter, if any, is on.
    adapter: bool = True

    def active(self) -> AbstractContextManager[Any]:
        """Return a context in which the adapter is on or off, as the arm requires."""
        if self.adapter or not hasattr(self.model, "disable_adapter"):
            return nullcontext()
        off: AbstractContextManager[Any] = self.model.disable_adapter()
        return off


@dataclass(frozen=True)
class Measurements:
    """Results by arm, in the order of the states, and the reason for each dropped state id."""

    results: dict[str, list[StateResult]]
    dropped: dict[str, str]


def measure(
    states: Iterable[EvaluationState],
    arms: Sequence[Arm],
    windows: Windows,
    *,
    max_new_tokens: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Callable[[int, int], None] | None = None,
    known: Mapping[str, Sequence[StateResult]] | None = None,
) -> Measurements:
    """Measure every arm at every state that fits the windows.

    If the first arm is :data:`BASE`, the others get their KL to it. ``known`` has earlier results
    of arms at these states: only their log-probabilities, for the KL, are computed again.
    """
    tokenizer, limit = windows.tokenizer, max_new_tokens or windows.limits.max_completion_tokens
    judge = Judge(AnswerReader(tokenizer))
    rows, dropped = rows_of(windows, states)
    if not rows:
        reason = next(iter(dropped.values()), "there is none")
        raise InputError(f"none of {len(dropped)} evaluation states can be measured ({reason})")
    packed = batches(
        rows, tokens=batch_tokens, logits=BATCH_LOGITS, vocabulary=len(tokenizer), answer=limit
    )
    earlier = {name: {r.state_id: r for r in some} for name, some in (known or {}).items()}
    for name, some in earlier.items():
        if missing := [row for row in rows if row.state.state_id not in some]:
            raise InputError(f"known: {name!r} has no result of {missing[0].state.state_id}")
    found: dict[str, dict[str, StateResult]] = {arm.name: {} for arm in arms}
    for batch in packed:
        base: list[Tensor] | None = None
        for arm in arms:
            with arm.active():
                results, logps = _measure_batch(
                    arm, batch, tokenizer, judge, limit, base, earlier.get(arm.name)
                )
            base = logps if arm.name == BASE else base
            found[arm.name] |= {result.state_id: result for result in results}
            if progress is not None:
                progress(sum(map(len, found.values())), len(rows) * len(arms))
    order = [row.state.state_id for row in rows]
    return Measurements({name: [by[i] for i in order] for name, by in found.items()}, dropped)


def _measure_batch(
    arm: Arm, batch: Sequence[Row], tokenizer: Any, judge: Judge, limit: int,
    base: list[Tensor] | None, earlier: Mapping[str, StateResult] | None,
) -> tuple[list[StateResult], list[Tensor]]:  # fmt: skip
    # An arm's results at a batch, and its log-probabilities along the right actions.
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    prompted = PromptedModel(arm.model, [row.prompt_ids for row in batch], pad)
    if earlier is not None:
        results = [earlier[row.state.state_id] for row in batch]
        return results, prompted.logps([row.right_ids for row in batch])
    answers = prompted.greedy(end=judge.end, limit=limit)
    right = prompted.logps([row.right_ids for row in batch])
    wrong: list[float] = []
    if any(row.wrong_ids for row in batch):
        # Rows without a wrong action compute the right one instead, which is ignored.
        wrong = prompted.sums([row.wrong_ids or row.right_ids for row in batch])
    hinted: dict[int, float] = {}
    if with_hint := [i for i, row in enumerate(batch) if row.hinted_ids]:
        again = PromptedModel(arm.model, [batch[i].hinted_ids for i in with_hint], pad)
        sums = again.sums([batch[i].right_ids for i in with_hint])
        hinted = dict(zip(with_hint, sums, strict=True))
    results = []
    for i, row in enumerate(batch):
        state = row.state
        result = StateResult(
            state_id=state.state_id, session_id=state.session_id, kind=state.kind,
            answer=tokenizer.decode(answers[i]), ended=answers[i][-1] == judge.end,
            judgement=judge.judge(row, answers[i]),
            logp_right=float(token_logps(right[i], row.right_ids).sum()),
            tokens_right=len(row.right_ids),
            logp_wrong=wrong[i] if row.wrong_ids else None,
            tokens_wrong=len(row.wrong_ids) if row.wrong_ids else None,
            logp_right_hinted=hinted.get(i),
            kl=None if base is None else float(divergence(right[i], base[i]).mean()),
        )  # fmt: skip
        _check(arm, result)
        results.append(result)
    return results, right


def _check(arm: Arm, result: StateResult) -> None:
    numbers = (result.logp_right, result.logp_wrong, result.logp_right_hinted, result.kl)
    if not all(math.isfinite(number) for number in numbers if number is not None):
        raise ComposerError(
            f"model {arm.name!r} gives no finite log-probability at state {result.state_id}"
        )
