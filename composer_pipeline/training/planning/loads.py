"""What a recipe puts into one forward: rows, tokens, selected positions.

Belongs here: sizes of rows and of micro-batches. Does not belong here: which rows come when and
how they are packed (``trainers``), and bytes (``training.planning.memory``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from composer_pipeline.training.recipe import TrainingRecipe


@dataclass(frozen=True)
class RowSize:
    """A row of a channel as tokens.

    Attributes:
        size: what packing counts; of a pair both sides.
        prompt: of its longest prompt.
        responses: of each response that it brings into the forward.
        selected: positions whose log-probability counts.
    """

    size: int
    prompt: int
    responses: tuple[int, ...]
    selected: int


@dataclass(frozen=True)
class Load:
    """One forward: ``rows`` sequences of ``width`` tokens, padding included.

    ``padded`` says that some are shorter, ``cache`` that the forward is the sampling of answers.
    """

    channel: str
    rows: int
    width: int
    selected: int
    padded: bool
    cache: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the forward, padding included."""
        return self.rows * self.width


def load_of(channel: str, rows: Sequence[RowSize]) -> Load:
    """Return the forward of a micro-batch."""
    lengths = [row.prompt + n for row in rows for n in row.responses]
    width = max(lengths)
    if channel == "grpo":  # prompts padded on the left, answers on the right
        answers = max(n for row in rows for n in row.responses)
        width = max(row.prompt for row in rows) + answers
    padded = any(length != width for length in lengths)
    return Load(channel, len(lengths), width, sum(row.selected for row in rows), padded)


def loads_of(recipe: TrainingRecipe, batches: dict[str, list[list[RowSize]]]) -> list[Load]:
    """Return every forward of a run.

    Args:
        recipe: says whether answers are sampled.
        batches: the micro-batches of each channel.
    """
    found = {load_of(channel, batch) for channel, many in batches.items() for batch in many}
    grpo = recipe.channels.grpo
    if "grpo" in batches and grpo.sampled:
        prompt = max(row.prompt for batch in batches["grpo"] for row in batch)
        width = prompt + recipe.data.max_completion_tokens
        rows = grpo.group_size
        found.add(Load("grpo", rows, width, rows, padded=True, cache=True))
    return sorted(found, key=lambda load: (load.channel, load.tokens))


def assumed_rows(recipe: TrainingRecipe, channel: str) -> list[RowSize]:
    """Return the rows of one window where none can be counted: all as long as they may be."""
    prompt, answer = recipe.data.max_prompt_tokens, recipe.data.max_completion_tokens
    one = RowSize(prompt + answer, prompt, (answer,), answer)
    many = recipe.channels.rows_per_step()[channel]
    if channel == "dpo":
        return [RowSize(2 * one.size, prompt, (answer, answer), 2 * answer)] * many
    return [one] * (many * recipe.channels.grpo.group_size if channel == "grpo" else many)
