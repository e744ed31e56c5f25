"""Whole sessions as files of other tools' formats, one session at a time."""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline.chat.convert import short_name
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.errors import InputError
from composer_pipeline.exporting import atif, pi
from composer_pipeline.files import replace, writing
from composer_pipeline.lake.store import Lake, check_outside, exports, remember_exports
from composer_pipeline.redaction.scanning import Findings, Scanner
from composer_pipeline.reports import Progress, Report
from composer_pipeline.states.load import WholeSession, whole_sessions

#: Formats of whole sessions, and the endings of their files.
FORMATS = {"atif": ".json", "pi": ".jsonl"}


@dataclass(frozen=True)
class SessionsReport(Report):
    """The numbers of sessions, their states, and files that were written to a folder."""

    format: str
    folder: str
    sessions: int
    states: int
    files: int


def export_sessions(
    lake: Lake,
    form: str,
    out: str | Path,
    *,
    sessions: Collection[str] | None = None,
    progress: Progress | None = None,
) -> SessionsReport:
    """Write the lake's sessions in one format; no replies and no dataset are needed.

    Files of an earlier export to the same folder that are not written again are removed.

    Args:
        lake: reads ``sessions``, ``states`` and what they name; ``replies`` for their cost.
        form: one of :data:`FORMATS`.
        out: a folder.
        sessions: only these; all when ``None``.
        progress: called after each session.

    Raises:
        InputError: an unknown format, no session, or a folder that cannot be one.
        StorageError: it cannot be written.
        ComposerError: sessions hold something private; the others are written.
    """
    if form not in FORMATS:
        raise InputError(f"--format {form!r} is not one of {', '.join(FORMATS)}")
    folder = Path(out)
    if folder.suffix or folder.is_file():
        raise InputError(f"--out {out}: format {form} writes a file for each session to a folder")
    check_outside(lake, folder, "--out")
    written: set[Path] = set()
    findings = Findings(Scanner(lake))
    count = states = 0
    for session, files in _files(lake, form, sessions):
        before = len(findings)
        for name, data in files.items():
            findings.file(name, data, f"--out {folder / name}")
        if len(findings) > before:
            continue
        paths = {folder / name: data for name, data in files.items()}
        remember_exports(lake, paths, "--out")
        for path, data in paths.items():
            replace(path, data, f"--out {path}")
        written |= {path.absolute() for path in paths}
        count, states = count + 1, states + len(session.states)
        if progress:
            progress("export", count, 0)
    if not count and not findings:
        raise InputError(f"lake {lake.url} has no session to export; run ingest first")
    _remove_others(lake, folder.absolute(), FORMATS[form], written)
    findings.refuse()
    return SessionsReport(form, str(out), count, states, len(written))


def trace_files(lake: Lake, folder: Path, sessions: Collection[str] | None = None) -> list[Path]:
    """Write sessions in Pi's format for the Hub's trace viewer; return the files, sorted.

    They are redacted as the lake is, and no further: scan them before they leave. The folder is
    not recorded as an export.
    """
    made = []
    for _, files in _files(lake, "pi", sessions):
        for name, data in files.items():
            replace(folder / name, data)
            made.append(folder / name)
    return sorted(made)


def _files(
    lake: Lake, form: str, sessions: Collection[str] | None
) -> Iterator[tuple[WholeSession, dict[str, bytes]]]:
    """Yield each session with its files: name to bytes."""
    used: set[str] = set()
    for session in whole_sessions(lake, sessions=sessions):
        # An id comes from a foreign file and may not be a valid name of a file.
        name = short_name(session.session_id)
        if name in used:
            name = f"{name}.{session.day}"
        used.add(name)
        tools = Toolsets(lake, session.states)
        if form == "atif":
            documents = atif.documents(session, name, tools, _paid(lake, session))
            yield session, {f"{n}.json": _json_line(made) for n, made in documents.items()}
        else:
            files = pi.sessions(session, name, tools)
            yield session, {f"{n}.jsonl": b"".join(map(_json_line, e)) for n, e in files.items()}


def _paid(lake: Lake, session: WholeSession) -> dict[str, int]:
    """Return state id to the cost of its replies, in picodollars."""
    if not lake.days("replies"):
        return {}
    sql = (
        "SELECT state_id, sum(cost_picodollars)::HUGEINT FROM replies"
        " WHERE day = ? AND session_id = ? GROUP BY state_id"
    )
    return {
        state: int(cost or 0) for state, cost in lake.query(sql, [session.day, session.session_id])
    }


def _json_line(value: Any) -> bytes:
    # ASCII only: Unicode's line separators inside a string end a line for some readers.
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def _remove_others(lake: Lake, folder: Path, ending: str, written: set[Path]) -> None:
    for path in exports(lake):
        if path.parent == folder and path.suffix == ending and path not in written:
            with writing(f"--out {path}"):
                path.unlink()
