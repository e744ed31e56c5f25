"""Windows: a prompt cut to its token budget, and the ids of the actions after it.

A response is tokenised once, after its prompt, and leaves the prompt's own tokens unchanged; a
hinted prompt gets the same response ids appended, never tokenised again.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.training.chat_template import ChatTemplate, offered_tools
from composer_pipeline.training.recipe import Data, TrainingRecipe
from composer_pipeline.training.window_text import (
    Dropped,
    Texts,
    action_message,
    names_lost_file,
    plain_message,
    split_turns,
    tool_call,
)
from composer_pipeline.window import Message, Overhead, Turn, fit

#: The hint as SDPO's teacher reads it before the recorded action.
HINT = "Feedback about the next step: {hint}"
#: Attempts to meet the budget; the first estimate is rarely off by more than a tenth.
_ATTEMPTS = 6
#: A cut window that fills less than this share of its budget is widened once.
_FILLED = 0.93
#: Tool schemas get at most 1 / TOOLS_SHARE of a prompt.
TOOLS_SHARE = 8
#: Sets of tools whose size is cached.
_TOOLSETS = 64


class Windows:
    """Renders rows for one tokenizer, which gets its training template, under token budgets."""

    def __init__(self, tokenizer: Any, limits: Data) -> None:
        self.tokenizer = tokenizer
        self.limits = limits
        self.template = ChatTemplate(tokenizer)
        self.texts = Texts(tokenizer)
        added = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self._sizes: dict[str, int] = {}
        self._latest: tuple[Sequence[Message], Sequence[Any], str, list[int]] | None = None
        self._overhead = self._measured_overhead()
        self._special = re.compile("|".join(map(re.escape, added)) or r"(?!)")

    def window(
        self, messages: Sequence[Message], tools: Sequence[Any]
    ) -> tuple[list[Message], list[Any]]:
        """Return the messages that the model sees, in its template's form, and the tools."""
        budget = self.limits.max_prompt_tokens
        system, turns = split_turns(self.template.form.history(_plain(messages)))
        space = min(self.limits.max_tools_tokens, budget // TOOLS_SHARE)
        offered = offered_tools(self.texts, tools, [m for turn in turns for m in turn], space)
        whole = sum(map(len, turns)) + 1
        aim = int(0.985 * (budget - self._tools_size(offered)))
        sized = [Turn(self.texts, turn, self._overhead) for turn in turns]
        best: list[Message] | None = None
        for _ in range(_ATTEMPTS):
            kept, cost = fit(self.texts, self._overhead, system, sized, aim)
            size = len(self.prompt_ids(kept, offered))
            if size > budget and best is not None:
                break
            if size <= budget:
                if best is not None or size > _FILLED * budget or _is_whole(kept, turns, whole):
                    return kept, offered
                best = kept
            # The estimate was wrong by the ratio of size to cost.
            aim = int(cost * budget / size * 0.985) - 8
        if best is None:
            raise Dropped("prompt does not fit")
        return best, offered

    def prompt_ids(self, window: Sequence[Message], tools: Sequence[Any]) -> list[int]:
        """Return the ids of a window, ending with the assistant's header."""
        return self._opened(window, tools)[1]

    def _opened(self, window: Sequence[Message], tools: Sequence[Any]) -> tuple[str, list[int]]:
        """Return text and ids of a window with an open header; of the same one made once."""
        if self._latest is None or self._latest[0] is not window or self._latest[1] is not tools:
            text = self.render(window, tools, open_=True)
            self._latest = window, tools, text, self.ids(text)
        return self._latest[2:]

    def response_ids(
        self, window: Sequence[Message], tools: Sequence[Any], action: Message
    ) -> list[int]:
        """Return the action's ids after the window, including the end token."""
        head, _ = self._opened(window, tools)
        text = self.template.response(window, tools, self.template.form.action(action), head)
        ids = self._after(head, text)
        end = self.tokenizer.eos_token_id
        while end in ids and ids[-1] != end:
            ids.pop()
        if len(ids) > self.limits.max_completion_tokens:
            raise Dropped("response is too long")
        return ids

    def span(
        self, window: Sequence[Message], tools: Sequence[Any], action: Message, call: int
    ) -> tuple[int, int]:
        """Return start and length of one tool call in response tokens.

        ``call`` -1, or a call that cannot be located, is the whole response.
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
        """Return the window with the hint at its end."""
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
        """Tokenise rendered text, which already contains the special tokens."""
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
        # Tokens of the assistant's header and the tools.
        key = json.dumps(tools)
        if key not in self._sizes:
            if len(self._sizes) > _TOOLSETS:
                self._sizes.clear()
            start: list[Message] = [{"role": r, "content": "x"} for r in ("system", "user")]
            bare = len(self.ids(self.render(start, [], open_=False)))
            self._sizes[key] = len(self.prompt_ids(start, tools)) - bare
        return self._sizes[key]

    def _after(self, head: str, text: str) -> list[int]:
        # Nothing merges across a special token, so only the text from the last one of ``head`` is
        # tokenised. Where the texts would merge, the model is still prompted with the ids of
        # ``head``, so ``text`` is tokenised on its own.
        marks = list(self._special.finditer(head, max(0, len(head) - 400)))
        near = head[marks[-1].start() :] if marks else head
        before, ids = self.ids(near), self.ids(near + text)
        if ids[: len(before)] == before:
            return ids[len(before) :]
        alone = self.ids(text)
        if self.tokenizer.decode(alone) != text:  # some tokenizers prepend a blank
            raise Dropped("response changes the prompt's tokens")
        return alone

    def _located(
        self, window: Sequence[Message], tools: Sequence[Any], action: Message, call: int,
        length: int,
    ) -> tuple[int, int]:  # fmt: skip
        calls = action["tool_calls"]
        head = self.render(window, tools, open_=True)
        full = self.render([*window, action], tools, open_=False)
        if not full.startswith(head):
            return 0, length
        bounds = []
        for count in (call, call + 1):
            first = {**action, "tool_calls": calls[:count]}
            part = self.render([*window, first], tools, open_=False)
            shared = os.path.commonprefix([full, part])  # noqa: RUF071  of characters
            bounds.append(max(len(shared), len(head)))
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

    Pass the result to the tokenizer's chat template with ``add_generation_prompt=True`` to prompt a
    trained model.

    Args:
        messages: chat messages, the system message first.
        tools: schemas of the tools offered.
        tokenizer: the checkpoint's tokenizer.
        recipe: the recipe that trained it, or the path of ``recipe.yaml`` in the run folder.

    Raises:
        InputError: the prompt cannot be cut to the budget, or the recipe is invalid.
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


#: Fewer tokens leave nothing worth training on.
MIN_ROW_TOKENS = 256
#: Columns of exports that hold the model's answer.
ANSWERS = ("chosen", "rejected", "completion")


class RowCutter:
    """Shortens rows so that prompt and longer answer, rendered together, fit ``max_tokens``."""

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        if max_tokens < MIN_ROW_TOKENS:
            raise InputError(f"--max-tokens must be at least {MIN_ROW_TOKENS}, not {max_tokens}")
        self._most = max_tokens
        self._windows = Windows(tokenizer, self._limits(max_tokens))

    @property
    def chat_template(self) -> str:
        """The template that the lengths are measured with; the trainer should use it too."""
        return str(self._windows.tokenizer.chat_template)

    def tokens(self, texts: Iterable[str]) -> int:
        """Return the approximate number of tokens of some texts together."""
        return sum(map(self._windows.texts.count, texts))

    def cut(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the row with prompt, tools and answers cut to fit, or why it cannot be used."""
        try:
            return self._cut(row), ""
        except Dropped as reason:
            return {}, str(reason)

    def _cut(self, row: Mapping[str, Any]) -> dict[str, Any]:
        form = self._windows.template.form
        names = [name for name in ANSWERS if row.get(name)]
        answers = {name: form.action(action_message(row[name])) for name in names}
        space = self._most - max(map(self._size, answers.values()))
        if space < self._most // 4:
            raise Dropped("the action leaves no room for a prompt")
        self._windows.limits = self._limits(space)
        window, tools = self._windows.window(row["prompt"], row["tools"] or [])
        for answer in answers.values():
            if names_lost_file(answer, row["prompt"], window):
                raise Dropped("action names a file that the shortened prompt lost")
            whole = self._windows.render([*window, answer], tools, open_=False)
            if len(self._windows.ids(whole)) > self._most:
                raise Dropped("too long after its prompt")
        written = {name: form.written([answer]) for name, answer in answers.items()}
        return {**row, "prompt": form.written(window), "tools": tools, **written}

    def _size(self, answer: Mapping[str, Any]) -> int:
        # Tokens that an answer adds after a prompt.
        prompt: Sequence[dict[str, Any]] = [{"role": "user", "content": "x"}]
        open_ = self._windows.render(prompt, [], open_=True)
        whole = self._windows.render([*prompt, dict(answer)], [], open_=False)
        return len(self._windows.ids(whole)) - len(self._windows.ids(open_))

    @staticmethod
    def _limits(space: int) -> Data:
        return Data(
            max_prompt_tokens=space, max_completion_tokens=space, max_tools_tokens=space // 8
        )
