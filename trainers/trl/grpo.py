"""The GRPO channel: answers to one state, each pushed by its reward against its group's mean.

The clipped loss and the off-policy mask are TRL's (``GRPOTrainer._compute_loss``). Sampled answers
come from the policy of the step and are used once, so their ratio is 1. Recorded answers were
not sampled from the policy: their ratio is taken as 1 and nothing clips, so this is an offline
surrogate, not policy gradient. What bounds it is TRL's off-policy mask (DeepSeek-V3.2): an answer
below its group's mean is left alone once the mean log-probability of its tokens has fallen by
more than the threshold below the base model's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer

from composer_pipeline.training.recipe import Grpo as Options
from composer_pipeline.training.rows import Group
from trainers.common.channels import Channel
from trainers.common.policy import Policy
from trainers.common.rows import Row
from trainers.common.sampling import Sampler
from trainers.common.steps import Answer, graded

#: Distinct answers that the model sampled to a state, their counts and rewards.
Sampled = tuple[list[list[int]], list[int], list[float]]
#: TRL's loss of a batch, and log p (B, T) of its tokens, which it computed or was given.
TrlLoss = Callable[[dict[str, Tensor], Tensor | None], tuple[Tensor, Tensor]]


class Grpo(Channel[Answer]):
    """TRL's loss on the groups of a window, normalised by a constant length (Dr. GRPO).

    The loss of a window of G groups is Σ_groups 1/G · Σ_answers count/n · Σ_tokens ℓ / L with
    n answers in the group and L the mean length of the recorded answers of the whole data. So
    it depends neither on how long answers may be nor on how a window is split.

    Args:
        trl_loss: TRL's loss.
        limit: TRL's ``max_completion_length``, which its own normaliser holds.
        length: L, tokens.
        options: the recipe's channel.
        base_logps: state id to log p of each recorded answer's tokens under the base model.
        sampler: samples answers from the policy; ``None`` takes the recorded ones alone.
        args: of :class:`Channel`.
    """

    name = "grpo"

    def __init__(
        self,
        *args: Any,
        trl_loss: TrlLoss,
        limit: int,
        length: float,
        options: Options,
        base_logps: Mapping[str, Sequence[Sequence[float]]],
        sampler: Sampler | None = None,
    ) -> None:
        super().__init__(*args)
        self._trl_loss, self._limit, self._length = trl_loss, limit, length
        self._options, self._base_logps, self._sampler = options, base_logps, sampler

    def window(self, policy: Policy, step: int) -> list[Answer]:
        """Return the answers of the step's groups."""
        self.begin()
        groups: list[Group] = self.drawn(step)
        sampled = self._sampler.sample(groups, step) if self._sampler else [None] * len(groups)
        window: list[Answer] = []
        for group, own in zip(groups, sampled, strict=True):
            answers = self._answers(group, own, len(groups))
            flat = not any(answer.rank for answer in answers)
            self.numbers["zero_variance"] += flat / len(groups)
            rewards = [answer.reward * answer.share for answer in answers]
            self.numbers["reward"] += sum(rewards)
            if own is not None:
                self.numbers["sampled"] += len(own[0])
            # A group of equal rewards has no gradient, but the normaliser counts it.
            window += [] if flat else answers
        for name, value in self._sampler.parts.items() if self._sampler else ():
            self.numbers[f"reward_{name}"] = value
        return window

    def _answers(self, group: Group, own: Sampled | None, groups: int) -> list[Answer]:
        """Return the distinct answers of a group, recorded and sampled."""
        answers: dict[tuple[int, ...], tuple[int, float, Sequence[float]]] = {}
        if self._options.recorded:
            for ids, count, reward, logps in zip(
                group.completions, group.counts, group.rewards, self._base_logps[group.id],
                strict=True,
            ):  # fmt: skip
                given = answers.get(tuple(ids), (0, reward, logps))[0]
                answers[tuple(ids)] = (given + count, reward, logps)
        for ids, count, reward in zip(*(own or ([], [], [])), strict=True):
            before = answers.get(tuple(ids), (0, reward, ()))
            answers[tuple(ids)] = (before[0] + count, before[1], before[2])
        counts = [count for count, _, _ in answers.values()]
        rewards = [reward for _, reward, _ in answers.values()]
        sampling = [list(values) for _, _, values in answers.values()]
        return graded(group.id, group.prompt_ids, list(answers), counts, rewards, sampling, groups)

    def size(self, row: Answer) -> int:
        """Return the tokens of prompt and answer."""
        return len(row.prompt_ids) + len(row.response_ids)

    def sequences(self, row: Answer) -> list[Row]:
        """Return the answer."""
        return [Row(row.prompt_ids, row.response_ids)]

    def loss(self, policy: Policy, rows: Sequence[Answer], window: Sequence[Answer]) -> Tensor:
        """Return the micro-batch's part, through TRL's loss."""
        batch = self._batch(policy, rows)
        known = self._known(policy, rows) if policy.shared else None
        loss, logps = self._trl_loss(batch, known)
        self._note(batch, logps.detach(), rows, window)
        return loss

    def finish(self, window: Sequence[Answer]) -> dict[str, float]:
        """Return the numbers without the loss, which at ratio 1 says nothing about the policy."""
        for side in ("best", "worst"):
            if f"{side}_logp" in self.numbers:
                before = self.numbers[f"{side}_logp_before"]
                self.numbers[f"{side}_gain"] = self.numbers[f"{side}_logp"] - before
        self.numbers.pop("loss")
        return super().finish(window)

    def _known(self, policy: Policy, rows: Sequence[Answer]) -> Tensor:
        """Return log p of the answers' tokens, (B, T), which TRL would run the model for."""
        sequences = [side for row in rows for side in self.sequences(row)]
        return pad_sequence(policy.logps(sequences), batch_first=True)

    def _batch(self, policy: Policy, rows: Sequence[Answer]) -> dict[str, Tensor]:
        """Return TRL's batch; the advantages hold what TRL's normaliser lacks."""
        prompt, prompt_mask = _pad([r.prompt_ids for r in rows], policy, left=True)
        answer, answer_mask = _pad([r.response_ids for r in rows], policy, left=False)
        # NaN is no evidence for TRL's mask: fresh samples are on policy.
        sampling = torch.full(answer.shape, torch.nan, dtype=torch.float32)
        for i, row in enumerate(rows):
            sampling[i, : len(row.sampling)] = torch.tensor(row.sampling, dtype=torch.float32)
        # TRL divides by rows · limit.
        scale = len(rows) * self._limit / self._length
        advantages = torch.tensor([r.advantage * r.share * scale for r in rows])
        return {
            "prompt_ids": prompt, "prompt_mask": prompt_mask,
            "completion_ids": answer, "completion_mask": answer_mask,
            "advantages": advantages.to(policy.device),
            "sampling_per_token_logps": sampling.to(policy.device),
            "num_items_in_batch": answer_mask.sum(),
        }  # fmt: skip

    def _note(
        self, batch: dict[str, Tensor], logps: Tensor, rows: Sequence[Answer],
        window: Sequence[Answer],
    ) -> None:  # fmt: skip
        numbers, mask = self.numbers, batch["completion_mask"]
        kept = torch.ones((len(rows), 1), device=mask.device)
        if self._options.off_policy_threshold is not None:
            kept = GRPOTrainer.get_off_policy_mask(
                advantages=batch["advantages"].unsqueeze(1),
                per_token_logps=logps,
                sampling_per_token_logps=batch["sampling_per_token_logps"],
                mask=mask,
                off_policy_threshold=self._options.off_policy_threshold,
            )
        pushing = batch["advantages"].ne(0).unsqueeze(1)
        numbers["active"] += float((mask * pushing * kept).sum())
        numbers["masked"] += float((1 - kept.float()).sum()) / len(window)
        sums = (logps * mask).sum(-1).tolist()
        for row, now in zip(rows, sums, strict=True):
            if not (row.rank and row.sampling):
                continue
            side = "best" if row.rank > 0 else "worst"
            ranked = sum(other.rank == row.rank and bool(other.sampling) for other in window)
            numbers[f"{side}_logp"] += now / ranked
            numbers[f"{side}_logp_before"] += sum(row.sampling) / ranked


def _pad(
    sequences: Sequence[Sequence[int]], policy: Policy, *, left: bool
) -> tuple[Tensor, Tensor]:
    """Return ids and mask (B, S), padded on the left or on the right."""
    width = max(len(sequence) for sequence in sequences)
    ids = torch.full((len(sequences), width), policy.pad, dtype=torch.long)
    mask = torch.zeros((len(sequences), width), dtype=torch.long)
    for i, sequence in enumerate(sequences):
        where = slice(width - len(sequence), width) if left else slice(0, len(sequence))
        ids[i, where] = torch.tensor(sequence, dtype=torch.long)
        mask[i, where] = 1
    return ids.to(policy.device), mask.to(policy.device)
