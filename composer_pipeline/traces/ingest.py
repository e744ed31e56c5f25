"""Harvest and parse in one call, with the counts of every file.

Belongs here: what ``composer-pipeline ingest`` does and reports. Does not belong
here: the two stages themselves.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from composer_pipeline.lake import Lake
from composer_pipeline.reports import Progress, Report
from composer_pipeline.traces.archive import Harvested, HarvestReport, harvest, open_archived
from composer_pipeline.traces.parse import ParseReport, analyse, is_current, is_redacted, parse_days
from composer_pipeline.traces.states import Facts, total_of


@dataclass(slots=True)
class IngestReport(Report):
    """What an ingest found.

    ``by_file`` maps each main file's path, relative to its PATH, to the keys of the
    corpus' ``expected.json``; ``totals`` adds them up and has ``files``,
    ``subagent_files``, ``unreadable_files`` and ``distinct_states`` (by message id)
    besides. ``harvest`` and ``parse`` are the reports of the stages.
    """

    totals: dict[str, Any]
    by_file: dict[str, Facts]
    harvest: HarvestReport
    parse: ParseReport

    def to_dict(self) -> dict[str, Any]:
        """Return the totals, and ``by_file`` besides."""
        return {**self.totals, "by_file": self.by_file}


@dataclass(slots=True)
class _Seen:
    facts: dict[str, Facts] = field(default_factory=dict)
    states: dict[str, set[str]] = field(default_factory=dict)
    responses: dict[str, set[str]] = field(default_factory=dict)

    def take(self, sha256: str, facts: Facts, responses: set[str], states: set[str]) -> None:
        self.facts[sha256] = facts
        self.responses[sha256] = responses
        self.states[sha256] = states


def ingest(
    lake: Lake,
    paths: Iterable[Path | str],
    *,
    days: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> IngestReport:
    """Archive and parse session files.

    Days whose archived files this parser has already written are not written again. Days
    that other redaction rules wrote are redacted again from the archive, one after the other;
    an interrupted run goes on where it stopped.

    Args:
        lake: gets ``raw_files`` and the archive, ``messages``, ``chains``, ``states`` and
            ``sessions``.
        paths: JSONL files, or folders of them.
        days: only files of sessions of these days; all when ``None``.
        progress: called with ``harvest`` and ``parse`` after each file.

    Raises:
        InputError: as :func:`composer_pipeline.traces.archive.harvest.harvest`.
    """
    harvested = harvest(lake, paths, days=days, progress=progress)
    seen = _Seen()
    stale = {day for day in harvested.days if not is_current(lake, day)}
    if days is None:
        # Changed rules hold for all that is stored, not only for what was named now.
        stale |= {day for day in lake.days("sessions") if not is_redacted(lake, day)}
    parsed = parse_days(lake, sorted(stale), progress=progress, on_file=seen.take)
    for item in harvested.files:
        _ensure_counted(lake, item, seen)
    by_file = _by_file(harvested.files, seen)
    totals: dict[str, Any] = total_of(by_file.values())
    main = [item for item in harvested.files if not item.source.agent_id]
    totals["files"] = len(main)
    totals["subagent_files"] = len(harvested.files) - len(main)
    totals["unreadable_files"] = len(harvested.unreadable)
    distinct = set().union(*(seen.states[item.row["sha256"]] for item in main))
    totals["distinct_states"] = len(distinct)
    return IngestReport(totals, by_file, harvested, parsed)


def _ensure_counted(lake: Lake, item: Harvested, seen: _Seen) -> None:
    sha256 = item.row["sha256"]
    if sha256 in seen.facts:
        return
    with open_archived(lake, item.row) as lines:
        graph, _, facts = analyse(lines, subagent=bool(item.row["agent_id"]))
    seen.take(sha256, facts, graph.response_keys(), graph.state_keys())


def _by_file(files: list[Harvested], seen: _Seen) -> dict[str, Facts]:
    """Return the facts of main files; a subagent counts under its main file."""
    below: dict[str, set[str]] = {}
    for item in files:
        if item.source.agent_id and (parent := _main_of(item)):
            below.setdefault(parent, set()).update(seen.responses[item.row["sha256"]])
    out: dict[str, Facts] = {}
    for item in files:
        if not item.source.agent_id:
            name = item.source.shown
            if name in out:  # the same relative path below two PATHs
                name = str(item.source.file)
            facts = dict(seen.facts[item.row["sha256"]])
            facts["subagent_responses"] = len(below.get(str(item.source.file), ()))
            out[name] = facts
    return out


def _main_of(item: Harvested) -> str:
    parts = PurePosixPath(str(item.source.file)).parts
    if "subagents" not in parts:
        return ""
    at = len(parts) - 1 - parts[::-1].index("subagents")
    return str(PurePosixPath(*parts[:at])) + ".jsonl"
