"""One row of each channel, as token ids.

Belongs here: the fields and what they mean. Does not belong here: making rows
(``training.data.build``) and keeping them (``training.data.arrow_rows``).

Traces hold text, not token ids, so windows are rendered by us, and SDPO on a recorded
action is off-policy context distillation.
"""

import json
import math
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints, overload

import msgspec
import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.files import replace, replacing
from composer_pipeline.lake.parquet import column
from composer_pipeline.training.recipe import Channels


class Group(msgspec.Struct, frozen=True):
    """Recorded answers to one state with their rewards.

    ``completions`` are distinct answers, ``counts`` says how many raters gave each, and
    ``rewards`` has one value for each. ``case`` is what another answer is graded by, a
    :class:`~composer_pipeline.training.rewards.Case` as JSON text.
    """

    id: str
    prompt_ids: list[int]
    completions: list[list[int]]
    counts: list[int]
    rewards: list[float]
    case: str


class Pair(msgspec.Struct, frozen=True):
    """A preference pair; ``weight`` is that of the table, by what became of the agent's action."""

    id: str
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]
    weight: float = 1.0


class Hint(msgspec.Struct, frozen=True):
    """An error turn: one response behind a plain and behind a hinted prompt.

    ``start`` and ``length`` are the taught span inside ``response_ids``. ``target_ids`` is the
    better action behind the same prompt: the teachers' consensus, else the agent's own later
    recovery; empty where neither is known. It is never trained on: it measures the hint.
    """

    id: str
    prompt_ids: list[int]
    teacher_prompt_ids: list[int]
    response_ids: list[int]
    start: int
    length: int
    target_ids: list[int] = []


class Demonstration(msgspec.Struct, frozen=True):
    """A state and the action to repeat: the consensus, or the agent's own that worked."""

    id: str
    prompt_ids: list[int]
    response_ids: list[int]


T = TypeVar("T", bound=msgspec.Struct)

#: A batch is written when its lists hold so many numbers, or after so many rows.
BATCH_NUMBERS, BATCH_ROWS = 1 << 18, 4096

_TYPES: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int32(),
    float: pa.float64(),
    list[int]: pa.list_(pa.int32()),
    list[float]: pa.list_(pa.float64()),
    list[list[int]]: pa.list_(pa.list_(pa.int32())),
    list[list[float]]: pa.list_(pa.list_(pa.float64())),
}
#: What ``memoryview`` calls the items of a list column.
_FORMATS: dict[pa.DataType, Any] = {pa.int32(): "i", pa.float64(): "d"}


@cache
def schema_of(kind: type[msgspec.Struct]) -> pa.Schema:
    """Return the columns of a struct: its fields, in their order."""
    hints = get_type_hints(kind)
    return pa.schema([pa.field(n, _TYPES[hints[n]], False) for n in kind.__struct_fields__])


class RowWriter(Generic[T]):
    """Rows on their way into a file; see :func:`writing_rows`."""

    def __init__(self, writer: Any, kind: type[T]) -> None:
        self._writer, self._kind, self._schema = writer, kind, schema_of(kind)
        self._rows: list[T] = []
        self._numbers = 0
        self.count = 0

    def append(self, row: T) -> None:
        """Add a row; a full batch goes to the file at once."""
        self._rows.append(row)
        self.count += 1
        self._numbers += sum(
            len(value)
            for name in self._schema.names
            if isinstance(value := getattr(row, name), list)
        )
        if self._numbers >= BATCH_NUMBERS or len(self._rows) >= BATCH_ROWS:
            self.flush()

    def copy(self, path: Path) -> None:
        """Add all rows of another file of the same struct, without decoding them."""
        self.flush()
        source = ArrowRows(path, self._kind)
        for number in range(source._file.num_record_batches):
            self._writer.write_batch(source._file.get_batch(number))
        self.count += len(source)

    def flush(self) -> None:
        """Write what was added and is not in the file yet."""
        if self._rows:
            arrays = [
                _array([getattr(row, field.name) for row in self._rows], field.type)
                for field in self._schema
            ]
            self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows, self._numbers = [], 0


@contextmanager
def writing_rows(path: Path, kind: type[T]) -> Iterator[RowWriter[T]]:
    """Yield a writer whose rows are the file's once the block has ended well.

    Memory is that of one batch. A killed process leaves the old file, or none.

    Raises:
        StorageError: the disk is full or read-only.
    """
    with replacing(path) as stream, pa.ipc.new_file(stream, schema_of(kind)) as writer:
        rows = RowWriter(writer, kind)
        yield rows
        rows.flush()


class ArrowRows(Sequence[T]):
    """The rows of a file, decoded when they are asked for.

    Args:
        path: a file of :func:`writing_rows`.
        kind: the struct that was written.

    Raises:
        InputError: the file is missing, damaged or holds other columns.
    """

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path, self.kind = path, kind
        try:
            self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing; train with --force to build it again") from error
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is damaged; train with --force to build it again") from error
        if not self._file.schema.equals(schema_of(kind)):
            raise InputError(f"{path} was written by another version; train with --force")
        batches = self._file.num_record_batches
        sizes = (self._file.get_batch(i).num_rows for i in range(batches))
        self._starts: list[int] = list(accumulate(sizes, initial=0))

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.kind)

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(len(self)))]
        return self._row(range(len(self))[index])

    def __iter__(self) -> Iterator[T]:
        for batch in self._batches():
            for i in range(batch.num_rows):
                yield self._decoded(batch, i)

    def column(self, name: str) -> list[Any]:
        """Return one column of all rows: texts or numbers, without decoding the others."""
        texts = (batch.column(name).to_pylist() for batch in self._batches())
        return list(chain.from_iterable(texts))

    def lengths(self, name: str) -> list[int]:
        """Return the length of a list column in each row, without decoding it."""
        lengths = (batch.column(name).value_lengths() for batch in self._batches())
        return list(chain.from_iterable(item.to_pylist() for item in lengths))

    def item_lengths(self, name: str) -> list[int]:
        """Return the lengths of the lists in a column of lists, of all rows in one list."""
        items = (batch.column(name).flatten().value_lengths() for batch in self._batches())
        return list(chain.from_iterable(lengths.to_pylist() for lengths in items))

    def list_bytes(self, name: str) -> Iterator[memoryview]:
        """Yield the numbers of a list column, row after row, as the file has them: no copies."""
        for batch in self._batches():
            array = batch.column(name)
            width = array.type.value_type.bit_width // 8
            view = memoryview(array.values.buffers()[1] or b"")
            first = array.values.offset
            ends = [(first + end) * width for end in array.offsets.to_pylist()]
            yield from (view[start:end] for start, end in pairwise(ends))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        return map(self._file.get_batch, range(self._file.num_record_batches))

    def _row(self, index: int) -> T:
        number = bisect_right(self._starts, index) - 1
        return self._decoded(self._file.get_batch(number), index - self._starts[number])

    def _decoded(self, batch: pa.RecordBatch, index: int) -> T:
        columns = batch.columns
        return self.kind(*(_value(c[index], c.type) for c in columns))


class SomeRows(Sequence[T]):
    """Some of the rows of a sequence, each still read only when it is asked for.

    Attributes:
        whole: the sequence.
    """

    def __init__(self, rows: Sequence[T], chosen: Sequence[int]) -> None:
        self.whole, self._chosen = rows, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return [self.whole[i] for i in self._chosen[index]]
        return self.whole[self._chosen[index]]


def column_of(rows: Sequence[Any], name: str) -> list[Any]:
    """Return one field of all rows; of :class:`ArrowRows` without decoding the others."""
    if isinstance(rows, ArrowRows):
        return rows.column(name)
    return [getattr(row, name) for row in rows]


def item_lengths_of(rows: Sequence[Any], name: str) -> list[int]:
    """Return what :meth:`ArrowRows.item_lengths` does, of any rows."""
    if isinstance(rows, ArrowRows):
        return rows.item_lengths(name)
    return [len(item) for row in rows for item in getattr(row, name)]


def bytes_of(rows: Sequence[Any], name: str) -> Iterator[bytes | memoryview]:
    """Yield what :meth:`ArrowRows.list_bytes` does, of any rows whose field lists whole numbers."""
    if isinstance(rows, ArrowRows):
        yield from rows.list_bytes(name)
    else:
        yield from (array("i", getattr(row, name)).tobytes() for row in rows)


def _array(values: Sequence[Any], kind: pa.DataType) -> Any:
    """Return an Arrow array; a list column is built from its offsets and its items."""
    if not pa.types.is_list(kind):
        return column(values, kind)
    offsets = column(list(accumulate(map(len, values), initial=0)), pa.int32())
    items = _array(list(chain.from_iterable(values)), kind.value_type)
    return pa.ListArray.from_arrays(offsets, items).cast(kind)


def _value(scalar: Any, kind: pa.DataType) -> Any:
    if not pa.types.is_list(kind):
        return scalar.as_py()
    items = scalar.values
    if kind.value_type not in _FORMATS:
        return [_value(item, kind.value_type) for item in items]
    # 8,000 ids in 0.1 ms; ``as_py`` makes a scalar of each and takes 20 times as long.
    view = memoryview(items.buffers()[1] or b"").cast(_FORMATS[kind.value_type])
    return view[items.offset : items.offset + len(items)].tolist()


#: Its presence makes the folder complete.
SUMMARY = "data.json"
#: Channel to the field of :class:`TrainingData`, which is the file's name too, and its rows.
CHANNELS: dict[str, tuple[str, type[Any]]] = {
    "grpo": ("groups", Group),
    "sdpo": ("hints", Hint),
    "dpo": ("pairs", Pair),
    "sft": ("demonstrations", Demonstration),
}


class TrainingData(msgspec.Struct):
    """Everything that a replica needs, and what was left out and why.

    ``seen`` counts rows by channel, ``dropped`` rows by ``channel: reason``, and
    ``statistics`` holds numbers about the kept rows by channel.
    """

    groups: Sequence[Group] = ()
    pairs: Sequence[Pair] = ()
    hints: Sequence[Hint] = ()
    demonstrations: Sequence[Demonstration] = ()
    seen: dict[str, int] = {}
    dropped: dict[str, int] = {}
    statistics: dict[str, dict[str, float]] = {}

    def counts(self) -> dict[str, int]:
        """Return the usable rows of each channel."""
        return {channel: len(getattr(self, name)) for channel, (name, _) in CHANNELS.items()}

    @staticmethod
    def is_complete(folder: Path) -> bool:
        """Say whether a build has finished in ``folder``."""
        return (folder / SUMMARY).is_file()

    @staticmethod
    def load(folder: Path) -> "TrainingData":
        """Open a finished folder; rows are decoded one by one from memory maps.

        Raises:
            InputError: the folder is not complete, or a file of it is damaged.
        """
        if not TrainingData.is_complete(folder):
            raise InputError(f"{folder} holds no finished training data")
        summary = json.loads((folder / SUMMARY).read_bytes())
        rows: dict[str, Any] = {
            name: ArrowRows(file_of(folder, name), kind) for name, kind in CHANNELS.values()
        }
        return TrainingData(**rows, **summary)


def file_of(folder: Path, name: str) -> Path:
    """Return the file of one field of :class:`TrainingData`."""
    return folder / f"{name}.arrow"


def finish(folder: Path, summary: dict[str, Any]) -> None:
    """Make a folder complete: ``summary`` has ``seen``, ``dropped`` and ``statistics``."""
    replace(folder / SUMMARY, json.dumps(summary, indent=1))


_SFT = {
    "consensus": ("dataset_groups",),
    "successes": ("dataset_successes",),
    "both": ("dataset_groups", "dataset_successes"),
}
#: Channel to the tables that are looked up besides.
_ALSO = {"sdpo": ("dataset_groups",)}


def feeds(channels: Channels) -> dict[str, tuple[str, ...]]:
    """Return each weighted channel's tables; a row of them is a row of the channel."""
    every = {
        "grpo": ("dataset_groups",),
        "sdpo": ("dataset_hints",),
        "dpo": ("dataset_pairs",),
        "sft": _SFT[channels.sft.source],
    }
    return {channel: every[channel] for channel in channels.weights()}


def tables_of(channels: Channels) -> list[str]:
    """Return the tables whose content decides the rows of the weighted channels, sorted."""
    read = {t for name, tables in feeds(channels).items() for t in (*tables, *_ALSO.get(name, ()))}
    if "grpo" in channels.weights() and "outcome" in channels.grpo.rewards:
        read.add("dataset_hints")  # which of the agent's actions failed
    return sorted(read)


def loss_factors(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return pair id to the factor of its loss: its weight over the mean weight of all pairs.

    The mean is over the whole channel and not over a batch: a batch of one pair would
    otherwise never be weighted. The mean factor is 1, so a weight moves attention between pairs
    and not the size of a step. Equal weights give exactly 1.0.

    Raises:
        InputError: a weight is not a number above 0 (weight 0 is dropped before the dataset).
    """
    ids, weights = column_of(pairs, "id"), column_of(pairs, "weight")
    for name, weight in zip(ids, weights, strict=True):
        if not 0 < weight < math.inf:
            raise InputError(
                f"table dataset_pairs: pair {name}: weight must be above 0, not {weight}"
            )
    if not weights or min(weights) == max(weights):
        return dict.fromkeys(ids, 1.0)
    mean = math.fsum(weights) / len(weights)
    return {name: weight / mean for name, weight in zip(ids, weights, strict=True)}
