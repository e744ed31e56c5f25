"""Two real processes train what one trains: DDP and FSDP2, adapters and whole models.

One pair runs every case (``tests.trainers.trl.pair``); the tests read what it has seen.
"""

import json
import os
import subprocess
import sys

import pytest

from composer_pipeline.training.registry import repo_root
from trainers.common.ranks import environment

GRADIENTS = [
    "lora ddp on", "lora ddp off", "whole ddp", "lora fsdp2 on", "lora fsdp2 off", "whole fsdp2",
    "whole fsdp2 off",
]  # fmt: skip


pytestmark = pytest.mark.slow  # two real processes, for all tests of this file


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    command = [sys.executable, "-m", "tests.trainers.trl.pair", str(folder)]
    quiet = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    logs = [folder / f"rank-{rank}.log" for rank in range(2)]
    ranks = []
    try:
        for number, log in enumerate(logs):
            env = environment({**os.environ, **quiet}, number, 2, folder / "store")
            with log.open("wb") as output:
                ranks.append(
                    subprocess.Popen(
                        command, env=env, cwd=repo_root(), stdout=output, stderr=subprocess.STDOUT
                    )
                )
        codes = [rank.wait(timeout=900) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0], "\n".join(log.read_text()[-1500:] for log in logs)
    return json.loads((folder / "seen.json").read_text())


@pytest.mark.parametrize("case", GRADIENTS)
def test_the_gradient_is_that_of_one_process(seen, case):
    """Of all four channels, in a step that keeps them apart and in one that does not."""
    measured, other = seen[case]
    assert (measured["measured"], other["measured"]) == (True, False)
    for step in (measured, other):
        assert step["norm"] > 1e-2
        assert step["error"] <= 1e-6
        assert step["loss"][0] == pytest.approx(step["loss"][1], rel=1e-6)
        assert step["idle"] < 0.49, "one of the ranks had nothing to do"


@pytest.mark.parametrize("case", GRADIENTS)
def test_every_rank_says_the_numbers_of_one_process(seen, case):
    for step in seen[case]:
        both, alone = step["numbers"]
        assert both == pytest.approx(alone, rel=1e-4, abs=1e-6)
        assert step["ranks_agree"]
    assert {"grpo_grad_norm", "sdpo_active", "dpo_cos_sft"} <= seen[case][0]["numbers"][0].keys()


@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
def test_a_loss_that_is_not_finite_on_one_rank_drops_the_step_on_all(seen, sharding):
    for loss, gradients, kind, facts, after in seen[f"broken {sharding}"]:
        assert (loss, gradients, kind, after) == (0.0, 0, "bad_step", "step")
        assert facts["reason"].startswith("channel dpo: loss (nan) is not finite for row p")


def test_a_rank_that_runs_out_of_memory_halves_the_micro_batch_of_all(seen):
    lead, other = seen["memory"]
    assert lead == [64, ["out_of_memory", "step"], 0]
    assert other == [64, ["out_of_memory", "step"], 1]


def test_ranks_that_would_train_something_else_are_named_on_every_rank(seen):
    for drawn in seen["refused"]:
        assert drawn.startswith("rank 1 of 2 drew other rows than rank 0 in step 1")


@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
def test_each_rank_samples_a_share_and_both_have_all_answers(seen, sharding):
    lead, other = seen[f"sampled {sharding}"]
    assert lead[:2] == other[:2]
    window, repeated, _ = lead
    assert repeated, "the same step samples the same answers"
    assert len({id_ for id_, _, _ in window}) == 3
    assert len({tuple(answer) for _, answer, _ in window}) >= 5
    assert lead[2] + other[2] == 6, "three groups of two answers"
    assert 0 < other[2] < 6


@pytest.mark.parametrize(
    "case", ["lora ddp", "whole fsdp2", "lora ddp overlap", "whole fsdp2 overlap"]
)
def test_rounds_end_where_those_of_one_process_do(seen, case):
    found = seen[f"rounds {case}"]
    assert found["rounds"] == [2, 2]
    assert found["moved"] > 1e-2
    assert found["error"] <= 1e-4  # AdamW divides small gradients by themselves
    assert found["adopted"], "every rank ends with the committed state"
    assert found["sums"][0] == found["sums"][1]
