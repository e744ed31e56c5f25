"""The vault: what any rule found in a session, to be replaced wherever it stands in it.

A value is recognised by what stands beside it (``DB_PASSWORD=``), and then stands bare in the next
message. Whoever reads a session collects what was found, and redacts its texts a second time with
:func:`known_values`; rules, encodings and line breaks are then those of the first time. Of long
random values a keyed hash outlasts the session (:class:`HashedValues`).
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from composer_pipeline.redaction.patterns import compile_kind, dump_value
from composer_pipeline.redaction.people import is_guarded, spellings
from composer_pipeline.redaction.secrets import (
    PERSONAL,
    Known,
    Literal,
    is_long_random,
    is_placeholder,
    is_random,
)

#: Characters of a secret that may be replaced wherever it stands.
_LEAST = 6
#: Words and numbers below these lengths stand in a session for other things as well.
_LEAST_WORD, _LEAST_NUMBER = 12, 8
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_WORDS = re.compile(r"[a-z]+|[A-Z]+|[A-Z][a-z]+|[a-z]+(?:[-_.][a-z]+)+|[a-z]+[0-9]{1,4}")


def known_values(found: Iterable[Literal]) -> frozenset[Known]:
    """Return what redaction may replace anywhere in a session in which it found ``found``.

    Short numbers and words of lower-case letters are left out: ``POSTGRES_PASSWORD=dagster`` is
    replaced where it is set, and the word elsewhere stays.
    """
    known: set[Known] = set()
    for item in found:
        kind, value = item = Literal(item.kind, item.value.strip())
        if kind in ("NAME", "HOST") or (kind == "EMAIL" and "." in value.partition("@")[0]):
            for text, of in spellings(kind, value).items():
                known.add(text if of == "USER" else Literal(of, text))
        if kind in ("USER", "HOME"):
            known.add(value)
        elif kind in _PARTED:
            if _PARTED[kind].search(value):
                known.add(item)
        elif kind in PERSONAL or _is_distinct(value):
            known.add(item)
            if "\\" in value:  # as a file escapes it, and as it is
                known.add(Literal(kind, _ESCAPED.sub(r"\1", value)))
    return frozenset(known)


#: Of one word these are no more than a word.
_PARTED = {"NAME": re.compile(r"\w[ .]+\w"), "HOST": re.compile(r"[.0-9-]")}


def _is_distinct(value: str) -> bool:
    if len(value) < _LEAST or is_placeholder(value) or (value.isalpha() and is_guarded(value)):
        return False
    if value.isdigit():
        return len(value) >= _LEAST_NUMBER
    return len(value) >= _LEAST_WORD or not _WORDS.fullmatch(value)


def needle(value: str) -> bytes:
    """Return what occurs in the JSON of a text that holds a value, whole or broken by a line."""
    return dump_value(value[:8])[1:-1]


def whole(value: str) -> re.Pattern[str]:
    """Return the pattern of a value that is not a part of a longer word."""
    body = re.escape(value)
    if is_random(value):
        return re.compile(body)
    before = r"(?<![A-Za-z0-9_])" if value[0].isalnum() else ""
    after = r"(?![A-Za-z0-9_])" if value[-1].isalnum() else ""
    return compile_kind(f"{before}{body}{after}")


_RUN = re.compile(rb"[A-Za-z0-9_-]{20,300}")


#: Keyed hashes of long random values that redaction found in any session of a lake.
HASHED = "vault.json"


class HashedValues:
    """Long random values that were found before, as keyed hashes with their kinds."""

    def __init__(self, source: bytes = b"") -> None:
        stored = json.loads(source) if source else {}
        self._key = bytes.fromhex(stored.get("key", "")) or secrets.token_bytes(32)
        self._kinds: dict[str, str] = stored.get("values", {})
        self.changed = False

    @staticmethod
    def of(lake: Any) -> "HashedValues":
        """Return those of a lake."""
        return HashedValues(lake.get_bytes(HASHED) if lake.exists(HASHED) else b"")

    def add(self, found: Iterable[Literal]) -> None:
        """Remember those that are long and random; all of their letters are those of a word."""
        for kind, value in found:
            data = value.encode("utf-8", "replace")
            if kind not in PERSONAL and _RUN.fullmatch(data) and is_long_random(value):
                name = self._hash(data)
                self.changed |= name not in self._kinds
                self._kinds.setdefault(name, kind)

    def find(self, data: bytes) -> Iterator[Literal]:
        """Yield the values that stand in a text as words of their own."""
        if self._kinds:
            for run in set(_RUN.findall(data)):
                if kind := self._kinds.get(self._hash(run)):
                    yield Literal(kind, run.decode())

    def to_json(self) -> bytes:
        """Return what the next :class:`HashedValues` is made of."""
        stored = {"key": self._key.hex(), "values": self._kinds}
        return json.dumps(stored, sort_keys=True).encode()

    def _hash(self, data: bytes) -> str:
        return hashlib.blake2b(data, digest_size=16, key=self._key).hexdigest()
