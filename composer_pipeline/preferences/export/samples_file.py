"""A model's sampled actions, read from a file.

Belongs here: the file's form and what is wrong with it. Does not belong here: pairs against
the samples (``preferences.export.student_samples``).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.errors import InputError
from composer_pipeline.json_values import json_objects
from composer_pipeline.preferences.pairs import RECORDED
from composer_pipeline.redaction import redact_value


class Sample(msgspec.Struct, frozen=True):
    """What a model did at a state."""

    state_id: str
    student: str
    action: Action


class _CallIn(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any]
    id: str = ""


class _ActionIn(msgspec.Struct, forbid_unknown_fields=True):
    text: str | None = ""
    tool_calls: list[_CallIn] | None = None


class _SampleIn(msgspec.Struct, forbid_unknown_fields=True):
    state_id: str
    student: str
    action: _ActionIn


def read_samples(path: Path) -> list[Sample]:
    """Read sampled actions from a Parquet or JSONL file.

    A row is ``{state_id, student, action}``; ``action`` is ``{text, tool_calls: [{name,
    arguments}]}``, in Parquet as JSON text. Several samples of a state are several rows. What
    is private in them is redacted: a model repeats what it saw, and the file is not ours.

    Raises:
        InputError: the file or a row cannot be read; the message names file, row and field.
    """
    samples = []
    for number, row in _rows(path):
        where = f"{path}:{number}"
        if isinstance(row.get("action"), str):
            try:
                row = {**row, "action": json.loads(row["action"])}
            except json.JSONDecodeError as error:
                raise InputError(f"{where}: field 'action' is not JSON: {error.msg}") from error
        try:
            read = msgspec.convert(redact_value(row)[0], _SampleIn)
        except msgspec.ValidationError as error:
            raise InputError(f"{where}: not a sampled action: {error}") from error
        if not read.student or read.student == RECORDED:
            raise InputError(f"{where}: field 'student' must name the model that was sampled")
        calls = read.action.tool_calls or []
        action = Action(
            read.action.text or "", tuple(ToolCall(c.name, c.arguments, c.id) for c in calls)
        )
        if not action.text.strip() and not calls:
            raise InputError(f"{where}: field 'action' has neither text nor a tool call")
        samples.append(Sample(read.state_id, read.student, action))
    if not samples:
        raise InputError(f"{path} holds no sampled action")
    return samples


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row counted from 1, its fields)."""
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            yield from enumerate(table.to_pylist(), start=1)
            return
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        raise InputError(f"samples {path} cannot be read: {_first_line(error)}") from error
    yield from json_objects(path, text)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__
