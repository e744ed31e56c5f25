"""Rows of the channels as token ids, kept in Arrow files that are read through memory maps.

Traces hold text, not token ids, so windows are rendered here, and SDPO on a recorded action is
off-policy context distillation.
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
from composer_pipeline.files import replacing
from composer_pipeline.lake.parquet import column
from composer_pipeline.training.recipe import Channels


class Group(msgspec.Struct, frozen=True):
    """Recorded answers to one state with their rewards."""

    id: str
    prompt_ids: list[int]
    #: Distinct answers, how often each was given, and the reward of each.
    completions: list[list[int]]
    counts: list[int]
    rewards: list[float]
    #: A ``training.rewards.Case`` as JSON, by which sampled answers are graded.
    case: str


class Pair(msgspec.Struct, frozen=True):
    """A preference pair with the weight of its table row."""

    id: str
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]
    weight: float = 1.0


class Hint(msgspec.Struct, frozen=True):
    """An error turn: one response after a plain and after a hinted prompt."""

    id: str
    prompt_ids: list[int]
    teacher_prompt_ids: list[int]
    response_ids: list[int]
    #: Start and length of the trained span inside ``response_ids``.
    start: int
    length: int
    #: The better action after the same prompt, to measure the hint with, never trained on: the
    #: teachers' consensus, else the agent's later recovery, else empty.
    target_ids: list[int] = []


class Demonstration(msgspec.Struct, frozen=True):
    """A state and the action to imitate: the consensus, or an action of the agent that worked."""

    id: str
    prompt_ids: list[int]
    response_ids: list[int]


T = TypeVar("T", bound=msgspec.Struct)

#: A batch is written once its lists hold so many numbers, or after so many rows.
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
    """Return the Arrow schema of a struct: its fields, in order."""
    hints = get_type_hints(kind)
    return pa.schema([pa.field(n, _TYPES[hints[n]], False) for n in kind.__struct_fields__])


class RowWriter(Generic[T]):
    """Writes rows in batches; see :func:`writing_rows`."""

    def __init__(self, writer: Any, kind: type[T]) -> None:
        self._writer, self._kind, self._schema = writer, kind, schema_of(kind)
        self._rows: list[T] = []
        self._numbers = 0

    def append(self, row: T) -> None:
        """Add a row; a full batch is written immediately."""
        self._rows.append(row)
        self._numbers += sum(
            len(value)
            for name in self._schema.names
            if isinstance(value := getattr(row, name), list)
        )
        if self._numbers >= BATCH_NUMBERS or len(self._rows) >= BATCH_ROWS:
            self.flush()

    def copy(self, path: Path) -> None:
        """Append all rows of another file of the same struct without decoding them."""
        self.flush()
        source = ArrowRows(path, self._kind)
        for number in range(source._file.num_record_batches):
            self._writer.write_batch(source._file.get_batch(number))

    def flush(self) -> None:
        """Write the rows that are not in the file yet."""
        if self._rows:
            arrays = [
                _array([getattr(row, field.name) for row in self._rows], field.type)
                for field in self._schema
            ]
            self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows, self._numbers = [], 0


@contextmanager
def writing_rows(path: Path, kind: type[T]) -> Iterator[RowWriter[T]]:
    """Yield a writer; the file is replaced atomically when the block ends without an error."""
    with replacing(path) as stream, pa.ipc.new_file(stream, schema_of(kind)) as writer:
        rows = RowWriter(writer, kind)
        yield rows
        rows.flush()


class ArrowRows(Sequence[T]):
    """The rows of a file, decoded on access."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path, self.kind = path, kind
        try:
            self._file = pa.ipc.open_file(pa.memory_map(str(path)))
        except FileNotFoundError as error:
            raise InputError(f"{path} is missing; rebuild it with train --force") from error
        except pa.ArrowInvalid as error:
            raise InputError(f"{path} is damaged; rebuild it with train --force") from error
        if not self._file.schema.equals(schema_of(kind)):
            raise InputError(
                f"{path} was written by another version; rebuild it with train --force"
            )
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
        """Return one scalar column of all rows, without decoding the others."""
        texts = (batch.column(name).to_pylist() for batch in self._batches())
        return list(chain.from_iterable(texts))

    def item_lengths(self, name: str) -> list[int]:
        """Return the lengths of the inner lists of a column of lists, for all rows in one list."""
        items = (batch.column(name).flatten().value_lengths() for batch in self._batches())
        return list(chain.from_iterable(lengths.to_pylist() for lengths in items))

    def list_bytes(self, name: str) -> Iterator[memoryview]:
        """Yield the numbers of a list column, row by row, without copying them."""
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
    """Some rows of a sequence, still decoded on access."""

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
    """Return one field of any rows, as :meth:`ArrowRows.column`."""
    if isinstance(rows, ArrowRows):
        return rows.column(name)
    return [getattr(row, name) for row in rows]


def item_lengths_of(rows: Sequence[Any], name: str) -> list[int]:
    """Return the lengths of inner lists of any rows, as :meth:`ArrowRows.item_lengths`."""
    if isinstance(rows, ArrowRows):
        return rows.item_lengths(name)
    return [len(item) for row in rows for item in getattr(row, name)]


def bytes_of(rows: Sequence[Any], name: str) -> Iterator[bytes | memoryview]:
    """Yield the integers of a list field of any rows, as :meth:`ArrowRows.list_bytes`."""
    if isinstance(rows, ArrowRows):
        yield from rows.list_bytes(name)
    else:
        yield from (array("i", getattr(row, name)).tobytes() for row in rows)


def _array(values: Sequence[Any], kind: pa.DataType) -> Any:
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
    # 8,000 ids in 0.1 ms; as_py makes a scalar of each and takes 20 times as long.
    view = memoryview(items.buffers()[1] or b"").cast(_FORMATS[kind.value_type])
    return view[items.offset : items.offset + len(items)].tolist()


#: Its presence marks the folder as complete.
SUMMARY = "data.json"
#: Channel to the field of :class:`TrainingData`, which is also the file's name, and the row type.
CHANNELS: dict[str, tuple[str, type[Any]]] = {
    "grpo": ("groups", Group),
    "sdpo": ("hints", Hint),
    "dpo": ("pairs", Pair),
    "sft": ("demonstrations", Demonstration),
}


class TrainingData(msgspec.Struct):
    """The rows of all channels, and what was left out and why."""

    groups: Sequence[Group] = ()
    pairs: Sequence[Pair] = ()
    hints: Sequence[Hint] = ()
    demonstrations: Sequence[Demonstration] = ()
    #: Table rows by channel, dropped rows by ``channel: reason``, numbers of kept rows by channel.
    seen: dict[str, int] = {}
    dropped: dict[str, int] = {}
    statistics: dict[str, dict[str, float]] = {}

    def counts(self) -> dict[str, int]:
        """Return the usable rows of each channel."""
        return {channel: len(getattr(self, name)) for channel, (name, _) in CHANNELS.items()}

    @staticmethod
    def is_complete(folder: Path) -> bool:
        """Return True if a build has finished in ``folder``."""
        return (folder / SUMMARY).is_file()

    @staticmethod
    def load(folder: Path) -> "TrainingData":
        """Open a finished folder."""
        if not TrainingData.is_complete(folder):
            raise InputError(f"{folder} holds no finished training data")
        summary = json.loads((folder / SUMMARY).read_bytes())
        rows: dict[str, Any] = {
            name: ArrowRows(folder / f"{name}.arrow", kind) for name, kind in CHANNELS.values()
        }
        return TrainingData(**rows, **summary)


_SFT = {
    "consensus": ("dataset_groups",),
    "successes": ("dataset_successes",),
    "both": ("dataset_groups", "dataset_successes"),
}
#: Channel to tables that are read in addition.
_ALSO = {"sdpo": ("dataset_groups",)}


def feeds(channels: Channels) -> dict[str, tuple[str, ...]]:
    """Return the tables of each weighted channel; each of their rows is a row of the channel."""
    every = {
        "grpo": ("dataset_groups",),
        "sdpo": ("dataset_hints",),
        "dpo": ("dataset_pairs",),
        "sft": _SFT[channels.sft.source],
    }
    return {channel: every[channel] for channel in channels.weights()}


def tables_of(channels: Channels) -> list[str]:
    """Return the tables that determine the rows of the weighted channels, sorted."""
    read = {t for name, tables in feeds(channels).items() for t in (*tables, *_ALSO.get(name, ()))}
    if "grpo" in channels.weights() and "outcome" in channels.grpo.rewards:
        read.add("dataset_hints")  # which of the agent's actions failed
    return sorted(read)


def loss_factors(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the loss factor of each pair id: its weight over the mean weight of all pairs.

    The mean is taken over the channel, not over a batch: a batch of one pair would otherwise never
    be weighted. The mean factor is 1, so weights do not change the step size; equal weights give
    exactly 1.0.
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
