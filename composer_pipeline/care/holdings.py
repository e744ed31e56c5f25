"""What a lake holds by asset and day, for whoever keeps a second account of it.

Belongs here: which days of a table are done, and how many rows they have. Does not belong here:
whether they are current (``care.currency``), and telling it to Dagster (``assets.automation``).
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from composer_pipeline.care.currency import stale_files
from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import notes_of
from composer_pipeline.previews import row_count
from composer_pipeline.replay.teachers import TeacherSet

#: Asset -> the table of which it has one partition a day.
TABLE_OF: Mapping[str, str] = {
    "raw_sessions": "raw_files",
    "trace_states": "states",
    "error_hints": "hints",
    "preference_pairs": "pairs",
    "normalized_pairs": "normalized_pairs",
}


def days_held(lake: Lake, teacher_set: TeacherSet | None) -> dict[str, list[str]]:
    """Return asset -> the days that it is done with; teachers by ``teacher_replies/NAME``.

    A teacher is done with a day that it was asked about whole and answered whole.
    """
    found = {asset: lake.days(table) for asset, table in TABLE_OF.items()}
    notes = notes_of(lake, "replies")
    for teacher in teacher_set.teachers if teacher_set else []:
        whole = {
            name.rpartition("day=")[2].removesuffix(".json")
            for name, made in notes.items()
            if name.startswith(f"made/replies/teacher={teacher.name}/") and not made.missing
        }
        held = set(lake.days("replies", teacher=teacher.name))
        found[f"teacher_replies/{teacher.name}"] = sorted(whole & held)
    return found


def rows_of(lake: Lake, asset: str, day: str) -> int:
    """Return the rows of an asset's day; only the end of a file is read."""
    kind, _, teacher = asset.partition("/")
    keys = {"teacher": teacher, "day": day} if teacher else {"day": day}
    return row_count(lake, "replies" if teacher else TABLE_OF[kind], **keys) or 0


def empty_days(lake: Lake, paths: Iterable[Path | str], days: Iterable[str]) -> list[str]:
    """Return those of ``days`` that have no session, neither archived nor at the source."""
    try:
        coming = set(stale_files(lake, paths))
    except InputError:  # no sessions at the source
        coming = set()
    known = {*lake.days("raw_files"), *lake.days("states")} | coming
    return sorted(set(days) - known)
