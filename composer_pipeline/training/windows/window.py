"""Windows: a prompt under its budget, and the ids of what follows it.

Belongs here: exact token counts, ids of prompts and responses, spans, hinted prompts. Does not
belong here: what stays of a long prompt (``training.windows.policy``).

A response is tokenised once, behind its prompt, and leaves the prompt's own tokens
unchanged; a hinted prompt gets the same response ids appended, never re-tokenised.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import Data, TrainingRecipe
from composer_pipeline.training.windows.messages import (
    Dropped,
    Message,
    plain_message,
    split_turns,
    tool_call,
)
from composer_pipeline.training.windows.policy import Overhead, fit
from composer_pipeline.training.windows.template import ChatTemplate
from composer_pipeline.training.windows.texts import Texts
from composer_pipeline.training.windows.tools import offered_tools

#: What the teacher of the SDPO channel reads before it repeats the recorded action.
HINT = "Feedback about the next step: {hint}"
#: Attempts to meet the budget exactly; the first estimate is rarely off by more than a tenth.
_ATTEMPTS = 6
#: A window that fills less than this share of its budget although it was cut is widened once.
_FILLED = 0.93
#: Tool schemas get at most this part of a prompt: more would crowd out what the agent has seen.
TOOLS_SHARE = 8
#: Sets of tools whose size is remembered.
_TOOLSETS = 64


class Windows:
    """Renders rows for one tokenizer under token budgets.

    Args:
        tokenizer: a fast tokenizer whose chat template renders tool calls; it gets the template
            that is trained with.
        limits: the budgets, in tokens.
    """

    def __init__(self, tokenizer: Any, limits: Data) -> None:
        self.tokenizer = tokenizer
        self.limits = limits
        self.template = ChatTemplate(tokenizer)
        self.texts = Texts(tokenizer)
        added = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self._sizes: dict[str, int] = {}
        self._overhead = self._measured_overhead()
        self._special = re.compile("|".join(map(re.escape, added)) or r"(?!)")

    def window(
        self, messages: Sequence[Message], tools: Sequence[Any]
    ) -> tuple[list[Message], list[Any]]:
        """Return the messages that the model sees, in its template's form, and its tools.

        Raises:
            Dropped: even the last turn does not fit, or the template refuses the messages.
        """
        budget = self.limits.max_prompt_tokens
        system, turns = split_turns(self.template.form.history(_plain(messages)))
        room = min(self.limits.max_tools_tokens, budget // TOOLS_SHARE)
        offered = offered_tools(self.texts, tools, [m for turn in turns for m in turn], room)
        whole = sum(map(len, turns)) + 1
        aim = int(0.985 * (budget - self._tools_size(offered)))
        best: list[Message] | None = None
        for _ in range(_ATTEMPTS):
            kept, cost = fit(self.texts, self._overhead, system, turns, aim)
            size = len(self.prompt_ids(kept, offered))
            if size > budget and best is not None:
                break
            if size <= budget:
                if best is not None or size > _FILLED * budget or _is_whole(kept, turns, whole):
                    return kept, offered
                best = kept
            # What was kept is as much too long or too short as the estimate was wrong.
            aim = int(cost * budget / size * 0.985) - 8
        if best is None:
            raise Dropped("prompt does not fit")
        return best, offered

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
        said = self.template.response(window, tools, self.template.form.action(action))
        ids = self._behind(head, said)
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

        Raises:
            Dropped: the template takes one call, and the call is not the first one.
        """
        length = len(self.response_ids(window, tools, action))
        calls = action.get("tool_calls") or []
        if self.template.form.one_call and len(calls) > 1:
            if call != 0:
                raise Dropped("the failing call is not the first, and the template takes one")
            return 0, length
        action = self.template.form.action(action)
        if not 0 <= call < len(calls) or len(calls) == 1:
            return 0, length
        return self._located(window, tools, action, call, length)

    def hinted(self, window: Sequence[Message], hint: str) -> list[Message]:
        """Return the window with the hint as the last thing that the teacher reads."""
        limit = self.limits.max_prompt_tokens // 4
        text = HINT.format(hint=self.texts.shortened(hint, limit))
        if window[-1]["role"] == "user":  # some templates insist on alternating roles
            joined = f"{window[-1]['content']}\n\n{text}"
            return [*window[:-1], {**window[-1], "content": joined}]
        return [*window, {"role": "user", "content": text}]

    def render(self, messages: Sequence[Message], tools: Sequence[Any], *, open_: bool) -> str:
        """Return the chat template's text; ``open_`` ends it with the assistant's header."""
        return self.template.render(messages, tools, open_=open_)

    def ids(self, text: str) -> list[int]:
        """Tokenise rendered text; the template already wrote the special tokens."""
        return self.texts.ids(text)

    def _measured_overhead(self) -> Overhead:
        start: list[Message] = [{"role": r, "content": "x"} for r in ("system", "user")]
        text: Message = {"role": "assistant", "content": "x"}
        call = {"role": "assistant", "content": "", "tool_calls": [tool_call("x", {"x": "x"})]}
        result = {"role": "tool", "name": "x", "content": "x"}

        def size(*more: Message) -> int:
            return len(self.ids(self.render([*start, *more], [], open_=False)))

        message = size(text) - size() - 1
        return Overhead(message, size(call, result) - size() - message - 4)

    def _tools_size(self, tools: Sequence[Any]) -> int:
        """Return the tokens of the assistant's header and of the tools, measured once each."""
        key = json.dumps(tools)
        if key not in self._sizes:
            if len(self._sizes) > _TOOLSETS:
                self._sizes.clear()
            start: list[Message] = [{"role": r, "content": "x"} for r in ("system", "user")]
            bare = len(self.ids(self.render(start, [], open_=False)))
            self._sizes[key] = len(self.prompt_ids(start, tools)) - bare
        return self._sizes[key]

    def _behind(self, head: str, said: str) -> list[int]:
        """Return the ids of ``said`` behind ``head``.

        Nothing merges across a special token, so what stands before the last one of ``head``
        need not be tokenised again. Where the texts would merge, the model still is asked with
        the ids of ``head``, so ``said`` is tokenised on its own.
        """
        marks = list(self._special.finditer(head, max(0, len(head) - 400)))
        near = head[marks[-1].start() :] if marks else head
        before, ids = self.ids(near), self.ids(near + said)
        if ids[: len(before)] == before:
            return ids[len(before) :]
        alone = self.ids(said)
        if self.tokenizer.decode(alone) != said:  # a tokenizer that puts a blank before a text
            raise Dropped("response changes the prompt's tokens")
        return alone

    def _located(
        self,
        window: Sequence[Message],
        tools: Sequence[Any],
        action: Message,
        call: int,
        length: int,
    ) -> tuple[int, int]:
        calls = action["tool_calls"]
        head = self.render(window, tools, open_=True)
        full = self.render([*window, action], tools, open_=False)
        if not full.startswith(head):
            return 0, length
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


def window_messages(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Any],
    tokenizer: Any,
    recipe: TrainingRecipe | str | Path,
) -> tuple[list[Message], list[Any]]:
    """Return the messages and tools that a model was trained to see for a prompt.

    Use it before asking a trained model: give what it returns to the tokenizer's chat template
    with ``add_generation_prompt=True``.

    Args:
        messages: chat messages, the system message first.
        tools: schemas of the tools offered.
        tokenizer: the checkpoint's tokenizer.
        recipe: what trained it, or the path of its ``recipe.yaml`` in the run folder.

    Raises:
        InputError: the prompt cannot be brought under the budget, or the recipe is wrong.
    """
    if not isinstance(recipe, TrainingRecipe):
        recipe = TrainingRecipe.load(recipe)
    windows = Windows(tokenizer, recipe.data)
    try:
        kept, offered = windows.window([dict(message) for message in messages], tools)
    except Dropped as reason:
        raise InputError(f"this prompt has no window: {reason}") from reason
    return windows.template.form.written(kept), offered


def _plain(messages: Sequence[Message]) -> list[Message]:
    return [plain_message(message) for message in messages]


def _is_whole(kept: Sequence[Message], turns: Sequence[Sequence[Message]], whole: int) -> bool:
    every = (message for turn in turns for message in turn)
    return len(kept) == whole and all(a == b for a, b in zip(kept[1:], every, strict=True))


def _common(a: str, b: str) -> int:
    """Return the length of the common prefix."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
