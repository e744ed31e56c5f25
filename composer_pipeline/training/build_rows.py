"""From the dataset tables to a folder of token windows.

Belongs here: reading, counting what was dropped and why, and when that is too much. Does not
belong here: what a row becomes (``training.data.make``) and the files
(``training.data.arrow_rows``). Imports no torch.

Rows are made part by part of a table and written to ``parts/``, so memory does not grow with their
number, and a build that was killed goes on with the part that is missing. In the end the parts
are joined, and the summary is written.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.files import make_folder, replace
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rewards import Case, Grader, case_of
from composer_pipeline.training.rows import (
    CHANNELS,
    SUMMARY,
    Demonstration,
    Group,
    Hint,
    Pair,
    RowWriter,
    TrainingData,
    feeds,
    file_of,
    finish,
    writing_rows,
)
from composer_pipeline.training.window_text import Dropped, Message, action_message, names_lost_file
from composer_pipeline.training.windows import Windows

#: Dropping these is how GRPO works, not a sign of wrong data.
ZERO_VARIANCE = "zero-variance group"
#: The action names a file that the prompt showed and the window does not.
LOST_FILE = "lost file"

_Row = Mapping[str, Any]


class Prompt:
    """A row's window, made when it is first asked for and used by every channel.

    Args:
        windows: renders.
        row: has ``prompt`` and ``tools``.
    """

    def __init__(self, windows: Windows, row: _Row) -> None:
        self._windows, self._row = windows, row

    @cached_property
    def _cut(self) -> tuple[list[Message], list[Any]]:
        return self._windows.window(self._row["prompt"], self._row["tools"] or [])

    @cached_property
    def ids(self) -> list[int]:
        """The token ids, ending with the assistant's header."""
        return self._windows.prompt_ids(*self._cut)

    @property
    def cut(self) -> bool:
        """Whether anything of the prompt was left out or shortened."""
        window, _ = self._cut
        return sum(_length(m) for m in window) < sum(_length(m) for m in self._row["prompt"])

    def action(self, messages: Any, *, shown: bool = True) -> Message:
        """Return the one action of a row's column, in the template's form.

        Raises:
            Dropped: it is not one assistant message, or, where it has to be ``shown``, names a
                file that the window lost.
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
        """Return the ids of an action behind this prompt.

        Raises:
            Dropped: it is too long, or the template refuses it.
        """
        return self._windows.response_ids(*self._cut, action)

    def span(self, action: Message, call: int) -> tuple[int, int]:
        """Return start and length of one call in the response."""
        return self._windows.span(*self._cut, action, call)

    def hinted(self, hint: str) -> list[int]:
        """Return the ids of the prompt whose last words are the hint."""
        window, tools = self._cut
        return self._windows.prompt_ids(self._windows.hinted(window, hint), tools)


def pair(windows: Windows, row: _Row) -> Pair:
    """Return a row of ``dataset_pairs`` as token ids.

    Raises:
        Dropped: it does not fit, or both sides have the same tokens.
    """
    return pair_of(Prompt(windows, row), row)


def pair_of(prompt: Prompt, row: _Row) -> Pair:
    """Return a preference pair; see :func:`pair`."""
    chosen = prompt.response(prompt.action(row["chosen"]))
    rejected = prompt.response(prompt.action(row["rejected"]))
    if chosen == rejected:
        raise Dropped("chosen equals rejected")
    weight = row.get("weight")
    return Pair(row["pair_id"], prompt.ids, chosen, rejected, 1.0 if weight is None else weight)


def group_of(
    prompt: Prompt,
    row: _Row,
    grader: Grader,
    *,
    recorded: bool = True,
    failed: bool | None = None,
) -> Group:
    """Return the distinct answers to a state with their counts and rewards.

    Args:
        prompt: the state's window.
        row: of ``dataset_groups``.
        grader: says what an answer is worth.
        recorded: the model gives no answers of its own, so that the recorded ones must differ
            in what they are worth.
        failed: whether the agent's own action ended in an error.

    Raises:
        Dropped: there is no consensus, no answer fits, or all are worth the same.
    """
    consensus = _consensus_answer(prompt, row)
    counts: Counter[tuple[int, ...]] = Counter()
    answers: dict[tuple[int, ...], Message] = {}
    given: list[tuple[str, Message]] = []
    why = "no candidate"
    for who, message in zip(row["sources"] or [], row["candidates"] or [], strict=True):
        try:
            candidate = prompt.action([message], shown=False)
            ids = tuple(prompt.response(candidate))
        except Dropped as reason:
            why = str(reason)
            continue
        counts[ids] += 1
        answers.setdefault(ids, candidate)
        given.append((who, candidate))
    if not counts:
        raise Dropped(why)
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
        # What nobody will answer again needs no more than the consensus.
        (Case(consensus) if recorded else case).to_json(),
    )


def demonstration_of(prompt: Prompt, row: _Row) -> Demonstration:
    """Return a state and its consensus action.

    Raises:
        Dropped: there is no consensus, or it does not fit.
    """
    response = prompt.response(_consensus_answer(prompt, row))
    return Demonstration(row["state_id"], prompt.ids, response)


def success_of(prompt: Prompt, row: _Row) -> Demonstration:
    """Return a state and the agent's own action there.

    Raises:
        Dropped: it does not fit.
    """
    return Demonstration(row["state_id"], prompt.ids, prompt.response(prompt.action(row["action"])))


def hint_of(prompt: Prompt, row: _Row, consensus: list[Any] | None) -> Hint:
    """Return an error turn with the target that its hint should lead to.

    Raises:
        Dropped: there is no hint, or the failed call cannot be told from others.
    """
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
    """Return the ids of the first better action that is one: not the failing one again."""
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

#: Rows of a table in one part, and the folder of the parts.
PART, PARTS = 64, "parts"


def build(
    lake: Lake, tokenizer: Any, recipe: TrainingRecipe, folder: Path, *, split: str = "train"
) -> TrainingData:
    """Write the windows of a split for the weighted channels into ``folder``, and open it.

    Raises:
        InputError: a weighted channel has no usable row, or loses more rows than
            ``data.max_dropped_share`` (zero-variance groups are not counted as loss).
        StorageError: the disk is full or read-only.
    """
    make_folder(folder)
    for left in folder.rglob(".*.tmp"):  # of a build that was killed
        left.unlink()
    windows = Windows(tokenizer, recipe.data)
    consensus = _consensus(lake, split) if "sdpo" in recipe.channels.weights() else {}
    grpo = recipe.channels.grpo
    recorded, grader = not grpo.sampled, Grader(grpo.rewards)
    failed = _failed(lake, split) if "outcome" in grader.weights else None
    makers: dict[str, dict[str, _Maker]] = {
        "dataset_groups": {
            "grpo": lambda prompt, row: group_of(
                prompt,
                row,
                grader,
                recorded=recorded,
                failed=None if failed is None else row["state_id"] in failed,
            ),
            "sft": demonstration_of,
        },
        "dataset_hints": {
            "sdpo": lambda prompt, row: hint_of(prompt, row, consensus.get(row["state_id"])),
        },
        "dataset_pairs": {"dpo": pair_of},
        "dataset_successes": {"sft": success_of},
    }
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
                files[channel].append(file_of(part, CHANNELS[channel][0]))
    for channel, counted in tally.items():
        _check(recipe, channel, counted)
    for channel, (name, kind) in CHANNELS.items():
        with writing_rows(file_of(folder, name), kind) as out:
            for file in files[channel]:
                out.copy(file)
    finish(
        folder,
        {
            "seen": {channel: counted.seen for channel, counted in tally.items()},
            "dropped": {
                f"{channel}: {reason}": rows
                for channel, counted in tally.items()
                for reason, rows in sorted(counted.dropped.items())
            },
            "statistics": {channel: counted.statistics() for channel, counted in tally.items()},
        },
    )
    shutil.rmtree(folder / PARTS)
    return TrainingData.load(folder)


def _parts(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    """Yield rows in lists of :data:`PART`."""
    while part := list(islice(rows, PART)):
        yield part


def _make(part: Path, makers: Mapping[str, _Maker], windows: Windows, rows: Sequence[_Row]) -> None:
    """Write what some rows of a table become in each channel, and last of all their tally."""
    tally = {channel: Tally() for channel in makers}
    with ExitStack() as stack:
        out: dict[str, RowWriter[Any]] = {}
        for channel in makers:
            name, kind = CHANNELS[channel]
            out[channel] = stack.enter_context(writing_rows(file_of(part, name), kind))
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
    """What became of the rows of one channel."""

    seen: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    cut: int = 0
    tokens: int = 0
    longest: int = 0

    def keep(self, prompt: "Prompt") -> None:
        """Count a row that is kept."""
        self.kept += 1
        self.cut += prompt.cut
        self.tokens += len(prompt.ids)
        self.longest = max(self.longest, len(prompt.ids))

    def add(self, other: "Tally") -> None:
        """Count the rows of another tally too."""
        self.seen += other.seen
        self.dropped.update(other.dropped)
        self.kept += other.kept
        self.cut += other.cut
        self.tokens += other.tokens
        self.longest = max(self.longest, other.longest)

    def statistics(self) -> dict[str, float]:
        """Return the numbers of ``TrainingData.statistics``; lengths are tokens of prompts."""
        return {
            "rows": self.kept,
            "cut_share": self.cut / max(1, self.kept),
            "prompt_tokens_mean": self.tokens / max(1, self.kept),
            "prompt_tokens_max": self.longest,
            "lost_file": self.dropped[LOST_FILE],
        }


def _check(recipe: TrainingRecipe, channel: str, counted: Tally) -> None:
    table, seen = " and ".join(feeds(recipe.channels)[channel]), counted.seen
    why = ", ".join(f"{rows} {reason}" for reason, rows in counted.dropped.most_common(6))
    if not counted.kept:
        raise InputError(
            f"channel {channel}: none of {seen} rows of {table} can be trained on"
            f" ({why or 'the split is empty'})"
        )
    lost = counted.dropped.total() - counted.dropped[ZERO_VARIANCE]
    if lost > recipe.data.max_dropped_share * seen:
        raise InputError(
            f"channel {channel}: {lost} of {seen} rows of {table} dropped"
            f" ({why}), more than data.max_dropped_share {recipe.data.max_dropped_share}"
        )


def require_rows(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> dict[str, int]:
    """Return the rows of each weighted channel, before any model is loaded.

    Raises:
        InputError: a weighted channel has none.
    """
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
    """Return the rows that the tables of each weighted channel have."""
    return {
        channel: sum(lake.read(t, columns=["state_id"], split=split).num_rows for t in tables)
        for channel, tables in feeds(recipe.channels).items()
    }


def _failed(lake: Lake, split: str) -> set[str]:
    """Return the states whose action the trace shows an error of."""
    rows = lake.iter_rows("dataset_hints", columns=["state_id"], split=split)
    return {row["state_id"] for row in rows}


def _consensus(lake: Lake, split: str) -> dict[str, list[Any]]:
    """Return state id to the consensus of the error turns that teachers answered too."""
    wanted = {
        row["state_id"]
        for row in lake.iter_rows("dataset_hints", columns=["state_id"], split=split)
    }
    columns = ["state_id", "consensus"]
    rows = lake.iter_rows("dataset_groups", columns=columns, split=split)
    return {
        row["state_id"]: row["consensus"]
        for row in rows
        if row["state_id"] in wanted and row["consensus"]
    }
