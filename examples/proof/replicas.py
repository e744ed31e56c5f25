"""Training an arm with DiLoCo: replicas that are processes, through the trainer's own command."""

from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.events import read, run_process
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import METRICS, prepare, report
from examples.proof.train import Trained

#: The replica that is killed.
VICTIM = 1


def train_replicas(lake: Lake, recipe: TrainingRecipe, run_dir: Path, *, kill: bool) -> Trained:
    """Train a recipe's replicas on a lake's dataset and return the model they agree on."""
    import torch
    from transformers import AutoModelForCausalLM

    run = prepare(lake, recipe, run_dir)
    killed: list[int] = []

    def on_event(event: dict[str, Any]) -> None:
        if kill and not killed and event["event"] == "round" and 2 * event["round"] >= event["of"]:
            killed.append(_kill(VICTIM))

    run_process(run.command, cwd=run.cwd, env=run.env, what="training", on_event=on_event)
    if kill and not killed:
        raise ComposerError(f"{run.run_dir}: no replica was killed")
    commits = [e for e in read(run.run_dir / METRICS) if e["event"] == "commit"]
    sent: dict[int, int] = {}
    for event in commits:
        sent[event["slot"]] = sent.get(event["slot"], 0) + event["bytes_sent"]
    result = report(run.run_dir)
    model = AutoModelForCausalLM.from_pretrained(str(result.checkpoint), dtype=torch.float32)
    size = sum(parameter.numel() for parameter in model.parameters())
    replicas = recipe.diloco.replicas
    merged = {e["round"]: len(e["included"]) for e in commits}
    numbers = {
        "bytes_sent": sum(sent.values()) / replicas,
        "bytes_data_parallel": 4.0 * size * recipe.total_steps,
        "contributions": sum(merged.values()) / (replicas * recipe.rounds),
    }
    return Trained(model.eval(), {}, numbers)


def _kill(slot: int) -> int:
    """Kill a replica of this process's run and return its process id."""
    for process in psutil.Process().children(recursive=True):
        try:
            if process.environ().get("COMPOSER_DILOCO_SLOT") == str(slot):
                process.kill()
                return int(process.pid)
        except psutil.NoSuchProcess:
            continue
    raise ComposerError(f"replica {slot} does not run, so that it cannot be killed")
