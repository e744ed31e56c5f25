"""The tables of stage 1 written again from the archive.

Belongs here: which days, the manifest's paths by the rules of now, and going on after a day that
the archive cannot give. Does not belong here: parsing (``traces.parse``), and the stages behind.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from composer_pipeline.errors import InputError
from composer_pipeline.lake import Lake
from composer_pipeline.reports import Progress, Report
from composer_pipeline.traces.archive import redact_manifest
from composer_pipeline.traces.one_writer import one_writer
from composer_pipeline.traces.parse import parse_days


@dataclass(slots=True)
class ReparseReport(Report):
    """What was written again: the days, their states, and why days could not be (``failed``)."""

    days: list[str] = field(default_factory=list)
    states: int = 0
    redactions: int = 0
    failed: dict[str, str] = field(default_factory=dict)


def reparse(
    lake: Lake, days: Iterable[str] | None = None, *, progress: Progress | None = None
) -> ReparseReport:
    """Write ``sessions``, ``messages``, ``chains`` and ``states`` of days again.

    A day whose archived bytes are damaged keeps what it has; the others are written.

    Args:
        lake: the lake.
        days: all days of the archive when ``None``.
        progress: as :func:`composer_pipeline.traces.parse.parse_days`, a day at a time.

    Raises:
        InputError: a day has no archived file, or the manifest of one is damaged.
    """
    have = lake.days("raw_files")
    wanted = have if days is None else sorted(set(days))
    if missing := [day for day in wanted if day not in have]:
        raise InputError(f"lake {lake.url} has no archived session of {', '.join(missing)}")
    report = ReparseReport()
    for done, day in enumerate(wanted, start=1):
        with one_writer(lake, progress):
            redact_manifest(lake, day)
        try:
            parsed = parse_days(lake, [day])
        except InputError as error:
            report.failed[day] = str(error)
        else:
            report.days.append(day)
            report.states += parsed.states
            report.redactions += parsed.redactions.total()
        if progress is not None:
            progress("reparse", done, len(wanted))
    return report
