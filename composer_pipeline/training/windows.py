"""Chat messages to token windows, under budgets.

Belongs here: rendering with the chat template, left truncation by whole turns, tool schema
budgets, hinted prompts and spans. Does not belong here: the dataset's tables
(``training.data``). Imports no torch; a tokenizer is passed in.

Rules. A prompt is cut from the left by whole turns; a tool call and its results stay
together. A response is tokenised once, behind its prompt, and must leave the prompt's own
tokens unchanged; a hinted prompt gets the same response ids appended, never re-tokenised.
"""

import json
from collections.abc import Sequence
from typing import Any

from composer_pipeline.training.recipe import Data

Message = dict[str, Any]
#: The system message of a window whose prompt has none; templates invent worse ones.
SYSTEM = "You are a coding agent."
#: Stands where the middle of an over-long message was.
CUT = "\n[…]\n"
#: What the teacher of the SDPO channel reads before it repeats the recorded action.
HINT = "Feedback about the next step: {hint}"


class Dropped(Exception):
    """A row cannot be trained on; the message is the reason that is counted."""


class Windows:
    """Renders rows for one tokenizer under token budgets.

    Args:
        tokenizer: a fast tokenizer whose chat template renders tool calls.
        limits: the budgets, in tokens.
    """

    def __init__(self, tokenizer: Any, limits: Data) -> None:
        self.tokenizer = tokenizer
        self.limits = limits

    def render(self, messages: Sequence[Message], tools: Sequence[Any], *, open_: bool) -> str:
        """Return the chat template's text; ``open_`` ends it with the assistant's header."""
        text: str = self.tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, tokenize=False, add_generation_prompt=open_
        )
        return text

    def ids(self, text: str) -> list[int]:
        """Tokenise rendered text; the template already wrote the special tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def window(
        self, messages: Sequence[Message], tools: Sequence[Any], actions: Sequence[Message]
    ) -> tuple[list[Message], list[Any]]:
        """Return the longest suffix of whole turns that fits the budget, and its tools.

        When the last turn alone is too long, its longest text is cut in the middle.

        Raises:
            Dropped: even that does not fit.
        """
        budget = self.limits.max_prompt_tokens
        system, turns = _turns(messages)
        if len(self.ids(system[0]["content"])) > budget // 4:
            system = [{**system[0], "content": self._middle(system[0]["content"], budget // 4)}]
        last = turns[-1] if turns else []
        offered = self._tools(tools, [*last, *actions])
        window = [*system, *last]
        for start in range(len(turns) - 2, -1, -1):
            longer = [*system, *(message for turn in turns[start:] for message in turn)]
            if self._over(longer, offered) > 0:
                break
            window = longer
        for _ in range(8):
            over = self._over(window, offered)
            if over <= 0:
                return window, offered
            sizes = [len(self.ids(message["content"])) for message in window]
            longest = max(range(len(window)), key=sizes.__getitem__)
            if sizes[longest] - over < 16:
                break
            shorter = self._middle(window[longest]["content"], sizes[longest] - over - 8)
            window[longest] = {**window[longest], "content": shorter}
        raise Dropped("prompt does not fit")

    def prompt_ids(self, window: Sequence[Message], tools: Sequence[Any]) -> list[int]:
        """Return the ids of a window, ending with the assistant's header."""
        return self.ids(self.render(window, tools, open_=True))

    def response_ids(
        self, window: Sequence[Message], tools: Sequence[Any], action: Message
    ) -> list[int]:
        """Return the action's ids behind the window, up to and including its end token.

        Raises:
            Dropped: the response is too long, or rendering it changes the prompt.
        """
        head = self.render(window, tools, open_=True)
        full = self.render([*window, action], tools, open_=False)
        if not full.startswith(head):
            raise Dropped("chat template is not prefix preserving")
        head_ids, full_ids = self.ids(head), self.ids(full)
        if full_ids[: len(head_ids)] != head_ids:
            raise Dropped("response changes the prompt's tokens")
        ids = full_ids[len(head_ids) :]
        end = self.tokenizer.eos_token_id
        while end in ids and ids[-1] != end:
            ids.pop()
        if len(ids) > self.limits.max_completion_tokens:
            raise Dropped("response is too long")
        return ids

    def span(
        self, window: Sequence[Message], tools: Sequence[Any], action: Message, call: int
    ) -> tuple[int, int]:
        """Return start and length, in response tokens, of one tool call.

        ``call`` -1, or a call that cannot be located, is the whole response.
        """
        length = len(self.response_ids(window, tools, action))
        calls = action.get("tool_calls") or []
        if not 0 <= call < len(calls) or len(calls) == 1:
            return 0, length
        head = self.render(window, tools, open_=True)
        full = self.render([*window, action], tools, open_=False)
        bounds = []
        for count in (call, call + 1):
            part = self.render(
                [*window, {**action, "tool_calls": calls[:count]}], tools, open_=False
            )
            bounds.append(max(_common(full, part), len(head)))
        begin, end = bounds
        if call == 0 and not action["content"]:
            begin = len(head)
        if call == len(calls) - 1:
            end = len(full)
        offsets = self.tokenizer(full, add_special_tokens=False, return_offsets_mapping=True)
        marks = offsets["offset_mapping"][len(self.ids(head)) :][:length]
        inside = [i for i, (a, b) in enumerate(marks) if a >= begin and b <= end and b > a]
        return (inside[0], inside[-1] + 1 - inside[0]) if inside else (0, length)

    def hinted(self, window: Sequence[Message], hint: str) -> list[Message]:
        """Return the window with the hint as the last thing that the teacher reads."""
        text = HINT.format(hint=self._middle(hint, self.limits.max_prompt_tokens // 4))
        if window[-1]["role"] == "user":  # some templates insist on alternating roles
            joined = f"{window[-1]['content']}\n\n{text}"
            return [*window[:-1], {**window[-1], "content": joined}]
        return [*window, {"role": "user", "content": text}]

    def _over(self, messages: Sequence[Message], tools: Sequence[Any]) -> int:
        return len(self.prompt_ids(messages, tools)) - self.limits.max_prompt_tokens

    def _tools(self, tools: Sequence[Any], messages: Sequence[Message]) -> list[Any]:
        """Return all tools, or as much of them as the budget allows; a budget of 0 is none."""
        if self.limits.max_tools_tokens == 0:
            return []
        named = {c["function"]["name"] for m in messages for c in m.get("tool_calls") or ()}
        needed = [tool for tool in tools if tool.get("function", tool).get("name") in named]
        bare = [_slim(tool, bare=True) for tool in needed]
        budget = min(self.limits.max_tools_tokens, self.limits.max_prompt_tokens // 3)
        for offer in (
            list(tools),
            [_slim(tool) for tool in tools],
            needed,
            [_slim(tool) for tool in needed],
        ):
            if sum(len(self.ids(json.dumps(tool))) for tool in offer) <= budget:
                return offer
        return bare

    def _middle(self, text: str, tokens: int) -> str:
        """Return the text with its middle cut so that about ``tokens`` remain."""
        marks = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        offsets = marks["offset_mapping"]
        if len(offsets) <= tokens:
            return text
        half = max(1, (tokens - 4) // 2)
        return text[: offsets[half - 1][1]] + CUT + text[offsets[-half][0] :]


def action_message(messages: Sequence[Message]) -> Message:
    """Return the one assistant message of an action, normalised for templates."""
    assistants = [message for message in messages if message.get("role") == "assistant"]
    if len(assistants) != 1:
        raise Dropped("action is not one assistant message")
    return plain_message(assistants[0])


def plain_message(message: Message) -> Message:
    """Return a message with text content and dictionary arguments."""
    out: Message = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("tool_calls"):
        calls = []
        for call in message["tool_calls"]:
            function = call.get("function", call)
            arguments = function.get("arguments") or {}
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
            calls.append(
                {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
            )
        out["tool_calls"] = calls
    if message["role"] == "tool":
        out["name"] = message.get("name") or ""
    return out


def _turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """Split into the system message and turns; an assistant's results stay in its turn."""
    plain = [plain_message(message) for message in messages]
    system = [m for m in plain[:1] if m["role"] == "system"]
    turns: list[list[Message]] = []
    for message in plain[len(system) :]:
        if message["role"] == "tool" and turns:
            turns[-1].append(message)
        else:
            turns.append([message])
    return system or [{"role": "system", "content": SYSTEM}], turns


def _slim(tool: Any, *, bare: bool = False) -> Any:
    """Return a tool schema with argument names and types only, or with its name only."""
    function = tool.get("function", tool)
    slim: dict[str, Any] = {"name": function.get("name")}
    if not bare:
        properties = (function.get("parameters") or {}).get("properties") or {}
        slim["parameters"] = {
            "type": "object",
            "properties": {
                key: {"type": value.get("type", "string")} if isinstance(value, dict) else {}
                for key, value in properties.items()
            },
        }
    return {"type": "function", "function": slim}


def _common(a: str, b: str) -> int:
    """Return the length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
