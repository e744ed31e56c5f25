"""The process behind ``evaluation.evaluate``: loads the models, measures, and prints JSON lines.

``python -m composer_pipeline.evaluation.worker --run-dir RUN --max-new-tokens N``
"""

import argparse
import gc
import json
import sys
from pathlib import Path
from typing import Any

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.evaluation.evaluate import FOLDER, RESULTS, STATES, TRAINED
from composer_pipeline.evaluation.measure import Arm, measure
from composer_pipeline.evaluation.results import BASE, write_results
from composer_pipeline.evaluation.states import read_states
from composer_pipeline.parent import end_with_parent
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import CHECKPOINT, RECIPE
from composer_pipeline.training.windows import Windows

#: Nothing is kept for gradients, so a batch may be larger than in training.
BATCH_FACTOR = 4


def main() -> int:
    """Measure one run, write its results and print the dropped states."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", required=True, type=Path)
    parser.add_argument("--max-new-tokens", required=True, type=int)
    options = parser.parse_args()
    end_with_parent()
    gc.set_threshold(20_000, *gc.get_threshold()[1:])  # imported modules are never freed
    try:
        dropped = measure_run(options.run_dir, options.max_new_tokens)
    except ComposerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    print(json.dumps({"dropped": dropped}), flush=True)
    return 0


def measure_run(run_dir: Path, max_new_tokens: int) -> dict[str, str]:
    """Measure base and trained model at the run's frozen states; return the dropped ones."""
    recipe = TrainingRecipe.load(run_dir / RECIPE)
    resolved = resolve_model(recipe.model)
    import torch

    if recipe.threads_alone:
        torch.set_num_threads(recipe.threads_alone)
    found = measure(
        read_states(run_dir / FOLDER / STATES),
        load_arms(resolved, run_dir, recipe),
        Windows(load_tokenizer(resolved), recipe.data),
        max_new_tokens=max_new_tokens,
        batch_tokens=BATCH_FACTOR * recipe.micro_batch_tokens,
        progress=lambda done, of: print(json.dumps({"done": done, "of": of}), flush=True),
    )
    write_results(run_dir / FOLDER / RESULTS, found.results)
    return found.dropped


def load_arms(resolved: str, run_dir: Path, recipe: TrainingRecipe) -> list[Arm]:
    """Load base and trained model: with LoRA, one model with its adapter off and on."""
    import torch
    from transformers import AutoModelForCausalLM

    half = recipe.dtype == "bf16" and recipe.lora.r > 0
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def load(folder: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.bfloat16 if half else torch.float32,
            attn_implementation=recipe.attention,
        ).to(device)

    checkpoint = str(run_dir / CHECKPOINT)
    base = load(resolved).eval()
    if not recipe.lora.r:
        return [Arm(BASE, base), Arm(TRAINED, load(checkpoint).eval())]
    from peft import PeftModel

    model = PeftModel.from_pretrained(base, checkpoint).to(device).eval()
    return [Arm(BASE, model, adapter=False), Arm(TRAINED, model)]


if __name__ == "__main__":
    sys.exit(main())
