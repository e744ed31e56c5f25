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

#: Kinds that are not secrets but identify a person or a place: their placeholder is the kind.
PERSONAL = frozenset(("EMAIL", "HOST", "ACCOUNT", "NAME"))
#: How many encodings deep texts are read.
MAX_DEPTH = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """Something private in a text: ``text[start:end]`` is of this ``kind``."""

    start: int
    end: int
    kind: str
    value: str = ""  # what its placeholder is made of, if not the text itself


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

    ``depth`` is how many encodings deep the text was found, ``names`` the user names of the text,
    ``rule`` the rule that is running.
    """

    __slots__ = ("counts", "depth", "names", "placeholders", "rule", "trace")

    def __init__(
        self, trace: Trace | None = None, depth: int = 0, names: Iterable[str] = ()
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.placeholders = 0
        self.trace = trace
        self.depth = depth
        self.names = names
        #: The rule that runs now.
        self.rule = ""

    def placeholder(self, kind: str, value: str) -> str:
        """Count a replacement and return the placeholder of ``value``."""
        self.counts[kind] += 1
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


#: Words of examples and of values that are hidden already.
EXAMPLE = re.compile(r"(?i)example|placeholder|your[_-]|xxxx|redacted|0000000000|\*\*\*")
#: What manuals and development set-ups write where a password goes.
DUMMY_PASSWORDS = frozenset(
    """
    pass password passwd pwd secret token user username pw postgres guest tiger admin root test
    changeme mysql xxx dev none null true false yes no default value string str bytes optional
    mypassword mysecret mytoken mykey secretkey demo foo bar baz foobar abc abc123 123456 basic
    bearer apikey api_key prompt stdin empty unset hidden masked undefined nil required
    """.split()  # noqa: SIM905  twelve words a line instead of one
)
_PLACEHOLDER_WORDS = re.compile(
    r"(?i)(?<![a-z0-9])(?:your|dummy|insert|replace|todo)|example|placeholder|change_?(?:me|it)\b"
    r"|redacted|xxxx|\*\*\*|\.\.\.|<|\[(?:secret|email|host|account|name)_|\{\{|%s\b|%\(|my[-_](?:secret|token|key|pass)"
    r"|(?:^|[-_])(?:fake|mock|sample)(?:[-_]|$)|unique phrase"
)
_REFERENCE = re.compile(
    r"^[A-Za-z_$][A-Za-z_]*(?:(?:\.|::|->|\?\.)[A-Za-z_$][A-Za-z0-9_]*)+$"
    r"|^(?:process\.env|os\.environ|import\.meta|env)\b|^\(|^(?:ref\+|vault:|op:|arn:|sm:|ssm:|file:)"
    r"|^![A-Z]|^@[A-Za-z_]+[({]"
)
# Words and small numbers: `password-input-2`, `correct-horse-42`, `hunter22`.
_WORDS = re.compile(r"^[a-z]+[0-9]{0,3}(?:[-_.:](?:[a-z]+[0-9]{0,3}|v?[0-9]{1,4}))*$")
_UI_WORD = re.compile(r"pass|secret|token|key|input|field|test|label|button|form|name|type|value")
_PASSWORD_NAME = re.compile(r"(?i)passw|passphrase|passcode|pwd|(?:^|[^a-z])(?:pass|pw)$|PASS$")
_EXPANSION = re.compile(r"^\$|\$\{|\$\(|`|^<|^%[A-Z_]+%$|^\{|^\{\{")


def is_placeholder(value: str) -> bool:
    """Return True if a value stands for a secret instead of being one: ``<key>``, ``${KEY}``."""
    return (
        value.lower() in DUMMY_PASSWORDS
        or _PLACEHOLDER_WORDS.search(value) is not None
        or _EXPANSION.search(value) is not None
        or len(set(value.lower())) < 3
    )


def is_given_secret(value: str, shortest: int = 4) -> bool:
    """Judge a value that stands where only a secret can stand: any literal is one."""
    return len(value) >= shortest and not is_placeholder(value) and not _REFERENCE.match(value)


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
    if _PLACEHOLDER_WORDS.search(value) or _REFERENCE.match(value):
        return False
    if _WORDS.match(value):
        simple = is_password(name) and any(c.isdigit() for c in value) and len(value) >= 6
        return simple and (value.isalnum() or not _UI_WORD.search(value))
    if value.startswith(("/", "./", "../", "~", "--", "$")) or "://" in value:
        return False
    if value.endswith(":"):
        return False
    has_digit = any(c.isdigit() for c in value)
    has_letter = any(c.isalpha() for c in value)
    if not (has_digit and has_letter):
        has_sign = any(not c.isalnum() and c not in "_-./:" for c in value)
        return has_letter and has_sign and is_password(name) and len(value) >= 8
    if is_password(name):
        return len(value) >= 6
    return len(value) >= 16 and entropy(value) >= 3.0


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
