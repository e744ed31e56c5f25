"""Evaluation states: states with a known right action, frozen in a Parquet file.

The file contains its content hash and is rejected if its rows do not match it, so that two results
are known to be about the same states.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.actions import Action
from composer_pipeline.chat.convert import action_message, parse_reply_message, prompt_hash
from composer_pipeline.errors import InputError
from composer_pipeline.files import replace
from composer_pipeline.lake.parquet import encode_parquet
from composer_pipeline.training.rows import Prompt
from composer_pipeline.training.window_text import Dropped
from composer_pipeline.training.windows import Windows

#: ``hard_covered``: the agent was wrong, and the right action is the teachers' consensus;
#: ``hard_uncovered``: wrong, with the right action from later in the trace; ``easy``: the agent was
#: right and the teachers agree; ``recovery``: right after an error, where the agent was right.
Kind = Literal["hard_covered", "hard_uncovered", "easy", "recovery"]
KINDS: tuple[Kind, ...] = get_args(Kind)

_HASH = b"content_hash"
_COLUMNS = (
    "state_id", "session_id", "kind", "messages", "tools", "right", "wrong", "hint", "cwd",
)  # fmt: skip
_AS_JSON = ("messages", "tools", "right", "wrong")
_SCHEMA = pa.schema([(name, pa.string()) for name in _COLUMNS])
#: Names that an error lists.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class EvaluationState:
    """One state and the action that a model should take there."""

    state_id: str
    #: Intervals are over sessions.
    session_id: str
    kind: Kind
    #: The whole chat prompt before the action, and the tools offered, as in the dataset tables.
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    right: Action
    #: The agent's action, where it differs from ``right``.
    wrong: Action | None = None
    #: Feedback of the error turn, if any.
    hint: str | None = None
    #: Working directory, by which paths are compared; may be empty.
    cwd: str = ""


def write_states(path: str | Path, states: Iterable[EvaluationState]) -> str:
    """Write a set as Parquet atomically, ordered by state id, and return its content hash.

    The same states give the same bytes.
    """
    rows = _rows(_checked(states))
    digest = _digest(rows)
    table = pa.Table.from_pylist(rows, schema=_SCHEMA.with_metadata({_HASH: digest.encode()}))
    replace(Path(path), encode_parquet(table))
    return digest


def read_states(path: str | Path) -> list[EvaluationState]:
    """Read a set, ordered by state id."""
    try:
        table = pq.read_table(Path(path))
    except (OSError, pa.ArrowInvalid) as error:
        reason = str(error).partition("\n")[0][:200]
        raise InputError(f"evaluation set {path} cannot be read: {reason}") from error
    written = (table.schema.metadata or {}).get(_HASH, b"").decode()
    if not written or table.column_names != list(_COLUMNS):
        raise InputError(f"{path} is not an evaluation set of this version")
    rows = table.to_pylist()
    if _digest(rows) != written:
        raise InputError(f"evaluation set {path} was changed: its rows do not give its hash")
    return [_state(row) for row in rows]


def content_hash(states: Iterable[EvaluationState]) -> str:
    """Return the hash of a set's content, independent of the order of its states."""
    return _digest(_rows(_checked(states)))


def check_disjoint(
    states: Iterable[EvaluationState],
    training_sessions: Collection[str],
    training_prompts: Collection[str],
) -> None:
    """Raise InputError if a set shares a session or a prompt with training.

    ``training_prompts`` are ``chat.convert.prompt_hash`` of the prompts.
    """
    states = list(states)
    sessions = sorted({state.session_id for state in states} & set(training_sessions))
    if sessions:
        raise InputError(
            f"the evaluation set overlaps training: {len(sessions)} of its sessions were trained"
            f" on ({_named(sessions)})"
        )
    prompts = set(training_prompts)
    same = [state.state_id for state in states if prompt_hash(state.messages) in prompts]
    if same:
        raise InputError(
            f"the evaluation set overlaps training: the prompts of {len(same)} of its states were"
            f" trained on (states {_named(same)})"
        )


def _checked(states: Iterable[EvaluationState]) -> list[EvaluationState]:
    ordered = sorted(states, key=lambda state: state.state_id)
    if not ordered:
        raise InputError("an evaluation set needs at least one state")
    for state in ordered:
        for field in ("state_id", "session_id", "messages"):
            if not getattr(state, field):
                raise InputError(f"evaluation state {state.state_id!r}: {field} is empty")
        if state.kind not in KINDS:
            raise InputError(f"evaluation state {state.state_id!r}: kind {state.kind!r} is unknown")
        if state.wrong == state.right:
            raise InputError(f"evaluation state {state.state_id!r}: wrong equals right")
    twice = [name for name, n in Counter(state.state_id for state in ordered).items() if n > 1]
    if twice:
        raise InputError(f"an evaluation set has duplicate states: {_named(twice)}")
    return ordered


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", …" if len(names) > _NAMED else "")


def _rows(states: Iterable[EvaluationState]) -> list[dict[str, Any]]:
    rows = []
    for state in states:
        row = {name: getattr(state, name) for name in _COLUMNS}
        # json.dumps keeps the order of keys, which templates render, and accepts lone surrogates.
        row |= {name: json.dumps(msgspec.to_builtins(row[name])) for name in _AS_JSON}
        rows.append(row | {"wrong": row["wrong"] if state.wrong is not None else None})
    return rows


def _state(row: dict[str, Any]) -> EvaluationState:
    parsed = {name: json.loads(row[name]) for name in _AS_JSON if row[name] is not None}
    return msgspec.convert({**row, **parsed}, EvaluationState)


def _digest(rows: Iterable[dict[str, Any]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for row in rows:
        digest.update(json.dumps([row[name] for name in _COLUMNS]).encode() + b"\n")
    return digest.hexdigest()


class Row(msgspec.Struct, frozen=True):
    """A state as a model sees it."""

    state: EvaluationState
    #: The right action in the template's form, which may take only one call.
    right: Action
    prompt_ids: list[int]
    #: Answers include the end token.
    right_ids: list[int]
    wrong_ids: list[int] = []
    #: The prompt that ends with the hint.
    hinted_ids: list[int] = []

    @property
    def longest(self) -> int:
        """Tokens of the longest recorded answer."""
        return max(len(self.right_ids), len(self.wrong_ids))


def row_of(windows: Windows, state: EvaluationState) -> Row:
    """Return a state's row; raise Dropped where the prompt or the right action does not fit."""
    prompt = Prompt(windows, {"prompt": state.messages, "tools": state.tools})
    message = prompt.action([action_message(state.right)])
    right_ids = prompt.response(message)
    try:
        right = parse_reply_message(message)
    except ValueError as error:
        raise Dropped("the right action is empty") from error
    wrong_ids = _wrong_ids(prompt, state.wrong) if state.wrong is not None else []
    return Row(
        state,
        right,
        prompt.ids,
        right_ids,
        wrong_ids if wrong_ids != right_ids else [],
        prompt.hinted(state.hint) if state.hint and state.hint.strip() else [],
    )


def rows_of(
    windows: Windows, states: Iterable[EvaluationState]
) -> tuple[list[Row], dict[str, str]]:
    """Return the rows that fit, and the reason for each state id that does not."""
    rows: list[Row] = []
    dropped: dict[str, str] = {}
    for state in states:
        try:
            rows.append(row_of(windows, state))
        except Dropped as reason:
            dropped[state.state_id] = str(reason)
    return rows, dropped


def batches(
    rows: Sequence[Row], *, tokens: int, logits: int, vocabulary: int, answer: int
) -> list[list[Row]]:
    """Pack rows of similar length into batches; a single row may exceed the limits.

    ``tokens`` limits the positions of a batch, including padding and the longest possible answer
    (``answer`` tokens); ``logits`` limits the log-probabilities of its recorded answers.
    """
    out: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (-_width(row, answer), row.state.state_id)):
        if out:
            batch = [*out[-1], row]
            width = max(_width(each, answer) for each in batch)
            longest = max(each.longest for each in batch)
            if len(batch) * width <= tokens and len(batch) * longest * vocabulary <= logits:
                out[-1] = batch
                continue
        out.append([row])
    return out


def _width(row: Row, answer: int) -> int:
    return max(len(row.prompt_ids), len(row.hinted_ids)) + max(row.longest, answer)


def _wrong_ids(prompt: Prompt, wrong: Action) -> list[int]:
    try:
        return prompt.response(prompt.action([action_message(wrong)], shown=False))
    except Dropped:
        return []  # the state is measured without a wrong action
