"""Measuring models at evaluation states: their greedy answers, and log p of recorded actions."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.evaluation.judge import Judge
from composer_pipeline.evaluation.results import StateResult
from composer_pipeline.evaluation.states import EvaluationState, Row, batches, rows_of
from composer_pipeline.training.chat_template import AnswerReader
from composer_pipeline.training.windows import Windows

if TYPE_CHECKING:
    from torch import Tensor

    from composer_pipeline.evaluation.generate import PromptedModel

#: Name of the arm that the others are compared with.
BASE = "base"
#: Default positions of a batch.
BATCH_TOKENS = 16_384
#: Numbers in the log-probabilities of one answer of a batch: half a GiB in float32.
BATCH_LOGITS = 2**27


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
    arm: Arm,
    batch: Sequence[Row],
    tokenizer: Any,
    judge: Judge,
    limit: int,
    base: "list[Tensor] | None",
    earlier: Mapping[str, StateResult] | None,
) -> "tuple[list[StateResult], list[Tensor]]":
    # An arm's results at a batch, and its log-probabilities along the right actions.
    from composer_pipeline.evaluation.generate import PromptedModel, divergence, token_logps

    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    prompted = PromptedModel(arm.model, [row.prompt_ids for row in batch], pad)
    if earlier is not None:
        results = [earlier[row.state.state_id] for row in batch]
        return results, prompted.logps([row.right_ids for row in batch])
    answers = prompted.greedy(end=judge.end, limit=limit)
    right = prompted.logps([row.right_ids for row in batch])
    wrong = _wrong(prompted, batch)
    hinted = _hinted(arm, batch, pad)
    results = []
    for i, row in enumerate(batch):
        state, kl = row.state, None
        if base is not None:
            kl = float(divergence(right[i], base[i]).mean())
        result = StateResult(
            state_id=state.state_id, session_id=state.session_id, kind=state.kind,
            answer=tokenizer.decode(answers[i]), ended=answers[i][-1] == judge.end,
            judgement=judge.judge(row, answers[i]),
            logp_right=float(token_logps(right[i], row.right_ids).sum()),
            tokens_right=len(row.right_ids),
            logp_wrong=wrong.get(i),
            tokens_wrong=len(row.wrong_ids) if row.wrong_ids else None,
            logp_right_hinted=hinted.get(i), kl=kl,
        )  # fmt: skip
        _check(arm, result)
        results.append(result)
    return results, right


def _wrong(prompted: "PromptedModel", batch: Sequence[Row]) -> dict[int, float]:
    # Row number to log p(wrong action).
    from composer_pipeline.evaluation.generate import token_logps

    if not any(row.wrong_ids for row in batch):
        return {}
    # Rows without a wrong action compute the right one instead, which is ignored.
    answers = [row.wrong_ids or row.right_ids for row in batch]
    sums = map(token_logps, prompted.logps(answers), answers)
    return {
        i: float(logps.sum())
        for i, (row, logps) in enumerate(zip(batch, sums, strict=True))
        if row.wrong_ids
    }


def _hinted(arm: Arm, batch: Sequence[Row], pad: int) -> dict[int, float]:
    # Row number to log p(right | hint).
    from composer_pipeline.evaluation.generate import PromptedModel, token_logps

    with_hint = [i for i, row in enumerate(batch) if row.hinted_ids]
    if not with_hint:
        return {}
    prompted = PromptedModel(arm.model, [batch[i].hinted_ids for i in with_hint], pad)
    answers = [batch[i].right_ids for i in with_hint]
    return {
        i: float(token_logps(logps, answer).sum())
        for i, logps, answer in zip(with_hint, prompted.logps(answers), answers, strict=True)
    }


def _check(arm: Arm, result: StateResult) -> None:
    numbers = (result.logp_right, result.logp_wrong, result.logp_right_hinted, result.kl)
    if not all(math.isfinite(number) for number in numbers if number is not None):
        raise ComposerError(
            f"model {arm.name!r} gives no finite log-probability at state {result.state_id}"
        )
