"""One replica trained by verl: a ``TrainingWorker`` on FSDP2, without Ray, fed with the step table.

verl packs or pads the sequences, runs them forward and backward, clips and steps; the loss, its
coefficients, the teacher, the optimizer's schedule and the rounds are the project's. Each rank
holds a part of every parameter. SDPO's teacher reads the hinted rows before the step.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from transformers import Trainer, get_scheduler

from composer_pipeline.losses.step import StepRow, means
from composer_pipeline.training.models import load_tokenizer, resolve_adapter, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import VerlOptions
from composer_pipeline.training.rows import TrainingData
from trainers.common.base_scores import BaseScores, gate
from trainers.common.checkpoints import ChannelStates
from trainers.common.gradients import Watch
from trainers.common.outer_ranks import WholeParameters
from trainers.common.policy import base_identity, load_base
from trainers.common.ranks import Ranks, distribute, local_part
from trainers.common.steps import Steps, options_of
from trainers.verl.loss import ComposerLoss, Taught

#: torch's optimizers by the recipe's name, with their options.
OPTIMIZERS: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "adamw_torch": (torch.optim.AdamW, {}),
    "adamw_torch_fused": (torch.optim.AdamW, {"fused": True}),
    "sgd": (torch.optim.SGD, {}),
}


def start_worker(recipe: TrainingRecipe, ranks: Ranks, options: VerlOptions) -> Any:
    """Return verl's worker with the recipe's model."""
    cuda = torch.cuda.is_available()
    if not cuda:
        register_cpu()
    # The worker reads an address that only Ray would use.
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    os.environ.update(RANK=str(ranks.rank), WORLD_SIZE=str(ranks.size), LOCAL_RANK="0", **address)
    if not dist.is_initialized():
        backend = "cpu:gloo" + ",cuda:nccl" * cuda
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    from verl.trainer.config import CheckpointConfig
    from verl.workers import config
    from verl.workers.engine_workers import TrainingWorker

    lora, adapter = recipe.lora, recipe.start_from
    model = config.HFModelConfig(
        path=resolve_model(recipe.model), load_tokenizer=False,
        enable_gradient_checkpointing=recipe.activation_checkpointing,
        use_remove_padding=options.use_remove_padding,
        override_config={"attn_implementation": recipe.attention},
        lora_rank=lora.r, lora_alpha=lora.alpha,
        target_modules=lora.targets if isinstance(lora.targets, str) else list(lora.targets),
        lora_adapter_path=str(resolve_adapter(adapter)) if adapter else None,
    )  # fmt: skip
    precision = {"param_dtype": recipe.dtype, "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engine = config.FSDPEngineConfig(
        strategy="fsdp2", use_torch_compile=False, use_dynamic_bsz=False, mixed_precision=precision
    )
    optimizer = config.FSDPOptimizerConfig(
        lr=recipe.learning_rate, total_training_steps=recipe.total_steps,
        clip_grad=recipe.max_grad_norm,
    )  # fmt: skip
    worker = TrainingWorker(
        config.TrainingWorkerConfig(
            model_type="language_model", model_config=model, engine_config=engine,
            optimizer_config=optimizer, checkpoint_config=CheckpointConfig(),
        )
    )  # fmt: skip
    torch.manual_seed(recipe.seed)  # of the adapter
    worker.reset()
    return worker


class VerlTrainer:
    """A replica's training loop around verl's worker.

    Attributes:
        cut: whether parameters and moments are sharded over several ranks.

    Args:
        worker: of :func:`start_worker`.
        recipe: of the run.
        steps: the replica's step table.
        options: of the recipe's ``backend``.
        callbacks: with transformers' events, such as DiLoCo's.
        skip_steps, on_event, states, position, ends_round, ranks: as ``ComposerTrainer``.
    """

    def __init__(
        self,
        worker: Any,
        recipe: TrainingRecipe,
        steps: Steps,
        options: VerlOptions,
        *,
        callbacks: Sequence[Any] = (),
        skip_steps: int = 0,
        on_event: Callable[[str, int, dict[str, Any]], None] = lambda *_: None,
        states: ChannelStates | None = None,
        position: Callable[[], int] | None = None,
        ends_round: Callable[[], bool] | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.worker, self.recipe, self.steps, self.ranks = worker, recipe, steps, ranks or Ranks()
        self._options, self._callbacks, self._skip = options, callbacks, skip_steps
        self._on_event, self._states = on_event, states
        self._position, self._ends_round = position, ends_round
        self.cut = self.ranks.several
        self._set_optimizer()
        self.taught = Taught(worker.engine, recipe)
        self.loss = ComposerLoss(options_of(recipe))
        worker.set_loss_fn(self.loss)
        given: list[Any] = []
        reader: Any = SimpleNamespace(name="sdpo", load_state=lambda *kept: given.append(kept))
        if states is not None:
            states.load([reader], skip_steps)
        for kept in self.ranks.share(given):  # on every rank: the average is sharded
            self.taught.load_state(*kept)
        self._watch = Watch(list(recipe.channels.weights()), inner_steps=recipe.diloco.inner_steps)
        self.state = SimpleNamespace(
            global_step=0, max_steps=recipe.total_steps, num_input_tokens_seen=0
        )
        self.control = SimpleNamespace(should_training_stop=False)
        self._clock = time.monotonic()

    def _set_optimizer(self) -> None:
        """Give verl an optimizer of this rank's parts, and schedule, as transformers makes them."""
        engine, recipe = self.worker.engine, self.recipe
        trained = {n: p for n, p in engine.module.named_parameters() if p.requires_grad}
        # Plain tensors with the storage of the shards: what a single rank keeps and sends.
        own = {n: torch.nn.Parameter(local_part(p.detach())) for n, p in trained.items()}
        decayed = set(Trainer.get_decay_parameter_names(None, engine.module))
        kinds = (decayed, recipe.weight_decay), (own.keys() - decayed, 0.0)
        groups = [
            {"params": [p for n, p in own.items() if n in names], "weight_decay": decay}
            for names, decay in kinds
        ]
        kind, options = OPTIMIZERS[recipe.optimizer]
        optimizer = kind([g for g in groups if g["params"]], lr=recipe.learning_rate, **options)

        def take_gradients(*_: Any) -> None:
            for name, parameter in trained.items():
                grad = parameter.grad
                own[name].grad = None if grad is None else local_part(grad)

        optimizer.register_step_pre_hook(take_gradients)
        schedule = get_scheduler(
            "constant_with_warmup" if recipe.schedule == "constant" else recipe.schedule,
            optimizer, num_warmup_steps=recipe.warmup_steps, num_training_steps=recipe.total_steps,
        )  # fmt: skip
        engine.optimizer, engine.lr_scheduler = optimizer, schedule
        model = engine.module if self.cut else WholeParameters(own)
        self._given = {"model": model, "optimizer": optimizer, "lr_scheduler": schedule}

    def train(self) -> None:
        """Train until the callbacks end the run, or its last step is done."""
        state, control = self.state, self.control
        self._each("on_train_begin")
        while not control.should_training_stop and state.global_step < state.max_steps:
            self._each("on_step_begin")
            numbers = self._step()
            self._each("on_optimizer_step")
            self.worker.engine.lr_scheduler.step()
            state.global_step += 1
            self._follow(numbers)
            self._each("on_step_end")
        self._each("on_train_end")

    def _each(self, event: str) -> None:
        """Call an event of every callback, and continue with the rows behind the parameters."""
        for callback in self._callbacks:
            getattr(callback, event)(None, self.state, self.control, **self._given)
        if self._position is not None and event in ("on_train_begin", "on_step_end"):
            self._skip = self._position() - self.state.global_step

    def _step(self) -> dict[str, float] | None:
        """Run one step; return its numbers, or ``None`` where it left the parameters unchanged."""
        from verl.utils import tensordict_utils as tu

        step = self._skip + self.state.global_step
        rows = self.steps.rows(step)
        hands, couples = dealt(rows, self.ranks.size, self.recipe.micro_batch_tokens)
        self.loss.begin(rows, self._teach(rows, hands), float(self.taught.taid.t or 0.0))
        self.worker.engine.module.zero_grad()
        done = self.worker.train_batch(self._batch(rows, hands[self.ranks.rank], couples))
        norm = float(tu.get(done, "metrics")["grad_norm"])
        parts = self.ranks.gather((self.loss.sums, self.loss.faults))
        if not norm < float("inf"):
            faults = ", ".join(fault for _, of_rank in parts for fault in of_rank)
            reason = f"{f'a loss among {faults}' if faults else 'the gradient'} is not finite"
            self._on_event("bad_step", step + 1, {"reason": reason})
            self._watch.bad(f"step {step + 1}: {reason}")
            return None
        active = {f"{channel}_active": 0.0 for channel in self.recipe.channels.weights()}
        numbers = active | means(sums for of_rank, _ in parts for sums in of_rank)
        # verl's backward is of all channels together: a channel lives that saw a token.
        seen = {name.replace("active", "grad_norm"): norm * (numbers[name] > 0) for name in active}
        self._watch.good({"grad_norm": norm, **seen})
        now, tokens = time.monotonic(), sum(row.size for row in rows if row.role != "hinted")
        seconds, self._clock = now - self._clock, now
        self.state.num_input_tokens_seen += tokens
        rate = float(self.worker.engine.lr_scheduler.get_last_lr()[0])
        speed = {"seconds": seconds, "tokens": tokens, "tokens_per_second": tokens / seconds}
        self._on_event(
            "step", step + 1, {**numbers, "grad_norm": norm, "learning_rate": rate, **speed}
        )
        return numbers

    def _teach(self, rows: Sequence[StepRow], hands: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """Return the teacher's logits for this rank's plain rows; all ranks read equally often."""
        plain = [[i for i in hand if i >= 0 and rows[i].role == "plain"] for hand in hands]
        most, own = max(map(len, plain)), [rows[i + 1] for i in plain[self.ranks.rank]]
        return self.taught.logits(own, most) if most else {}

    def _batch(self, rows: Sequence[StepRow], hand: Sequence[int], couples: int) -> Any:
        """Return this rank's rows as verl's batch."""
        from verl.utils import tensordict_utils as tu

        ids = [[*rows[i].prompt_ids, *rows[i].response_ids] if i >= 0 else [0, 0] for i in hand]
        columns = {
            "input_ids": [torch.tensor(one) for one in ids],
            "position_ids": [torch.arange(len(one)) for one in ids],
            "loss_mask": [torch.ones(len(one)) for one in ids],  # only verl's own count
        }
        nested = {
            n: torch.nested.as_nested_tensor(v, layout=torch.jagged) for n, v in columns.items()
        }
        plain = {
            "use_remove_padding": self._options.use_remove_padding, "force_group_size": 2,
            "micro_batch_size_per_gpu": couples, "global_batch_size": len(hand) * self.ranks.size,
            "global_token_num": list(map(len, ids)),
            # The loss is called with logits, and verl computes no log-probabilities itself.
            "distillation_use_topk": True, "distillation_only": True,
        }  # fmt: skip
        dense = {"row": torch.tensor(hand), "temperature": torch.ones(len(hand))}
        return tu.get_tensordict({**nested, **dense}, non_tensor_dict=plain)

    def _follow(self, numbers: dict[str, float] | None) -> None:
        """Move the teacher after a step; at a round's end check the channels and save its state."""
        done, inner = self._skip + self.state.global_step, self.recipe.diloco.inner_steps
        if numbers is not None:
            self.taught.follow(numbers.get("sdpo_loss", 0.0), done)
        if self._ends_round() if self._ends_round else done % inner == 0:
            self._watch.end_of_round()
            kept = self.taught.state()  # on every rank
            if self._states is not None:
                holder: Any = SimpleNamespace(name="sdpo", state=lambda: kept)
                self._states.save([holder], -(-done // inner) * inner)

    def private(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a restart inside a round needs besides parameters and optimizer."""
        # Several ranks only share it, and each has read the teacher's state itself.
        tensors, numbers = ({}, {}) if self.cut else self.taught.state()
        return tensors, {"sdpo": numbers, "watch": self._watch.state()}

    def load_private(self, tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
        """Restore :meth:`private`."""
        self.taught.load_state(tensors, numbers["sdpo"])
        self._watch.load_state(numbers["watch"])


def dealt(rows: Sequence[StepRow], ranks: int, limit: int) -> tuple[list[list[int]], int]:
    """Return each rank's row numbers, equally many, and the couples of rows in a micro-batch.

    Rows come two by two, so that no pair is split; -1 is filling. ``limit`` is of tokens in a
    micro-batch, padding included. Hinted rows are left out.
    """
    units: list[list[int]] = []
    for i, row in enumerate(rows):
        if row.role == "rejected":
            units[-1].append(i)
        elif row.role != "hinted":
            units.append([i])
    hands = []
    for hand in distribute(units, [sum(rows[i].size for i in unit) for unit in units], ranks):
        ordered = sorted(hand, key=lambda unit: (-len(unit), -rows[unit[0]].size))
        hands.append([i for unit in ordered for i in unit])
    longest = max((rows[i].size for unit in units for i in unit), default=1)
    most = max(1, *(-(-len(hand) // 2) for hand in hands))
    batches = -(-most // max(1, limit // (2 * longest)))
    couples = -(-most // batches)
    return [hand + [-1] * (2 * couples * batches - len(hand)) for hand in hands], couples


def build(
    run_dir: Path, recipe: TrainingRecipe, ranks: Ranks, folder: Path, *, slot: int, **given: Any
) -> tuple[VerlTrainer, str]:
    """Build a rank's trainer of a run; return it and the identity of its base model."""
    base = BaseScores.load(run_dir)
    data, _ = gate(recipe, TrainingData.load(run_dir / "data"), base.gains())
    identity, resolved = "", resolve_model(recipe.model)
    if ranks.lead:
        model = load_base(resolved, recipe)
        identity = base_identity(model, load_tokenizer(resolved), recipe)
        del model
    options = VerlOptions.model_validate(recipe.backend.options)
    worker = start_worker(recipe, ranks, options)
    steps = Steps(recipe, data, base, slot)
    return VerlTrainer(worker, recipe, steps, options, ranks=ranks, **given), identity


class _Device(SimpleNamespace):
    """Stands for ``torch.cuda``: what ``torch.cpu`` has, else a function that returns 0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)


_DEVICE = _Device(
    get_device_name=lambda *_: "CPU", is_available=lambda: False, mem_get_info=lambda *_: (0, 1)
)
#: Properties and methods of verl's platform, by name, with what they return; others return None.
_VALUES = {"device_name": "cpu", "vendor_name": "cpu", "device_module": _DEVICE}
_RETURNS: dict[str, Any] = {
    "is_available": True, "current_device": "cpu", "device_count": 1, "ray_resource_name": "CPU",
    "get_device_capability": (None, None), "communication_backend_name": "gloo",
    "visible_devices_envvar": "CUDA_VISIBLE_DEVICES", "ray_noset_envvars": [],
    "is_ipc_supported": False, "nvtx_range": contextlib.nullcontext(),
}  # fmt: skip


@cache
def register_cpu() -> None:
    """Register verl's FSDP2 engine for a CPU, for tests: upstream supports none.

    To be called before anything of ``verl.workers`` is imported.
    """
    os.environ["VERL_PLATFORM"] = "cpu"
    from verl.plugin.platform.platform_base import PlatformBase
    from verl.plugin.platform.platform_manager import PlatformRegistry

    def returning(value: Any) -> Any:
        return lambda *_, **__: value

    members = {name: returning(None) for name in PlatformBase.__abstractmethods__}
    members |= {name: returning(value) for name, value in _RETURNS.items()}
    members |= {name: property(returning(value)) for name, value in _VALUES.items()}
    members |= dict.fromkeys(("manual_seed", "manual_seed_all"), staticmethod(torch.manual_seed))
    PlatformRegistry.register(platform="cpu")(type("Cpu", (PlatformBase,), members))
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

    known = {"model_type": "language_model", "backend": ["fsdp2"], "device": ["cpu"]}
    EngineRegistry.register(**known)(FSDPEngineWithLMHead)
