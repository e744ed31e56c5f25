"""The trainers, the protocol that they implement, and the check of a recipe before any work."""

import importlib.util
import json
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from packaging.requirements import Requirement
from pydantic import BaseModel, ConfigDict, ValidationError

from composer_pipeline.errors import InputError
from composer_pipeline.plugins import Registry
from composer_pipeline.training.recipe import MonarchPlace, TrainingRecipe

Fidelity = Literal["exact", "sampled", "surrogate", "first_order"]


@dataclass(frozen=True)
class Carried:
    """How a trainer computes a channel of the composer loss.

    ``exact``: the channel's own gradient. ``sampled``: an unbiased estimate of it from sampled
    tokens. ``first_order``: equal to it at the start of a step. ``surrogate``: another loss in its
    place. ``why`` says in a sentence why it is not exact.
    """

    fidelity: Fidelity = "exact"
    why: str = ""


@dataclass(frozen=True)
class Refused:
    """A channel that a trainer cannot compute, and why, in a sentence."""

    why: str


@dataclass(frozen=True)
class Needs:
    """What a trainer needs and reads."""

    #: Requirements of its interpreter, such as ``verl==0.9.1``, and how to install them.
    requirements: Sequence[str] = ()
    install: str = ""
    #: It can run as several replicas.
    diloco: bool = False
    #: Recipe fields that it reads, with dots (``lora`` is all of its parts); ``None``: all. Any
    #: other is refused unless it has its default, or belongs to a channel that is off.
    reads: Collection[str] | None = None
    #: Checks ``backend.options``; ``None``: there are none.
    options: type[BaseModel] | None = None


@runtime_checkable
class Trainer(Protocol):
    """A training backend, run as a command of its own process."""

    name: str

    def carries(self, recipe: TrainingRecipe) -> Mapping[str, Carried | Refused]:
        """Return how it computes channels under this recipe. No torch, no I/O.

        A channel that is left out is refused; those that are off may be named.
        """
        ...

    def needs(self, recipe: TrainingRecipe) -> Needs:
        """Return what the trainer needs and reads under this recipe."""
        ...

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return the command that trains and writes ``composer.json`` into the run folder."""
        ...

    def code(self) -> Sequence[Path]:
        """Return the trainer's own files, and folders whose every ``*.py`` file counts.

        A finished run is reused only while these files are unchanged, so name everything that
        affects the result; modules of ``composer_pipeline`` are counted anyway.
        ``[Path(__file__).parent]`` is right for a trainer that is a package.
        """
        ...


@runtime_checkable
class Merger(Protocol):
    """Optional for a trainer: merge base and adapter of a finished run into one model."""

    def merge_command(self, python: str, run_dir: Path) -> Sequence[str]:
        """Return the command that writes ``merged/`` into a run folder atomically."""
        ...


@runtime_checkable
class Planner(Protocol):
    """Optional for a trainer: report what a run will need before it starts."""

    def plan_command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return the command that prints one event ``plan`` with the fields of ``PlanReport``.

        The command also accepts ``--probe``, ``--memory-gib N`` and ``--model-config FILE``.
        """
        ...


def repo_root() -> Path:
    """Return the folder that contains ``composer_pipeline`` and ``trainers``."""
    return Path(__file__).resolve().parents[2]


#: Why recorded answers are a surrogate of GRPO.
RECORDED = (
    "recorded answers of the agent and of teachers were not sampled from the model, so this is an"
    " offline surrogate of policy gradient, with importance ratio 1"
)
#: Seconds in which an interpreter must name its packages.
PROBE_S = 60.0


class TRL:
    """TRL: every channel, on CPU or one GPU a replica."""

    name = "trl"

    def carries(self, recipe: TrainingRecipe) -> Mapping[str, Carried | Refused]:
        """Return every channel; recorded answers of ``grpo`` make it a surrogate."""
        found: dict[str, Carried | Refused] = dict.fromkeys(recipe.channels.weights(), Carried())
        if "grpo" in found and recipe.channels.grpo.recorded:
            found["grpo"] = Carried("surrogate", RECORDED)
        return found

    def needs(self, recipe: TrainingRecipe) -> Needs:
        """Return TRL and what it trains with."""
        install = "pip install 'composer-pipeline[train]'"
        return Needs(("torch", "trl", "peft", "transformers", "accelerate"), install, diloco=True)

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers --recipe … --lake … --run-dir …``."""
        return _command(python, "trainers", recipe, lake, run_dir)

    def merge_command(self, python: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers.common.checkpoints --run-dir …``."""
        return [python, "-m", "trainers.common.checkpoints", "--run-dir", str(run_dir)]

    def plan_command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers.trl.plan --recipe … --lake … --run-dir …``."""
        return _command(python, "trainers.trl.plan", recipe, lake, run_dir)

    def code(self) -> Sequence[Path]:
        """Return the folders of the trainer and of what trainers share."""
        return _code("trl")


def _code(own: str) -> list[Path]:
    folder = repo_root() / "trainers"
    return [folder / "__main__.py", folder / "replica.py", folder / "common", folder / own]


def _command(python: str, module: str, recipe: Path, lake: str, run_dir: Path) -> list[str]:
    options = ["--recipe", str(recipe), "--lake", lake, "--run-dir", str(run_dir)]
    return [python, "-m", module, *options]


class PrimeOptions(BaseModel):
    """``backend.options`` of ``trainer: prime-rl``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    environment_url: str = "http://127.0.0.1:8000"
    """Of the environment server (`composer-pipeline environment`), for sampled GRPO."""
    renderer: str = ""
    """PRIME-RL's name of the model's chat template; it knows those of Qwen3 by itself."""


class VerlOptions(BaseModel):
    """``backend.options`` of ``trainer: verl``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    use_remove_padding: bool = False
    """Pack the sequences of a micro-batch into one row instead of padding them."""


class VeRL(TRL):
    """Replicas trained by VeRL's worker on FSDP2, without Ray, in an interpreter of its own.

    The run, its plan (with TRL's memory) and its checkpoint are those of :class:`TRL`.
    """

    name = "verl"

    def carries(self, recipe: TrainingRecipe) -> Mapping[str, Carried | Refused]:
        """Return what TRL does, without sampled answers."""
        found = dict(super().carries(recipe))
        if "grpo" in found and recipe.channels.grpo.sampled:
            found["grpo"] = Refused("VeRL's worker samples no answers without Ray and vLLM")
        return found

    def needs(self, recipe: TrainingRecipe) -> Needs:
        """Return VeRL, pinned, and all fields but those of evaluation and of shared forwards."""
        reads = {
            "model", "start_from", "lora", "channels", "data", "diloco", "ranks.processes", "steps",
            "epochs", "learning_rate", "schedule", "warmup_steps", "weight_decay", "max_grad_norm",
            "dtype", "activation_checkpointing", "attention", "micro_batch_tokens", "draw", "seed",
            "threads", "extends", "checkpoint_every",
        }  # fmt: skip
        if recipe.optimizer in ("adamw_torch", "adamw_torch_fused", "sgd"):
            reads.add("optimizer")
        install = (
            "make .venv-verl makes an environment for it, whose python is recipe field"
            " backend.python"
        )
        return Needs(("torch", "verl==0.9.1"), install, True, reads, VerlOptions)

    def code(self) -> Sequence[Path]:
        """Return the folders of the trainer and of what trainers share."""
        return _code("verl")


_ROLLOUTS = "PRIME-RL trains on rollouts of its own orchestrator and on nothing recorded"


class PrimeRL:
    """``python -m trainers.prime_rl``: writes PRIME-RL's files; the run is started by hand."""

    name = "prime-rl"

    def carries(self, recipe: TrainingRecipe) -> Mapping[str, Carried | Refused]:
        """Return SFT, or sampled GRPO: one of them, since each is a program of its own."""
        weights, grpo = recipe.channels.weights(), recipe.channels.grpo
        found: dict[str, Carried | Refused] = dict.fromkeys(weights, Refused(_ROLLOUTS))
        if "grpo" in weights and not grpo.recorded:
            found["grpo"] = Carried(
                "surrogate", "PRIME-RL divides by the tokens of a batch, not by a constant length"
            )
        if "sft" in weights:
            found["sft"] = Carried()
            if len(weights) > 1:
                found["sft"] = Refused("PRIME-RL trains it in a run of its own")
        return found

    def needs(self, recipe: TrainingRecipe) -> Needs:
        """Return nothing to install here, and the fields that have a place in its files."""
        reads = (
            "model", "lora", "steps", "epochs", "diloco.rounds", "diloco.inner_steps", "seed",
            "learning_rate", "weight_decay", "max_grad_norm", "data.max_prompt_tokens",
            "data.max_completion_tokens", "channels.sft.rows_per_step", "channels.grpo.source",
            "channels.grpo.group_size", "channels.grpo.groups_per_step",
        )  # fmt: skip
        return Needs(reads=reads, options=PrimeOptions)

    def command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return ``python -m trainers.prime_rl --recipe … --lake … --run-dir …``."""
        return _command(python, "trainers.prime_rl", recipe, lake, run_dir)

    def plan_command(self, python: str, recipe: Path, lake: str, run_dir: Path) -> Sequence[str]:
        """Return the same with ``--plan``."""
        return [*self.command(python, recipe, lake, run_dir), "--plan"]

    def code(self) -> Sequence[Path]:
        """Return the trainer's file."""
        return [repo_root() / "trainers" / "prime_rl.py"]


def carried(trainer: Trainer, recipe: TrainingRecipe) -> dict[str, Carried | Refused]:
    """Return how a trainer computes each channel that is on."""
    found, left_out = trainer.carries(recipe), Refused("it does not name it")
    return {channel: found.get(channel, left_out) for channel in recipe.channels.weights()}


def fidelity(recipe: TrainingRecipe) -> dict[str, str]:
    """Return how the recipe's trainer computes each channel that is on, in words."""
    trainer = TRAINERS.get(recipe.trainer, "recipe field trainer")
    return {
        channel: f"{how.fidelity}: {how.why}".rstrip(": ")
        for channel, how in carried(trainer, recipe).items()
        if isinstance(how, Carried)
    }


TRAINERS: Registry[Trainer] = Registry(
    "composer_pipeline.trainers",
    "trainer",
    Trainer,  # type: ignore[type-abstract]  # a protocol to check against
    {TRL.name: TRL, VeRL.name: VeRL, PrimeRL.name: PrimeRL},
)


#: Asks another interpreter for the versions of the packages that are its arguments.
_PROBE = """import json, sys
from importlib import metadata
found = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in metadata.distributions()}
print(json.dumps({n: found.get(n.lower().replace("_", "-"), "") for n in sys.argv[1:]}))
"""


def installed(python: str, names: Sequence[str]) -> dict[str, str]:
    """Return the versions of packages in an interpreter, empty for those that it lacks.

    ``python`` is a path, or empty for the running interpreter; InputError if it cannot be started.
    """
    if not python:
        return {name: _version(name) for name in names}
    command = [python, "-c", _PROBE, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"recipe field backend.python: cannot start {python}: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"recipe field backend.python: {python} is no Python interpreter: {last}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def validate(recipe: TrainingRecipe) -> Trainer:
    """Return the recipe's trainer after checking that it can carry out the recipe.

    Raises:
        InputError: an unknown trainer; a channel that it cannot compute, or not exactly and not
            as ``accept`` names; a field that it does not read; a package that its interpreter
            lacks or has in another version.
    """
    trainer = TRAINERS.get(recipe.trainer, "recipe field trainer")
    needs = trainer.needs(recipe)
    for channel, how in carried(trainer, recipe).items():
        _require_accepted(trainer.name, channel, how, recipe)
    if recipe.diloco.replicas > 1 and not needs.diloco:
        raise InputError(
            f"recipe field diloco.replicas: trainer {trainer.name!r} runs only one replica"
        )
    _require_read(trainer.name, needs, recipe)
    _require_options(trainer.name, needs, recipe)
    _require_installed(trainer.name, needs, recipe)
    for module in recipe.report_to:
        if importlib.util.find_spec(module) is None:
            raise InputError(f"recipe field report_to: {module} is not installed")
    if isinstance(recipe.diloco.place, MonarchPlace) and not importlib.util.find_spec("monarch"):
        raise InputError(
            "recipe field diloco.place: 'monarch' needs its package: pip install"
            " torchmonarch==0.7.0"
        )
    if recipe.attention == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise InputError(
            "recipe field attention: 'flash_attention_2' needs the package flash-attn, which is"
            " not installed; use 'sdpa'"
        )
    return trainer


def _require_accepted(
    trainer: str, channel: str, how: Carried | Refused, recipe: TrainingRecipe
) -> None:
    if isinstance(how, Refused):
        raise InputError(
            f"recipe field channels.{channel}.weight: trainer {trainer!r} cannot compute this"
            f" channel: {how.why}; set the weight to 0"
        )
    if how.fidelity != "exact" and (channel, how.fidelity) not in recipe.accept.items():
        raise InputError(
            f"recipe field accept: trainer {trainer!r} computes {channel} as {how.fidelity}:"
            f" {how.why}; to train so, add {channel}: {how.fidelity}"
        )


def _leaves(value: object, name: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict) and value:
        for key, part in value.items():
            yield from _leaves(part, f"{name}.{key}" if name else key)
    else:
        yield name, value


def _require_read(trainer: str, needs: Needs, recipe: TrainingRecipe) -> None:
    """Raise InputError for a field that has another value than its default and is not read."""
    if needs.reads is None:
        return
    read = {*needs.reads, "name", "trainer", "backend", "accept"}
    if not needs.diloco:
        read.add("diloco.replicas")
    on = recipe.channels.weights()
    usual = dict(_leaves(TrainingRecipe(name=recipe.name).model_dump(mode="json")))
    for field, value in _leaves(recipe.model_dump(mode="json")):
        parts = field.split(".")
        names = {".".join(parts[: n + 1]) for n in range(len(parts))}
        # What channels carry is judged elsewhere, and those that are off do nothing.
        apart = parts[0] == "channels" and (parts[1] not in on or parts[2] == "weight")
        if not apart and not names & read and value != usual.get(field):
            only = json.dumps(usual.get(field))
            raise InputError(f"recipe field {field}: trainer {trainer!r} takes only {only}")


def _require_options(trainer: str, needs: Needs, recipe: TrainingRecipe) -> None:
    if needs.options is None:
        if recipe.backend.options:
            raise InputError(f"recipe field backend.options: trainer {trainer!r} has none")
        return
    try:
        needs.options.model_validate(recipe.backend.options)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("backend.options", *first["loc"])))
        raise InputError(f"recipe field {place}: {first['msg']}") from error


def _require_installed(trainer: str, needs: Needs, recipe: TrainingRecipe) -> None:
    wanted = [Requirement(text) for text in needs.requirements]
    found = installed(recipe.backend.python, [each.name for each in wanted])
    where = f" in {recipe.backend.python}" if recipe.backend.python else ""
    for each in wanted:
        if not (version := found[each.name]):
            raise InputError(f"trainer {trainer!r} needs {each}{where}: {needs.install}")
        if not each.specifier.contains(version, prereleases=True):
            raise InputError(
                f"trainer {trainer!r} needs {each}{where}, which has {version}: {needs.install}"
            )
