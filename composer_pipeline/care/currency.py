"""Which days of a table are not what the pipeline of now would make, and why.

Belongs here: one question for each stage, asked of the lake alone. Does not belong here: making
them (the stages), what a night does about it (``care.nights``), and the dataset, whose build says
itself what it is older than (``publishing.read_build``).

A day is *current* where its partition was made from the bytes that its inputs have now, by the
versions, rules and parameters of now. Nothing else counts: a lake that was copied, and an input
that was written again with the same bytes, leave everything current.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import Made, Origin, Stamps, changed, notes_of
from composer_pipeline.normalize import normalized_origin, recipe_id_of
from composer_pipeline.preferences.hints import hints_origin
from composer_pipeline.preferences.pairs import pairs_origin
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.replay.noted import replies_origin
from composer_pipeline.replay.teachers import Teacher, TeacherSet
from composer_pipeline.traces.archive import days_changed
from composer_pipeline.traces.parse import is_current, is_redacted

#: Families that have to answer before a day's pairs are worth making: fewer never agree.
FAMILIES = 2


class Why(msgspec.Struct, frozen=True):
    """Why a day is not current.

    ``kind`` is ``absent`` (it was never made), ``changed`` (its inputs, or what it was made with)
    or ``missing`` (it was made, but for some rows that could not be had).
    """

    said: str
    kind: Literal["absent", "changed", "missing"] = "changed"


#: Day -> why it is not current.
Stale = dict[str, Why]


_NEW_FILES = Why("session files are new", "absent")
_CHANGED_FILES = Why("session files have changed")


def stale_files(lake: Lake, paths: Iterable[Path | str]) -> Stale:
    """Return the days whose session files are new or changed since they were archived.

    Raises:
        InputError: a path is missing, or a folder holds no session.
    """
    known = set(lake.days("raw_files"))
    return {
        day: _CHANGED_FILES if day in known else _NEW_FILES for day in days_changed(lake, paths)
    }


def stale_states(lake: Lake) -> Stale:
    """Return the archived days that this parser and these redaction rules did not write."""
    found: Stale = {}
    for day in lake.days("raw_files"):
        if is_current(lake, day):
            continue
        if lake.partitions("sessions", day=day) and not is_redacted(lake, day):
            found[day] = Why("redacted by other rules than those of now")
        elif lake.partitions("states", day=day):
            found[day] = Why("not parsed from what is archived, or by another parser")
        else:
            found[day] = Why("not parsed yet", "absent")
    return found


def stale_hints(lake: Lake) -> Stale:
    """Return the parsed days whose hints are missing, or made from something else."""
    return _stale(lake, "hints", map(hints_origin, lake.days("states")))


def stale_replies(lake: Lake, teacher_set: TeacherSet, teacher: Teacher) -> Stale:
    """Return the parsed days that a teacher has not answered whole, with its parameters of now."""
    origins = [replies_origin(teacher_set, teacher, day) for day in lake.days("states")]
    notes = notes_of(lake, "replies")
    found = _stale(lake, "replies", origins, notes, absent="not asked")
    for origin in origins:
        made = notes.get(origin.name)
        if made and made.missing and origin.keys["day"] not in found:
            times = f", tried {made.tries} times" if made.tries > 1 else ""
            said = f"{made.missing} replies are missing ({made.why}){times}"
            found[origin.keys["day"]] = Why(said, "missing")
    return dict(sorted(found.items()))


def stale_pairs(lake: Lake, rules: PreferenceRules) -> Stale:
    """Return the days whose votes and pairs are missing, or made from something else.

    Raises:
        InputError: a list of benchmarks cannot be read.
    """
    return _stale(lake, "votes", (pairs_origin(lake, day, rules) for day in days_with_votes(lake)))


def stale_normalized(lake: Lake, recipe: str | Path) -> Stale:
    """Return the days whose pairs are not normalised, or by another recipe.

    Raises:
        InputError: a bad recipe.
    """
    recipe_id = recipe_id_of(recipe)
    return _stale(
        lake, "normalized_pairs", (normalized_origin(day, recipe_id) for day in lake.days("pairs"))
    )


def days_with_votes(lake: Lake) -> list[str]:
    """Return the days that enough families answered, or whose states were voted on before."""
    voted, states = set(lake.days("votes")), set(lake.days("states"))
    return sorted(day for day in states if day in voted or families(lake, day) >= FAMILIES)


def families(lake: Lake, day: str) -> int:
    """Return how many families have a usable reply that votes to a state of a day."""
    rows = lake.read("replies", days=[day], columns=["family", "control", "status"]).to_pylist()
    return len({row["family"] for row in rows if row["status"] == "ok" and not row["control"]})


def missing_replies(lake: Lake, teacher_set: TeacherSet) -> dict[tuple[str, str], Made]:
    """Return (teacher, day) -> the note of what could not be had, though it was asked."""
    notes = notes_of(lake, "replies")
    found = {}
    for teacher in teacher_set.teachers:
        for day in lake.days("states"):
            made = notes.get(replies_origin(teacher_set, teacher, day).name)
            if made is not None and made.missing:
                found[teacher.name, day] = made
    return found


def coverage(lake: Lake, teacher_set: TeacherSet, day: str) -> dict[str, Any]:
    """Return teacher -> ``asked`` states of a day, and those of them that have ``replies``.

    A teacher of a share is asked about its sample alone. What a selection leaves out counts as
    asked: with one, say of a teacher what :func:`stale_replies` says.
    """
    ids = lake.read("states", days=[day], columns=["state_id"])["state_id"].to_pylist()
    rows = lake.read("replies", days=[day], columns=["state_id", "status"]).to_pylist()
    have: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row["status"] != "unknown":
            have[row["teacher"]].add(row["state_id"])
    found = {}
    for teacher in teacher_set.teachers:
        asked = {state_id for state_id in ids if teacher.asks(state_id)}
        found[teacher.name] = {"asked": len(asked), "replies": len(asked & have[teacher.name])}
    return found


def unusable_share(lake: Lake, teacher: str) -> tuple[float, int]:
    """Return which share of a teacher's replies cannot be used, and how many there are."""
    status = lake.read("replies", teacher=teacher, columns=["status"])["status"].to_pylist()
    bad = sum(one != "ok" for one in status)
    return (bad / len(status) if status else 0.0), len(status)


def _stale(
    lake: Lake,
    table: str,
    origins: Iterable[Origin],
    notes: Mapping[str, Made] | None = None,
    absent: str = "not made yet",
) -> Stale:
    stamps = Stamps(lake)
    notes = notes_of(lake, table) if notes is None else notes
    found: Stale = {}
    for origin in origins:
        made = notes.get(origin.name)
        if made is None and not stamps.of((table, origin.keys)):
            found[origin.keys["day"]] = Why(absent, "absent")
        elif whys := changed(origin, made, stamps):
            found[origin.keys["day"]] = Why(_told(whys))
    return found


def _told(whys: Sequence[str]) -> str:
    more = f" and {len(whys) - 3} more" if len(whys) > 3 else ""
    return "; ".join(whys[:3]) + more
