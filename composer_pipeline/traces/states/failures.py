"""Error turns: how an action failed, and what the trace says about it.

Belongs here: classes of failed results and corrections, and the text of the hint.
Does not belong here: aligning a hint with a span of the action (``preferences.hints.from_errors``).

| class | hint |
|---|---|
| ``user_rejection`` | what the user said with the rejection, else their next prompt |
| ``failing_tests`` | the result of the command that ran the tests |
| ``exit_code`` | the result of the command |
| ``failed_edit`` | what the editing tool said |
| ``tool_error`` | the result of the tool |
| ``user_correction`` | the prompt that followed an interruption |
| ``soft_failure`` | the result of a command that reads like a failure but is not marked as one |

``hint_source`` says where the words come from: ``user_rejection``, ``user_correction``,
``exit_code``, ``tool_error`` or ``soft_failure``. The last is a guess (a pipe or ``||
true`` hid the exit code), labelled apart so that it can be left out.

A call that was cancelled because a parallel call failed is nobody's mistake and gives
no hint. An action with several failed calls takes the class that is first in the table.
"""

import re
from dataclasses import dataclass

from composer_pipeline.traces.graph import Call, Node, Trajectory
from composer_pipeline.traces.reading import result_text, text_of
from composer_pipeline.traces.states.counts import REJECTION
from composer_pipeline.traces.states.soft_failures import MAY_BE_SOFT, command_of, looks_failed

WHOLE_ACTION = -1
EDITS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})

#: A call that was not made because one beside it failed: nobody's mistake.
CANCELLED = re.compile(
    r"^(?:<tool_use_error>)?(?:Sibling tool call errored|Cancelled: parallel tool call)"
)
# Claude Code says the first, Codex CLI the others.
_EXITED = re.compile(r"Exit code |Exit code: |Process exited with code ")
_ERROR_TAG = re.compile(r"^<tool_use_error>(.*?)(?:</tool_use_error>)?$", re.DOTALL)
_SAID = re.compile(r"the user said:\s*\n?(.*)$", re.DOTALL)
_NOTE = re.compile(r"\n+Note: The user's next message may contain .*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Failure:
    """How an action failed. ``hint`` is the text to learn from, or ``None``."""

    kind: str
    hint: str | None
    source: str | None
    call: int


def corrections(trajectory: Trajectory) -> dict[int, str]:
    """Map a response's node to the human prompt that followed its interruption."""
    found: dict[int, str] = {}
    for node in trajectory.nodes:
        if node.kind != "human" or node.origin is not None or node.parent is None:
            continue
        if trajectory.was_interrupted(node):
            text = text_of(trajectory.content_of(node)).strip()
            if text:
                found.setdefault(node.parent, text)
    return found


def failure_of(node: Node, correction: str | None, *, tests_failed: bool = False) -> Failure | None:
    """Classify the outcome of a response's action; ``None`` where nothing failed.

    Args:
        node: a response that is a state.
        correction: the human prompt that followed an interruption, if one did.
        tests_failed: the action ran tests, and they did not pass.
    """
    ranked: list[tuple[int, int, Failure]] = []
    for position, call in enumerate(node.calls):
        if (error := call.error) is None:
            continue
        text = result_text(error).strip()
        if CANCELLED.match(text):
            continue
        if text.startswith(REJECTION):
            said = _SAID.search(text)
            hint = _NOTE.sub("", said[1]).strip() if said else ""
            source = "user_rejection" if hint else "user_correction" if correction else None
            failure = Failure("user_rejection", hint or correction, source, position)
            ranked.append((0, position, failure))
        elif _EXITED.match(text):
            kind = "failing_tests" if tests_failed and _runs_tests(call) else "exit_code"
            ranked.append((1, position, Failure(kind, text, "exit_code", position)))
        else:
            tagged = _ERROR_TAG.match(text)
            hint = tagged[1].strip() if tagged else text
            source = "tool_error" if hint else None
            kind = "failed_edit" if call.name in EDITS else "tool_error"
            ranked.append((2, position, Failure(kind, hint or None, source, position)))
    if ranked:
        return min(ranked, key=lambda item: item[:2])[2]
    if correction:
        return Failure("user_correction", correction, "user_correction", WHOLE_ACTION)
    return _soft_failure(node)


def _soft_failure(node: Node) -> Failure | None:
    for position, call in enumerate(node.calls):
        if call.name != "Bash" or not call.answered or call.failed:
            continue
        if not MAY_BE_SOFT.search(call.pool.get(call.answer)) or (result := call.result) is None:
            continue
        text = result_text(result).strip()
        if looks_failed(command_of(call), text):
            return Failure("soft_failure", text, "soft_failure", position)
    return None


def _runs_tests(call: Call) -> bool:
    return "test" in command_of(call) or "spec" in command_of(call)
