"""Building the training rows: from the dataset tables to a folder of token windows.

Rows are made in parts of a table, written to ``parts/`` and finally joined, so that memory does not
grow with their number and a killed build continues with the missing part.
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
    TrainingData,
    feeds,
    writing_rows,
)
from composer_pipeline.training.window_text import Dropped, Message, action_message, names_lost_file
from composer_pipeline.training.windows import Windows

#: GRPO drops these by design, so they do not count as loss.
ZERO_VARIANCE = "zero-variance group"
#: The action names a file that the prompt showed and the window does not.
LOST_FILE = "lost file"

_Row = Mapping[str, Any]


class Prompt:
    """A row's window, rendered on first use and shared by all channels."""

    def __init__(self, windows: Windows, row: _Row) -> None:
        self._windows, self._row = windows, row

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
        """Return the ids of an action after this prompt."""
        return self._windows.response_ids(*self._cut, action)

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
    prompt: Prompt,
    row: _Row,
    grader: Grader,
    *,
    recorded: bool = True,
    failed: bool | None = None,
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
