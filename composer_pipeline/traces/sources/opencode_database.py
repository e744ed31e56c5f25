"""The database of OpenCode: its sessions, each as JSON lines.

A session becomes a line that names it and one line for each message, in the order in which the
model saw them. Of a session that only grows, the lines only grow.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.files import mapping, mapping_at
from composer_pipeline.traces.records import decode_any, encode
from composer_pipeline.traces.source import Member, text_or_none

Item = dict[str, Any]

#: How a database begins, and the first line of a session.
SQLITE = b"SQLite format 3\0"
HEAD = b'{"opencode":'


def number_of(value: Any) -> int:
    """Return a number as a whole one; 0 for anything else."""
    return int(value) if isinstance(value, int | float) and abs(value) < 2**60 else 0


def _object(text: Any) -> Item:
    return mapping(decode_any(str(text).encode()))


#: Seconds that a locked database is waited for.
_PATIENCE = 2.0

#: The tables of sessions, and what each needs to be read: tables and their columns.
_SESSION = {"id", "parent_id", "directory", "version", "time_created", "time_updated"}
_MESSAGE = {"id", "session_id", "time_created", "time_updated", "data"}
_NEWER = {"session_message": {"session_id", "type", "seq", "time_updated", "data"}}
_NEEDED = {
    "session": {
        "session": _SESSION,
        "message": _MESSAGE,
        "part": {*_MESSAGE, "message_id"},
    },
    "session_v2": {"session_v2": _SESSION, **_NEWER},
}


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a database to read one state of it; its writer goes on meanwhile."""
    try:
        uri = f"{file.absolute().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, _PATIENCE, uri=True, isolation_level=None)) as db:
            db.text_factory = lambda data: data.decode("utf-8", "replace")
            db.execute("BEGIN")
            yield db
    except sqlite3.Error as error:
        raise InputError(f"{file} cannot be read: {error}") from error


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", [table])}


def _has(db: sqlite3.Connection, tables: dict[str, set[str]]) -> bool:
    return all(_columns(db, table) >= needed for table, needed in tables.items())


def _session_tables(db: sqlite3.Connection, file: Path) -> list[str]:
    """Return the tables of sessions; none for the database of another program.

    Raises:
        InputError: it is OpenCode's, and of an unknown schema.
    """
    if not _columns(db, "session_v2") and not (_columns(db, "session") and _columns(db, "project")):
        return []
    found = [name for name, needed in _NEEDED.items() if _has(db, needed)]
    if not found:
        table, columns = next(
            (table, missing)
            for needed in _NEEDED.values()
            for table, columns in needed.items()
            if (missing := columns - _columns(db, table))
        )
        raise InputError(
            f"{file} is a database of an OpenCode that this version does not know:"
            f" table {table} has no {', '.join(sorted(columns))}"
        )
    return found


def _changed(db: sqlite3.Connection, tables: list[str]) -> dict[str, int]:
    """Return when each session with a message last changed, in milliseconds."""
    changed: dict[str, int] = {}
    messages = ["message", "part"] if "session" in tables else []
    for table in messages + (["session_message"] if _has(db, _NEWER) else []):
        query = f"SELECT session_id, max(time_updated) FROM {table} GROUP BY 1"
        for name, time in db.execute(query):
            if isinstance(name, str):
                changed[name] = max(changed.get(name, 0), number_of(time))
    for table in tables:
        for name, time in db.execute(f"SELECT id, time_updated FROM {table}"):
            if name in changed:
                changed[name] = max(changed[name], number_of(time))
    return changed


def _session_lines(file: Path, tables: list[str], name: str) -> Iterator[bytes]:
    """Yield a session's lines; a last response that is not complete is left out."""
    with _opened(file) as db:
        yield encode({"opencode": _head(db, tables, name)}) + b"\n"
        held: list[bytes] = []
        for role, done, value in _messages(db, name):
            if role == "assistant":
                yield from held
                held = []
            if held or (role == "assistant" and not done):
                held.append(encode(value) + b"\n")
            else:
                yield encode(value) + b"\n"


def _head(db: sqlite3.Connection, tables: list[str], name: str) -> Item:
    """Return what stays of a session, and of a subagent its root and the call that started it."""
    columns = "parent_id, directory, version, time_created"
    union = " UNION ALL ".join(f"SELECT id, {columns} FROM {table}" for table in tables)
    query = f"SELECT {columns} FROM ({union}) WHERE id = ?"
    parent, directory, version, created = db.execute(query, [name]).fetchone() or [None] * 4
    head = {"id": name, "directory": directory, "version": version, "time": {"created": created}}
    if not parent:
        return head
    root, seen = parent, {name}
    while root not in seen:
        seen.add(root)
        above = db.execute(query, [root]).fetchone()
        root = above[0] if above and above[0] else root
    return {**head, "root": root, "call": _call_of(db, parent, name)}


def _call_of(db: sqlite3.Connection, parent: str, child: str) -> str | None:
    """Return the call that started a subagent: its result names the session."""
    for table in ("part", "session_message"):
        if not _columns(db, table):
            continue
        query = f"SELECT data FROM {table} WHERE session_id = ? AND instr(data, ?) ORDER BY id"
        for (text,) in db.execute(query, [parent, child]):
            data = _object(text)
            content = data.get("content")
            for part in content if isinstance(content, list) else [data]:
                state = mapping_at(part, "state")
                facts = mapping(state.get("metadata") or state.get("structured"))
                if child in (facts.get("sessionId"), facts.get("sessionID")):
                    return text_or_none(part.get("callID")) or text_or_none(part.get("id"))
    return None


#: The role of a message, whether it is complete, and its line.
_Line = tuple[Any, bool, Item]


def _messages(db: sqlite3.Connection, name: str) -> Iterator[_Line]:
    """Yield the messages of a session, those of the older generation if it has no others."""
    newer = _newer(db, name) if _has(db, _NEWER) else iter(())
    first = next(newer, None)
    yield from _older(db, name) if first is None else chain([first], newer)


def _newer(db: sqlite3.Connection, name: str) -> Iterator[_Line]:
    query = "SELECT type, data FROM session_message WHERE session_id = ? ORDER BY seq"
    for kind, text in db.execute(query, [name]):
        data = _object(text)
        done = bool(mapping_at(data, "time").get("completed"))
        yield kind, done, {"type": kind, "data": data}


def _older(db: sqlite3.Connection, name: str) -> Iterator[_Line]:
    """Yield messages with their parts; what happens to them later becomes lines of its own."""
    query = "SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id"
    parts_of = "SELECT id, data FROM part WHERE message_id = ? ORDER BY id"
    removed: list[tuple[int, str, str]] = []
    for message, text in db.execute(query, [name]):
        info = {"id": message, **_object(text)}
        if isinstance(info.get("summary"), dict):
            del info["summary"]  # of the changed files
        time = mapping_at(info, "time")
        removed.sort()
        while removed and removed[0][0] <= number_of(time.get("created")):
            yield None, True, {"removed": removed.pop(0)}
        parts = [{"id": part, **_object(data)} for part, data in db.execute(parts_of, [message])]
        for part in parts:
            ran = mapping_at(mapping_at(part, "state"), "time")
            if when := number_of(ran.pop("compacted", 0)):
                removed.append((when, str(part.get("callID")), message))
        yield info.get("role"), bool(time.get("completed")), {"info": info, "parts": parts}
    for item in sorted(removed):
        yield None, True, {"removed": item}


def sessions_of(file: Path) -> Iterator[Member] | None:
    """Return the sessions of a database; ``None`` for that of another program.

    Raises:
        InputError: the database is locked, damaged or of an unknown schema.
    """
    with _opened(file) as db:
        if not (tables := _session_tables(db, file)):
            return None
        changed = _changed(db, tables)
    return (
        Member(name, time * 1_000_000, partial(_session_lines, file, tables, name))
        for name, time in sorted(changed.items())
    )
