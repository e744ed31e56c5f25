"""Replacing what was found, with its counts, placeholders and places; and which values are secrets.

Places are kept only if somebody needs them (a decoded text, ``composer-pipeline redact``);
counting costs nothing more.
"""

import base64
import binascii
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from composer_pipeline.redaction import patterns

#: Kinds that are not secrets but identify a person or a place: their placeholder is the kind.
PERSONAL = frozenset(("EMAIL", "HOST", "ACCOUNT", "NAME", "PHONE", "NATIONAL_ID", "CARD", "IBAN"))
#: How many encodings deep texts are read.
MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something private in a text: ``text[start:end]`` is of this ``kind``."""

    start: int
    end: int
    kind: str
    value: str = ""  # what its placeholder is made of, if not the text itself


class Literal(NamedTuple):
    """A value that some rule found in a session: it is replaced wherever it stands there."""

    kind: str
    value: str


#: What is known of a text's session besides the text: user names, and values that rules found.
Known = str | Literal


@dataclass(frozen=True, slots=True)
class Edit:
    """``text[start:end]`` of the original text became ``new`` by a ``rule``."""

    start: int
    end: int
    new: str
    rule: str


class Trace:
    """Edits of a text, in places of the original text of ``length`` characters."""

    def __init__(self, length: int) -> None:
        # Pieces of the current text: kept characters (`new` is None) or a replacement.
        self._pieces: list[_Piece] = [_Piece(0, length)]

    def apply(self, start: int, end: int, new: str, rule: str) -> None:
        """Note that ``current[start:end]``, which is not empty, became ``new``."""
        before: list[_Piece] = []
        inside: list[tuple[int, _Piece]] = []
        after: list[_Piece] = []
        at = 0
        for piece in self._pieces:
            if at + piece.size <= start:
                before.append(piece)
            elif at >= end:
                after.append(piece)
            else:
                inside.append((at, piece))
            at += piece.size
        (first_at, first), (last_at, last) = inside[0], inside[-1]
        begin, stop = first.begin, last.stop
        if first.new is not None:  # a part of an earlier replacement stays
            new = first.new[: start - first_at] + new
        elif start > first_at:
            begin += start - first_at
            before.append(_Piece(first.begin, begin))
        if last.new is not None:
            new += last.new[end - last_at :]
        elif end < last_at + last.size:
            stop = last.begin + end - last_at
            after.insert(0, _Piece(stop, last.stop))
        self._pieces = [*before, _Piece(begin, stop, new, rule), *after]

    def edits(self) -> list[Edit]:
        """Return the edits, in order."""
        return [Edit(p.begin, p.stop, p.new, p.rule) for p in self._pieces if p.new is not None]


@dataclass(frozen=True, slots=True)
class _Piece:
    begin: int
    stop: int
    new: str | None = None
    rule: str = ""

    @property
    def size(self) -> int:
        return self.stop - self.begin if self.new is None else len(self.new)


class Replacer:
    """Counts of one redaction, by kind; its places too if it has a ``trace``.

    ``depth`` is how many encodings deep the text was found, ``names`` what is known of its
    session, ``rule`` the rule that is running, ``found`` the values replaced.
    """

    __slots__ = ("counts", "depth", "found", "names", "placeholders", "rule", "trace")

    def __init__(
        self, trace: Trace | None = None, depth: int = 0, names: Iterable[Known] = ()
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.placeholders = 0
        self.trace = trace
        self.depth = depth
        self.names = names
        self.found: list[Literal] = []
        #: The rule that runs now.
        self.rule = ""

    def inner(self, trace: Trace | None = None) -> "Replacer":
        """Return a replacer of a text that this one's text encodes."""
        inner = Replacer(trace, self.depth + 1, self.names)
        inner.found = self.found
        return inner

    def placeholder(self, kind: str, value: str) -> str:
        """Count a replacement and return the placeholder of ``value``."""
        self.counts[kind] += 1
        self.found.append(Literal(kind, value))
        if kind in ("USER", "HOME"):
            return "user"
        self.placeholders += 1
        if kind in PERSONAL:
            value = value.lower()
        digest = hashlib.blake2b(value.encode("utf-8", "replace"), digest_size=2).hexdigest()
        return f"[{kind if kind in PERSONAL else f'SECRET_{kind}'}_{digest}]"

    def replace(self, text: str, edits: Iterable[Edit]) -> str:
        """Return ``text`` with edits applied; they are in order and do not overlap."""
        parts: list[str] = []
        done = shift = 0
        for edit in edits:
            parts += (text[done : edit.start], edit.new)
            done = edit.end
            if self.trace is not None:
                self.trace.apply(edit.start + shift, edit.end + shift, edit.new, edit.rule)
                shift += len(edit.new) - (edit.end - edit.start)
        return "".join([*parts, text[done:]]) if parts else text

    def put(self, text: str, found: Iterable[Finding]) -> str:
        """Return ``text`` with the findings replaced; of overlapping ones the first."""
        edits: list[Edit] = []
        done = 0
        for item in found:
            if item.start >= done and item.end > item.start:
                value = item.value or text[item.start : item.end]
                new = self.placeholder(item.kind, value)
                edits.append(Edit(item.start, item.end, new, self.rule))
                done = item.end
        return self.replace(text, edits)


#: A rule's function: a text and the replacer of this redaction to the text redacted.
Rule = Callable[[str, Replacer], str]
#: A rule by its id.
NamedRule = tuple[str, Rule]


_CROSSES = "x{6}|(?<![a-z0-9])xxxx|xxxx(?![a-z0-9])"
#: Words of examples and of values that are hidden already.
EXAMPLE = re.compile(
    rf"(?i)example|placeholder|your[_-]|{_CROSSES}|redacted|0000000000|\*\*\*|4eC39HqLyjWDarjtT1zdp7dc"
)
#: What manuals and development set-ups write where a password goes.
DUMMY_PASSWORDS = frozenset(
    """
    pass password passwd pwd secret token user username pw postgres guest tiger admin root test
    changeme mysql xxx dev none null true false yes no default value string str bytes optional
    mypassword mysecret mytoken mykey secretkey demo foo bar baz foobar abc abc123 123456 basic
    bearer apikey api_key prompt stdin empty unset hidden masked undefined nil required incorrect
    correct invalid missing rejected accepted failed expired disabled enabled unchanged unknown
    number boolean object 12345678 123456789 varchar secretstr localhost hunter2
    """.split()  # noqa: SIM905  twelve words a line instead of one
)
_PLACEHOLDER_WORDS = re.compile(
    r"(?i)(?<![a-z0-9])(?:your|dummy|insert|replace|todo(?![a-z0-9]))|example|placeholder|change_?(?:me|it)\b"
    rf"|redacted|{_CROSSES}|\*\*\*|\.\.\.|\[(?:secret|email|host|account|name|phone|national_id|card|iban)_"
    r"|my[-_](?:secret|token|key|pass)|(?:^|[-_])(?:fake|mock|sample)(?:[-_]|$)|unique phrase"
)
# Words and small numbers: `password-input-2`, `correct-horse-42`, `hunter22`.
_WORDS = re.compile(r"^[a-z]+[0-9]{0,3}(?:[-_.:](?:[a-z]+[0-9]{0,3}|v?[0-9]{1,4}))*$")


@cache
def listed(file: str) -> frozenset[str]:
    """Return the words of a file beside this one, such as those of English and code."""
    return frozenset(Path(__file__).with_name(file).read_text("utf-8").split())


_UI_WORD = re.compile(r"pass|secret|token|key|input|field|test|label|button|form|name|type|value")
_PASSWORD_NAME = re.compile(r"(?i)passw|passphrase|passcode|pwd|(?:^|[^a-z])(?:pass|pw)$|PASS$")
# Variables, commands and fields of templates, alone or in a value that is little else.
_EXPANSION = re.compile(r"\$\{[A-Za-z_][^{}]*\}|\$\([^()]+\)|#\{[^{}]*\}|\{\{.*?\}\}|\{[\w.]+\}")
_STANDS_FOR = re.compile(
    r"(?:(?:\$\w+|`[^`]+`|%[A-Z_]{3,}%|%(?:\(\w+\))?[sdqv]|<[^<>]+>|\[[^\[\]]+\])[-:/@._]?)+"
    r"|(?i:(?:my|test|your|wrong|invalid)?[-_]?(?:pass(?:word|wd)?|secret|token)[-_]?\d{0,4})"
)


def is_placeholder(value: str) -> bool:
    """Return True if a value stands for a secret instead of being one: ``<key>``, ``${KEY}``."""
    return (
        value.lower() in DUMMY_PASSWORDS
        or _PLACEHOLDER_WORDS.search(value) is not None
        or _STANDS_FOR.fullmatch(value) is not None
        or (_EXPANSION.search(value) is not None and len(_EXPANSION.sub("", value)) < 6)
        or len(set(value.lower())) < 3
    )


def is_given_secret(value: str, shortest: int = 4) -> bool:
    """Judge a value that stands where only a secret can stand: any literal is one."""
    long = len(value) >= shortest
    return long and not is_placeholder(value) and not patterns.REFERENCE.fullmatch(value)


def is_word_like(value: str) -> bool:
    """Return True for words and small numbers: ``password-input-2``."""
    return _WORDS.match(value) is not None


def is_random(value: str, shortest: int = 12) -> bool:
    """Judge a value whose place only suggests a secret: letters, digits and no words."""
    return (
        len(value) >= shortest
        and any(c.isdigit() for c in value)
        and any(c.isalpha() for c in value)
        and not is_placeholder(value)
        and not _WORDS.match(value)
        and entropy(value) >= 3.0
    )


def is_literal_secret(name: str, value: str) -> bool:
    """Distinguish a literal secret from an identifier, a path, a number or an example."""
    if _PLACEHOLDER_WORDS.search(value) or patterns.REFERENCE.fullmatch(value):
        return False
    if patterns.DOTTED.fullmatch(value) or (value[0] == "$" and not is_password(name)):
        return False
    if _WORDS.match(value):
        simple = is_password(name) and any(c.isdigit() for c in value) and len(value) >= 6
        return simple and (value.isalnum() or not _UI_WORD.search(value))
    if "://" in value:
        return False
    has_digit = any(c.isdigit() for c in value)
    has_letter = any(c.isalpha() for c in value)
    if not (has_digit and has_letter):
        has_sign = any(not c.isalnum() and c not in "_-./:" for c in value)
        return has_letter and has_sign and is_password(name) and len(value) >= 8
    if is_password(name):
        return len(value) >= 6
    strong = len(value) >= 12 and _STRONG.search(value) is not None
    return (strong or len(value) >= 16) and entropy(value) >= 3.0


# Digits among small and capital letters, as in no name.
_STRONG = re.compile(r"(?=.*[A-Z].*[A-Z])(?=.*[a-z])[A-Za-z]\d[A-Za-z].*\d[A-Za-z]")


def is_assigned_secret(name: str, value: str, *, data: bool, word: bool = False) -> bool:
    """Judge a literal under a name of secrets: in ``data`` any is one, in code it could be a label.

    ``word``: a variable of a shell, where nobody describes anything there.
    """
    if not 0 < len(value) < 1000 or is_placeholder(value) or patterns.REFERENCE.fullmatch(value):
        return False
    spaced = any(c.isspace() for c in value)
    if not spaced and is_literal_secret(name, value):
        return True
    if not is_password(name):
        return False
    if word and len(value) >= 4:
        return True
    if len(value) < 6 or not patterns.ENDS_AS_PASSWORD.search(name) or patterns.PROSE.match(value):
        return False
    if patterns.LABEL.search(value) or not value.isascii():
        return False
    return data or patterns.NO_LABEL.fullmatch(value) is not None


def is_data_password(value: str) -> bool:
    """Judge what stands where data has a password and an interface has a word for it."""
    return is_assigned_secret("password", value, data=True)


def is_password(name: str) -> bool:
    """Return True if a name is that of a password, which may be short and simple."""
    return _PASSWORD_NAME.search(name) is not None


def entropy(value: str) -> float:
    """Return the Shannon entropy of the characters of ``value``, in bits a character."""
    counts = Counter(value)
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())


_KEY_BODY = re.compile(r"[A-Za-z0-9+/=]{4,}")
_KEY_BEGINS = ("MI", "b3BlbnNzaC1r", "lQ", "lI", "xV", "xc")


def holds_key(block: str) -> bool:
    """Return True if a PEM block has a key after its first line, not code or an ellipsis."""
    body = block.partition("-----BEGIN ")[2].partition("-----")[2].partition("-----END")[0]
    chunks = _KEY_BODY.findall(body.replace("\\r", "").replace("\\n", "\n"))
    data = "".join(chunks)
    keyed = max(map(len, chunks), default=0) >= 24 or data.startswith(_KEY_BEGINS)
    return keyed and len(data) >= 40 and len(set(data)) > 4


def is_basic(value: str) -> bool:
    """Return True if base64 holds ``user:password``."""
    body = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        text = base64.b64decode(body + "=" * (-len(body) % 4), validate=True).decode("ascii")
    except (ValueError, binascii.Error):
        return False
    _user, colon, password = text.partition(":")
    return bool(colon and text.isprintable() and len(password) >= 3)


def is_long_random(value: str) -> bool:
    """Judge a long value in a place that may hold a name as well."""
    return is_random(value, 20) and entropy(value) >= 3.5


def is_signed(value: str) -> bool:
    """Judge a value at a telling place that may hold a word: it has a digit or a sign."""
    return is_given_secret(value, 6) and re.search(r"[0-9!@#%^&*]", value) is not None
