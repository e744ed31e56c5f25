"""Run data-juicer's operators over flat columns; a process of its own.

``python -m composer_pipeline.preferences.normalize_worker FOLDER`` reads
``rows.arrow`` and ``steps.json`` there and writes ``result.json``.

Belongs here: everything that touches data-juicer. Does not belong here: the lake.

Operators are data-juicer's own, made by its ``load_ops`` after its own preflight, and
driven through their batch methods on columns:

- each (operator, field) gets fresh statistics. Stock data-juicer keeps one dictionary a
  row, keyed by the statistic's name alone, so a second filter or deduplicator of the same
  kind re-judges the number of the first field;
- an error raises. Stock configurations skip it, and its whole batch of rows vanishes;
- texts are judged once for each distinct value;
- nothing is installed and no connection is opened. data-juicer calls pip on a missing
  import, with no switch; it is switched off here before anything of it is imported, and
  an audit hook refuses what is left.
"""

import ast
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.preferences.normalize import Drop, WorkerResult
from composer_pipeline.preferences.normalize_recipe import COLUMNS

#: Filters of one text column: no model, no word list, no network.
TEXT_FILTERS = frozenset(
    {
        "alphanumeric_filter",
        "average_line_length_filter",
        "character_repetition_filter",
        "maximum_line_length_filter",
        "special_characters_filter",
        "text_length_filter",
        "word_repetition_filter",
        "words_num_filter",
    }
)
#: Filters that name their columns themselves.
ROW_FILTERS = frozenset(
    {"general_field_filter", "specified_field_filter", "specified_numeric_field_filter"}
)
DEDUPLICATORS = frozenset({"document_deduplicator"})

_API_PARAMETERS = ("api_model", "api_or_hf_model", "api_endpoint", "model_params")


def guard() -> None:
    """Refuse connections and child processes from here on, in this process.

    data-juicer needs neither for the operators that we run. A missing package is an
    ``ImportError``, not a call of pip.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.getaddrinfo"):
            raise PermissionError("normalize opens no connection")
        if event in ("subprocess.Popen", "os.system", "os.posix_spawn"):
            raise PermissionError(f"normalize starts no process: {arguments[0]!r}")

    sys.addaudithook(hook)


def import_data_juicer() -> Any:
    """Import data-juicer with automatic installation switched off; return ``data_juicer.ops``.

    Raises:
        InputError: it is not installed.
    """
    os.environ.update({"UV_OFFLINE": "1", "PIP_NO_INDEX": "1"})
    try:
        loader = importlib.import_module("data_juicer.utils.lazy_loader").LazyLoader

        def refuse(cls: type, package: str, pip_args: object = None) -> None:
            raise ImportError(f"package {package} is missing, and nothing is installed by itself")

        loader._install_package = classmethod(refuse)
        return importlib.import_module("data_juicer.ops")
    except ImportError as error:
        raise InputError(
            f"data-juicer cannot be imported ({error}): pip install 'composer-pipeline[normalize]'"
        ) from error


def load_steps(steps: Iterable[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Check the steps and make data-juicer's operators of them.

    Raises:
        InputError: one sentence that names the operator: it or a parameter is unknown
            (with data-juicer's suggestion), its column is unknown, or it is of a kind
            that is not run here.
    """
    ops = import_data_juicer()
    preflight = importlib.import_module("data_juicer.core.preflight")
    process = [{name: dict(arguments)} for name, arguments in steps]
    try:
        preflight.pre_instantiation_check(process)
    except preflight.PipelineConfigError as error:
        raise InputError("; ".join(str(item) for item in error.errors)) from error
    for entry in process:
        for name, arguments in entry.items():
            _check_runnable(name, arguments, ops.OPERATORS.modules[name], ops)
            # Direct construction of an operator raises on errors only when told so.
            arguments["skip_op_error"] = False
            arguments["auto_op_parallelism"] = False
    made = []
    for entry in process:
        try:
            made.extend(ops.load_ops([entry]))
        except (ValueError, TypeError, AssertionError, ImportError, PermissionError) as error:
            raise InputError(f"[{next(iter(entry))}] {' '.join(str(error).split())}") from error
    return made


def _check_runnable(name: str, arguments: dict[str, Any], cls: type, ops: Any) -> None:
    fields = [arguments["text_key"]]
    if "field_key" in arguments:
        fields.append(arguments["field_key"])
    if name == "general_field_filter":
        fields.extend(_condition_names(name, arguments.get("filter_condition", "")))
    for field in fields:
        if field not in COLUMNS:
            raise InputError(f"[{name}] unknown column {field!r}; known: {', '.join(COLUMNS)}")
    if name in TEXT_FILTERS | ROW_FILTERS | DEDUPLICATORS:
        if arguments.get("tokenization"):
            raise InputError(f"[{name}] tokenization needs a model from the network")
        return
    if set(inspect.signature(cls).parameters) & set(_API_PARAMETERS) or "llm" in name:
        raise InputError(f"[{name}] calls a language model; recipes here call no API")
    if issubclass(cls, ops.Mapper):
        raise InputError(
            f"[{name}] changes text; a pair's columns are views of its messages, so mappers"
            " are not run here"
        )
    raise InputError(
        f"[{name}] is not one of the operators run without network, model or word list: "
        + ", ".join(sorted(TEXT_FILTERS | ROW_FILTERS | DEDUPLICATORS))
    )


def _condition_names(name: str, condition: str) -> list[str]:
    """Names in a filter condition; data-juicer reads an unknown one as null and drops all."""
    try:
        tree = ast.parse(condition, mode="eval")
    except SyntaxError as error:
        raise InputError(
            f"[{name}] filter_condition is not an expression: {condition!r}"
        ) from error
    return [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]


def judge(
    table: pa.Table, ops: list[Any], *, report: Callable[[str, int, int], None] | None = None
) -> list[Drop]:
    """Run the operators in order over the rows that are left; return every drop.

    Args:
        table: :data:`COLUMNS` and ``day``, all strings without null.
        ops: data-juicer operators.
        report: called with (step, steps done, steps).

    Raises:
        InputError: a column has a null.
    """
    for name in table.column_names:
        if table.column(name).null_count:
            raise InputError(f"column {name} has {table.column(name).null_count} null value(s)")
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    alive = list(range(table.num_rows))
    drops: list[Drop] = []
    for index, op in enumerate(ops):
        step = f"{index}:{op._name}"
        if op._name in DEDUPLICATORS:
            found = _deduplicate(op, step, columns, alive)
        elif op._name in TEXT_FILTERS:
            found = _filter(op, step, op.text_key, columns, alive, distinct=True)
        else:
            field = getattr(op, "field_key", "") or getattr(op, "filter_condition", "")
            found = _filter(op, step, field, columns, alive, distinct=False)
        gone = {drop.row for drop in found}
        alive = [row for row in alive if row not in gone]
        drops.extend(found)
        if report is not None:
            report(step, index + 1, len(ops))
    return drops


def _filter(
    op: Any,
    step: str,
    field: str,
    columns: dict[str, list[str]],
    alive: list[int],
    *,
    distinct: bool,
) -> list[Drop]:
    stats_key = importlib.import_module("data_juicer.utils.constant").Fields.stats
    if distinct:
        texts = columns[field]
        values = list(dict.fromkeys(texts[row] for row in alive))
        place = {text: i for i, text in enumerate(values)}
        where = [place[texts[row]] for row in alive]
        names, data = [field], {field: values}
    else:
        names = list(COLUMNS)
        data = {name: [columns[name][row] for row in alive] for name in names}
        where = list(range(len(alive)))
    count = len(data[names[0]])
    stats: list[dict[str, Any]] = []
    keep: list[bool] = []
    for low in range(0, count, op.batch_size):
        high = min(low + op.batch_size, count)
        batch: dict[str, Any] = {name: data[name][low:high] for name in names}
        batch[stats_key] = [{} for _ in range(high - low)]
        batch = op.compute_stats_batched(batch)
        verdicts = [bool(verdict) for verdict in op.process_batched(batch)]
        if len(verdicts) != high - low or len(batch[stats_key]) != high - low:
            raise RuntimeError(f"{step} returned {len(verdicts)} verdicts for {high - low} rows")
        stats.extend(batch[stats_key])
        keep.extend(verdicts)
    return [
        Drop(row, step, op._name, field, *_why(op, stats[i]))
        for row, i in zip(alive, where, strict=True)
        if not keep[i]
    ]


def _why(op: Any, stats: dict[str, Any]) -> tuple[str, str, str]:
    """(statistic, value, bound that it broke), as text for the ledger."""
    name, value = next(iter(stats.items()), ("", ""))
    if not getattr(op, "reversed_range", False) and isinstance(value, int | float):
        for attribute, bound in sorted(vars(op).items()):
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                continue
            if (attribute.startswith("min_") and value < bound) or (
                attribute.startswith("max_") and value > bound
            ):
                return name, repr(value), f"{attribute}={bound!r}"
    own = {k: v for k, v in op._init_kwargs.items() if k not in _NOT_BOUNDS}
    shown = value if isinstance(value, str) else repr(value)
    return name, shown[:200], msgspec.json.encode(own).decode()


_NOT_BOUNDS = ("text_key", "skip_op_error", "auto_op_parallelism")


def _deduplicate(op: Any, step: str, columns: dict[str, list[str]], alive: list[int]) -> list[Drop]:
    """Keep the first row of each hash within a day; the rest name the pair that was kept."""
    hash_key = importlib.import_module("data_juicer.utils.constant").HashKeys.hash
    texts, days = columns[op.text_key], columns["day"]
    hashes: dict[str, str] = {}
    first: dict[tuple[str, str], int] = {}
    drops = []
    for row in alive:
        text = texts[row]
        if text not in hashes:
            hashes[text] = op.compute_hash({op.text_key: text})[hash_key]
        kept = first.setdefault((days[row], hashes[text]), row)
        if kept != row:
            bound = f"duplicate of {columns['pair_id'][kept]}"
            drops.append(Drop(row, step, op._name, op.text_key, "hash", hashes[text], bound))
    return drops


def main(folder: str) -> None:
    """Judge ``rows.arrow`` with ``steps.json`` and write ``result.json``."""
    work = Path(folder)
    # data-juicer prints where it likes; our one channel to the parent stays clean.
    out = sys.stdout
    sys.stdout = sys.stderr

    def report(step: str, done: int, total: int) -> None:
        print("step", step, done, total, sep="\t", file=out, flush=True)

    guard()
    steps = msgspec.json.decode(
        (work / "steps.json").read_bytes(), type=list[tuple[str, dict[str, Any]]]
    )
    with pa.OSFile(str(work / "rows.arrow"), "rb") as source:
        table = pa.ipc.open_file(source).read_all()
    try:
        drops = judge(table, load_steps(steps), report=report)
        result = WorkerResult(rows=table.num_rows, drops=drops)
    except InputError as error:
        result = WorkerResult(error=str(error))
    (work / "result.json").write_bytes(msgspec.json.encode(result))


if __name__ == "__main__":
    main(sys.argv[1])
