"""Decodings of a text, and the way back to it: escapes, entities, wrapped lines, base64.

A text is decoded as a whole, so that a secret keeps the words that give it away:
``password%3Dhunter2%21`` reads ``password=hunter2!``. What is found there is replaced in
the text itself, from the first escape it touches to the last; everything else stays.
"""

import base64
import binascii
import html
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress

from composer_pipeline.redaction.secrets import EXAMPLE

#: Lines of these lengths, followed by one that does not begin with a space, were wrapped.
WIDTHS = frozenset((64, 72, 76, 78, 79, 80, 100, 120, 132, 160, 200))
#: An escape: where it begins and ends, and what it stands for.
Escape = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Decoding:
    """A way to decode a text."""

    name: str  # its name in reports
    literals: tuple[str, ...]  # one of these occurs in the JSON of a text, in any case
    gate: str  # if given, this matches there too (`re` and Hyperscan)
    escapes: Callable[[str], Iterable[Escape]]  # yields escapes in order
    first: bool = False  # runs before all rules, which would replace what stands before a break
    joins: bool = False  # escapes are line breaks; only what spans one is replaced


class DecodedText:
    """A decoded text that knows where each part of it stood in ``source``."""

    def __init__(self, source: str, escapes: Iterable[Escape]) -> None:
        parts: list[str] = []
        # Segments: where they begin in the decoded text and in the source; odd ones are escapes.
        self._at: list[int] = []
        self._from: list[int] = []
        done = size = 0
        for start, end, decoded in escapes:
            self._at += (size, size + start - done)
            self._from += (done, start)
            parts += (source[done:start], decoded)
            size += start - done + len(decoded)
            done = end
        self._at.append(size)
        self._from.append(done)
        parts.append(source[done:])
        self.text = "".join(parts)

    def source(self, start: int, end: int) -> tuple[int, int]:
        """Return where ``text[start:end]``, which is not empty, stands in the source."""
        return self._place(start, end=False), self._place(end - 1, end=True)

    def _place(self, at: int, *, end: bool) -> int:
        number = bisect_right(self._at, at) - 1
        if number % 2:  # inside an escape: all of it
            return self._from[number + 1] if end else self._from[number]
        return self._from[number] + at - self._at[number] + end


# These begin with a literal: `re` looks for one far faster than for a choice.
_HIGH = "[89A-Fa-f][0-9A-Fa-f]"
_PERCENT = re.compile(rf"%(?:[2-7][0-9A-Fa-f]|0[AaDd]|{_HIGH}(?:%{_HIGH})*)")


def _percent(text: str) -> Iterable[Escape]:
    for match in _PERCENT.finditer(text):
        data = bytes.fromhex(match[0].replace("%", ""))
        try:
            decoded = data.decode()
        except UnicodeDecodeError:
            decoded = data.decode("latin-1")
        if decoded.isprintable() or not decoded.strip("\r\n\t "):
            yield match.start(), match.end(), decoded


_OCTAL = "(?:0[4-7]|1[0-7])[0-7]"
_ESCAPE = re.compile(rf"\\(?:\\*(?:u[0-9a-fA-F]{{4}}|x[0-9a-fA-F]{{2}}|{_OCTAL}|[\"'/nrt]|$)|\\+)")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "/": "/", "'": "'"}


def _json(text: str) -> Iterable[Escape]:
    for match in _ESCAPE.finditer(text):
        start = match.start()
        if (read := _escape(match[0])) is not None:
            length, decoded = read
            yield start, start + length, decoded


@lru_cache(maxsize=4096)
def _escape(source: str) -> tuple[int, str] | None:
    """Return how much of an escape is decoded, and to what."""
    what = source.lstrip("\\")
    slashes = len(source) - len(what)
    left = "\\" * (slashes // 2)
    if slashes % 2 == 0 or not what:
        return (slashes, left) if slashes > 1 else None
    if what[0] in "ux":
        return len(source), left + chr(int(what[1:], 16))
    if what[0] in "01":
        return len(source), left + chr(int(what, 8))
    return len(source), left + _LETTERS[what]


_ENTITY = re.compile(r"&(?:#[0-9]{2,5}|#[xX][0-9A-Fa-f]{2,4}|[A-Za-z]{2,8});")


def _entities(text: str) -> Iterable[Escape]:
    for match in _ENTITY.finditer(text):
        decoded = html.unescape(match[0])
        if decoded != match[0]:
            yield match.start(), match.end(), decoded


_QUOTED = re.compile(r"=(?:[2-7][0-9A-F]|\r?\n)")
# The gate as it reads in a text: without Hyperscan an `=` of base64 would let all texts through.
_IS_QUOTED = re.compile(r"(?i)=3d|=40|[^=\s\\\"\0]{30}=\r?\n[^\s\0]")


def _quoted(text: str) -> Iterable[Escape]:
    for match in _QUOTED.finditer(text) if _IS_QUOTED.search(text) else ():
        code = match[0][1:]
        yield match.start(), match.end(), "" if code[-1] == "\n" else chr(int(code, 16))


_WORD = re.compile(r"[a-z]+(?:\s|$)")
_LEAST = min(WIDTHS)


def _wrapped(text: str) -> Iterable[Escape]:
    if len(text) <= _LEAST:
        return
    lines = bare = text.split("\n")
    if "\r" in text:
        bare = [line.removesuffix("\r") for line in lines]
    lengths = [*map(len, bare)]
    if WIDTHS.isdisjoint(lengths):
        return
    start = done = 0
    for number in compress(range(len(bare) - 1), map(WIDTHS.__contains__, lengths)):
        line, following = bare[number], bare[number + 1]
        # A NUL alone separates the strings of a value.
        if not 0 < len(following) <= len(line) or following == "\0":
            continue
        # What is broken has no white space at the break.
        if line[-1].isspace() or following[0].isspace():
            continue
        # A line that is one word, as long as a terminal is wide by chance, ends before a word.
        if not line.count(" ") and _WORD.match(following):
            continue
        start += sum(map(len, lines[done:number])) + number - done
        done = number
        yield start + len(line), start + len(lines[number]) + 1, ""


def windows(text: str, escapes: Sequence[Escape]) -> Iterator[tuple[int, int, list[Escape]]]:
    """Yield ``(start, end, escapes)`` of the parts of a text around groups of joined lines.

    A part begins two lines before the group, where a name may stand, and ends two after it.
    """
    groups: list[list[Escape]] = []
    for escape in escapes:
        if groups and text.find("\n", groups[-1][-1][1], escape[0]) < 0:
            groups[-1].append(escape)
        else:
            groups.append([escape])
    for group in groups:
        start = group[0][0]
        for _ in range(3):
            start = max(0, text.rfind("\n", 0, start))
        end = group[-1][1]
        for _ in range(3):  # the line that was joined, and two that may end what it holds
            end = text.find("\n", end) + 1 or len(text)
        yield start, end, [(a - start, b - start, new) for a, b, new in group]


#: An escaped letter or sign; or an escape after a telling name or the head of a manifest.
_JSON_GATE = (
    rf"\\\\(?:u00[2-7][0-9a-f]|x[2-7][0-9a-f]|{_OCTAL})"
    r"|(?:key|secret|token|pass|pwd|credential|auth|cookie|authorization|salt)[a-z0-9_.-]*\\\\\\\""
    r"|kind:\s?[\\\"']*secret[\\\"']*\\\\n|://[^\s@\"]*:[^\s@\"]*\\\\/"
)
#: Gates hold on JSON source, where a backslash of the text stands twice.
DECODINGS: tuple[Decoding, ...] = (
    Decoding("json", ("\\\\",), _JSON_GATE, _json),
    Decoding("percent", ("%",), r"%[2-7][0-9a-f]", _percent),
    Decoding(
        "html", ("&",), r"&(?:#x?[0-9a-f]{2,5}|quot|apos|amp|equals|colon|commat);", _entities
    ),
    Decoding(
        "quoted-printable", ("=",), r"=3d|=40|[^=\s\\\"]{30}=(?:\\r)?\\n\S", _quoted, first=True
    ),
    Decoding("wrapped", ("\\n",), "", _wrapped, first=True, joins=True),
)


_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# The bit of a letter's number that is the top bit of a byte: of the first, second and third.
_BASE64_LETTERS = ["".join(c for n, c in enumerate(_ALPHABET) if not n & bit) for bit in (32, 8, 2)]
_GROUPS = "(?:{}[A-Za-z0-9+/_-]){{6}}".format(
    "".join(f"[{letters}]" for letters in _BASE64_LETTERS)
)
#: What a text has that has something to decode, in the syntax of ``re`` and Hyperscan.
BASE64_GATE = f"(?-i:{_GROUPS})"
_TEXT = re.compile(_GROUPS)
_RUN = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_WRAP = re.compile(r"(?:\\n|\\?\r?\n)[ \t]*")
_MAX_RUN = 200_000


def decoded_runs(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield ``(start, end, decoded text)`` of runs that may hold a known secret."""
    done = 0
    for at in (match.start() for match in _TEXT.finditer(text)):
        if at < done:
            continue
        start, end = _bounds(text, at)
        done = end
        if end - start < 20:
            continue
        if plain := _decode(_WRAP.sub("", text[start:end]), at - start):
            yield start, end, plain


_REVERSED = re.compile(r"={0,2}[A-Za-z0-9+/_-]+")


def _bounds(text: str, at: int) -> tuple[int, int]:
    """Return the run around ``at``, with the wrapped lines it continues on."""
    before = _REVERSED.match(text[max(0, at - _MAX_RUN) : at][::-1])
    start = at - (before.end() if before else 0)
    run = _RUN.match(text, at)
    end = run.end() if run else at
    while end - start < _MAX_RUN:
        wrap = _WRAP.match(text, end)
        following = _RUN.match(text, wrap.end()) if wrap else None
        # A wrapped line is filled to its end and holds nothing else.
        if wrap is None or following is None or end - start < 48:
            break
        if text[following.end() : following.end() + 1] not in ("", "\n", "\r", "\\", '"', "'"):
            break
        end = following.end()
    return start, end


def _decode(run: str, sure: int) -> str:
    """Return the text of a run that is base64 from ``sure`` on; empty if it holds none."""
    run = run.rstrip("=").replace("-", "+").replace("_", "/")
    for skipped in (*range(4), sure):  # the run may have a prefix such as a path
        body = run[skipped:]
        body = body[: len(body) // 4 * 4] if len(body) % 4 == 1 else body
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
        except (ValueError, binascii.Error):
            continue
        if data[1::2].count(0) * 2 > len(data) - 2:  # UTF-16, as PowerShell encodes commands
            data = data[: len(data) // 2 * 2].decode("utf-16-le", "replace").encode()
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = data.decode("latin-1")
            if not text.isascii():
                continue
        printable = sum(c.isprintable() or c in "\n\r\t" for c in text)
        if printable > 0.95 * len(text):
            return text
    return ""


# A break inside a secret: a continued or wrapped line, or two string literals in a row.
BREAK = re.compile(
    r"\\\r?\n[ \t]*|[\"'][ \t]*[+.]?[ \t]*\\?\r?\n[ \t]*[+.]?[ \t]*[\"']|\r?\n[ \t]*|\\n[ \t]*"
)
BROKEN = re.compile(
    r"[A-Za-z0-9_=-](?:\\?\r?\n|\\n|[\"'][ \t]*[+.]?[ \t]*\\?\r?\n)"
    r"[ \t]*[+.]?[ \t]*[\"']?[A-Za-z0-9_]"
)
_CHUNK = re.compile(r"[A-Za-z0-9_./+:~-]+")
_SOFT = re.compile(r"(?:\r?\n|\\n)[ \t]*")
_MAX_CHUNKS = 40
MANY_LINES = frozenset(("PRIVATE_KEY", "PUTTY_KEY", "OPENVPN_KEY"))


def joined_end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return where a secret that begins at ``start`` ends after a break; 0 without one."""
    chunk = _CHUNK.match(text, start)
    if chunk is None:
        return 0
    joined, ends = chunk[0], [(len(chunk[0]), chunk.end())]
    at = chunk.end()
    while len(ends) < _MAX_CHUNKS:
        gap = BREAK.match(text, at)
        chunk = _CHUNK.match(text, gap.end()) if gap else None
        if gap is None or chunk is None:
            break
        if _SOFT.fullmatch(gap[0]) and not _continues(text, chunk):
            break
        joined, at = joined + chunk[0], chunk.end()
        ends.append((len(joined), at))
    if len(ends) < 2:
        return 0
    match = pattern.match(joined)
    if match is None or match.end() <= ends[0][0] or EXAMPLE.search(match[0]):
        return 0
    before_length, before_end = 0, start
    for length, end in ends:
        if match.end() <= length:
            # The secret ends inside this chunk.
            return end - (length - match.end())
        before_length, before_end = length, end
    return before_end if before_length else 0


def _continues(text: str, chunk: re.Match[str]) -> bool:
    """Return True if a line's first word looks like the rest of a broken token."""
    word, after = chunk[0], text[chunk.end() : chunk.end() + 1]
    if after not in ("", "\n", "\r", '"', "'", "\\", ",", "`", ")") or "/" in word:
        return False
    if any(c.isdigit() for c in word):
        return any(c.isalpha() for c in word)
    # One in thirty random rests of twenty letters has no digit.
    return len(word) >= 12 and word.isalpha() and not word.islower() and not word[1:].isupper()
