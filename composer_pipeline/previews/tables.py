"""Previews: each table's rows in words, as Markdown in which data is never markup.

Belongs here: what of a row a person wants to see. Does not belong here: reading files
(``previews.rows``). Every text of the lake stands in a fenced block, so that whatever is in it is
shown as it is; only redacted columns are read.
"""

import json
from collections.abc import Callable, Iterable, Sequence

from composer_pipeline.actions import Action, action_text
from composer_pipeline.lake import Lake
from composer_pipeline.markdown import fenced
from composer_pipeline.previews.rows import Row, of_values, sample
from composer_pipeline.previews.text import WIDTH, cut, one_line, side_by_side, wrapped
from composer_pipeline.trace_states import action_of, block_text, blocks_of

#: Rows of a preview.
ROWS = 5
_CHARS, _LINES = 900, 12
_LINE = 110
#: Columns of a block, which has room for two sides.
_WIDTH = 2 * WIDTH + 3


def preview(lake: Lake, table: str, keys: dict[str, str], rows: int = ROWS) -> str:
    """Return some rows of a partition as Markdown, a fenced block a row; empty without a row.

    Args:
        lake: the lake.
        table: one of those that are assets.
        keys: the partition.
        rows: at most so many.
    """
    texts = _READ[table](lake, rows, keys)
    return "\n\n".join(fenced("\n".join(wrapped(text, _WIDTH))) for text in texts)


Texts = Iterable[str]


def _raw_files(lake: Lake, rows: int, keys: dict[str, str]) -> Texts:
    columns = ["session_id", "agent_id", "size", "pieces"]
    # The bytes are not redacted, and the path may name people: neither is shown.
    for row in sample(lake, "raw_files", columns, rows, **keys):
        who = f"subagent {row['agent_id']} of session" if row["agent_id"] else "session"
        pieces = len(row["pieces"] or [1])
        yield _head(f"{who} {row['session_id']}", f"{row['size']:,} bytes in {pieces} piece(s)")


def _states(lake: Lake, rows: int, keys: dict[str, str]) -> Texts:
    columns = ["session_id", "turn", "model", "error_kind", "chain_id", "n_messages", "action"]
    found = sample(lake, "states", columns, rows, **keys)
    tasks = _tasks(lake, found, keys)
    ids = [row["chain_id"] for row in found]
    chains = of_values(lake, "chains", ["messages"], "chain_id", ids, **keys)
    wanted = {
        (at, offset): chain[row["n_messages"] + offset]
        for at, row in enumerate(found)
        if (chain := chains.get(row["chain_id"], {}).get("messages"))
        for offset in (-1, 0)
        if 0 <= row["n_messages"] + offset < len(chain)
    }
    messages = of_values(lake, "messages", ["json"], "n", wanted.values(), **keys)
    for at, row in enumerate(found):
        seen, done = (_message(messages, wanted.get((at, offset))) for offset in (-1, 0))
        action = Action.from_json(row["action"]) if row["action"] else action_of(done or _NOTHING)
        blocks = "\n".join(block_text(block) for block in blocks_of(seen or _NOTHING))
        yield "\n".join(
            [
                _head(f"session {row['session_id']}, turn {row['turn']}", row["model"],
                      row["error_kind"] and f"failed: {row['error_kind']}"),
                *_task(tasks, row),
                "── the agent saw ──", _cut(blocks), "── and did ──", _cut(action.words()),
            ]
        )  # fmt: skip


_NOTHING: Row = {"content": []}


def _message(messages: dict[int, Row], number: int | None) -> Row | None:
    found = messages.get(number) if number is not None else None
    return json.loads(found["json"]) if found else None


def _hints(lake: Lake, rows: int, keys: dict[str, str]) -> Texts:
    columns = ["session_id", "source", "error_kind", "text", "span_text"]
    found = sample(lake, "hints", columns, rows, **keys)
    tasks = _tasks(lake, found, keys)
    for row in found:
        yield "\n".join(
            [
                _head(f"session {row['session_id']}", row["error_kind"], f"from {row['source']}"),
                *_task(tasks, row),
                "── the call that failed ──", _cut(row["span_text"] or ""),
                "── the hint ──", _cut(row["text"] or ""),
            ]
        )  # fmt: skip


def _replies(lake: Lake, rows: int, keys: dict[str, str]) -> Texts:
    columns = ["session_id", "model_served", "status", "detail", "action", "cost_picodollars",
               "latency_ms"]  # fmt: skip
    found = sample(lake, "replies", columns, rows, **keys)
    tasks = _tasks(lake, found, {"day": keys["day"]})
    for row in found:
        said = [f"${(row['cost_picodollars'] or 0) / 1e12:.6f}"]
        if row["latency_ms"] is not None:
            said.append(f"{row['latency_ms'] / 1000:.2f} s")
        answer = Action.from_json(row["action"]).words() if row["action"] else row["detail"] or ""
        yield "\n".join(
            [
                _head(f"session {row['session_id']}", row["model_served"], row["status"], *said),
                *_task(tasks, row),
                "── the answer ──" if row["action"] else "── why there is none ──", _cut(answer),
            ]
        )  # fmt: skip


def _pairs(table: str) -> Callable[[Lake, int, dict[str, str]], Texts]:
    def read(lake: Lake, rows: int, keys: dict[str, str]) -> Texts:
        first = ["session_id", "turn", "tier", "outcome", "n_agree", "n_families", "simulated"]
        sides = ["rejected", "chosen"]
        task = ["task"] if table == "dataset_pairs" else []
        found = sample(lake, table, [*first, *sides, *task], rows, **keys)
        tasks = {} if task else _tasks(lake, found, keys)
        for row in found:
            left, right = (_cut(action_text(row[side] or [])) for side in sides)
            head = ("rejected: the agent", "chosen: the teachers")
            yield "\n".join(
                [
                    _head(f"session {row['session_id']}, turn {row['turn']}", row["tier"],
                          f"{row['n_agree']} of {row['n_families']} families",
                          row["simulated"] and "simulated"),
                    *_task(tasks, row),
                    side_by_side("\n".join([head[0], "─" * len(head[0]), left]),
                                 "\n".join([head[1], "─" * len(head[1]), right])),
                ]
            )  # fmt: skip

    return read


_READ: dict[str, Callable[[Lake, int, dict[str, str]], Texts]] = {
    "raw_files": _raw_files,
    "states": _states,
    "hints": _hints,
    "replies": _replies,
    "pairs": _pairs("pairs"),
    "normalized_pairs": _pairs("normalized_pairs"),
    "dataset_pairs": _pairs("dataset_pairs"),
}


def _tasks(lake: Lake, rows: Sequence[Row], keys: dict[str, str]) -> dict[str, str]:
    """Return the first prompts of the rows' sessions."""
    ids = [row["session_id"] for row in rows]
    found = of_values(lake, "sessions", ["first_prompt"], "session_id", ids, **keys)
    return {name: row["first_prompt"] or "" for name, row in found.items()}


def _task(tasks: dict[str, str], row: Row) -> list[str]:
    text = row.get("task") or tasks.get(row["session_id"], "")
    return [f"task: {one_line(text, _LINE)}"] if text else []


def _head(*facts: object) -> str:
    return one_line("; ".join(str(fact) for fact in facts if fact), _LINE + 20)


def _cut(text: str) -> str:
    return cut(text, _CHARS, _LINES)
