"""The process behind ``evaluation.evaluate``: loads the models and prints JSON.

Belongs here: log-probabilities of recorded actions under the base and the trained model.
Does not belong here: deciding whether to measure. Started as
``python -m composer_pipeline.evaluation.worker``.
"""

import argparse
import copy
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.training.data import Pair, pair
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import RECIPE
from composer_pipeline.training.windows import Dropped, Windows


def main() -> int:
    """Evaluate one run; print the metrics on standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--run-dir", required=True, type=Path)
    parser.add_argument("--split", required=True)
    options = parser.parse_args()
    try:
        metrics = measure(Lake(options.lake), options.run_dir, options.split)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(json.dumps(metrics), flush=True)
    return 0


def measure(lake: Lake, run_dir: Path, split: str) -> dict[str, float]:
    """Return the metrics of ``EvaluationReport``.

    Raises:
        InputError: no pair of the split fits the recipe's windows.
    """
    import torch
    from transformers import AutoModelForCausalLM

    recipe = TrainingRecipe.load(run_dir / RECIPE)
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    resolved = resolve_model(recipe.model)
    windows = Windows(load_tokenizer(resolved), recipe.data)
    rows = lake.rows("dataset_pairs", split=split)
    pairs = []
    for row in rows:
        try:
            pairs.append(pair(windows, row))
        except Dropped:
            continue
    if not pairs:
        raise InputError(f"none of {len(rows)} pairs with split={split} fits recipe {recipe.name}")
    metrics: dict[str, float] = {"pairs": len(pairs), "dropped": len(rows) - len(pairs)}

    def load(path: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    checkpoint = str(run_dir / "checkpoint")
    model = load(resolved).to(device)
    off: Any = nullcontext()
    if recipe.lora.r:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, checkpoint).to(device).eval()
        off = model.disable_adapter()
    with off:
        metrics |= _measures(model, pairs, "before", 0)
    if not recipe.lora.r:
        model = load(checkpoint).to(device)
    return metrics | _measures(model, pairs, "after", len(pairs))


def _measures(model: Any, pairs: Sequence[Pair], when: str, done: int) -> dict[str, float]:
    """Measure every pair, and print how many are done of those before and after training."""
    both = []
    for number, p in enumerate(pairs, start=done + 1):
        both.append(_logps(model, p.prompt_ids, (p.chosen_ids, p.rejected_ids)))
        print(json.dumps({"done": number, "of": 2 * len(pairs)}), flush=True)
    chosen, rejected = [c for c, _ in both], [r for _, r in both]
    numbers = {
        "preference_accuracy": _mean([sum(c) > sum(r) for c, r in both]),
        "preference_accuracy_per_token": _mean([_mean(c) > _mean(r) for c, r in both]),
        "chosen_nll": -_mean([logp for c in chosen for logp in c]),
        "rejected_nll": -_mean([logp for r in rejected for logp in r]),
        "margin": _mean([sum(c) - sum(r) for c, r in both]),
    }
    return {f"{name}_{when}": value for name, value in numbers.items()}


def _logps(model: Any, prompt: Sequence[int], responses: Sequence[Sequence[int]]) -> Any:
    """Return the log-probability of each token of each response, in nats at temperature 1.

    The prompt runs once; each response continues from a copy of its cache.
    """
    import torch

    def run(ids: Sequence[int], **options: Any) -> Any:
        return model(input_ids=torch.tensor([list(ids)], device=model.device), **options)

    out = []
    with torch.no_grad():
        cache = run(prompt[:-1], use_cache=True, logits_to_keep=1).past_key_values
        for response in responses:
            inputs = [prompt[-1], *response[:-1]]  # each predicts the next response token
            logits = run(inputs, past_key_values=copy.deepcopy(cache)).logits[0].float()
            targets = torch.tensor(list(response), device=model.device).unsqueeze(-1)
            out.append(logits.log_softmax(-1).gather(-1, targets).squeeze(-1).tolist())
    return out


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    sys.exit(main())
