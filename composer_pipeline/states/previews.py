"""A few rows of one partition, without reading the rest of it."""

import glob
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.actions import Action, action_text
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.markdown import fenced
from composer_pipeline.states.state import action_of, block_text, blocks_of

Row = dict[str, Any]


def sample(lake: Lake, table: str, columns: Sequence[str], rows: int, **keys: str) -> list[Row]:
    """Return rows spread evenly over a partition's first row group."""
    try:
        with lake.open(lake.file_name(table, **keys)) as file:
            # Without a buffer ahead and without threads: the file is a Python object.
            reader = pq.ParquetFile(file)
            if not reader.metadata.num_rows:
                return []
            have = [name for name in columns if name in reader.schema_arrow.names]
            group = reader.read_row_group(0, have, use_threads=False)
    except FileNotFoundError:
        return []
    count = min(rows, len(group))
    picks = [index * (len(group) - 1) // max(1, count - 1) for index in range(count)]
    found: list[Row] = group.take(picks).to_pylist()
    return [dict.fromkeys(columns) | row for row in found]


def of_values(
    lake: Lake, table: str, columns: Sequence[str], key: str, values: Iterable[Any], **keys: str
) -> dict[Any, Row]:
    """Return the rows whose ``key`` is one of some values, by it."""
    wanted = sorted(set(values))
    if not wanted:
        return {}
    try:
        with lake.open(lake.file_name(table, **keys)) as file:
            reader = pq.ParquetFile(file)
            at = reader.schema_arrow.names.index(key)
            groups = [n for n in range(reader.num_row_groups) if _may_hold(reader, n, at, wanted)]
            if not groups:
                return {}
            names = list(dict.fromkeys([key, *columns]))
            found = reader.read_row_groups(groups, names, use_threads=False)
    except FileNotFoundError:
        return {}
    is_one = pa.compute.is_in(found[key], value_set=pa.array(wanted, found.schema.field(key).type))
    return {row[key]: row for row in found.filter(is_one).to_pylist()}


def _may_hold(reader: pq.ParquetFile, group: int, column: int, wanted: Sequence[Any]) -> bool:
    bounds = reader.metadata.row_group(group).column(column).statistics
    if bounds is None or not bounds.has_min_max:
        return True
    return any(bounds.min <= value <= bounds.max for value in wanted)


#: Columns of a side in :func:`side_by_side`.
WIDTH = 58


def printable(text: str) -> str:
    """Return text without control characters; line ends stay, tabs become blanks."""
    plain = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", "    ")
    return "\n".join(line if line.isprintable() else _plain(line) for line in plain.split("\n"))


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)


_LAST_WORD = re.compile(r"[\w.~/+-]+\Z")


def cut(text: str, chars: int, lines: int) -> str:
    """Return a text cut to some characters and lines, printable, with its full length."""
    head = text if len(text) <= chars else _whole_words(text[:chars])
    shown = printable(head).split("\n")
    kept = "\n".join(shown[:lines])
    if len(text) <= chars and len(shown) <= lines:
        return kept
    return f"{kept.rstrip()} … ({len(text):,} characters)"


def one_line(text: str, chars: int) -> str:
    """Return the beginning of a text as one printable line."""
    line = printable(" ".join(text[: 4 * chars].split()))
    return line if len(line) <= chars else _whole_words(line[: chars - 1]) + "…"


def _whole_words(head: str) -> str:
    """Return the beginning of a text without its last word, which may be half a path."""
    # Half of a home folder looks like another person's.
    kept = _LAST_WORD.sub("", head)
    return kept if 2 * len(kept) > len(head) else head


def side_by_side(left: str, right: str, width: int = WIDTH) -> str:
    """Return two texts as two columns of a monospaced block; long lines are wrapped."""
    pairs = zip_longest(wrapped(left, width), wrapped(right, width), fillvalue="")
    return "\n".join(f"{a:<{width}} │ {b}".rstrip() for a, b in pairs)


def wrapped(text: str, width: int) -> list[str]:
    """Return the lines of a text; long ones are wrapped with their indent."""
    lines = []
    for line in text.split("\n"):
        if len(line) <= width:
            lines.append(line)
            continue
        indent = " " * min(4, len(line) - len(line.lstrip()))
        lines += textwrap.wrap(
            line, width, drop_whitespace=False, subsequent_indent=indent, replace_whitespace=False,
            tabsize=4,
        )  # fmt: skip
    return lines


#: Rows of a preview.
ROWS = 5
_CHARS, _LINES = 900, 12
_LINE = 110
#: Columns of a block of two sides.
_WIDTH = 2 * WIDTH + 3


def preview(lake: Lake, table: str, keys: dict[str, str], rows: int = ROWS) -> str:
    """Return some rows of a partition as Markdown, a fenced block a row; empty without a row."""
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
    columns = ["session_id", "source", "error_kind", "verdict", "text", "span_text"]
    found = sample(lake, "hints", columns, rows, **keys)
    tasks = _tasks(lake, found, keys)
    for row in found:
        yield "\n".join(
            [
                _head(f"session {row['session_id']}", row["error_kind"], row["verdict"],
                      f"from {row['source']}"),
                *_task(tasks, row),
                "── the call that caused it ──", _cut(row["span_text"] or ""),
                "── the hint ──", _cut(row["text"] or ""),
            ]
        )  # fmt: skip


def _outcomes(lake: Lake, rows: int, keys: dict[str, str]) -> Texts:
    columns = ["session_id", "state_id", "horizon", "status", "why", "lines", "alive", "how"]
    for row in sample(lake, "outcomes", columns, rows, **keys):
        known = f"{row['alive']} of {row['lines']} lines alive" if row["alive"] is not None else ""
        who = f"session {row['session_id']}, state {row['state_id'][:12]}"
        yield _head(who, f"at {row['horizon']}", known or f"{row['status']}: {row['why']}",
                    row["how"] and f"found by {row['how']}")  # fmt: skip


def _replies(lake: Lake, rows: int, keys: dict[str, str]) -> Texts:
    columns = ["session_id", "model_served", "status", "detail", "action", "cost_picodollars",
               "latency_ms"]  # fmt: skip
    found = sample(lake, "replies", columns, rows, **keys)
    tasks = _tasks(lake, found, {"day": keys["day"]})
    for row in found:
        facts = [f"${(row['cost_picodollars'] or 0) / 1e12:.6f}"]
        if row["latency_ms"] is not None:
            facts.append(f"{row['latency_ms'] / 1000:.2f} s")
        answer = Action.from_json(row["action"]).words() if row["action"] else row["detail"] or ""
        yield "\n".join(
            [
                _head(f"session {row['session_id']}", row["model_served"], row["status"], *facts),
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
    "outcomes": _outcomes,
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


def place_of(lake: Lake, table: str, **keys: str) -> str:
    """Return the file of a partition; a key that is not given stands as ``*``."""
    parts = [f"{key}={keys.get(key, '*')}" for key in TABLES[table].partition_keys]
    return "/".join([lake.url.rstrip("/"), table, *parts, "part.parquet"])


def query_of(lake: Lake, table: str, **keys: str) -> str:
    """Return DuckDB SQL that shows the rows; any DuckDB runs it, for a bucket with its httpfs."""
    root = glob.escape(lake.url.rstrip("/"))  # DuckDB reads brackets of a path as a pattern
    place = root + place_of(lake, table, **keys).removeprefix(lake.url.rstrip("/"))
    quoted = place.replace("'", "''")
    return f"SELECT * FROM read_parquet('{quoted}') LIMIT 20;"


def row_count(lake: Lake, table: str, **keys: str) -> int | None:
    """Return the rows of the partitions with these keys, from footers; ``None`` without any."""
    every = keys.keys() >= set(TABLES[table].partition_keys)
    total = None
    for part in [keys] if every else lake.partitions(table, **keys):
        try:
            with lake.open(lake.file_name(table, **part)) as file:
                total = (total or 0) + pq.read_metadata(file).num_rows
        except FileNotFoundError:
            continue
    return total
