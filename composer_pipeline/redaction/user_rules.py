"""Rules that a user adds to redaction: the file that ``COMPOSER_REDACTION`` names.

Redaction fails closed: a file that is missing or wrong stops the stage before it writes.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from composer_pipeline.config_file import read_model
from composer_pipeline.errors import InputError
from composer_pipeline.redaction.patterns import compile_kind
from composer_pipeline.redaction.secrets import Finding
from composer_pipeline.redaction.vendors import read_rules
from composer_pipeline.versions import REDACTION_VERSION

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


def _first_slow(patterns: Iterable[str]) -> str | None:
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


def _sample(pattern: str) -> str:
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


def _scanner(caller: str) -> Any:
    """Return the module ``betterleaks``; ``caller`` is what needs it, for the message."""
    try:
        import betterleaks
    except ImportError as error:
        raise InputError(
            f"{caller}: betterleaks is not installed; pip install"
            " 'composer-pipeline[redaction-extra]'"
        ) from error
    return betterleaks


def scan_externally(text: str, caller: str = "redaction field external_scanner") -> list[Finding]:
    """Return what the external scanner takes for a secret, in order; the longest first."""
    scanner = _scanner(caller)
    if len(text) < 16:
        return []
    places = []
    # The scanner is written in Go and bound through C, where a NUL ends a string.
    found = {f.secret: f.rule_id for f in scanner.scan_string(text.replace("\0", " "))}
    for secret in sorted(found, key=len, reverse=True):
        if len(secret) < 6 or "[SECRET_" in secret:
            continue
        if re.search(rf"\[[A-Z_]*{re.escape(secret)}[A-Za-z0-9_]*\]", text):
            continue  # a part of a placeholder
        kind = re.sub(r"[^A-Z0-9]+", "_", found[secret].upper())
        for match in re.finditer(re.escape(secret), text):
            places.append(Finding(*match.span(), kind))
    return sorted(places, key=lambda place: (place.start, -place.end))


def _regex(text: str) -> str:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a pattern: {error}") from error
    if pattern.match(""):
        raise ValueError(f"{text!r} matches nothing at all, and so everywhere")
    return text


Regex = Annotated[str, AfterValidator(_regex)]
Text = Annotated[str, Field(min_length=3)]


class ExtraPattern(BaseModel):
    """A further kind of secret. The group ``value``, else the whole match, is replaced."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{1,39}$")]
    pattern: Regex
    literal: str = ""


class RedactionRules(BaseModel):
    """The content of a redaction file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    allow: tuple[str, ...] = ()  # values that stay
    allow_typed: tuple[str, ...] = ()  # kinds of typed keys that `allow` may let through
    allow_patterns: tuple[Regex, ...] = ()  # values that stay, by pattern of the whole value
    names: tuple[Text, ...] = ()
    hosts: tuple[Text, ...] = ()
    patterns: tuple[ExtraPattern, ...] = ()
    external_scanner: Literal["", "betterleaks"] = ""

    @property
    def version(self) -> int:
        """Return the version of the built-in rules together with these.

        ``version % 1000`` is :data:`REDACTION_VERSION`; the rest distinguishes files.
        """
        if self == RedactionRules():
            return REDACTION_VERSION
        digest = hashlib.blake2b(self.model_dump_json().encode(), digest_size=4).digest()
        return REDACTION_VERSION + 1000 * (1 + int.from_bytes(digest) % 2_000_000)

    @staticmethod
    def load(path: Path | str) -> "RedactionRules":
        """Read a file; InputError if it is missing, is not YAML, or a field is wrong."""
        rules = read_model(path, "redaction file", RedactionRules, empty=True)
        patterns = [extra.pattern for extra in rules.patterns]
        if slow := _first_slow([*patterns, *rules.allow_patterns]):
            field = "patterns" if slow in patterns else "allow_patterns"
            raise InputError(
                f"redaction file {path}, field {field}: {slow!r} takes more than {SECONDS} s on"
                " a text made to slow it down; rewrite its nested repetition"
            )
        _refuse_typed(path, rules)
        if rules.external_scanner:
            _scanner("redaction field external_scanner")
        return rules


def _refuse_typed(file: Path | str, rules: RedactionRules) -> None:
    """Refuse an allow-list that lets a typed key through, unless `allow_typed` has its kind."""
    known = {row.kind for row in read_rules()["typed"]}
    if unknown := sorted(set(rules.allow_typed) - known):
        raise InputError(f"redaction file {file}, field allow_typed: there is no kind {unknown[0]}")
    for row in read_rules()["typed"] if rules.allow or rules.allow_patterns else ():
        kind, body = row.kind, row.pattern
        if kind in rules.allow_typed:
            continue
        shape = compile_kind(body)
        let = [("allow", value) for value in rules.allow if shape.search(value)]
        for pattern in rules.allow_patterns:
            if shape.search(_sample(pattern)) or re.fullmatch(pattern, _sample(body)):
                let.append(("allow_patterns", pattern))
        for field, value in let:
            raise InputError(
                f"redaction file {file}, field {field}: {_short(value)!r} would let a {kind}"
                f" through; name {kind} in allow_typed to force it"
            )


def _short(value: str) -> str:
    return value if len(value) < 12 else f"{value[:6]}…"


def active_rules() -> RedactionRules:
    """Return the rules of the file that ``COMPOSER_REDACTION`` names; read once a process."""
    return _rules(os.environ.get("COMPOSER_REDACTION", ""))


@lru_cache(maxsize=8)
def _rules(path: str) -> RedactionRules:
    return RedactionRules.load(path) if path else RedactionRules()


def redaction_version() -> int:
    """Return the version of the current rules, which redacted rows carry."""
    return active_rules().version
