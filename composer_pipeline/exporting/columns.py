"""The dataset as rows of a kind of training, and the writing of them, one row at a time.

========= ========================================================================
format    a row
========= ========================================================================
dpo       a pair: ``prompt``, ``chosen``, ``rejected``, ``tools``
kto       one side of a pair: ``prompt``, ``completion``, ``label``, ``tools``
sft       a state and the teachers' consensus (DAgger): ``prompt``, ``completion``, ``tools``
kto_git   an edit of the agent and whether people kept it: as kto, with ``kept``, ``survival``
sdpo      a state, the agent's action and what was wrong: ``prompt``, ``completion``,
          ``privileged_context``, ``tools``
sharegpt  a pair as a conversation, for LLaMA-Factory: JSON lines
========= ========================================================================

Messages are ``list<arrow.json>``, as in the lake; ``datasets`` reads them and TRL trains on them.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.exporting.student_samples import read_samples, sampled_pairs
from composer_pipeline.files import Replacement, replace, writing
from composer_pipeline.lake.parquet import TableFile
from composer_pipeline.lake.schema import DATASETS, JSON_LIST
from composer_pipeline.lake.store import Lake, check_outside, remember_exports
from composer_pipeline.preferences.contamination import is_dropped
from composer_pipeline.preferences.hints import SOURCE, consensus_hint
from composer_pipeline.preferences.pairs import OWN_SOURCES, RECORDED
from composer_pipeline.preferences.rules import PreferenceRules, Rules, rules_of
from composer_pipeline.preferences.vote_rows import CONFIRMED
from composer_pipeline.redaction.scanning import Findings, Scanner
from composer_pipeline.reports import Progress, Report

Row = dict[str, Any]

_S, _F, _B, _I = pa.string(), pa.float64(), pa.bool_(), pa.int32()
_STATE = {"state_id": _S, "session_id": _S, "split": _S, "simulated": _B}
_OF_PAIR = {**_STATE, "pair_id": _S, "tier": _S, "weight": _F, "student": _S}
COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "dpo": dict.fromkeys(("prompt", "chosen", "rejected", "tools"), JSON_LIST) | _OF_PAIR,
    "kto": dict.fromkeys(("prompt", "completion", "tools"), JSON_LIST) | {"label": _B} | _OF_PAIR,
    "kto_git": dict.fromkeys(("prompt", "completion", "tools"), JSON_LIST)
    | {"label": _B, "kept": _F, "survival": _F}
    | _STATE,
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


def _rows(
    lake: Lake,
    form: str,
    rules: PreferenceRules,
    left: Counter[str],
    *,
    sampled: Iterable[Row] | None,
    full_arguments: bool,
) -> Iterator[Row]:
    """Yield the rows of a format; count in ``left`` what is left out, by reason."""
    if form in OF_PAIRS:
        for pair in lake.iter_rows("dataset_pairs") if sampled is None else sampled:
            weight = 1.0 if pair["weight"] is None else pair["weight"]
            row = {**pair, "weight": weight, "student": pair["student"] or RECORDED}
            if form == "kto":
                yield {**row, "completion": row["chosen"], "label": True}
                yield {**row, "completion": row["rejected"], "label": False}
            else:
                yield row
    elif form == "kto_git":
        for row in lake.iter_rows("dataset_kto"):
            yield {**row, "completion": row["action"], "simulated": False}
    elif form == "sft":
        yield from _sft(lake, rules, left)
    else:
        yield from _sdpo(lake, left, full_arguments=full_arguments)


def _sft(lake: Lake, rules: PreferenceRules, left: Counter[str]) -> Iterator[Row]:
    """Yield the teachers' consensus at every state that has one, the agent's included."""
    columns = ["state_id", "reason", "contamination"]
    votes = {row["state_id"]: row for row in lake.iter_rows("votes", columns=columns)}
    for row in lake.iter_rows("dataset_groups"):
        vote = votes.get(row["state_id"], {})
        if is_dropped(vote.get("contamination") or (), rules.contamination):
            left["contamination"] += 1
            continue
        agrees = vote.get("reason") in CONFIRMED
        yield {**row, "completion": row["consensus"], "agrees_with_student": agrees}


def _sdpo(lake: Lake, left: Counter[str], *, full_arguments: bool) -> Iterator[Row]:
    """Yield hints of the trace, then of the teachers' consensus, each with its leakage."""
    columns = ["state_id", "leakage"]
    leakage = {row["state_id"]: row["leakage"] for row in lake.iter_rows("hints", columns=columns)}
    for row in lake.iter_rows("dataset_hints"):
        yield {
            **row,
            "completion": row["action"],
            "privileged_context": row["hint"],
            "hint_source": row["source"],
            "leakage": leakage.get(row["state_id"]),
            "simulated": False,
        }
    columns = ["session_id", "project"]
    project = {r["session_id"]: r["project"] for r in lake.iter_rows("sessions", columns=columns)}
    for row in lake.iter_rows("dataset_pairs"):
        if row.get("source") in OWN_SOURCES:  # nobody was asked
            continue
        cwd = project.get(row["session_id"]) or ""
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


Turn = dict[str, str]

#: Between two results, as in LLaMA-Factory's own reader of OpenAI's messages.
_BETWEEN = "\n</tool_response>\n<tool_response>\n"


def conversation(row: Mapping[str, Any]) -> tuple[Row, str]:
    """Return a pair in ShareGPT's columns, or the reason why it has no such form."""
    system = "\n\n".join(m["content"] for m in row["prompt"] if m["role"] == "system")
    turns = _turns([m for m in row["prompt"] if m["role"] != "system"])
    sides = [turn["from"] in ("human", "observation") for turn in turns]
    if not turns or sides != [n % 2 == 0 for n in range(len(turns))] or not sides[-1]:
        return {}, "turns_do_not_alternate"
    (chosen,), (rejected,) = _turns(row["chosen"]), _turns(row["rejected"])
    return {
        "conversations": turns,
        "chosen": chosen,
        "rejected": rejected,
        "system": system,
        "tools": _json([tool["function"] for tool in row["tools"]]),
        **{name: row[name] for name in ("split", "pair_id", "session_id")},
    }, ""


def _turns(messages: Sequence[Mapping[str, Any]]) -> list[Turn]:
    turns: list[Turn] = []
    after_result = False
    for message in messages:
        text, last = message["content"], turns[-1] if turns else None
        role = message["role"]
        if role == "tool" and last and last["from"] == "observation":
            last["value"] += _BETWEEN + text
        elif role == "user" and after_result and last:
            last["value"] += f"\n\n{text}"
        elif calls := message.get("tool_calls"):
            plain = [{name: c["function"][name] for name in ("name", "arguments")} for c in calls]
            turns.append({"from": "function_call", "value": _json(plain)})
        else:
            name = {"tool": "observation", "user": "human", "assistant": "gpt"}[role]
            turns.append({"from": name, "value": text})
        after_result = role == "tool"
    return turns


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


SPLITS = ("train", "validation")

#: A row to the row that is written, and an empty text or the reason why it is left out.
Shorten = Callable[[Row], tuple[Row, str]]


@dataclass(frozen=True)
class ExportReport(Report):
    """Rows by file that was written, and what was left out, by reason."""

    format: str
    files: dict[str, int]
    rows: int
    left_out: dict[str, int] = field(default_factory=dict)


class _File(Protocol):
    rows: int

    def add(self, row: Mapping[str, Any]) -> None: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


def export(
    lake: Lake,
    form: str,
    out: str | Path,
    *,
    samples: str | Path | None = None,
    rules: Rules = None,
    full_arguments: bool = False,
    shorten: Shorten | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write the dataset in one format; a few rows are held at a time.

    Args:
        lake: reads the tables ``dataset_*``, ``votes`` and ``hints``.
        form: one of :data:`FORMATS`.
        out: a file that ends in ``.parquet`` (sharegpt: ``.jsonl``) gets every row, with its
            ``split``; any other path is a folder that gets one file for each split with rows.
        samples: a file of a model's own actions (``student_samples.read_samples``), which take
            the place of the agent's as rejected side; only for the formats of pairs.
        rules: the preference recipe, for the contamination of states without a pair.
        full_arguments: allow hints that contain every argument of the teachers' action.
        shorten: called with each row; returns it as it shall be written, or the reason why it
            is left out.
        progress: called after each file.

    Raises:
        InputError: an unknown format, no dataset, no row, bad samples, or a path that cannot
            be written.
        ComposerError: a row holds something private; nothing is written.
    """
    if form not in FORMATS:
        raise InputError(f"--format {form!r} is not one of {', '.join(FORMATS)}, atif, pi")
    if samples is not None and form not in OF_PAIRS:
        raise InputError(f"--samples replaces the rejected side, which format {form} does not have")
    check_outside(lake, Path(out), "--out")
    if not lake.partitions("dataset_pairs"):
        raise InputError(f"lake {lake.url} has no dataset; run dataset first")
    left: Counter[str] = Counter()
    rules = rules_of(rules)
    sampled = None if samples is None else _sampled(lake, Path(samples), rules, left)
    rows = _rows(lake, form, rules, left, sampled=sampled, full_arguments=full_arguments)
    files = _write(lake, form, Path(out), _kept(rows, form, shorten, left), left, progress)
    return ExportReport(form, files, sum(files.values()), dict(sorted(left.items())))


def _kept(
    rows: Iterator[Row], form: str, shorten: Shorten | None, left: Counter[str]
) -> Iterator[Row]:
    for row in rows:
        kept, reason = shorten(row) if shorten else (row, "")
        if not reason and form == "sharegpt":
            kept, reason = conversation(kept)
        if reason:
            left[reason] += 1
        else:
            yield kept


def _write(
    lake: Lake,
    form: str,
    out: Path,
    rows: Iterator[Row],
    left: Counter[str],
    progress: Progress | None,
) -> dict[str, int]:
    """Write rows to their files, all of them or none; return the number of rows of each."""
    ending = ".jsonl" if form == "sharegpt" else ".parquet"
    whole = out.suffix == ending
    paths = {split: out if whole else out / f"{split}{ending}" for split in SPLITS}
    open_files: dict[Path, _File] = {}
    findings = Findings(Scanner(lake))
    with ExitStack() as stack:
        for number, row in enumerate(rows):
            path = paths[row["split"]]
            if path not in open_files:
                what = f"--out {path}"
                open_files[path] = file = (
                    _JsonLinesFile(path, what) if form == "sharegpt"
                    else TableFile(path, COLUMNS[form], what)
                )  # fmt: skip
                stack.callback(file.discard)
            findings.row(row, f"--out {path}", number)
            open_files[path].add(row)
        findings.refuse()
        if not open_files:
            why = ", ".join(f"{n} {reason}" for reason, n in sorted(left.items()))
            raise InputError("nothing to export" + (f": {why}" if why else ""))
        remember_exports(lake, open_files, "--out")
        distinct = list(dict.fromkeys(paths.values()))
        for done, path in enumerate(distinct, start=1):
            if path in open_files:
                open_files[path].commit()
            else:
                with writing(f"--out {path}"):
                    path.unlink(missing_ok=True)  # no stale split stays beside a new one
            if progress:
                progress("export", done, len(distinct))
    counts = {str(path): open_files[path].rows for path in paths.values() if path in open_files}
    if form == "sharegpt" and not whole:
        same = ("chosen", "rejected", "system", "tools")
        columns = {**{name: name for name in same}, "messages": "conversations"}
        form_of = {"formatting": "sharegpt", "ranking": True, "columns": columns}
        info = {
            f"pairs_{Path(file).stem}": {"file_name": Path(file).name, **form_of} for file in counts
        }
        replace(out / "dataset_info.json", json.dumps(info, indent=2) + "\n", f"--out {out}")
    return counts


class _JsonLinesFile:
    """A file of JSON lines that appears once it is whole."""

    def __init__(self, path: Path, what: str) -> None:
        self.rows, self._what = 0, what
        with writing(what):
            self._new = Replacement(path)

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows += 1
        with writing(self._what):
            self._new.stream.write(json.dumps(row).encode() + b"\n")

    def commit(self) -> None:
        with writing(self._what):
            self._new.commit()

    def discard(self) -> None:
        with writing(self._what):
            self._new.discard()


def _sampled(lake: Lake, path: Path, rules: PreferenceRules, left: Counter[str]) -> list[Row]:
    """Return sampled pairs with the splits of their sessions; others are left out."""
    rows, reasons = sampled_pairs(lake, read_samples(path), rules)
    left.update(reasons)
    split_of = {
        row["session_id"]: row["split"]
        for table in DATASETS
        for row in lake.iter_rows(table, columns=["session_id"])
    }
    placed = [row for row in rows if row["session_id"] in split_of]
    if others := len(rows) - len(placed):
        left["session_not_in_dataset"] += others
    return [{**row, "split": split_of[row["session_id"]]} for row in placed]
