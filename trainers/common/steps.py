"""The neutral table of a run: one row a sequence of a step, with its final coefficient.

A pure function of recipe, rows, base scores and slot, without a tokenizer or a model: what a
trainer of another library takes instead of the channels. Answers sampled from the policy cannot be
in it. No TRL.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer_pipeline.losses.step import StepOptions, StepRow
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import (
    Demonstration,
    Group,
    Hint,
    Pair,
    TrainingData,
    column_of,
    item_lengths_of,
    loss_factors,
)
from trainers.common.base_scores import BaseScores
from trainers.common.rows import planned, rows_of, sizes_of

#: Rewards of a group that differ by less count as equal.
FLAT = 1e-9


@dataclass(frozen=True)
class Answer:
    """A distinct answer of a group.

    ``advantage`` is its reward, in [0, 1], minus the group's mean. ``share`` is its part of the
    window: count / answers of its group / groups. ``sampling`` is log p of its tokens under the
    model that gave it, or under the base model where that is unknown; empty for a fresh sample.
    ``rank`` is 1 for the best of its group, -1 for the worst, else 0.
    """

    id: str
    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    reward: float
    advantage: float
    share: float
    sampling: Sequence[float]
    rank: int = 0


def graded(
    id_: str,
    prompt_ids: Sequence[int],
    completions: Sequence[Sequence[int]],
    counts: Sequence[int],
    rewards: Sequence[float],
    sampling: Sequence[Sequence[float]],
    groups: int,
) -> list[Answer]:
    """Return a group's distinct answers with advantages over the mean reward by count."""
    if not counts:
        return []
    mean, answers = _mean(rewards, counts), sum(counts)
    best, worst = rewards.index(max(rewards)), rewards.index(min(rewards))
    ranks = {best: 1, worst: -1} if rewards[best] - rewards[worst] > FLAT else {}
    return [
        Answer(
            id_, prompt_ids, completion, reward, reward - mean if ranks else 0.0,
            count / answers / groups, logps, ranks.get(i, 0),
        )
        for i, (completion, count, reward, logps) in enumerate(
            zip(completions, counts, rewards, sampling, strict=True)
        )
    ]  # fmt: skip


def mean_length(groups: Sequence[Group]) -> float:
    """Return the mean number of tokens of all recorded answers, weighted by their counts."""
    counts = [count for of_group in column_of(groups, "counts") for count in of_group]
    return _mean(item_lengths_of(groups, "completions"), counts)


def _mean(values: Sequence[float], counts: Sequence[int]) -> float:
    return sum(v * n for v, n in zip(values, counts, strict=True)) / sum(counts)


class Steps:
    """The rows of each optimizer step of a replica, made when asked for; see :class:`StepRow`.

    Args:
        recipe: of the run; GRPO's answers are the recorded ones.
        data: rows of every weighted channel, after the hint gate.
        base: scores of the rows under the base model.
        slot: 0-based replica.
    """

    def __init__(
        self, recipe: TrainingRecipe, data: TrainingData, base: BaseScores, slot: int = 0
    ) -> None:
        self._data, self._length = data, recipe.total_steps
        self._per_step = recipe.channels.rows_per_step()
        self._plans = planned(recipe, data, slot)
        self._references = base.references() if recipe.channels.dpo.needs_reference else None
        self._answers, self._failed = base.answers(), base.failed()
        on = self._per_step
        self._factors = loss_factors(data.pairs) if "dpo" in on else {}
        self._mean_length = mean_length(data.groups) if "grpo" in on else 1.0

    def __iter__(self) -> Iterator[list[StepRow]]:
        return map(self.rows, range(self._length))

    def rows(self, step: int) -> list[StepRow]:
        """Return the rows of optimizer step ``step`` of the run, 0-based."""
        made: list[StepRow] = []
        for channel, count in self._per_step.items():
            numbers = self._plans[channel][step * count : (step + 1) * count]
            window = [rows_of(self._data, channel)[i] for i in numbers]
            tokens = sum(size.selected for row in window for size in sizes_of(row, channel))
            for unit, row in enumerate(window):
                common = {"step": step, "channel": channel, "unit": f"{unit}/{row.id}"}
                made += self._rows(row, common, len(window), tokens)
        return made

    def _rows(self, row: Any, common: dict[str, Any], count: int, tokens: int) -> Iterator[StepRow]:
        if isinstance(row, Group):
            scores = self._answers[row.id]
            answers = graded(
                row.id, row.prompt_ids, row.completions, row.counts, row.rewards, scores, count
            )
            # A group of equal rewards has no gradient, but the coefficients count it.
            for answer in answers if any(answer.rank for answer in answers) else ():
                yield _row(
                    common, "answer", row.prompt_ids, answer.response_ids, rank=answer.rank,
                    coefficient=answer.share / self._mean_length, advantage=answer.advantage,
                    reference_logps=list(answer.sampling),
                )  # fmt: skip
        elif isinstance(row, Pair):
            base = self._references[row.id] if self._references is not None else (0.0, 0.0)
            share = self._factors[row.id] / count
            sides = (("chosen", row.chosen_ids, share), ("rejected", row.rejected_ids, 0.0))
            for (role, ids, factor), logp in zip(sides, base, strict=True):
                yield _row(
                    common, role, row.prompt_ids, ids, coefficient=factor, reference_logp=logp
                )
        elif isinstance(row, Hint):
            span = {"start": row.start, "length": row.length}
            known = self._failed[row.id][row.start : row.start + row.length]
            yield _row(
                common, "plain", row.prompt_ids, row.response_ids, coefficient=1.0 / tokens,
                reference_logps=known, **span,
            )  # fmt: skip
            yield _row(common, "hinted", row.teacher_prompt_ids, row.response_ids, **span)
        elif isinstance(row, Demonstration):
            yield _row(
                common, "demonstration", row.prompt_ids, row.response_ids, coefficient=1 / tokens
            )


def _row(
    common: Mapping[str, Any], role: str, prompt: Sequence[int], response: Sequence[int],
    **fields: Any,
) -> StepRow:  # fmt: skip
    whole = {"start": 0, "length": len(response)}
    ids = {"prompt_ids": list(prompt), "response_ids": list(response)}
    return StepRow(role=role, **{**common, **ids, **whole, **fields})


def options_of(recipe: TrainingRecipe) -> StepOptions:
    """Return the losses' options of a recipe."""
    channels = recipe.channels
    dpo, sdpo = channels.dpo, channels.sdpo
    return StepOptions(
        weights=channels.weights(), off_policy_threshold=channels.grpo.off_policy_threshold,
        dpo_loss=dpo.loss, dpo_beta=dpo.beta, dpo_label_smoothing=dpo.label_smoothing,
        dpo_simpo_gamma=dpo.simpo_gamma, divergence=sdpo.divergence, jsd_beta=sdpo.jsd_beta,
        temperature=sdpo.temperature, importance_clip=sdpo.importance_clip,
    )  # fmt: skip
