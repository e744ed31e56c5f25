"""ShareGPT: turns alternate, calls are JSON, both sides stand beside the conversation.

``benchmarks/llamafactory_reads.py`` puts the files through LLaMA-Factory's own converter.
"""

import json
from typing import Any

import pytest

from composer_pipeline.exporting.columns import conversation


def call(name: str, number: int = 0) -> dict[str, Any]:
    function = {"name": name, "arguments": {"n": number}}
    return {"id": f"call_{number}", "type": "function", "function": function}


def result(text: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "name": "Read", "content": text}


ASK = {"role": "user", "content": "go"}
CHOSEN = {"role": "assistant", "content": "", "tool_calls": [call("Read", 1)]}
REJECTED = {"role": "assistant", "content": "no"}


def row(*prompt: dict[str, Any]) -> dict[str, Any]:
    tool = {"type": "function", "function": {"name": "Read", "description": "d", "parameters": {}}}
    return {
        "prompt": [{"role": "system", "content": "be good"}, *prompt],
        "chosen": [CHOSEN], "rejected": [REJECTED], "tools": [tool],
        "split": "train", "pair_id": "p", "session_id": "s",
    }  # fmt: skip


def test_a_pair() -> None:
    made, reason = conversation(row(ASK))
    assert not reason
    assert made == {
        "conversations": [{"from": "human", "value": "go"}],
        "chosen": {
            "from": "function_call", "value": '[{"name": "Read", "arguments": {"n": 1}}]',
        },
        "rejected": {"from": "gpt", "value": "no"},
        "system": "be good",
        "tools": '[{"name": "Read", "description": "d", "parameters": {}}]',
        "split": "train", "pair_id": "p", "session_id": "s",
    }  # fmt: skip


def test_results_of_one_message_and_what_the_user_said_then_are_one_observation() -> None:
    said = {"role": "assistant", "content": "I look.", "tool_calls": [call("Read"), call("LS", 1)]}
    made, _ = conversation(row(ASK, said, result("a"), result("b", 1), {**ASK, "content": "hm"}))
    turns = made["conversations"]
    assert [turn["from"] for turn in turns] == ["human", "function_call", "observation"]
    assert [c["name"] for c in json.loads(turns[1]["value"])] == ["Read", "LS"]
    assert turns[2]["value"] == "a\n</tool_response>\n<tool_response>\nb\n\nhm"


@pytest.mark.parametrize("prompt", [(), (REJECTED, ASK), (ASK, REJECTED), (ASK, ASK)])
def test_what_does_not_alternate_is_left_out(prompt: tuple[dict[str, Any], ...]) -> None:
    assert conversation(row(*prompt)) == ({}, "turns_do_not_alternate")
