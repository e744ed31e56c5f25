"""What a paid reply is worth: a status, why, and the action in it. Nothing here raises.

Belongs here: judging a decoded reply by the tools that were offered and the model that was
asked. Does not belong here: bytes (``replay.provider.reading``), money, and the rows of the
lake (``replay.engine.replies``).

=========== ==========================================================================
status      meaning
=========== ==========================================================================
ok          a usable action, by the model that was asked
unusable    paid, and no usable action; ``detail`` says why
unreadable  paid, and the bytes cannot be read as a reply; they are kept
wrong_model paid, and another model answered; kept, and never a vote
=========== ==========================================================================
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from composer_pipeline.actions import Action
from composer_pipeline.chat import ArgumentCheck, parse_reply_message, toolsets_of_day
from composer_pipeline.lake import Lake
from composer_pipeline.replay.provider import choices_of

#: Whatever a reply can make the code below stumble over; all of it becomes a status.
_ODD = (ValueError, TypeError, KeyError, AttributeError, RecursionError, ArithmeticError)
_DATE = re.compile(r"[-@:]?(?:19|20)?\d\d-?(?:0[1-9]|1[0-2])-?(?:[0-2]\d|3[01])?$")

Judged = tuple[str, str, Action | None]


def judge(reply: Any, check: ArgumentCheck | None, asked: Iterable[str] = ()) -> Judged:
    """Return ``(status, why not ok, action)`` of a paid reply.

    Args:
        reply: the decoded reply, or ``None`` where it could not be read.
        check: knows the tools that were offered and their arguments; ``None`` where the
            lake does not have them, so that no call can be judged.
        asked: names of the model that was asked; any model will do where there are none.
    """
    if not isinstance(reply, dict):
        return "unreadable", "not a JSON object", None
    served = reply.get("model")
    names = [name for name in asked if name]
    told = names and isinstance(served, str) and served.strip()
    if told and not any(same_model(str(served), name) for name in names):
        return "wrong_model", f"asked {names[0]}, another model answered", None
    try:
        return _judged(reply, check)
    except _ODD:
        return "unusable", "a shape that is no reply", None


def _judged(reply: dict[str, Any], check: ArgumentCheck | None) -> Judged:  # noqa: C901  a list of checks, in reading order
    if reply.get("error"):
        return "unusable", "an error came with the answer", None
    choice = next(iter(choices_of(reply)), {})
    message = choice.get("message")
    if not isinstance(message, dict):
        return "unusable", "no choices", None
    reason = choice.get("finish_reason")
    if reason not in ("stop", "tool_calls"):
        return "unusable", f"finish_reason {str(reason)[:40]}", None
    if check is None:
        return "unusable", "the lake does not have the tools that were offered", None
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        return "unusable", "tool_calls is not a list", None
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or name not in check.names:
            return "unusable", "a tool that was not offered", None
    try:
        action = parse_reply_message(_plain(message), check.names)
    except ValueError as error:
        return "unusable", str(error), None
    for call in action.tool_calls:
        if problem := check.problem(call):
            return "unusable", problem, None
    action.to_json()  # what cannot be written is not usable either
    return "ok", "", action


def same_model(served: str, asked: str) -> bool:
    """Say whether the model that a reply names is the one that was asked.

    Names are compared without case, author (where one of them has none), variant (``:free``)
    and release date: a provider answers for ``a/b`` as ``a/b-20261101`` or ``b``.
    """
    one, other = _bare(served), _bare(asked)
    if "/" not in one or "/" not in other:
        one, other = one.rpartition("/")[2], other.rpartition("/")[2]
    if one == other:
        return True
    longer, shorter = (one, other) if len(one) > len(other) else (other, one)
    rest = longer[len(shorter) :]
    return longer.startswith(shorter) and bool(_DATE.fullmatch(rest))


def _bare(name: str) -> str:
    author, slash, model = name.strip().lower().rpartition("/")
    return author + slash + model.partition(":")[0]


def _plain(value: Any) -> Any:
    """Return decoded JSON with numbers that any JSON writer takes."""
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value)
    return value


class ReplyChecks:
    """The argument checks of a day's toolsets, each made once.

    Args:
        lake: has the toolsets.
        day: the day of the states.
    """

    def __init__(self, lake: Lake, day: str) -> None:
        self._toolsets = toolsets_of_day(lake, day)
        self._made: dict[str, ArgumentCheck] = {}

    def of(self, meta: Mapping[str, Any]) -> ArgumentCheck | None:
        """Return the check of a call's ``meta``; ``None`` where the lake has no such tools."""
        digest = meta.get("toolset")
        if digest is None:
            return _listed(meta["tools"])
        if digest not in self._made:
            toolset = self._toolsets.get(digest)
            if toolset is None:  # bought through another lake that shares the ledger
                return None
            self._made[digest] = ArgumentCheck(toolset.tools)
        return self._made[digest]


def names_of(meta: Mapping[str, Any]) -> list[str]:
    """Return the names that the model of a call may answer by: asked, dated, declared."""
    return [meta["model"], meta.get("canonical_slug") or "", *(meta.get("served_as") or [])]


def _listed(tools: Mapping[str, Sequence[str]]) -> ArgumentCheck:
    """Read the list of a ledger's older rows: wire name -> (recorded name, required…)."""
    return ArgumentCheck(
        {"function": {"name": names[0], "parameters": {"required": list(names[1:])}}}
        for names in tools.values()
    )
