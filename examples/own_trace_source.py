"""Logs of another agent: ``python -m examples.own_trace_source``.

A source says of the lines of a file who said what; turns, hints, redaction and
everything behind them are then the same for every agent. One sees the states of a log that
a made-up agent wrote, with the failed action's hint. A package names its source as an entry
point of the group ``composer_pipeline.trace_sources``; a script registers it.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from composer_pipeline import Lake, ingest, load_states
from composer_pipeline.traces.records import LineStats, Record
from composer_pipeline.traces.source import (
    SOURCES,
    Conversation,
    TraceSource,
    call_block,
    objects,
    result_block,
)

LOG = """\
{"toy": 1, "session": "toy-1", "cwd": "/home/ada/shop"}
{"at": "2026-11-20T10:00:00Z", "ask": "Why does the total show NaN?"}
{"at": "2026-11-20T10:00:05Z", "tool": "Read", "with": {"file_path": "/home/ada/shop/cart.js"}, \
"failed": true, "got": "File does not exist. Did you mean cart.ts?"}
{"at": "2026-11-20T10:00:09Z", "tool": "Read", "with": {"file_path": "/home/ada/shop/cart.ts"}, \
"got": "export const total = (items) => items.price * items.count;"}
{"at": "2026-11-20T10:00:20Z", "say": "total() multiplies two fields that a list does not have."}
"""


class ToyAgent(TraceSource):
    """The logs of an agent that writes one line for each thing it does."""

    name = "toy-agent"

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True if a file begins with this agent's header."""
        return bool(head) and head[0].startswith(b'{"toy": 1')

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the records of a file; a line that is no object is counted."""
        said = Conversation(stats)
        for number, line in enumerate(objects(lines, stats)):
            if "toy" in line:
                said.session, said.cwd = line["session"], line["cwd"]
                continue
            said.time, key = line["at"], f"{said.session}:{number}"
            if "ask" in line:
                yield said.user(line["ask"])
            if "say" in line:
                yield said.assistant(key, line["say"], model="toy-model")
            if "tool" in line:
                call = call_block(key, line["tool"], line["with"])
                yield said.assistant(key, [call], model="toy-model")
                failed = line.get("failed", False)
                yield said.user([result_block(key, line["got"], failed=failed)])


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
