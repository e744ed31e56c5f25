"""A tokenizer, windows, and states in which everything is known."""

import os

import pytest

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.testing.training import BASH, NAMES, READ, prompt
from composer_pipeline.training.models import SMOLLM2, load_tokenizer, resolve_model
from composer_pipeline.training.recipe import Data
from composer_pipeline.training.windows import Windows

os.environ.setdefault("HF_HUB_OFFLINE", "1")

LIMITS = Data(max_prompt_tokens=400, max_completion_tokens=64, max_tools_tokens=0)
KINDS = ("hard_covered", "hard_uncovered", "easy", "recovery")


def read(path, **more):
    return Action("", (ToolCall("Read", {"file_path": path, **more}),))


@pytest.fixture(scope="session")
def tokenizer():
    return load_tokenizer(resolve_model(SMOLLM2))


@pytest.fixture(scope="session")
def windows(tokenizer):
    return Windows(tokenizer, LIMITS)


@pytest.fixture(scope="session")
def make_state():
    """Make state i: hard ones have what the agent did and a hint, the others neither."""

    def make(i, kind=None, session=None, **changes):
        name, kind = NAMES[i % len(NAMES)], kind or KINDS[i % 4]
        hard = kind.startswith("hard")
        messages = prompt(i)
        messages[0] = {"role": "user", "content": f"Task {i}. " + "Look again. " * (i % 5)}
        fields = {
            "state_id": f"state{i:03}", "session_id": session or f"session{i // 4}", "kind": kind,
            "messages": messages, "tools": [READ, BASH], "right": read(f"src/{name}.py"),
            "wrong": read(f"lib/{name}.txt") if hard else None,
            "hint": f"The source is src/{name}.py." if hard else None,
        }  # fmt: skip
        return EvaluationState(**(fields | changes))

    return make
