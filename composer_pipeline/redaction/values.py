"""Redaction of JSON values: every string, together with its keys, also in strings that are JSON.

Belongs here: the walk over values. Does not belong here: rules on texts
(``redaction.engine``), which keys tell of a secret (``redaction.finders.structures``).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from composer_pipeline.redaction.edits import MAX_DEPTH, Edit, Ledger, Row
from composer_pipeline.redaction.engine import KEYED, Rules, judged
from composer_pipeline.redaction.finders.structures import with_keys
from composer_pipeline.redaction.prefilter import dump_value, load_value

# Between the strings of a value: white space for rules that stop at lines, and a NUL that
# those which cross white space do not cross.
_SEPARATOR = "\n\0\n"


def redact_in(value: Any, rules: Rules, active: list[Row], ledger: Ledger) -> Any:
    """Return a value with its strings redacted, keys of objects included.

    Args:
        value: a JSON value; a text is one too.
        rules: the rules.
        active: those that may find something in the value.
        ledger: counts what was replaced.
    """
    if not active:
        return value
    if isinstance(value, str):
        return _text(value, rules, active, ledger)
    if any(name in KEYED for name, _ in active):
        ledger.rule = "keyed"
        value = with_keys(value, partial(judged, rules, ledger))
    leaves = strings(value)
    known = [_document(leaf, rules, ledger) if leaf[:1] in _OPENS else leaf for leaf in leaves]
    before, placeholders = dict(ledger.counts), ledger.placeholders
    together = _SEPARATOR.join(known)
    settled = rules.settle(together, active, ledger)
    if settled is together and known == leaves:
        return value
    parts = settled.split(_SEPARATOR)
    if len(parts) != len(leaves):  # a separator in the text, or a rule that ran over one
        ledger.counts, ledger.placeholders = Counter(before), placeholders
        parts = [rules.settle(leaf, active, ledger) for leaf in known]
    return value if parts == leaves else _rebuild(value, iter(parts))


def strings(item: Any) -> list[str]:
    """Return every string of a JSON value, keys of objects included, in order."""
    found: list[str] = []
    _collect(item, found)
    return found


def _collect(item: Any, found: list[str]) -> None:
    if isinstance(item, str):
        found.append(item)
    elif isinstance(item, dict):
        for key, part in item.items():
            found.append(key)
            if isinstance(part, str):
                found.append(part)
            else:
                _collect(part, found)
    elif isinstance(item, list):
        for part in item:
            _collect(part, found)


def _rebuild(item: Any, parts: Iterator[str]) -> Any:
    if isinstance(item, str):
        return next(parts)
    if isinstance(item, dict):
        return {next(parts): _rebuild(part, parts) for part in item.values()}
    if isinstance(item, list):
        return [_rebuild(part, parts) for part in item]
    return item


def _text(text: str, rules: Rules, active: list[Row], ledger: Ledger) -> str:
    return rules.settle(_document(text, rules, ledger), active, ledger)


def _document(text: str, rules: Rules, ledger: Ledger) -> str:
    """Redact a string that is a JSON document as the value it holds; its layout stays."""
    opening = _OPENING.match(text)
    if opening is None or ledger.depth >= MAX_DEPTH:
        return text
    if opening[1] + text.rstrip()[-1:] not in ("{}", "[]", '""'):
        return text
    try:
        value = load_value(text)
    except (ValueError, RecursionError):
        return text
    active = rules.active(dump_value(value), ledger.names)
    if not active:
        return text
    inner = Ledger(depth=ledger.depth + 1, names=ledger.names)
    redacted = redact_in(value, rules, active, inner)
    if not inner.counts:
        return text
    ledger.counts.update(inner.counts)
    ledger.placeholders += inner.placeholders
    pairs = zip(strings(value), strings(redacted), strict=True)
    ledger.rule = "document"
    return ledger.replace(text, _places(text, {old: new for old, new in pairs if old != new}))


def _places(text: str, changed: dict[str, str]) -> Iterator[Edit]:
    """Yield where the strings stand in a document, in whatever spelling."""
    found = []
    for match in _STRING.finditer(text):
        try:
            value = json.loads(match[0])
        except ValueError:
            continue
        if value in changed:
            new = json.dumps(changed[value], ensure_ascii=False)[1:-1]
            found.append(Edit(match.start() + 1, match.end() - 1, new, "document"))
    yield from found


#: How a text begins that may be a JSON document.
_OPENS = frozenset('{[" \t\r\n')
_OPENING = re.compile(r'\s*([{\["])')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
