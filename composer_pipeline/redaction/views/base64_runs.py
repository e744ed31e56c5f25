"""Secrets inside base64: which runs of a text to decode.

Belongs here: finding runs of base64 that hold text, also wrapped ones, and decoding them. Does
not belong here: judging the decoded text (``redaction.engine``).

Bytes of text have no top bit, so of each group of four letters the first three are one of only
half the alphabet. Six such groups in a row are hardly ever anything but base64 of text:
hashes, names and binary data do not pass, and one expression finds all runs.
"""

import base64
import binascii
import re
from collections.abc import Iterator

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# The bit of a letter's number that is the top bit of a byte: of the first, second and third.
_LETTERS = ["".join(c for n, c in enumerate(_ALPHABET) if not n & bit) for bit in (32, 8, 2)]
_GROUPS = "(?:{}[A-Za-z0-9+/_-]){{6}}".format("".join(f"[{letters}]" for letters in _LETTERS))
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
