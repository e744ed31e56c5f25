"""What redaction would replace in a file, and why: the rule and the place of each.

Belongs here: the report behind ``composer-pipeline redact``. Does not belong here: printing it.
Of what is private only the first letters and the length are told.
"""

import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from composer_pipeline.redaction.edits import Ledger, Trace
from composer_pipeline.redaction.engine import Rules, judged
from composer_pipeline.redaction.finders.structures import with_keys
from composer_pipeline.redaction.prefilter import dump_value
from composer_pipeline.redaction.text import compiled_rules
from composer_pipeline.redaction.user_rules import RedactionRules


@dataclass(frozen=True, slots=True)
class Replacement:
    """One replacement.

    Args:
        place: ``line:column``, both from 1; in JSON also the way to the string.
        length: characters replaced.
        rule: what found it; ``view/percent/assigned`` is the rule ``assigned`` on the
            percent-decoded text.
        new: what stands there after redaction.
        shown: how what was replaced begins.
    """

    place: str
    length: int
    rule: str
    new: str
    shown: str

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Explanation:
    """All replacements of a file, and their number by kind."""

    replacements: list[Replacement]
    counts: dict[str, int]


def explain_file(file: Path, rules: RedactionRules | None = None) -> Explanation:
    """Return what redaction would replace in a file.

    Raises:
        InputError: the redaction file is missing or wrong.
        OSError: the file cannot be read.
    """
    text = file.read_text("utf-8", "replace")
    compiled, counts = compiled_rules(rules), Counter[str]()
    found: list[Replacement] = []
    if file.suffix == ".json" or file.suffix == ".jsonl":
        for number, line in enumerate(text.splitlines() if file.suffix == ".jsonl" else [text], 1):
            try:
                value = json.loads(line)
            except ValueError:
                found += _in_text(compiled, line, counts, f"{number} ")
                continue
            found += _in_value(compiled, value, counts, f"{number} ")
    else:
        found += _in_text(compiled, text, counts)
    return Explanation(found, dict(sorted(counts.items())))


def _in_value(rules: Rules, value: Any, counts: Counter[str], place: str) -> Iterator[Replacement]:
    ledger = Ledger()
    keyed = with_keys(value, partial(judged, rules, ledger))
    counts.update(ledger.counts)
    for (path, old), (_, new) in zip(_strings(value, ""), _strings(keyed, ""), strict=True):
        if old != new:
            yield Replacement(place + path, len(old), "keyed", new, _shown(old))
        yield from _in_text(rules, new, counts, f"{place}{path} ")


def _strings(item: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(item, str):
        yield path, item
    elif isinstance(item, list):
        for number, part in enumerate(item):
            yield from _strings(part, f"{path}[{number}]")
    elif isinstance(item, dict):
        for key, part in item.items():
            yield from _strings(part, f"{path}.{key}" if path else str(key))


def _in_text(
    rules: Rules, text: str, counts: Counter[str], place: str = ""
) -> Iterator[Replacement]:
    trace = Trace(len(text))
    ledger = Ledger(trace)
    rules.settle(text, rules.active(dump_value(text), ()), ledger)
    counts.update(ledger.counts)
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    for edit in trace.edits():
        row = bisect_right(starts, edit.start) - 1
        private = text[edit.start : edit.end]
        at = f"{place}{row + 1}:{edit.start - starts[row] + 1}"
        yield Replacement(at, len(private), edit.rule, edit.new, _shown(private))


def _shown(private: str) -> str:
    return private[:3] + "…" if len(private) > 8 else "…"
