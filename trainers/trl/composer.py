"""The composer loss in one optimizer step: GRPO + α·SDPO + β·trace-replay DPO (+ SFT).

Belongs here: ``ComposerTrainer``, the loop that runs every channel's window in micro-batches
and looks at what came out. Does not belong here: losses (``trainers.trl.channels``), data
(``composer_pipeline.training.data``), processes and DiLoCo.

How a step works. The recipe says how many rows a step takes from each channel. Rows of all
channels whose beginnings are equal share a tree of tokens (``trainers.trl.shared_prefix``); trees
are packed into micro-batches of at most ``micro_batch_tokens``, and each is run forward and
backward by itself, so that memory is that of one micro-batch. Every loss holds the normaliser of
its whole window, so the gradient does not depend on how windows are split. A model that cannot
take a tree runs each channel's rows by themselves. A step with a non-finite loss or gradient
leaves the parameters alone.
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
from trainers.trl.channel_state import ChannelStates, gathered, handed_out
from trainers.trl.channels import channels_of
from trainers.trl.channels.base import Channel
from trainers.trl.gradients import NotFinite, StepGradients, Watch
from trainers.trl.held_out import HeldOut
from trainers.trl.policy.loading import lora_config
from trainers.trl.policy.sampling import Sampler
from trainers.trl.policy.student import Student
from trainers.trl.rows.batches import micro_batches
from trainers.trl.shared_prefix.forward import SharedStates, masked_attention
from trainers.trl.shared_prefix.probe import why_not
from trainers.trl.shared_prefix.tree import Item, Shared, trees_of

#: Called with the kind of an event (``step``, ``bad_step``, ``separate_forwards``, …), the 1-based
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
        position: returns the optimizer steps that the parameters have behind them: more than this
            replica has made where the others went on without it. ``None`` counts its own.

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
        position: Callable[[], int] | None = None,
    ) -> None:
        self.recipe, self._skip, self._states = recipe, skip_steps, states
        self._position = position
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
        self._logps, self._known = torch.empty(0), None  # type: tuple[Tensor, Tensor | None]
        #: Why rows do not share forwards; ``None`` where they do.
        self.apart = (
            "TRL's own forward carries the model's auxiliary loss"
            if self.aux_loss_enabled
            else why_not(self.student, recipe)
        )
        if self.apart is not None and recipe.shared_prefix != "off":
            self._on_event("separate_forwards", skip_steps, {"reason": self.apart})
        self.held_out: HeldOut | None = None
        self._clock, self._dropped, self._over = time.monotonic(), False, False

    # -- hooks of GRPOTrainer ----------------------------------------------------

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        return {}  # the channels draw their own rows

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        """Run a step: leave its gradient in the parameters, return its loss without one."""
        # transformers makes one step even where a callback has ended the run before the first.
        self._over = self.control.should_training_stop
        loss = 0.0 if self._over else None
        while loss is None:
            try:
                loss = self._step_of_run()
            except torch.OutOfMemoryError as error:
                self._shrink(error)  # raises the second time
        # The trainer calls backward on what is returned: a leaf that nothing depends on.
        return torch.full((), loss, device=self.accelerator.device, requires_grad=True)

    def _get_per_token_logps_and_entropies(self, *args: Any, **options: Any) -> Any:
        if self._known is not None:
            out = (self._known, torch.zeros_like(self._known), None)
        else:
            out = super()._get_per_token_logps_and_entropies(*args, **options)
        self._logps = out[0]
        return out

    def trl_loss(
        self, batch: dict[str, Tensor], known: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return TRL's GRPO loss of a batch, and log p (B, T) of its completions.

        Keys of the batch are those of ``GRPOTrainer._compute_loss``. With ``known`` TRL runs no
        forward.
        """
        self._known = known
        try:
            loss = super()._compute_loss(self.model, batch)
        finally:
            if self._known is not None:
                # TRL's own report of the entropy, which nobody has computed.
                self._metrics["train"].pop("entropy", None)
            self._known = None
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
            windows = {c.name: c.window(self.student, step) for c in self.channels}
            if self.apart is None:
                loss, numbers["student_tokens"] = self._together(windows, gradients)
            for channel in self.channels:
                window = windows[channel.name]
                if self.apart is not None:
                    for rows in channel.split(window, self._micro_batch_tokens):
                        loss += self._micro_batch(channel, rows, window, gradients)
                    gradients.end_of(channel.name)
                numbers |= channel.finish(window)
                tokens += sum(channel.size(row) for row in window)
            numbers["shared_prefix"] = float(self.apart is None)
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

    def _together(
        self, windows: dict[str, list[Any]], gradients: StepGradients
    ) -> tuple[float, int]:
        """Run all channels' windows in shared forwards; return the loss and the nodes run."""
        limit, loss, nodes = self._micro_batch_tokens, 0.0, 0
        items = [
            Item(channel.name, row, channel.sequences(row))
            for channel in self.channels
            for row in windows[channel.name]
        ]
        trees = trees_of(items, limit)
        for batch in micro_batches(trees, [len(of.tree) for of in trees], limit):
            with masked_attention(self.student):
                loss += self._shared_batch(batch, windows, gradients)
            nodes += sum(len(of.tree) for of in batch)
        for channel in self.channels:
            gradients.end_of(channel.name)  # one without a row, too, has a norm: 0
        return loss, nodes

    def _shared_batch(
        self, batch: list[Shared], windows: dict[str, list[Any]], gradients: StepGradients
    ) -> float:
        """Run one forward, the losses of its channels, and one backward; return the loss.

        Where channels are kept apart, each has a backward of its own through the same forward.
        """
        states, loss = SharedStates(self.student, batch), 0.0
        items = [item for of in batch for item in of.items]
        present = [c for c in self.channels if any(i.channel == c.name for i in items)]
        for channel in present:
            rows = [item.row for item in items if item.channel == channel.name]
            loss += self._loss(channel, rows, windows[channel.name], states)
            if not states.finite():
                raise _not_finite([(channel, rows)], "gradient")
            if gradients.measured or channel is present[-1]:
                states.backward(again=channel is not present[-1])
                if not gradients.finite():
                    behind = [channel] if gradients.measured else present
                    of = [(c, [i.row for i in items if i.channel == c.name]) for c in behind]
                    raise _not_finite(of, "gradient")
                gradients.end_of(channel.name)
        return loss

    def _loss(
        self, channel: Channel[Any], rows: list[Any], window: list[Any], student: Student
    ) -> float:
        """Run one channel's part of a micro-batch and its backward; return its weighted loss."""
        loss = channel.weight * channel.loss(student, rows, window)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise _not_finite([(channel, rows)], f"loss ({value})")
        self.accelerator.backward(loss)
        return value

    def _micro_batch(
        self, channel: Channel[Any], rows: list[Any], window: list[Any], gradients: StepGradients
    ) -> float:
        """Run one micro-batch of one channel forward and backward; return its weighted loss."""
        value = self._loss(channel, rows, window, self.student)
        if not gradients.finite():
            raise _not_finite([(channel, rows)], "gradient")
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
        """Let the channels follow a step that the optimizer has made; at a round's end look back.

        Before the round is contributed: what is kept then is what the next round begins with.

        Raises:
            DeadChannel: a round ended in which a channel had no gradient.
        """
        done = self._skip + self.state.global_step
        if self._over:
            return
        if not self._dropped:
            for channel in self.channels:
                channel.after_step(done)
        if done % self.recipe.diloco.inner_steps == 0:
            self._watch.end_of_round()
            if self._states is not None:
                self._states.save(self.channels, done)

    def private(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a restart inside a round needs besides parameters and optimizer."""
        tensors, channels = gathered(self.channels)
        return tensors, {
            "channels": channels, "watch": self._watch.state(), "halved": self._halved,
        }  # fmt: skip

    def load_private(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore :meth:`private`."""
        handed_out(self.channels, tensors, numbers["channels"])
        self._watch.load_state(numbers["watch"])
        if numbers["halved"] and not self._halved:
            self._halved, self._micro_batch_tokens = True, self._micro_batch_tokens // 2

    def before_rounds(self) -> None:
        """Look at the round to start from: a kill may have come between its commit and a look."""
        if done := self._adopted():
            self._look(done)

    def after_round(self) -> None:
        """Look at a round that is committed and whose state is adopted, where one ends here."""
        done = self._skip + self.state.global_step
        if done % self.recipe.diloco.inner_steps == 0 and not self._over:
            self._look(self._adopted())

    def _adopted(self) -> int:
        """Return the steps behind the parameters, and go on with the rows that follow them."""
        if self._position is not None:
            self._skip = self._position() - self.state.global_step
        done: int = self._skip + self.state.global_step
        return done

    def _look(self, done: int) -> None:
        """Measure the committed model on held-out rows, every so many rounds and after the last."""
        round_, inside = divmod(done, self.recipe.diloco.inner_steps)
        every = None if inside else self.recipe.eval_every
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


def _not_finite(where: Sequence[tuple[Channel[Any], list[Any]]], what: str) -> NotFinite:
    names = ", ".join(channel.name for channel, _ in where)
    ids = ", ".join(dict.fromkeys(channel.id(row) for channel, rows in where for row in rows))
    return NotFinite(f"channel {names}: {what} is not finite for row {ids}")


def _not_used(**_: Any) -> NoReturn:
    raise AssertionError("rewards come from the channels")
