"""Whether a run fits, and what to lower where it does not.

Belongs here: trying the recipe's fields one after another. Does not belong here: the prediction
itself (``training.planning.memory``).
"""

from collections.abc import Callable, Iterator

from composer_pipeline.errors import InputError
from composer_pipeline.training.planning.memory import Memory
from composer_pipeline.training.recipe import TrainingRecipe

GIB = 2**30
#: Interpreter, libraries and, on a device, its context: 0.6 GiB measured on the host with torch
#: and TRL loaded; on a device an allowance that nobody has measured.
RUNTIME = GIB


def require_fit(
    recipe: TrainingRecipe, predict: Callable[[TrainingRecipe], Memory], limit: int, where: str
) -> None:
    """Refuse a run that needs more than there is.

    Args:
        recipe: of the run.
        predict: memory of one replica of a recipe.
        limit: bytes for one replica.
        where: what has them, for the sentence: ``device 0``.

    Raises:
        InputError: it does not fit; names the field to change, and what it needs then.
    """
    memory = predict(recipe)
    need = memory.total + RUNTIME
    if need <= limit:
        return
    largest = max(memory.parts().items(), key=lambda part: part[1])
    said = (
        f"the run needs {gib(need)} at its peak (channel {memory.worst}; {gib(largest[1])} of it"
        f" {largest[0].replace('_', ' ')}) and {where} has {gib(limit)}"
    )
    for remedy, changed in _changes(recipe):
        need = predict(changed).total + RUNTIME
        if need <= limit:
            raise InputError(f"{said}: with {remedy} it needs {gib(need)}")
    raise InputError(f"{said}: choose a smaller model, or lora.r above 0 where it is 0")


def gib(size: int) -> str:
    """Return bytes as GiB for people."""
    return f"{size / GIB:.1f} GiB"


def _changes(recipe: TrainingRecipe) -> Iterator[tuple[str, TrainingRecipe]]:
    """Yield what may be lowered, the cheapest for the result first."""
    said: list[str] = []
    if not recipe.activation_checkpointing:
        said.append("activation_checkpointing: true")
        recipe = recipe.model_copy(update={"activation_checkpointing": True})
        yield ", ".join(said), recipe
    tokens = recipe.micro_batch_tokens // 2
    while tokens >= 512:
        smaller = recipe.model_copy(update={"micro_batch_tokens": tokens})
        yield ", ".join([*said, f"micro_batch_tokens: {tokens}"]), smaller
        tokens //= 2
    if recipe.dtype == "fp32":
        said.append("dtype: bf16")
        recipe = recipe.model_copy(update={"dtype": "bf16"})
        yield ", ".join(said), recipe
    prompt = recipe.data.max_prompt_tokens // 2
    while prompt >= 256:
        data = recipe.data.model_copy(update={"max_prompt_tokens": prompt})
        shorter = recipe.model_copy(update={"micro_batch_tokens": 512, "data": data})
        text = [*said, "micro_batch_tokens: 512", f"data.max_prompt_tokens: {prompt}"]
        yield ", ".join(text), shorter
        prompt //= 2
