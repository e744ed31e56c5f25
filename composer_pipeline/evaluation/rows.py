"""Evaluation states as token ids, through the windows that a model was trained with.

Belongs here: one state in, one row of ids out, or the reason why not; and batches. Does not belong
here: rendering (``training.windows``) and running models (``evaluation.asked``).
"""

from collections.abc import Iterable, Sequence

import msgspec

from composer_pipeline.actions import Action
from composer_pipeline.chat import action_message, parse_reply_message
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.training.data import Prompt
from composer_pipeline.training.windows import Dropped, Windows


class Row(msgspec.Struct, frozen=True):
    """A state as a model sees it.

    ``right`` is the right action in the template's form, which may take one call only; every
    answer ends with its end token. ``wrong_ids`` and ``hinted_ids`` (the prompt whose last words
    are the hint) are empty where there is none.
    """

    state: EvaluationState
    right: Action
    prompt_ids: list[int]
    right_ids: list[int]
    wrong_ids: list[int] = []
    hinted_ids: list[int] = []

    @property
    def longest(self) -> int:
        """Tokens of the longest recorded answer."""
        return max(len(self.right_ids), len(self.wrong_ids))


def row_of(windows: Windows, state: EvaluationState) -> Row:
    """Return a state's row.

    Raises:
        Dropped: the prompt or the right action does not fit, as in training; says why.
    """
    prompt = Prompt(windows, {"prompt": state.messages, "tools": state.tools})
    message = prompt.action([action_message(state.right)])
    right_ids = prompt.response(message)
    try:
        right = parse_reply_message(message)
    except ValueError as error:
        raise Dropped("the right action is empty") from error
    wrong_ids = _wrong_ids(prompt, state.wrong) if state.wrong is not None else []
    return Row(
        state,
        right,
        prompt.ids,
        right_ids,
        wrong_ids if wrong_ids != right_ids else [],
        prompt.hinted(state.hint) if state.hint and state.hint.strip() else [],
    )


def rows_of(
    windows: Windows, states: Iterable[EvaluationState]
) -> tuple[list[Row], dict[str, str]]:
    """Return the rows that fit, and state id to the reason of those that do not."""
    rows: list[Row] = []
    dropped: dict[str, str] = {}
    for state in states:
        try:
            rows.append(row_of(windows, state))
        except Dropped as reason:
            dropped[state.state_id] = str(reason)
    return rows, dropped


def batches(
    rows: Sequence[Row], *, tokens: int, logits: int, vocabulary: int, answer: int
) -> list[list[Row]]:
    """Pack rows of like length.

    Args:
        rows: what is packed.
        tokens: positions of a batch, padding and the longest possible answer included.
        logits: numbers that the log-probabilities of a batch's recorded answers may have.
        vocabulary: logits of one token.
        answer: tokens that a model may answer with.

    A single row may exceed both limits.
    """
    out: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (-_width(row, answer), row.state.state_id)):
        if out:
            batch = [*out[-1], row]
            width = max(_width(each, answer) for each in batch)
            longest = max(each.longest for each in batch)
            if len(batch) * width <= tokens and len(batch) * longest * vocabulary <= logits:
                out[-1] = batch
                continue
        out.append([row])
    return out


def _width(row: Row, answer: int) -> int:
    return max(len(row.prompt_ids), len(row.hinted_ids)) + max(row.longest, answer)


def _wrong_ids(prompt: Prompt, wrong: Action) -> list[int]:
    try:
        return prompt.response(prompt.action([action_message(wrong)], shown=False))
    except Dropped:
        return []  # the state is measured without it
