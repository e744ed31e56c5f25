"""The composer loss in one optimizer step: GRPO + α·SDPO + β·trace-replay DPO (+ SFT).

Belongs here: ``ComposerTrainer``, the loop that runs every channel's window in micro-batches
and looks at what came out. Does not belong here: losses (``trainers.trl.channels``), data
(``composer_pipeline.training.data``), processes and DiLoCo.

How a step works. The recipe says how many rows a step takes from each channel. Each channel's
rows are packed into micro-batches of at most ``micro_batch_tokens``, and each is run forward and
backward by itself, so that memory is that of one micro-batch. Every loss holds the normaliser of
its whole window, so the gradient does not depend on how windows are split. A step with a
non-finite loss or gradient leaves the parameters alone.
"""

import math
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from composer_pipeline.errors import ComposerError
from composer_pipeline.training.data import TrainingData
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rewards import Grader
from trainers.trl.arguments import arguments
from trainers.trl.base_model.base_scores import BaseScores
from trainers.trl.channel_state import ChannelStates
from trainers.trl.channels import channels_of
from trainers.trl.channels.base import Channel
from trainers.trl.gradients import NotFinite, StepGradients, Watch
from trainers.trl.held_out import HeldOut
from trainers.trl.policy.loading import lora_config
from trainers.trl.policy.sampling import Sampler
from trainers.trl.policy.student import Student

#: Called with the kind of an event (``step``, ``bad_step``, ``out_of_memory``), the 1-based
#: step of the run and its numbers or facts.
OnEvent = Callable[[str, int, dict[str, Any]], None]


class ComposerTrainer(GRPOTrainer):
    """All channels of the composer loss in one step.

    Args:
        model: a causal language model without adapter.
        recipe: weights, rows a step, lengths and the adapter.
        data: rows of every weighted channel; hints already through the gain gate.
        base: what the base model thinks of the rows (``trainers.trl.base_model.base_pass``).
        output_dir: where transformers may write; nothing is saved by itself.
        tokenizer: for padding, the end token and, where answers are sampled, reading them.
        slot: 0-based replica; decides which rows it sees.
        skip_steps: optimizer steps of earlier rounds that are already committed.
        callbacks: for example DiLoCo's; the channels follow a step before they see it.
        on_event: told about steps.
        states: where the channels' own state is kept from round to round.
        committed: returns the rounds that the adopted state has behind it: more than this replica
            has trained where the others went on without it. ``None`` counts its own steps.

    Raises:
        InputError: a channel has no row, or the model's head is of an unsupported kind.
    """

    def __init__(
        self,
        *,
        model: Any,
        recipe: TrainingRecipe,
        data: TrainingData,
        base: BaseScores,
        output_dir: Path,
        tokenizer: Any,
        slot: int = 0,
        skip_steps: int = 0,
        callbacks: Sequence[Any] = (),
        on_event: OnEvent | None = None,
        states: ChannelStates | None = None,
        committed: Callable[[], int] | None = None,
    ) -> None:
        self.recipe, self._skip, self._states = recipe, skip_steps, states
        self._committed = committed
        self._on_event = on_event or (lambda kind, step, numbers: None)
        size = recipe.channels.grpo.group_size
        super().__init__(
            model=model,
            reward_funcs=[_not_used],
            args=arguments(recipe, output_dir),
            # TRL insists on prompts; the channels bring their own rows.
            train_dataset=Dataset.from_dict({"prompt": ["none"] * recipe.total_steps * size}),
            processing_class=tokenizer,
            peft_config=lora_config(recipe),
            callbacks=[_Follow(self), *callbacks, _AfterRound(self)],
        )
        self.remove_callback(PrinterCallback)
        if self.accelerator.num_processes > 1:
            raise ComposerError("ComposerTrainer runs one process a replica; use DiLoCo replicas")
        self.student = Student(
            self.accelerator.unwrap_model(self.model),
            pad=self._tokenizer.pad_token_id,
            device=self.accelerator.device,
            autocast=self.accelerator.autocast,
        )
        sampler = None
        if recipe.channels.grpo.weight and recipe.channels.grpo.sampled:
            seed = f"{recipe.seed}/{slot}"
            grader = Grader(recipe.channels.grpo.rewards)
            sampler = Sampler(self._sampled, tokenizer, grader, size=size, seed=seed)
        self.channels: list[Channel[Any]] = channels_of(
            recipe, data, base, self.student, self.trl_loss, sampler, slot
        )
        if states is not None:
            states.load(self.channels, skip_steps)
        self._watch = Watch(
            [channel.name for channel in self.channels],
            inner_steps=recipe.diloco.inner_steps,
            max_bad_steps=recipe.max_bad_steps,
        )
        self._micro_batch_tokens, self._halved = recipe.micro_batch_tokens, False
        self._logps = torch.empty(0)
        self.held_out: HeldOut | None = None
        self._clock, self._dropped = time.monotonic(), False

    # -- hooks of GRPOTrainer ----------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return {}  # the channels draw their own rows

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        """Run a step: leave its gradient in the parameters, return its loss without one."""
        loss = None
        while loss is None:
            try:
                loss = self._step_of_run()
            except torch.OutOfMemoryError as error:
                self._shrink(error)  # raises the second time
        # The trainer calls backward on what is returned: a leaf that nothing depends on.
        return torch.full((), loss, device=self.accelerator.device, requires_grad=True)

    def _get_per_token_logps_and_entropies(self, *args: Any, **options: Any) -> Any:
        out = super()._get_per_token_logps_and_entropies(*args, **options)
        self._logps = out[0]
        return out

    def trl_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return TRL's GRPO loss of a batch, and log p (B, T) of its completions.

        Keys of the batch are those of ``GRPOTrainer._compute_loss``.
        """
        loss = super()._compute_loss(self.model, batch)
        return loss, self._logps

    def _sampled(self, prompts: list[list[int]]) -> list[list[int]]:
        """Let TRL sample an answer to each prompt, ``group_size`` in a row being the same."""
        completions, _ = self._generate_single_turn(prompts, None, {}, self.num_generations)
        return [list(completion) for completion in completions]

    # -- one step ------------------------------------------------------------------

    def _step_of_run(self) -> float:
        """Run every channel's window; return the weighted loss, 0 for a step that was dropped."""
        step = self._skip + self.state.global_step
        measured = self._measured(step)
        gradients = StepGradients(self.student.parameters(), measured=measured)
        gradients.drop()
        loss, tokens, numbers, self._dropped = 0.0, 0, dict[str, float](), False
        try:
            for channel in self.channels:
                window = channel.window(self.student, step)
                for rows in channel.split(window, self._micro_batch_tokens):
                    loss += self._micro_batch(channel, rows, window, gradients)
                gradients.end_of(channel.name)
                numbers |= channel.finish(window)
                tokens += sum(channel.size(row) for row in window)
        except NotFinite as error:
            gradients.drop()
            self._dropped = True
            self._on_event("bad_step", step + 1, {"reason": str(error)})
            self._watch.bad(f"step {step + 1}: {error}")
            return 0.0
        numbers |= gradients.finish()
        self.state.num_input_tokens_seen += tokens
        self._report(step, numbers, tokens)
        self._watch.good(numbers)
        return loss

    def _micro_batch(
        self, channel: Channel[Any], rows: list[Any], window: list[Any], gradients: StepGradients
    ) -> float:
        """Run one micro-batch forward and backward; return its weighted loss."""
        loss = channel.weight * channel.loss(self.student, rows, window)
        value = float(loss.detach())
        if math.isfinite(value):
            self.accelerator.backward(loss)
        if not math.isfinite(value) or not gradients.finite():
            what = "gradient" if math.isfinite(value) else f"loss ({value})"
            ids = ", ".join(dict.fromkeys(channel.id(row) for row in rows))
            raise NotFinite(f"channel {channel.name}: {what} is not finite for row {ids}")
        return value

    def _measured(self, step: int) -> bool:
        """Return whether a step keeps the channels' gradients apart: the first of a round too.

        And each further one until every channel was seen alive in this round: that step may have
        been dropped, or its answers may all have been equally good.
        """
        inside = step % self.recipe.diloco.inner_steps
        return inside % self.recipe.norms_every == 0 or bool(self._watch.unseen)

    def _shrink(self, error: torch.OutOfMemoryError) -> None:
        """Halve the micro-batch, once.

        Raises:
            ComposerError: it was halved before.
        """
        step, limit = self._skip + self.state.global_step + 1, self._micro_batch_tokens
        for parameter in self.student.parameters():
            parameter.grad = None
        if self._halved:
            raise ComposerError(
                f"step {step}: out of memory with micro_batch_tokens {limit}, half of the recipe's:"
                " lower micro_batch_tokens or data.max_prompt_tokens, or turn on"
                " activation_checkpointing"
            ) from error
        self._halved, self._micro_batch_tokens = True, limit // 2
        torch.cuda.empty_cache()
        self._on_event("out_of_memory", step, {"micro_batch_tokens": self._micro_batch_tokens})

    # -- bookkeeping -----------------------------------------------------------------

    def _report(self, step: int, numbers: dict[str, float], tokens: int) -> None:
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        numbers |= {
            "learning_rate": self._rate(),
            "seconds": seconds,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "peak_memory_mib": peak_memory_mib(),
        }
        for key, value in numbers.items():
            self._metrics["train"][key].append(value)
        self._on_event("step", step + 1, numbers)

    def _rate(self) -> float:
        scheduler = self.lr_scheduler
        return float(scheduler.get_last_lr()[0]) if scheduler is not None else 0.0

    def follow(self) -> None:
        """Let the channels follow a step that the optimizer has made, and keep their states."""
        done = self._skip + self.state.global_step
        if not self._dropped:
            for channel in self.channels:
                channel.after_step(done)
        if self._states is not None and done % self.recipe.diloco.inner_steps == 0:
            self._states.save(self.channels, done)

    def before_rounds(self) -> None:
        """Look at the round to start from: a kill may have come between its commit and a look."""
        if done := self._adopted():
            self._look(done)

    def after_round(self) -> None:
        """Look at a round that is committed and whose state is adopted, where one ends here.

        Raises:
            DeadChannel: a round ended in which a channel had no gradient.
        """
        done = self._skip + self.state.global_step
        if done % self.recipe.diloco.inner_steps == 0:
            self._watch.end_of_round()
            self._look(self._adopted())

    def _adopted(self) -> int:
        """Return the rounds behind the adopted state, and go on with the rows that follow it."""
        inner = self.recipe.diloco.inner_steps
        if self._committed is not None:
            self._skip = self._committed() * inner - self.state.global_step
        done: int = self._skip + self.state.global_step
        return done // inner

    def _look(self, round_: int) -> None:
        """Measure the committed model on held-out rows, every so many rounds and after the last."""
        every = self.recipe.eval_every
        if self.held_out is None or every is None:
            return
        if round_ % every == 0 or round_ == self.recipe.rounds:
            numbers = {**self.held_out.measure(), "round": round_}
            self._on_event("held_out", self._skip + self.state.global_step, numbers)


class _Follow(TrainerCallback):
    """Calls the trainer back before the callbacks that were given, so before DiLoCo's round."""

    def __init__(self, trainer: ComposerTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.follow()


class _AfterRound(TrainerCallback):
    """Calls the trainer back behind them, so behind DiLoCo's commit."""

    def __init__(self, trainer: ComposerTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.before_rounds()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.after_round()


def peak_memory_mib() -> float:
    """Return the most memory that this process ever held: of its GPU, else its resident set."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _not_used(**_: Any) -> NoReturn:
    raise AssertionError("rewards come from the channels")
