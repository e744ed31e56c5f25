"""A run's checkpoint: the last committed state as safetensors for ``peft`` or ``transformers``.

``python -m trainers.common.checkpoints --run-dir D`` merges a finished run's adapter into its base.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from composer_pipeline.diloco.callback import adopt
from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import out_of_space, replace
from composer_pipeline.training.model_card import CARD, card, evaluation_of
from composer_pipeline.training.models import (
    ADAPTER_CONFIG,
    load_tokenizer,
    resolve_adapter,
    resolve_model,
)
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import CHECKPOINT, MERGED, RECIPE, RESULT, alone, finished
from trainers.common.outer_log import EventUploader, fetch_states
from trainers.common.policy import load_base, lora_config

if TYPE_CHECKING:
    from trainers.common.channels import Channel

FILE = "channels.safetensors"
#: Rounds whose state a replica keeps: the committed one and the one it contributes to.
KEPT = 2


class ChannelStates:
    """The states of one replica's channels, round by round.

    ``first`` is an earlier run's state to start from. ``log`` is on other storage and gets the
    states too, with the events of ``uploader``.
    """

    def __init__(
        self, run_dir: Path, slot: int, *, keep_all: bool = False, first: Path | None = None,
        log: OuterLog | None = None, uploader: EventUploader | None = None,
    ) -> None:  # fmt: skip
        self._run_dir, self._slot, self._keep_all, self._first = run_dir, slot, keep_all, first
        self._log, self._uploader = log, uploader

    def save(self, channels: "Sequence[Channel[Any]]", step: int) -> None:
        """Write the channels' states as they are after ``step`` steps of the run."""
        if self._uploader is not None:
            self._uploader.upload()
        tensors, numbers = collect_states(channels)
        if not tensors and not numbers:
            return
        file = _folder(self._run_dir, self._slot) / f"channels-{step:08d}.safetensors"
        file.parent.mkdir(parents=True, exist_ok=True)
        replace(file, save(tensors, {"numbers": json.dumps(numbers)}))
        if not self._keep_all:
            for old in sorted(file.parent.glob("channels-*.safetensors"))[:-KEPT]:
                old.unlink()
        if self._log is not None:
            self._store(file)

    def _store(self, file: Path) -> None:
        """Put a state into the log, and delete the states that nobody needs any more."""
        assert self._log is not None
        store, folder = self._log.store, f"channels/{self._slot}"
        store.upload(f"{folder}/{file.name}", file)
        if not self._keep_all:
            for old in store.list(folder)[:-KEPT]:
                store.delete(old.key)

    def load(self, channels: "Sequence[Channel[Any]]", step: int) -> bool:
        """Restore this slot's newest state not after ``step``, else another's; return if any."""
        if self._log is not None:
            fetch_states(self._log, self._run_dir, step)
        file = state_file(self._run_dir, step, prefer=self._slot) or self._first
        if file is None:
            return False
        with safe_open(str(file), framework="pt") as source:
            numbers = json.loads(source.metadata()["numbers"])
            tensors = {name: source.get_tensor(name) for name in source.keys()}  # noqa: SIM118
        restore_states(channels, tensors, numbers)
        return True


def collect_states(channels: "Sequence[Channel[Any]]") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return all channels' tensors as ``<channel>/<name>``, and their numbers by channel."""
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    for channel in channels:
        own, plain = channel.state()
        tensors |= {f"{channel.name}/{name}": t.contiguous() for name, t in own.items()}
        if plain:
            numbers[channel.name] = plain
    return tensors, numbers


def restore_states(
    channels: "Sequence[Channel[Any]]", tensors: dict[str, Tensor], numbers: dict[str, Any]
) -> None:
    """Give each channel its part of what :func:`collect_states` returned."""
    for channel in channels:
        prefix = f"{channel.name}/"
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        channel.load_state(own, numbers.get(channel.name, {}))


def state_file(run_dir: Path, step: int, *, prefer: int = 0) -> Path | None:
    """Return the newest state not after ``step``: of slot ``prefer``, else of the lowest."""
    found = [
        (int(path.stem.rpartition("-")[2]), int(path.parent.name.rpartition("-")[2]), path)
        for path in _folder(run_dir, "*").parent.glob("slot-*/channels-*.safetensors")
    ]
    known = [(done, slot == prefer, -slot, path) for done, slot, path in found if done <= step]
    return max(known)[-1] if known else None


def earlier_state(recipe: TrainingRecipe) -> Path | None:
    """Return the state beside the adapter of ``start_from``, or ``None``."""
    if not recipe.start_from:
        return None
    file = resolve_adapter(recipe.start_from) / FILE
    return file if file.is_file() else None


def _folder(run_dir: Path, slot: int | str) -> Path:
    return run_dir / "replicas" / f"slot-{slot}"


def write_checkpoint(
    recipe: TrainingRecipe,
    url: str,
    run_id: str,
    target: Path,
    *,
    base: Mapping[str, str],
    files: Mapping[str, str],
    round_: int | None = None,
    states: Path | None = None,
) -> None:
    """Write a round's state, by default the last, as a PEFT adapter, or without LoRA a whole model.

    The folder appears whole or not at all, with the tokenizer and ``files`` (name to text).
    ``base`` is the model's content (``training.run.Content``), with its name for other machines.
    """
    theta, _ = read_state(url, run_id, round_)
    resolved = resolve_model(recipe.model)
    model = load_base(resolved, recipe)
    if recipe.lora.r:
        from peft import get_peft_model

        model = get_peft_model(model, lora_config(recipe))
    adopt(model, theta)
    with appearing(target) as scratch:
        model.save_pretrained(str(scratch), safe_serialization=True)
        if states is not None:
            shutil.copyfile(states, scratch / FILE)
        save_beside(scratch, resolved, base, files)


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` when the block succeeds."""
    scratch = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with out_of_space(str(target), SafetensorError):
            scratch.mkdir(parents=True)
            yield scratch
            shutil.rmtree(target, ignore_errors=True)
            scratch.replace(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def save_beside(
    folder: Path, resolved: str, base: Mapping[str, str], files: Mapping[str, str]
) -> None:
    """Save tokenizer and ``files`` beside the weights, naming the base by its public name."""
    load_tokenizer(resolved).save_pretrained(str(folder))
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    commit = base["digest"].removeprefix("commit:") if base["kind"] == "hub" else None
    if (folder / ADAPTER_CONFIG).is_file():
        changes = {"base_model_name_or_path": base["name"], "revision": commit}
        _change(folder / ADAPTER_CONFIG, changes)
    for path in (folder / "config.json", folder / "tokenizer_config.json"):
        if path.is_file():
            _change(path, {"_name_or_path": base["name"], "name_or_path": base["name"]})
    for path in folder.glob("*.safetensors"):  # safetensors writes them with mode 600
        shutil.copymode(folder / "tokenizer_config.json", path)


def _change(path: Path, changes: Mapping[str, Any]) -> None:
    """Replace existing fields of a JSON file."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields |= {name: value for name, value in changes.items() if name in fields}
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    """Merge one run; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True)
    try:
        merge(parser.parse_args().run_dir)
    except ComposerError as error:
        print(f"error: {error}", flush=True)
        return 2 if isinstance(error, InputError) else 1
    return 0


def merge(run_dir: Path) -> None:
    """Write ``merged/``, the whole model, into the folder of a finished run."""
    from peft import PeftModel

    result = finished(run_dir)
    recipe = TrainingRecipe.load(run_dir / RECIPE)
    if not recipe.lora.r:
        raise InputError(f"{run_dir}: its checkpoint is already a whole model (lora.r is 0)")
    with alone(run_dir):
        resolved = resolve_model(recipe.model)
        base = AutoModelForCausalLM.from_pretrained(resolved, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, str(run_dir / CHECKPOINT))
        merged = model.merge_and_unload(safe_merge=True)
        merged = merged.to(AutoConfig.from_pretrained(resolved).dtype or torch.float32)
        files = {
            CARD: card(result, evaluation_of(run_dir), merged=True),
            RESULT: (run_dir / CHECKPOINT / RESULT).read_text(encoding="utf-8"),
        }
        with appearing(run_dir / MERGED) as scratch:
            merged.save_pretrained(str(scratch), safe_serialization=True)
            save_beside(scratch, resolved, result["base"], files)


if __name__ == "__main__":
    sys.exit(main())
