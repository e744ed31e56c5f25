"""Secrets that a line break splits: continued lines, wrapped lines, joined string literals.

Belongs here: where a broken secret ends. Does not belong here: what a secret looks like
(``redaction.tables.patterns``).
"""

import re

from composer_pipeline.redaction.literals import EXAMPLE

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
    """Return where a secret that begins at ``start`` ends behind a break; 0 without one."""
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
    """Say whether a line's first word looks like the rest of a broken token."""
    word, after = chunk[0], text[chunk.end() : chunk.end() + 1]
    if after not in ("", "\n", "\r", '"', "'", "\\", ",", "`", ")") or "/" in word:
        return False
    if any(c.isdigit() for c in word):
        return any(c.isalpha() for c in word)
    # One in thirty random rests of twenty letters has no digit.
    return len(word) >= 12 and word.isalpha() and not word.islower() and not word[1:].isupper()
