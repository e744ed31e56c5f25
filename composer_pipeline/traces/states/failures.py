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

from composer_pipeline.traces.graph.nodes import Call, Node
from composer_pipeline.traces.graph.turns import Trajectory
from composer_pipeline.traces.reading.contents import result_text, text_of
from composer_pipeline.traces.states.counts import REJECTION


class LineStart:
    """A pattern at the start of any line of a text, as ``(?m)^pattern``.

    The engine of ``re`` tries such a pattern at every character. Behind a newline, which
    it looks for with ``memchr``, the same pattern is found several times faster.
    """

    def __init__(self, pattern: str) -> None:
        self._first = re.compile(pattern)
        self._later = re.compile(rf"\n(?:{pattern})")

    def found(self, text: str) -> bool:
        """Say whether any line of ``text`` begins with the pattern."""
        return self._first.match(text) is not None or self._later.search(text) is not None


WHOLE_ACTION = -1
EDITS = frozenset({"Edit", "MultiEdit", "Write", "NotebookEdit"})

_CANCELLED = re.compile(
    r"^(?:<tool_use_error>)?(?:Sibling tool call errored|Cancelled: parallel tool call)"
)
# Claude Code says the first, Codex CLI the others.
_EXITED = re.compile(r"Exit code |Exit code: |Process exited with code ")
_ERROR_TAG = re.compile(r"^<tool_use_error>(.*?)(?:</tool_use_error>)?$", re.DOTALL)
_SAID = re.compile(r"the user said:\s*\n?(.*)$", re.DOTALL)
_NOTE = re.compile(r"\n+Note: The user's next message may contain .*$", re.DOTALL)

# What a failing program prints at the start of a line.
_SOFT = LineStart(
    r"\s*(?:FAIL(?:ED|URE)?\b(?! *[:=]? *0\b)|--- FAIL|Traceback \(most recent call last\)"
    r"|(?:\w+)?[Ee]rror(?:\[[A-Z]?\d+\])?: \S|ERROR\b[: ]|fatal: |panic: |npm (?:ERR!|error)"
    r"|make(?:\[\d+\])?: \*\*\*|(?:\S+: )+(?:command not found|No such file or directory)"
    r"|Exit code [1-9])"
)
_COUNTED = re.compile(r"\b[1-9]\d* (?:failed|failing)\b")
_SOFT_BYTES = re.compile(
    rb"FAIL|Traceback|rror|ERROR|fatal: |panic: |npm |: \*\*\*|not found|No such file|failed"
    rb"|failing|Exit code"
)
_QUOTED = re.compile(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_PARTS = re.compile(r"&&|\|\||[;|\n&]")
_PROGRAM = re.compile(
    r"(?:\w+=\S*\s+)*(?:sudo\s+|time\s+|timeout\s+\S+\s+)*(git\s+(?:-C\s+\S+\s+)?\S+|gh\s+\S+|\S+)"
)
_READER = re.compile(
    r"(?:cat|head|tail|sed|awk|grep|egrep|rg|ag|ls|find|fd|less|more|jq|wc|sort|uniq|cut|tr|xargs|echo"
    r"|printf|cd|pwd|true|tee|column|strings|xxd|diff|tree|stat|file|which|date|sleep|export|set|done"
    r"|do|for|while|if|then|fi|else|curl|wget|git\s+(?:-C\s+\S+\s+)?(?:log|diff|show|blame|grep|status"
    r"|branch|ls-files|rev-parse|cat-file|reflog|stash)|gh\s+\S+|2>&1|[0-9]*>.*|sqlite3|psql|#.*)"
)


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
        if _CANCELLED.match(text):
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
        if not _SOFT_BYTES.search(call.pool.get(call.answer)) or (result := call.result) is None:
            continue
        text = result_text(result).strip()
        if looks_failed(_command(call), text):
            return Failure("soft_failure", text, "soft_failure", position)
    return None


def looks_failed(command: str, output: str) -> bool:
    """Say whether a command's output reads like a failure although none was reported.

    Commands that only show text (``cat``, ``grep``, ``git log``) are never judged: the
    words are then those of a file.
    """
    programs = [_PROGRAM.match(part.strip()) for part in _PARTS.split(_quoted_out(command))]
    names = [match[0] for match in programs if match]
    if not names or all(_READER.fullmatch(name) for name in names):
        return False
    if " fail" in output and _COUNTED.search(output):
        return True
    return _SOFT.found(output)


def _quoted_out(command: str) -> str:
    """Remove what is quoted, so that its separators do not count."""
    return _QUOTED.sub("''", command)


def _runs_tests(call: Call) -> bool:
    return "test" in _command(call) or "spec" in _command(call)


def _command(call: Call) -> str:
    arguments = call.input
    command = arguments.get("command") if isinstance(arguments, dict) else None
    return command if isinstance(command, str) else ""
