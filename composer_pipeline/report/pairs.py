"""Twenty pairs as a person reads them: the task, what the agent saw last, both sides, what differs.

Belongs here: which pairs, and how they stand. Does not belong here: the page.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

import pyarrow.parquet as pq

from composer_pipeline.markdown import count
from composer_pipeline.previews import cut
from composer_pipeline.publishing import Source
from composer_pipeline.report.html import Html, el
from composer_pipeline.report.sections import section

#: Pairs that are shown.
SHOWN = 20
_CHARS, _LINES = 1600, 40
_SEEN_CHARS, _SEEN_LINES = 1200, 24
#: Below this likeness of both sides, marks would be noise.
_ALIKE = 0.35

Row = dict[str, Any]
_KEYS = ["pair_id", "tier", "outcome", "tool_chosen", "tool_rejected"]
_SAID = ["pair_id", "session_id", "task", "chosen_text", "rejected_text", "prompt",
         "chosen_models", "rejected_model", "tier", "turn", "n_agree", "n_families", "outcome",
         "simulated"]  # fmt: skip
_OUTCOMES = {
    "student_bad": "the trace shows that the agent's action failed, was corrected or undone",
    "student_ok": "the tests that the agent's action ran passed",
    "unknown": "the trace says nothing of the agent's action",
}


def pairs(files: Sequence[Source]) -> Html:
    """Return the section: pairs of every tool and tier in turn, the same ones for equal files."""
    shown = [_pair(number, row) for number, row in enumerate(_chosen(files), 1)]
    return section(
        "pairs",
        f"{count(len(shown))} pairs",
        el("p", "Drawn so that each of the agent's tools has its turn. Coloured is what the other"
           " side lacks.", _class="soft"),
        shown,
    )  # fmt: skip


def _chosen(files: Iterable[Source]) -> list[Row]:
    """Read the pairs that are shown: first keys of all of them, then whole rows of a few."""
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    sources = [file for file in files if file.config == "pairs"]
    for file in sources:
        for batch in pq.ParquetFile(file.local).iter_batches(8192, columns=_KEYS):
            for row in batch.to_pylist():
                kind = (row["tool_rejected"] or "", row["tool_chosen"] or "")
                draw = hashlib.blake2b(row["pair_id"].encode(), digest_size=8).hexdigest()
                # Of each kind those that teach most come first.
                order = f"{row['outcome'] != 'student_bad':d}{row['tier'] != 'gold':d}{draw}"
                groups[kind].append((order, row["pair_id"]))
    queues = [sorted(group) for _, group in sorted(groups.items())]
    queues.sort(key=lambda queue: (-len(queue), queue))
    drawn = [queue[turn][1] for turn in range(SHOWN) for queue in queues if turn < len(queue)]
    wanted = {name: at for at, name in enumerate(drawn[:SHOWN])}
    return sorted(_rows(sources, wanted), key=lambda row: wanted[row["pair_id"]])


def _rows(sources: Iterable[Source], wanted: dict[str, int]) -> Iterator[Row]:
    """Yield whole rows of some pairs, reading only the row groups that hold one."""
    for file in sources:
        reader = pq.ParquetFile(file.local)
        for group in range(reader.num_row_groups):
            names = reader.read_row_group(group, ["pair_id"])["pair_id"].to_pylist()
            picks = [at for at, name in enumerate(names) if name in wanted]
            if picks:
                yield from reader.read_row_group(group, _SAID).take(picks).to_pylist()


def _pair(number: int, row: Row) -> Html:
    rejected, chosen = (_cut(row[f"{side}_text"]) for side in ("rejected", "chosen"))
    left, right = _marked(rejected, chosen)
    models = ", ".join(dict.fromkeys(row["chosen_models"] or [])) or "not recorded"
    seen = _seen(row["prompt"])
    about = (
        f"Turn {row['turn']}; {row['tier']}: {row['n_agree']} of {row['n_families']} families"
        f" agree; {_OUTCOMES.get(row['outcome'] or 'unknown', row['outcome'])}"
        + ("; simulated teachers" if row["simulated"] else "")
    )
    return el(
        "article",
        el("p", f"{number}. ", cut(row["task"] or "(no task in words)", 320, 4),
           _class="task"),
        el("p", about, _class="about"),
        el("details", el("summary", "What the agent saw last"), el("pre", seen)) if seen else "",
        el("div",
           _side("no", f"rejected: the agent ({row['rejected_model'] or 'not recorded'})", left),
           _side("yes", f"chosen: {models}", right), _class="sides"),
        _class="card pair", id=f"pair-{number}", data_pair=row["pair_id"],
        data_session=row["session_id"],
    )  # fmt: skip


def _side(kind: str, title: str, body: Html) -> Html:
    return el("div", el("h4", title), el("pre", body), _class=f"side {kind}")


def _seen(prompt: Sequence[Any] | None) -> str:
    """Return the words of a prompt's last message."""
    if not prompt:
        return ""
    message = json.loads(prompt[-1]) if isinstance(prompt[-1], str) else prompt[-1]
    return cut(str(message.get("content") or ""), _SEEN_CHARS, _SEEN_LINES)


def _cut(text: str | None) -> str:
    return cut(text or "", _CHARS, _LINES)


def _marked(left: str, right: str) -> tuple[Html, Html]:
    """Return both texts with the words that the other lacks marked, where they are alike at all."""
    a, b = (re.findall(r"\w+|\s+|[^\w\s]", text) for text in (left, right))
    found = SequenceMatcher(None, a, b, autojunk=False)
    if left == right or found.ratio() < _ALIKE:
        return el("span", left), el("span", right)
    one: list[str | Html] = []
    other: list[str | Html] = []
    for op, start, end, at, to in found.get_opcodes():
        for parts, words in ((one, "".join(a[start:end])), (other, "".join(b[at:to]))):
            if words:
                parts.append(words if op == "equal" or not words.strip() else el("mark", words))
    return el("span", one), el("span", other)
