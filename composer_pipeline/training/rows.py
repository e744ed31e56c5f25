"""Training rows: token windows of each channel, built from the dataset tables into Arrow files.

Rows are made in parts of a table, written to ``parts/`` and finally joined, so that memory does not
grow with their number and a killed build continues with the missing part. The files are read
through memory maps.

Traces hold text, not token ids, so windows are rendered here, and SDPO on a recorded action is
off-policy context distillation.
"""

import json
import math
import shutil
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate, chain, islice, pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints, overload

import msgspec
import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.files import make_folder, replace, replacing
from composer_pipeline.lake.parquet import column
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.recipe import Channels, TrainingRecipe
from composer_pipeline.training.rewards import Case, Grader, case_of
from composer_pipeline.training.window_text import Dropped, action_message, names_lost_file
from composer_pipeline.training.windows import Windows
from composer_pipeline.window import Message


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


#: GRPO drops these by design, so they do not count as loss.
ZERO_VARIANCE = "zero-variance group"
#: The action names a file that the prompt showed and the window does not.
LOST_FILE = "lost file"

_Row = Mapping[str, Any]


class Prompt:
    """A row's window, rendered on first use and shared by all channels."""

    def __init__(self, windows: Windows, row: _Row) -> None:
        self._windows, self._row = windows, row
        #: Action -> its ids, or why it is dropped.
        self._responses: dict[str, list[int] | str] = {}

    @cached_property
    def _cut(self) -> tuple[list[Message], list[Any]]:
        return self._windows.window(self._row["prompt"], self._row["tools"] or [])

    @cached_property
    def ids(self) -> list[int]:
        """Token ids, ending with the assistant's header."""
        return self._windows.prompt_ids(*self._cut)

    @property
    def cut(self) -> bool:
        """True if any part of the prompt was left out or shortened."""
        window, _ = self._cut
        return sum(_length(m) for m in window) < sum(_length(m) for m in self._row["prompt"])

    def action(self, messages: Any, *, shown: bool = True) -> Message:
        """Return a row's action in the template's form.

        Drops the row where the action is ``shown`` but names a file that the window lost.
        """
        action = self._windows.template.form.action(action_message(messages))
        if (
            shown
            and self._windows.limits.drop_lost_files
            and names_lost_file(action, self._row["prompt"], self._cut[0])
        ):
            raise Dropped(LOST_FILE)
        return action

    def response(self, action: Message) -> list[int]:
        """Return the ids of an action after this prompt; teachers often give the same."""
        key = json.dumps(action)
        if key not in self._responses:
            try:
                self._responses[key] = self._windows.response_ids(*self._cut, action)
            except Dropped as reason:
                self._responses[key] = str(reason)
        found = self._responses[key]
        if isinstance(found, str):
            raise Dropped(found)
        return found

    def span(self, action: Message, call: int) -> tuple[int, int]:
        """Return start and length of one call in the response, in tokens."""
        return self._windows.span(*self._cut, action, call)

    def hinted(self, hint: str) -> list[int]:
        """Return the ids of the prompt with the hint as its end."""
        window, tools = self._cut
        return self._windows.prompt_ids(self._windows.hinted(window, hint), tools)


def pair_of(prompt: Prompt, row: _Row) -> Pair:
    """Return a row of ``dataset_pairs`` as token ids."""
    chosen = prompt.response(prompt.action(row["chosen"]))
    rejected = prompt.response(prompt.action(row["rejected"]))
    if chosen == rejected:
        raise Dropped("chosen equals rejected")
    weight = row.get("weight")
    return Pair(row["pair_id"], prompt.ids, chosen, rejected, 1.0 if weight is None else weight)


def group_of(
    prompt: Prompt, row: _Row, grader: Grader, *, recorded: bool = True, failed: bool | None = None
) -> Group:
    """Return the distinct answers to a state with their counts and rewards.

    ``recorded``: the model samples no answers, so the recorded ones must differ in reward.
    ``failed``: whether the agent's own action ended in an error, if known.
    """
    consensus = _consensus_answer(prompt, row)
    counts: Counter[tuple[int, ...]] = Counter()
    answers: dict[tuple[int, ...], Message] = {}
    given: list[tuple[str, Message]] = []
    problem = "no candidate"
    for who, message in zip(row["sources"] or [], row["candidates"] or [], strict=True):
        try:
            candidate = prompt.action([message], shown=False)
            ids = tuple(prompt.response(candidate))
        except Dropped as reason:
            problem = str(reason)
            continue
        counts[ids] += 1
        answers.setdefault(ids, candidate)
        given.append((who, candidate))
    if not counts:
        raise Dropped(problem)
    case = case_of(grader.weights, consensus, given, row, failed)
    rewards = {ids: grader.grade(answer, case).value for ids, answer in answers.items()}
    if recorded and max(rewards.values()) - min(rewards.values()) < 1e-9:
        raise Dropped(ZERO_VARIANCE)
    return Group(
        row["state_id"],
        prompt.ids,
        [list(ids) for ids in counts],
        list(counts.values()),
        list(rewards.values()),
        # Without sampled answers only the consensus is needed.
        (Case(consensus) if recorded else case).to_json(),
    )


def demonstration_of(prompt: Prompt, row: _Row) -> Demonstration:
    """Return a state and its consensus action."""
    response = prompt.response(_consensus_answer(prompt, row))
    return Demonstration(row["state_id"], prompt.ids, response)


def success_of(prompt: Prompt, row: _Row) -> Demonstration:
    """Return a state and the agent's own action there."""
    return Demonstration(row["state_id"], prompt.ids, prompt.response(prompt.action(row["action"])))


def hint_of(prompt: Prompt, row: _Row, consensus: list[Any] | None) -> Hint:
    """Return an error turn with the action that its hint should lead to."""
    text = (row["hint"] or "").strip()
    if not text:
        raise Dropped("empty hint")
    whole = action_message(row["action"])
    call = -1 if row["span_call"] is None else int(row["span_call"])
    start, length = prompt.span(whole, call)
    response = prompt.response(prompt.action(row["action"]))
    target = _target(prompt, response, consensus, row["recovery"])
    return Hint(row["state_id"], prompt.ids, prompt.hinted(text), response, start, length, target)


def _consensus_answer(prompt: Prompt, row: _Row) -> Message:
    if not row["consensus"]:
        raise Dropped("no consensus")
    return prompt.action(row["consensus"])


def _target(prompt: Prompt, response: list[int], *known: list[Any] | None) -> list[int]:
    # The first known action that differs from the failing one.
    for messages in known:
        try:
            ids = prompt.response(prompt.action(messages or []))
        except Dropped:
            continue
        if ids != response:
            return ids
    return []


def _length(message: Message) -> int:
    return len(message.get("content") or "")


_Maker = Callable[[Prompt, _Row], Any]

#: Rows of a table in a part, and the folder of the parts.
PART, PARTS = 64, "parts"


def build(
    lake: Lake, tokenizer: Any, recipe: TrainingRecipe, folder: Path, *, split: str = "train"
) -> TrainingData:
    """Write the windows of a split for the weighted channels into ``folder``, and open it.

    Raises InputError where a channel has no usable row or loses more rows than
    ``data.max_dropped_share``.
    """
    make_folder(folder)
    for leftover in folder.rglob(".*.tmp"):  # of a killed build
        leftover.unlink()
    windows = Windows(tokenizer, recipe.data)
    consensus = _consensus(lake, split) if "sdpo" in recipe.channels.weights() else {}
    grpo = recipe.channels.grpo
    recorded, grader = not grpo.sampled, Grader(grpo.rewards)
    failed = _failed(lake, split) if "outcome" in grader.weights else None
    makers: dict[str, dict[str, _Maker]] = {
        "dataset_groups": {
            "grpo": lambda prompt, row: group_of(
                prompt, row, grader, recorded=recorded,
                failed=None if failed is None else row["state_id"] in failed,
            ),
            "sft": demonstration_of,
        },
        "dataset_hints": {
            "sdpo": lambda prompt, row: hint_of(prompt, row, consensus.get(row["state_id"])),
        },
        "dataset_pairs": {"dpo": pair_of},
        "dataset_successes": {"sft": success_of},
    }  # fmt: skip
    tables = feeds(recipe.channels)
    tally = {channel: Tally() for channel in recipe.channels.weights()}
    files: dict[str, list[Path]] = {channel: [] for channel in CHANNELS}
    for table in sorted({table for read in tables.values() for table in read}):
        making = {channel: makers[table][channel] for channel in tally if table in tables[channel]}
        for number, rows in enumerate(_parts(lake.iter_rows(table, split=split))):
            part = folder / PARTS / f"{table}-{number:06d}"
            if not (part / SUMMARY).is_file():
                _make(part, making, windows, rows)
            for channel, counted in json.loads((part / SUMMARY).read_bytes()).items():
                tally[channel].add(Tally(**counted))
                files[channel].append(part / f"{CHANNELS[channel][0]}.arrow")
    for channel, counted in tally.items():
        _check(recipe, channel, counted)
    for channel, (name, kind) in CHANNELS.items():
        with writing_rows(folder / f"{name}.arrow", kind) as out:
            for file in files[channel]:
                out.copy(file)
    summary = {
        "seen": {channel: counted.seen for channel, counted in tally.items()},
        "dropped": {
            f"{channel}: {reason}": rows
            for channel, counted in tally.items()
            for reason, rows in sorted(counted.dropped.items())
        },
        "statistics": {channel: counted.statistics() for channel, counted in tally.items()},
    }
    replace(folder / SUMMARY, json.dumps(summary, indent=1))
    shutil.rmtree(folder / PARTS)
    return TrainingData.load(folder)


def _parts(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    while part := list(islice(rows, PART)):
        yield part


def _make(part: Path, makers: Mapping[str, _Maker], windows: Windows, rows: Sequence[_Row]) -> None:
    # The tally is written last: its presence marks the part as complete.
    tally = {channel: Tally() for channel in makers}
    with ExitStack() as stack:
        out = {
            channel: stack.enter_context(writing_rows(part / f"{name}.arrow", kind))
            for channel, (name, kind) in CHANNELS.items()
            if channel in makers
        }
        for row in rows:
            prompt = Prompt(windows, row)
            for channel, maker in makers.items():
                tally[channel].seen += 1
                try:
                    out[channel].append(maker(prompt, row))
                except Dropped as reason:
                    tally[channel].dropped[str(reason)] += 1
                else:
                    tally[channel].keep(prompt)
    replace(part / SUMMARY, json.dumps({name: vars(counted) for name, counted in tally.items()}))


@dataclass
class Tally:
    """Counts of one channel's rows; lengths are tokens of prompts."""

    seen: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    cut: int = 0
    tokens: int = 0
    longest: int = 0

    def keep(self, prompt: "Prompt") -> None:
        """Count a kept row."""
        self.kept += 1
        self.cut += prompt.cut
        self.tokens += len(prompt.ids)
        self.longest = max(self.longest, len(prompt.ids))

    def add(self, other: "Tally") -> None:
        """Add the counts of another tally."""
        self.seen += other.seen
        self.dropped.update(other.dropped)
        self.kept += other.kept
        self.cut += other.cut
        self.tokens += other.tokens
        self.longest = max(self.longest, other.longest)

    def statistics(self) -> dict[str, float]:
        """Return the numbers of ``TrainingData.statistics``."""
        return {
            "rows": self.kept,
            "cut_share": self.cut / max(1, self.kept),
            "prompt_tokens_mean": self.tokens / max(1, self.kept),
            "prompt_tokens_max": self.longest,
            "lost_file": self.dropped[LOST_FILE],
        }


def _check(recipe: TrainingRecipe, channel: str, counted: Tally) -> None:
    table, seen = " and ".join(feeds(recipe.channels)[channel]), counted.seen
    reasons = ", ".join(f"{rows} {reason}" for reason, rows in counted.dropped.most_common(6))
    if not counted.kept:
        raise InputError(
            f"channel {channel}: none of {seen} rows of {table} can be trained on"
            f" ({reasons or 'the split is empty'})"
        )
    lost = counted.dropped.total() - counted.dropped[ZERO_VARIANCE]
    if lost > recipe.data.max_dropped_share * seen:
        raise InputError(
            f"channel {channel}: {lost} of {seen} rows of {table} dropped"
            f" ({reasons}), more than data.max_dropped_share {recipe.data.max_dropped_share}"
        )


def require_rows(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> dict[str, int]:
    """Return the row count of each weighted channel, before any model is loaded."""
    counts = rows_of_tables(lake, recipe, split)
    for channel, rows in counts.items():
        if not rows:
            tables = feeds(recipe.channels)[channel]
            raise InputError(
                f"recipe field channels.{channel}.weight is not 0, but"
                f" table{'s' * (len(tables) > 1)} {' and '.join(tables)} of lake"
                f" {lake.url} has no row with split={split}"
            )
    return counts


def rows_of_tables(lake: Lake, recipe: TrainingRecipe, split: str) -> dict[str, int]:
    """Return the row count of the tables of each weighted channel."""
    return {
        channel: sum(lake.read(t, columns=["state_id"], split=split).num_rows for t in tables)
        for channel, tables in feeds(recipe.channels).items()
    }


def _failed(lake: Lake, split: str) -> set[str]:
    # States whose recorded action ended in an error.
    rows = lake.iter_rows("dataset_hints", columns=["state_id"], split=split)
    return {row["state_id"] for row in rows}


def _consensus(lake: Lake, split: str) -> dict[str, list[Any]]:
    # State id to consensus, for error turns that teachers answered.
    wanted = _failed(lake, split)
    columns = ["state_id", "consensus"]
    rows = lake.iter_rows("dataset_groups", columns=columns, split=split)
    return {
        row["state_id"]: row["consensus"]
        for row in rows
        if row["state_id"] in wanted and row["consensus"]
    }
