"""The options that say which days, sessions and projects: the same on every command.

Belongs here: the options, and what of a lake they leave. Does not belong here: a command.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated

from cyclopts import Parameter

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake


def checked(text: str, option: str) -> str:
    """Return a date as it was typed.

    Raises:
        InputError: it is none; the message names ``option``.
    """
    try:
        if date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise InputError(f"{option} {text!r} is no date of the form YYYY-MM-DD")


@Parameter(name="*")
@dataclass(frozen=True)
class DayFilter:
    """Days, by name or from one to another."""

    day: Annotated[
        Sequence[str], Parameter(help="Only this day (YYYY-MM-DD); may be given again.")
    ] = ()
    since: Annotated[str, Parameter(help="Only this day and later ones.")] = ""
    until: Annotated[str, Parameter(help="Only this day and earlier ones.")] = ""

    def typed(self) -> list[str]:
        """Return the options as a person types them."""
        values = [(name, getattr(self, name)) for name in ("since", "until", "session", "project")
                  if getattr(self, name, "")]  # fmt: skip
        values += [("day", day) for day in self.day]
        return [f"--{name} {shlex.quote(value)}" for name, value in values]

    def days(self, lake: Lake, table: str = "states") -> list[str] | None:
        """Return the days that are meant; ``None`` for all.

        Raises:
            InputError: one is no date, or the table has nothing of any of them.
        """
        for text in self.day:
            checked(text, "--day")
        for option, text in (("--since", self.since), ("--until", self.until)):
            if text:
                checked(text, option)
        if not (self.day or self.since or self.until):
            return None
        have = lake.days(table)
        last = self.until or "9999-12-31"
        found = {day for day in self.day or have if self.since <= day <= last}
        if found.isdisjoint(have):
            words = [", ".join(self.day)] if self.day else []
            words += [f"since {self.since}"] if self.since else []
            words += [f"until {self.until}"] if self.until else []
            what = _WORDS.get(table, table)
            raise InputError(f"lake {lake.url} has no {what} of {' '.join(words)}")
        return sorted(found)


_WORDS = {"raw_files": "archived session"}


@Parameter(name="*")
@dataclass(frozen=True)
class SessionFilter(DayFilter):
    """Days, and the sessions of a project or by the beginning of their ids."""

    session: Annotated[
        str, Parameter(help="Only this session; the beginning of its id is enough.")
    ] = ""
    project: Annotated[
        str, Parameter(help="Only this project: a glob of its path or of its last folder.")
    ] = ""

    def sessions(self, lake: Lake) -> set[str] | None:
        """Return the sessions that are meant, on whatever day; ``None`` for all.

        Raises:
            InputError: the lake has none.
        """
        from composer_pipeline.care import of_project

        if not (self.session or self.project):
            return None
        rows = lake.select("SELECT DISTINCT session_id, project FROM states")
        found = {
            row["session_id"]
            for row in rows
            if row["session_id"].startswith(self.session)
            and (not self.project or of_project(row["project"] or "", self.project))
        }
        if not found:
            words = [f"session {self.session!r}"] if self.session else []
            words += [f"project {self.project!r}"] if self.project else []
            raise InputError(f"lake {lake.url} has no states of {' of '.join(words)}")
        return found
