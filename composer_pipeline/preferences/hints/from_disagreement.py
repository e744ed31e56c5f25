"""Hints from disagreement: what several independent teachers would have done instead.

Belongs here: the words of such a hint, and what keeps it from being the answer. Does not
belong here: hints that a trace gives (``preferences.hints.from_errors``).

A hint names the tool and, where that does not give the action away, its target. It is made of
facts that stand in the prompt: a target that the prompt does not show is not named. It never
holds all the arguments of the teachers' action, and at most :data:`MAX_TOKENS` tokens.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from composer_pipeline.actions import PATH_ARGUMENTS
from composer_pipeline.json_values import strings
from composer_pipeline.preferences.actions import Place, targets
from composer_pipeline.preferences.agreement import home_of
from composer_pipeline.preferences.hints.leakage import leakage

SOURCE = "teacher_consensus"
MAX_TOKENS = 120

#: Arguments that no hint has to hide: they say how a result is shown.
_MINOR = frozenset({"description", "timeout", "limit", "offset", "output_mode", "replace_all"})
_WORD = re.compile(r"\w+", re.UNICODE)
#: Share of an argument's words that gives it away.
_GIST = 0.8
_PIECE = re.compile(r"\w{1,3}|[^\w\s]", re.UNICODE)


@dataclass(frozen=True)
class ConsensusHint:
    """A hint and the share of the word 3-grams of the teachers' arguments that it holds."""

    text: str
    leakage: float


def consensus_hint(
    row: Mapping[str, Any], *, cwd: str = "", full_arguments: bool = False
) -> ConsensusHint | None:
    """Return the hint of a pair, or ``None`` where the teachers answered in text alone.

    Args:
        row: a pair: ``prompt``, ``chosen``, ``rejected`` as chat messages, ``n_agree``,
            ``n_families``.
        cwd: the working directory, against which paths are read; the project's folder of the
            row when not given.
        full_arguments: allow a hint that holds every argument of the teachers' action.
    """
    calls = _calls(row["chosen"])
    if not calls:
        return None
    name, arguments = calls[0]
    place = cwd or str(row.get("project") or "")
    seen = _Seen(row["prompt"])
    said = f"{row['n_agree']} of {row['n_families']} independent reviewers would"
    instead = _instead(row["rejected"], name)
    span = _span(arguments)
    for target, needle in _targets(arguments, Place(place, home_of(place))):
        if needle not in seen:
            continue
        what = f"use {name} on {target}" if target else f"use {name}"
        more = f", the first of {len(calls)} calls" if len(calls) > 1 else ""
        text = f"{said} {what}{more}{instead}."
        if token_bound(text) > MAX_TOKENS:
            continue
        if full_arguments or not target or not _reveals(text, arguments):
            return ConsensusHint(text, leakage(text, span))
    return None


def token_bound(text: str) -> int:
    """Return a number of tokens that ordinary tokenizers do not exceed.

    Every run of three letters or digits and every other character counts as one, and a
    character outside ASCII as three more.
    """
    return len(_PIECE.findall(text)) + 3 * sum(not char.isascii() for char in text)


class _Seen:
    """What a prompt shows, for asking whether a target stands in it."""

    def __init__(self, prompt: list[Mapping[str, Any]]) -> None:
        self._texts = [text for message in prompt for text in strings(message)]

    def __contains__(self, target: str) -> bool:
        return any(target in text for text in self._texts)


def _targets(arguments: Mapping[str, Any], place: Place) -> Iterator[tuple[str, str]]:
    """Yield what the call acts on and what must stand in the prompt for it.

    From telling to vague; the last is nothing at all.
    """
    command = arguments.get("command")
    if isinstance(command, str):
        # A chain of commands has no one target: its first program is all that is named.
        first = next(iter(targets(command, place)), ())
        words = [str(word) for word in first if word]
        for size in (3, 2, 1):
            if len(words) >= size:
                yield " ".join(words[:size]), words[size - 1]
    for key in PATH_ARGUMENTS:
        path = arguments.get(key)
        if isinstance(path, str) and path:
            yield place.path(path), place.path(path)
            folder = posixpath.dirname(place.path(path))
            if folder and folder not in (".", "/"):
                yield f"a file in {folder}", folder
    yield "", ""


def _reveals(text: str, arguments: Mapping[str, Any]) -> bool:
    """Say whether a hint gives every argument that matters away.

    An argument is given away by :data:`_GIST` of its words; a path by those of its last part.
    """
    said = set(_WORD.findall(text))
    for key, value in arguments.items():
        if key in _MINOR or value in (None, "", False):
            continue
        gist = posixpath.basename(str(value)) if key in PATH_ARGUMENTS else str(value)
        words = set(_WORD.findall(gist))
        if len(words & said) < _GIST * len(words):
            return False
    return True


def _instead(rejected: list[Mapping[str, Any]], name: str) -> str:
    """Name the agent's own tool, which it knows anyway."""
    mine = [call for call, _ in _calls(rejected)]
    if not mine:
        return " instead of answering in text"
    return f" instead of {mine[0]}" if mine[0] != name else ", but not as you did"


def _span(arguments: Mapping[str, Any]) -> str:
    return "\n".join(str(value) for key, value in arguments.items() if key not in _MINOR)


def _calls(messages: list[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls") or ()
    ]
