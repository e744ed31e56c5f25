"""What the trace shows right behind a state's action.

Belongs here: reading the next message of a state's chain. Does not belong here: the
prefix and the action (``trace_states``), judging the outcome (``traces.states.failures``).
"""

import json
from typing import Any

import pyarrow.compute as pc

from composer_pipeline.lake.store import Lake
from composer_pipeline.trace_states import TraceState


def following(lake: Lake, state: TraceState) -> list[dict[str, Any]]:
    """Return the blocks of the user message behind the action: tool results, or a prompt.

    Empty where the trajectory ends with the action.

    Args:
        lake: the lake that the state comes from.
        state: the state.
    """
    chains = lake.read("chains", days=[state.day])
    chains = chains.filter(pc.equal(chains["chain_id"], state.chain_id))
    numbers = chains["messages"].to_pylist()[0][state.n_messages : state.n_messages + 2]
    table = lake.read("messages", days=[state.day], columns=["json", "n"])
    texts = dict(zip(table["n"].to_pylist(), table["json"], strict=True))
    messages = [json.loads(texts[number].as_py()) for number in numbers]
    # The action itself is first; without calls and text of its own it is not repeated.
    behind = messages[1:] if messages and messages[0]["role"] == "assistant" else messages[:1]
    for message in behind:
        if message["role"] == "user":
            content = message["content"]
            return [{"type": "text", "text": content}] if isinstance(content, str) else content
    return []
