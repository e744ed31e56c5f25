"""How much of the span that a hint is about the hint gives away.

Belongs here: the span's text and the measure. Does not belong here: which span it is
(``preferences.hints.from_errors``).
"""

import json
import re

from composer_pipeline.actions import Action

_WORDS = re.compile(r"\w+", re.UNICODE)
_NGRAM = 3


def span_text(action: Action, call: int) -> str:
    """Return what a hint is about.

    The JSON arguments of one call; for -1 (the whole action) those of every call, one a
    line, or the text of an action without calls.
    """
    calls = action.tool_calls
    if 0 <= call < len(calls):
        calls = calls[call : call + 1]
    if not calls:
        return action.text
    return "\n".join(
        json.dumps(c.arguments, ensure_ascii=False, separators=(",", ":")) for c in calls
    )


def leakage(hint: str, span: str) -> float:
    """Return the share of the span's word 3-grams that the hint contains, in [0, 1].

    A span shorter than three words counts as one n-gram; an empty span leaks nothing.
    """
    wanted = _ngrams(span)
    if not wanted:
        return 0.0
    size = len(next(iter(wanted)))
    return len(wanted & _ngrams(hint, size)) / len(wanted)


def _ngrams(text: str, size: int = _NGRAM) -> set[tuple[str, ...]]:
    words = _WORDS.findall(text.lower())
    size = min(size, len(words))
    if not size:
        return set()
    return {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}
