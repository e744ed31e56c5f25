"""On-policy GRPO with TRL, against ``composer-pipeline environment``.

    composer-pipeline environment --lake lake-demo --port 8000 &
    python -m examples.environment.train --lake lake-demo --model Qwen/Qwen2.5-0.5B-Instruct

The model begins at a recorded state, calls tools, and reads recorded results for as long as its
calls are the recorded ones.
"""

import argparse
import os
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from composer_pipeline.environment.client import TraceTools
from composer_pipeline.environment.recorded import Traces
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake


def dataset(traces: Traces, most: int) -> Any:
    """Return at most so many traces as a TRL dataset: the prompt, and the state that it is of."""
    from datasets import Dataset, Features, Json, List, Value

    rows = [
        {"prompt": trace.messages, "state_id": trace.state_id}
        for trace in islice(traces.all(), most)
    ]
    # As JSON: Arrow would give each call the arguments of all others.
    return Dataset.from_list(
        rows, features=Features({"prompt": List(Json()), "state_id": Value("string")})
    )


def trainer(
    model: Any,
    tokenizer: Any,
    rows: Any,
    tools: Callable[[], Any],
    output: Path,
    **settings: Any,
) -> Any:
    """Return TRL's trainer over the environment; ``train()`` starts it."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl import GRPOConfig, GRPOTrainer

    # Dr. GRPO: a group in which all rollouts earn the same moves nothing.
    chosen: dict[str, Any] = {
        "loss_type": "dr_grpo", "scale_rewards": False, "beta": 0.0, "report_to": "none",
        "save_strategy": "no", "logging_steps": 1, "max_tool_calling_iterations": 4,
    }  # fmt: skip
    config = GRPOConfig(output_dir=str(output), **chosen | settings)
    return GRPOTrainer(
        model, args=config, train_dataset=rows, processing_class=tokenizer,
        environment_factory=tools,
    )  # fmt: skip


def main() -> None:
    """Train a model against a server that is running."""
    options = argparse.ArgumentParser(description="On-policy GRPO against recorded sessions.")
    options.add_argument("--lake", required=True, help="the lake that is served")
    options.add_argument("--model", required=True, help="id or folder of a chat model")
    options.add_argument("--url", default="http://127.0.0.1:8000", help="of the server")
    options.add_argument("--split", default="", help="as the server has it")
    options.add_argument("--traces", type=int, default=256, help="at most so many")
    options.add_argument("--steps", type=int, default=20)
    options.add_argument("--generations", type=int, default=4, help="rollouts of one state")
    options.add_argument("--out", type=Path, default=Path("build/environment"))
    given = options.parse_args()
    try:
        rows = dataset(Traces(Lake(given.lake), split=given.split), given.traces)
    except InputError as error:
        options.error(str(error))
    from transformers import AutoTokenizer

    made = trainer(
        given.model, AutoTokenizer.from_pretrained(given.model), rows,
        lambda: TraceTools(given.url), given.out, max_steps=given.steps,
        num_generations=given.generations, per_device_train_batch_size=given.generations,
    )  # fmt: skip
    made.train()
    made.save_model(str(given.out))


if __name__ == "__main__":
    main()
