"""What a lake holds and what it cost, which stages are stale, and what comes next."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from composer_pipeline.dataset.manifest import changed_inputs
from composer_pipeline.errors import InputError
from composer_pipeline.lake.provenance import (
    Derivation,
    FileStamps,
    Record,
    StaleDays,
    Staleness,
    build_id,
    differences,
    read_records,
    stale_days,
)
from composer_pipeline.lake.store import Lake
from composer_pipeline.lake.withdrawn import publications
from composer_pipeline.maintenance.forget import PLAN
from composer_pipeline.normalization.stage import normalized_derivation, recipe_id_of
from composer_pipeline.preferences.hints import hints_derivation
from composer_pipeline.preferences.pairs import pairs_derivation
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.reports import Report
from composer_pipeline.states.previews import row_count
from composer_pipeline.teachers.ledger.ledger import budget_report
from composer_pipeline.teachers.replies import WINDOW_DAYS, pending_days, replies_derivation
from composer_pipeline.teachers.teachers import Teacher, TeacherSet
from composer_pipeline.traces.archive import days_changed
from composer_pipeline.traces.parse import is_current, is_redacted


@dataclass(slots=True)
class StatusReport(Report):
    """What a lake holds: bytes by table, days, rows of the main tables, USD, stages, what is next.

    ``stages`` has ``current``, ``none``, or why what the stage wrote is stale; ``made`` the runs on
    the dataset, those of them that are evaluated, its report and the repositories that hold it.
    """

    lake: str
    bytes: dict[str, int]
    days: dict[str, Any]
    rows: dict[str, int]
    usd: dict[str, str]
    stages: dict[str, str]
    made: dict[str, list[str]]
    #: The command to go on with, or that nothing is stale.
    next: str


def status(
    lake: Lake,
    *,
    ledger: str | Path | None = None,
    run_root: str | Path = "",
    sessions: Iterable[Path | str] = (),
) -> StatusReport:
    """Return what a lake holds, what of it is stale, and what comes next.

    Whether the repositories that ``outcomes`` looked at have new commits is not asked.

    Args:
        lake: is only read.
        ledger: has the amounts; without one they are left out.
        run_root: folder of training runs. By default the lake's ``runs``.
        sessions: session files and folders that new days may come from; without any, none are new.
    """
    sizes: dict[str, int] = defaultdict(int)
    for path, about in lake.fs.find(lake.root, detail=True).items():
        name = str(path).removeprefix(lake.root + "/").partition("/")[0]
        sizes[name] += int(about.get("size") or 0)
    by_size = {name: size for name, size in sorted(sizes.items(), key=lambda i: -i[1]) if size}
    days = lake.days("sessions")
    rows, sources, parsed = lake.select(_COUNTS)[0], list(sessions), stale_states(lake)
    later, made = _of_build(lake, run_root)
    stages = _stages(lake, parsed, sources) | later
    source = " ".join(map(str, sources))
    return StatusReport(
        lake.url,
        {**by_size, "total": sum(sizes.values())},
        {"count": len(days), "first": days[0] if days else "", "last": days[-1] if days else ""},
        rows,
        _money(ledger),
        stages,
        made,
        _next(lake, stages, rows, parsed, source),
    )


_COUNTS = "SELECT (SELECT count(DISTINCT session_id) FROM sessions) AS sessions, " + ", ".join(
    f"(SELECT count(*) FROM {table}) AS {table}"
    for table in ("states", "replies", "hints", "pairs", "normalized_pairs", "dataset_pairs")
)
_AMOUNTS = ("spent_usd", "reserved_usd", "unknown_usd", "ceiling_usd")


def _money(ledger: str | Path | None) -> dict[str, str]:
    if ledger is None:
        return {}
    for row in budget_report(ledger)["scopes"]:
        if row["scope"] == "global":
            return {name.removesuffix("_usd"): str(row[name]) for name in _AMOUNTS if row[name]}
    return {"spent": "0"}


def _stages(lake: Lake, parsed: StaleDays, sources: list[Path | str]) -> dict[str, str]:
    """Return stage -> ``current``, ``none`` or the first reason, whichever recipe was used."""
    redacted = {day: why for day, why in parsed.items() if why is _OTHER_RULES}
    normalized = (normalized_derivation(day, "") for day in lake.days("pairs"))
    stale: dict[str, tuple[str, StaleDays]] = {
        "ingest": ("raw_files", _coming(lake, sources) | {
            day: why for day, why in parsed.items() if day not in redacted
        }),
        "redaction": ("sessions", redacted),
        "hints": ("hints", stale_hints(lake)),
        "replies": ("replies", _unanswered(lake)),
        "outcomes": ("outcomes", {}),
        "pairs": ("votes", stale_pairs(lake, PreferenceRules(), ignore=("rules",))),
        "normalize": (
            "normalized_pairs", stale_days(lake, "normalized_pairs", normalized, ignore=("recipe",))
        ),
    }  # fmt: skip
    if lake.days("outcomes"):
        from composer_pipeline.survival.stage import stale_outcomes

        stale["outcomes"] = "outcomes", stale_outcomes(lake, ignore=("git",))
    found = {
        stage: "none" if not lake.days(table) else _first_reason(days)
        for stage, (table, days) in stale.items()
    }
    changed = changed_inputs(lake) if lake.exists(Lake.BUILD) else []
    older = f"older than {', '.join(changed)}" if changed else "current"
    found["dataset"] = older if lake.exists(Lake.BUILD) else "none"
    return found


def _unanswered(lake: Lake) -> StaleDays:
    """Return the days that nobody was asked about as they are now, or that lack replies."""
    found: StaleDays = {}
    asked, stamps = set(), FileStamps(lake)
    for name, record in read_records(lake, "replies").items():
        teacher, day = (part.partition("=")[2] for part in name[: -len(".json")].split("/")[-2:])
        inputs = [(table, {"day": day}) for table in ("states", "messages", "chains")]
        keys = {"teacher": teacher, "day": day}
        if differences(Derivation("replies", keys, inputs, record.settings), record, stamps):
            continue
        asked.add(day)
        if record.missing:
            why = f"{record.missing} replies of {teacher} are missing ({record.why})"
            found[day] = Staleness(why, "missing")
    for day in pending_days(lake, datetime.now(UTC).date()):
        if day not in asked:
            found[day] = Staleness("states without a reply", "absent")
    return dict(sorted(found.items()))


def _of_build(lake: Lake, run_root: str | Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the stages that follow the dataset, and what this build of it has of each."""
    place, build = Path(lake.root if lake.local else "."), build_id(lake)
    published = publications(lake)
    root, page = Path(run_root or place / "runs"), place / "reports" / f"dataset-{build}.html"
    runs, trained, evaluated = set[Path](), list[Path](), list[Path]()
    if root.is_dir():
        from composer_pipeline.training.model_card import EVALUATION
        from composer_pipeline.training.run import RESULT, runs_on

        runs = {folder for folder, _ in runs_on(lake, root)}
        trained, evaluated = ([*root.glob(f"*/{name}")] for name in (RESULT, EVALUATION))
    ever: dict[str, Iterable[object]] = {
        "train": trained, "evaluate": evaluated,
        "report": page.parent.glob("dataset-*.html"), "publish": published,
    }  # fmt: skip
    made = {
        "train": sorted(file.parent.name for file in trained if file.parent in runs),
        "evaluate": sorted(file.parent.name for file in evaluated if file.parent in runs),
        "report": [str(page)] if page.is_file() else [],
        "publish": [repo for repo, one in published.items() if one.build == build != ""],
    }
    other = "of another version of the dataset, or of an unknown one"
    found = {
        stage: "current" if made[stage] else other if any(those) else "none"
        for stage, those in ever.items()
    }
    newer = [file for file in (*trained, *evaluated) if file.parent in runs and page.is_file()
             and file.stat().st_mtime > page.stat().st_mtime]  # fmt: skip
    return found | ({"report": f"older than run {newer[-1].parent.name}"} if newer else {}), made


def _first_reason(days: StaleDays) -> str:
    for day, staleness in days.items():
        return f"{day}: {staleness.reason}" + (f" ({len(days)} days)" if len(days) > 1 else "")
    return "current"


#: Stage -> what brings it up to date, in the order of what is next.
_COMMANDS = {
    "ingest": "ingest SOURCE", "outcomes": "outcomes", "hints": "pairs", "pairs": "pairs",
    "normalize": "normalize", "dataset": "dataset", "train": "train", "evaluate": "evaluate",
    "report": "report", "publish": "publish --repo OWNER/NAME", "replies": "replay --max-usd USD",
}  # fmt: skip


def _next(
    lake: Lake, stages: Mapping[str, str], rows: Mapping[str, int], parsed: StaleDays, source: str
) -> str:
    """Return the command to go on with."""
    if lake.exists(PLAN):
        return "composer-pipeline forget  (it was interrupted)"
    if not lake.days("raw_files"):
        return f"composer-pipeline ingest {source}"
    if parsed:
        return "composer-pipeline reparse" + (f" --day {min(parsed)}" if len(parsed) == 1 else "")
    if stages["pairs"] == "none" and not rows["replies"]:
        return "composer-pipeline plan  (then replay --max-usd USD)"
    for stage, command in _COMMANDS.items():
        if stages[stage] == "current" or (stage, stages[stage]) == ("outcomes", "none"):
            continue
        if stage == "train" and stages["replies"] != "current":
            return "composer-pipeline replay --max-usd USD  (days without replies), or train"
        return f"composer-pipeline {command}".replace("SOURCE", source)
    return "nothing is stale"


#: Families that have to answer before a day's pairs are worth making: fewer never agree.
FAMILIES = 2

_NEW_FILES = Staleness("session files are new", "absent")
_CHANGED_FILES = Staleness("session files have changed")
_OTHER_RULES = Staleness("redacted by other rules than the current ones")


def stale_files(lake: Lake, paths: Iterable[Path | str]) -> StaleDays:
    """Return the days whose session files are new or changed since they were archived."""
    known = set(lake.days("raw_files"))
    return {
        day: _CHANGED_FILES if day in known else _NEW_FILES for day in days_changed(lake, paths)
    }


def _coming(lake: Lake, paths: Iterable[Path | str]) -> StaleDays:
    try:
        return stale_files(lake, paths)
    except InputError:  # no sessions at the source
        return {}


def stale_states(lake: Lake) -> StaleDays:
    """Return the archived days that this parser and these redaction rules did not write."""
    # By the rows themselves, which name their file's hash, parser and redaction rules: whether a
    # table is redacted must be known without a record, too.
    found: StaleDays = {}
    for day in lake.days("raw_files"):
        if is_current(lake, day):
            continue
        if lake.partitions("sessions", day=day) and not is_redacted(lake, day):
            found[day] = _OTHER_RULES
        elif lake.partitions("states", day=day):
            found[day] = Staleness("not parsed from what is archived, or by another parser")
        else:
            found[day] = Staleness("not parsed yet", "absent")
    return found


def stale_hints(lake: Lake) -> StaleDays:
    """Return the parsed days whose hints are missing, or made from something else."""
    return stale_days(lake, "hints", map(hints_derivation, lake.days("states")))


def stale_replies(lake: Lake, teacher_set: TeacherSet, teacher: Teacher) -> StaleDays:
    """Return the parsed days that a teacher has not answered whole, with current parameters."""
    derivations = (replies_derivation(teacher_set, teacher, day) for day in lake.days("states"))
    return stale_days(lake, "replies", derivations, absent="not asked")


def stale_pairs(lake: Lake, rules: PreferenceRules, ignore: tuple[str, ...] = ()) -> StaleDays:
    """Return the days whose votes and pairs are missing, or made from something else."""
    days = days_with_votes(lake)
    derivations = (pairs_derivation(lake, day, rules) for day in days)
    return stale_days(lake, "votes", derivations, ignore=ignore)


def stale_normalized(lake: Lake, recipe: str | Path) -> StaleDays:
    """Return the days whose pairs are not normalised, or by another recipe."""
    recipe_id = recipe_id_of(recipe)
    derivations = (normalized_derivation(day, recipe_id) for day in lake.days("pairs"))
    return stale_days(lake, "normalized_pairs", derivations)


def days_with_votes(lake: Lake) -> list[str]:
    """Return the days that enough families answered, or whose states were voted on before."""
    voted, states = set(lake.days("votes")), set(lake.days("states"))
    return sorted(day for day in states if day in voted or _families(lake, day) >= FAMILIES)


def _families(lake: Lake, day: str) -> int:
    """Return how many families have a usable voting reply to a state of a day."""
    rows = lake.read("replies", days=[day], columns=["family", "control", "status"]).to_pylist()
    return len({row["family"] for row in rows if row["status"] == "ok" and not row["control"]})


def missing_replies(lake: Lake, teacher_set: TeacherSet) -> dict[tuple[str, str], Record]:
    """Return (teacher, day) -> the record of replies that were asked for and not obtained."""
    records = read_records(lake, "replies")
    return {
        (teacher.name, day): record
        for teacher in teacher_set.teachers
        for day in lake.days("states")
        if (record := records.get(replies_derivation(teacher_set, teacher, day).record_name))
        and record.missing
    }


def unusable_share(lake: Lake, teacher: str) -> tuple[float, int]:
    """Return which share of a teacher's replies cannot be used, and how many there are."""
    status = lake.read("replies", teacher=teacher, columns=["status"])["status"].to_pylist()
    bad = sum(one != "ok" for one in status)
    return (bad / len(status) if status else 0.0), len(status)


#: Nights in which a teacher may fail at a day before no night asks it again. A new state, another
#: parameter, a backfill and ``composer-pipeline replay`` ask it all the same.
TRIES = 5


def harvest_days(lake: Lake, paths: Iterable[Path | str]) -> list[str]:
    """Return the days to harvest: new or changed at the source, or stale in the lake."""
    return sorted({*stale_files(lake, paths), *stale_states(lake), *stale_hints(lake)})


def replay_days(
    lake: Lake, teacher_set: TeacherSet, today: date, *, tries: int = TRIES
) -> dict[str, list[str]]:
    """Return day -> the teachers to ask about it, of the month that ends ``today`` (UTC)."""
    first = str(today - timedelta(days=WINDOW_DAYS))
    records, stamps = read_records(lake, "replies"), FileStamps(lake)
    wanted: dict[str, list[str]] = defaultdict(list)
    for teacher in teacher_set.teachers:
        for day in stale_replies(lake, teacher_set, teacher):
            derivation = replies_derivation(teacher_set, teacher, day)
            record = records.get(derivation.record_name)
            over = record is not None and record.tries >= tries
            if first <= day <= str(today) and not (
                over and not differences(derivation, record, stamps)
            ):
                wanted[day].append(teacher.name)
    # A selection decides by all answers together, so a day's teachers are asked together.
    everybody = [teacher.name for teacher in teacher_set.teachers]
    together = teacher_set.selection.active
    return {day: everybody if together else names for day, names in sorted(wanted.items())}


def pairs_days(lake: Lake, rules: PreferenceRules, recipe: str | Path) -> list[str]:
    """Return the days whose pairs or normalised pairs have to be made."""
    return sorted({*stale_pairs(lake, rules), *stale_normalized(lake, recipe)})


#: Asset -> the table of which it has one partition a day.
TABLE_OF: Mapping[str, str] = {
    "raw_sessions": "raw_files",
    "trace_states": "states",
    "error_hints": "hints",
    "edit_outcomes": "outcomes",
    "preference_pairs": "pairs",
    "normalized_pairs": "normalized_pairs",
}


def days_held(lake: Lake, teacher_set: TeacherSet | None) -> dict[str, list[str]]:
    """Return asset -> its finished days; a teacher is ``teacher_replies/NAME``."""
    found = {asset: lake.days(table) for asset, table in TABLE_OF.items()}
    records = read_records(lake, "replies")
    for teacher in teacher_set.teachers if teacher_set else []:
        whole = {
            name.rpartition("day=")[2].removesuffix(".json")
            for name, record in records.items()
            if name.startswith(f"made/replies/teacher={teacher.name}/") and not record.missing
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
    known = {*lake.days("raw_files"), *lake.days("states"), *_coming(lake, paths)}
    return sorted(set(days) - known)
