"""The stages before a night's model, each for the days that are not current, in one call."""

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import msgspec

from composer_pipeline.dataset.build import build_dataset
from composer_pipeline.dataset.manifest import changed_inputs
from composer_pipeline.errors import InputError
from composer_pipeline.lake.provenance import build_id
from composer_pipeline.lake.store import Lake
from composer_pipeline.maintenance.status import pairs_days, replay_days, stale_hints
from composer_pipeline.normalization.stage import normalize
from composer_pipeline.preferences.hints import build_hints
from composer_pipeline.preferences.pairs import build_pairs
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.preferences.vote import VoteDecision
from composer_pipeline.reports import Progress, Report
from composer_pipeline.teachers.plan import selector_for
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.traces.ingest import ingest_changes


class Harvest(Report, msgspec.Struct):
    """What the stages did: days by stage, what was spent, the ceiling that ended the buying."""

    new_files: int = 0
    hints: list[str] = []
    replies: list[str] = []
    pairs: list[str] = []
    spent_usd: Decimal = Decimal(0)
    exhausted: str = ""
    dataset: bool = False


def harvest(
    lake: Lake,
    sessions: Sequence[Path | str],
    teachers: TeacherSet,
    *,
    max_usd: Decimal,
    rules: PreferenceRules,
    normalize_recipe: str | Path,
    night: str = "",
    ledger: str | Path | None = None,
    progress: Progress | None = None,
) -> Harvest:
    """Bring a lake's dataset up to date from new sessions, buying replies under one ceiling.

    Args:
        lake: everything is written into it.
        sessions: session files, or folders of them.
        teachers: who is asked about the days of the last month that they have not answered.
        max_usd: ceiling of the night, over all its starts; 0 buys nothing.
        rules: the preference recipe.
        normalize_recipe: the data-juicer recipe.
        night: the night (UTC), today by default.
        ledger: path or URL; in the lake when ``None``.
        progress: called as (label, done, total).

    Raises:
        InputError: no session is found, the preference recipe names a paid judge, or a key is
            missing.
        ComposerError: the provider cannot be reached; what was paid for is kept.
    """
    if rules.semantic_judge:
        raise InputError("the preference recipe names a paid judge, which no night pays: run pairs")
    now = datetime.now(UTC).date()
    night, done = night or str(now), Harvest()
    done.new_files = int(ingest_changes(lake, sessions, progress=progress)["new_files"])
    done.hints = sorted(stale_hints(lake))
    if done.hints:
        build_hints(lake, days=done.hints, progress=progress)
    if max_usd:
        _buy(lake, teachers, max_usd, night, ledger, done, progress)
    done.pairs = pairs_days(lake, rules, normalize_recipe)
    if done.pairs:
        build_pairs(lake, days=done.pairs, rules=rules, progress=progress)
        normalize(lake, normalize_recipe, days=done.pairs, progress=progress)
    if lake.days("normalized_pairs") and (
        not build_id(lake) or changed_inputs(lake, rules.digest())
    ):
        build_dataset(lake, rules=rules, progress=progress)
        done.dataset = True
    return done


def _buy(
    lake: Lake, teachers: TeacherSet, max_usd: Decimal, night: str, ledger: str | Path | None,
    done: Harvest, progress: Progress | None,
) -> None:  # fmt: skip
    groups: dict[tuple[str, ...], list[str]] = {}
    for day, asked in replay_days(lake, teachers, datetime.now(UTC).date()).items():
        groups.setdefault(tuple(asked), []).append(day)
    for names, days in groups.items():
        report = replay(
            lake, teachers, max_usd=max_usd, days=days, teachers=names, ledger=ledger,
            run_id=f"night-{night}", selector=selector_for(lake, teachers, VoteDecision()),
            progress=progress,
        )  # fmt: skip
        done.replies += days
        done.spent_usd += report.spent_usd
        done.exhausted = report.exhausted_scope or done.exhausted
