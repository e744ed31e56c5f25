"""Build the training dataset: pairs, groups, hints and more, split by group of sessions.

Belongs here: the order of the work, which rows enter the ``dataset_*`` tables, and the report.
Does not belong here: reading (``dataset.gather``), what a group is (``publishing.splits``), which
actions of the agent worked (``publishing.successes``), which sessions are left out
(``publishing.selection``) and the files (``dataset.partitions``).

Both splits of every table are always written, empty or not, so a rebuild leaves nothing
stale. The same lake gives the same bytes. Prompts are decoded a session at a time and wait on disk.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from composer_pipeline.dataset.consent import Terms, find_consent
from composer_pipeline.dataset.files import CONFIGS, Pieces, write_groups
from composer_pipeline.dataset.manifest import forget_marker, inputs_of, write_marker
from composer_pipeline.dataset.rows import WINDOW_TOKENS, drop_rows
from composer_pipeline.dataset.select import Gathering, Plan, Selection, name_of
from composer_pipeline.dataset.splits import SPLITS, TRAIN, VALIDATION, Overlap
from composer_pipeline.errors import InputError
from composer_pipeline.lake.schema import DATASETS, TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.reports import Progress, Report
from composer_pipeline.training.windows import RowCutter

STAGE = "dataset"
#: From this many groups on, an empty validation split is worth a warning.
WARN_GROUPS = 5

Row = dict[str, Any]


@dataclass(frozen=True)
class DatasetReport(Report):
    """What was built.

    ``rows`` and ``splits`` count pairs, ``groups`` the groups of sessions over all
    tables, ``hints``, ``grpo_groups`` and ``successes`` rows of the other three. ``drops`` counts
    rows of all tables left out here, by reason. ``overlaps`` counts values found in both splits, by
    kind; they are all 0, or the build had failed. ``warning`` is empty or one sentence. ``build``
    names the content of the dataset. ``split_by`` is repository or session, ``repositories`` how
    many stand apart; ``repository_in_train`` and ``verbatim_in_train`` are the shares of
    validation pairs whose repository is in train, and that have a message of at least 120
    characters in common with it. ``moved`` says of each session whose rows were in another split
    in the build before, from where to where.
    """

    rows: int
    splits: dict[str, int]
    groups: int
    by_tier: dict[str, int]
    hints: int
    grpo_groups: int
    drops: dict[str, int]
    overlaps: dict[str, int]
    warning: str = ""
    successes: int = 0
    build: str = ""
    split_by: str = "session"
    repositories: int = 0
    repository_in_train: float = 0.0
    verbatim_in_train: float = 0.0
    moved: dict[str, str] = field(default_factory=dict)


def build_dataset(
    lake: Lake,
    *,
    validation_share: float = 0.2,
    rules: PreferenceRules | None = None,
    tokenizer: str = "",
    consent: str | Path = "",
    progress: Progress | None = None,
) -> DatasetReport:
    """Write the ``dataset_*`` tables, each in two splits.

    A repository, with five or more of them, or else a group of sessions, is in validation when a
    hash of its name falls below ``validation_share``. So it does not move when data are added,
    unless they join two, or are of the fifth repository; with few the share of rows can be far
    from it.

    Args:
        lake: reads ``normalized_pairs``, ``sessions``, ``states``, ``replies``, ``hints``;
            writes the tables, ``drops`` (stage ``dataset``) and the marker of the build.
        validation_share: share of the groups in validation, in [0, 1).
        rules: the preference recipe, which says what is done about sessions on a benchmark's
            repository; what it drops is in none of the tables.
        tokenizer: model whose tokens are counted, and to whose window ``dataset_pairs_8k`` is
            cut: ``smollm2-135m``, a folder or a Hub id; without one that table is empty.
        consent: the consent file, whose repositories alone are in the dataset; where none is
            named, ``consent.yaml`` beside the lake or in the working folder, if there is one.
        progress: called after each day.

    Raises:
        InputError: the share is out of range, nothing was normalised yet, a list of benchmarks
            or the consent file is wrong, or there is no such tokenizer.
        ComposerError: a group, session or prompt is in two splits.
        StorageError: the lake is not writable.
    """
    if not 0 <= validation_share < 1:
        raise InputError(f"validation_share must be in [0, 1), not {validation_share}")
    if not lake.days("normalized_pairs"):
        raise InputError(f"lake {lake.url} has no normalized_pairs; run normalize first")
    with lake.locked("dataset"), Pieces(lake) as pieces:
        inputs = inputs_of(lake)
        rules = rules or PreferenceRules()
        allowed = find_consent(lake, consent)
        selection, terms = Selection(lake, rules, allowed), Terms(lake, rules)
        cutter = _cutter(tokenizer)
        found = Gathering(lake, pieces, selection, terms, cutter).run(progress)
        plan = Plan(lake, found, selection, validation_share)
        for day, row in drop_rows(lake, STAGE, plan.ledger):
            if selection.barred.why_not(row["session_id"]):
                continue  # the lake's ledger says so; the dataset does not name the session
            pieces.add("dataset_drops", day, row)
        pieces.flush()
        before = _placed(lake)
        tiers, overlap = _write(lake, pieces, plan)
        moved = _moved(before, _placed(lake))
        _write_drops(lake, plan.ledger)
        by = "repository" if plan.by_repository else "session"
        split = {
            "by": by,
            "repositories": plan.repositories,
            "groups": len(plan.names),
            **overlap.figures(),
        }
        figures = {"validation_share": validation_share, "tokenizer": tokenizer, "split": split}
        if cutter is not None:
            figures["chat_template"] = cutter.chat_template
        build = write_marker(lake, inputs, figures)
    splits = {split: plan.counts["dataset_pairs", split] for split in SPLITS}
    return DatasetReport(
        rows=plan.rows_of("dataset_pairs"),
        splits=splits,
        groups=len(plan.names),
        by_tier=dict(sorted(tiers.items())),
        hints=plan.rows_of("dataset_hints"),
        grpo_groups=plan.rows_of("dataset_groups"),
        drops=dict(
            sorted(Counter(drop["op"] for rows in plan.ledger.values() for drop in rows).items())
        ),
        overlaps=plan.overlaps,
        warning=_warning(splits, len(plan.names), validation_share),
        successes=plan.rows_of("dataset_successes"),
        build=build.id,
        split_by=by,
        repositories=plan.repositories,
        repository_in_train=overlap.figures()["repository_in_train"],
        verbatim_in_train=overlap.figures()["verbatim_in_train"],
        moved=moved,
    )


def _warning(splits: Mapping[str, int], names: int, share: float) -> str:
    if share and names >= WARN_GROUPS and not splits[VALIDATION]:
        return f"no pair is in validation, although there are {names} groups of sessions"
    return ""


def _cutter(tokenizer: str) -> RowCutter | None:
    """Return what cuts prompts for a model; it loads transformers."""
    if not tokenizer:
        return None
    from composer_pipeline.training.models import load_tokenizer, resolve_model

    return RowCutter(load_tokenizer(resolve_model(tokenizer)), WINDOW_TOKENS)


def _placed(lake: Lake) -> dict[str, str]:
    """Return session id to its split in the dataset that the lake has."""
    return {
        row["session_id"]: row["split"]
        for table in DATASETS
        for row in lake.read(table, columns=["session_id"]).group_by(
            ["session_id", "split"]).aggregate([]).to_pylist()
    }  # fmt: skip


def _moved(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the sessions whose rows are in another split than before, and how they moved."""
    return {
        session: f"{before[session]} to {split}"
        for session, split in sorted(now.items())
        if before.get(session, split) != split
    }


def _write(lake: Lake, pieces: Pieces, plan: Plan) -> tuple[Counter[str], Overlap]:
    """Write every split of every table; count the pairs by tier, and what splits have in common.

    All files are written before the first becomes visible; until the last one is, and the marker
    after it, there is no build in the lake.
    """
    tiers, overlap = Counter[str](), Overlap()
    look = {TRAIN: overlap.train, VALIDATION: overlap.validation}

    def keep(table: str, day: str, rows: pa.Table) -> pa.Table:
        out = plan.out[table, day]
        if not out:
            return rows
        keys = rows.select(TABLES[table].key).to_pylist()
        return rows.filter(pa.array([name_of(table, key) not in out for key in keys], pa.bool_()))

    with ExitStack() as stack:
        writers = []
        for table in CONFIGS.values():
            keys = pieces.keys(table)
            for split in SPLITS:
                writer = lake.writer(table, split=split)
                stack.callback(writer.discard)
                writers.append(writer)
                write, members = writer.write_group, plan.members(split, keys)
                for rows in write_groups(write, table, pieces, members, keep, plan.repository_of):
                    if table == "dataset_pairs":
                        tiers.update(rows["tier"].to_pylist())
                        look[split](rows)
        forget_marker(lake)
        for writer in writers:
            writer.commit()
    return tiers, overlap


def _write_drops(lake: Lake, drops: Mapping[str, Sequence[Row]]) -> None:
    for day in sorted(set(drops) | set(lake.days("drops", stage=STAGE))):
        lake.write("drops", drops.get(day, ()), stage=STAGE, day=day)
