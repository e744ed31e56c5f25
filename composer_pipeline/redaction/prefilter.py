"""Which rules can find anything in a text: one pass over its bytes for all of them.

Belongs here: the multi-pattern engine and what stands in for it. Does not belong here:
what a rule finds (``redaction.engine``).

With Hyperscan all gates cost one pass (several hundred MB/s). Without it each literal is
searched for by itself, and a gate's expression is not used: more rules run, and the same
secrets are found (a sign beside one, such as ``=``, may go with it).
"""

import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

#: A line break as JSON writes it.
LINE_BREAK = "\\n"


@dataclass(frozen=True, slots=True)
class Gate:
    r"""A necessary condition of a rule.

    Args:
        rule: its number.
        literals: one of these occurs, in any case.
        expression: if given, this matches too (case-insensitive, bytes; the syntax that
            ``re`` and Hyperscan share). Outside of sets ``\s`` also stands for white space as
            JSON escapes it.
    """

    rule: int
    literals: tuple[str, ...]
    expression: str = ""


#: Called by Hyperscan with the number of an expression, its place, flags, and the set to add to.
Matched = Callable[[int, int, int, int, set[int]], None]


def searcher(gates: list[Gate]) -> Callable[[bytes], set[int]]:
    """Return a function from UTF-8 text to the numbers of the rules that may match."""
    try:
        import hyperscan
    except ImportError:
        return _plain_searcher(gates)
    # Hyperscan stops at each place of a literal, also when its match was told already: what is
    # in nearly every text is found faster by itself.
    with_breaks = {g.rule for g in gates if g.literals == (LINE_BREAK,) and not g.expression}
    line_break = LINE_BREAK.encode()
    database, matched = _database(hyperscan, [g for g in gates if g.rule not in with_breaks])
    scan, lock = database.scan, threading.Lock()  # a database has one scratch space

    def search(text: bytes) -> set[int]:
        found = set(with_breaks) if line_break in text else set()
        with lock:
            scan(text, match_event_handler=matched, context=found)
        return found

    return search


def _database(hyperscan: Any, gates: list[Gate]) -> tuple[Any, Matched]:
    """Return the gates compiled, and what a scan calls to add the number of a rule to a set."""
    expressions, rules = [], []
    for gate in gates:
        for text in [gate.expression] if gate.expression else map(re.escape, gate.literals):
            expressions.append(on_json(text).encode())
            rules.append(gate.rule)
    database = hyperscan.Database()
    database.compile(
        expressions=expressions,
        ids=list(range(len(rules))),
        elements=len(rules),
        flags=[hyperscan.HS_FLAG_CASELESS | hyperscan.HS_FLAG_SINGLEMATCH] * len(rules),
    )

    def matched(number: int, start: int, end: int, flags: int, found: set[int]) -> None:
        found.add(rules[number])

    return database, matched


_TOKEN = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\.")


def on_json(expression: str) -> str:
    r"""Return an expression whose ``\s`` matches white space of a text in its JSON."""
    return _TOKEN.sub(lambda m: r"(?:\s|\\[fnrt])" if m[0] == r"\s" else m[0], expression)


def _plain_searcher(gates: list[Gate]) -> Callable[[bytes], set[int]]:
    needles: dict[bytes, set[int]] = {}
    for gate in gates:
        for literal in gate.literals:
            needles.setdefault(literal.lower().encode(), set()).add(gate.rule)

    def search(text: bytes) -> set[int]:
        lowered = text.lower()
        found: set[int] = set()
        for needle, rules in needles.items():
            if not rules <= found and needle in lowered:
                found |= rules
        return found

    return search


_SURROGATES = re.compile("[\ud800-\udfff]")


def dump_value(value: Any) -> bytes:
    """Return the JSON on which gates are tried; a text is a value too."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except (TypeError, orjson.JSONEncodeError):  # a lone surrogate, or a number too large
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        return _SURROGATES.sub("?", text).encode()


def load_value(source: bytes | str) -> Any:
    """Return the value of a JSON document.

    Raises:
        RecursionError: it is nested too deeply.
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(source)
    except orjson.JSONDecodeError:  # a lone surrogate, or a number that orjson does not take
        return json.loads(source)
