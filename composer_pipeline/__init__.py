"""composer-pipeline: agent traces in, preference data and trained models out.

The Python API is this flat list (docs/api.md); each name is loaded when it is first used, so
that ``import composer_pipeline`` loads none of the rooms. A stage is
``stage(lake, …, *, progress=None) -> Report``, with ``days=`` where its tables have days, and
``Report.to_dict()`` is plain JSON. See docs/architecture.md for the rooms behind it.

Two rooms are named as their stages are, ``replay`` and ``normalize``. As attributes of this
package these names are the stages, whatever was imported before; the rooms are imported as
always (``from composer_pipeline.replay.teachers import Teacher``).
"""

import os
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_pipeline.actions import Action, ToolCall
    from composer_pipeline.errors import BudgetExhausted, ComposerError, InputError
    from composer_pipeline.evaluation import evaluate
    from composer_pipeline.interchange import export_sessions
    from composer_pipeline.lake import Lake
    from composer_pipeline.normalize import normalize
    from composer_pipeline.preferences.agreement import compare
    from composer_pipeline.preferences.export import export
    from composer_pipeline.preferences.hints import build_hints
    from composer_pipeline.preferences.pairs import build_pairs, explain
    from composer_pipeline.preferences.quality import write_statistics
    from composer_pipeline.preferences.rules import PreferenceRules
    from composer_pipeline.publishing import build_dataset, publish
    from composer_pipeline.replay.engine import replay
    from composer_pipeline.replay.plan import plan
    from composer_pipeline.replay.teachers import TeacherSet
    from composer_pipeline.report import write_report
    from composer_pipeline.trace_states import TraceState, load_state, load_states
    from composer_pipeline.traces.ingest import ingest
    from composer_pipeline.training.run import train
    from composer_pipeline.training.windows import window_messages

__version__ = "0.1.0"

# Arrow's own allocator keeps what it once had: 50 to 160 MB more at the peak of plan, pairs,
# dataset and publish, in the same CPU time. Arrow reads this once, when it is loaded.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

#: Name to the module that has it: the language, the files a user writes, the stages and
#: questions in order, the errors.
_WHERE = {
    "Lake": "lake",
    "Action": "actions",
    "ToolCall": "actions",
    "TraceState": "trace_states",
    "load_states": "trace_states",
    "load_state": "trace_states",
    "TeacherSet": "replay.teachers",
    "PreferenceRules": "preferences.rules",
    "ingest": "traces.ingest",
    "plan": "replay.plan",
    "replay": "replay.engine",
    "build_hints": "preferences.hints",
    "build_pairs": "preferences.pairs",
    "compare": "preferences.agreement.compare",
    "explain": "preferences.pairs",
    "write_statistics": "preferences.quality",
    "normalize": "normalize",
    "build_dataset": "publishing",
    "export": "preferences.export",
    "export_sessions": "interchange",
    "publish": "publishing",
    "train": "training.run",
    "evaluate": "evaluation",
    "write_report": "report",
    "window_messages": "training.windows",
    "ComposerError": "errors",
    "InputError": "errors",
    "BudgetExhausted": "errors",
}

__all__ = [  # noqa: RUF022  in the order of the stages
    "Lake", "Action", "ToolCall", "TraceState", "load_states", "load_state",
    "TeacherSet", "PreferenceRules",
    "ingest", "plan", "replay", "build_hints", "build_pairs", "compare", "explain",
    "write_statistics", "normalize", "build_dataset", "export", "export_sessions", "publish",
    "train", "evaluate", "write_report", "window_messages",
    "ComposerError", "InputError", "BudgetExhausted",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load a name of the API (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """This package, which keeps the names of its API when a room of that name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        # The import system binds every submodule to its package, which would hide the stage.
        if not (name in _WHERE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
