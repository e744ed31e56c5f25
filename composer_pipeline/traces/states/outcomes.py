"""What became of an action: facts about the turns behind a state.

Belongs here: rules over the turn graph that need no judgement of the action itself.
Does not belong here: classes of errors and their hints (``traces.states.failures``).
"""

import re
from typing import Any

import msgspec

from composer_pipeline.traces.graph import Call, Node, Trajectory
from composer_pipeline.traces.states.counts import REJECTION
from composer_pipeline.traces.states.failures import CANCELLED, EDITS
from composer_pipeline.traces.states.soft_failures import LineStart, command_of

_TEST_COMMAND = re.compile(
    r"\b(?:pytest|(?:npm|pnpm|yarn|bun|cargo|go|make|mix|swift|dotnet|gradlew?|mvn|tox|nox)"
    r"\s+(?:run\s+)?test|jest|vitest|rspec|phpunit|ctest|unittest|mise run test)\b"
)
_TEST_HINT = re.compile(rb"test|jest|tox|nox|rspec|phpunit")
_FAILED = LineStart(
    r"FAIL(?:ED)?\b|--- FAIL|Exit code [1-9]|Traceback \(most recent|make(?:\[\d+\])?: \*\*\*"
)
_FAILED_COUNT = re.compile(r"\b[1-9]\d* (?:failed|failing|failures?|errors?)\b|test result: FAILED")
_PASSED = LineStart(r"ok\b|PASS\b|--- PASS|OK\b")
_PASSED_COUNT = re.compile(r"\b[1-9]\d* (?:passed|passing)\b|test result: ok|BUILD SUCCESS")
_UNDO = re.compile(
    r"\bgit\s+(?:checkout\s+(?:\S+\s+)?(?:--\s+)?(?P<a>[\w./-]+)|restore\s+(?:--\S+\s+)*(?P<b>[\w./-]+)"
    r"|reset\s+--hard|revert\b|stash\b(?!\s+(?:list|show|pop|apply)))"
)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome columns of one state, under their names."""

    followed_by_error: bool = False
    followed_by_correction: bool = False
    interrupted: bool = False
    reverted: bool = False
    tests_passed: bool | None = None


#: The outcome of most states; one object for all of them.
_NOTHING = Outcome()


def outcomes(graph: Trajectory, active: set[int]) -> list[Outcome | None]:
    """Return the outcome of each node that is a state.

    A state is *reverted* when its edits were undone with git further down its path, or
    when it stands on an abandoned branch. Tests *passed* only where the output says so.

    Args:
        graph: the turn graph.
        active: the nodes of the active path.
    """
    found = [_own(node) if node.is_state else None for node in graph.nodes]
    has_leaf_below = {graph.nodes[number].parent for number in active}
    for number, outcome in enumerate(found):
        if outcome is not None and number not in active:
            _mark(found, number, reverted=_rewound(graph, number, active, has_leaf_below))
    for number, node in enumerate(graph.nodes):
        parent = node.parent
        stopped = node.origin is None and graph.was_interrupted(node)
        if stopped and parent is not None:
            _mark(found, parent, interrupted=True)
            if node.kind == "human":
                _mark(found, parent, followed_by_correction=True)
        if found[number] is not None:
            _mark_undone(graph, number, found)
    return found


def _mark(found: list[Outcome | None], number: int, **changes: Any) -> None:
    if (outcome := found[number]) is not None:
        found[number] = msgspec.structs.replace(outcome, **changes)


def _own(node: Node) -> Outcome:
    failed = corrected = False
    passed: bool | None = None
    for call in node.calls:
        text = ""
        if call.failed and not CANCELLED.match(text := _text(call, error=True)):
            failed = True
            corrected = corrected or text.startswith(REJECTION)
        if call.name != "Bash" or not call.answered:
            continue
        if not _TEST_HINT.search(call.pool.get(call.piece)):
            continue
        if _TEST_COMMAND.search(command_of(call)):
            text = text or _text(call)
            if call.failed or _FAILED.found(text) or _FAILED_COUNT.search(text):
                passed = False
            elif passed is None and (_PASSED.found(text) or _PASSED_COUNT.search(text)):
                passed = True
    if not failed and not corrected and passed is None:
        return _NOTHING
    return Outcome(followed_by_error=failed, followed_by_correction=corrected, tests_passed=passed)


def _rewound(graph: Trajectory, number: int, active: set[int], inner: set[int | None]) -> bool:
    """Say whether the path of ``number`` leaves the active path at a node that went on."""
    at: int | None = number
    while at is not None and at not in active:
        at = graph.nodes[at].parent
    return at is not None and at in inner


def _mark_undone(graph: Trajectory, number: int, found: list[Outcome | None]) -> None:
    for call in graph.nodes[number].calls:
        if call.name != "Bash" or call.failed:
            continue
        if b"git " not in call.pool.get(call.piece):
            continue
        undo = _UNDO.search(command_of(call))
        if undo is None:
            continue
        name = undo["a"] or undo["b"]
        at = graph.nodes[number].parent
        for _ in range(50):
            if at is None:
                break
            node = graph.nodes[at]
            if any(_touched(c, name) for c in node.calls):
                _mark(found, at, reverted=True)
            at = node.parent


def _touched(call: Call, name: str | None) -> bool:
    if call.name not in EDITS or not call.answered or call.failed:
        return False
    if name is None or name == ".":
        return True
    arguments = call.input
    path = arguments.get("file_path") if isinstance(arguments, dict) else None
    return isinstance(path, str) and (path == name or path.endswith("/" + name.lstrip("./")))


def _text(call: Call, *, error: bool = False) -> str:
    block = call.error if error else call.result
    return str(block["content"]) if block is not None else ""
