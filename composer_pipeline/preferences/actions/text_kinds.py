"""Texts: one spelling, and whether one asks or finishes.

Does not belong here: tool calls (``preferences.actions.canonical``).
"""

import re
import unicodedata

_QUESTION = ("?", "\uff1f", "\u061f")


_BLANK_LINES = re.compile(r"\n\s*\n")


_FENCED = re.compile(r"```.*?(```|$)", re.DOTALL)


_ITEM = re.compile(r"\s*([-*+\u2022]|\(?[\da-zA-Z][.)])\s")


_SENTENCE = re.compile(r"(?<=[.!?\uff1f\u061f])\s+")


_OFFER = re.compile(
    r"\b(anything else|(any|further|other|more) (other )?(questions?|help|changes|issues)"
    r"|need (any )?(more|further|anything)|if you have|if (you|anything) (need|run into))\b",
    re.IGNORECASE,
)


_REQUEST = re.compile(
    r"\b(let me know|tell me|please (confirm|choose|clarify|decide|specify|provide|tell|advise|pick"
    r"|let me know|share)|waiting for your|which (one|option) (do|would) you)\b",
    re.IGNORECASE,
)


def text_kind(text: str) -> str:
    """Return ask when a text ends by asking something, else finish.

    It asks when its last sentence is a question or a request to decide, when a list of
    choices follows a question, or when only such a request follows a question. An offer of
    further help is a way to finish.
    """
    blocks = [b.strip() for b in _BLANK_LINES.split(_FENCED.sub("", text).strip()) if b.strip()]
    while len(blocks) > 1 and all(_ITEM.match(line) for line in blocks[-1].splitlines()):
        blocks.pop()
    last = re.sub(r"[\s*_`)\"']+$", "", blocks[-1]) if blocks else ""
    lines = last.splitlines()
    while len(lines) > 1 and _ITEM.match(lines[-1]) and not lines[-1].endswith(_QUESTION):
        lines.pop()
    sentences = [p for p in _SENTENCE.split(" ".join(lines)) if p.strip()]
    if not sentences or _OFFER.search(sentences[-1]):
        return "finish"
    if sentences[-1].rstrip("*_ :").endswith(_QUESTION) or _REQUEST.search(sentences[-1]):
        return "ask"
    return "finish"


def whole_text(text: str) -> str:
    """Normalise a whole file, command, prompt or text: NFC, LF, no final newline."""
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return text.replace("\r\n", "\n").rstrip("\n")
