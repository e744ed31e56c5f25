"""Secrets that a name gives away: ``DB_PASSWORD=...``, ``"apiKey": "..."``, cookies, manifests."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

from composer_pipeline.redaction.patterns import LINE_HEAD
from composer_pipeline.redaction.secrets import (
    Finding,
    is_given_secret,
    is_literal_secret,
    is_long_random,
    is_password,
    is_placeholder,
)

#: Yields what is private in a text.
Finder = Callable[[str], Iterable[Finding]]

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
    """Return True if a line such as ``[database]``, numbered or not, stands above."""
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
    """Return True if a value with this name is a secret."""
    return _SECRET_NAME.search(name) is not None and not _ABOUT.search(name)


#: Judges a string under a name; returns what it becomes. ``certain``: the structure says that
#: it is a secret, whatever its name.
Judge = Callable[[str, str, bool], str]

#: The private numbers of a key as a JSON Web Key writes them.
_PRIVATE_PARTS = frozenset(("d", "k", "p", "q", "dp", "dq", "qi"))
_PAIR = re.compile(r"[A-Za-z][A-Za-z0-9_. -]{2,60}")


def with_keys(item: Any, judge: Judge, key: str = "") -> Any:
    """Return a JSON value whose strings were passed to ``judge`` together with their keys.

    Beside objects these are pairs of a name and a value: ``["Cookie", "sid=…"]``,
    ``{"name": "Cookie", "value": "sid=…"}``.
    """
    if isinstance(item, str):
        return judge(key, item, False) if key else item
    if isinstance(item, list):
        if (
            len(item) == 2
            and all(isinstance(part, str) for part in item)
            and _PAIR.fullmatch(item[0])
        ):
            return [item[0], judge(item[0], item[1], False)]
        return [part if isinstance(part, str) else with_keys(part, judge) for part in item]
    if not isinstance(item, dict):
        return item
    names = (item.get(name) for name in ("name", "key", "header", "Name", "Key"))
    named = next((name for name in names if isinstance(name, str)), "")
    secret = item.get("kind") == "Secret"
    sensitive = item.get("sensitive") is True
    private = _PRIVATE_PARTS if isinstance(item.get("kty"), str) else frozenset[str]()
    out: dict[str, Any] = {}
    for name, part in item.items():
        if secret and name in ("data", "stringData") and isinstance(part, dict):
            out[name] = {
                inner: judge(inner, text, True) if isinstance(text, str) else text
                for inner, text in part.items()
            }
        elif isinstance(part, str):
            of = named if named and name in ("value", "Value", "val") else name
            out[name] = judge(of, part, (sensitive and name == "value") or name in private)
        elif isinstance(part, list) and all(isinstance(text, str) for text in part):
            judged = [judge(name, text, False) for text in part]
            # Two strings may also be a name and its value.
            out[name] = with_keys(part, judge) if len(part) == 2 and judged == part else judged
        else:
            out[name] = with_keys(part, judge, name)
    return out


# -- cookies -----------------------------------------------------------------------------

_COOKIES = re.compile(
    r"(?<![A-Za-z0-9_-])(?i:set-cookie2?|cookies?)\\*[\"'`]?\s{0,3}(?::|=>|,|=)\s{0,3}\\*[\"'`]?"
    r"(?P<pairs>[A-Za-z0-9_.%-]{1,60}=[^\n\r\"'`\\]{1,4000})"
)
COOKIE_GATE = r"cookies?2?[\\\"'`]*\s{0,3}(?::|=>|,|=)\s{0,3}[\\\"'`]*[a-z0-9_.%-]{1,60}="
_COOKIE = re.compile(r"(?:^|;\s?)(?P<name>[A-Za-z0-9_.%-]{1,60})=(?P<value>[^;\s,]{1,4000})")
_NOT_COOKIES = frozenset(
    ("expires", "max-age", "path", "domain", "samesite", "version", "priority")
)
_SESSION = re.compile(
    r"(?i)sess|sid|token|auth|csrf|xsrf|jwt|remember|login|secret|ticket|key|user"
)
_PLAIN_COOKIE = re.compile(r"[A-Za-z]{1,16}(?:[-_][A-Za-z]{1,12}){0,3}|[0-9]{1,4}|[01]|GA?\d\.\d.*")


def cookie_values(text: str, start: int = 0) -> Iterator[Finding]:
    """Yield the values of ``name=value; name=value`` that may open a session."""
    for match in _COOKIE.finditer(text):
        name, value = match["name"], match["value"]
        if name.lower() in _NOT_COOKIES or is_placeholder(value) or _PLAIN_COOKIE.fullmatch(value):
            continue
        if len(value) >= (6 if _SESSION.search(name) else 10):
            yield Finding(start + match.start("value"), start + match.end("value"), "COOKIE")


def find_cookies(text: str) -> Iterator[Finding]:
    """Yield the values of cookies in headers, in any notation."""
    for match in _COOKIES.finditer(text):
        yield from cookie_values(match["pairs"], match.start("pairs"))


# -- Kubernetes -------------------------------------------------------------------------

_SECRET = re.compile(rf"(?m)^{LINE_HEAD}[ \t]*(?:- )?kind:[ \t]*[\"']?Secret[\"']?[ \t]*\r?$")
_DOCUMENT_END = re.compile(rf"(?m)^{LINE_HEAD}(?:---|\.\.\.)[ \t]*\r?$")
_DATA = re.compile(rf"(?m)^{LINE_HEAD}(?P<indent>[ \t]*)(?:data|stringData):[ \t]*\r?\n")
_ENTRY = re.compile(
    rf"{LINE_HEAD}(?P<indent>[ \t]+)[\"']?[A-Za-z0-9_.-]+[\"']?:[ \t]+(?P<q>[\"']?)"
    r"(?P<value>[^\s\"'#|>][^\n\r\"']{2,8000}?)(?P=q)[ \t]*(?:#[^\n]*)?\r?(?:\n|$)"
)
_OTHER = re.compile(rf"{LINE_HEAD}(?P<indent>[ \t]*)[^\n]*(?:\n|$)")


def find_kubernetes(text: str) -> Iterator[Finding]:
    """Yield the values below ``data:`` and ``stringData:`` of a Secret in YAML."""
    starts = [0, *(m.end() for m in _DOCUMENT_END.finditer(text)), len(text)]
    for begin, end in pairwise(starts):
        if not _SECRET.search(text, begin, end):
            continue
        for data in _DATA.finditer(text, begin, end):
            yield from _entries(text, data.end(), end, len(data["indent"]))


def _entries(text: str, at: int, end: int, indent: int) -> Iterator[Finding]:
    while at < end:
        match = _ENTRY.match(text, at, end)
        if match is not None and len(match["indent"]) > indent:
            if is_given_secret(match["value"], 3):
                yield Finding(*match.span("value"), "KUBERNETES")
            at = match.end()
            continue
        other = _OTHER.match(text, at, end)
        if other is None or len(other["indent"]) <= indent or other.end() == at:
            return
        at = other.end()


#: Id, literals, function and gate of each rule; gates hold on JSON source too.
STRUCTURE_FINDERS: tuple[tuple[str, tuple[str, ...], Finder, str], ...] = (
    ("cookies", ("cookie",), find_cookies, COOKIE_GATE),
    ("kubernetes", ("secret",), find_kubernetes, r"kind:(?:\s|\\[\"'])*secret"),
)
