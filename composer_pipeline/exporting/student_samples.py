"""Pairs against a model's own actions, read from a file of samples."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.tools import Toolsets
from composer_pipeline.errors import InputError
from composer_pipeline.files import json_objects
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.eligibility import read_replies, reply_costs, usable_replies
from composer_pipeline.preferences.pairs import RECORDED, pair_row, prompt_of
from composer_pipeline.preferences.rules import PreferenceRules
from composer_pipeline.preferences.vote import vote
from composer_pipeline.preferences.vote_rows import reason_of
from composer_pipeline.redaction.redact import redact_value
from composer_pipeline.states.load import load_states


class Sample(msgspec.Struct, frozen=True):
    """The action that a model sampled at a state."""

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
    """Read sampled actions from a Parquet or JSONL file, redacted: a model repeats what it saw.

    A row is ``{state_id, student, action}``; ``action`` is ``{text, tool_calls: [{name,
    arguments}]}``, in Parquet as JSON text. Several samples of a state are several rows.
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
    """Yield (row number from 1, its fields)."""
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            yield from enumerate(table.to_pylist(), start=1)
            return
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, pa.ArrowInvalid) as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise InputError(f"samples {path} cannot be read: {reason}") from error
    yield from json_objects(path, text)


def sampled_pairs(
    lake: Lake, samples: list[Sample], rules: PreferenceRules
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return pairs whose rejected side is a sample, and the samples without one, by reason.

    A consensus under other ``terms`` than the recipe accepts makes no pair.
    """
    by_state: dict[str, list[Sample]] = {}
    for sample in samples:
        by_state.setdefault(sample.state_id, []).append(sample)
    known = dict(lake.query("SELECT state_id, day FROM states"))
    if unknown := sorted(set(by_state) - set(known)):
        raise InputError(f"lake {lake.url} has no state {unknown[0]!r}, which a sample names")
    accepted = rules.terms.accepted
    rows: list[dict[str, Any]] = []
    left: Counter[str] = Counter()
    for day in sorted({known[state_id] for state_id in by_state}):
        bought = read_replies(lake, day)
        replies, cost = usable_replies(bought), reply_costs(bought)
        states = list(load_states(lake, days=[day]))
        tools = Toolsets(lake, states)
        for state in states:
            for sample in by_state.get(state.state_id, ()):
                sampled = msgspec.structs.replace(
                    state,
                    action=sample.action,
                    followed_by_error=None,
                    followed_by_correction=None,
                    reverted=None,
                    tests_passed=None,
                    verdict=None,
                    caused_error=None,
                )
                usable = replies.get(state.state_id, [])
                outcome = vote(sampled, usable)
                if not outcome.is_pair:
                    left[reason_of(outcome, len(usable))] += 1
                    continue
                if any((r.training_terms or "unknown") not in accepted for r in outcome.members):
                    left["terms"] += 1
                    continue
                row = pair_row(sampled, outcome, tools.of(state), cost.get(state.state_id, 0))
                row |= prompt_of(sampled, tools.of(state))
                row |= {
                    "pair_id": _id(row, sample),
                    "student": sample.student,
                    "rejected_model": sample.student,
                    "error_turn": False,
                    "day": day,
                }
                rows.append(row)
    # Two equal samples of a state give one pair.
    distinct = {row["pair_id"]: row for row in rows}
    if repeats := len(rows) - len(distinct):
        left["repeated_sample"] = repeats
    return sorted(distinct.values(), key=lambda row: row["pair_id"]), dict(sorted(left.items()))


def _id(row: Mapping[str, Any], sample: Sample) -> str:
    rejected = json.dumps(row["rejected"], ensure_ascii=False)
    text = f"{row['pair_id']}\n{sample.student}\n{rejected}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
