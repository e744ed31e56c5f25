"""The real server in a process of its own: scripted policies, and TRL's trainer against it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer_pipeline.environment.recorded import DIVERGED, OVER, Trace, Traces
from composer_pipeline.lake.store import Lake
from composer_pipeline.traces.ingest import ingest
from examples.proof.toolworld.student import base_dir
from examples.proof.toolworld.world import (
    sessions,
    training_random,
    write_files,
    write_session,
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Lake:
    """Four sessions of the small world, whose student calls tools as they do."""
    folder = tmp_path_factory.mktemp("environment")
    drawn = sessions(training_random(1), 4)
    write_files([write_session(r, f"s-{i}") for i, r in enumerate(drawn)], folder / "projects")
    made = Lake(str(folder / "lake"))
    ingest(made, [folder / "projects"])
    return made


@pytest.fixture(scope="module")
def url(lake: Lake) -> Iterator[str]:
    command = [sys.executable, "-m", "composer_pipeline.cli", "environment", "--port", "0"]
    with subprocess.Popen(
        [*command, "--lake", lake.url], stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stderr is not None
        try:
            line = server.stderr.readline()
            states = len(lake.rows("states", columns=["state_id"]))
            assert f"{states} states at http://127.0.0.1:" in line
            yield line.split()[-1]
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def trace(lake: Lake) -> Trace:
    return max(Traces(lake).all(), key=lambda trace: len(trace.turns))


def test_over_the_wire_only_the_recorded_calls_see_results(url, trace):
    from openenv.core import GenericEnvClient

    client = GenericEnvClient(base_url=url).sync()
    seen = client.reset(session=trace.session_id)
    assert seen.observation["messages"][0]["role"] == "system"
    begun = client.reset(state_id=trace.state_id)
    assert begun.observation["messages"] == trace.messages
    assert begun.observation["tools"] == trace.tools
    total = 0.0
    for turn in trace.turns:
        taken = client.step({"name": turn.wanted[0].name, "arguments": turn.wanted[0].arguments})
        assert taken.observation["result"] == turn.results[0]
        total += taken.reward
    assert total == pytest.approx(1.0)
    assert taken.done

    results = [result for turn in trace.turns for result in turn.results]
    replies = [client.reset(state_id=trace.state_id)]
    hidden = [result for result in results if result not in json.dumps(replies[0].observation)]
    assert hidden
    replies += [client.step({"name": "Bash", "arguments": {"command": "ls"}}) for _ in range(2)]
    assert [reply.observation["text"] for reply in replies[1:]] == [DIVERGED, OVER]
    assert all(reply.done and reply.observation["result"] is None for reply in replies[1:])
    said = json.dumps([[r.observation, r.reward, r.metadata] for r in replies]) + json.dumps(
        client.state()
    )
    assert not [result for result in hidden if json.dumps(result)[1:-1] in said]
    for wrong in (lambda: client.reset(state_id="nope"), lambda: client.step({"nome": "x"})):
        with pytest.raises(RuntimeError, match=r"no state 'nope' is served|Invalid message"):
            wrong()
    client.close()


def test_trl_trains_on_policy_against_the_server(url, lake, tmp_path: Path, monkeypatch):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import chat_template_utils

    from composer_pipeline.environment.client import TraceTools
    from examples.environment.train import dataset, trainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = AutoTokenizer.from_pretrained(base_dir())
    tokenizer.chat_template = chat_template_utils.qwen2_5_chat_template
    model = AutoModelForCausalLM.from_pretrained(base_dir(), dtype=torch.float32)
    before = [weights.detach().clone() for weights in model.parameters()]
    made = []

    def tools() -> TraceTools:
        made.append(TraceTools(url))
        return made[-1]

    run = trainer(
        model, tokenizer, dataset(Traces(lake), 16), tools, tmp_path, max_steps=2,
        num_generations=4, per_device_train_batch_size=8, max_completion_length=64,
        use_cpu=True, bf16=False, learning_rate=1e-3, seed=1, disable_tqdm=True, temperature=2.0,
    )  # fmt: skip
    run.train()

    steps = [row for row in run.state.log_history if "reward" in row]
    assert len(steps) == 2
    assert all(0 <= row["reward"] <= 1 for row in steps)
    # The server says itself what reached it, and what it gave for that.
    states = [each._client.state() for each in run.environments]
    assert len({state["episode_id"] for state in states}) == len(states) == 8
    assert sum(state["step_count"] for state in states) > 0
    assert max(row["reward"] for row in steps) > 0
    assert [state["total_reward"] for state in states] == pytest.approx(
        [each.get_reward() for each in run.environments]
    )
    assert steps[-1]["reward"] == pytest.approx(sum(s["total_reward"] for s in states) / 8)
    moved = [
        float((a - b.detach()).abs().max()) for a, b in zip(before, model.parameters(), strict=True)
    ]
    assert max(moved) > 0
