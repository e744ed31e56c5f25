"""The dataset to files that trainers take, row by row.

Belongs here: files, and what is left out. Does not belong here: what is in the dataset
(``publishing.dataset``, which has run before), the columns (``preferences.export.columns``) and
a model's samples (``preferences.export.student_samples``).
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from composer_pipeline.errors import InputError
from composer_pipeline.files import Replacement, replace, writing
from composer_pipeline.lake import DATASETS, Lake, TableFile
from composer_pipeline.lake.notes import remember_exports
from composer_pipeline.preferences.export.columns import COLUMNS, FORMATS, OF_PAIRS, Row, rows_of
from composer_pipeline.preferences.export.samples_file import read_samples
from composer_pipeline.preferences.export.sharegpt import conversation, dataset_info
from composer_pipeline.preferences.export.student_samples import sampled_pairs
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.reports import Progress, Report

SPLITS = ("train", "validation")

#: A row to the row that is written, and an empty text or the reason for which none is.
Shorten = Callable[[Row], tuple[Row, str]]


@dataclass(frozen=True)
class ExportReport(Report):
    """What was written: rows by file, and what was left out, by reason."""

    format: str
    files: dict[str, int]
    rows: int
    left_out: dict[str, int] = field(default_factory=dict)


class _File(Protocol):
    rows: int

    def add(self, row: Mapping[str, Any]) -> None: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


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
    """Write the dataset in one format; a few rows are held at a time.

    Args:
        lake: reads the tables ``dataset_*``, ``votes`` and ``hints``.
        form: one of :data:`~.columns.FORMATS`.
        out: a file that ends in ``.parquet`` (sharegpt: ``.jsonl``) gets every row, with its
            ``split``; any other path is a folder that gets one file for each split with rows.
        samples: a file of a model's own actions (:func:`~.samples.read_samples`), which take
            the place of the agent's as rejected side; for the formats of pairs alone.
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
        raise InputError(f"--format {form!r} is none of {', '.join(FORMATS)}, atif, pi")
    if samples is not None and form not in OF_PAIRS:
        raise InputError(f"--samples replaces the rejected side, which format {form} has not")
    if not lake.partitions("dataset_pairs"):
        raise InputError(f"lake {lake.url} has no dataset; run dataset first")
    left: Counter[str] = Counter()
    rules = rules or PreferenceRules()
    sampled = None if samples is None else _sampled(lake, Path(samples), rules, left)
    found = rows_of(lake, form, rules, left, sampled=sampled, full_arguments=full_arguments)
    files = _written(lake, form, Path(out), _kept(found, form, shorten, left), left, progress)
    return ExportReport(form, files, sum(files.values()), dict(sorted(left.items())))


def _kept(
    rows: Iterator[Row], form: str, shorten: Shorten | None, left: Counter[str]
) -> Iterator[Row]:
    """Yield the rows as they are written."""
    for row in rows:
        kept, reason = shorten(row) if shorten else (row, "")
        if not reason and form == "sharegpt":
            kept, reason = conversation(kept)
        if reason:
            left[reason] += 1
        else:
            yield kept


def _written(
    lake: Lake,
    form: str,
    out: Path,
    rows: Iterator[Row],
    left: Counter[str],
    progress: Progress | None,
) -> dict[str, int]:
    """Write rows to their files, all of them or none; return how many each file got.

    Raises:
        InputError: there is no row.
    """
    ending = ".jsonl" if form == "sharegpt" else ".parquet"
    whole = out.suffix == ending
    paths = {split: out if whole else out / f"{split}{ending}" for split in SPLITS}
    open_files: dict[Path, _File] = {}
    with ExitStack() as stack:
        for row in rows:
            path = paths[row["split"]]
            if path not in open_files:
                open_files[path] = _opened(path, form)
                stack.callback(open_files[path].discard)
            open_files[path].add(row)
        if not open_files:
            why = ", ".join(f"{n} {reason}" for reason, n in sorted(left.items()))
            raise InputError("nothing to export" + (f": {why}" if why else ""))
        remember_exports(lake, open_files, "--out")
        distinct = list(dict.fromkeys(paths.values()))
        for done, path in enumerate(distinct, start=1):
            if path in open_files:
                open_files[path].commit()
            else:
                _remove(path)  # no stale split stays beside a new one
            if progress:
                progress("export", done, len(distinct))
    counts = {str(path): open_files[path].rows for path in paths.values() if path in open_files}
    if form == "sharegpt" and not whole:
        info = dataset_info({f"pairs_{Path(p).stem}": Path(p).name for p in counts})
        replace(out / "dataset_info.json", json.dumps(info, indent=2) + "\n", f"--out {out}")
    return counts


def _opened(path: Path, form: str) -> _File:
    if form == "sharegpt":
        return _Lines(path)
    return TableFile(path, COLUMNS[form], f"--out {path}")


class _Lines:
    """A file of JSON lines; readable only once it is whole."""

    def __init__(self, path: Path) -> None:
        self.rows = 0
        self._what = f"--out {path}"
        with writing(self._what):
            self._new = Replacement(path)

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows += 1
        with writing(self._what):
            self._new.stream.write(json.dumps(row).encode() + b"\n")

    def commit(self) -> None:
        with writing(self._what):
            self._new.commit()

    def discard(self) -> None:
        with writing(self._what):
            self._new.discard()


def _sampled(lake: Lake, path: Path, rules: PreferenceRules, left: Counter[str]) -> list[Row]:
    """Return sampled pairs with the splits of their sessions; others cannot be placed."""
    rows, reasons = sampled_pairs(lake, read_samples(path), rules)
    left.update(reasons)
    split_of = {
        row["session_id"]: row["split"]
        for table in DATASETS
        for row in lake.iter_rows(table, columns=["session_id"])
    }
    placed = []
    for row in rows:
        if row["session_id"] in split_of:
            placed.append({**row, "split": split_of[row["session_id"]]})
        else:
            left["session_not_in_dataset"] += 1
    return placed


def _remove(path: Path) -> None:
    """Remove the file of an earlier export."""
    with writing(f"--out {path}"):
        path.unlink(missing_ok=True)
