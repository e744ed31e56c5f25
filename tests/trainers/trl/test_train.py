"""Real processes: a replica of two processes ends where that of one process does."""

import shutil
import threading
import time

import psutil  # type: ignore[import-untyped]
import pytest
import torch

from composer_pipeline.diloco.fragments import read_state
from composer_pipeline.testing.training import tiny_recipe
from composer_pipeline.training.run import prepare, read_steps


@pytest.fixture(scope="module")
def recipe(tiny_model):
    # Plain SGD: AdamW's first steps are signs, which turn rounding into steps.
    return tiny_recipe(
        tiny_model, optimizer="sgd", learning_rate=0.05, micro_batch_tokens=256,
        data={"max_prompt_tokens": 150, "max_completion_tokens": 64, "max_tools_tokens": 0},
        diloco={"replicas": 1, "rounds": 2, "inner_steps": 2},
    )  # fmt: skip


def kill_when_it_comes(rank, killed, over):
    """Kill the first process of a rank among this process's descendants."""
    while not killed and not over.is_set():
        for process in psutil.Process().children(recursive=True):
            try:
                if process.environ().get("COMPOSER_RANK") == rank:
                    process.kill()
                    killed.append(process.pid)
                    return
            except psutil.Error:
                continue
        time.sleep(0.05)


@pytest.mark.slow
def test_two_processes_train_what_one_does_also_when_a_rank_is_killed(
    lake, recipe, tmp_path, train_here, score_here
):
    score_here(lake, prepare(lake, recipe, tmp_path))
    alone = train_here(lake, recipe, tmp_path)
    ranks = recipe.ranks.model_copy(update={"processes": 2})
    run = prepare(lake, recipe.model_copy(update={"ranks": ranks}), tmp_path)
    for part in ("data", "base"):  # the same rows and scores; made once
        shutil.copytree(alone.run_dir / part, run.run_dir / part)
    killed: list[int] = []
    over = threading.Event()
    killer = threading.Thread(target=kill_when_it_comes, args=("1", killed, over))
    killer.start()
    try:
        both = train_here(lake, recipe.model_copy(update={"ranks": ranks}), tmp_path)
    finally:
        over.set()
        killer.join()
    assert both.run_dir == run.run_dir
    said = (run.run_dir / "replicas" / "slot-0.log").read_text()
    assert killed, "a rank was killed"
    assert "error: rank 1 of 2 was ended by SIGKILL, and the replica with it" in said
    states = [read_state(str(r.run_dir / "outer"), "run") for r in (both, alone)]
    first = read_state(str(alone.run_dir / "outer"), "run", 0)[0]
    assert [commit.round for _, commit in states] == [2, 2]
    changes = [torch.cat([(s[k] - first[k]).flatten() for k in sorted(first)]) for s, _ in states]
    assert changes[1].norm() > 1e-4
    assert (changes[0] - changes[1]).norm() / changes[1].norm() < 1e-4
    steps = [read_steps(report.run_dir) for report in (both, alone)]
    assert steps[0].keys() == steps[1].keys()
    for step, numbers in steps[0].items():
        assert 0 <= numbers["ranks_idle_share"] < 0.5, "both ranks had rows"
        assert numbers["grad_norm"] == pytest.approx(steps[1][step]["grad_norm"], rel=1e-4)
