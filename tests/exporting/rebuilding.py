"""Prompts from an ATIF file, with nothing but the file: what any other reader could write."""

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]


def every(document: Json) -> Iterator[Json]:
    """Yield a document and the subagents in it."""
    yield document
    for inner in document.get("subagent_trajectories", ()):
        yield from every(inner)


def prompts(document: Json) -> Iterator[tuple[str, list[Json]]]:
    """Yield (state, its prompt) of each step that is a state's action."""
    for at, step in enumerate(document["steps"]):
        if state := step.get("extra", {}).get("state_id"):
            yield state, rebuilt(document["steps"][:at])


def rebuilt(steps: list[Json]) -> list[Json]:
    system, said = "", list[Json]()
    for step in steps:
        text = step["message"]
        if step["source"] == "system":
            system = text
        elif step["source"] == "user":
            if said and said[-1]["role"] == "user":
                text = f"{said.pop()['content']}\n\n{text}"
            said.append({"role": "user", "content": text})
        else:
            said.append(_agent(said, step, text))
            if "observation" in step:
                said += _answers(said[-1], step["observation"]["results"])
    if said and said[-1]["role"] == "assistant":
        said += _answers(said[-1], [])
    return [{"role": "system", "content": system}, *said]


def _agent(said: list[Json], step: Json, text: str) -> Json:
    calls = [
        {"id": c["tool_call_id"], "type": "function",
         "function": {"name": c["function_name"], "arguments": c["arguments"]}}
        for c in step.get("tool_calls", ())
    ]  # fmt: skip
    if said and said[-1]["role"] == "assistant":
        last = said.pop()
        text = "\n\n".join(t for t in (last["content"], text) if t)
        calls = last.get("tool_calls", []) + calls
    message = {"role": "assistant", "content": text}
    return message | {"tool_calls": calls} if calls else message


def _answers(message: Json, results: list[Json]) -> Iterator[Json]:
    found = {result["source_call_id"]: result for result in results}
    for call in message.get("tool_calls", ()):
        result = found.get(call["id"], {})
        text = result.get("content", "[no result: interrupted]")
        if result.get("extra", {}).get("is_error"):
            text = "[tool error] " + text
        name = call["function"]["name"]
        yield {"role": "tool", "tool_call_id": call["id"], "name": name, "content": text}
