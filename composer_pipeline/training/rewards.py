"""Rewards of GRPO: the parts, their weights, and the state that they grade an answer at."""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from difflib import SequenceMatcher, unified_diff
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import referencing

from composer_pipeline.actions import ERROR_PREFIX, ToolCall, apply_edits, validator_of
from composer_pipeline.tool_names import AGENTS, EDITS, learn, steps_of, translate

#: Shares of a tool call's score: the tool, its argument names, its argument values.
NAME, KEYS, VALUES = 0.2, 0.3, 0.5
_COMMAND_KEYS = frozenset({"command", "cmd"})
_EXACT = re.compile(r"(^|_)(path|file|id|url)s?$")
#: Longer strings are compared by words, at their ends: SequenceMatcher is cubic at worst.
_MAX_CHARS, _MAX_WORDS = 500, 400


def action_match(candidate: Mapping[str, Any], consensus: Mapping[str, Any]) -> float:
    """Return how similar an action is to the consensus action, in [0, 1].

    A call scores 0.2 for the tool, 0.3·Jaccard of the argument names and 0.5·mean value similarity;
    another tool scores 0. Calls are compared in order and averaged over the longer list, so that
    missing and surplus calls cost. Text is compared as a string; text against a call scores 0.
    """
    left, right = calls_of(candidate), calls_of(consensus)
    if bool(left) != bool(right):
        return 0.0
    if not right:
        a, b = str(candidate.get("content") or ""), str(consensus.get("content") or "")
        return _similar(" ".join(a.split()), " ".join(b.split()))
    scores = [_call(a, b) for a, b in zip(left, right, strict=False)]
    return sum(scores) / max(len(left), len(right))


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return a chat message's calls; text that is no JSON object is the argument ``""``."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", call)
        arguments = function.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:
                arguments = {"": arguments}
        calls.append((str(function.get("name")), arguments if isinstance(arguments, dict) else {}))
    return calls


def _call(candidate: tuple[str, dict[str, Any]], wanted: tuple[str, dict[str, Any]]) -> float:
    if candidate[0] != wanted[0]:
        return 0.0
    have, want = candidate[1], wanted[1]
    # An empty value for an argument that should have one does not count: an empty Edit must not
    # earn the credit for naming the right arguments.
    # In the order of the arguments: a sum in another order may differ in its last digit.
    keys = [key for key in have if not _empty(have[key]) or _empty(want.get(key, ""))]
    union = {*keys, *want}
    if not union:
        return 1.0
    values = [_value(key, have[key], want[key]) if key in want else 0.0 for key in keys]
    shared = sum(key in want for key in keys)
    return NAME + KEYS * shared / len(union) + VALUES * sum(values) / len(union)


def _empty(value: Any) -> bool:
    return value is None or value == "" or value == [] or value == {}


def _value(key: str, have: Any, want: Any) -> float:
    if not (isinstance(have, str) and isinstance(want, str)):
        return float(have == want)
    if key in _COMMAND_KEYS:
        return _token_f1(have, want)
    if _EXACT.search(key):
        return float(normal_path(have) == normal_path(want))
    return _similar(have.strip(), want.strip())


def normal_path(text: str) -> str:
    """Return a path without redundant slashes and leading ``./``."""
    text = re.sub(r"/+", "/", text.strip())
    return text.removeprefix("./").rstrip("/") or text


def _token_f1(have: str, want: str) -> float:
    a, b = Counter(have.split()), Counter(want.split())
    common = (a & b).total()
    if common == 0:
        return float(a == b)
    return 2 * common / (a.total() + b.total())


def _similar(a: str, b: str) -> float:
    if a == b:
        return 1.0
    if max(len(a), len(b)) <= _MAX_CHARS:
        return SequenceMatcher(None, a, b, autojunk=False).ratio()
    return SequenceMatcher(None, _words(a), _words(b), autojunk=False).ratio()


def _words(text: str) -> list[str]:
    words = text.split()
    half = _MAX_WORDS // 2
    return words if len(words) <= _MAX_WORDS else words[:half] + words[-half:]


Message = dict[str, Any]


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state that answers are graded at; only fields that the weighted parts need are set."""

    #: The teachers' action.
    consensus: Message
    #: The teachers' distinct actions and how many gave each.
    votes: list[tuple[Message, int]] = []
    #: The agent's own action, and whether its result was an error, if known.
    recorded: Message | None = None
    failed: bool | None = None
    #: Share of its added lines that people kept, if git knows.
    survival: float | None = None
    #: The tools offered, without descriptions.
    tools: list[dict[str, Any]] = []
    #: Failed calls of the prompt, as :func:`call_key`.
    errors: list[str] = []
    #: Path to text, as far as the prompt shows it.
    files: dict[str, str] = {}

    def to_json(self) -> str:
        """Return the case as compact JSON."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> "Case":
        """Parse :meth:`to_json`'s form."""
        return msgspec.json.decode(text, type=Case)


def case_of(
    parts: Collection[str],
    consensus: Message,
    answers: Sequence[tuple[str, Message]],
    row: Mapping[str, Any],
    failed: bool | None = None,
) -> Case:
    """Return what the named parts need of a row of ``dataset_groups``.

    ``answers`` are pairs of ``agent`` or a teacher's name, and the answer in the template's form.
    """
    agent = next((message for source, message in answers if source == "agent"), None)
    edited = {
        str(step.arguments.get("file_path")) for step in _steps(consensus) if step.name in EDITS
    }
    known = known_files(row["prompt"]) if "edit" in parts and edited else {}
    return Case(
        consensus,
        votes=_votes(answers) if "votes" in parts else [],
        recorded=agent if "outcome" in parts or "survival" in parts else None,
        failed=failed if "outcome" in parts else None,
        survival=row.get("survival") if "survival" in parts else None,
        tools=[_schema(tool) for tool in row["tools"] or []] if "validity" in parts else [],
        errors=failed_calls(row["prompt"]) if "repeat" in parts else [],
        files={path: text for path, text in known.items() if path in edited},
    )


def _votes(answers: Sequence[tuple[str, Message]]) -> list[tuple[Message, int]]:
    votes: dict[str, tuple[Message, int]] = {}
    for source, message in answers:
        if source != "agent":  # the agent has no vote
            key = json.dumps([calls_of(message), message.get("content")], sort_keys=True)
            votes[key] = (message, votes.get(key, (message, 0))[1] + 1)
    return list(votes.values())


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    # Without the description, which is most of it.
    function = tool["function"]
    kept = {"name": function["name"], "parameters": function.get("parameters")}
    return {"type": "function", "function": kept}


def call_key(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a canonical text of a call."""
    return json.dumps([name, arguments], sort_keys=True)


def failed_calls(prompt: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the distinct calls of a chat prompt whose result was an error."""
    return list(dict.fromkeys(
        call_key(name, arguments) for name, arguments, text in _called(prompt)
        if text.startswith(ERROR_PREFIX)
    ))  # fmt: skip


def known_files(prompt: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return path to text of the files that a chat prompt shows whole and unchanged since.

    A whole read and a Write show a file, and edits that apply keep it known. A command or another
    agent makes every file unknown, unlike in the comparison of teachers, which parses the
    command.
    """
    known: dict[str, str] = {}
    for name, arguments, text in _called(prompt):
        call = ToolCall(name, arguments)
        if any(step.name == "Bash" or step.name in AGENTS for step in translate(call)):
            known.clear()
        if not text.startswith(ERROR_PREFIX):
            learn(known, call, text)
    return known


def _steps(message: Mapping[str, Any]) -> list[ToolCall]:
    return list(steps_of(ToolCall(*call) for call in calls_of(message)))


def _called(prompt: Sequence[Mapping[str, Any]]) -> list[tuple[str, dict[str, Any], str]]:
    # Name, arguments and result of each answered call, in the order of the results.
    pending: dict[str, tuple[str, dict[str, Any]]] = {}
    out = []
    for message in prompt:
        for call, named in zip(message.get("tool_calls") or (), calls_of(message), strict=True):
            pending[str(call.get("id"))] = named
        if message["role"] == "tool" and str(message.get("tool_call_id")) in pending:
            name, arguments = pending[str(message["tool_call_id"])]
            out.append((name, arguments, str(message.get("content") or "")))
    return out


#: Reward for repeating a call that failed before, for the agent's own action that failed, and for
#: the agent's own action that worked.
REPEATED, FAILED, WORKED = -0.5, -0.5, 0.2
#: Lines beyond which diffs are compared by their ends: the ratio is cubic at worst.
_MAX_LINES = 400


class Scored(NamedTuple):
    """A part's value and the reason, which contains no text of the answer."""

    value: float
    reason: str


Part = Callable[[Mapping[str, Any], Case], Scored | None]


def validity(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return -1 for a call of a tool that was not offered or that violates its schema, else 0.

    ``None`` where the offered tools are unknown or the answer calls none.
    """
    schemas = {tool["function"]["name"]: tool["function"].get("parameters") for tool in case.tools}
    calls = calls_of(answer)
    if not schemas or not calls:
        return None
    for name, arguments in calls:
        if name not in schemas:
            return Scored(-1.0, "a tool that was not offered")
        if "" in arguments:
            return Scored(-1.0, f"arguments of {name} are not an object")
        if not _fits(arguments, schemas[name]):
            return Scored(-1.0, f"arguments of {name} do not fit its schema")
    return Scored(0.0, "valid")


def match(answer: Mapping[str, Any], case: Case) -> Scored:
    """Return :func:`action_match` with the consensus, in [0, 1]."""
    value = action_match(answer, case.consensus)
    return Scored(value, f"{value:.0%} of the consensus")


def votes(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return the best match with a teacher's action times its share of the most votes, in [0, 1].

    ``None`` without a teacher's action; the agent's own action is never a target.
    """
    if not case.votes:
        return None
    most = max(count for _, count in case.votes)
    value, count = max(
        (action_match(answer, message) * count / most, count) for message, count in case.votes
    )
    return Scored(value, f"close to an action of {count} of {sum(n for _, n in case.votes)}")


def edit(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return the similarity of the diffs of answer and consensus to a known file, in [-1, 1].

    1 is the same resulting text, 0 no edit of that file, -1 an edit that cannot be applied.
    ``None`` where the consensus is not one edit that applies to a file shown by the prompt.
    """
    wanted = _steps(case.consensus)
    if len(wanted) != 1 or wanted[0].name not in EDITS:
        return None
    path = str(wanted[0].arguments.get("file_path"))
    before = case.files.get(path)
    if before is None:
        return None
    target = apply_edits(before, wanted[0].name, wanted[0].arguments)
    if target is None:
        return None
    edits = [s for s in _steps(answer) if s.name in EDITS and _same_file(s.arguments, path)]
    if not edits:
        return Scored(0.0, "no edit of that file")
    after = before
    for step in edits:
        edited = apply_edits(after, step.name, step.arguments)
        if edited is None:
            return Scored(-1.0, "an edit that cannot be applied")
        after = edited
    ratio = _ratio(_diff(before, after), _diff(before, target))
    return Scored(ratio, f"{ratio:.0%} of the consensus's diff")


def outcome(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return 0.2 for the agent's own action if it worked, -0.5 if its result was an error.

    ``None`` for any other action. This evidence needs no teacher.
    """
    if case.failed is None or not _is_recorded(answer, case):
        return None
    if case.failed:
        return Scored(FAILED, "the recorded action, which failed")
    return Scored(WORKED, "the recorded action, which worked")


def survival(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return the share of its lines that git kept minus a half for the agent's own action.

    In [-0.5, 0.5]; ``None`` for any other action, and where git does not know.
    """
    if case.survival is None or not _is_recorded(answer, case):
        return None
    return Scored(case.survival - 0.5, f"the recorded action, of which {case.survival:.0%} lasted")


def _is_recorded(answer: Mapping[str, Any], case: Case) -> bool:
    """Return True if an answer makes the calls of the agent's own action."""
    own = calls_of(case.recorded) if case.recorded is not None else []
    return bool(own) and calls_of(answer) == own


def repeat(answer: Mapping[str, Any], case: Case) -> Scored | None:
    """Return -0.5 for a call that failed in the prompt with the same arguments, else ``None``."""
    if any(call_key(*call) in case.errors for call in calls_of(answer)):
        return Scored(REPEATED, "a call that failed before")
    return None


PARTS: dict[str, Part] = {
    "validity": validity, "match": match, "votes": votes, "edit": edit, "outcome": outcome,
    "survival": survival, "repeat": repeat,
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
    lines = list(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=1))[2:]
    half = _MAX_LINES // 2
    return lines if len(lines) <= _MAX_LINES else lines[:half] + lines[-half:]


def _ratio(have: list[str], want: list[str]) -> float:
    if have == want:
        return 1.0
    if not have:
        return 0.0
    return SequenceMatcher(None, have, want, autojunk=False).ratio()


class Grade(NamedTuple):
    """An answer's reward, and the parts that apply to it."""

    value: float
    parts: dict[str, Scored]


class Grader:
    """Grades answers by weighted parts.

    ``validity`` is a gate: an invalid answer earns minus its weight, and no other part counts.
    """

    def __init__(self, weights: Mapping[Any, float]) -> None:
        self.weights: dict[str, float] = dict(weights)

    def grade(self, answer: Mapping[str, Any], case: Case) -> Grade:
        """Return the weighted sum of the parts that apply."""
        found: dict[str, Scored] = {}
        # The gate first, whatever the order of the weights.
        for name in sorted(self.weights, key=lambda name: name != "validity"):
            scored = PARTS[name](answer, case)
            if scored is None:
                continue
            found[name] = scored
            if name == "validity" and scored.value < 0:
                break
        return Grade(sum(self.weights[name] * part.value for name, part in found.items()), found)
