"""The result of a run: the last committed state as an ordinary checkpoint.

Belongs here: turning DiLoCo's state into safetensors that ``peft`` or ``transformers``
load on any machine. Does not belong here: metrics, the card's words and the run folder's other
files.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from composer_pipeline.diloco.callback import adopt
from composer_pipeline.diloco.rounds.snapshots import read_state
from composer_pipeline.files import out_of_space
from composer_pipeline.training.models import ADAPTER_CONFIG, load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from trainers.trl.channel_state import FILE as CHANNELS
from trainers.trl.policy.loading import load_base, lora_config


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
    """Write a committed state as a PEFT adapter, or as a whole model without LoRA.

    The folder appears whole or not at all. The tokenizer with its chat template lies beside
    the weights.

    Args:
        recipe: what was trained.
        url: the outer log.
        run_id: the run in it.
        target: the folder; a former one is replaced.
        base: the model's content (``training.runs.content``): its name for other machines.
        files: further files of the folder, name to text.
        round_: which state; ``None`` is the last.
        states: what its channels know besides (``trainers.trl.channel_state``), if anything.

    Raises:
        InputError: the state does not fit the recipe's model.
        StorageError: the disk is full; there is no new folder.
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
            shutil.copyfile(states, scratch / CHANNELS)
        save_beside(scratch, resolved, base, files)


@contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` once the block has ended well.

    Raises:
        StorageError: the disk is full; ``target`` is as it was.
    """
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
    """Put tokenizer and further files beside saved weights, and this machine's paths out of them.

    Args:
        folder: holds weights and configuration.
        resolved: the base model's folder here.
        base: its content; ``name`` stands where libraries write the folder.
        files: name to text; replaces what libraries wrote under that name.
    """
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
    for path in folder.glob("*.safetensors"):  # which safetensors writes for its owner alone
        shutil.copymode(folder / "tokenizer_config.json", path)


def _change(path: Path, changes: Mapping[str, Any]) -> None:
    """Replace fields that a JSON file has."""
    fields = json.loads(path.read_text(encoding="utf-8"))
    fields |= {name: value for name, value in changes.items() if name in fields}
    path.write_text(json.dumps(fields, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
