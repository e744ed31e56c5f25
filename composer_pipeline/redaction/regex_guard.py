"""Is a user's regular expression safe to run on any text?

Belongs here: texts made to slow an expression down, trying it on them within a time limit, a
text that it matches. Does not belong here: reading the user's file (``redaction.user_rules``).

Whether an expression backtracks without end cannot be read off it reliably, so it is run, in a
process of its own that the system stops after :data:`SECONDS`, on texts that its own parts
suggest: what leads up to each repetition, its body many times over, and then a mismatch.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

#: How long one expression may take on all texts that were made for it.
SECONDS = 2
_REPEATED = 3000
_REPEATS = frozenset(("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"))
_CATEGORIES = {"CATEGORY_DIGIT": "1", "CATEGORY_SPACE": " ", "CATEGORY_WORD": "a"}

# The timer's signal ends the process, also in the middle of a match.
_CHILD = """
import json, re, signal, sys
for number, (pattern, texts) in enumerate(json.load(sys.stdin)):
    signal.setitimer(signal.ITIMER_REAL, %d)
    compiled = re.compile(pattern)
    for text in texts:
        compiled.search(text)
        compiled.fullmatch(text)
    print(number, flush=True)
"""


def first_slow(patterns: Iterable[str]) -> str | None:
    """Return the first expression that takes too long on a text; ``None`` if none does."""
    wanted = list(patterns)
    if not wanted:
        return None
    jobs = json.dumps([(pattern, list(_attacks(pattern))) for pattern in wanted])
    command = [sys.executable, "-I", "-c", _CHILD % SECONDS]
    done = subprocess.run(command, input=jobs.encode(), capture_output=True, check=False)
    if done.returncode == 0:
        return None
    return wanted[len(done.stdout.split())]


def sample(pattern: str) -> str:
    """Return a text that the expression matches, as far as look-arounds allow."""
    return _text(parser.parse(pattern))


def _attacks(pattern: str) -> Iterator[str]:
    for prefix, body in _repetitions(parser.parse(pattern), ""):
        for end in ("", "\0", "!"):
            yield prefix + body * (_REPEATED // max(1, len(body))) + end
    for letter in "a0 -._/=A":
        yield letter * _REPEATED + "\0"


def _repetitions(tree: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for code, argument in tree:
        name = str(code)
        if name in _REPEATS:
            yield prefix, _text(argument[2]) or "a"
            yield from _repetitions(argument[2], prefix)
        elif name == "SUBPATTERN":
            yield from _repetitions(argument[-1], prefix)
        elif name == "BRANCH":
            for branch in argument[1]:
                yield from _repetitions(branch, prefix)
        prefix += _text([(code, argument)])


def _text(tree: Any) -> str:
    return "".join(_piece(str(code), argument) for code, argument in tree)


def _piece(name: str, argument: Any) -> str:
    if name == "LITERAL":
        return chr(argument)
    if name in ("NOT_LITERAL", "ANY"):
        return "a" if argument != ord("a") else "b"
    if name == "IN":
        return _of_set(argument)
    if name in _REPEATS:
        low, high, body = argument
        times = int(low) or min(1, int(high))
        return _text(body) * times
    if name in ("SUBPATTERN", "ATOMIC_GROUP"):
        return _text(argument[-1] if name == "SUBPATTERN" else argument)
    return _text(argument[1][0]) if name == "BRANCH" else ""


def _of_set(items: Any) -> str:
    negated = bool(items) and items[0][0] is codes.NEGATE
    if negated:
        return next((c for c in "a0 -" if not _within(c, items[1:])), "\u00e9")
    # Digits where there are some: keys have them.
    return next((c for c in "7aA-_ " if _within(c, items)), _first(items[0]))


def _within(letter: str, items: Any) -> bool:
    return any(
        (str(code) == "LITERAL" and argument == ord(letter))
        or (str(code) == "RANGE" and argument[0] <= ord(letter) <= argument[1])
        or (str(code) == "CATEGORY" and _CATEGORIES.get(str(argument)) == letter)
        for code, argument in items
    )


def _first(item: Any) -> str:
    code, argument = item
    if str(code) == "CATEGORY":
        return _CATEGORIES.get(str(argument), "a")
    return chr(argument if isinstance(argument, int) else argument[0])
