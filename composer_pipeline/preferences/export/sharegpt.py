"""A pair as a ShareGPT conversation with a chosen and a rejected answer.

Belongs here: the words of that format, as LLaMA-Factory reads it. Does not belong here: files
(``preferences.export.write``).

Turns alternate there: ``human`` or ``observation``, then ``gpt`` or ``function_call``. So the
results of one message's calls are one ``observation``, joined as LLaMA-Factory joins them, and
what the user said right after them stands in it too. A ``function_call`` is the JSON of the
calls and nothing else: text beside a call has no place, and is left out.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Row = dict[str, Any]
Turn = dict[str, str]

#: Between two results, as LLaMA-Factory's own reader of OpenAI's messages has it.
_BETWEEN = "\n</tool_response>\n<tool_response>\n"


def conversation(row: Mapping[str, Any]) -> tuple[Row, str]:
    """Return a pair in ShareGPT's columns, or the reason why it has no such form.

    Args:
        row: ``prompt``, ``chosen``, ``rejected`` and ``tools`` in chat form, and what is kept.
    """
    system = "\n\n".join(m["content"] for m in row["prompt"] if m["role"] == "system")
    turns = _turns([m for m in row["prompt"] if m["role"] != "system"])
    sides = [turn["from"] in ("human", "observation") for turn in turns]
    if not turns or sides != [n % 2 == 0 for n in range(len(turns))] or not sides[-1]:
        return {}, "turns_do_not_alternate"
    (chosen,), (rejected,) = _turns(row["chosen"]), _turns(row["rejected"])
    return {
        "conversations": turns,
        "chosen": chosen,
        "rejected": rejected,
        "system": system,
        "tools": _json([tool["function"] for tool in row["tools"]]),
        "split": row["split"],
        "pair_id": row["pair_id"],
        "session_id": row["session_id"],
    }, ""


def dataset_info(files: Mapping[str, str]) -> dict[str, Any]:
    """Return LLaMA-Factory's ``dataset_info.json``.

    Args:
        files: name of a dataset to its file.
    """
    columns = {name: name for name in ("chosen", "rejected", "system", "tools")} | {
        "messages": "conversations"
    }
    one = {"formatting": "sharegpt", "ranking": True, "columns": columns}
    return {name: {"file_name": file, **one} for name, file in files.items()}


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[Turn]:
    turns: list[Turn] = []
    after_result = False
    for message in messages:
        text, last = message["content"], turns[-1] if turns else None
        role = message["role"]
        if role == "tool" and last and last["from"] == "observation":
            last["value"] += _BETWEEN + text
        elif role == "user" and after_result and last:
            last["value"] += f"\n\n{text}"
        elif calls := message.get("tool_calls"):
            turns.append({"from": "function_call", "value": _json([_call(c) for c in calls])})
        else:
            name = {"tool": "observation", "user": "human", "assistant": "gpt"}[role]
            turns.append({"from": name, "value": text})
        after_result = role == "tool"
    return turns


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {"name": function["name"], "arguments": function["arguments"]}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
