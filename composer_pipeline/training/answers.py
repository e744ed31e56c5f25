"""A model's answer, read back from token ids into a chat message.

Belongs here: the grammar of a chat template's answers; ``trl`` ships it. Sampling
(``trainers.trl.sampling``) and evaluation read with it, so that what is rewarded and what
is measured are the same. Does not belong here: rendering (``training.windows``) and judging.
Imports no torch; a tokenizer is passed in.
"""

import copy
from collections.abc import Sequence
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.training.chat_template import NO_THINKING


class AnswerReader:
    """Reads the answers of a model that was asked in a tokenizer's chat template.

    Args:
        tokenizer: whose chat template wrote the prompts; it is not changed.

    Raises:
        InputError: nobody knows how the template writes tool calls.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._reader = _with_grammar(tokenizer)

    @property
    def end(self) -> int:
        """The id that ends an answer."""
        return int(self._reader.eos_token_id)

    def ended(self, answer: Sequence[int]) -> bool:
        """Say whether an answer came to its end, and was not cut off."""
        return bool(answer) and answer[-1] == self.end

    def message(
        self, answer: Sequence[int], prompt: Sequence[int], tools: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Return an answer as an assistant message; what is no tool call is text.

        Args:
            answer: the ids that the model gave.
            prompt: the ids that it was asked with.
            tools: schemas of the tools offered; templates whose arguments have no types need them.
        """
        from trl import chat_template_utils as templates

        message: dict[str, Any] = templates.parse_response(
            self._reader, list(answer), prefix=list(prompt), tools=list(tools) if tools else None
        )
        return message


def _with_grammar(tokenizer: Any) -> Any:
    """Return a copy of the tokenizer that parses answers."""
    from trl import chat_template_utils as templates

    known = copy.deepcopy(tokenizer)
    known.chat_template = tokenizer.chat_template.removeprefix(NO_THINKING)
    for name, text in vars(templates).items():
        # TRL's training templates write answers as the templates that they were made from.
        if name.endswith("_training_chat_template") and text == known.chat_template:
            plain = name.replace("_training_chat_template", "_chat_template")
            known.chat_template = getattr(templates, plain)
    try:
        return templates.add_response_schema(known)
    except ValueError as error:
        own = getattr(tokenizer, "response_template", None) or getattr(
            tokenizer, "response_schema", None
        )
        if own:
            return known
        raise InputError(
            "answers in this model's chat template cannot be read back (trl knows no grammar for"
            " it)"
        ) from error
