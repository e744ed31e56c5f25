"""Judging an answer: the right action, exactly or in effect, and a valid tool call."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from composer_pipeline.actions import ERROR_PREFIX, Action
from composer_pipeline.chat.convert import ArgumentCheck, parse_reply_message
from composer_pipeline.evaluation.states import Row
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import ActionContext, KnownFiles, level
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.preferences.vote import home_of
from composer_pipeline.training.chat_template import AnswerReader

#: The loosest level at which an answer counts as right: equal effect.
CANONICAL = Level.L1
#: Sets of tools whose compiled schemas are cached.
_TOOLSETS = 64


class Judgement(msgspec.Struct, frozen=True):
    """The judgement of one answer."""

    #: ``None`` where the answer was cut off or cannot be parsed.
    action: Action | None
    exact: bool
    level: str
    #: ``None`` where the right action calls no tool or the offered tools are unknown.
    valid_call: bool | None
    #: Why the answer is not a valid tool call.
    problem: str

    @property
    def canonical(self) -> bool:
        """True if the answer has the effect of the right action."""
        return self.level in {found.label for found in Level if found <= CANONICAL}


class Judge:
    """Judges the answers of one model."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._checks: dict[str, ArgumentCheck] = {}

    @property
    def end(self) -> int:
        """The id that ends an answer."""
        return self._reader.end

    def judge(self, row: Row, answer: Sequence[int]) -> Judgement:
        """Return the judgement of an answer, given as token ids."""
        action, problem = self._read(row, answer)
        exact, found = False, Level.NONE
        if action is not None:
            exact = same_action(action, row.right)
            state = row.state
            found = level(action, row.right, situation_of_chat(state.messages, state.cwd)).level
        valid = None
        if row.right.tool_calls and row.state.tools:
            problem = problem or self._problem(row, action)
            valid = not problem
        return Judgement(action, exact, found.label, valid, problem)

    def _read(self, row: Row, answer: Sequence[int]) -> tuple[Action | None, str]:
        if not self._reader.ended(answer):
            return None, "the answer was cut off"
        message = self._reader.message(answer, row.prompt_ids, row.state.tools)
        try:
            return parse_reply_message(message), ""
        except ValueError as error:
            return None, str(error)

    def _problem(self, row: Row, action: Action | None) -> str:
        # Why an action is not a valid call, without any of its values, or "".
        if action is None or not action.tool_calls:
            return "no tool call"
        key = json.dumps(row.state.tools)
        if key not in self._checks:
            if len(self._checks) >= _TOOLSETS:
                self._checks.clear()
            self._checks[key] = ArgumentCheck(row.state.tools)
        check = self._checks[key]
        for call in action.tool_calls:
            if call.name not in check.names.values():
                return "a tool that was not offered"
            if problem := check.problem(call):
                return problem
        return ""


def same_action(a: Action, b: Action) -> bool:
    """Return True if two actions are equal except for the text before calls and call ids."""
    if a.tool_calls or b.tool_calls:
        return _calls(a) == _calls(b)
    return a.text.strip() == b.text.strip()


def _calls(action: Action) -> list[str]:
    # As JSON: in Python 1, 1.0 and True are equal.
    return [json.dumps([c.name, c.arguments], sort_keys=True) for c in action.tool_calls]


def situation_of_chat(messages: Sequence[Mapping[str, Any]], cwd: str) -> ActionContext:
    """Return the action context of a chat prompt; files are rebuilt on first use."""
    return ActionContext(Place(cwd, home_of(cwd)), KnownFiles([_blocks(m) for m in messages]))


def _blocks(message: Mapping[str, Any]) -> dict[str, Any]:
    # The shape of a trace; only calls and results matter here.
    blocks: list[dict[str, Any]] = []
    if message["role"] == "tool":
        text = str(message.get("content") or "")
        failed = text.startswith(ERROR_PREFIX)
        blocks.append(
            {"type": "tool_result", "tool_use_id": message.get("tool_call_id"), "content": text,
             "is_error": failed}
        )  # fmt: skip
    for call in message.get("tool_calls") or ():
        function = call["function"]
        blocks.append(
            {"type": "tool_use", "id": call.get("id"), "name": function["name"],
             "input": function["arguments"]}
        )  # fmt: skip
    return {"role": message["role"], "content": blocks}
