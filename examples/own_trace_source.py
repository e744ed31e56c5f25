"""Logs of another agent: ``python -m examples.own_trace_source``.

A source turns the lines of a file into records of Claude Code; turns, hints, redaction and
everything behind them are then the same for every agent. One sees the states of a log that
a made-up agent wrote, with the failed action's hint. A package names its source as an entry
point of the group ``composer_pipeline.trace_sources``; a script registers it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from composer_pipeline import Lake, ingest, load_states
from composer_pipeline.traces.records import LineStats, Record, read_records
from composer_pipeline.traces.sources import SOURCES

LOG = """\
{"toy": 1, "session": "toy-1", "cwd": "/home/ada/shop"}
{"at": "2026-11-20T10:00:00Z", "ask": "Why does the total show NaN?"}
{"at": "2026-11-20T10:00:05Z", "tool": "Read", "with": {"file_path": "/home/ada/shop/cart.js"}, \
"failed": true, "got": "File does not exist. Did you mean cart.ts?"}
{"at": "2026-11-20T10:00:09Z", "tool": "Read", "with": {"file_path": "/home/ada/shop/cart.ts"}, \
"got": "export const total = (items) => items.price * items.count;"}
{"at": "2026-11-20T10:00:20Z", "say": "total() multiplies two fields that a list does not have."}
"""


class ToyAgent:
    """The logs of an agent that writes one line for each thing it does."""

    name = "toy_agent"

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Say whether a file begins with this agent's header."""
        return bool(head) and head[0].startswith(b'{"toy": 1')

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the records of a file; the reader of Claude Code's lines counts what is bad."""
        return read_records(_translated(lines), stats)


def _translated(lines: Iterable[bytes]) -> Iterator[bytes]:
    header: dict[str, Any] = {}
    before: str | None = None
    for number, line in enumerate(map(json.loads, lines)):
        if "toy" in line:
            header = {"sessionId": line["session"], "cwd": line["cwd"]}
            continue
        call, turns = f"call-{number}", []
        if "ask" in line:
            turns.append(("user", line["ask"]))
        if "say" in line:
            turns.append(("assistant", [{"type": "text", "text": line["say"]}]))
        if "tool" in line:
            use = {"type": "tool_use", "id": call, "name": line["tool"], "input": line["with"]}
            result = {"type": "tool_result", "tool_use_id": call, "content": line["got"]}
            turns.append(("assistant", [use]))
            turns.append(("user", [{**result, "is_error": line.get("failed", False)}]))
        for role, content in turns:
            uuid = f"{role}-{number}"
            message = {"role": role, "id": uuid, "model": "toy-model", "content": content}
            link = {"type": role, "uuid": uuid, "parentUuid": before, "timestamp": line["at"]}
            yield json.dumps({**header, **link, "message": message}).encode() + b"\n"
            before = uuid


def main() -> None:
    """Register the source and read one log with it."""
    SOURCES.register(ToyAgent.name, ToyAgent)
    with TemporaryDirectory() as folder:
        Path(folder, "toy.jsonl").write_text(LOG, encoding="utf-8")
        lake = Lake(Path(folder, "lake"))
        ingest(lake, [Path(folder, "toy.jsonl")])
        for state in load_states(lake):
            did = state.action.tool_calls[0].name if state.action.tool_calls else "text"
            print(f"{did:5} after {state.n_messages} messages; hint: {state.hint or 'none'}")


if __name__ == "__main__":
    main()
