"""What an answer is worth: the right action, exactly or in effect, and a valid tool call.

Belongs here: one answer against one state. Does not belong here: when two actions are the same
(``preferences.actions``), reading ids back (``training.answers``) and running models
(``evaluation.asked``). Imports no torch.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from composer_pipeline.actions import ERROR_PREFIX, Action
from composer_pipeline.chat.convert import ArgumentCheck, parse_reply_message
from composer_pipeline.evaluation.states import Row
from composer_pipeline.preferences.actions.canonical import Level
from composer_pipeline.preferences.actions.levels import KnownFiles, Situation, level
from composer_pipeline.preferences.actions.shell_parse import Place
from composer_pipeline.preferences.vote import home_of
from composer_pipeline.training.answers import AnswerReader

#: The loosest level at which an answer counts as the right action: an equal effect.
CANONICAL = Level.L1
#: Sets of tools whose schemas stay compiled.
_TOOLSETS = 64


class Judgement(msgspec.Struct, frozen=True):
    """What became of one answer.

    ``action`` is ``None`` where the answer was cut off or cannot be read, and ``problem`` says
    why it is no valid tool call. ``valid_call`` is ``None`` where the right action calls no
    tool, or nothing says which tools there were.
    """

    action: Action | None
    exact: bool
    level: str
    valid_call: bool | None
    problem: str

    @property
    def canonical(self) -> bool:
        """Whether the answer has the effect of the right action."""
        return self.level in {found.label for found in Level if found <= CANONICAL}


class Judge:
    """Judges the answers of one model.

    Args:
        reader: reads its answers.
    """

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._checks: dict[str, ArgumentCheck] = {}

    @property
    def end(self) -> int:
        """The id that ends an answer."""
        return self._reader.end

    def judge(self, row: Row, answer: Sequence[int]) -> Judgement:
        """Return what an answer is worth at a state.

        Args:
            row: the state.
            answer: the model's token ids.
        """
        action, problem = self._read(row, answer)
        exact, found = False, Level.NONE
        if action is not None:
            exact = same(action, row.right)
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
        """Return why an action is no valid call, without any of its values, or nothing."""
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


def same(a: Action, b: Action) -> bool:
    """Say whether two actions are equal but for the text before calls and the calls' ids."""
    if a.tool_calls or b.tool_calls:
        return _calls(a) == _calls(b)
    return a.text.strip() == b.text.strip()


def _calls(action: Action) -> list[str]:
    """Return the calls as JSON: Python takes 1, 1.0 and True for the same."""
    return [json.dumps([c.name, c.arguments], sort_keys=True) for c in action.tool_calls]


def situation_of_chat(messages: Sequence[Mapping[str, Any]], cwd: str) -> Situation:
    """Return what an agent had before it, from a chat prompt.

    Files are rebuilt from the prompt when they are first asked for.
    """
    return Situation(Place(cwd, home_of(cwd)), KnownFiles([_blocks(m) for m in messages]))


def _blocks(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat message in the shape of a trace: only calls and results matter here."""
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
