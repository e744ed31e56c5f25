"""Secrets that a name gives away: ``DB_PASSWORD=...``, ``"apiKey": "..."``.

Belongs here: which names tell of a secret, and which values are literal secrets rather
than code. Does not belong here: secrets with a shape of their own
(``redaction.patterns``).
"""

import math
import re
from collections import Counter
from collections.abc import Iterator

ASSIGNMENT_LITERALS = ("key", "secret", "token", "pass", "pwd", "credential")
#: What every assignment matches, in the syntax that ``re`` and Hyperscan share; on JSON
#: source too.
ASSIGNMENT_GATE = (
    r"(?:key|secret|token|pass|pwd|credential)[a-z0-9_-]*\\*[\"']?\]?(?:\s|\\[nrt])*"
    r"(?::=|=>|=|:)(?:\s|\\[nrt])*\\*[\"'`]?[a-z0-9+/_=!@#%^&*~.:?$|-]{6}|\"value\":\""
)

_AFTER = re.compile(
    r"[A-Za-z0-9_-]{0,40}"
    r"(?P<join>\\*[\"']?\]?\s{0,4}(?::=|=>|=|:)\s{0,4})"
    r"(?P<quote>\\*[\"'`])?"
    r"(?P<value>[A-Za-z0-9+/_=!@#%^&*~.:?$|-]{6,500})"
)
_SECRET_NAME = re.compile(
    r"(?i:api[_-]?key|secret|token|passw(?:or)?d|passphrase|access[_-]?key|private[_-]?key"
    r"|auth[_-]?key|signing[_-]?key|encryption[_-]?key|credential)"
    r"|(?:^|_)(?:KEY|PWD|PASS)$|(?i:^(?:.*[_-])?pwd$)"
)
# What a name is about when it goes on: `passwordField` is a field, not a password.
_ABOUT = re.compile(
    r"(?i)(?:[_-]?(?:fields?|inputs?|labels?|placeholder|names?|ids?|types?|length|len|count|url|uri"
    r"|path|file|filename|dir|errors?|msg|message|policy|hint|regex|pattern|format|prefix|suffix"
    r"|header|selector|element|el|ref|btn|button|form|page|route|screen|component|class|style"
    r"|state|status|budget|limit|usage|kind|version|endpoint|provider|manager|service|store|scope"
    r"|arn|ref|testid|test-id|desc|description|title|icon|color|index|idx|ttl|expiry|expires"
    r"|expires_at|issuer|audience|alg|algorithm|param|params|schema|validator|env|var|variable))+$"
)
_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_PLACEHOLDER_WORDS = re.compile(
    r"(?i)your|example|placeholder|change_?me|redacted|dummy|xxxx|\*\*\*|\.\.\.|insert|replace|<|todo"
    r"|secret_|email_"
)
_REFERENCE = re.compile(r"^[A-Za-z_$][A-Za-z_]*(?:(?:\.|::|->|\?\.)[A-Za-z_$][A-Za-z0-9_]*)+$")
# Words and small numbers: `password-input-2`, `correct-horse-42`, `hunter22`.
_WORDS = re.compile(r"^[a-z]+[0-9]{0,3}(?:[-_.:](?:[a-z]+[0-9]{0,3}|v?[0-9]{1,4}))*$")
_UI_WORD = re.compile(r"pass|secret|token|key|input|field|test|label|button|form|name|type|value")
_TYPE = re.compile(
    r"(?i)(?:u?int|float|utf|bytes|string|str|char|varchar|text|uuid|h|sha|md|base)-?\d+.*"
)


def find_assignments(text: str) -> Iterator[tuple[int, int]]:
    """Yield ``(start, end)`` of the literal secrets assigned in ``text``, in order."""
    lowered = text.lower() if text.isascii() else _ascii_lower(text)
    found: dict[int, int] = {}
    for word in ASSIGNMENT_LITERALS:
        at = lowered.find(word)
        while at >= 0:
            match = _AFTER.match(text, at + len(word))
            if match is not None and match.start("value") not in found:
                name = _full_name(text, at, match.start("join"))
                end = _value_end(match, name)
                if end:
                    found[match.start("value")] = end
            at = lowered.find(word, at + len(word))
    yield from sorted(found.items())


def _ascii_lower(text: str) -> str:
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


def _full_name(text: str, at: int, end: int) -> str:
    """Return the assigned name, with what stands before the telling word."""
    start = at
    while start > 0 and at - start < 60 and text[start - 1] in _NAME_CHARS:
        start -= 1
    if text[start - 1 : start] == "\\" and text[start] in "nrt":
        start += 1
    return text[start:end]


def _value_end(match: re.Match[str], name: str) -> int:
    """Return where the secret of an assignment ends; 0 if it assigns none."""
    if not is_secret_name(name):
        return 0
    value, quote, join = match["value"], match["quote"], match["join"]
    text = match.string
    if quote:
        closed = text.startswith(quote, match.end())
        return match.end() if closed and is_literal_secret(name, value) else 0
    following = text[match.end() : match.end() + 1]
    if following in ("(", "[", "{", "<") or value.startswith("$") or "${" in value:
        return 0
    # Without quotes only shell and dotenv assignments hold a literal: KEY=value,
    shell = join == "=" and name.upper() == name
    value = value.rstrip(".,:?!")
    if shell:
        return match.start("value") + len(value) if is_literal_secret(name, value) else 0
    # and configuration files: `password: value` on a line of its own.
    before = text[max(0, match.start() - 80) : match.start()]
    alone = join.strip() == ":" and join.startswith(":") and _alone(before, name, following)
    if alone and not _TYPE.fullmatch(value) and not value.isidentifier():
        return match.start("value") + len(value) if is_literal_secret(name, value) else 0
    if alone and _is_password(name) and re.fullmatch(r"[A-Za-z]+[0-9]+[A-Za-z0-9]*", value):
        return match.start("value") + len(value) if not _TYPE.fullmatch(value) else 0
    return 0


def _alone(before: str, name: str, following: str) -> bool:
    at = max(before.rfind("\n"), before.rfind("\\n") + 1)
    head = before[at + 1 :] if at >= 0 else before
    lead = head.lstrip(" \t").removeprefix("- ")
    return name.startswith(lead.strip("\"'")) and following in ("", "\n", "\r", "\\")


def is_secret_name(name: str) -> bool:
    """Say whether what has this name is a secret."""
    return _SECRET_NAME.search(name) is not None and not _ABOUT.search(name)


def is_literal_secret(name: str, value: str) -> bool:
    """Tell a literal secret from an identifier, a path, a number or an example."""
    if _PLACEHOLDER_WORDS.search(value) or _REFERENCE.match(value):
        return False
    if _WORDS.match(value):
        simple = _is_password(name) and any(c.isdigit() for c in value) and len(value) >= 6
        return simple and (value.isalnum() or not _UI_WORD.search(value))
    if value.startswith(("/", "./", "../", "~", "--", "$")) or "://" in value:
        return False
    if value.endswith(":"):
        return False
    has_digit = any(c.isdigit() for c in value)
    has_letter = any(c.isalpha() for c in value)
    if not (has_digit and has_letter):
        has_sign = any(not c.isalnum() and c not in "_-./:" for c in value)
        return has_letter and has_sign and _is_password(name) and len(value) >= 8
    if _is_password(name):
        return len(value) >= 6
    return len(value) >= 16 and _entropy(value) >= 3.0


def _is_password(name: str) -> bool:
    return re.search(r"(?i)passw|passphrase|pwd|PASS$", name) is not None


def _entropy(value: str) -> float:
    counts = Counter(value)
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
