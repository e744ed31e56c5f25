"""The bundled sample sessions, and what a careful teacher would have done in them.

``scripts/sample_sessions`` writes the files below ``sample_sessions/``. Actions are as a model
would write them, with the fictional home folders of the sessions; the lake holds them redacted.
"""

import json
from functools import cache
from pathlib import Path

import msgspec

from composer_pipeline.actions import Action

FOLDER = Path(__file__).with_name("sample_sessions")


def sample_sessions_dir() -> Path:
    """Return the ``projects`` folder of the bundled sessions, as in ``~/.claude``."""
    return FOLDER / "sessions" / "projects"


@cache
def _answers() -> dict[str, Action]:
    found: dict[str, Action] = msgspec.convert(
        json.loads((FOLDER / "answers.json").read_text(encoding="utf-8")), dict[str, Action]
    )
    return found


def answers() -> dict[str, Action]:
    """Return message id -> better action, for the states whose action was poor."""
    return dict(_answers())
