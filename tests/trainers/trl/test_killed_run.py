"""A run whose processes are killed: what it ends with is what an unbroken one ends with."""

import json
import os
import shutil
import signal
import subprocess

import psutil  # type: ignore[import-untyped]
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from composer_pipeline.errors import InputError
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.run import prepare, report
from tests.fixtures.waiting import wait_until

pytestmark = pytest.mark.slow


def test_a_killed_run_ends_as_if_it_had_not_been_killed(lake, tiny_model, make_tiny, tmp_path):
    """Teacher and schedule go on too; plain SGD has no state that a restart would lose."""
    rounds = 6  # many more than pass until the kill
    channels = {
        "grpo": {}, "dpo": {"pairs_per_step": 2},
        "sdpo": {"teacher": "ema", "ema_rate": 0.2, "divergence": "taid", "hint_gain": False},
    }  # fmt: skip
    recipe = tiny_recipe(
        tiny_model, channels=channels, optimizer="sgd", learning_rate=0.3,
        diloco={"replicas": 1, "rounds": rounds, "inner_steps": 2},
    )  # fmt: skip
    run = prepare(lake, recipe, tmp_path)
    process = subprocess.Popen(
        run.command, cwd=run.cwd, env=os.environ | run.env, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    for line in process.stdout:
        if line.startswith('{"event": "round"'):
            break
    children = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    # An orphaned replica notices within a step that its supervisor is gone.
    wait_until(lambda: not any(map(_lives, children)), "the replica has ended")
    committed = {e["round"] for e in _commits(run.run_dir / "replicas" / "slot-0.log")}
    assert committed
    assert max(committed) < rounds
    with pytest.raises(InputError, match="no finished training run"):
        report(run.run_dir)
    done = subprocess.run(
        run.command, cwd=run.cwd, env=os.environ | run.env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert '"event": "base"' not in done.stdout, "the base model had scored everything"
    result = report(run.run_dir)
    assert result.metrics["rounds"] == rounds
    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    resumed = [e["step"] for e in map(json.loads, lines) if e["event"] == "step"]
    assert resumed.count(1) == 1, "the first round was not repeated"
    whole = make_tiny(recipe)
    whole.train()
    trained = {n: p.detach() for n, p in whole.model.named_parameters() if p.requires_grad}
    saved = load_file(result.checkpoint / "adapter_model.safetensors")
    assert len(saved) == len(trained)
    for name, value in trained.items():
        torch.testing.assert_close(saved[name.replace(".default", "")], value, rtol=1e-4, atol=1e-6)
    sdpo = next(channel for channel in whole.channels if channel.name == "sdpo")
    averages, schedule = sdpo.state()
    with safe_open(str(result.checkpoint / "channels.safetensors"), framework="pt") as kept:
        numbers = json.loads(kept.metadata()["numbers"])["sdpo"]
        for name, value in averages.items():
            torch.testing.assert_close(kept.get_tensor(f"sdpo/{name}"), value, rtol=1e-4, atol=1e-6)
    assert numbers == pytest.approx(schedule, rel=1e-4, abs=1e-6)
    shutil.rmtree(run.run_dir)


def _commits(log):
    lines = log.read_text().splitlines() if log.is_file() else []
    return [json.loads(line) for line in lines if line.startswith('{"event": "commit"')]


def _lives(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
