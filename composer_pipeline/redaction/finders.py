"""Secrets that a name gives away: ``DB_PASSWORD=...``, ``"apiKey": "..."``, cookies, manifests."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

from composer_pipeline.redaction import patterns
from composer_pipeline.redaction.patterns import LINE_HEAD
from composer_pipeline.redaction.secrets import (
    Finding,
    is_assigned_secret,
    is_given_secret,
    is_long_random,
    is_password,
    is_placeholder,
)

#: Yields what is private in a text.
Finder = Callable[[str], Iterable[Finding]]

ASSIGNMENT_LITERALS = (
    "key", "secret", "token", "pass", "pwd", "credential", "salt", "mnemonic", "dsn",
    "rediscli_auth",
)  # fmt: skip
#: What every assignment matches, in the syntax that ``re`` and Hyperscan share; on JSON
#: source too.
ASSIGNMENT_GATE = (
    r"(?:(?:api|access|private|auth|sign|signing|encryption|decryption|validation|master|license|account|shared|session"
    r"|deploy|app|service|hmac)[_-]?key|secret|token|pass|pwd|credential|salt|mnemonic"
    r"|rediscli_auth|(?-i:KEY|DSN))[a-z0-9_.-]*\\*[\"'`]?[\])]?\s*(?::=|=>|=|:).{4}"
)

_JOINED = re.compile(
    r"[A-Za-z0-9_-]{0,40}+(?P<join>\\*[\"'`]?[\])]?\s{0,4}"
    r"(?::=|=>(?=\s|\\*[\"'`])|=|:)(?:\s(?!\0)){0,4})"
)
_SECRET_NAME = re.compile(
    r"(?i:api[_-]?key|secret|token|passw(?:or)?d|passphrase|passcode|access[_-]?key|private[_-]?key"
    r"|auth[_-]?key|signing[_-]?key|(?:en|de)cryption[_-]?key|validation[_-]?key|master[_-]?key|license[_-]?key|account[_-]?key"
    r"|shared[_-]?key|session[_-]?key|deploy[_-]?key|app[_-]?key|service[_-]?key|hmac[_-]?key|credential"
    r"|mnemonic|^sshpass$|^rediscli_auth$)"
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
_COUNT = re.compile(r"[0-9.]{1,12}[\s,;}\])]")
_NAME_CHARS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


def find_assignments(text: str) -> Iterator[tuple[int, int]]:
    """Yield ``(start, end)`` of the literal secrets assigned in ``text``, in order."""
    lowered = ascii_lower(text)
    found: dict[int, int] = {}
    seen = set()
    for word in ASSIGNMENT_LITERALS:
        at = lowered.find(word)
        while at >= 0:
            end = at + len(word)
            joined = _JOINED.match(text, end)
            if joined is not None and joined.end() not in seen:
                seen.add(joined.end())
                name = _full_name(text, at, joined.start("join"))
                counted = _COUNT.match(text, joined.end()) and not is_password(name)
                if is_secret_name(name) and not counted:
                    start, stop = _Assignment(text, name, joined).secret()
                    if stop > start:
                        found[start] = stop
            at = lowered.find(word, end)
    yield from sorted(found.items())


def ascii_lower(text: str) -> str:
    """Return a text of the same length whose ASCII letters are lower case."""
    if text.isascii():
        return text.lower()
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


class _Assignment:
    """A name, what joins it to its value, and the line it stands in."""

    def __init__(self, text: str, name: str, joined: re.Match[str]) -> None:
        self.text, self.name, self.at, self.join = text, name, joined.end(), joined["join"]
        named = joined.start("join") - len(name)
        quote = patterns.QUOTE.match(self.join)
        self.keyed, self.sign = quote is not None, self.join.strip("\\\"'`]) \t\r\n")
        of_name = quote[0] if quote else ""
        self.begin, self.stop, self.around = _line(text, named, self.at, of_name)
        self.head = text[self.begin : named]
        self.own = patterns.OWN_LINE.fullmatch(self.head)
        led = self.own is not None and self.own["lead"] is not None
        among = name.startswith("ansible_") or patterns.AMONG_WORDS.search(self.head) is not None
        self.shell = self.join == "=" and (name.upper() == name or led or among)
        ends = text[self.at : self.stop].rstrip().endswith("}")
        self.flow = ends and self.sign == ":" and patterns.FLOW.fullmatch(self.head) is not None

    def secret(self) -> tuple[int, int]:
        """Return where the value begins and ends if it is a secret; else nothing."""
        opened = patterns.OPENED.match(self.text, self.at)
        # A word of the shell may have several quotes.
        if opened and not (self.shell and not opened["slashes"]):
            quote = opened["slashes"] + opened["quote"]
            # Nothing that is code goes on behind the end of a string with a letter.
            inside = quote == self.around and not self.text[opened.end() :][:1].isalnum()
            if not self.around or self.keyed or not inside:
                return self._quoted(opened)
        block = patterns.BLOCK.match(self.text, self.at) if self.own and self.sign == ":" else None
        if block is not None:
            return self._judged(*block.span("value" if block["value"] else "escaped"))
        nothing = "\n" in self.join or self.stop <= self.at
        if nothing or self.join[-1] == self.text[self.at] == ":":
            return 0, 0
        return self._word() if self.shell else self._plain()

    def _judged(
        self, start: int, end: int, *, data: bool = True, word: bool = False
    ) -> tuple[int, int]:
        value = patterns.ESCAPED_LETTER.sub(lambda m: chr(int(m[1], 16)), self.text[start:end])
        good = is_assigned_secret(self.name, value, data=data, word=word)
        return (start, end) if good else (0, 0)

    def _quoted(self, opened: re.Match[str]) -> tuple[int, int]:
        start = opened.end()
        end = _closing(self.text, start, opened["quote"], len(opened["slashes"]))
        value = self.text[start:end]
        if "\n" in value.strip() or (opened["prefix"] and not is_password(self.name)):
            return 0, 0
        data = self.shell or self.flow or "$env:" in self.head.lower() or "<" in self.head
        data = data or (self.keyed and self.sign == ":")
        own = self.own is not None and not opened["prefix"]
        data = data or (own and _neighbours(self.text, self.begin, self.stop) > 0)
        if not data and patterns.CALL.fullmatch(value):
            return 0, 0
        return self._judged(start, end, data=data, word=self.shell)

    def _word(self) -> tuple[int, int]:
        """Read ``NAME=value``: a word, or all of a line that goes on with no command."""
        start, end = argument(self.text, self.at, self.stop)
        whole = self.own is not None or (self.around and self.head.endswith(self.around))
        if whole and not patterns.COMMAND.search(self.text, end, self.stop):
            comment = patterns.COMMENT.search(self.text, end, self.stop)
            stop = comment.start() if comment else self.stop
            start, end = argument(self.text, self.at, stop, whole=True)
        elif self.own is None:
            end = start + len(self.text[start:end].rstrip(".,:?!;"))
        return self._judged(start, end, word=True)

    def _plain(self) -> tuple[int, int]:
        """Read a setting without quotes: ``password: value`` on a line of its own."""
        value = patterns.COMMENT.sub("", self.text[self.at : self.stop], 1).rstrip()
        inside = patterns.IN_FLOW.match(value) if self.flow else None
        if inside is not None:
            value = inside[0].rstrip()
        elif self.own is None or self.sign not in ("=", ":") or (self.keyed and self.sign == "="):
            return 0, 0
        evidence = _neighbours(self.text, self.begin, self.stop)
        section = self.sign == "=" and _in_section(self.text, self.begin)
        if section or (inside is not None and (evidence or self.around)):
            evidence = 2
        code = patterns.EXPRESSION.fullmatch(value) is not None
        random = is_long_random(value)
        sure = random or not code or _MIXED.fullmatch(value) is not None
        word = not is_password(self.name) and value.isidentifier() and not random
        passes = self.name.lower() == "pass" and (" " in value or self.name != "pass")
        # Code assigns like this too, and ends its lines so.
        assigns = self.sign == "=" and self.join != "=" and not section
        ends = value.endswith((",", ";", "{", "(", "["))
        closes = value.endswith((")", "]", "}")) and patterns.EXPRESSION.fullmatch(
            value.rstrip(")]}")
        )
        doubt = assigns or ends or closes or (not sure and not value.isalnum())
        if word or passes or patterns.TYPE.fullmatch(value):
            return 0, 0
        if evidence < (2 if doubt else not sure) or (code and ends) or (assigns and not sure):
            return 0, 0
        return self._judged(self.at, self.at + len(value))


_LINES = re.compile(r"\r?\n|\\+n")
_MIXED = re.compile(r"[A-Za-z]+[0-9]+[A-Za-z0-9]*")
_LONGEST = 2000


def _line(text: str, named: int, at: int, of_name: str = "") -> tuple[int, int, str]:
    """Return where the line of a name begins and ends, and the quote of the string it is in."""
    begin = max(text.rfind("\n", 0, named) + 1, named - 400)
    stop = text.find("\n", at, at + _LONGEST)
    stop = min(len(text), at + _LONGEST) if stop < 0 else stop
    slashes, around = 0, ""
    for mark in patterns.ESCAPED_BREAK.finditer(text, begin, named):
        begin, slashes = mark.end(), len(mark[1])
    for mark in patterns.QUOTE.finditer(text, begin, named):
        apostrophe = mark[0] == "'" and text[mark.start() - 1].isalnum()
        around = "" if around == mark[0] else around or ("" if apostrophe else mark[0])
    around = "" if around == of_name else around
    if around and text[begin:named].lower().endswith('set "'):
        return begin, max(at, text.rfind(around, at, stop)), around  # the last quote counts
    if around:
        slashes = slashes or (len(around) if around[-1] == '"' else 0)
        end = _closing(text, at, around[-1], len(around) - 1)
        stop = end if end > at or text.startswith(around, at) else stop
    if slashes:
        for mark in patterns.ESCAPED_BREAK.finditer(text, at, stop):
            if len(mark[1]) % (2 * slashes) == slashes:
                return begin, mark.start(), around
    return begin, stop, around


def _closing(text: str, at: int, quote: str, slashes: int) -> int:
    """Return where a string ends that a quote behind so many backslashes opened."""
    stop = text.find("\n", at, at + _LONGEST) if len(quote) == 1 else -1
    stop = min(len(text), at + _LONGEST) if stop < 0 else stop
    literal, done, doubled = at, at, at
    for mark in re.compile(rf"(\\*){quote}").finditer(text, at, stop):
        start = mark.end() - len(quote) - slashes
        if len(mark[1]) % (2 * slashes + 2) == slashes and start >= done:
            if slashes or len(quote) > 1 or text[start + 1 : start + 2] != quote:
                return start
            done = start + 2  # a quote is written twice, if the string goes on and ends
            doubled = start if doubled == at else doubled
        elif literal == at and patterns.CLOSED.match(text, mark.end(), stop):
            literal = mark.end() - len(quote)
    return literal if literal > at else doubled


def argument(text: str, at: int, stop: int, *, whole: bool = False) -> tuple[int, int]:
    """Return where a word of the shell (or all) begins and ends, without quotes around it."""
    opened = patterns.OPENED.match(text, at)
    if opened and opened["slashes"]:
        return opened.end(), _closing(text, opened.end(), opened["quote"], len(opened["slashes"]))
    word = None if whole else patterns.SHELL_WORD.match(text, at, stop)
    end = word.end() if word else stop
    quoted = end - at > 1 and text[at] in "\"'" and text[at] == text[end - 1]
    return at + quoted, end - quoted


def _neighbours(text: str, begin: int, stop: int) -> int:
    """Return what the lines around are: 2 settings, 1 none at all, 0 code or other things."""
    before, after = text[max(0, begin - 300) : begin], text[stop : stop + 300]
    edges = [m.end() for m in patterns.EDGE.finditer(before)]
    edge = patterns.EDGE.search(after)
    found = _LINES.split(before[edges[-1] :])[1:] if edges else _LINES.split(before)
    after_edge = _LINES.split(after[: edge.start()])[:-1] if edge else _LINES.split(after)
    found = found[-4:] + after_edge[:4]
    lines = [line for line in (re.sub(f"^{LINE_HEAD}", "", x).strip(" \t+") for x in found) if line]
    if not lines or any(map(patterns.CODE_LINE.search, lines)):
        return int(not lines)
    return 2 * any(map(patterns.SETTING_LINE.fullmatch, lines))


def _in_section(text: str, end: int) -> bool:
    """Return True if a line such as ``[database]``, numbered or not, stands above."""
    return any(
        patterns.BEFORE_SECTION.fullmatch(text, text.rfind("\n", 0, m.start()) + 1, m.start())
        for m in patterns.SECTION.finditer(text, 0, end)
    )


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return True if a value with this name is a secret."""
    return _SECRET_NAME.search(name) is not None and not _ABOUT.search(name)


# -- options -----------------------------------------------------------------------------

_TELLING = (
    r"(?:password|passwd|passphrase|token|secret|credential"
    r"|(?:api|access|secret|private|auth)[-_]?key)"
)
_OPTION = re.compile(
    rf"(?<![A-Za-z0-9-])--?(?:[A-Za-z]+[-_.])*(?i:{_TELLING})"
    r"(?:=|(?P<blank> )|\\*[\"'],\s?(?=\\*[\"']))"
    r"|(?<![A-Za-z0-9_-])(?:(?i:setx|setenv)|ENV|set(?: -[A-Za-z]+| --[a-z]+){1,3})"
    rf"[ \t]{{1,3}}(?P<variable>[A-Za-z0-9_]{{0,40}}(?i:{_TELLING}))[ \t]{{1,3}}"
)
OPTION_GATE = (
    rf"-(?:[a-z]+[-_.])*{_TELLING}(?:[= ]|[\\\"']+,)"
    rf"|(?:setx|setenv|env|set(?:\s-{{1,2}}[a-z]+)+)\s+[a-z0-9_]*{_TELLING}\s"
)
# What manuals write for a value; and how their sentences go on.
_MANUAL = re.compile(
    r"(?i:passw|secret)|^[A-Z_\])}]+$|^(?i:option|flag|arg|param|require|instead|provided|supplied)"
)
_GOES_ON = re.compile(r"[ \t]+(?![-|&;<>#\\)]|\d?>)[^\s=]+(?=\s|$)")


def find_options(text: str) -> Iterator[Finding]:
    """Yield the secrets of ``--password=...``, ``--token ...`` and ``setx NAME ...``."""
    for match in _OPTION.finditer(text):
        _, stop, _ = _line(text, match.start(), match.end())
        start, end = argument(text, match.end(), stop)
        if match["variable"] and not patterns.COMMAND.search(text, end, stop):
            start, end = argument(text, match.end(), stop, whole=True)
        value = text[start:end]
        plain = match["blank"] and value.isalpha() and text[start - 1] == " "
        if not is_given_secret(value, 6) or (plain and _GOES_ON.match(text, end, stop)):
            continue
        other = re.search("(?i)key|token|secret|cred", match[0]) or _MANUAL.search(value)
        if re.search(r"[0-9!@#%^&*]", value) or not other:
            yield Finding(start, end, "OPTION_PASSWORD")


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
COOKIE_GATE = r"cookies?2?[\\\"'`]*\s{0,3}(?::|=>|,|=)\s{0,3}[\\\"'`]*[a-z0-9_.%-]+="
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
    r"(?P<value>[^\s#|>][^\n\r]{2,8000}?)(?P=q)[ \t]*(?:[ \t]#[^\n]*)?\r?(?:\n|$)"
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
    (
        "options",
        ("passw", "passphrase", "token", "secret", "credential", "key"),
        find_options,
        OPTION_GATE,
    ),
    ("kubernetes", ("secret",), find_kubernetes, r"kind:(?:\s|\\[\"'])*secret"),
)
