"""What became of an action: facts about the turns after a state, and how it failed."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from composer_pipeline.tool_names import EDITS
from composer_pipeline.traces.diagnostics import clean, run_result
from composer_pipeline.traces.edits import Author, command_of
from composer_pipeline.traces.graph_nodes import Call, Node
from composer_pipeline.traces.records import LineStats
from composer_pipeline.traces.trajectory import Trajectory

Facts = dict[str, Any]

#: How each agent says that the user did not allow a call, or stopped it.
_REJECTED = re.compile(
    r"\A(?:The user doesn't want to|The user rejected (?:permission to use )?this "
    r"|The tool execution was denied by the user|Tool \S+ was canceled by the user"
    r"|\[Operation Cancelled\]|(?:Command was|Operation) cancelled by user|Tool execution aborted$"
    r"|The execution of this tool, or a previous tool was interrupted|Blocked by user$"
    r"|(?:Wall time: .*\n)?aborted by user(?: after [\d.]+s)?$"
    r"|(?:exec command|patch|apply_patch) rejected by user|user (?:rejected|cancelled) MCP tool)"
    r"|Rejected\(\W{0,3}rejected by user|^(?:Command|Operation) aborted\Z"
    r"|^<shell_metadata>\nUser aborted the command",
    re.MULTILINE,
)
EXIT_CODE = "Exit code "

_SUMMED = """
    bytes lines bad_lines glued_lines responses states states_active_path tool_calls tool_results
    tool_calls_without_result tool_errors tool_errors_user_rejection tool_errors_exit_code
    compactions compact_summaries branch_points roots dangling_parents states_with_repaired_prefix
    synthetic_assistant subagent_responses
    """.split()  # noqa: SIM905  a line of names instead of a column


def facts_of(trajectory: Trajectory, stats: LineStats) -> Facts:
    """Count one file; the keys are those of the corpus' ``expected.json``.

    ``synthetic_assistant`` counts the main records that the client itself made up, such as "No
    response requested." or an API error. ``subagent_responses`` are known to ``ingest`` alone.
    """
    nodes = [n for n in trajectory.nodes if n.origin is None]
    responses = [n for n in nodes if n.kind == "response" and not n.copied]
    states = [n for n in nodes if n.is_state]
    calls = [call for node in responses for call in node.calls]
    errors = [error for call in calls if (error := call.error) is not None]
    answered = sum(call.answered for call in calls)
    active = trajectory.active_nodes()
    models: Counter[str] = Counter(model for node in responses for model in node.models)
    return {
        "bytes": stats.bytes,
        "lines": stats.lines,
        "bad_lines": stats.bad_lines,
        "glued_lines": stats.glued_lines,
        "versions": sorted(trajectory.versions),
        "models": dict(sorted(models.items())),
        "responses": len(responses),
        "states": len(states),
        "states_active_path": sum(trajectory.nodes[number].is_state for number in active),
        "tool_calls": len(calls),
        "tool_results": answered,
        "tool_calls_without_result": len(calls) - answered,
        "tool_errors": len(errors),
        "tool_errors_user_rejection": sum(map(rejected, errors)),
        "tool_errors_exit_code": sum(text.startswith(EXIT_CODE) for text in errors),
        "compactions": trajectory.compactions,
        "compact_summaries": sum(n.kind == "compact_summary" for n in nodes),
        "branch_points": trajectory.branch_points(),
        "roots": sum(n.parent is None for n in nodes),
        "dangling_parents": trajectory.dangling,
        "states_with_repaired_prefix": sum(n.repaired for n in states),
        "max_prefix_turns": max((n.depth for n in states), default=0),
        "synthetic_assistant": trajectory.synthetic,
        "subagent_responses": 0,
    }


def total_of(files: Iterable[Facts]) -> Facts:
    """Add up the facts of files: sums, unions of names, the longest prefix."""
    total: Facts = dict.fromkeys(_SUMMED, 0)
    versions: set[str] = set()
    models: Counter[str] = Counter()
    longest = 0
    for facts in files:
        for name in _SUMMED:
            total[name] += facts[name]
        versions.update(facts["versions"])
        models.update(facts["models"])
        longest = max(longest, facts["max_prefix_turns"])
    total["versions"] = sorted(versions)
    total["models"] = dict(sorted(models.items()))
    total["max_prefix_turns"] = longest
    return total


def rejected(error: str) -> bool:
    """Return True if an error says that the user did not allow a call, or stopped it."""
    return _REJECTED.search(error) is not None


def line_start(pattern: str) -> Callable[[str], bool]:
    """Return whether any line of a text begins with a pattern, as ``(?m)^pattern``.

    The engine of ``re`` tries such a pattern at every character. After a newline, which
    it looks for with ``memchr``, the same pattern is found several times faster.
    """
    first, later = re.compile(pattern).match, re.compile(rf"\n(?:{pattern})").search
    return lambda text: first(text) is not None or later(text) is not None


# What a failing program prints at the start of a line.
_SOFT = line_start(
    r"\s*(?:FAIL(?:ED|URE)?\b(?! *[:=]? *0\b)|--- FAIL|Traceback \(most recent call last\)"
    r"|(?:\w+)?[Ee]rror(?:\[[A-Z]?\d+\])?: \S|ERROR\b[: ]|fatal: |panic: |npm (?:ERR!|error)"
    r"|make(?:\[\d+\])?: \*\*\*|(?:\S+: )+(?:command not found|No such file or directory)"
    r"|Exit code [1-9])"
)

_COUNTED = re.compile(r"\b[1-9]\d* (?:failed|failing)\b")
#: What `git commit` prints when it has committed.
_COMMITTED = re.compile(r"^\[\S+(?: \(root-commit\))? [0-9a-f]{7,}\] .*$", re.MULTILINE)

#: What a result must hold before its text is decoded and read.
MAY_BE_SOFT = re.compile(
    rb"FAIL|Traceback|rror|ERROR|fatal: |panic: |npm |: \*\*\*|not found|No such file|failed"
    rb"|failing|\d fail|Exit code"
)

# Separators inside quotes do not count.
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


def looks_failed(command: str, output: str) -> bool:
    """Return True if a command's output reads like a failure although none was reported.

    Commands that only show text (``cat``, ``grep``, ``git log``) are never judged: the words are
    then those of a file.
    """
    programs = [_PROGRAM.match(part.strip()) for part in _PARTS.split(_QUOTED.sub("''", command))]
    names = [match[0] for match in programs if match]
    if not names or all(_READER.fullmatch(name) for name in names):
        return False
    result = run_result(output)
    if result is not None and not result.passed:
        return True
    done = result.end if result is not None else 0
    if "git" in command and (commits := list(_COMMITTED.finditer(output))):
        done = max(done, commits[-1].end())
    # What tests and hooks print before they pass is not how the command ended.
    rest = output[done:]
    if " fail" in rest and result is None and _COUNTED.search(rest):
        return True
    return _SOFT(rest)


WHOLE_ACTION = -1

#: A call that was not made because one beside it failed: not a mistake.
CANCELLED = re.compile(
    r"^(?:<tool_use_error>)?(?:Sibling tool call errored|Cancelled: parallel tool call"
    r"|No result provided$|aborted$)"
)
_ERROR_TAG = re.compile(r"^<tool_use_error>(.*?)(?:</tool_use_error>)?$", re.DOTALL)
_USER_SAID = re.compile(
    r"(?:the user said|with the following feedback|User feedback):\s*\n?(.*)$", re.DOTALL
)
_NOTE = re.compile(r"\n+Note: The user's next message may contain .*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Failure:
    """How an action failed; ``hint`` is the text to learn from."""

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
            text = trajectory.text_of(node).strip()
            if text:
                found.setdefault(node.parent, text)
    return found


def failures_of(node: Node, correction: str | None, *, tests_failed: bool = False) -> list[Failure]:
    """Classify how the calls of an action failed, the one that says most first.

    ``correction`` is the prompt after an interruption.
    """
    ranked: list[tuple[int, Failure]] = []
    soft: list[Failure] = []
    for position, call in enumerate(node.calls):
        if (error := call.error) is None:
            if text := _soft_failure(call):
                soft.append(Failure("soft_failure", text, "soft_failure", position))
            continue
        text = clean(error).strip()
        if CANCELLED.match(text):
            continue
        if rejected(text):
            match = _USER_SAID.search(text)
            hint = _NOTE.sub("", match[1]).strip() if match else ""
            source = "user_rejection" if hint else "user_correction" if correction else None
            failure = Failure("user_rejection", hint or correction, source, position)
            ranked.append((0, failure))
            continue
        tool = call.tool
        if tool not in EDITS and (text.startswith(EXIT_CODE) or tool == "Bash" != call.name):
            kind = "failing_tests" if tests_failed and _runs_tests(call) else "exit_code"
            ranked.append((1, Failure(kind, text, "exit_code", position)))
        else:
            tagged = _ERROR_TAG.match(text)
            hint = tagged[1].strip() if tagged else text
            source = "tool_error" if hint else None
            kind = "failed_edit" if tool in EDITS else "tool_error"
            ranked.append((2, Failure(kind, hint or None, source, position)))
    if correction and not ranked:
        ranked.append((0, Failure("user_correction", correction, "user_correction", WHOLE_ACTION)))
    return [failure for _, failure in sorted(ranked, key=lambda item: item[0])] + soft


def _soft_failure(call: Call) -> str:
    """Return the output of a command that reads like a failure although none was reported."""
    if call.tool != "Bash" or not call.answered or call.failed:
        return ""
    # Most results are ruled out by their undecoded JSON.
    if not MAY_BE_SOFT.search(call.contents.get(call.answer)) or (result := call.result) is None:
        return ""
    text = clean(result).strip()
    return text if looks_failed(command_of(call), text) else ""


def _runs_tests(call: Call) -> bool:
    return "test" in command_of(call) or "spec" in command_of(call)


_TEST_COMMAND = re.compile(
    r"\b(?:pytest|(?:npm|pnpm|yarn|bun|cargo|go|make|mix|swift|dotnet|gradlew?|mvn|tox|nox)"
    r"\s+(?:run\s+)?test|jest|vitest|rspec|phpunit|ctest|unittest|mise run test)\b"
)
_TEST_HINT = re.compile(rb"test|jest|tox|nox|rspec|phpunit")
_FAILED = line_start(
    r"FAIL(?:ED)?\b|--- FAIL|Exit code [1-9]|Traceback \(most recent|make(?:\[\d+\])?: \*\*\*"
)
_FAILED_COUNT = re.compile(r"\b[1-9]\d* (?:failed|failing|failures?|errors?)\b|test result: FAILED")
_NOT_RUN = re.compile(
    r"^(?:Exit code \d+\n)?(?:\([a-z]+\)|\S*/?(?:bash|zsh|sh)): ?(?:line )?(?:\S*:)*.*"
    r"(?:no such file or directory|not found|parse error|syntax error|permission denied)",
    re.IGNORECASE,
)
_PASSED = line_start(r"ok\b|PASS\b|--- PASS|OK\b")
_PASSED_COUNT = re.compile(r"\b[1-9]\d* (?:passed|passing)\b|test result: ok|BUILD SUCCESS")


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome columns of one state, under their names."""

    followed_by_error: bool = False
    followed_by_correction: bool = False
    interrupted: bool = False
    reverted: bool = False
    tests_passed: bool | None = None


#: The outcome of most states; one object for all of them.
_NO_OUTCOME = Outcome()


def outcomes(
    graph: Trajectory, active: set[int], taken_back: Iterable[Author] = ()
) -> list[Outcome | None]:
    """Return the outcome of each node that is a state; ``active`` are the nodes of the active path.

    A state is *reverted* when all its edits were ``taken_back`` (:func:`edits.undone`), or when it
    stands on an abandoned branch. Tests *passed* only if the output says so.
    """
    found = [_own_outcome(node) if node.is_state else None for node in graph.nodes]
    has_leaf_below = {graph.nodes[number].parent for number in active}
    for number, outcome in enumerate(found):
        if outcome is not None and number not in active:
            _mark(found, number, reverted=_rewound(graph, number, active, has_leaf_below))
    for node in graph.nodes:
        parent = node.parent
        stopped = node.origin is None and graph.was_interrupted(node)
        if stopped and parent is not None:
            _mark(found, parent, interrupted=True)
            if node.kind == "human":
                _mark(found, parent, followed_by_correction=True)
    for number, count in Counter(author.node for author in taken_back).items():
        edited = sum(call.tool in EDITS and not call.failed for call in graph.nodes[number].calls)
        if count >= edited:
            _mark(found, number, reverted=True)
    return found


def _mark(found: list[Outcome | None], number: int, **changes: Any) -> None:
    if (outcome := found[number]) is not None:
        found[number] = msgspec.structs.replace(outcome, **changes)


def _own_outcome(node: Node) -> Outcome:
    failed = corrected = False
    passed: bool | None = None
    for call in node.calls:
        text = ""
        if call.failed and not CANCELLED.match(text := call.error or ""):
            failed = True
            corrected = corrected or rejected(text)
        if call.tool != "Bash" or not call.answered:
            continue
        if not _TEST_HINT.search(call.contents.get((call.begun_by or call).piece)):
            continue
        if _TEST_COMMAND.search(command_of(call)):
            ran = run_passed(clean(text or call.result or ""), failed=call.failed)
            passed = passed if ran is None else ran and passed is not False
    if not failed and not corrected and passed is None:
        return _NO_OUTCOME
    return Outcome(followed_by_error=failed, followed_by_correction=corrected, tests_passed=passed)


def run_passed(output: str, *, failed: bool) -> bool | None:
    """Return whether the tests of a cleaned output passed; ``None`` if nothing says so.

    The runner's own summary decides, also where the whole command failed for another reason. A
    shell that did not find the folder or the program ran no tests.
    """
    if (result := run_result(output)) is not None:
        return result.passed
    if failed and _NOT_RUN.search(output):
        return None
    if failed or _FAILED(output) or _FAILED_COUNT.search(output):
        return False
    return True if _PASSED(output) or _PASSED_COUNT.search(output) else None


def _rewound(graph: Trajectory, number: int, active: set[int], inner: set[int | None]) -> bool:
    """Return True if the path of ``number`` leaves the active path at a node that went on."""
    at: int | None = number
    while at is not None and at not in active:
        at = graph.nodes[at].parent
    return at is not None and at in inner
