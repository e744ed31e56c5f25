"""Normalise pairs with a data-juicer recipe: ``pairs`` -> ``normalized_pairs`` + ``drops``.

Every row of ``pairs`` comes out exactly once, in ``normalized_pairs`` or in ``drops``
with the step, the statistic, its value and the bound that it broke. A day is judged
on its own, so the result does not depend on which days are run together.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import msgspec
import pyarrow as pa

from composer_pipeline.errors import ComposerError
from composer_pipeline.files import replacing
from composer_pipeline.lake.provenance import (
    Derivation,
    FileStamps,
    Record,
    record_of,
    write_record,
)
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake, remember_exports
from composer_pipeline.normalization.judge import Drop
from composer_pipeline.normalization.operators import NormalizeRecipe, WorkerSettings
from composer_pipeline.normalization.text_columns import (
    COLUMNS,
    MAPPED,
    SOURCE,
    PairColumns,
    named_columns,
    rewritten,
)
from composer_pipeline.normalization.worker import Worker
from composer_pipeline.reports import Progress, Report
from composer_pipeline.settings import recipe_file
from composer_pipeline.versions import NORMALIZE_VERSION

STAGE = "normalize"
#: In place of a recipe: every pair is kept.
NO_RECIPE = "none"


@dataclass(frozen=True)
class NormalizeReport(Report):
    """What a normalisation did."""

    rows: int
    kept: int
    dropped: int
    #: ``index:operator`` -> dropped rows.
    by_op: dict[str, int]
    recipe_id: str
    #: Day -> ``rows``, ``kept`` and ``dropped``.
    by_day: dict[str, dict[str, int]]
    #: ``index:operator`` -> rows whose text a mapper changed.
    changed: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Day:
    """What the steps did to one day."""

    pair_ids: list[str]
    dropped: dict[int, Drop]
    changed: dict[str, dict[bytes, str]]
    counts: Counter[str]


def normalize(
    lake: Lake,
    recipe_path: str | Path,
    *,
    days: Iterable[str] | None = None,
    progress: Progress | None = None,
) -> NormalizeReport:
    """Run a recipe over the pairs of some days and replace those days' results.

    Args:
        lake: the lake; reads ``pairs``, writes ``normalized_pairs`` and ``drops``
            (stage ``normalize``). A day that never had a pair is left without files.
        recipe_path: data-juicer YAML, or the name of a shipped one; ``none`` keeps every pair and
            needs no data-juicer.
        days: UTC days; all days of ``pairs`` when ``None``.
        progress: called with (step, days done, days).

    Raises:
        InputError: a bad recipe (unknown operator, parameter or column, an operator that
            needs the network, a model that is not there or an API), an operator that
            failed, a null in a column of ``pairs``, or data-juicer is not installed.
            Nothing was written.
        ComposerError: the worker died, or the pairs changed meanwhile.
    """
    wanted = lake.chosen_days("pairs", days)
    known = set(lake.days("pairs")) | set(lake.days("normalized_pairs"))
    wanted = [day for day in wanted if day in known]
    if str(recipe_path) != NO_RECIPE:
        recipe_path = recipe_file(recipe_path, "normalize")
    recipe = None if str(recipe_path) == NO_RECIPE else NormalizeRecipe.load(recipe_path)
    recipe_id = recipe.recipe_id(recipe_path) if recipe else NO_RECIPE
    stamps = FileStamps(lake)
    records = {day: record_of(normalized_derivation(day, recipe_id), stamps) for day in wanted}
    # data-juicer takes seconds to start; a week without sessions needs none of it.
    if recipe and lake.read("pairs", days=wanted, columns=["pair_id"]).num_rows:
        results = _judged(lake, _settings(recipe), recipe_path, wanted, progress)
    else:
        ids = {day: lake.read("pairs", days=[day], columns=["pair_id"]) for day in wanted}
        results = {
            day: _Day(table["pair_id"].to_pylist(), {}, {}, Counter()) for day, table in ids.items()
        }
    return _write(lake, results, recipe_id, records)


def recipe_id_of(recipe_path: str | Path) -> str:
    """Return a recipe's name as in ``normalized_pairs``; ``none`` is its own name."""
    if str(recipe_path) == NO_RECIPE:
        return NO_RECIPE
    return NormalizeRecipe.load(recipe_path).recipe_id(recipe_path)


def normalized_derivation(day: str, recipe_id: str) -> Derivation:
    """Return what a day's normalised pairs are made from."""
    settings = {"normalize": NORMALIZE_VERSION, "recipe": recipe_id}
    return Derivation("normalized_pairs", {"day": day}, [("pairs", {"day": day})], settings)


def _judged(
    lake: Lake,
    settings: WorkerSettings,
    recipe_path: str | Path,
    wanted: Sequence[str],
    progress: Progress | None,
) -> dict[str, _Day]:
    """Run the steps over each day in the worker."""
    done: Counter[str] = Counter()

    def report(step: str) -> None:
        done[step] += 1
        if progress is not None:
            progress(step, done[step], len(wanted))

    results: dict[str, _Day] = {}
    with Worker(settings, str(recipe_path), report) as worker:
        first = _read(lake, wanted[0]) if wanted else None
        worker.steps()
        for day in wanted:
            columns = first if first is not None else _read(lake, day)
            first = None
            results[day] = _run(worker, settings, columns)
    return results


def _write(
    lake: Lake, results: dict[str, _Day], recipe_id: str, records: dict[str, Record]
) -> NormalizeReport:
    """Write what is left of each day, and report it."""
    by_day = {}
    for day, result in sorted(results.items()):
        by_day[day] = _write_day(lake, day, result, recipe_id)
        write_record(lake, normalized_derivation(day, recipe_id), records[day])
    rows = sum(len(result.pair_ids) for result in results.values())
    kept = sum(counts["kept"] for counts in by_day.values())
    drops = [drop for result in results.values() for drop in result.dropped.values()]
    if kept + len(drops) != rows:
        raise ComposerError(f"normalize lost rows: {rows} in, {kept} + {len(drops)} out")
    changed = sum((result.counts for result in results.values()), Counter[str]())
    return NormalizeReport(
        rows=rows,
        kept=kept,
        dropped=len(drops),
        by_op=dict(sorted(Counter(drop.step for drop in drops).items())),
        recipe_id=recipe_id,
        by_day=by_day,
        changed=dict(sorted(changed.items())),
    )


def write_columns(lake: Lake, path: str | Path, *, days: Iterable[str] | None = None) -> int:
    """Write the flat columns as JSON lines, for ``dj-process`` and other tools."""
    names = [name for name in COLUMNS if name != "prompt_text"]
    total = 0
    remember_exports(lake, [Path(path)], "--columns")
    with replacing(Path(path)) as file:
        for day in lake.chosen_days("pairs", days):
            columns = _read(lake, day)
            rows = columns.narrow(names, range(columns.rows)).to_pylist()
            file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
            total += len(rows)
    return total


def _settings(recipe: NormalizeRecipe) -> WorkerSettings:
    return WorkerSettings(
        steps=recipe.steps(),
        np=recipe.np,
        custom_operator_paths=[str(Path(p).absolute()) for p in recipe.custom_operator_paths],
    )


def _read(lake: Lake, day: str) -> PairColumns:
    return PairColumns(lake.read("pairs", days=[day], columns=SOURCE), day)


def _run(worker: Worker, settings: WorkerSettings, columns: PairColumns) -> _Day:
    """Run all steps over one day: filters and deduplicators together, mappers one by one."""
    names = named_columns(settings.steps, every=bool(settings.custom_operator_paths))
    alive: list[int] = list(range(columns.rows))
    dropped: dict[int, Drop] = {}
    counts: Counter[str] = Counter()
    steps = list(enumerate(worker.steps()))
    for mapper, group in groupby(steps, key=lambda item: bool(item[1].field)):
        if mapper:
            for index, step in group:
                rows = _map(worker, index, step.field, columns, alive)
                counts[f"{index}:{step.name}"] += rows
            continue
        drops = worker.judge([index for index, _ in group], columns.narrow(names, alive))
        for drop in drops:
            row = alive[drop.row]
            if row in dropped:
                raise ComposerError("normalize dropped a row twice")
            dropped[row] = drop
        alive = [row for row in alive if row not in dropped]
    changed = {name: part.changed for name, part in columns.fields.items() if part.changed}
    return _Day(columns.pair_ids, dropped, changed, counts)


def _map(worker: Worker, index: int, name: str, columns: PairColumns, alive: Sequence[int]) -> int:
    """Run one mapper over the distinct texts of a field; return the rows that changed."""
    texts, places = columns.texts(name, alive)
    new = worker.map(index, texts)
    mapping = {old: text for old, text in zip(texts, new, strict=True) if old != text}
    codes = {code for row in places for code in row}
    touched = columns.fields[MAPPED[name]].change(sorted(codes), mapping)
    return sum(1 for row in places if not touched.isdisjoint(row))


def _write_day(lake: Lake, day: str, result: _Day, recipe_id: str) -> dict[str, int]:
    table = lake.read("pairs", days=[day])
    pair_ids = table.column("pair_id").to_pylist()
    if pair_ids != result.pair_ids:
        raise ComposerError(f"the pairs of {day} changed while they were normalised; run it again")
    for name, changed in result.changed.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.field(name), rewritten(table.column(name), changed))
    positions = [row for row in range(table.num_rows) if row not in result.dropped]
    plain = table.select(TABLES["pairs"].schema.names).take(pa.array(positions, pa.int64()))
    recipe = pa.array([recipe_id] * plain.num_rows, pa.string())
    out = plain.append_column("recipe", recipe).cast(TABLES["normalized_pairs"].schema)
    state_ids = table.column("state_id").to_pylist()
    drops = [
        {"pair_id": pair_ids[row], "state_id": state_ids[row], **msgspec.structs.asdict(drop)}
        for row, drop in sorted(result.dropped.items())
    ]
    for drop in drops:
        del drop["row"]
    lake.write("drops", drops, stage=STAGE, day=day)
    lake.write("normalized_pairs", out, day=day)
    return {"rows": len(pair_ids), "kept": len(positions), "dropped": len(drops)}
