"""Secrets inside base64: which runs of a text to decode.

Belongs here: the beginnings that known secrets have in base64, finding and decoding the
runs around them. Does not belong here: judging the decoded text
(``redaction.engine``).

Three letters of base64 are six bits each and three bytes fill four of them, so a
beginning has three spellings, one for each position in the group of three bytes. The
letters at its edges also depend on its neighbours and are left out.
"""

import base64
import binascii
import re
from collections.abc import Iterator

_BEGINNINGS = (
    ["ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "AKIA", "ASIA", "sk-ant-", "sk-or-v1"]
    + ["sk-proj-", "xoxb-", "xoxp-", "xapp-", "AIza", "GOCSPX-", "npm_", "pypi-Ag", "sk_live_"]
    + ["rk_live_", "whsec_", "dckr_pat_", "shpat_", "lin_api_", "eyJhbGci", "-----BEGIN "]
    + ["PRIVATE KEY", "postgres", "mongodb", "mysql:/", "redis:/", "amqp:/", "AGE-SECRET"]
    + [sign + "hf_" for sign in ("=", ":", " ", '"', "'")]
    # Words that give a secret away.
    + ["password", "PASSWORD", "Password", "passwd", "secret", "SECRET", "Secret", "token", "TOKEN"]
    + ["Token", "api_key", "API_KEY", "apikey", "apiKey", "ApiKey", "api-key", "_auth", '"auth"']
    + [
        "Authoriz",
        "authoriz",
        "Bearer ",
        "https:",
        "credential",
        "Cookie",
        "cookie",
        "KEY=",
        "PASS=",
    ]
    + ["mysql ", "docker", "curl -", "sshpass", "kubectl", "DENTIFIED", "define(", "machine "]
)
_RUN = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_WRAP = re.compile(r"(?:\\n|\\?\r?\n)[ \t]*")
_MAX_RUN = 200_000


def _stems(beginning: str) -> list[str]:
    stems = []
    data = beginning.encode()
    for offset in range(3):
        text = base64.b64encode(b"\0" * offset + data).decode()
        first, last = -(-offset * 8 // 6), (offset + len(data)) * 8 // 6
        stems.append(text[first:last])
    return stems


# `hf_` at the very beginning is the one stem of four letters worth its false starts.
_STEMS = ("aGZf", *sorted({s for text in _BEGINNINGS for s in _stems(text) if len(s) > 3}))
#: A text without one of these (lower case) has nothing to decode.
ENCODED_LITERALS = tuple(sorted({stem.lower() for stem in _STEMS}))


def decoded_runs(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield ``(start, end, decoded text)`` of runs that may hold a known secret."""
    done = 0
    hits = sorted({m.start() for stem in _STEMS if stem in text for m in _all(stem, text)})
    for at in hits:
        if at < done:
            continue
        start, end = _bounds(text, at)
        done = end
        if end - start < 20:
            continue
        if plain := _decode(_WRAP.sub("", text[start:end])):
            yield start, end, plain


def _all(stem: str, text: str) -> Iterator[re.Match[str]]:
    return re.finditer(re.escape(stem), text)


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


def _decode(run: str) -> str:
    run = run.rstrip("=").replace("-", "+").replace("_", "/")
    best = ""
    for skipped in range(4):  # the run may have a prefix such as a path
        body = run[skipped:]
        body = body[: len(body) // 4 * 4] if len(body) % 4 == 1 else body
        try:
            data = base64.b64decode(body + "=" * (-len(body) % 4), validate=True)
        except (ValueError, binascii.Error):
            continue
        text = data.decode("latin-1")
        printable = sum(c.isprintable() or c in "\n\r\t" for c in text)
        if text.isascii() and printable > 0.95 * len(text):
            return text
    return best
