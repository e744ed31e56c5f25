"""The named parts of a reward: each a value and a reason.

Belongs here: one pure function a part. Does not belong here: how they are put together
(``training.rewards.grader``). A part that has nothing to say of an answer gives ``None``.

Sources: the shape of ``match`` and the validity gate follow ToolRL (arXiv:2504.13958), the ratio of
diffs SWE-RL (arXiv:2502.18449), grading single steps against recorded ones SRL (arXiv:2510.25992).
"""

import json
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher, unified_diff
from functools import lru_cache
from typing import Any, NamedTuple

import referencing

from composer_pipeline.edits import apply_edits
from composer_pipeline.schemas import validator_of
from composer_pipeline.training.rewards.case import EDITS, Case, call_key
from composer_pipeline.training.rewards.match import action_match, calls_of, normal_path

#: What is taken off where a call that failed before is made again, and where the agent's own action
#: is given that failed; what is added where it did not.
REPEATED, FAILED, WORKED = -0.5, -0.5, 0.2
#: Lines of a diff beyond which two are compared by their ends: the ratio is cubic at worst.
_MAX_LINES = 400


class Scored(NamedTuple):
    """What a part says: the value, and why in words without any text of the answer."""

    value: float
    reason: str


Part = Callable[[Mapping[str, Any], Case], Scored | None]


def validity(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return -1 for a call of a tool that was not offered or that its schema refuses, else 0.

    ``None`` where nothing says which tools there were, or the answer calls none.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in case.tools}
    calls = calls_of(answer)
    if not schemas or not calls:
        return None
    for name, arguments in calls:
        if name not in schemas:
            return Scored(-1.0, "a tool that was not offered")
        if "" in arguments:
            return Scored(-1.0, f"arguments of {name} are no object")
        if not _fits(arguments, schemas[name]):
            return Scored(-1.0, f"arguments of {name} do not fit its schema")
    return Scored(0.0, "valid")


def match(answer: Mapping[str, Any], case: Case) -> Scored:
    """Return :func:`action_match` with the consensus, in [0, 1]."""
    value = action_match(answer, case.consensus)
    return Scored(value, f"{value:.0%} of the consensus")


def votes(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return the best match with a teacher's action times its votes over the most, in [0, 1].

    The agent's own action is never a target. ``None`` without a teacher's action.
    """
    if not case.votes:
        return None
    most = max(count for _, count in case.votes)
    value, count = max(
        (action_match(answer, message) * count / most, count) for message, count in case.votes
    )
    return Scored(value, f"close to an action of {count} of {sum(n for _, n in case.votes)}")


def edit(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return how alike the diffs are that answer and consensus make of a known file, in [-1, 1].

    1 is the same text afterwards, 0 no edit of that file, -1 an edit that cannot be applied.
    ``None`` where the consensus is not one edit that applies to a text that the prompt shows.
    """
    wanted = calls_of(case.consensus)
    if len(wanted) != 1 or wanted[0][0] not in EDITS:
        return None
    path = str(wanted[0][1].get("file_path"))
    before = case.files.get(path)
    target = apply_edits(before, *wanted[0]) if before is not None else None
    if before is None or target is None:
        return None
    edits = [(n, a) for n, a in calls_of(answer) if n in EDITS and _same_file(a, path)]
    if not edits:
        return Scored(0.0, "no edit of that file")
    after = before
    for name, arguments in edits:
        made = apply_edits(after, name, arguments)
        if made is None:
            return Scored(-1.0, "an edit that cannot be applied")
        after = made
    ratio = _ratio(_diff(before, after), _diff(before, target))
    return Scored(ratio, f"{ratio:.0%} of the consensus's diff")


def outcome(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return what the trace says of the agent's own action, for the same action alone.

    0.2 where it worked, -0.5 where its result was an error: evidence that needs no teacher.
    """
    own = calls_of(case.recorded) if case.recorded is not None else []
    if not own or case.failed is None or calls_of(answer) != own:
        return None
    if case.failed:
        return Scored(FAILED, "the recorded action, which failed")
    return Scored(WORKED, "the recorded action, which worked")


def repeat(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return -0.5 where a call is made again that failed in the prompt with the same arguments."""
    if any(call_key(*call) in case.errors for call in calls_of(answer)):
        return Scored(REPEATED, "a call that failed before")
    return None


PARTS: dict[str, Part] = {
    "validity": validity, "match": match, "votes": votes, "edit": edit, "outcome": outcome,
    "repeat": repeat,
}  # fmt: skip


def _fits(arguments: Mapping[str, Any], schema: Any) -> bool:
    validator = _validator(json.dumps(schema))
    try:
        return validator is None or bool(validator.is_valid(arguments))
    except referencing.exceptions.Unresolvable:
        return True


@lru_cache(maxsize=256)
def _validator(schema_text: str) -> Any:
    return validator_of(json.loads(schema_text))


def _same_file(arguments: Mapping[str, Any], path: str) -> bool:
    return normal_path(str(arguments.get("file_path"))) == normal_path(path)


def _diff(before: str, after: str) -> list[str]:
    """Return the changed lines of a unified diff, with what stands around them."""
    lines = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1))[2:]
    half = _MAX_LINES // 2
    return lines if len(lines) <= _MAX_LINES else lines[:half] + lines[-half:]


def _ratio(have: list[str], want: list[str]) -> float:
    if have == want:
        return 1.0
    if not have:
        return 0.0
    return SequenceMatcher(None, have, want, autojunk=False).ratio()
