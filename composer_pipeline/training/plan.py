"""What a run needs and what the machine has: ``composer-pipeline train --plan``.

Rows are counted and steps timed in the trainer's own process (``trainers.trl.plan``).

Predicted peak memory. Bytes kept for the backward pass are what autograd saves in transformers'
Llama layers, counted term by term in :func:`kept_by_layer`; PyTorch's own count of saved tensors
agrees within 0.1 % in seven settings (``tests/training/test_memory.py``). Short-lived tensors are
read from the code of the losses. Live tensors of ten settings on a CPU are within a tenth of it
(``benchmarks/train_memory.py``); beside them the host's C allocator holds freed memory, for which
a rough share is added. Not included: the interpreter, libraries, a CUDA context, and fragmentation
on a device. Sharded layers (``ranks.sharding: fsdp2``) follow ``trainers.common.ranks`` and were
not measured.

Only NVIDIA devices are found, from ``CUDA_VISIBLE_DEVICES`` (taken at its word) or, without it,
from ``nvidia-smi``, without loading torch. A CPU build of torch uses none.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Report
from composer_pipeline.training.events import run_process
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import Planner, fidelity, repo_root, validate
from composer_pipeline.training.run import RECIPE, environment, prepare, write_recipe

VISIBLE = "CUDA_VISIBLE_DEVICES"
_QUERY = ("--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Device:
    """One accelerator: its name in ``CUDA_VISIBLE_DEVICES``, and its memory in bytes if known."""

    name: str
    memory: int | None


def devices(environ: Mapping[str, str] | None = None) -> list[Device]:
    """Return the accelerators that this process may use, in torch's order; none on a CPU."""
    environ = os.environ if environ is None else environ
    if _cpu_build():
        return []
    found = _listed()
    if VISIBLE not in environ:
        return [Device(index, memory) for index, _, memory in found]
    names = [name.strip() for name in environ[VISIBLE].split(",") if name.strip()]
    if "-1" in names:  # what follows it is invisible
        names = names[: names.index("-1")]
    memory = {name: size for index, uuid, size in found for name in (index, uuid)}
    return [Device(name, memory.get(name)) for name in names]


def device_of_each(
    replicas: int, available: list[Device], *, processes: int = 1
) -> list[dict[str, str]]:
    """Return the environment of each replica, which selects its devices; empty on a CPU."""
    if not available:
        return [{} for _ in range(replicas)]
    needed = replicas * processes
    if needed > len(available):
        what, lower = f"{replicas} replicas need a device each", "diloco.replicas"
        if processes > 1:
            what = f"{replicas} x {processes} processes need a device each"
            lower = "ranks.processes or diloco.replicas"
        raise InputError(
            f"recipe field {'ranks.processes' if processes > 1 else 'diloco.replicas'}: {what}, and"
            f" {len(available)} {'is' if len(available) == 1 else 'are'} visible; lower"
            f" {lower} or hide the devices with CUDA_VISIBLE_DEVICES="
        )
    names = [device.name for device in available[:needed]]
    return [
        {VISIBLE: ",".join(names[start : start + processes])}
        for start in range(0, needed, processes)
    ]


def host_memory() -> int:
    """Return the bytes of memory available on this machine."""
    path = Path("/proc/meminfo")
    lines = path.read_text(encoding="ascii").splitlines() if path.is_file() else []
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise InputError("/proc/meminfo does not say how much memory is available; give --memory-gib")


def _cpu_build() -> bool:
    try:
        return importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return True


def _listed() -> list[tuple[str, str, int]]:
    # Index, uuid and bytes of each device; none without nvidia-smi.
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    answer = subprocess.run([program, *_QUERY], capture_output=True, text=True, check=False)
    rows = (
        [line.split(", ") for line in answer.stdout.splitlines()] if not answer.returncode else []
    )
    return [
        (row[0], row[1], int(row[2]) * 2**20)
        for row in rows
        if len(row) == 3 and row[2].strip().isdigit()
    ]


@dataclass(frozen=True)
class RowSize:
    """A row of a channel as numbers of tokens."""

    #: What packing counts; of a pair both sides.
    size: int
    #: Its longest prompt.
    prompt: int
    #: Each response that it adds to the forward.
    responses: tuple[int, ...]
    #: Positions whose log-probability counts.
    selected: int


@dataclass(frozen=True)
class Load:
    """One forward: ``rows`` sequences of ``width`` tokens, padding included."""

    channel: str
    rows: int
    width: int
    selected: int
    #: Some sequences are shorter than ``width``.
    padded: bool
    #: The forward samples answers.
    cache: bool = False
    #: Rows of all channels share it, as trees.
    shared: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the forward, padding included."""
        return self.rows * self.width


def load_of(channel: str, rows: Sequence[RowSize]) -> Load:
    """Return the forward of a micro-batch."""
    lengths = [row.prompt + n for row in rows for n in row.responses]
    width = max(lengths)
    if channel == "grpo":  # prompts padded on the left, answers on the right
        answers = max(n for row in rows for n in row.responses)
        width = max(row.prompt for row in rows) + answers
    padded = any(length != width for length in lengths)
    return Load(channel, len(lengths), width, sum(row.selected for row in rows), padded)


def loads_of(recipe: TrainingRecipe, batches: dict[str, list[list[RowSize]]]) -> list[Load]:
    """Return every distinct forward of a run, given each channel's micro-batches."""
    found = {load_of(channel, batch) for channel, many in batches.items() for batch in many}
    grpo = recipe.channels.grpo
    if "grpo" in batches and grpo.sampled:
        prompt = max(row.prompt for batch in batches["grpo"] for row in batch)
        width = prompt + recipe.data.max_completion_tokens
        rows = grpo.group_size
        found.add(Load("grpo", rows, width, rows, padded=True, cache=True))
    return sorted(found, key=lambda load: (load.channel, load.tokens))


def shared_loads(windows: Mapping[str, list[list[RowSize]]], limit: int) -> list[Load]:
    """Return the forward of trees in each step, as large as it can be, by channel.

    What rows have in common is not known here: at most a micro-batch of ``limit`` tokens is full.
    """
    found = set()
    for step in zip(*windows.values(), strict=True):
        nodes = [row.prompt + sum(row.responses) for rows in step for row in rows]
        tokens = max(*nodes, min(limit, sum(nodes)))
        for channel, rows in zip(windows, step, strict=True):
            selected = min(tokens, sum(row.selected for row in rows))
            found.add(Load(channel, 1, tokens, selected, padded=False, shared=True))
    return sorted(found, key=lambda load: (load.channel, load.tokens, load.selected))


def assumed_rows(recipe: TrainingRecipe, channel: str) -> list[RowSize]:
    """Return the rows of one step where none can be counted: each as long as the recipe allows."""
    prompt, answer = recipe.data.max_prompt_tokens, recipe.data.max_completion_tokens
    one = RowSize(prompt + answer, prompt, (answer,), answer)
    many = recipe.channels.rows_per_step()[channel]
    if channel == "dpo":
        return [RowSize(2 * one.size, prompt, (answer, answer), 2 * answer)] * many
    return [one] * (many * recipe.channels.grpo.group_size if channel == "grpo" else many)


#: Model types whose layers have the parts that are counted here.
KNOWN = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
#: With a norm on each head's query and key.
_QK_NORM = ("qwen3",)
#: With a bias on query, key and value.
_QKV_BIAS = ("qwen2",)


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model: H hidden, I intermediate, V vocabulary."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    qkv_bias: bool = False

    @staticmethod
    def load(path: Path) -> "ModelShape":
        """Read a config.json, given its path or the model's folder."""
        path = path / "config.json" if path.is_dir() else path
        try:
            config: Any = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"model config {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise InputError(f"model config {path} is not JSON: {error}") from error
        if not isinstance(config, dict):
            raise InputError(f"model config {path} is not a JSON object")
        kind = config.get("model_type")
        if kind not in KNOWN:
            raise InputError(
                f"model config {path}: memory of model_type {kind!r} is not predicted (known:"
                f" {', '.join(KNOWN)}); train with a small micro_batch_tokens and read"
                " peak_memory_mib in metrics.jsonl"
            )
        try:
            heads, hidden = config["num_attention_heads"], config["hidden_size"]
            return ModelShape(
                hidden=hidden,
                layers=config["num_hidden_layers"],
                intermediate=config["intermediate_size"],
                heads=heads,
                kv_heads=config.get("num_key_value_heads") or heads,
                head_dim=config.get("head_dim") or hidden // heads,
                vocabulary=config["vocab_size"],
                tied=bool(config.get("tie_word_embeddings", False)),
                qk_norm=kind in _QK_NORM,
                qkv_bias=kind in _QKV_BIAS or bool(config.get("attention_bias")),
            )
        except KeyError as error:
            raise InputError(f"model config {path} has no {error.args[0]}") from error

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Linear maps of a layer: name to (inputs, outputs)."""
        h, i, kv = self.hidden, self.intermediate, self.kv_heads * self.head_dim
        q = self.heads * self.head_dim
        return {
            "q_proj": (h, q), "k_proj": (h, kv), "v_proj": (h, kv), "o_proj": (q, h),
            "gate_proj": (h, i), "up_proj": (h, i), "down_proj": (i, h),
        }  # fmt: skip

    @property
    def layer_parameters(self) -> int:
        """Parameters of the linear maps of one layer."""
        return sum(a * b for a, b in self.linears.values())

    @property
    def parameters(self) -> int:
        """All parameters."""
        h, kv = self.hidden, self.kv_heads * self.head_dim
        small = 2 * h + 2 * self.head_dim * self.qk_norm
        bias = (self.heads * self.head_dim + 2 * kv) * self.qkv_bias
        embeddings = self.vocabulary * h * (1 if self.tied else 2)
        return embeddings + self.layers * (self.layer_parameters + small + bias) + h

    def targets(self, recipe: TrainingRecipe) -> list[str]:
        """Return the linear maps of a layer that have an adapter."""
        given = recipe.lora.targets
        return [n for n in self.linears if recipe.lora.r and (given == "all-linear" or n in given)]

    def trained(self, recipe: TrainingRecipe) -> int:
        """Return the parameters that a recipe trains."""
        if not recipe.lora.r:
            return self.parameters
        pairs = (self.linears[name] for name in self.targets(recipe))
        return self.layers * recipe.lora.r * sum(a + b for a, b in pairs)


#: Bytes of optimizer state for each trained parameter; Adafactor's rows and columns are small.
#: Muon needs 4 for a matrix of a layer and AdamW's 8 for embeddings: the larger is taken.
OPTIMIZER = {"adamw_torch": 8, "adamw_torch_fused": 8, "adafactor": 0, "sgd": 0, "muon": 8}
#: TRL's tile (``trl.kernels.chunked_logprob``).
TILE_TOKENS, TILE_VOCABULARY = 4096, 32768
#: Bytes an element that TRL's tile costs beside itself, without Triton and with it.
TILE_HOST, TILE_DEVICE = 29, 0
#: Bytes that glibc holds beside live tensors, as a share of them: fitted, host only.
HOST_ALLOCATOR = 0.5


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak; ``worst`` is the channel whose micro-batch causes it."""

    weights: int
    adapter: int
    gradients: int
    optimizer: int
    teacher: int
    measured_gradients: int
    activations: int
    passing: int
    logits: int
    allocator: int
    worst: str

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Return bytes by part."""
        return {name: value for name, value in asdict(self).items() if name != "worst"}


def peak(shape: ModelShape, recipe: TrainingRecipe, loads: list[Load], *, device: bool) -> Memory:
    """Return the memory of one process of a replica at its heaviest micro-batch.

    On a ``device`` TRL's head runs in Triton.
    """
    lora = recipe.lora.r > 0
    trained = shape.trained(recipe) if lora else _cut(shape, recipe)
    sdpo = recipe.channels.sdpo
    teacher = 0
    if "sdpo" in recipe.channels.weights():
        copies = {"frozen": not lora, "ema": True, "live": False}
        teacher = 4 * trained if copies[sdpo.teacher] else 0
    # Independent of the micro-batch.
    static = {
        "weights": (_cut(shape, recipe) + _gathered(shape, recipe))
        * (2 if _half(recipe) and lora else 4),
        "adapter": 4 * trained if lora else 0,
        "gradients": 4 * trained,
        "optimizer": OPTIMIZER[recipe.optimizer] * trained,
        "teacher": teacher,
        "measured_gradients": 4 * trained * (len(recipe.channels.weights()) - 1),
    }
    moving = [(_moving(shape, recipe, load, device=device), load.channel) for load in loads]
    (activations, passing, logits), worst = max(moving, key=lambda one: sum(one[0]))
    live = sum(static.values()) + activations + passing + logits
    kept = 0 if device else int(HOST_ALLOCATOR * live)
    return Memory(
        **static,
        activations=activations,
        passing=passing,
        logits=logits,
        allocator=kept,
        worst=worst,
    )


def _cut(shape: ModelShape, recipe: TrainingRecipe) -> int:
    # With fsdp2 a process keeps its shard of the layers.
    layers, ranks = shape.layers * shape.layer_parameters, recipe.ranks
    parts = ranks.processes if ranks.sharding == "fsdp2" else 1
    return shape.parameters - layers + -(-layers // parts)


def _gathered(shape: ModelShape, recipe: TrainingRecipe) -> int:
    # Two sharded layers are whole at a time: one in use, one prefetched.
    several = recipe.ranks.sharding == "fsdp2" and recipe.ranks.processes > 1
    return min(2, shape.layers) * shape.layer_parameters if several else 0


def kept_on_disk(shape: ModelShape, recipe: TrainingRecipe) -> int:
    """Return the bytes of a replica's checkpoint: parameters, optimizer and averaged teacher."""
    averaged = "sdpo" in recipe.channels.weights() and recipe.channels.sdpo.teacher == "ema"
    return shape.trained(recipe) * (4 + OPTIMIZER[recipe.optimizer] + 4 * averaged)


def _moving(
    shape: ModelShape, recipe: TrainingRecipe, load: Load, *, device: bool
) -> tuple[int, int, int]:
    """Return bytes of the activations kept for backward, of short-lived tensors and of the loss."""
    if load.cache:
        width = 2 if _half(recipe) else 4
        cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * width
        return 0, load.tokens * cache, load.rows * shape.vocabulary * 4 * 3
    width = 2 if _half(recipe) else 4
    mask = load.shared and not device
    layer = kept_by_layer(shape, recipe, replace(load, padded=True) if mask else load)
    full_half = _half(recipe) and not recipe.lora.r
    # The last norm, and the second factor of its weight's gradient where that is trained.
    ends = 4 * shape.hidden * (2 if not recipe.lora.r else int(recipe.activation_checkpointing))
    stream = shape.hidden * (4 if full_half else width)
    # Backward of a gated MLP holds the gradients of its product, gate and up at once.
    passing = load.tokens * (4 * shape.intermediate * width + 3 * shape.hidden * 4)
    copies = 2 * _cast_parameters(shape, recipe)
    if recipe.activation_checkpointing:
        kept = load.tokens * (shape.layers * stream + ends)
        passing += layer + copies // shape.layers
        copies = 0
    else:
        kept = shape.layers * layer + load.tokens * ends
    kept += mask * load.tokens * load.width * width  # one for all layers
    return kept + copies, passing, _logits(shape, recipe, load, device=device)


def kept_by_layer(shape: ModelShape, recipe: TrainingRecipe, load: Load) -> int:
    """Return the bytes that one layer keeps for its backward.

    A layer of Llama keeps for each token: the input of both norms in float32 with one number each;
    query, key, value and the attention's result with its log-sum; the MLP's gate, its activation
    and the up projection. A trained linear map or an adapter also keeps its input; under autocast
    each map casts that input separately.
    """
    h, i, q = shape.hidden, shape.intermediate, shape.heads * shape.head_dim
    kv = shape.kv_heads * shape.head_dim
    half, r = _half(recipe), recipe.lora.r
    b = 2 if half else 4
    norms = 2 * (4 * h + 4)
    if shape.qk_norm:
        norms += 4 * (q + kv) + 4 * (shape.heads + shape.kv_heads)
    if not r:  # the norms' weights are trained: the second factor of their gradients
        norms += 2 * 4 * h + (4 * (q + kv) if shape.qk_norm else 0)
    attention = b * (2 * q + 2 * kv) + 4 * shape.heads
    if load.padded:  # a mask, whose row is kept: keys and values are repeated for each query head
        attention += b * (2 * (q - kv) + load.width * (not load.shared))
    if recipe.attention == "eager":  # repeats them always, and keeps scores in float32 and in half
        result = not r or (not half and "o_proj" in shape.targets(recipe))
        attention = b * q * (3 + result) + load.width * shape.heads * (6 if half else 4)
    mlp = 3 * b * i
    inputs = _inputs(shape, recipe, b)
    inputs += b * r * len(shape.targets(recipe))  # what an adapter's second factor reads
    return load.tokens * (norms + attention + mlp + inputs)


def _inputs(shape: ModelShape, recipe: TrainingRecipe, b: int) -> int:
    # Bytes a token of inputs that linear maps keep beyond what is kept anyway.
    h, i, q = shape.hidden, shape.intermediate, shape.heads * shape.head_dim
    at = set(shape.targets(recipe)) if recipe.lora.r else set(shape.linears)
    attention, mlp = at & {"q_proj", "k_proj", "v_proj"}, at & {"gate_proj", "up_proj"}
    if not _half(recipe):
        # Maps that read one tensor share it; the attention's result is kept anyway.
        return b * (h * bool(attention) + h * bool(mlp) + i * ("down_proj" in at))
    copies = h * (len(attention) + len(mlp)) + i * ("down_proj" in at)
    if recipe.lora.r:  # PEFT goes through float32, so that nothing is shared
        return b * (copies + q * ("o_proj" in at))
    return b * copies


def _cast_parameters(shape: ModelShape, recipe: TrainingRecipe) -> int:
    # Parameters of which autocast keeps a bf16 copy.
    if not _half(recipe):
        return 0
    return shape.trained(recipe) if recipe.lora.r else shape.layers * shape.layer_parameters


def _logits(shape: ModelShape, recipe: TrainingRecipe, load: Load, *, device: bool) -> int:
    # Bytes of a loss between forward and backward, from the kernels' own chunks.
    from composer_pipeline.losses import divergence, token_logps

    v, b = shape.vocabulary, 2 if _half(recipe) else 4
    head = 4 * v * shape.hidden if not recipe.lora.r else 0
    if load.channel == "grpo" and not load.shared:
        # On the host TRL projects every position, on a device only those of answers.
        positions = load.selected if device else load.tokens
        tile = min(positions, TILE_TOKENS) * min(v, TILE_VOCABULARY)
        return head + tile * (b + (TILE_DEVICE if device else TILE_HOST))
    # A 16-bit gradient of a chunk's logits, before it is multiplied with the head.
    narrow = b if b == 2 else 0
    if load.channel == "sdpo":
        chunk = min(load.selected, divergence.chunk_of(v))
        block = min(chunk, divergence.block_of(v, on_device=device))
        buffers = (2 * chunk + 2 * block) * v * 4 + chunk * v * narrow
        return head + buffers + load.selected * shape.hidden * 3 * b
    chunk = min(load.selected, token_logps.CHUNK)
    return head + chunk * v * (4 + narrow) + load.selected * shape.hidden * 2 * b


def _half(recipe: TrainingRecipe) -> bool:
    return recipe.dtype == "bf16"


@dataclass(frozen=True)
class PlanReport(Report):
    """What a run will need."""

    #: Holds the run's windows; ``None`` where ``lengths`` are assumed.
    run_dir: Path | None
    #: ``counted``, or ``assumed``: every row as long as the recipe allows.
    lengths: str
    #: Usable rows by channel; rows of the tables where lengths are assumed.
    rows: dict[str, int]
    #: How the trainer computes each channel: exact, or how else and why.
    fidelity: dict[str, str]
    #: Optimizer steps of each replica.
    steps: int
    steps_per_epoch: int
    #: Of each replica, without padding.
    tokens_per_step: float
    #: Predicted memory of a replica at its peak, by part; ``peak_gib`` is the sum.
    memory_gib: dict[str, float]
    peak_gib: float
    worst_channel: str
    #: Memory available to one replica, and ``where``.
    limit_gib: float
    where: str
    #: What a replica writes to its own disk at each checkpoint.
    checkpoint_gib: float = 0.0
    #: Share of rows by channel whose prompt was cut, and rows left out by ``channel: reason``.
    cut_share: dict[str, float] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    #: Seconds a step, hours of the run and measured peak; empty without ``--probe``.
    probe: dict[str, float] = field(default_factory=dict)


def plan(
    lake: Lake,
    recipe: TrainingRecipe | str | Path,
    run_root: str | Path,
    *,
    probe: bool = False,
    memory_gib: float | None = None,
    model_config: str | Path | None = None,
) -> PlanReport:
    """Return what a run of a recipe would need, or raise InputError if it does not fit."""
    if memory_gib is not None and not memory_gib > 0:
        raise InputError(f"--memory-gib must be above 0, got {memory_gib:g}")
    if probe and model_config is not None:
        raise InputError("--probe needs the model, and --model-config plans without it")
    if not isinstance(recipe, TrainingRecipe):
        recipe = TrainingRecipe.load(recipe)
    trainer = validate(recipe)
    if not isinstance(trainer, Planner):
        raise InputError(f"recipe field trainer: {trainer.name!r} has no planner")
    options = ["--probe"] if probe else []
    if memory_gib is not None:
        options += ["--memory-gib", str(memory_gib)]
    if model_config is None:
        run = prepare(lake, recipe, run_root)
        return _ask(trainer, recipe, lake, run.run_dir, options)
    options += ["--model-config", str(Path(model_config).absolute())]
    with TemporaryDirectory() as scratch:  # without its model a run has no fingerprint
        folder = Path(scratch)
        write_recipe(recipe, folder)
        return replace(_ask(trainer, recipe, lake, folder, options), run_dir=None)


def _ask(
    trainer: Planner, recipe: TrainingRecipe, lake: Lake, run_dir: Path, options: list[str]
) -> PlanReport:
    command = trainer.plan_command(sys.executable, run_dir / RECIPE, lake.url, run_dir)
    found: dict[str, Any] = {}
    run_process(
        [*command, *options],
        cwd=repo_root(),
        env=environment(recipe),
        what="planning",
        on_event=lambda event: found.update(event) if event.get("event") == "plan" else None,
    )
    found.pop("event", None)
    return PlanReport(run_dir=run_dir, fidelity=fidelity(recipe), **found)


GIB = 2**30
#: Interpreter, libraries and, on a device, its context: 0.6 GiB measured on the host with torch
#: and TRL loaded; on a device an allowance, not measured.
RUNTIME = GIB


def require_fit(
    recipe: TrainingRecipe, predict: Callable[[TrainingRecipe], Memory], limit: int, where: str
) -> None:
    """Raise InputError if a run needs more than ``limit`` bytes; name the field to change."""
    memory = predict(recipe)
    need = memory.total + RUNTIME
    if need <= limit:
        return
    largest = max(memory.parts().items(), key=lambda part: part[1])
    need_text = (
        f"the run needs {_gib(need)} at its peak (channel {memory.worst}; {_gib(largest[1])} of it"
        f" {largest[0].replace('_', ' ')}) and {where} has {_gib(limit)}"
    )
    for remedy, changed in _changes(recipe):
        need = predict(changed).total + RUNTIME
        if need <= limit:
            raise InputError(f"{need_text}: with {remedy} it needs {_gib(need)}")
    raise InputError(f"{need_text}: choose a smaller model, or lora.r above 0 where it is 0")


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _changes(recipe: TrainingRecipe) -> Iterator[tuple[str, TrainingRecipe]]:
    # The changes that cost the result least come first.
    changes: list[str] = []
    if not recipe.activation_checkpointing:
        changes.append("activation_checkpointing: true")
        recipe = recipe.model_copy(update={"activation_checkpointing": True})
        yield ", ".join(changes), recipe
    tokens = recipe.micro_batch_tokens // 2
    while tokens >= 512:
        smaller = recipe.model_copy(update={"micro_batch_tokens": tokens})
        yield ", ".join([*changes, f"micro_batch_tokens: {tokens}"]), smaller
        tokens //= 2
    if recipe.dtype == "fp32":
        changes.append("dtype: bf16")
        recipe = recipe.model_copy(update={"dtype": "bf16"})
        yield ", ".join(changes), recipe
    prompt = recipe.data.max_prompt_tokens // 2
    while prompt >= 256:
        data = recipe.data.model_copy(update={"max_prompt_tokens": prompt})
        shorter = recipe.model_copy(update={"micro_batch_tokens": 512, "data": data})
        text = [*changes, "micro_batch_tokens: 512", f"data.max_prompt_tokens: {prompt}"]
        yield ", ".join(text), shorter
        prompt //= 2
