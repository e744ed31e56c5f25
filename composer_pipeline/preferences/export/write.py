"""The dataset in the columns that trainers take: DPO, KTO, SFT, SDPO.

Belongs here: the columns of each format and the files. Does not belong here: what is in the
dataset (``publishing.dataset``, which has run before) and a model's samples
(``preferences.export.student_samples``).

========= ========================================================================
format    a row
========= ========================================================================
dpo       a pair: ``prompt``, ``chosen``, ``rejected``, ``tools``
kto       one side of a pair: ``prompt``, ``completion``, ``label``, ``tools``
sft       a state and the teachers' consensus (DAgger): ``prompt``, ``completion``, ``tools``
sdpo      a state, the agent's action and what was wrong: ``prompt``, ``completion``,
          ``privileged_context``, ``tools``
========= ========================================================================

Messages are ``list<arrow.json>``, as in the lake; ``datasets`` reads them and TRL trains on
them without glue. Minority answers of teachers are in no format.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.files import replace, writing
from composer_pipeline.lake import (
    DATASETS,
    JSON_LIST,
    Lake,
    TableSpec,
    encode_parquet,
    remember_exports,
    table_from_rows,
)
from composer_pipeline.preferences.agreement import CONFIRMED
from composer_pipeline.preferences.export.samples_file import read_samples
from composer_pipeline.preferences.export.student_samples import sampled_pairs
from composer_pipeline.preferences.hints import SOURCE, consensus_hint
from composer_pipeline.preferences.pairs import RECORDED, is_strong
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.reports import Progress, Report

SPLITS = ("train", "validation")

Row = dict[str, Any]
#: A row to the row that is written, and an empty text or the reason for which none is.
Shorten = Callable[[Row], tuple[Row, str]]

_S, _F, _B, _I = pa.string(), pa.float64(), pa.bool_(), pa.int32()
_STATE = {"state_id": _S, "session_id": _S, "split": _S, "simulated": _B}
_OF_PAIR = {**_STATE, "pair_id": _S, "tier": _S, "weight": _F, "student": _S}
_COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "dpo": dict.fromkeys(("prompt", "chosen", "rejected", "tools"), JSON_LIST) | _OF_PAIR,
    "kto": dict.fromkeys(("prompt", "completion", "tools"), JSON_LIST) | {"label": _B} | _OF_PAIR,
    "sft": dict.fromkeys(("prompt", "completion", "tools"), JSON_LIST)
    | _STATE
    | {"agrees_with_student": _B},
    "sdpo": dict.fromkeys(("prompt", "completion", "tools"), JSON_LIST)
    | {"privileged_context": _S, "hint_source": _S, "leakage": _F, "span_call": _I}
    | _STATE,
}
FORMATS = tuple(_COLUMNS)


@dataclass(frozen=True)
class ExportReport(Report):
    """What was written: rows by file, and what was left out, by reason."""

    format: str
    files: dict[str, int]
    rows: int
    left_out: dict[str, int] = field(default_factory=dict)


def export(
    lake: Lake,
    form: str,
    out: str | Path,
    *,
    samples: str | Path | None = None,
    rules: PreferenceRules | None = None,
    full_arguments: bool = False,
    shorten: Shorten | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the dataset in one format.

    Args:
        lake: reads the tables ``dataset_*``, ``votes`` and ``hints``.
        form: one of :data:`FORMATS`.
        out: a file that ends in ``.parquet`` gets every row, with its ``split``; any other
            path is a folder that gets one file for each split with rows.
        samples: a file of a model's own actions (:func:`~.samples.read_samples`), which take
            the place of the agent's as rejected side; for ``dpo`` and ``kto`` alone.
        rules: the preference recipe, for the contamination of states without a pair.
        full_arguments: allow hints that hold every argument of the teachers' action.
        shorten: called with each row; returns it as it shall be written, or the reason for
            which it is left out.
        progress: called after each file.

    Raises:
        InputError: an unknown format, no dataset, no row, bad samples, or a path that cannot
            be written.
    """
    if form not in FORMATS:
        raise InputError(f"--format {form!r} is none of {', '.join(FORMATS)}")
    if samples is not None and form not in ("dpo", "kto"):
        raise InputError(f"--samples replaces the rejected side, which format {form} has not")
    if not lake.partitions("dataset_pairs"):
        raise InputError(f"lake {lake.url} has no dataset; run dataset first")
    left: Counter[str] = Counter()
    if form in ("dpo", "kto"):
        pairs = (
            _pairs(lake)
            if samples is None
            else _sampled(lake, Path(samples), rules or PreferenceRules(), left)
        )
        rows = pairs if form == "dpo" else [side for row in pairs for side in _sides(row)]
    elif form == "sft":
        rows = _sft(lake, rules or PreferenceRules(), left)
    else:
        rows = _sdpo(lake, left, full_arguments=full_arguments)
    rows = _shortened(rows, shorten, left)
    columns = _COLUMNS[form]
    spec = TableSpec(form, "", (), (), pa.schema(list(columns.items())))
    target = Path(out)
    parts = (
        {target: rows}
        if target.suffix == ".parquet"
        else {
            target / f"{split}.parquet": [row for row in rows if row["split"] == split]
            for split in SPLITS
        }
    )
    remember_exports(lake, [path for path, part in parts.items() if part], "--out")
    files = {}
    for done, (path, part) in enumerate(parts.items(), start=1):
        # `datasets` fails on a split whose file holds no row.
        if part:
            table = table_from_rows(spec, [{key: row[key] for key in columns} for row in part])
            replace(path, encode_parquet(table), f"--out {path}")
            files[str(path)] = len(part)
        else:
            _remove(path)
        if progress:
            progress("export", done, len(parts))
    return ExportReport(form, files, len(rows), dict(sorted(left.items())))


def _shortened(rows: list[Row], shorten: Shorten | None, left: Counter[str]) -> list[Row]:
    """Return the rows as they are written.

    Raises:
        InputError: none is left.
    """
    kept = []
    for row in rows:
        shorter, reason = shorten(row) if shorten else (row, "")
        if reason:
            left[reason] += 1
        else:
            kept.append(shorter)
    if not kept:
        why = ", ".join(f"{n} {reason}" for reason, n in sorted(left.items()))
        raise InputError("nothing to export" + (f": {why}" if why else ""))
    return kept


def _pairs(lake: Lake) -> list[Row]:
    rows = lake.rows("dataset_pairs")
    return [
        {
            **row,
            "weight": 1.0 if row["weight"] is None else row["weight"],
            "student": row["student"] or RECORDED,
        }
        for row in rows
    ]


def _sampled(lake: Lake, path: Path, rules: PreferenceRules, left: Counter[str]) -> list[Row]:
    """Return sampled pairs with the splits of their sessions; others cannot be placed."""
    rows, reasons = sampled_pairs(lake, read_samples(path), rules)
    left.update(reasons)
    split_of = {
        row["session_id"]: row["split"]
        for table in DATASETS
        for row in lake.rows(table, columns=["session_id"])
    }
    placed = []
    for row in rows:
        if row["session_id"] in split_of:
            placed.append({**row, "split": split_of[row["session_id"]]})
        else:
            left["session_not_in_dataset"] += 1
    return placed


def _sides(row: Mapping[str, Any]) -> Iterable[Row]:
    for side, label in (("chosen", True), ("rejected", False)):
        yield {**row, "completion": row[side], "label": label}


def _sft(lake: Lake, rules: PreferenceRules, left: Counter[str]) -> list[Row]:
    """Return the teachers' consensus at every state that has one, the agent's included."""
    columns = ["state_id", "reason", "contamination"]
    votes = {row["state_id"]: row for row in lake.rows("votes", columns=columns)}
    rows = []
    for row in lake.rows("dataset_groups"):
        ballot = votes.get(row["state_id"], {})
        found = ballot.get("contamination") or []
        action = rules.contamination.evidence if is_strong(found) else rules.contamination.by_name
        if found and action == "drop":
            left["contamination"] += 1
            continue
        agrees = ballot.get("reason") in CONFIRMED
        rows.append({**row, "completion": row["consensus"], "agrees_with_student": agrees})
    return rows


def _sdpo(lake: Lake, left: Counter[str], *, full_arguments: bool) -> list[Row]:
    """Return hints of the trace and of the teachers' consensus, each with its leakage."""
    told = {row["state_id"]: row["leakage"] for row in lake.rows("hints")}
    rows = [
        {
            **row,
            "completion": row["action"],
            "privileged_context": row["hint"],
            "hint_source": row["source"],
            "leakage": told.get(row["state_id"]),
            "simulated": False,
        }
        for row in lake.rows("dataset_hints")
    ]
    for row in lake.rows("dataset_pairs"):
        hint = consensus_hint(row, full_arguments=full_arguments)
        if hint is None:
            left["consensus_is_text"] += 1
            continue
        rows.append(
            {
                **row,
                "completion": row["rejected"],
                "privileged_context": hint.text,
                "hint_source": SOURCE,
                "leakage": hint.leakage,
                "span_call": -1,
            }
        )
    return sorted(rows, key=lambda row: (row["split"], row["state_id"], row["hint_source"]))


def _remove(path: Path) -> None:
    """Remove the file of an earlier export, so that no stale split stays beside a new one."""
    with writing(f"--out {path}"):
        path.unlink(missing_ok=True)
