"""The composer loss in one optimizer step: GRPO + α·SDPO + β·trace-replay DPO (+ SFT).

How a step works. The recipe says how many rows a step takes from each channel. Rows of all
channels with equal beginnings share a tree of tokens (``shared_prefix``); trees are packed into
micro-batches of at most ``micro_batch_tokens``, each run forward and backward by itself, so that
memory is that of one micro-batch. Every loss holds the normaliser of its whole window, so the
gradient does not depend on how windows are split: into micro-batches, or over the ranks of a
replica, which sum their gradients (``ranks``). A model that cannot take a tree runs each channel's
rows separately. A step with a non-finite loss or gradient leaves the parameters unchanged.
"""

import hashlib
import math
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from composer_pipeline.errors import ComposerError
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rewards import Grader
from composer_pipeline.training.rows import TrainingData, loss_factors
from composer_pipeline.training.run import HELD_OUT
from trainers.common.adapters import load_start
from trainers.common.base_scores import BaseScores, gate
from trainers.common.channels import Channel, Dpo, Sdpo, Sft
from trainers.common.checkpoints import ChannelStates, collect_states, restore_states
from trainers.common.forwards import Forwards, StepResult, Windows
from trainers.common.gradients import NotFinite, StepGradients, Watch
from trainers.common.muon import muon
from trainers.common.policy import Policy, base_identity, load_base, lora_config, teacher
from trainers.common.ranks import Ranks, is_sharded, shard
from trainers.common.rows import planned, rows_of
from trainers.common.sampling import Sampler
from trainers.common.shared_prefix import why_not
from trainers.common.steps import mean_length
from trainers.trl.grpo import Grpo, TrlLoss


def arguments(recipe: TrainingRecipe, output_dir: Path) -> GRPOConfig:
    """Return the trainer's arguments; TRL sees one batch a step, micro-batches are our own."""
    grpo, cuda = recipe.channels.grpo, torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(output_dir),
        # All of the run's steps: DiLoCo stops a restarted replica when the run is over.
        max_steps=recipe.total_steps,
        per_device_train_batch_size=grpo.group_size,
        gradient_accumulation_steps=1,
        num_generations=grpo.group_size,
        max_completion_length=recipe.data.max_completion_tokens,
        # Dr. GRPO: no length or standard-deviation normalisation, no reference KL.
        loss_type="dr_grpo",
        scale_rewards="none",
        beta=0.0,
        off_policy_mask_threshold=grpo.off_policy_threshold,
        temperature=1.0,
        learning_rate=recipe.learning_rate,
        # transformers has no Muon: create_optimizer makes it.
        optim="adamw_torch" if recipe.optimizer == "muon" else recipe.optimizer,
        lr_scheduler_type="constant_with_warmup"
        if recipe.schedule == "constant"
        else recipe.schedule,
        warmup_steps=recipe.warmup_steps,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        seed=recipe.seed,
        bf16=recipe.dtype == "bf16",
        activation_checkpointing=recipe.activation_checkpointing,
        # Reentrant checkpointing fails where a step has several forwards.
        activation_checkpointing_kwargs={"use_reentrant": False},
        use_cpu=not cuda,
        dataloader_pin_memory=cuda,
        shuffle_dataset=False,
        save_strategy="no",
        report_to=list(recipe.report_to) or "none",
        logging_steps=1,
        disable_tqdm=True,
    )


def channels_of(
    recipe: TrainingRecipe,
    data: TrainingData,
    base: BaseScores,
    policy: Policy,
    trl_loss: TrlLoss,
    sampler: Sampler | None = None,
    slot: int = 0,
) -> list[Channel[Any]]:
    """Return the weighted channels of a recipe; raises ``InputError`` where one has no row."""
    built: list[Channel[Any]] = []
    plans, options = planned(recipe, data, slot), recipe.channels
    for name, weight in options.weights().items():
        given = (rows_of(data, name), plans[name], options.rows_per_step()[name], weight)
        if name == "grpo":
            built.append(
                Grpo(
                    *given, trl_loss=trl_loss, limit=recipe.data.max_completion_tokens,
                    length=mean_length(data.groups), options=options.grpo,
                    base_logps=base.answers(), sampler=sampler,
                )
            )  # fmt: skip
        elif name == "sdpo":
            reader = teacher(options.sdpo.teacher, policy, ema_rate=options.sdpo.ema_rate)
            built.append(
                Sdpo(
                    *given, options=options.sdpo, teacher=reader, steps=recipe.total_steps,
                    gains=base.gains(), base_logps=base.failed(),
                )
            )  # fmt: skip
        elif name == "dpo":
            # Factors over all rows, not a replica's share: every replica weights alike.
            factors = loss_factors(data.pairs)
            built.append(
                Dpo(*given, references=base.references(), factors=factors, options=options.dpo)
            )
        else:
            built.append(Sft(*given))
    return built


class HeldOut:
    """Measures the policy on ``<run>/held-out``, laid out like a run folder."""

    def __init__(
        self, recipe: TrainingRecipe, run_dir: Path, policy: Policy, trl_loss: TrlLoss
    ) -> None:
        data = TrainingData.load(run_dir / HELD_OUT / "data")
        base = BaseScores.load(run_dir / HELD_OUT)
        self._policy, self._limit = policy, recipe.micro_batch_tokens
        self._channels = channels_of(recipe, data, base, policy, trl_loss)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Return each channel's numbers, and ``loss``: the weighted sum of DPO, SDPO and SFT.

        GRPO's loss says nothing about a model: alone, ``loss`` is the gain of its worst answers
        minus that of its best ones, in nats.
        """
        numbers: dict[str, float] = {}
        losses: list[float] = []
        was_training = self._policy.model.training
        self._policy.model.eval()
        for channel in self._channels:
            window = channel.window(self._policy, 0)
            for rows in channel.split(window, self._limit):
                channel.loss(self._policy, rows, window)
            seen = channel.finish(window)
            numbers |= seen
            if f"{channel.name}_loss" in seen:
                losses.append(channel.weight * seen[f"{channel.name}_loss"])
        self._policy.model.train(was_training)
        if losses:
            return {**numbers, "loss": sum(losses)}
        gap = numbers.get("grpo_worst_gain", 0.0) - numbers.get("grpo_best_gain", 0.0)
        return {**numbers, "loss": gap}


#: Called with an event's kind (``step``, ``bad_step``, ``separate_forwards``, …), the 1-based step
#: of the run and its fields.
OnEvent = Callable[[str, int, dict[str, Any]], None]


@dataclass
class _Part:
    """What a rank reports of a step; it failed where ``reason`` or ``memory`` is set."""

    windows: str
    done: StepResult = field(default_factory=StepResult)
    reason: str = ""
    memory: str = ""
    numbers: dict[str, dict[str, float]] = field(default_factory=dict)
    peak_mib: float = 0.0


class ComposerTrainer(GRPOTrainer):
    """All channels of the composer loss in one step.

    Args:
        model: a causal language model without adapter.
        recipe: weights, rows a step, lengths and the adapter.
        data: rows of every weighted channel, after the hint gate.
        base: scores of the rows under the base model (``base_scores``).
        output_dir: where transformers may write; nothing is saved by default.
        tokenizer: for padding, the end token and reading sampled answers.
        slot: 0-based replica; decides which rows it sees.
        skip_steps: optimizer steps of earlier rounds that are already committed.
        callbacks: for example DiLoCo's; the channels follow a step before they see it.
        on_event: called with each event.
        states: where the channels' own state is kept from round to round.
        position: returns the optimizer steps behind the parameters, which exceed this replica's own
            where the others went on without it. ``None`` counts its own.
        ends_round: returns whether the current step is its round's last; ``None``: every
            ``inner_steps`` of the recipe.
        ranks: the processes of this replica; a single one by default. A sharded model is cut here.

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
        ends_round: Callable[[], bool] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        if self.ranks.lockstep:
            shard(model, self.ranks)
        self.recipe, self._skip, self._states = recipe, skip_steps, states
        self._position, self._ends_round, self._round_over = position, ends_round, False
        self._on_event = on_event or (lambda kind, step, numbers: None)
        size = recipe.channels.grpo.group_size
        super().__init__(
            model=model,
            reward_funcs=[_not_used],
            args=arguments(recipe, output_dir),
            # TRL requires prompts; the channels draw their own rows.
            train_dataset=Dataset.from_dict({"prompt": ["none"] * recipe.total_steps * size}),
            processing_class=tokenizer,
            peft_config=lora_config(recipe),
            callbacks=[_Follow(self), *callbacks, _AfterRound(self)],
        )
        self.remove_callback(PrinterCallback)
        if self.accelerator.num_processes > 1:
            raise ComposerError(
                "ComposerTrainer was started under a launcher (WORLD_SIZE is set), which would"
                " average its gradients again; use the recipe's ranks.processes"
            )
        self.policy = Policy(
            self.accelerator.unwrap_model(self.model),
            pad=self._tokenizer.pad_token_id,
            device=self.accelerator.device,
            autocast=self.accelerator.autocast,
        )
        #: Why rows do not share forwards, or ``None``.
        self.apart = (
            "TRL's own forward carries the model's auxiliary loss"
            if self.aux_loss_enabled
            else why_not(self.policy, recipe)
        )
        if self.apart is not None and recipe.shared_prefix != "off":
            self._on_event("separate_forwards", skip_steps, {"reason": self.apart})
        sampler = None
        if recipe.channels.grpo.weight and recipe.channels.grpo.sampled:
            seed = f"{recipe.seed}/{slot}"
            grader = Grader(recipe.channels.grpo.rewards)
            sampler = Sampler(
                self._sampled, tokenizer, grader, size=size, seed=seed, ranks=self.ranks
            )
        self.channels: list[Channel[Any]] = channels_of(
            recipe, data, base, self.policy, self.trl_loss, sampler, slot
        )
        self._load_states()
        self._watch = Watch(
            [channel.name for channel in self.channels], inner_steps=recipe.diloco.inner_steps
        )
        self._micro_batch_tokens, self._halved = recipe.micro_batch_tokens, False
        self._logps, self._known = torch.empty(0), None  # type: tuple[Tensor, Tensor | None]
        self.held_out: HeldOut | None = None
        self._clock, self._dropped, self._over = time.monotonic(), False, False

    def _load_states(self) -> None:
        """Restore the channels' state; rank 0 reads it for all."""
        known = None
        if self._states is not None and self._states.load(self.channels, self._skip):
            known = [channel.state() for channel in self.channels]
        known = self.ranks.share(known)
        for channel, state in zip(self.channels, known or (), strict=bool(known)):
            if not self.ranks.lead:
                channel.load_state(*state)

    @property
    def cut(self) -> bool:
        """Whether trained parameters are sharded over the ranks."""
        return any(map(is_sharded, self.policy.parameters()))

    # -- hooks of GRPOTrainer ----------------------------------------------------

    def create_optimizer(self, *args: Any, **options: Any) -> Any:
        """Return the optimizer."""
        recipe = self.recipe
        if recipe.optimizer == "muon" and self.optimizer is None:  # transformers has none
            self.optimizer: Any = muon(
                self.policy.model, lr=recipe.learning_rate, weight_decay=recipe.weight_decay
            )
        optimizer = super().create_optimizer(*args, **options)
        if self.cut:  # foreach kernels cannot mix whole and sharded tensors
            for group in optimizer.param_groups:
                group["foreach"] = False
        return optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        if not self.cut:
            return super()._clip_grad_norm(model)
        if all(p.grad is None for p in self.policy.parameters()):  # a step that was dropped
            return torch.zeros(())
        return self._mixed_mesh_grad_norm(model, self.args.max_grad_norm)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Run one step of every channel, backward included; the loader's batch is ignored."""
        model.train()
        # transformers makes one step even where a callback has ended the run before the first.
        self._over = self.control.should_training_stop
        loss = 0.0 if self._over else None
        while loss is None:
            loss = self._step_of_run()
        return torch.tensor(loss, device=self.accelerator.device)

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
        """Return TRL's GRPO loss of a batch, and log p (B, T) of its completions."""
        self._known = known
        try:
            loss = self._compute_loss(self.model, batch)
        finally:
            if self._known is not None:
                # TRL reports an entropy that was not computed.
                self._metrics["train"].pop("entropy", None)
            self._known = None
        return loss, self._logps

    def _sampled(self, prompts: list[list[int]]) -> list[list[int]]:
        """Sample one completion for each prompt, ``group_size`` equal prompts in a row."""
        completions, _ = self._generate_single_turn(prompts, None, {}, self.num_generations)
        return [list(completion) for completion in completions]

    # -- one step ------------------------------------------------------------------

    def _step_of_run(self) -> float | None:
        """Run all windows; return the weighted loss, 0 for a dropped step, ``None`` to retry."""
        step = self._skip + self.state.global_step
        measured = self._measured(step)
        gradients = StepGradients(
            self.policy.parameters(), measured=measured, ranks=self.ranks,
            channels=[channel.name for channel in self.channels],
        )  # fmt: skip
        gradients.drop()
        self._dropped = False
        windows: Windows = {}
        own = _Part("")
        try:
            windows = {c.name: c.window(self.policy, step) for c in self.channels}
            own = self._own_part(windows, gradients)
        except torch.OutOfMemoryError as error:
            if self.ranks.lockstep:  # the others wait inside this forward and cannot be notified
                raise self._too_large(error) from error
            own.memory = str(error)
        parts = self.ranks.gather(own)
        if any(part.memory for part in parts):
            gradients.drop()
            self._shrink(next(part.memory for part in parts if part.memory))
            return None
        self._require_same_windows(parts)
        if reason := next((part.reason for part in parts if part.reason), ""):
            gradients.drop()
            self._dropped = True
            self._on_event("bad_step", step + 1, {"reason": reason})
            self._watch.bad(f"step {step + 1}: {reason}")
            return 0.0
        numbers, tokens = self._numbers(windows, parts)
        numbers |= gradients.finish()
        self.state.num_input_tokens_seen += tokens
        self._report(step, numbers, tokens)
        self._watch.good(numbers)
        return sum((part.done.loss for part in parts), 0.0)

    def _own_part(self, windows: Windows, gradients: StepGradients) -> _Part:
        """Run this rank's share of the windows."""
        own = _Part(_digest(self.channels, windows) if self.ranks.several else "")
        drawn = {channel.name: channel.numbers for channel in self.channels}
        for channel in self.channels:  # only these are summed over ranks
            channel.numbers = defaultdict(float)
        try:
            own.done = Forwards(
                self.policy, self.channels, self.accelerator.backward, self.ranks
            ).run(windows, gradients, self._micro_batch_tokens, shared=self.apart is None)
        except NotFinite as error:
            own.reason = str(error)
        for channel in self.channels:
            own.numbers[channel.name] = dict(channel.numbers)
            channel.numbers = drawn[channel.name]
        own.peak_mib = peak_memory_mib()
        return own

    def _numbers(self, windows: Windows, parts: Sequence[_Part]) -> tuple[dict[str, float], int]:
        """Return a step's numbers over all ranks, and the tokens of its windows."""
        tokens, numbers = 0, dict[str, float]()
        if self.apart is None:
            numbers["student_tokens"] = parts[0].done.nodes
        for channel in self.channels:
            for part in parts:
                for key, value in part.numbers[channel.name].items():
                    channel.numbers[key] += value
            window = windows[channel.name]
            numbers |= channel.finish(window)
            tokens += sum(channel.size(row) for row in window)
        numbers["shared_prefix"] = float(self.apart is None)
        numbers["peak_memory_mib"] = max(part.peak_mib for part in parts)
        if self.ranks.several:
            numbers["ranks_idle_share"] = parts[0].done.idle
        return numbers, tokens

    def _require_same_windows(self, parts: Sequence[_Part]) -> None:
        for rank, part in enumerate(parts):
            if part.windows != parts[0].windows:
                raise ComposerError(
                    f"rank {rank} of {self.ranks.size} drew other rows than rank 0 in step"
                    f" {self._skip + self.state.global_step + 1}: the ranks are no longer one"
                    " replica"
                )

    def _measured(self, step: int) -> bool:
        """Return whether a step keeps the channels' gradients apart."""
        # Besides every norms_every steps, each step until every channel had a gradient in this
        # round: a step may have been dropped, or its answers all equally good.
        inside = step % self.recipe.diloco.inner_steps
        return inside % self.recipe.norms_every == 0 or bool(self._watch.unseen)

    def _shrink(self, reason: str) -> None:
        """Halve the micro-batch, once."""
        if self._halved:
            raise self._too_large(reason)
        self._halved, self._micro_batch_tokens = True, self._micro_batch_tokens // 2
        torch.cuda.empty_cache()
        step = self._skip + self.state.global_step + 1
        self._on_event("out_of_memory", step, {"micro_batch_tokens": self._micro_batch_tokens})

    def _too_large(self, reason: object) -> ComposerError:
        step, limit = self._skip + self.state.global_step + 1, self._micro_batch_tokens
        half = ", half of the recipe's" if self._halved else ""
        return ComposerError(
            f"step {step}: out of memory with micro_batch_tokens {limit}{half}:"
            " lower micro_batch_tokens or data.max_prompt_tokens, or turn on"
            f" activation_checkpointing ({reason})"
        )

    # -- bookkeeping -----------------------------------------------------------------

    def _report(self, step: int, numbers: dict[str, float], tokens: int) -> None:
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        numbers |= {
            "learning_rate": self._rate(),
            "seconds": seconds,
            "tokens": tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
        }
        for key, value in numbers.items():
            self._metrics["train"][key].append(value)
        self._on_event("step", step + 1, numbers)

    def _rate(self) -> float:
        scheduler = self.lr_scheduler
        return float(scheduler.get_last_lr()[0]) if scheduler is not None else 0.0

    def follow(self) -> None:
        """Let the channels follow an optimizer step; at a round's end check and save them."""
        done = self._skip + self.state.global_step
        if self._over:
            return
        if not self._dropped:
            for channel in self.channels:
                channel.after_step(done)
        inner = self.recipe.diloco.inner_steps
        self._round_over = self._ends_round() if self._ends_round else done % inner == 0
        if self._round_over:
            self._watch.end_of_round()
            if self._states is not None:  # keyed by the next round's first step, as on all replicas
                self._states.save(self.channels, math.ceil(done / inner) * inner)

    def private(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a restart inside a round needs besides parameters and optimizer."""
        tensors, channels = collect_states(self.channels)
        return tensors, {
            "channels": channels, "watch": self._watch.state(), "halved": self._halved,
        }  # fmt: skip

    def load_private(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore :meth:`private`."""
        restore_states(self.channels, tensors, numbers["channels"])
        self._watch.load_state(numbers["watch"])
        if numbers["halved"] and not self._halved:
            self._halved, self._micro_batch_tokens = True, self._micro_batch_tokens // 2

    def before_rounds(self) -> None:
        """Evaluate the starting round, whose evaluation a kill may have prevented."""
        if done := self._adopted():
            self._look(done)

    def after_round(self) -> None:
        """Evaluate a committed and adopted round, where one ends here."""
        if self._round_over and not self._over:
            self._look(self._adopted())

    def _adopted(self) -> int:
        """Return the steps behind the parameters, and continue with the rows that follow them."""
        if self._position is not None:
            self._skip = self._position() - self.state.global_step
        done: int = self._skip + self.state.global_step
        return done

    def _look(self, done: int) -> None:
        """Measure the committed model on held-out rows, every ``eval_every`` rounds and last."""
        round_, inside = divmod(done, self.recipe.diloco.inner_steps)
        every = None if inside else self.recipe.eval_every
        if self.held_out is None or every is None:
            return
        if round_ % every == 0 or round_ == self.recipe.rounds:
            numbers = {**self.held_out.measure(), "round": round_}
            self._on_event("held_out", self._skip + self.state.global_step, numbers)


def build(
    run_dir: Path, recipe: TrainingRecipe, ranks: Ranks, folder: Path, *, slot: int, **options: Any
) -> tuple[ComposerTrainer, str]:
    """Build a rank's trainer of a run; return it and the identity of its base model."""
    resolved, base = resolve_model(recipe.model), BaseScores.load(run_dir)
    data, _ = gate(recipe, TrainingData.load(run_dir / "data"), base.gains())
    model, tokenizer = load_base(resolved, recipe), load_tokenizer(resolved)
    identity = base_identity(model, tokenizer, recipe)
    trainer = ComposerTrainer(
        model=model, recipe=recipe, data=data, base=base, output_dir=folder, tokenizer=tokenizer,
        slot=slot, ranks=ranks, **options,
    )  # fmt: skip
    load_start(trainer.accelerator.unwrap_model(trainer.model), recipe)
    looks = ranks.lead or ranks.lockstep  # a sharded model runs on all ranks
    if looks and recipe.eval_every is not None and slot == 0 and (run_dir / HELD_OUT).is_dir():
        held_out = TrainingRecipe.load(run_dir / HELD_OUT / "recipe.yaml")
        trainer.held_out = HeldOut(held_out, run_dir, trainer.policy, trainer.trl_loss)
    return trainer, identity


class _Follow(TrainerCallback):
    """Calls the trainer before the given callbacks, so before DiLoCo's round ends."""

    def __init__(self, trainer: ComposerTrainer) -> None:
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.follow()


class _AfterRound(TrainerCallback):
    """Calls the trainer after the given callbacks, so after DiLoCo's commit."""

    def __init__(self, trainer: ComposerTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.before_rounds()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._trainer.after_round()


def peak_memory_mib() -> float:
    """Return the peak memory of this process: of its GPU, else its resident set."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated()) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _digest(channels: Sequence[Channel[Any]], windows: Windows) -> str:
    digest = hashlib.sha256()
    for channel in channels:
        for row in windows[channel.name]:
            for side in channel.sequences(row):
                digest.update(
                    repr((channel.name, *map(list, (side.prompt, side.response)))).encode()
                )
    return digest.hexdigest()


def _not_used(**_: Any) -> NoReturn:
    raise AssertionError("rewards come from the channels")
