"""Build the training dataset: pairs, groups, hints and more, split by group of sessions.

Both splits of every table are always written, empty or not, so a rebuild leaves nothing stale. The
same lake gives the same bytes. Prompts are decoded a session at a time and wait on disk.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa

from composer_pipeline.dataset.consent import Terms, find_consent
from composer_pipeline.dataset.files import CONFIGS, Pieces, filled, row_groups
from composer_pipeline.dataset.manifest import inputs_of, write_manifest
from composer_pipeline.dataset.rows import WINDOW_TOKENS, drop_rows
from composer_pipeline.dataset.select import Gathering, Selection, SplitPlan, name_of
from composer_pipeline.dataset.splits import SPLITS, TRAIN, VALIDATION, Overlap
from composer_pipeline.errors import InputError
from composer_pipeline.lake.schema import DATASETS, TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.quality import Quality, check_gates, measure, write_of_dataset
from composer_pipeline.preferences.rules import Rules, rules_of
from composer_pipeline.redaction.scanning import Findings, Scanner
from composer_pipeline.reports import Progress, Report
from composer_pipeline.training.windows import RowCutter

STAGE = "dataset"
#: From this many groups on, an empty validation split is worth a warning.
_WARN_GROUPS = 5


@dataclass(frozen=True)
class DatasetReport(Report):
    """What was built.

    Attributes:
        rows: pairs.
        splits: pairs by split.
        groups: groups of sessions over all tables.
        by_tier: pairs by tier.
        hints: rows of ``dataset_hints``.
        grpo_groups: rows of ``dataset_groups``.
        drops: rows of all tables that were left out by this stage, by reason.
        overlaps: values in both splits, by kind; all 0, or the build would have failed.
        warning: empty or one sentence.
        successes: rows of ``dataset_successes``.
        build: identifies the content of the dataset.
        split_by: ``repository`` or ``session``.
        repositories: distinct repositories.
        repository_in_train: share of validation pairs whose repository is in train.
        verbatim_in_train: share of validation pairs with a message of at least 120 characters
            that also occurs in train.
        moved: session to how it moved, for sessions that were in another split in the build
            before.
        accepted: gate to verdict, for those that the preference recipe lets through.
        quality: the statistics of the build, which are also stored; not in :meth:`to_dict`.
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
    accepted: dict[str, str] = field(default_factory=dict)
    quality: Quality | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all but the statistics, which are in ``preference_statistics``."""
        data = Report.to_dict(replace(self, quality=None))
        del data["quality"]
        return data


def build_dataset(
    lake: Lake,
    *,
    validation_share: float | None = None,
    split_by: str = "",
    rules: Rules = None,
    tokenizer: str = "",
    consent: str | Path = "",
    progress: Progress | None = None,
) -> DatasetReport:
    """Write the ``dataset_*`` tables, each in two splits, and the statistics of all pairs.

    A repository (if there are five or more), or else a group of sessions, is in validation when a
    hash of its name falls below the validation share. So it does not move when data are added,
    unless they join two groups or are of the fifth repository; with few of them, or some that are
    large, the share of rows can be far from it. The report says what came out, and warns below
    half of what was asked.

    Args:
        lake: reads ``normalized_pairs``, ``sessions``, ``states``, ``replies``, ``hints``;
            writes the tables, ``drops`` (stage ``dataset``) and the manifest of the build.
        validation_share: share of the groups in validation, in [0, 1), in place of the recipe's.
        split_by: ``repository`` or ``session``, in place of the recipe's. By session, rows of one
            repository may be in both splits; ``repository_in_train`` says how many are.
        rules: the preference recipe, which has the split, and decides about sessions on a
            benchmark's repository; what it drops is in none of the tables.
        tokenizer: model whose tokens are counted, and to whose window ``dataset_pairs_8k`` is
            cut: ``smollm2-135m``, a folder or a Hub id; without one that table is empty.
        consent: the consent file, whose repositories alone are in the dataset; if none is named,
            ``consent.yaml`` beside the lake or in the working folder, if there is one.
        progress: called after each day.

    Raises:
        InputError: the share is out of range, nothing was normalised yet, a list of benchmarks
            or the consent file is wrong, or there is no such tokenizer.
        ComposerError: the pairs are refused by a gate that the recipe does not accept, a group,
            session or prompt is in two splits, or a row holds something that publishing would
            refuse; the former dataset stays.
        StorageError: the lake is not writable.
    """
    rules = rules_of(rules)
    split_by = split_by or rules.split.by or ""
    if validation_share is None:
        validation_share = rules.split.validation_share
    if not 0 <= validation_share < 1:
        raise InputError(f"validation_share must be in [0, 1), not {validation_share}")
    if split_by not in ("", "repository", "session"):
        raise InputError(f"split_by must be repository or session, not {split_by!r}")
    if not lake.days("normalized_pairs"):
        raise InputError(f"lake {lake.url} has no normalized_pairs; run normalize first")
    with lake.locked("dataset"), Pieces(lake) as pieces:
        inputs = inputs_of(lake, rules.digest())
        quality = measure(lake, rules=rules, built=False)
        accepted = check_gates(quality, rules)
        allowed = find_consent(lake, consent)
        selection, terms = Selection(lake, rules, allowed), Terms(rules)
        cutter = _cutter(tokenizer)
        found = Gathering(lake, pieces, selection, terms, cutter)
        found.run(progress)
        plan = SplitPlan(lake, found, selection, validation_share, split_by)
        for day, row in drop_rows(lake, STAGE, plan.drops):
            if selection.barred.exclusion(row["session_id"]):
                continue  # the dataset must not name the session, the lake's drops may
            pieces.add("dataset_drops", day, row)
        pieces.flush()
        before = _placed(lake)
        tiers, overlap = _write(lake, pieces, plan)
        moved = _moved(before, _placed(lake))
        for day in sorted({*plan.drops, *lake.days("drops", stage=STAGE)}):
            lake.write("drops", plan.drops.get(day, ()), stage=STAGE, day=day)
        by = "repository" if plan.by_repository else "session"
        shares = overlap.figures()
        counts = {"repositories": plan.repositories, "groups": len(plan.names)}
        split = {"by": by, **counts, **shares}
        figures = {"validation_share": validation_share, "tokenizer": tokenizer, "split": split}
        if accepted:
            figures["accepted"] = accepted
        if cutter is not None:
            figures["chat_template"] = cutter.chat_template
        build = write_manifest(lake, inputs, figures)
        quality = write_of_dataset(lake, quality, rules)
    splits = {split: plan.counts["dataset_pairs", split] for split in SPLITS}
    return DatasetReport(
        rows=plan.rows_of("dataset_pairs"),
        splits=splits,
        groups=len(plan.names),
        by_tier=dict(sorted(tiers.items())),
        hints=plan.rows_of("dataset_hints"),
        grpo_groups=plan.rows_of("dataset_groups"),
        drops=dict(sorted(Counter(d["op"] for rows in plan.drops.values() for d in rows).items())),
        overlaps=plan.overlaps,
        warning=_warning(plan, validation_share),
        successes=plan.rows_of("dataset_successes"),
        build=build.id,
        split_by=by,
        repositories=plan.repositories,
        repository_in_train=shares["repository_in_train"],
        verbatim_in_train=shares["verbatim_in_train"],
        moved=moved,
        accepted=accepted,
        quality=quality,
    )


def _warning(plan: SplitPlan, asked: float) -> str:
    """Return why fewer than half of the pairs that were asked for are in validation, if so."""
    pairs, held_out = plan.rows_of("dataset_pairs"), plan.counts["dataset_pairs", VALIDATION]
    if not pairs or len(plan.names) < _WARN_GROUPS or held_out >= asked * pairs / 2:
        return ""
    here, every = plan.units
    unit, remedy = "groups of sessions", "add sessions, or ask for a larger share"
    if plan.by_repository:
        unit = "repositories"
        remedy = "--split-by session comes closer, with repositories in both splits"
    return (
        f"{held_out / pairs:.1%} of the pairs are in validation, where {asked:.0%} was asked: a"
        f" hash puts {here} of {every} {unit} there; {remedy}"
    )


def _cutter(tokenizer: str) -> RowCutter | None:
    """Return the cutter for a model's window; it loads transformers."""
    if not tokenizer:
        return None
    from composer_pipeline.training.models import load_tokenizer, resolve_model

    return RowCutter(load_tokenizer(resolve_model(tokenizer)), WINDOW_TOKENS)


def _placed(lake: Lake) -> dict[str, str]:
    """Return session id to its split in the lake's current dataset."""
    return {
        row["session_id"]: row["split"]
        for table in DATASETS
        for row in lake.read(table, columns=["session_id"]).group_by(
            ["session_id", "split"]).aggregate([]).to_pylist()
    }  # fmt: skip


def _moved(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return how sessions moved whose rows are in another split than before."""
    return {
        session: f"{before[session]} to {split}"
        for session, split in sorted(now.items())
        if before.get(session, split) != split
    }


def _write(lake: Lake, pieces: Pieces, plan: SplitPlan) -> tuple[Counter[str], Overlap]:
    """Write every split of every table; count the pairs by tier, and the overlap of the splits.

    All files are written before the first becomes visible; until the last one is, and the manifest
    after it, there is no build in the lake.
    """
    tiers, overlap, findings = Counter[str](), Overlap(), Findings(Scanner(lake))
    compare = {TRAIN: overlap.train, VALIDATION: overlap.validation}
    with ExitStack() as stack:
        writers = []
        for (config, table), split in product(CONFIGS.items(), SPLITS):
            writer, at = lake.writer(table, split=split), 0
            stack.callback(writer.discard)
            writers.append(writer)
            for name, keys in plan.members(split, pieces.keys(table)):
                for group in row_groups(_kept(pieces, plan, table, keys)):
                    rows = filled(group, "group_id", name).cast(TABLES[table].schema)
                    at = findings.rows(rows, f"{config}/{split}", at)
                    writer.write_group(rows)
                    if table == "dataset_pairs":
                        tiers.update(rows["tier"].to_pylist())
                        compare[split](rows)
        findings.refuse()
        lake.remove(Lake.BUILD)
        for writer in writers:
            writer.commit()
    return tiers, overlap


def _kept(
    pieces: Pieces, plan: SplitPlan, table: str, keys: Iterable[tuple[str, str]]
) -> Iterator[pa.Table]:
    """Yield the rows of some days and sessions that are not left out."""
    for day, session in keys:
        out = plan.out[table, day]
        for rows in pieces.read(table, day, session):
            if out:
                names = [name_of(table, key) for key in rows.select(TABLES[table].key).to_pylist()]
                rows = rows.filter(pa.array([name not in out for name in names], pa.bool_()))
            rows = filled(rows, "agent", plan.agent_of.get(session, ""))
            yield filled(rows, "repository", plan.repository_of.get(session, ""))
