"""Exported rows under a length in tokens, for other trainers.

Belongs here: how much of a row its prompt may take, and proving the length. Does not belong here:
what of a prompt stays (``training.windows.policy``), columns and files (``preferences.export``).

Trainers cut or filter by tokens, from the end or whole rows (TRL: 1,024 unless told otherwise),
while prompts of agents have tens of thousands. Here a prompt is cut in whole turns, as in training.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import Data
from composer_pipeline.training.windows.files import names_lost_file
from composer_pipeline.training.windows.messages import Dropped, action_message
from composer_pipeline.training.windows.window import Windows

#: Of fewer tokens nothing worth training on is left.
LEAST = 256
#: Columns of exports that hold what the model shall say.
ANSWERS = ("chosen", "rejected", "completion")


class RowCutter:
    """Shortens rows so that prompt and answer, rendered whole, have at most so many tokens.

    Args:
        tokenizer: of the model that will be trained; it gets the chat template for training.
        max_tokens: of the whole row, the longer answer counted.

    Raises:
        InputError: too few tokens, or the tokenizer's template cannot show tool calls.
    """

    def __init__(self, tokenizer: Any, max_tokens: int) -> None:
        if max_tokens < LEAST:
            raise InputError(f"--max-tokens must be at least {LEAST}, not {max_tokens}")
        self._most = max_tokens
        self._windows = Windows(tokenizer, self._limits(max_tokens))

    @property
    def chat_template(self) -> str:
        """The template that the lengths hold for; a trainer should use it too."""
        return str(self._windows.tokenizer.chat_template)

    def tokens(self, texts: Iterable[str]) -> int:
        """Return about how many tokens some texts have together."""
        return sum(map(self._windows.texts.count, texts))

    def cut(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return a row with its prompt, tools and answers as they fit, or why it does not.

        Args:
            row: ``prompt``, ``tools`` and at least one of :data:`ANSWERS`, as chat messages.

        Returns:
            The row, and an empty text or the reason for which it cannot be used.
        """
        try:
            return self._cut(row), ""
        except Dropped as reason:
            return {}, str(reason)

    def _cut(self, row: Mapping[str, Any]) -> dict[str, Any]:
        form = self._windows.template.form
        names = [name for name in ANSWERS if row.get(name)]
        answers = {name: form.action(action_message(row[name])) for name in names}
        room = self._most - max(map(self._size, answers.values()))
        if room < self._most // 4:
            raise Dropped("the action leaves no room for a prompt")
        self._windows.limits = self._limits(room)
        window, tools = self._windows.window(row["prompt"], row["tools"] or [])
        for answer in answers.values():
            if names_lost_file(answer, row["prompt"], window):
                raise Dropped("action names a file that the shortened prompt lost")
            whole = self._windows.render([*window, answer], tools, open_=False)
            if len(self._windows.ids(whole)) > self._most:
                raise Dropped("too long behind its prompt")
        written = {name: form.written([answer]) for name, answer in answers.items()}
        return {**row, "prompt": form.written(window), "tools": tools, **written}

    def _size(self, answer: Mapping[str, Any]) -> int:
        """Return the tokens that an answer adds behind a prompt."""
        prompt: Sequence[dict[str, Any]] = [{"role": "user", "content": "x"}]
        open_ = self._windows.render(prompt, [], open_=True)
        whole = self._windows.render([*prompt, dict(answer)], [], open_=False)
        return len(self._windows.ids(whole)) - len(self._windows.ids(open_))

    @staticmethod
    def _limits(room: int) -> Data:
        return Data(max_prompt_tokens=room, max_completion_tokens=room, max_tools_tokens=room // 8)
