"""Secrets that a name gives away: ``DB_PASSWORD=...``, ``"apiKey": "..."``.

Belongs here: which names tell of a secret, and which values are literal secrets rather
than code. Does not belong here: secrets with a shape of their own
(``redaction.tables.patterns``).
"""

import re
from collections.abc import Iterator

from composer_pipeline.redaction.literals import (
    is_literal_secret,
    is_long_random,
    is_password,
    is_placeholder,
)
from composer_pipeline.redaction.tables.patterns import LINE_HEAD

ASSIGNMENT_LITERALS = (
    "key", "secret", "token", "pass", "pwd", "credential", "salt", "mnemonic", "dsn",
)  # fmt: skip
#: What every assignment matches, in the syntax that ``re`` and Hyperscan share; on JSON
#: source too.
ASSIGNMENT_GATE = (
    r"(?:key|secret|token|pass|pwd|credential|salt|mnemonic|dsn)[a-z0-9_.-]*\\*[\"'`]?[\])]?(?:\s|\\[nrt])*"
    r"(?::=|=>|=|:)(?:\s|\\[nrt])*"
    # No secret is letters and joints alone; of quotes and `=` one stands inside it.
    r"(?:[a-z_./:-]*[0-9+!@#%^&*~?$|]|\\*[\"'`][a-z_./:-]*[^a-z_./:\s\\'\"`=-]"
    r"|(?:\\*[\"'`])?[a-z_./:-]*[a-z](?:=|\\*[\"'`])[a-z0-9=])"
)

_JOIN = r"[A-Za-z0-9_-]{0,40}+(?P<join>\\*[\"'`]?[\])]?\s{0,4}(?::=|=>|=|:)\s{0,4})"
_JOINED = re.compile(_JOIN)
_AFTER = re.compile(
    rf"{_JOIN}(?P<quote>\\*[\"'`])?(?P<value>[A-Za-z0-9+/_=!@#%^&*~.:?$|-]{{6,500}})"
)
# Between quotes a value may have any sign but white space.
_QUOTED = re.compile(
    rf"{_JOIN}(?P<quote>\\*[\"'`])(?P<value>(?:(?!(?P=quote))[^\s\\]){{6,500}})(?P=quote)"
)
_SECRET_NAME = re.compile(
    r"(?i:api[_-]?key|secret|token|passw(?:or)?d|passphrase|passcode|access[_-]?key|private[_-]?key"
    r"|auth[_-]?key|signing[_-]?key|encryption[_-]?key|master[_-]?key|license[_-]?key|account[_-]?key"
    r"|shared[_-]?key|session[_-]?key|deploy[_-]?key|app[_-]?key|service[_-]?key|hmac[_-]?key|credential"
    r"|mnemonic)"
    r"|(?:^|_)(?:KEY|PWD|PASS|SALT|DSN)$|(?i:^(?:.*[_.-])?(?:pwd|pass|salt)$)|[a-z](?:Pass|Pwd)$"
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
_REPLACED = re.compile(r"SECRET_[A-Z0-9_]+_[0-9a-f]{4}")
_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
# Code between quotes: a template, a selector, a call.
_CALL = re.compile(r"\w\(|[\[({]{2}|=>|\$\w|^[.#][a-z]|^\[.*\]$|</|\{\w+\}")
_TYPE = re.compile(
    r"(?i)(?:u?int|float|utf|bytes|string|str|char|varchar|text|uuid|h|sha|md|base)-?\d+"
    r"[a-z]{0,3}\d{0,2}(?:[^a-z0-9].*)?"
)


def find_assignments(text: str) -> Iterator[tuple[int, int]]:
    """Yield ``(start, end)`` of the literal secrets assigned in ``text``, in order."""
    lowered = text.lower() if text.isascii() else _ascii_lower(text)
    found: dict[int, int] = {}
    for word in ASSIGNMENT_LITERALS:
        at = lowered.find(word)
        while at >= 0:
            end = at + len(word)
            match = None
            if _JOINED.match(text, end):
                match = _QUOTED.match(text, end) or _AFTER.match(text, end)
            if match is not None and match.start("value") not in found:
                name = _full_name(text, at, match.start("join"))
                if stop := _value_end(match, name):
                    found[match.start("value")] = stop
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
    # What stands for a secret names none: `[SECRET_AWS_KEY_3f2a]: "..."`.
    if text[start - 1 : start] == "[" and _REPLACED.fullmatch(text, start, end):
        return ""
    return text[start:end]


def _value_end(match: re.Match[str], name: str) -> int:
    """Return where the secret of an assignment ends; 0 if it assigns none."""
    if not is_secret_name(name):
        return 0
    value, quote, join = match["value"], match["quote"], match["join"]
    text = match.string
    if quote and (is_placeholder(value) or _CALL.search(value)):
        return 0
    if quote:
        end = match.end("value")
        closed = text.startswith(quote, end)
        return end if closed and is_literal_secret(name, value) else 0
    following = text[match.end() : match.end() + 1]
    if following in ("(", "[", "{", "<") or value.startswith("$") or "${" in value:
        return 0
    # Without quotes only shell and dotenv assignments hold a literal: KEY=value,
    shell = join == "=" and name.upper() == name
    value = value.rstrip(".,:?!")
    if shell:
        return match.start("value") + len(value) if is_literal_secret(name, value) else 0
    # and configuration files: `password: value`, `db.password=value` on a line of its own.
    named = match.start("join") - len(name)
    before = text[max(0, named - 120) : named]
    alone = join.strip() in (":", "=") and _alone(before, following)
    if alone and join.strip() == "=" and join != "=" and not _in_section(text, match.start()):
        return 0  # code assigns like this too
    literal = not value.isidentifier() or is_long_random(value)
    if alone and literal and not _TYPE.fullmatch(value):
        return match.start("value") + len(value) if is_literal_secret(name, value) else 0
    if alone and is_password(name) and re.fullmatch(r"[A-Za-z]+[0-9]+[A-Za-z0-9]*", value):
        return match.start("value") + len(value) if not _TYPE.fullmatch(value) else 0
    return 0


# What an INI or TOML file has before its settings.
_SECTION = re.compile(r"(?m)\[[\w.:/ \"-]{2,60}\][ \t]*\r?$")
_NUMBER = re.compile(r"(?:[ \t]*\d{1,6}(?:→|\t|: ?))?")
_HEAD = re.compile(rf"{LINE_HEAD}[ \t]*(?:- |export )?[\"']?(?P<path>[A-Za-z0-9_./:@\[\]-]*)$")


def _in_section(text: str, end: int) -> bool:
    """Say whether a line such as ``[database]``, with a number before it or not, stands above."""
    return any(
        _NUMBER.fullmatch(text, text.rfind("\n", 0, m.start()) + 1, m.start())
        for m in _SECTION.finditer(text, 0, end)
    )


def _alone(before: str, following: str) -> bool:
    at = max(before.rfind("\n"), before.rfind("\\n") + 1)
    head = _HEAD.fullmatch(before[at + 1 :] if at >= 0 else before)
    if head is None or following not in ("", "\n", "\r", "\\"):
        return False
    return not head["path"] or head["path"][-1] in "./:-_["


def is_secret_name(name: str) -> bool:
    """Say whether what has this name is a secret."""
    return _SECRET_NAME.search(name) is not None and not _ABOUT.search(name)
