"""What a dataset row becomes in each channel.

Belongs here: one row of a table in, one row of token ids out, or the reason why not. Does not
belong here: reading tables (``training.data.build``) and rendering (``training.windows``).
"""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from composer_pipeline.training.data.rows import Demonstration, Group, Hint, Pair
from composer_pipeline.training.rewards import Case, Grader, case_of
from composer_pipeline.training.windows import (
    Dropped,
    Message,
    Windows,
    action_message,
    names_lost_file,
)

#: Dropping these is how GRPO works, not a sign of wrong data.
ZERO_VARIANCE = "zero-variance group"
#: The action names a file that the prompt showed and the window does not.
LOST_FILE = "lost file"

_Row = Mapping[str, Any]


class Prompt:
    """A row's window, made when it is first asked for and used by every channel.

    Args:
        windows: renders.
        row: has ``prompt`` and ``tools``.
    """

    def __init__(self, windows: Windows, row: _Row) -> None:
        self._windows, self._row = windows, row

    @cached_property
    def _cut(self) -> tuple[list[Message], list[Any]]:
        return self._windows.window(self._row["prompt"], self._row["tools"] or [])

    @cached_property
    def ids(self) -> list[int]:
        """The token ids, ending with the assistant's header."""
        return self._windows.prompt_ids(*self._cut)

    @property
    def cut(self) -> bool:
        """Whether anything of the prompt was left out or shortened."""
        window, _ = self._cut
        return sum(_length(m) for m in window) < sum(_length(m) for m in self._row["prompt"])

    def action(self, messages: Any, *, shown: bool = True) -> Message:
        """Return the one action of a row's column, in the template's form.

        Raises:
            Dropped: it is not one assistant message, or, where it has to be ``shown``, names a
                file that the window lost.
        """
        action = self._windows.template.form.action(action_message(messages))
        if (
            shown
            and self._windows.limits.drop_lost_files
            and names_lost_file(action, self._row["prompt"], self._cut[0])
        ):
            raise Dropped(LOST_FILE)
        return action

    def response(self, action: Message) -> list[int]:
        """Return the ids of an action behind this prompt.

        Raises:
            Dropped: it is too long, or the template refuses it.
        """
        return self._windows.response_ids(*self._cut, action)

    def span(self, action: Message, call: int) -> tuple[int, int]:
        """Return start and length of one call in the response."""
        return self._windows.span(*self._cut, action, call)

    def hinted(self, hint: str) -> list[int]:
        """Return the ids of the prompt whose last words are the hint."""
        window, tools = self._cut
        return self._windows.prompt_ids(self._windows.hinted(window, hint), tools)


def pair(windows: Windows, row: _Row) -> Pair:
    """Return a row of ``dataset_pairs`` as token ids.

    Raises:
        Dropped: it does not fit, or both sides have the same tokens.
    """
    return pair_of(Prompt(windows, row), row)


def pair_of(prompt: Prompt, row: _Row) -> Pair:
    """Return a preference pair; see :func:`pair`."""
    chosen = prompt.response(prompt.action(row["chosen"]))
    rejected = prompt.response(prompt.action(row["rejected"]))
    if chosen == rejected:
        raise Dropped("chosen equals rejected")
    weight = row.get("weight")
    return Pair(row["pair_id"], prompt.ids, chosen, rejected, 1.0 if weight is None else weight)


def group_of(
    prompt: Prompt,
    row: _Row,
    grader: Grader,
    *,
    recorded: bool = True,
    failed: bool | None = None,
) -> Group:
    """Return the distinct answers to a state with their counts and rewards.

    Args:
        prompt: the state's window.
        row: of ``dataset_groups``.
        grader: says what an answer is worth.
        recorded: the model gives no answers of its own, so that the recorded ones must differ
            in what they are worth.
        failed: whether the agent's own action ended in an error.

    Raises:
        Dropped: there is no consensus, no answer fits, or all are worth the same.
    """
    consensus = _consensus(prompt, row)
    counts: Counter[tuple[int, ...]] = Counter()
    answers: dict[tuple[int, ...], Message] = {}
    given: list[tuple[str, Message]] = []
    why = "no candidate"
    for who, message in zip(row["sources"] or [], row["candidates"] or [], strict=True):
        try:
            candidate = prompt.action([message], shown=False)
            ids = tuple(prompt.response(candidate))
        except Dropped as reason:
            why = str(reason)
            continue
        counts[ids] += 1
        answers.setdefault(ids, candidate)
        given.append((who, candidate))
    if not counts:
        raise Dropped(why)
    case = case_of(grader.weights, consensus, given, row, failed)
    rewards = {ids: grader.grade(answer, case).value for ids, answer in answers.items()}
    if recorded and max(rewards.values()) - min(rewards.values()) < 1e-9:
        raise Dropped(ZERO_VARIANCE)
    return Group(
        row["state_id"],
        prompt.ids,
        [list(ids) for ids in counts],
        list(counts.values()),
        list(rewards.values()),
        # What nobody will answer again needs no more than the consensus.
        (Case(consensus) if recorded else case).to_json(),
    )


def demonstration_of(prompt: Prompt, row: _Row) -> Demonstration:
    """Return a state and its consensus action.

    Raises:
        Dropped: there is no consensus, or it does not fit.
    """
    response = prompt.response(_consensus(prompt, row))
    return Demonstration(row["state_id"], prompt.ids, response)


def success_of(prompt: Prompt, row: _Row) -> Demonstration:
    """Return a state and the agent's own action there.

    Raises:
        Dropped: it does not fit.
    """
    return Demonstration(row["state_id"], prompt.ids, prompt.response(prompt.action(row["action"])))


def hint_of(prompt: Prompt, row: _Row, consensus: list[Any] | None) -> Hint:
    """Return an error turn with the target that its hint should lead to.

    Raises:
        Dropped: there is no hint, or the failed call cannot be told from others.
    """
    text = (row["hint"] or "").strip()
    if not text:
        raise Dropped("empty hint")
    whole = action_message(row["action"])
    call = -1 if row["span_call"] is None else int(row["span_call"])
    start, length = prompt.span(whole, call)
    response = prompt.response(prompt.action(row["action"]))
    target = _target(prompt, response, consensus, row["recovery"])
    return Hint(row["state_id"], prompt.ids, prompt.hinted(text), response, start, length, target)


def _consensus(prompt: Prompt, row: _Row) -> Message:
    if not row["consensus"]:
        raise Dropped("no consensus")
    return prompt.action(row["consensus"])


def _target(prompt: Prompt, response: list[int], *known: list[Any] | None) -> list[int]:
    """Return the ids of the first better action that is one: not the failing one again."""
    for messages in known:
        try:
            ids = prompt.response(prompt.action(messages or []))
        except Dropped:
            continue
        if ids != response:
            return ids
    return []


def _length(message: Message) -> int:
    return len(message.get("content") or "")
