"""The composer loss in one optimizer step: GRPO + α·SDPO + β·trace-replay DPO.

Belongs here: ``ComposerTrainer``, TRL's ``GRPOTrainer`` with two more channels. Does not
belong here: building windows (``composer_pipeline.training.data``), processes and DiLoCo.

How a step works. TRL's own loss runs on recorded groups that ``rollout_func`` returns in
place of generations. A window of preference pairs and of hinted error turns is drawn once
for each optimizer step and split over its micro-batches; every term is normalised by the
whole window, so the loss does not depend on gradient accumulation. TRL expects a loss that
is already scaled for accumulation.

Known bias: TRL takes the importance ratio of recorded groups as 1, as if the current policy
had sampled them.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from composer_pipeline.errors import ComposerError
from composer_pipeline.files import replace
from composer_pipeline.losses.fused import fused_divergence
from composer_pipeline.losses.preference import dpo_sigmoid, token_logps
from composer_pipeline.training.data import Group, Hint, Pair, TrainingData, loss_factors
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.batches import Row, Stream, backbone_and_head, response_states
from trainers.trl.loading import lora_config

#: Called after each optimizer step with the step and its numbers by channel.
OnStep = Callable[[int, dict[str, float]], None]
#: Pairs whose reference log-probabilities are computed at a time.
REFERENCE_BATCH = 2


class EmptyChannel(ComposerError):
    """A channel with a weight has seen no active token for too long."""


@dataclass
class _Window:
    """The rows of one optimizer step besides the groups, and what the step has seen."""

    pairs: list[Pair]
    hints: list[Hint]
    loss: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    active: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    extra: dict[str, float] = field(default_factory=lambda: defaultdict(float))


class ComposerTrainer(GRPOTrainer):
    """GRPO, SDPO and DPO in one step.

    Args:
        model: a causal language model instance without adapter.
        recipe: weights, batch sizes, lengths and the adapter.
        data: windows of every weighted channel.
        output_dir: where transformers may write; nothing is saved by itself.
        tokenizer: only for padding and the end token.
        slot: 0-based replica; decides which rows it sees.
        skip_steps: optimizer steps of earlier rounds that are already committed.
        callbacks: for example DiLoCo's.
        on_step: called after each optimizer step.
        reference_file: where reference log-probabilities are kept between restarts.

    Raises:
        InputError: the model's head is of a kind that the losses do not support.
    """

    def __init__(
        self,
        *,
        model: Any,
        recipe: TrainingRecipe,
        data: TrainingData,
        output_dir: Path,
        tokenizer: Any,
        slot: int = 0,
        skip_steps: int = 0,
        callbacks: Sequence[Any] = (),
        on_step: OnStep | None = None,
        reference_file: Path | None = None,
    ) -> None:
        backbone_and_head(model)
        self.recipe, self.weights = recipe, recipe.channels.weights()
        self._on_step = on_step
        self._empty: dict[str, int] = dict.fromkeys(self.weights, 0)
        self._window = _Window([], [])
        steps = recipe.steps - skip_steps
        sizes = {
            "grpo": recipe.channels.grpo.groups_per_step,
            "sdpo": recipe.channels.sdpo.rows_per_step,
            "dpo": recipe.channels.dpo.pairs_per_step,
        }
        sources: dict[str, Sequence[Any]] = {
            "grpo": data.groups, "sdpo": data.hints, "dpo": data.pairs,
        }  # fmt: skip
        taken: dict[str, list[Any]] = {}
        for channel in self.weights:
            stream = Stream(
                sources[channel], seed=recipe.seed, slot=slot, replicas=recipe.diloco.replicas
            )
            stream.take(skip_steps * sizes[channel])
            taken[channel] = stream.take(steps * sizes[channel])
        self._sizes = sizes
        self._hints: list[Hint] = taken.get("sdpo", [])
        self._pairs: list[Pair] = taken.get("dpo", [])
        # Over all rows, not a replica's share, so that every replica weights alike.
        self._factors = loss_factors(data.pairs) if self._pairs else {}
        size = recipe.channels.grpo.group_size
        groups = [_exactly(group, size) for group in taken.get("grpo", [])]
        self._groups = {str(i): group for i, group in enumerate(groups)}
        # One prompt a group in training order; TRL repeats each for its generations.
        prompts = list(self._groups) or ["none"] * steps * sizes["grpo"]
        super().__init__(
            model=model,
            reward_funcs=[recorded_reward],
            args=_arguments(recipe, output_dir),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer,
            peft_config=lora_config(recipe),
            callbacks=list(callbacks),
            rollout_func=_recorded_groups,
        )
        self.remove_callback(PrinterCallback)
        if self.accelerator.num_processes > 1:
            raise ComposerError("ComposerTrainer runs one process a replica; use DiLoCo replicas")
        self._references = self._reference_logps(reference_file) if self._pairs else {}

    # -- hooks of GRPOTrainer ----------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        if not self.model.training:
            return super()._prepare_inputs(generation_batch)
        parts = self.current_gradient_accumulation_steps
        part = self._step % parts
        if part == 0:
            self._window = _Window(
                pairs=self._draw(self._pairs, self._sizes["dpo"]),
                hints=self._draw(self._hints, self._sizes["sdpo"]),
            )
        inputs = dict(super()._prepare_inputs(generation_batch)) if "grpo" in self.weights else {}
        inputs["dpo"] = self._window.pairs[part::parts]
        inputs["sdpo"] = self._window.hints[part::parts]
        inputs["last_part"] = part == parts - 1
        return inputs

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        if "last_part" not in inputs:  # evaluation: TRL's own loss only
            return super()._compute_loss(model, inputs)
        pairs, hints, last = inputs["dpo"], inputs["sdpo"], inputs["last_part"]
        total = torch.zeros((), device=self.accelerator.device)
        # Each row's graph is freed before the next is built: the gradients add up to those
        # of the sum, and memory is that of one pair or hint instead of the whole window.
        for hint in hints:
            total = total + self._backward(self._sdpo(model, hint))
        for pair in pairs:
            total = total + self._backward(self._dpo(model, pair))
        if "grpo" in self.weights:
            loss = super()._compute_loss(model, inputs)
            used = inputs["completion_mask"] * (inputs["advantages"] != 0).unsqueeze(1)
            self._window.loss["grpo"] += float(loss.detach())
            self._window.active["grpo"] += float(used.sum())
            total = total + self.weights["grpo"] * loss
        else:  # the trainer calls backward on what is returned
            total = total + 0 * sum(p.sum() for p in model.parameters() if p.requires_grad)
        if last:
            self._end_window()
        return total

    # -- channels ------------------------------------------------------------------

    def _backward(self, loss: Tensor) -> Tensor:
        self.accelerator.backward(loss)
        return loss.detach()

    def _sdpo(self, model: Any, hint: Hint) -> Tensor:
        """Weighted divergence from the hinted teacher over the span, by window tokens."""
        unwrapped, device = self.accelerator.unwrap_model(model), self.accelerator.device
        backbone, head = backbone_and_head(unwrapped)
        options, pad = self.recipe.channels.sdpo, self._tokenizer.pad_token_id
        plain = Row(hint.prompt_ids, hint.response_ids, hint.start, hint.length)
        hinted = Row(hint.teacher_prompt_ids, hint.response_ids, hint.start, hint.length)
        frozen = unwrapped.disable_adapter() if options.teacher == "frozen" else nullcontext()
        with self.accelerator.autocast():
            with torch.no_grad(), frozen:
                teacher, teacher_ids = response_states(backbone, [hinted], pad, device)
            states, ids = response_states(backbone, [plain], pad, device)
        if not torch.equal(ids, teacher_ids):
            raise ComposerError("SDPO: student and teacher positions hold different tokens")
        # One denominator for the whole window, so the loss is its token mean.
        window_tokens = sum(row.length for row in self._window.hints)
        loss, _ = fused_divergence(
            states, head, teacher, head,
            torch.full((len(ids),), 1.0 / window_tokens, device=device),
            beta=options.jsd_beta, temperature=options.temperature,
        )  # fmt: skip
        self._window.loss["sdpo"] += float(loss.detach())
        self._window.active["sdpo"] += len(ids)
        return self.weights["sdpo"] * loss

    def _dpo(self, model: Any, pair: Pair) -> Tensor:
        """Weighted DPO against the stored reference plus the anchor, by window pairs.

        Each pair's term is multiplied by its factor (``training.data.loss_factors``).
        """
        options, window = self.recipe.channels.dpo, self._window
        with self.accelerator.autocast():
            chosen, rejected = self._pair_logps(self.accelerator.unwrap_model(model), [pair])
        reference = chosen.new_tensor([self._references[pair.id]])  # (1, 2)
        ref_chosen, ref_rejected = reference.unbind(-1)
        loss = dpo_sigmoid(chosen, rejected, ref_chosen, ref_rejected, beta=options.beta)
        anchor = -chosen / len(pair.chosen_ids)
        margin = (chosen - ref_chosen) - (rejected - ref_rejected)
        share = 1.0 / len(window.pairs)
        window.extra["dpo_margin"] += float(margin.detach()) * share  # of pairs, unweighted
        share *= self._factors[pair.id]
        window.extra["dpo_anchor"] += float(anchor.detach()) * share
        # The channel's reported loss is DPO's own; the anchor is reported beside it.
        window.loss["dpo"] += float(loss.detach()) * share
        window.active["dpo"] += 1
        return self.weights["dpo"] * (loss + options.anchor * anchor).sum() * share

    def _pair_logps(self, model: Any, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        """Return summed log-probabilities of the chosen and of the rejected sides, (P,) each."""
        backbone, head = backbone_and_head(model)
        rows = [Row(p.prompt_ids, p.chosen_ids) for p in pairs]
        rows += [Row(p.prompt_ids, p.rejected_ids) for p in pairs]
        device = self.accelerator.device
        states, ids = response_states(backbone, rows, self._tokenizer.pad_token_id, device)
        # Temperature 1: the trainer's own fused head divides by its sampling temperature.
        pieces = token_logps(states, head, ids).split([row.size for row in rows])
        sums = torch.stack([piece.sum() for piece in pieces])
        return sums[: len(pairs)], sums[len(pairs) :]

    def _reference_logps(self, file: Path | None) -> dict[str, tuple[float, float]]:
        """Return log-probabilities of the untrained model for every pair to come."""
        known: dict[str, tuple[float, float]] = {}
        if file is not None and file.is_file():
            known = msgspec.json.decode(file.read_bytes(), type=dict[str, tuple[float, float]])
        missing = list({p.id: p for p in self._pairs if p.id not in known}.values())
        model = self.accelerator.unwrap_model(self.model)
        off = model.disable_adapter() if self.recipe.lora.r else nullcontext()
        with torch.no_grad(), off, self.accelerator.autocast():
            for start in range(0, len(missing), REFERENCE_BATCH):
                batch = missing[start : start + REFERENCE_BATCH]
                chosen, rejected = self._pair_logps(model, batch)
                for pair, c, r in zip(batch, chosen.tolist(), rejected.tolist(), strict=True):
                    known[pair.id] = (c, r)
        if file is not None and missing:
            replace(file, msgspec.json.encode(known))
        return known

    # -- bookkeeping -----------------------------------------------------------------

    def _draw(self, rows: list[Any], count: int) -> list[Any]:
        # The optimizer step decides the rows, not how often this has been called.
        start = self.state.global_step * count
        return rows[start : start + count]

    def _end_window(self) -> None:
        """Log the step's numbers and fail when a weighted channel stays empty."""
        window, metrics = self._window, self._metrics["train"]
        numbers: dict[str, float] = {}
        for channel in self.weights:
            numbers[f"{channel}_loss"] = window.loss[channel]
            numbers[f"{channel}_active"] = window.active[channel]
            self._empty[channel] = 0 if window.active[channel] else self._empty[channel] + 1
        numbers |= window.extra
        for key, value in numbers.items():
            metrics[key].append(value)
        if metrics.get("reward"):
            numbers["reward"] = metrics["reward"][-1]
            numbers["zero_variance"] = metrics["frac_reward_zero_std"][-1]
        if self._on_step is not None:
            self._on_step(self.state.global_step + 1, numbers)
        for channel, steps in self._empty.items():
            if steps >= self.recipe.empty_limit:
                raise EmptyChannel(
                    f"channel {channel} has weight {self.weights[channel]:g} but no active"
                    f" {'pair' if channel == 'dpo' else 'token'} for {steps} steps"
                )


def recorded_reward(prompts: Any, completions: Any, recorded: Any, **_: Any) -> list[float]:
    """Return the rewards that came with the recorded answers (``training.rewards``)."""
    return [float(value) for value in recorded]


def _exactly(group: Group, size: int) -> Group:
    """Repeat each answer as often as it was given, then make them ``size`` in number.

    Too few are repeated in turn; of too many the extremes stay first, then the earliest.
    """
    kept = [
        (ids, reward)
        for ids, count, reward in zip(group.completions, group.counts, group.rewards, strict=True)
        for _ in range(count)
    ]
    if len(kept) > size:
        order = sorted(range(len(kept)), key=lambda i: kept[i][1])
        extremes = [order[0], order[-1]]
        rest = [i for i in range(len(kept)) if i not in extremes]
        kept = [kept[i] for i in sorted([*extremes, *rest][:size])]
    kept = [kept[i % len(kept)] for i in range(size)]
    completions, rewards = [ids for ids, _ in kept], [reward for _, reward in kept]
    return msgspec.structs.replace(
        group, completions=completions, rewards=rewards, counts=[1] * size
    )


def _recorded_groups(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """TRL's ``rollout_func``: answer each repeated prompt with the next recorded answer."""
    out: dict[str, list[Any]] = {"prompt_ids": [], "completion_ids": [], "recorded": []}
    used: dict[str, int] = defaultdict(int)
    for prompt in prompts:
        group = trainer._groups[prompt]
        index = used[prompt] % len(group.completions)
        used[prompt] += 1
        out["prompt_ids"].append(list(group.prompt_ids))
        out["completion_ids"].append(list(group.completions[index]))
        out["recorded"].append(group.rewards[index])
    return {**out, "logprobs": None}


def _arguments(recipe: TrainingRecipe, output_dir: Path) -> GRPOConfig:
    grpo, parts = recipe.channels.grpo, recipe.gradient_accumulation_steps
    return GRPOConfig(
        output_dir=str(output_dir),
        # All of the run's steps: a restarted replica is stopped by DiLoCo when it is over.
        max_steps=recipe.steps,
        per_device_train_batch_size=grpo.group_size * grpo.groups_per_step // parts,
        gradient_accumulation_steps=parts,
        num_generations=grpo.group_size,
        max_completion_length=recipe.data.max_completion_tokens,
        # Dr. GRPO: no length or standard-deviation normalisation, no reference KL.
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        temperature=1.0,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="constant",
        max_grad_norm=recipe.max_grad_norm,
        seed=recipe.seed,
        bf16=recipe.bf16 and torch.cuda.is_available(),
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        disable_tqdm=True,
    )
