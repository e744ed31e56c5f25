"""What a night has to do: the days of each stage that are not current, and whom to ask.

Belongs here: which of them a schedule asks about, and when it gives up. Does not belong here: what
is current (``care.currency``), and Dagster's side of it.

A night looks at what the lake has, never at what it did: a run that was killed, a source that
changed, a raised version and a teacher that was away are all the same to it.
"""

from collections import defaultdict
from collections.abc import Iterable
from datetime import date, timedelta
from pathlib import Path

from composer_pipeline.care.currency import (
    stale_files,
    stale_hints,
    stale_normalized,
    stale_pairs,
    stale_replies,
    stale_states,
)
from composer_pipeline.lake import Lake
from composer_pipeline.lake.notes import Stamps, changed, notes_of
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.replay.noted import replies_origin
from composer_pipeline.replay.pending_days import WINDOW_DAYS
from composer_pipeline.replay.teachers import TeacherSet

#: Nights in which a teacher may fail at a day before no night asks it again. A new state, another
#: parameter, a backfill and ``composer-pipeline replay`` ask it all the same.
TRIES = 5


def harvest_days(lake: Lake, paths: Iterable[Path | str]) -> list[str]:
    """Return the days that a harvest has work on: at the source, in the archive or in the states.

    Raises:
        InputError: a path is missing, or a folder holds no session.
    """
    return sorted({*stale_files(lake, paths), *stale_states(lake), *stale_hints(lake)})


def replay_days(
    lake: Lake, teacher_set: TeacherSet, today: date, *, tries: int = TRIES
) -> dict[str, list[str]]:
    """Return day -> the teachers to ask about it, of the last month.

    With a selection, which decides by all answers together, a day's teachers are asked together.

    Args:
        lake: has the states.
        teacher_set: the teacher file.
        today: the last day of the month, in UTC.
        tries: nights in which a teacher may fail at a day.
    """
    first = str(today - timedelta(days=WINDOW_DAYS))
    notes, stamps = notes_of(lake, "replies"), Stamps(lake)
    wanted: dict[str, list[str]] = defaultdict(list)
    for teacher in teacher_set.teachers:
        for day in stale_replies(lake, teacher_set, teacher):
            origin = replies_origin(teacher_set, teacher, day)
            made = notes.get(origin.name)
            over = made is not None and made.tries >= tries
            if not first <= day <= str(today) or (over and not changed(origin, made, stamps)):
                continue
            wanted[day].append(teacher.name)
    everybody = [teacher.name for teacher in teacher_set.teachers]
    together = teacher_set.selection.active
    return {day: everybody if together else names for day, names in sorted(wanted.items())}


def pairs_days(lake: Lake, rules: PreferenceRules, recipe: str | Path) -> list[str]:
    """Return the days whose pairs or normalised pairs have to be made.

    Raises:
        InputError: a list of benchmarks cannot be read, or a bad recipe.
    """
    return sorted({*stale_pairs(lake, rules), *stale_normalized(lake, recipe)})
