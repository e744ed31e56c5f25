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
and IP addresses, secrets that neither a shape, a name nor a
place gives away and that do not look random (:func:`review_value` lists what nearly does).
"""

import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from composer_pipeline.redaction.decodings import DECODINGS
from composer_pipeline.redaction.engine import KEYED, Rules
from composer_pipeline.redaction.finders import with_keys
from composer_pipeline.redaction.patterns import dump_value, load_value
from composer_pipeline.redaction.secrets import (
    MAX_DEPTH,
    Edit,
    Known,
    Literal,
    NamedRule,
    Replacer,
    Trace,
)
from composer_pipeline.redaction.tokens import Suspect, suspects
from composer_pipeline.redaction.user_rules import RedactionRules
from composer_pipeline.redaction.vault import known_values

# Between the strings of a value: white space for rules that stop at lines, and a NUL that
# those which cross white space do not cross.
_SEPARATOR = "\n\0\n"


def redact_in(value: Any, rules: Rules, active: list[NamedRule], replacer: Replacer) -> Any:
    """Return a value or a text with its strings and keys redacted by the active rules.

    A text that is a JSON document is judged as the value it holds, so that both are found alike.
    """
    if not active:
        return value
    if isinstance(value, str):
        document = _document(value, rules, replacer)
        return rules.settle(value, active, replacer) if document is None else document
    if any(name in KEYED for name, _ in active):
        replacer.rule = "keyed"
        value = with_keys(value, partial(rules.keyed, replacer))
    leaves = strings(value)
    parts = [_document(leaf, rules, replacer) if leaf[:1] in _OPENS else None for leaf in leaves]
    plain = [leaf for leaf, part in zip(leaves, parts, strict=True) if part is None]
    before, placeholders = dict(replacer.counts), replacer.placeholders
    settled = rules.settle(_SEPARATOR.join(plain), active, replacer).split(_SEPARATOR)
    if len(settled) != len(plain):  # a separator in the text, or a rule that ran over one
        replacer.counts, replacer.placeholders = Counter(before), placeholders
        settled = [rules.settle(leaf, active, replacer) for leaf in plain]
    rest = iter(settled)
    redacted = [next(rest) if part is None else part for part in parts]
    if redacted != leaves:
        value = _rebuild(value, iter(redacted))
    return _with_structure(value, rules, active, replacer)


def _with_structure(value: Any, rules: Rules, active: list[NamedRule], replacer: Replacer) -> Any:
    """Redact what stands beside its key, or in a list that is a command, with a line a string."""
    wanted = [(name, rule) for name, rule in active if not name.startswith(_OF_ONE_STRING)]
    if not wanted:
        return value
    # In JSON the lines of a string are one, which no rule expects: only others take part.
    leaves = strings(value)
    short = _rebuild(value, iter("" if "\n" in leaf else leaf for leaf in leaves))
    text = dump_value(short, orjson.OPT_INDENT_2).decode()
    before, known = Counter(replacer.counts), len(replacer.found)
    placeholders = replacer.placeholders
    settled = rules.settle(text, wanted, replacer)
    if settled == text:
        return value
    try:
        redacted = strings(load_value(settled))
        parts = [a if "\n" in a else b for a, b in zip(leaves, redacted, strict=True)]
    except ValueError:  # a rule ran over the end of a string, or replaced numbers
        replacer.counts, replacer.placeholders = before, placeholders
        del replacer.found[known:]
        return value
    return _rebuild(value, iter(parts))


#: Rules that find nothing more where a string stands beside others.
_OF_ONE_STRING = (
    "decoding/", "home/", "host/", "login/", "user", "email", "vault", "keyed", "shape/",
    "author", "logged", "owner",
)  # fmt: skip


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


def _document(text: str, rules: Rules, replacer: Replacer) -> str | None:
    """Redact a string that is a JSON document as the value it holds; its layout stays."""
    opening = _OPENING.match(text)
    if opening is None or replacer.depth >= MAX_DEPTH:
        return None
    if opening[1] + text.rstrip()[-1:] not in ("{}", "[]", '""'):
        return None
    try:
        value = load_value(text)
    except (ValueError, RecursionError):
        return None
    active = rules.active(dump_value(value), replacer.names)
    inner = replacer.inner()
    redacted = redact_in(value, rules, active, inner)
    if not inner.counts:
        return text if strings(value) else None  # a list of numbers may be a key
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
    text: str, names: Iterable[Known] = (), rules: RedactionRules | None = None
) -> tuple[str, Counter[str]]:
    """Replace what is private in ``text``; return it and the number of replacements by kind.

    Args:
        text: a decoded string (not JSON source, where escapes hide word boundaries).
        names: what is known of the text's session: user names (:func:`user_names`), replaced where
            they stand as a path segment, after ``~`` or as an owner in ``ls -l``, and values
            (:func:`composer_pipeline.redaction.vault.known_values`), replaced wherever they stand.
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
    value: Any, names: Iterable[Known] = (), rules: RedactionRules | None = None
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
    source: bytes, names: Iterable[Known] = (), rules: RedactionRules | None = None
) -> tuple[bytes, Counter[str]]:
    """Redact the strings inside a JSON document (UTF-8), as :func:`redact_value`."""
    redacted = json_redactor(rules)([source], names)[0]
    return redacted.data, redacted.counts


class Redacted(NamedTuple):
    """A redacted JSON document."""

    data: bytes
    counts: Counter[str]  # replacements by kind
    found: Sequence[Literal] = ()  # what was replaced
    encoded: bool = False  # a part of it is encoded, so that a value may stand in it unseen


def json_redactor(
    rules: RedactionRules | None = None,
) -> Callable[[Sequence[bytes], Iterable[Known]], list[Redacted]]:
    """Return :func:`redact_json` for many documents, with the current rules.

    Which rules each needs is found first: one search after the other keeps the tables in the cache.
    """
    compiled = compiled_rules(rules)

    def redact(sources: Sequence[bytes], names: Iterable[Known] = ()) -> list[Redacted]:
        needed = [compiled.active(source, names) for source in sources]
        return [
            one(source, active, names) if active else Redacted(source, Counter())
            for source, active in zip(sources, needed, strict=True)
        ]

    def one(source: bytes, active: list[NamedRule], names: Iterable[Known]) -> Redacted:
        replacer = Replacer(names=names)
        value = redact_in(load_value(source), compiled, active, replacer)
        data = dump_value(value) if replacer.counts else source
        encoded = any(name in _ENCODINGS for name, _ in active)
        return Redacted(data, replacer.counts, replacer.found, encoded)

    return redact


_ENCODINGS = frozenset(f"decoding/{row.name}" for row in DECODINGS if not row.joins) | {
    "decoding/base64"
}


def find_secrets(
    value: Any, names: Iterable[Known] = (), rules: RedactionRules | None = None
) -> list[str]:
    """Return the kinds of what redaction would replace in a text or a value, sorted.

    This one function decides what may be stored in a table, sent to a teacher or published:
    a message is scanned whole, each string together with its keys. It finds nothing in what
    was redacted; anything else is a reason to refuse.
    """
    redact = redact_text if isinstance(value, str) else redact_value
    return sorted(redact(value, names, rules)[1].elements())


def review_value(
    value: Any, names: Iterable[Known] = (), rules: RedactionRules | None = None
) -> list[tuple[str, Suspect]]:
    """Return what redaction leaves in a text or a value and may be a token, for a person."""
    compiled = compiled_rules(rules)
    text = _SEPARATOR.join(strings(redact_value(value, names, rules)[0]))
    found = ((text[item.start : item.end], item) for item in suspects(text))
    return [(token, item) for token, item in found if not compiled.allowed(token)]


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
class Left:
    """What scores just below the threshold, and stays for a person to judge."""

    place: str  # as of a replacement, in what redaction leaves
    length: int
    score: float
    evidence: tuple[str, ...]
    shown: str  # how it begins


@dataclass(frozen=True, slots=True)
class Explanation:
    """All replacements of a file, their number by kind, and what is left for review."""

    replacements: list[Replacement]
    counts: dict[str, int]
    review: list[Left]


def explain_file(file: Path, rules: RedactionRules | None = None) -> Explanation:
    """Return what redaction would replace in a file, which is taken for one session."""
    text = file.read_text("utf-8", "replace")
    lines = text.splitlines() if file.suffix == ".jsonl" else [text]
    values: list[tuple[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            values.append((f"{number} ", json.loads(line) if file.suffix in _JSON else line))
        except ValueError:
            values.append((f"{number} ", line))
    compiled, vault = compiled_rules(rules), Replacer()
    for _, value in values:
        redact_in(value, compiled, compiled.active(dump_value(value), ()), vault)
    known = known_values(vault.found)
    found: list[Replacement] = []
    left: list[Left] = []
    counts = Counter[str]()
    for place, value in values:
        for token, item in review_value(value, known, rules):
            places = ((way, old) for way, old in _strings(value, "") if token in old)
            way, whole = next(places, ("", token))
            before = whole.partition(token)[0].split("\n")
            where = f"{place}{way} ".lstrip() if file.suffix in _JSON else ""
            at = f"{where}{len(before)}:{len(before[-1]) + 1}"
            left.append(Left(at, len(token), item.score, item.evidence, _shown(token)))
        if isinstance(value, str):
            where = place if file.suffix in _JSON else ""
            found += _in_text(compiled, value, counts, known, where)
        else:
            found += _in_value(compiled, value, counts, known, place)
    return Explanation(found, dict(sorted(counts.items())), left)


_JSON = (".json", ".jsonl")


def _in_value(
    rules: Rules, value: Any, counts: Counter[str], known: frozenset[Known], place: str
) -> Iterator[Replacement]:
    replacer = Replacer()
    keyed = with_keys(value, partial(rules.keyed, replacer))
    counts.update(replacer.counts)
    active = rules.active(dump_value(value), known)
    redacted = redact_in(value, rules, active, Replacer(names=known))
    for (path, old), (_, new), (_, last) in zip(
        *(_strings(item, "") for item in (value, keyed, redacted)), strict=True
    ):
        if old != new:
            yield Replacement(place + path, len(old), "keyed", new, _shown(old))
        found = list(_in_text(rules, new, counts, known, f"{place}{path} "))
        yield from found
        if old == new != last and not found:  # found in the JSON of the value alone
            counts["KEYED"] += 1
            yield Replacement(place + path, len(old), "document", last, _shown(old))


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
    rules: Rules, text: str, counts: Counter[str], known: frozenset[Known], place: str = ""
) -> Iterator[Replacement]:
    trace = Trace(len(text))
    replacer = Replacer(trace, names=known)
    rules.settle(text, rules.active(dump_value(text), known), replacer)
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
