"""Archive the raw bytes of session files before anything else looks at them.

Belongs here: the stage, the order of its writes, the manifest ``raw_files``. Does not
belong here: one file (``traces.archive.versions``) and parsing (``traces.parse``).

Claude Code deletes transcripts after 30 days; the archive keeps them. A blob is
``archive/<first two hex digits>/<sha256 of the raw bytes>.jsonl.zst``; a file deleted at
its source stays in the manifest.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from composer_pipeline.lake import Lake
from composer_pipeline.reports import Progress
from composer_pipeline.traces.archive.blobs import Row
from composer_pipeline.traces.archive.forgotten import Forgotten
from composer_pipeline.traces.archive.plan import Plan, make_plan, manifest_of, stored, unchanged
from composer_pipeline.traces.archive.report import Harvested, HarvestReport
from composer_pipeline.traces.archive.versions import harvest_file
from composer_pipeline.traces.one_writer import one_writer


def session_days(paths: Iterable[Path | str]) -> set[str]:
    """Return the days that a harvest of ``paths`` into a new lake would fill.

    Reads only the head of each file.

    Raises:
        InputError: as :func:`harvest`.
    """
    plan = make_plan({}, paths)
    return {plan.days[head.session_id] for _, head in plan.sources}


def days_changed(lake: Lake, paths: Iterable[Path | str]) -> list[str]:
    """Return the days with a file that is new or changed since the last harvest, sorted.

    Compares sizes and modification times and reads only the head of new files.

    Raises:
        InputError: as :func:`harvest`.
    """
    manifest = manifest_of(lake)
    plan = make_plan(manifest, paths)
    return sorted(
        {
            plan.days[head.session_id]
            for source, head in plan.sources
            if unchanged(manifest.get(source.path, ()), source) is None
        }
    )


def harvest(
    lake: Lake,
    paths: Iterable[Path | str],
    *,
    days: Iterable[str] | None = None,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> HarvestReport:
    """Archive session files and write the manifest of each day that changed.

    Idempotent; an unchanged file costs one ``stat``. Blobs are written before the
    manifest that names them, so a killed harvest is simply run again. A subagent's file
    goes to the day of its session. Harvests of one lake, also from several machines, add up:
    one waits for the other.

    Args:
        lake: where to.
        paths: files or folders; what to harvest.
        days: only files of these days; all when ``None``.
        exclude: globs of files and folders that are not read, besides ``COMPOSER_EXCLUDE``.
        progress: called with ``("harvest", done, total)``, and once with
            :data:`WAITING` where another harvest or parse has to end first.

    Raises:
        InputError: a path is missing, a folder holds no session, a file that was named
            holds no record, or the lake is not writable. The lake is as it was.
    """
    paths = list(paths)
    # Bad input makes no lake, not even its lock.
    first = None if lake.days("raw_files") else make_plan({}, paths, exclude)
    lake.check_writable()
    with one_writer(lake, progress):
        manifest = manifest_of(lake)
        plan = first if first is not None and not manifest else make_plan(manifest, paths, exclude)
        return _harvest(lake, manifest, plan, None if days is None else set(days), progress)


def _harvest(
    lake: Lake,
    manifest: dict[str, list[Row]],
    plan: Plan,
    wanted: set[str] | None,
    progress: Progress | None,
) -> HarvestReport:
    report = HarvestReport(unreadable=plan.unreadable)
    rows: dict[str, dict[str, Row]] = {}
    for row in (row for versions in manifest.values() for row in versions):
        rows.setdefault(row["day"], {})[row["path"]] = row
    written = _redacted_otherwise(lake, rows) if wanted is None else set[str]()
    changed: set[str] = set()
    forgotten = Forgotten(lake)
    for done, (source, head) in enumerate(plan.sources, 1):
        day = plan.days[head.session_id]
        if head.session_id in forgotten or forgotten.folder(head.cwd):
            report.forgotten_files += 1
        elif wanted is None or day in wanted:
            before = dict(rows.get(day, {}))
            row = harvest_file(lake, rows.setdefault(day, {}), source, head, day, report)
            report.files.append(Harvested(source, row, day))
            if rows[day] != before:
                written.add(day)
            if _hashes(rows[day]) != _hashes(before):
                changed.add(day)
        if progress is not None:
            progress("harvest", done, len(plan.sources))
    for day in sorted(written):
        table = [stored(rows[day][path]) for path in sorted(rows[day])]
        lake.write("raw_files", table, day=day)
    report.days = sorted({item.day for item in report.files})
    report.changed_days = sorted(changed)
    report.files_by_day = {day: len(rows[day]) for day in sorted(rows)}
    for day, known in rows.items():
        counts = report._by_day.setdefault(day, Counter())
        counts["files"] = len(known)
        counts["bytes"] = sum(row["size"] for row in known.values())
    return report


# -- one file --------------------------------------------------------------------


def _hashes(rows: dict[str, Row]) -> dict[str, str]:
    return {path: row["sha256"] for path, row in rows.items()}


def _redacted_otherwise(lake: Lake, rows: dict[str, dict[str, Row]]) -> set[str]:
    """Return the days whose stored paths are not those of the rules of now."""
    stored: dict[str, set[str]] = {}
    for row in lake.rows("raw_files"):
        stored.setdefault(row["day"], set()).update((row["path"], row["parent_path"]))
    return {
        day
        for day, paths in stored.items()
        if paths != {p for row in rows[day].values() for p in (row["path"], row["parent_path"])}
    }
