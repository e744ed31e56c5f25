"""What a harvest would do: which files, of which session and day; what the manifest has.

Belongs here: refusing bad input before anything is written. Does not belong here: copying
bytes (``traces.archive.versions``).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.settings import Settings
from composer_pipeline.traces.archive.blobs import Row
from composer_pipeline.traces.archive.discover import (
    SourceFile,
    discover,
    excluded,
    without_home,
)
from composer_pipeline.traces.archive.heads import Head, assign_days, fallback_day, read_head


@dataclass(slots=True)
class Plan:
    """Files with their heads, the day of each session, and the files without a record."""

    sources: list[tuple[SourceFile, Head]]
    days: dict[str, str]
    unreadable: list[str]


def make_plan(
    manifest: Mapping[str, list[Row]], paths: Iterable[Path | str], exclude: Sequence[str] = ()
) -> Plan:
    """Find the files, their sessions and days; refuse bad input before any write."""
    given = list(paths)
    globs = (*exclude, *Settings.from_env().excluded)
    found = [source for source in discover(given) if not excluded(source.file, globs)]
    if not found:
        raise InputError(f"every session file is excluded by {', '.join(globs)}")
    sources: list[tuple[SourceFile, Head]] = []
    unreadable: list[str] = []
    for source in found:
        known = unchanged(manifest.get(source.path, ()), source)
        if known is not None:
            sources.append((source, Head(True, known["session_id"], known["day"])))
            continue
        head = read_head(source)
        if not head.is_session:
            if source.explicit:
                raise InputError(f"{source.file} holds no Claude Code record (JSON lines)")
            unreadable.append(source.shown)
            continue
        session_id = head.session_id or f"file:{source.path}"
        when = head.day or fallback_day(source)
        sources.append((source, Head(True, session_id, when, head.cwd)))
    if not sources:
        folders = ", ".join(str(path) for path in given)
        raise InputError(f"{folders} holds no session: no .jsonl file has a Claude Code record")
    known_days: dict[str, str] = {}
    for row in (row for versions in manifest.values() for row in versions):
        day = known_days.get(row["session_id"], row["day"])
        known_days[row["session_id"]] = min(day, row["day"])
    dated = [(head.session_id, head.day or "") for _, head in sources]
    return Plan(sources, assign_days(dated, known_days), unreadable)


def manifest_of(lake: Lake) -> dict[str, list[Row]]:
    """Return the manifest's rows by path, each with its ``day``.

    Two folders can hold different sessions under one relative path; a path then has a
    row in several days. Paths are redacted by the rules of now (:func:`redacted_again`).
    """
    manifest: dict[str, list[Row]] = {}
    for row in redacted_again(lake.rows("raw_files")):
        manifest.setdefault(row["path"].split("#")[0], []).append(row)
    return manifest


def redacted_again(rows: Iterable[Row]) -> list[Row]:
    """Return rows of the manifest with their paths as the rules of now redact them.

    Files that only a name in their path told apart still have a path each.
    """
    out: list[Row] = []
    taken: set[tuple[str, str]] = set()
    for row in rows:
        path, parent = without_home(row["path"]), without_home(row["parent_path"])
        if (row["day"], path) in taken:
            path = f"{path}#{row['sha256'][:8]}"
        taken.add((row["day"], path))
        out.append({**row, "path": path, "parent_path": parent})
    return out


def stored(row: Row) -> Row:
    """Return a row of the manifest as its partition holds it."""
    return {name: value for name, value in row.items() if name != "day"}


def redact_manifest(lake: Lake, day: str) -> bool:
    """Write a day's manifest with its paths by the rules of now; say whether they differed."""
    before = lake.rows("raw_files", days=[day])
    rows = [stored(row) for row in redacted_again(before)]
    names = ("path", "parent_path")
    if [[row[n] for n in names] for row in rows] == [[row[n] for n in names] for row in before]:
        return False
    lake.write("raw_files", sorted(rows, key=lambda row: str(row["path"])), day=day)
    return True


def unchanged(versions: Iterable[Row], source: SourceFile) -> Row | None:
    """Return the version that has the size and the time of ``source``, if one has."""
    for row in versions:
        if row["size"] == source.size and row["mtime_ns"] == source.mtime_ns:
            return row
    return None
