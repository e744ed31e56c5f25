"""A student other than the small world's own: any causal LM, as fields of the arms' recipes."""

from collections.abc import Sequence
from typing import Any

from composer_pipeline.chat.convert import action_message
from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import Data
from composer_pipeline.training.rows import Prompt
from composer_pipeline.training.window_text import Dropped
from composer_pipeline.training.windows import TOOLS_SHARE, Windows
from examples.proof.toolworld.student import WINDOW

#: Tokens of tool schemas in a prompt: names, arguments and types of the world's six tools.
TOOLS = 512
#: Tokens that any prompt and any answer of the world have room in.
_ROOM = {"max_prompt_tokens": 2**16, "max_completion_tokens": 2**12}
#: Of the longest state: a window is cut by an estimate of tokens, so a tight one would lose some.
_SPARE = 2
#: An answer is rounded up to a multiple of this: teachers and samples say other names.
_ROUND = 16


def student_of(
    model: str, states: Sequence[EvaluationState], *, lora: int, dtype: str, tools: int
) -> dict[str, Any]:
    """Return the recipe fields of a student."""
    return {
        "model": model, "dtype": dtype,
        "lora": {"r": lora, "alpha": 2 * lora or 1, "targets": "all-linear"},
        "data": window(load_tokenizer(resolve_model(model)), states, tools).model_dump(),
        "activation_checkpointing": True,
    }  # fmt: skip


def window(tokenizer: Any, states: Sequence[EvaluationState], tools: int) -> Data:
    """Return the token budgets that the longest evaluation state fits."""
    room = WINDOW.model_copy(update={**_ROOM, "max_tools_tokens": tools})
    windows, longest, answer = Windows(tokenizer, room), 0, 0
    for state in states:
        prompt = Prompt(windows, {"prompt": state.messages, "tools": state.tools})
        try:
            longest = max(longest, len(prompt.ids))
            for action in filter(None, (state.right, state.wrong)):
                answer = max(answer, len(prompt.response(action_message(action))))
        except Dropped as why:
            raise InputError(
                f"evaluation state {state.state_id} cannot be shown to this model: {why}"
            ) from why
    return room.model_copy(update={
        # Tools get no more than their share of a prompt, so it has to have room for that.
        "max_prompt_tokens": max(_SPARE * longest, TOOLS_SHARE * tools),
        "max_completion_tokens": -(-answer // _ROUND) * _ROUND,
    })  # fmt: skip


def described(student: dict[str, Any]) -> str:
    """Return the sentence of the report about a student."""
    data, rank = student["data"], student["lora"]["r"]
    trained = f"LoRA of rank {rank} on every linear map" if rank else "every parameter trained"
    return (
        f"Student: {student['model']}, {student['dtype']}, {trained}; prompts of up to"
        f" {data['max_prompt_tokens']} tokens, of which tool schemas {data['max_tools_tokens']},"
        f" answers of up to {data['max_completion_tokens']}. A step's seconds are the median over"
        " steps, its tokens those of the rows; the peak is the device's, on a CPU the process's."
    )
