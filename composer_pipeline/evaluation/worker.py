"""The process behind ``evaluation.evaluate``: loads the models, measures, and prints JSON lines.

``python -m composer_pipeline.evaluation.worker --run-dir RUN --max-new-tokens N`` measures a run
and its base; ``--recipe FILE --weights DIR --states FILE --results FILE`` one model at any states.
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
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--max-new-tokens", type=int)
    for name in ("recipe", "states", "results"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--weights", default="")
    options = parser.parse_args()
    end_with_parent()
    gc.set_threshold(20_000, *gc.get_threshold()[1:])  # imported modules are never freed
    try:
        if options.run_dir:
            dropped = measure_run(options.run_dir, options.max_new_tokens)
        else:
            recipe = TrainingRecipe.load(options.recipe)
            dropped = measure_model(recipe, options.weights, options.states, options.results)
    except ComposerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    print(json.dumps({"dropped": dropped}), flush=True)
    return 0


def measure_run(run_dir: Path, max_new_tokens: int) -> dict[str, str]:
    """Measure base and trained model at the run's frozen states; return the dropped ones."""
    recipe = TrainingRecipe.load(run_dir / RECIPE)
    resolved, checkpoint = resolve_model(recipe.model), str(run_dir / CHECKPOINT)
    model = load_model(resolved, checkpoint, recipe)
    # With LoRA the base is the same model with its adapter off.
    base = model if recipe.lora.r else load_model(resolved, "", recipe)
    arms = [Arm(BASE, base, adapter=False), Arm(TRAINED, model)]
    folder = run_dir / FOLDER
    return _measure(recipe, arms, folder / STATES, folder / RESULTS, max_new_tokens)


def measure_model(
    recipe: TrainingRecipe, weights: str, states: Path, results: Path
) -> dict[str, str]:
    """Measure one model at the states of a file; return the dropped ones.

    ``weights`` is the folder of a recipe's adapter or whole model, or empty for its base.
    """
    arms = [Arm(TRAINED, load_model(resolve_model(recipe.model), weights, recipe))]
    return _measure(recipe, arms, states, results, recipe.data.max_completion_tokens)


def _measure(
    recipe: TrainingRecipe, arms: list[Arm], states: Path, results: Path, limit: int
) -> dict[str, str]:
    import torch

    if recipe.threads_alone:
        torch.set_num_threads(recipe.threads_alone)
    found = measure(
        read_states(states),
        arms,
        Windows(load_tokenizer(resolve_model(recipe.model)), recipe.data),
        max_new_tokens=limit,
        batch_tokens=BATCH_FACTOR * recipe.micro_batch_tokens,
        progress=lambda done, of: print(json.dumps({"done": done, "of": of}), flush=True),
    )
    write_results(results, found.results)
    return found.dropped


def load_model(resolved: str, weights: str, recipe: TrainingRecipe) -> Any:
    """Load a model in evaluation mode: a base with an adapter, or whole weights."""
    import torch
    from transformers import AutoModelForCausalLM

    half = recipe.dtype == "bf16" and recipe.lora.r > 0
    model = AutoModelForCausalLM.from_pretrained(
        resolved if recipe.lora.r or not weights else weights,
        dtype=torch.bfloat16 if half else torch.float32,
        attn_implementation=recipe.attention,
    )
    if recipe.lora.r and weights:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, weights)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


if __name__ == "__main__":
    sys.exit(main())
