"""Which sessions are meant: by id, by project, or by what stands in them.

Belongs here: finding sessions in the archive, the tables and the ledger, and the sessions that
repeat them. Does not belong here: what is done with them (``care.forget``).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import zstandard

from composer_pipeline.errors import InputError
from composer_pipeline.json_values import strings
from composer_pipeline.lake import Lake
from composer_pipeline.replay.ledger import Ledger
from composer_pipeline.traces.archive import open_archived, read_blob
from composer_pipeline.traces.parse import analyse

#: How often a text may be wrapped in JSON inside JSON: a tool's result, quoted by another.
_DEPTH = 3


def by_id(lake: Lake, beginning: str) -> set[str]:
    """Return the session of an id, or of an unambiguous beginning of one.

    Raises:
        InputError: no session or more than one has it.
    """
    known = {row["session_id"] for row in _manifest(lake)} | _in_tables(lake)
    found = {name for name in known if beginning and name.startswith(beginning)}
    if beginning in found:
        return {beginning}
    if len(found) > 1:
        raise InputError(f"session {beginning!r} is ambiguous: {len(found)} begin with it")
    if not found:
        raise InputError(f"lake {lake.url} has no session {beginning!r}")
    return found


def is_known(lake: Lake, session: str) -> bool:
    """Say whether the lake holds anything of a session, by its id or the beginning of it."""
    known = {row["session_id"] for row in _manifest(lake)} | _in_tables(lake)
    return bool(session) and any(name.startswith(session) for name in known)


def by_project(lake: Lake, glob: str) -> set[str]:
    """Return the sessions of a project, as ``sessions`` lists it.

    Args:
        lake: the lake.
        glob: of the whole path of the project, or of its last folder.

    Raises:
        InputError: no session is of such a project.
    """
    rows = lake.select("SELECT DISTINCT session_id, project FROM sessions")
    found = {row["session_id"] for row in rows if of_project(row["project"] or "", glob)}
    if not found:
        raise InputError(f"lake {lake.url} has no session of project {glob!r}")
    return found


def of_project(project: str, glob: str) -> bool:
    """Say whether a glob names a project, by its path or its last folder."""
    return any(fnmatchcase(name, glob) for name in (project, project.rpartition("/")[2]))


def by_text(lake: Lake, text: str, ledger: Ledger | None) -> set[str]:
    """Return the sessions in which a text stands: raw, or in what a teacher answered.

    Also where the text is inside JSON inside JSON, with its quotes and letters escaped. Not where
    it is encoded otherwise (Base64, compressed).

    Raises:
        InputError: it stands nowhere.
    """
    if len(text.strip()) < 3:
        raise InputError("--text needs three characters at least")
    forms = forms_of(text)
    found: set[str] = set()
    for row in _manifest(lake):
        if row["session_id"] not in found:
            with open_archived(lake, row) as lines:
                if any(holds(line, text, forms) for line in lines):
                    found.add(row["session_id"])
    for name, data in _answers(lake, ledger):
        if name not in found and holds(data, text, forms):
            found.add(name)
    if not found:
        raise InputError(f"lake {lake.url} has no session with that text")
    return found


def forms_of(text: str) -> list[bytes]:
    """Return a text as it stands in JSON, and in JSON inside JSON."""
    forms, found = {text}, {text.encode()}
    for _ in range(_DEPTH):
        plain = {json.dumps(form, ensure_ascii=False)[1:-1] for form in forms}
        forms = plain | {json.dumps(form)[1:-1] for form in forms}
        found |= {form.encode(errors="replace") for form in forms}
    return sorted(found)


def holds(data: bytes, text: str, forms: Sequence[bytes]) -> bool:
    """Say whether bytes hold a text in one of its forms, or as JSON of another spelling."""
    if any(form in data for form in forms):
        return True
    if rb"\u" not in data and rb"\/" not in data:
        return False
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return any(text in string for string in strings(value))


def repeating(lake: Lake, sessions: set[str]) -> set[str]:
    """Return the other sessions that hold records of these: forks, and sessions resumed.

    They lie in the days of what they repeat. One repeats a session that has an answer of it, or
    records that name it as theirs.
    """
    manifest = _manifest(lake)
    days = {row["day"] for row in manifest if row["session_id"] in sessions}
    near = [row for row in manifest if row["day"] in days]
    found = set(sessions)
    while True:
        mine = set().union(*(_responses(lake, r) for r in near if r["session_id"] in found))
        marks = _marks(found)
        more = {
            row["session_id"]
            for row in near
            if row["session_id"] not in found
            and (mine & _responses(lake, row) or _names(lake, row, marks))
        }
        if not more:
            return found - sessions
        found |= more


def _responses(lake: Lake, row: dict[str, Any]) -> set[str]:
    with open_archived(lake, row) as lines:
        graph, _, _ = analyse(lines, subagent=bool(row["agent_id"]))
    return graph.response_keys()


def _names(lake: Lake, row: dict[str, Any], marks: Sequence[bytes]) -> bool:
    with open_archived(lake, row) as lines:
        return any(mark in line for line in lines for mark in marks)


def _manifest(lake: Lake) -> list[dict[str, Any]]:
    return lake.rows("raw_files")


def _in_tables(lake: Lake) -> set[str]:
    tables = ("sessions", "states", "replies", "pairs", "dataset_pairs", "dataset_groups")
    columns = ["session_id"]
    return {r["session_id"] for table in tables for r in lake.rows(table, columns=columns)}


def _answers(lake: Lake, ledger: Ledger | None) -> Iterator[tuple[str, bytes]]:
    """Yield (session, bytes) of everything that a teacher said."""
    for row in lake.rows("replies", columns=["session_id", "raw", "action"]):
        if row["raw"]:
            yield row["session_id"], zstandard.ZstdDecompressor().decompress(row["raw"])
        yield row["session_id"], (row["action"] or "").encode()
    yield from ledger.kept_bytes() if ledger else ()


def unnamed_of(lake: Lake, names: Iterable[str], sessions: set[str]) -> set[str]:
    """Return the archived pieces among ``names`` that hold records of sessions."""
    marks = _marks(sessions)
    return {name for name in names if any(mark in read_blob(lake, name) for mark in marks)}


def _marks(sessions: Iterable[str]) -> list[bytes]:
    """Return how records name their session."""
    return [f'"sessionId":{space}"{name}"'.encode() for name in sessions for space in ("", " ")]
