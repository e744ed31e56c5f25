"""Lakes with made-up states, for tests of what comes after parsing.

Belongs here: writing ``messages``, ``chains`` and ``states`` without session files. Does not
belong here: sessions (``testing.sample_sessions.bundled``).
"""

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import chain_digest

DAY = "2026-11-16"


def write_session(
    lake: Lake,
    session_id: str,
    turns: Sequence[tuple[Action, str]],
    *,
    day: str = DAY,
    prompt: str = "Make the tests pass.",
    project: str = "/home/user/shop",
    error_turns: Sequence[int] = (),
) -> list[str]:
    """Add one session to a day; each turn is an action and its result's text.

    Returns:
        The state ids, in order.
    """
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    states, ids = [], []
    start = datetime.fromisoformat(f"{day}T09:00:00").replace(tzinfo=UTC)
    chain_id = _hash([session_id, "chain"])
    for number, (action, result) in enumerate(turns):
        calls = tuple(
            ToolCall(call.name, call.arguments, f"toolu_{session_id}_{number}_{n}")
            for n, call in enumerate(action.tool_calls)
        )
        action = Action(action.text, calls)
        state_id = _hash([session_id, number])
        ids.append(state_id)
        states.append(
            {
                "state_id": state_id,
                "session_id": session_id,
                "agent_id": "",
                "message_id": f"msg_{session_id}_{number}",
                "chain_id": chain_id,
                "n_messages": len(messages),
                "action": action.to_json(),
                "fidelity": "reconstructed",
                "on_active_path": True,
                "repaired": False,
                "error_kind": "command_failed" if number in error_turns else None,
                "project": project,
                "cwd": project,
                "model": "agent-1",
                "version": "2.1.0",
                "ts": start + timedelta(minutes=number),
                "turn": number,
                "parser_version": "test",
            }
        )
        blocks: list[dict[str, Any]] = (
            [{"type": "text", "text": action.text}] if action.text else []
        )
        blocks += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
            for call in calls
        ]
        messages.append({"role": "assistant", "content": blocks})
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": result} for call in calls
        ]
        messages.append({"role": "user", "content": results or [{"type": "text", "text": result}]})
    rows = [
        {"hash": _hash(m), "role": m["role"], "json": json.dumps(m), "redaction_version": 1}
        for m in messages
    ]
    known = {row["hash"]: row for row in [*_rows(lake, "messages", day), *rows]}
    for number, row in enumerate(known.values()):
        row["n"] = number
    lake.write("messages", list(known.values()), day=day)
    hashes = [row["hash"] for row in rows]
    chain = {
        "chain_id": chain_id,
        "messages": [known[digest]["n"] for digest in hashes],
        "digest": chain_digest(hashes),
    }
    lake.write("chains", [*_rows(lake, "chains", day), chain], day=day)
    lake.write("states", [*_rows(lake, "states", day), *states], day=day)
    return ids


def write_sessions(
    lake: Lake, sessions: int, turns: int, *, day: str = DAY, first: int = 0
) -> list[str]:
    """Add plain sessions in which the agent reads one file after another.

    Args:
        lake: gets them.
        sessions: how many.
        turns: states of each.
        day: their day.
        first: number of the first one; a number that is there already is one session.
    """
    ids = []
    for session in range(first, first + sessions):
        steps = [
            (
                Action("Next.", (ToolCall("Read", {"file_path": f"/home/user/shop/{n}.py"}),)),
                f"1  value = {session * 1000 + n}\n" * 5,
            )
            for n in range(turns)
        ]
        ids += write_session(lake, f"s{session}", steps, day=day, prompt=f"Task {session}.")
    return ids


def _rows(lake: Lake, table: str, day: str) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in row.items() if key != "day"}
        for row in lake.rows(table, days=[day])
    ]


def _hash(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).hexdigest()
