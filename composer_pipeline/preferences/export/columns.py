"""The columns of each format, and the rows of the dataset in them, one at a time.

Belongs here: which rows a format has and their columns. Does not belong here: files
(``preferences.export.write``) and ShareGPT's words (``preferences.export.sharegpt``).

========= ========================================================================
format    a row
========= ========================================================================
dpo       a pair: ``prompt``, ``chosen``, ``rejected``, ``tools``
kto       one side of a pair: ``prompt``, ``completion``, ``label``, ``tools``
sft       a state and the teachers' consensus (DAgger): ``prompt``, ``completion``, ``tools``
sdpo      a state, the agent's action and what was wrong: ``prompt``, ``completion``,
          ``privileged_context``, ``tools``
sharegpt  a pair as a conversation, for LLaMA-Factory: JSON lines
========= ========================================================================

Messages are ``list<arrow.json>``, as in the lake; ``datasets`` reads them and TRL trains on
them without glue. Minority answers of teachers are in no format.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from composer_pipeline.lake import JSON_LIST, Lake
from composer_pipeline.preferences.agreement import CONFIRMED
from composer_pipeline.preferences.hints import SOURCE, consensus_hint
from composer_pipeline.preferences.pairs import RECORDED, is_strong
from composer_pipeline.preferences.rules import PreferenceRules

Row = dict[str, Any]

_S, _F, _B, _I = pa.string(), pa.float64(), pa.bool_(), pa.int32()
_STATE = {"state_id": _S, "session_id": _S, "split": _S, "simulated": _B}
_OF_PAIR = {**_STATE, "pair_id": _S, "tier": _S, "weight": _F, "student": _S}
COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "dpo": dict.fromkeys(("prompt", "chosen", "rejected", "tools"), JSON_LIST) | _OF_PAIR,
    "kto": dict.fromkeys(("prompt", "completion", "tools"), JSON_LIST) | {"label": _B} | _OF_PAIR,
    "sft": dict.fromkeys(("prompt", "completion", "tools"), JSON_LIST)
    | _STATE
    | {"agrees_with_student": _B},
    "sdpo": dict.fromkeys(("prompt", "completion", "tools"), JSON_LIST)
    | {"privileged_context": _S, "hint_source": _S, "leakage": _F, "span_call": _I}
    | _STATE,
}
#: Formats whose rows are pairs, and may be a model's own samples.
OF_PAIRS = ("dpo", "kto", "sharegpt")
FORMATS = (*COLUMNS, "sharegpt")


def rows_of(
    lake: Lake,
    form: str,
    rules: PreferenceRules,
    left: Counter[str],
    *,
    sampled: Iterable[Row] | None,
    full_arguments: bool,
) -> Iterator[Row]:
    """Yield the rows of a format; count what is left out, by reason.

    Args:
        lake: its ``dataset_*`` tables are read a row group at a time.
        form: one of :data:`FORMATS`.
        rules: for the contamination of states without a pair.
        left: gets the counts.
        sampled: pairs in place of the dataset's.
        full_arguments: allow hints that hold every argument of the teachers' action.
    """
    if form in OF_PAIRS:
        for row in _pairs(lake) if sampled is None else sampled:
            yield from _sides(row) if form == "kto" else (row,)
    elif form == "sft":
        yield from _sft(lake, rules, left)
    else:
        yield from _sdpo(lake, left, full_arguments=full_arguments)


def _pairs(lake: Lake) -> Iterator[Row]:
    for row in lake.iter_rows("dataset_pairs"):
        weight = 1.0 if row["weight"] is None else row["weight"]
        yield {**row, "weight": weight, "student": row["student"] or RECORDED}


def _sides(row: Mapping[str, Any]) -> Iterable[Row]:
    for side, label in (("chosen", True), ("rejected", False)):
        yield {**row, "completion": row[side], "label": label}


def _sft(lake: Lake, rules: PreferenceRules, left: Counter[str]) -> Iterator[Row]:
    """Yield the teachers' consensus at every state that has one, the agent's included."""
    columns = ["state_id", "reason", "contamination"]
    votes = {row["state_id"]: row for row in lake.iter_rows("votes", columns=columns)}
    for row in lake.iter_rows("dataset_groups"):
        ballot = votes.get(row["state_id"], {})
        found = ballot.get("contamination") or []
        action = rules.contamination.evidence if is_strong(found) else rules.contamination.by_name
        if found and action == "drop":
            left["contamination"] += 1
            continue
        agrees = ballot.get("reason") in CONFIRMED
        yield {**row, "completion": row["consensus"], "agrees_with_student": agrees}


def _sdpo(lake: Lake, left: Counter[str], *, full_arguments: bool) -> Iterator[Row]:
    """Yield hints of the trace, then of the teachers' consensus, each with its leakage."""
    columns = ["state_id", "leakage"]
    told = {row["state_id"]: row["leakage"] for row in lake.iter_rows("hints", columns=columns)}
    for row in lake.iter_rows("dataset_hints"):
        yield {
            **row,
            "completion": row["action"],
            "privileged_context": row["hint"],
            "hint_source": row["source"],
            "leakage": told.get(row["state_id"]),
            "simulated": False,
        }
    columns = ["session_id", "project"]
    place = {r["session_id"]: r["project"] for r in lake.iter_rows("sessions", columns=columns)}
    for row in lake.iter_rows("dataset_pairs"):
        cwd = place.get(row["session_id"]) or ""
        hint = consensus_hint(row, cwd=cwd, full_arguments=full_arguments)
        if hint is None:
            left["consensus_is_text"] += 1
            continue
        yield {
            **row,
            "completion": row["rejected"],
            "privileged_context": hint.text,
            "hint_source": SOURCE,
            "leakage": hint.leakage,
            "span_call": -1,
        }
