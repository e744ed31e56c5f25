"""Merged weights of a finished run: ``python -m trainers.trl.checkpoints.merge --run-dir D``.

Belongs here: base and adapter as one model that ``transformers`` loads alone. Does not belong
here: training. Exit codes as those of ``trainers.trl``.

The sum is made in float32 and stored in the base model's own precision.
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.training.models import resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import CHECKPOINT, MERGED, RECIPE, RESULT, finished
from composer_pipeline.training.runs.card import CARD, card, evaluation_of
from composer_pipeline.training.runs.folder import alone
from trainers.trl.checkpoints.write import appearing, save_beside


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
    """Write ``merged/`` into the folder of a finished run; it appears whole or not at all.

    Raises:
        InputError: the run is not finished, or trained every parameter already.
        ComposerError: another process works in the folder, or the disk is full.
    """
    from peft import PeftModel

    result = finished(run_dir)
    recipe = TrainingRecipe.load(run_dir / RECIPE)
    if not recipe.lora.r:
        raise InputError(f"{run_dir}: its checkpoint is a whole model already (lora.r is 0)")
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
