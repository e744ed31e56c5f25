r"""Redaction of secrets, e-mail addresses, home folders, user names, hosts and account ids.

Rules work on decoded strings. The same value always becomes the same placeholder, so
prefixes stay consistent and actions stay comparable: ``[SECRET_AWS_KEY_3f2a]``,
``[EMAIL_90bc]``, ``[HOST_77d1]`` and ``[ACCOUNT_02ee]`` end in two bytes of an unkeyed
BLAKE2b hash of the value (too few to find the value by, enough to tell two of them
apart); a home folder becomes ``/home/user``, ``/Users/user`` or ``C:\Users\user``.
Redacting twice changes nothing, and :func:`find_secrets` finds nothing in redacted text.
One pass of Hyperscan finds the rules that can match a text (without Hyperscan, a search for
the literals of each rule, which is slower and finds the same).

Code is left alone: ``token = tokenizer.eos_token``, ``password = os.environ["PW"]``
and ``git@github.com`` are not secrets. Not covered: names of people in prose, street
and IP addresses, telephone numbers, secrets without a known shape or a telling name.
"""

import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from composer_pipeline.redaction.engine import KEYED, Rules
from composer_pipeline.redaction.finders import with_keys
from composer_pipeline.redaction.patterns import dump_value, load_value
from composer_pipeline.redaction.secrets import MAX_DEPTH, Edit, NamedRule, Replacer, Trace
from composer_pipeline.redaction.user_rules import RedactionRules

# Between the strings of a value: white space for rules that stop at lines, and a NUL that
# those which cross white space do not cross.
_SEPARATOR = "\n\0\n"


def redact_in(value: Any, rules: Rules, active: list[NamedRule], replacer: Replacer) -> Any:
    """Return a value or a text with its strings and keys redacted by the active rules."""
    if not active:
        return value
    if isinstance(value, str):
        return rules.settle(_document(value, rules, replacer), active, replacer)
    if any(name in KEYED for name, _ in active):
        replacer.rule = "keyed"
        value = with_keys(value, partial(rules.keyed, replacer))
    leaves = strings(value)
    known = [_document(leaf, rules, replacer) if leaf[:1] in _OPENS else leaf for leaf in leaves]
    before, placeholders = dict(replacer.counts), replacer.placeholders
    together = _SEPARATOR.join(known)
    settled = rules.settle(together, active, replacer)
    if settled is together and known == leaves:
        return value
    parts = settled.split(_SEPARATOR)
    if len(parts) != len(leaves):  # a separator in the text, or a rule that ran over one
        replacer.counts, replacer.placeholders = Counter(before), placeholders
        parts = [rules.settle(leaf, active, replacer) for leaf in known]
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


def _document(text: str, rules: Rules, replacer: Replacer) -> str:
    """Redact a string that is a JSON document as the value it holds; its layout stays."""
    opening = _OPENING.match(text)
    if opening is None or replacer.depth >= MAX_DEPTH:
        return text
    if opening[1] + text.rstrip()[-1:] not in ("{}", "[]", '""'):
        return text
    try:
        value = load_value(text)
    except (ValueError, RecursionError):
        return text
    active = rules.active(dump_value(value), replacer.names)
    if not active:
        return text
    inner = Replacer(depth=replacer.depth + 1, names=replacer.names)
    redacted = redact_in(value, rules, active, inner)
    if not inner.counts:
        return text
    replacer.counts.update(inner.counts)
    replacer.placeholders += inner.placeholders
    pairs = zip(strings(value), strings(redacted), strict=True)
    replacer.rule = "document"
    return replacer.replace(text, _places(text, {old: new for old, new in pairs if old != new}))


def _places(text: str, changed: dict[str, str]) -> Iterator[Edit]:
    """Yield where the strings stand in a document, in any spelling."""
    for match in _STRING.finditer(text):
        try:
            value = json.loads(match[0])
        except ValueError:
            continue
        if value in changed:
            new = json.dumps(changed[value], ensure_ascii=False)[1:-1]
            yield Edit(match.start() + 1, match.end() - 1, new, "document")


#: How a text begins that may be a JSON document.
_OPENS = frozenset('{[" \t\r\n')
_OPENING = re.compile(r'\s*([{\["])')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def redact_text(
    text: str, names: Iterable[str] = (), rules: RedactionRules | None = None
) -> tuple[str, Counter[str]]:
    """Replace what is private in ``text``; return it and the number of replacements by kind.

    Args:
        text: a decoded string (not JSON source, where escapes hide word boundaries).
        names: user names known from elsewhere (:func:`user_names`), replaced where
            they stand as a path segment, after ``~`` or as an owner in ``ls -l``.
        rules: a user's rules; those of ``COMPOSER_REDACTION`` when ``None``.

    Raises:
        InputError: the redaction file is missing or wrong.
    """
    replacer = Replacer(names=names)
    if len(text) < 6:
        return text, replacer.counts
    compiled = compiled_rules(rules)
    return redact_in(
        text, compiled, compiled.active(dump_value(text), names), replacer
    ), replacer.counts


def redact_value(
    value: Any, names: Iterable[str] = (), rules: RedactionRules | None = None
) -> tuple[Any, Counter[str]]:
    """Redact every string inside a JSON value, keys of objects included, as :func:`redact_text`.

    A string under a telling key (``{"password": ...}``) is judged together with the key.
    Numbers, booleans and the shape stay as they are; key order is kept.
    """
    compiled = compiled_rules(rules)
    active = compiled.active(dump_value(value), names)
    if not active:
        return value, Counter()
    replacer = Replacer(names=names)
    return redact_in(value, compiled, active, replacer), replacer.counts


def redact_json(
    source: bytes, names: Iterable[str] = (), rules: RedactionRules | None = None
) -> tuple[bytes, Counter[str]]:
    """Redact the strings inside a JSON document (UTF-8), as :func:`redact_value`."""
    return json_redactor(rules)(source, names)


def json_redactor(
    rules: RedactionRules | None = None,
) -> Callable[[bytes, Iterable[str]], tuple[bytes, Counter[str]]]:
    """Return :func:`redact_json` with the current rules, for many documents."""
    compiled = compiled_rules(rules)

    def redact(source: bytes, names: Iterable[str] = ()) -> tuple[bytes, Counter[str]]:
        active = compiled.active(source, names)
        if not active:
            return source, Counter()
        replacer = Replacer(names=names)
        value = redact_in(load_value(source), compiled, active, replacer)
        return (dump_value(value) if replacer.counts else source), replacer.counts

    return redact


def find_secrets(
    value: Any, names: Iterable[str] = (), rules: RedactionRules | None = None
) -> list[str]:
    """Return the kinds of what redaction would replace in a text or a value, sorted.

    This one function decides what may be stored in a table, sent to a teacher or published:
    a message is scanned whole, each string together with its keys. It finds nothing in what
    was redacted; anything else is a reason to refuse.
    """
    redact = redact_text if isinstance(value, str) else redact_value
    return sorted(redact(value, names, rules)[1].elements())


def compiled_rules(rules: RedactionRules | None = None) -> Rules:
    """Return a user's rules with the built-in ones, ready to run; made once a process."""
    if rules is not None:
        return _of_rules(rules)
    return _of_file(os.environ.get("COMPOSER_REDACTION", ""))


@lru_cache(maxsize=8)
def _of_rules(rules: RedactionRules) -> Rules:
    return Rules(rules)


@lru_cache(maxsize=8)
def _of_file(path: str) -> Rules:
    return Rules(RedactionRules.load(path) if path else RedactionRules())


@dataclass(frozen=True, slots=True)
class Replacement:
    """One replacement."""

    place: str  # `line:column`, both from 1; in JSON also the way to the string
    length: int
    rule: str  # `decoding/percent/x` is rule `x` on the percent-decoded text
    new: str  # what stands there after redaction
    shown: str  # how the replaced text begins


@dataclass(frozen=True, slots=True)
class Explanation:
    """All replacements of a file, and their number by kind."""

    replacements: list[Replacement]
    counts: dict[str, int]


def explain_file(file: Path, rules: RedactionRules | None = None) -> Explanation:
    """Return what redaction would replace in a file."""
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
    replacer = Replacer()
    keyed = with_keys(value, partial(rules.keyed, replacer))
    counts.update(replacer.counts)
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
    replacer = Replacer(trace)
    rules.settle(text, rules.active(dump_value(text), ()), replacer)
    counts.update(replacer.counts)
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
