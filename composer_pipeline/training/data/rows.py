"""One row of each channel, as token ids.

Belongs here: the fields and what they mean. Does not belong here: making rows
(``training.data.build``) and keeping them (``training.data.arrow_rows``).

Traces hold text, not token ids, so windows are rendered by us, and SDPO on a recorded
action is off-policy context distillation.
"""

import msgspec


class Group(msgspec.Struct, frozen=True):
    """Recorded answers to one state with their rewards.

    ``completions`` are distinct answers, ``counts`` says how many raters gave each, and
    ``rewards`` has one value for each. ``case`` is what another answer is graded by, a
    :class:`~composer_pipeline.training.rewards.Case` as JSON text.
    """

    id: str
    prompt_ids: list[int]
    completions: list[list[int]]
    counts: list[int]
    rewards: list[float]
    case: str


class Pair(msgspec.Struct, frozen=True):
    """A preference pair; ``weight`` is that of the table, by what became of the agent's action."""

    id: str
    prompt_ids: list[int]
    chosen_ids: list[int]
    rejected_ids: list[int]
    weight: float = 1.0


class Hint(msgspec.Struct, frozen=True):
    """An error turn: one response behind a plain and behind a hinted prompt.

    ``start`` and ``length`` are the taught span inside ``response_ids``. ``target_ids`` is the
    better action behind the same prompt: the teachers' consensus, else the agent's own later
    recovery; empty where neither is known. It is never trained on: it measures the hint.
    """

    id: str
    prompt_ids: list[int]
    teacher_prompt_ids: list[int]
    response_ids: list[int]
    start: int
    length: int
    target_ids: list[int] = []


class Demonstration(msgspec.Struct, frozen=True):
    """A state and the action to repeat: the consensus, or the agent's own that worked."""

    id: str
    prompt_ids: list[int]
    response_ids: list[int]
