"""A small dataset in a lake, and a Hub on the loopback whose waiting takes no time."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from composer_pipeline.dataset.manifest import inputs_of, write_manifest
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.publish import PublishReport, publish
from composer_pipeline.testing.hub.server import LoopbackHub

REPO = "someone/agent-pairs"
TOKEN = "hf_loopback"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub whose clock goes on when somebody sleeps."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    slept = [0.0]

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    with LoopbackHub(TOKEN) as hub:
        hub.clock = lambda: slept[0]
        yield hub


def row(i: int, split: str, **changes: Any) -> dict[str, Any]:
    """Return a pair."""
    call = {"name": "Bash", "arguments": {"command": f"pytest -k {i}"}}
    made = {
        "pair_id": f"p{i}",
        "state_id": f"s{i}",
        "session_id": f"session-{split}",
        "group_id": f"group-{split}",
        "prompt": [{"role": "user", "content": f"task {i}"}],
        "chosen": [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_0", "type": "function", "function": call}],
            }
        ],
        "rejected": [{"role": "assistant", "content": f"I am done with {i}"}],
        "tools": [{"type": "function", "function": {"name": "Bash", "parameters": {}}}],
        "tier": "gold",
        "day": "2026-11-16",
        "recipe": "default@abc",
        "chosen_models": ["x/one", "y/two"],
        "tool_chosen": "Bash",
        "rejected_model": "agent",
        "simulated": False,
    }
    return {**made, **changes}


def fill(lake: Lake, train: list[dict[str, Any]], validation: list[dict[str, Any]]) -> Lake:
    """Write a dataset: the pairs, and groups of the same states."""
    for split, rows in (("train", train), ("validation", validation)):
        lake.write("dataset_pairs", rows, split=split)
        groups = [
            {
                **{k: r[k] for k in ("state_id", "session_id", "group_id", "prompt", "tools")},
                "candidates": [*r["rejected"], *r["chosen"]],
                "sources": ["agent", "one"],
                "consensus": r["chosen"],
                "simulated": r["simulated"],
            }
            for r in rows
        ]
        lake.write("dataset_groups", groups, split=split)
        lake.write("dataset_hints", [], split=split)
        lake.write("dataset_successes", [], split=split)
    write_manifest(lake, inputs_of(lake))
    return lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with five pairs to train on and one to validate with."""
    train = [row(i, "train") for i in range(5)]
    return fill(Lake(tmp_path / "lake"), train, [row(9, "validation")])


def send(lake: Lake, hub: LoopbackHub, **options: Any) -> PublishReport:
    """Publish to the Hub of the loopback."""
    return publish(lake, REPO, endpoint=hub.endpoint, **options)
