"""The loss of one optimizer step from a table of sequences and their log-probabilities.

Each row of the table holds its final coefficient, which contains every normaliser of the step. So
the loss is a plain sum over rows: how rows are split into micro-batches, over ranks, or packed
cannot change it. This is all that a trainer of another library needs besides the model's forward.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from composer_pipeline.losses.divergence import eopd, generalized_jsd, taid
from composer_pipeline.losses.policy import off_policy_mask, policy_gradient
from composer_pipeline.losses.preference import Pairs, loss_and_margin
from composer_pipeline.losses.sdpo import importance_ratio


class StepRow(msgspec.Struct, frozen=True):
    """One sequence of an optimizer step.

    Attributes:
        step: 0-based optimizer step of the run.
        channel: ``grpo``, ``sdpo``, ``dpo`` or ``sft``.
        unit: rows of one step and channel with the same unit belong together: the answers of a
            group, ``plain`` before ``hinted``, ``chosen`` before ``rejected``.
        role: ``answer``, ``plain``, ``hinted`` (read by SDPO's teacher alone), ``chosen``,
            ``rejected`` or ``demonstration``.
        prompt_ids: token ids before the response.
        response_ids: token ids of the response.
        start: first token of the trained span in the response.
        length: tokens of the span.
        coefficient: factor of the row's term, without the channel's weight: for an answer
            count / answers of its group / groups / mean length, for a chosen row the pair's factor
            / pairs, for plain rows and demonstrations 1 / tokens of the channel in the step; 0 for
            the others.
        advantage: of an answer: reward minus the group's mean.
        reference_logps: log p in nats of the span's tokens under the base model: of answers, and
            of plain rows.
        reference_logp: their sum, of chosen and rejected rows; 0 where the loss has no reference.
        rank: 1 for the best answer of its group, -1 for the worst, else 0; for metrics.
    """

    step: int
    channel: str
    unit: str
    role: str
    prompt_ids: list[int]
    response_ids: list[int]
    start: int
    length: int
    coefficient: float = 0.0
    advantage: float = 0.0
    reference_logps: list[float] = []
    reference_logp: float = 0.0
    rank: int = 0

    @property
    def size(self) -> int:
        """Tokens of the sequence."""
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True)
class StepOptions:
    """What the losses of a recipe need besides the table; the fields are the recipe's.

    ``weights`` are those of the channels; the others are of GRPO (``off_policy_threshold``), DPO
    (``dpo_…``) and SDPO.
    """

    weights: Mapping[str, float]
    off_policy_threshold: float | None = None
    dpo_loss: str = "sigmoid"
    dpo_beta: float = 0.1
    dpo_label_smoothing: float = 0.0
    dpo_simpo_gamma: float = 0.5
    divergence: str = "jsd"
    jsd_beta: float = 0.5
    temperature: float = 1.0
    importance_clip: float | None = None


def token_divergence(
    student_logits: Tensor, teacher_logits: Tensor, options: StepOptions, *, t: float = 0.0
) -> Tensor:
    """Return SDPO's divergence of each token in nats, (N,).

    Args:
        student_logits: (N, V), of the positions that predict a plain row's span.
        teacher_logits: (N, V), of those that predict the same tokens in its hinted row.
        options: kind, β and temperature.
        t: TAID's position between student and teacher.
    """
    if options.divergence == "taid":
        return taid(student_logits, teacher_logits, t=t)
    if options.divergence == "eopd":
        return eopd(student_logits, teacher_logits)
    return generalized_jsd(
        student_logits, teacher_logits, beta=options.jsd_beta, temperature=options.temperature
    )


def step_loss(
    rows: Sequence[StepRow],
    logps: Sequence[Tensor],
    divergences: Sequence[Tensor],
    options: StepOptions,
) -> tuple[Tensor, dict[str, float]]:
    """Return Σ weight · coefficient · term over rows, and sums for :func:`means`.

    The terms: of an answer the policy gradient at ratio 1 under the off-policy mask (``policy``),
    of a pair its preference loss, of a plain row Σ min(p / p_base, clip) · divergence, of a
    demonstration −Σ log p.

    Args:
        rows: of one step, or a part of it that splits no pair; hinted rows count nothing.
        logps: log p (length,) in nats of each row's span at temperature 1.
        divergences: (length,) of each plain row's span, from :func:`token_divergence`; other
            entries are not read.
        options: of the recipe.
    """
    by_role: dict[str, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        by_role[row.role].append(i)
    numbers: dict[str, float] = defaultdict(float)
    part = _Part(rows, logps, divergences, options, numbers)
    loss = torch.cat(list(logps))[:0].sum()  # 0, inside the graph
    for role, (channel, term) in _TERMS.items():
        if by_role[role]:
            loss = loss + options.weights.get(channel, 0.0) * term(part, by_role[role])
    return loss, dict(numbers)


#: Sums of :func:`step_loss` and the sums that count them.
_COUNTED = {
    "dpo_loss": "dpo_active", "dpo_accuracy": "dpo_active", "dpo_margin": "dpo_active",
    "dpo_chosen_logp": "dpo_active", "dpo_rejected_logp": "dpo_active",
    "grpo_masked": "grpo_answers", "grpo_best_gain": "grpo_best", "grpo_worst_gain": "grpo_worst",
}  # fmt: skip


def means(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the metrics of a step from the sums of its parts.

    ``<channel>_active`` counts tokens (pairs for DPO) with a gradient; ``dpo_…`` are means over
    pairs without their factors, ``grpo_best_gain`` and ``grpo_worst_gain`` means of log p − log
    p_base over the groups' best and worst answers, in nats.
    """
    sums: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            sums[name] += value
    counts = set(_COUNTED.values()) - {"dpo_active"}
    return {
        name: value / sums[_COUNTED[name]] if name in _COUNTED else value
        for name, value in sums.items()
        if name not in counts
    }


@dataclass(frozen=True)
class _Part:
    rows: Sequence[StepRow]
    logps: Sequence[Tensor]
    divergences: Sequence[Tensor]
    options: StepOptions
    numbers: dict[str, float]

    def coefficients(self, at: Sequence[int]) -> Tensor:
        return self.logps[at[0]].new_tensor([self.rows[i].coefficient for i in at])


def _answers(part: _Part, at: Sequence[int]) -> Tensor:
    rows, numbers = [part.rows[i] for i in at], part.numbers
    logps = pad_sequence([part.logps[i] for i in at], batch_first=True)
    before = torch.full_like(logps, math.nan)
    mask = torch.zeros_like(logps)
    for i, row in enumerate(rows):
        before[i, : len(row.reference_logps)] = logps.new_tensor(row.reference_logps)
        mask[i, : row.length] = 1
    advantages, kept = (
        logps.new_tensor([row.advantage for row in rows]),
        torch.ones_like(mask[:, 0]),
    )
    if part.options.off_policy_threshold is not None:
        kept = off_policy_mask(
            advantages, logps, before, mask, threshold=part.options.off_policy_threshold
        )
    numbers["grpo_answers"] += len(at)
    numbers["grpo_masked"] += float((1 - kept).sum())
    numbers["grpo_active"] += float((mask * (kept * advantages.ne(0)).unsqueeze(-1)).sum())
    gains = ((logps.detach() - before.nan_to_num()) * mask).sum(-1).tolist()
    for row, gain in zip(rows, gains, strict=True):
        if row.rank and row.reference_logps:
            side = "best" if row.rank > 0 else "worst"
            numbers[f"grpo_{side}_gain"] += gain
            numbers[f"grpo_{side}"] += 1
    weights = mask * (kept * part.coefficients(at)).unsqueeze(-1)
    return policy_gradient(logps, advantages, weights)


def _pairs(part: _Part, at: Sequence[int]) -> Tensor:
    options, numbers, rows = part.options, part.numbers, part.rows
    sides = [[part.logps[i + side].sum() for i in at] for side in (0, 1)]
    chosen, rejected = (torch.stack(side) for side in sides)
    tokens = [chosen.new_tensor([rows[i + side].length for i in at]) for side in (0, 1)]
    base = [chosen.new_tensor([rows[i + side].reference_logp for i in at]) for side in (0, 1)]
    losses, margin = loss_and_margin(
        options.dpo_loss, Pairs(chosen, rejected, *base, *tokens), beta=options.dpo_beta,
        gamma=options.dpo_simpo_gamma, label_smoothing=options.dpo_label_smoothing,
    )  # fmt: skip
    numbers["dpo_active"] += len(at)
    numbers["dpo_loss"] += float(losses.detach().sum())
    numbers["dpo_accuracy"] += float((margin > 0).sum())
    numbers["dpo_margin"] += float(margin.detach().sum())
    numbers["dpo_chosen_logp"] += float(chosen.detach().sum())
    numbers["dpo_rejected_logp"] += float(rejected.detach().sum())
    return (losses * part.coefficients(at)).sum()


def _spans(part: _Part, at: Sequence[int]) -> Tensor:
    loss = part.logps[at[0]].new_zeros(())
    for i in at:
        row, values = part.rows[i], part.divergences[i]
        if part.options.importance_clip is not None:
            base = values.new_tensor(row.reference_logps)
            values = values * importance_ratio(
                part.logps[i], base, clip=part.options.importance_clip
            )
        loss = loss + row.coefficient * values.sum()
        part.numbers["sdpo_active"] += row.length
    part.numbers["sdpo_loss"] += float(loss.detach())
    return loss


def _demonstrations(part: _Part, at: Sequence[int]) -> Tensor:
    sums = torch.stack([part.logps[i].sum() for i in at])
    loss = -(sums * part.coefficients(at)).sum()
    part.numbers["sft_loss"] += float(loss.detach())
    part.numbers["sft_active"] += sum(part.rows[i].length for i in at)
    return loss


#: Role of the row that holds a unit's coefficient, to its channel and term.
_TERMS = {
    "answer": ("grpo", _answers),
    "chosen": ("dpo", _pairs),
    "plain": ("sdpo", _spans),
    "demonstration": ("sft", _demonstrations),
}
