"""Running data-juicer's operators over flat columns, once for each distinct value.

The operators' own batch methods are called, never ``op.run()``:

- each (operator, field) gets fresh statistics. Stock data-juicer keeps one dictionary a row, keyed
  by the statistic's name alone, so a second filter of the same kind re-judges the first field;
- an error raises. Stock configurations skip it, and its whole batch of rows vanishes.
"""

import importlib
import multiprocessing
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.normalization.operators import MODEL_FILTERS, TEXT_FILTERS
from composer_pipeline.normalization.text_columns import PAIR_PARTS, pair_text

#: The release of py-data-juicer whose statistics these are.
VERSION = "1.6.1"

#: Code points counted at a time; about ten times as many bytes are in memory.
CHUNK = 300_000

#: Filters whose statistic is computed here.
COLUMNAR = frozenset(
    {
        "alphanumeric_filter",
        "maximum_line_length_filter",
        "special_characters_filter",
        "text_length_filter",
        "words_num_filter",
    }
)


def columnar(op: Any, texts: list[str]) -> tuple[str, list[int] | list[float]] | None:
    """Return what ``op.compute_stats_batched`` would put into each text's statistics."""
    if not is_columnar(op):
        return None
    match op._name:
        case "text_length_filter":
            return "text_len", [len(text) for text in texts]
        case "maximum_line_length_filter":
            return "max_line_length", [
                max(map(len, text.splitlines()), default=0) for text in texts
            ]
        case "special_characters_filter":
            return "special_char_ratio", _ratios(_special(), texts)
        case "alphanumeric_filter":
            return "alnum_ratio", _ratios(_alphanumeric(), texts)
    return "num_words", [count for piece in _pieces(texts) for count in _words(piece)]


def is_columnar(op: Any) -> bool:
    """Return True if :func:`columnar` computes an operator's statistic."""
    if op._name not in COLUMNAR or not _same_version():
        return False
    return not getattr(op, "tokenization", False) and getattr(op, "model_key", None) is None


@cache
def _same_version() -> bool:
    return version("py-data-juicer") == VERSION


@cache
def _special() -> Any:
    """Return for each code point if it is one of data-juicer's special characters."""
    module = importlib.import_module("data_juicer.ops.common.special_characters")
    table = np.zeros(0x110000, bool)
    # Emoji of several code points are in the set too, and no character equals one.
    table[[ord(text) for text in module.SPECIAL_CHARACTERS if len(text) == 1]] = True
    return table


@cache
def _alphanumeric() -> Any:
    return np.fromiter((chr(point).isalnum() for point in range(0x110000)), bool, 0x110000)


def _pieces(texts: list[str]) -> list[list[str]]:
    pieces: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if size > CHUNK:
            pieces.append([])
            size = 0
        pieces[-1].append(text)
        size += len(text)
    return pieces


def _points(texts: list[str]) -> tuple[Any, Any]:
    """Return the code points of all texts, and where each text ends."""
    joined = "".join(texts).encode("utf-32-le", "surrogatepass")
    return np.frombuffer(joined, np.uint32), np.cumsum(
        [len(text) for text in texts], dtype=np.int64
    )


def _per_text(places: Any, ends: Any) -> list[int]:
    """Count the sorted ``places`` in each text."""
    before = np.searchsorted(places, ends)
    counts: list[int] = np.diff(before, prepend=0).tolist()
    return counts


def _ratios(table: Any, texts: list[str]) -> list[float]:
    out: list[float] = []
    for piece in _pieces(texts):
        points, ends = _points(piece)
        counts = _per_text(np.flatnonzero(table[points]), ends)
        out += [c / len(text) if text else 0.0 for c, text in zip(counts, piece, strict=True)]
    return out


def _words(texts: list[str]) -> list[int]:
    """Count words: runs between breaks that are not special characters throughout."""
    points, ends = _points(texts)
    plain = np.flatnonzero(~_special()[points])
    breaks = (points == ord(" ")) | (points == ord("\n")) | (points == ord("\t"))
    # Each text begins a new run, though there is no break before it.
    starts = ends[:-1]
    breaks[starts[starts < len(points)]] = True
    runs = np.cumsum(breaks, dtype=np.int32)[plain]
    first = np.ones(len(plain), bool)
    first[1:] = runs[1:] != runs[:-1]
    return _per_text(plain[first], ends)


Batch = dict[str, list[str]]

#: One item for each value: of a filter ``None`` (kept) or
#: (statistic, value, bound), of a deduplicator a hash, of a mapper a text.
Results = list[Any]

#: Below this many characters a second process costs more than it saves.
POOL_CHARS = 4_000_000


class Drop(msgspec.Struct, frozen=True):
    """A row that a step dropped; ``row`` is its position in the given table."""

    row: int
    step: str
    op: str
    field: str
    stat: str
    value: str
    bound: str


class Executor(Protocol):
    """Runs one operator over a batch of values; results come in the order of the values."""

    def run(self, index: int, op: Any, batch: Batch, count: int) -> Results:
        """Run operator ``op``, step ``index``, over ``count`` values."""
        ...


class Local:
    """Runs operators in this process, and large batches in ``np`` forked ones."""

    def __init__(self, np: int = 1) -> None:
        self.np = np

    def run(self, index: int, op: Any, batch: Batch, count: int) -> Results:
        """See :class:`Executor`."""
        if self.np == 1 or count < 2 * self.np or is_columnar(op):
            return evaluate(op, batch, count)
        if sum(len(text) for values in batch.values() for text in values) < POOL_CHARS:
            return evaluate(op, batch, count)
        return _forked(op, batch, count, self.np)


def evaluate(op: Any, batch: Batch, count: int) -> Results:
    """Run one operator over values; see :data:`Results`."""
    ops = importlib.import_module("data_juicer.ops")
    if isinstance(op, ops.Filter):
        run = _verdicts
    elif isinstance(op, ops.Deduplicator):
        run = _hashes
    else:
        run = _mapped
    try:
        return run(op, batch, count)
    except InputError:
        raise
    except Exception as error:
        # An operator may raise anything; the error must name it.
        text = " ".join(str(error).split())[:300]
        raise InputError(f"[{op._name}] {type(error).__name__}: {text}") from error


def judge(
    table: pa.Table,
    steps: Sequence[tuple[int, Any]],
    *,
    executor: Executor | None = None,
    report: Callable[[str], None] | None = None,
) -> list[Drop]:
    """Run filters, selectors and deduplicators in order; return every dropped row once."""
    ops = importlib.import_module("data_juicer.ops")
    columns = _Columns(table)
    executor = executor or Local()
    alive = list(range(table.num_rows))
    drops: list[Drop] = []
    for index, op in steps:
        step = f"{index}:{op._name}"
        if isinstance(op, ops.Filter):
            found = _filter(executor, index, op, columns, alive)
        elif isinstance(op, ops.Selector):
            found = _select(op, columns, alive)
        else:
            found = _deduplicate(executor, index, op, columns, alive)
        drops += [Drop(row, step, op._name, *rest) for row, *rest in found]
        gone = {row for row, *_ in found}
        alive = [row for row in alive if row not in gone]
        if report is not None:
            report(step)
    return drops


class _Columns:
    """Flat columns as lists."""

    def __init__(self, table: pa.Table) -> None:
        self.names = list(table.column_names)
        if set(PAIR_PARTS) <= set(self.names) and "pair_text" not in self.names:
            self.names.append("pair_text")
        self._table = table
        self._values: dict[str, list[str]] = {}
        ids = table.column("pair_id")
        for name in table.column_names:
            column = table.column(name)
            if column.null_count:
                row = column.is_null().index(pa.scalar(True)).as_py()
                raise InputError(f"pair {ids[row].as_py()} (row {row}) has null in column {name}")

    def plain(self, name: str, alive: list[int]) -> list[str]:
        """Return the values of some rows."""
        if name not in self.names:
            raise InputError(f"unknown column {name!r}; the recipe must name it in an argument")
        if name == "pair_text" and name not in self._table.column_names:
            parts = (self.plain(part, alive) for part in PAIR_PARTS)
            return [pair_text(*row) for row in zip(*parts, strict=True)]
        if name not in self._values:
            self._values[name] = self._table.column(name).to_pylist()
        values = self._values[name]
        return [values[row] for row in alive]

    def distinct(self, name: str, alive: list[int]) -> tuple[list[str], list[int]]:
        """Return the distinct values of some rows, and each row's position among them."""
        places: dict[str, int] = {}
        positions = [places.setdefault(value, len(places)) for value in self.plain(name, alive)]
        return list(places), positions


#: Dropped rows: row, field, statistic, value, bound.
Dropped = list[tuple[int, str, str, str, str]]


def _filter(
    executor: Executor, index: int, op: Any, columns: _Columns, alive: list[int]
) -> Dropped:
    if op._name in TEXT_FILTERS | MODEL_FILTERS:
        field = op.text_key
        values, positions = columns.distinct(field, alive)
        batch = {field: values}
    else:
        field = getattr(op, "field_key", "") or getattr(op, "filter_condition", "")
        field = field or op.text_key
        batch = {name: columns.plain(name, alive) for name in columns.names}
        values, positions = list(batch["pair_id"]), list(range(len(alive)))
    results = executor.run(index, op, batch, len(values))
    return [
        (row, field, *why)
        for row, place in zip(alive, positions, strict=True)
        if (why := results[place]) is not None
    ]


def _verdicts(op: Any, batch: Batch, count: int) -> Results:
    if op._name in TEXT_FILTERS and (counted := columnar(op, batch[op.text_key])) is not None:
        name, numbers = counted
        # There are far fewer numbers than texts: each number is judged once.
        stats = [{name: number} for number in dict.fromkeys(numbers)]
        verdict = {s[name]: why for s, why in zip(stats, _keep(op, {}, stats), strict=True)}
        return [verdict[number] for number in numbers]
    stats_key = importlib.import_module("data_juicer.utils.constant").Fields.stats
    out: Results = []
    for low in range(0, count, op.batch_size):
        high = min(low + op.batch_size, count)
        part: dict[str, Any] = {name: values[low:high] for name, values in batch.items()}
        part[stats_key] = [{} for _ in range(high - low)]
        part = op.compute_stats_batched(part)
        out += _keep(op, part, part[stats_key])
        if len(out) != high:
            raise InputError(f"[{op._name}] lost rows: {high} in, {len(out)} out")
    return out


def _keep(op: Any, part: dict[str, Any], stats: list[dict[str, Any]]) -> Results:
    """Return the operator's verdicts on statistics: ``None``, or why it drops the value."""
    stats_key = importlib.import_module("data_juicer.utils.constant").Fields.stats
    stats = _as_stored(stats)
    kept = [bool(verdict) for verdict in op.process_batched({**part, stats_key: stats})]
    if len(kept) != len(stats):
        raise InputError(f"[{op._name}] gave {len(kept)} verdicts for {len(stats)} rows")
    return [None if keep else _why(op, s) for keep, s in zip(kept, stats, strict=True)]


def _as_stored(stats: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return statistics as stock data-juicer reads them back: datasets stores them as JSON."""
    # That rounds a float to ten decimals, so a ratio of 1/3 is below a bound of 1/3.
    module = importlib.import_module("datasets.utils.json")

    def stored(value: Any) -> Any:
        return module.ujson_loads(module.ujson_dumps(value)) if type(value) is float else value

    return [{name: stored(value) for name, value in row.items()} for row in stats]


def _why(op: Any, stats: dict[str, Any]) -> tuple[str, str, str]:
    """Return (statistic, value, broken bound) as text for ``drops``."""
    name, value = next(iter(stats.items()), ("", ""))
    if not getattr(op, "reversed_range", False) and isinstance(value, int | float):
        for attribute, bound in sorted(vars(op).items()):
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                continue
            if (attribute.startswith("min_") and value < bound) or (
                attribute.startswith("max_") and value > bound
            ):
                return name, repr(value), f"{attribute}={bound!r}"
    return name, (value if isinstance(value, str) else repr(value))[:200], _arguments(op)


def _arguments(op: Any) -> str:
    own = {k: v for k, v in op._init_kwargs.items() if k not in _NOT_BOUNDS}
    return msgspec.json.encode(own).decode()


_NOT_BOUNDS = ("text_key", "field_key", "skip_op_error", "auto_op_parallelism")


def _mapped(op: Any, batch: Batch, count: int) -> Results:
    (field,) = batch
    out: Results = []
    # A batched mapper takes lists; data-juicer calls any other with one sample at a time.
    size = op.batch_size if op.is_batched_op() else 1
    for low in range(0, count, size):
        texts = batch[field][low : low + size]
        if op.is_batched_op():
            new = op.process_batched({field: list(texts)})[field]
        else:
            new = [op.process_single({field: texts[0]})[field]]
        if len(new) != len(texts) or not all(isinstance(text, str) for text in new):
            raise InputError(
                f"[{op._name}] gave {len(new)} values for {len(texts)} texts; a mapper here"
                " gives one text for one"
            )
        out += new
    return out


def _hashes(op: Any, batch: Batch, count: int) -> Results:
    """Return the columns that ``compute_hash`` adds, one dictionary for each value."""
    compute = type(op).compute_hash
    names = list(batch)
    out: Results = []
    for values in zip(*batch.values(), strict=True):
        sample = compute(op, dict(zip(names, values, strict=True)))
        out.append({key: value for key, value in sample.items() if key not in batch})
    return out


def _deduplicate(
    executor: Executor, index: int, op: Any, columns: _Columns, alive: list[int]
) -> Dropped:
    """Keep the first row of each hash; the others name the pair that was kept."""
    field = op.text_key
    if getattr(op, "_composer_own", False):
        batch = {name: columns.plain(name, alive) for name in columns.names}
        positions = list(range(len(alive)))
    else:
        values, positions = columns.distinct(field, alive)
        batch = {field: values}
    count = len(next(iter(batch.values())))
    hashes = executor.run(index, op, batch, count)
    if op._name != "document_deduplicator":
        return _clustered(op, field, hashes, positions, alive)
    key = importlib.import_module("data_juicer.utils.constant").HashKeys.hash
    first: dict[str, int] = {}
    found: Dropped = []
    for row, place in zip(alive, positions, strict=True):
        kept = first.setdefault(hashes[place][key], row)
        if kept != row:
            (pair_id,) = columns.plain("pair_id", [kept])
            found.append((row, field, "hash", hashes[place][key], f"duplicate of {pair_id}"))
    return found


def _clustered(
    op: Any, field: str, hashes: Results, positions: list[int], alive: list[int]
) -> Dropped:
    """Let a deduplicator that compares hashes with each other choose the rows to keep."""
    names = list(hashes[0]) if hashes else []
    data = {name: [hashes[place][name] for place in positions] for name in names}
    kept, _ = op.process(_dataset({**data, "row": alive}))
    stay = set(kept["row"])
    bound = f"near-duplicate of a kept pair: {_arguments(op)}"
    return [(row, field, "", "", bound) for row in alive if row not in stay]


def _select(op: Any, columns: _Columns, alive: list[int]) -> Dropped:
    field = getattr(op, "field_key", "")
    data: dict[str, list[Any]] = {"row": alive}
    names = columns.names if getattr(op, "_composer_own", False) else [field] if field else []
    for name in names:
        if name not in columns.names:
            raise InputError(f"[{op._name}] unknown column {name!r}")
        data[name] = columns.plain(name, alive)
    kept = set(op.process(_dataset(data))["row"])
    bound = f"not selected: {_arguments(op)}"
    values = data[field] if field else [""] * len(alive)
    return [
        (row, field, "", value[:200], bound)
        for row, value in zip(alive, values, strict=True)
        if row not in kept
    ]


def _dataset(data: dict[str, list[Any]]) -> Any:
    datasets = importlib.import_module("datasets")
    datasets.disable_progress_bars()
    datasets.disable_caching()
    return importlib.import_module("data_juicer.core.data").NestedDataset.from_dict(data)


_JOB: tuple[Any, Batch] | None = None


def _forked(op: Any, batch: Batch, count: int, processes: int) -> Results:
    """Evaluate in forked processes: they inherit the values, and only results are sent."""
    global _JOB
    # Small pieces, so that one long text does not hold up the others.
    edges = np.linspace(0, count, 8 * processes + 1).astype(int).tolist()
    _JOB = (op, batch)
    try:
        with multiprocessing.get_context("fork").Pool(processes) as pool:
            pieces = pool.map(_piece, list(pairwise(edges)), chunksize=1)
    finally:
        _JOB = None
    return [item for piece in pieces for item in piece]


def _piece(edges: tuple[int, int]) -> Results:
    assert _JOB is not None
    op, batch = _JOB
    low, high = edges
    return evaluate(op, {name: values[low:high] for name, values in batch.items()}, high - low)
