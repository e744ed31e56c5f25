"""composer-pipeline: agent traces in, preference data and trained models out.

The Python API is this flat list (docs/api.md); each name is loaded when it is first used, so that
``import composer_pipeline`` loads no other package. A stage is ``stage(lake, …, *, progress=None)
-> Report``, with ``days=`` where its tables have days, and ``Report.to_dict()`` is plain JSON.
See docs/architecture.md for the packages behind it.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_pipeline.actions import Action, ToolCall
    from composer_pipeline.dataset.build import build_dataset
    from composer_pipeline.errors import BudgetExhausted, ComposerError, InputError
    from composer_pipeline.evaluation.evaluate import evaluate
    from composer_pipeline.exporting.columns import export
    from composer_pipeline.exporting.sessions import export_sessions
    from composer_pipeline.lake.store import Lake
    from composer_pipeline.normalization.stage import normalize
    from composer_pipeline.preferences.explain import explain
    from composer_pipeline.preferences.hints import build_hints
    from composer_pipeline.preferences.pairs import build_pairs
    from composer_pipeline.preferences.quality import write_statistics
    from composer_pipeline.preferences.rules import PreferenceRules
    from composer_pipeline.preferences.vote_rows import compare
    from composer_pipeline.publishing.publish import publish
    from composer_pipeline.report.write import write_report
    from composer_pipeline.states.load import load_state, load_states
    from composer_pipeline.states.state import TraceState
    from composer_pipeline.teachers.plan import plan
    from composer_pipeline.teachers.run import replay
    from composer_pipeline.teachers.teachers import TeacherSet
    from composer_pipeline.traces.ingest import ingest
    from composer_pipeline.training.run import train
    from composer_pipeline.training.windows import window_messages

__version__ = "0.1.0"

# Arrow's own allocator keeps 50 to 160 MB more at the peak of plan, pairs, dataset and publish.
# Arrow reads this once, when it is loaded.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

#: Name -> the module that has it.
_WHERE = {
    "Lake": "lake.store",
    "Action": "actions",
    "ToolCall": "actions",
    "TraceState": "states.state",
    "load_states": "states.load",
    "load_state": "states.load",
    "TeacherSet": "teachers.teachers",
    "PreferenceRules": "preferences.rules",
    "ingest": "traces.ingest",
    "plan": "teachers.plan",
    "replay": "teachers.run",
    "build_hints": "preferences.hints",
    "build_pairs": "preferences.pairs",
    "compare": "preferences.vote_rows",
    "explain": "preferences.explain",
    "write_statistics": "preferences.quality",
    "normalize": "normalization.stage",
    "build_dataset": "dataset.build",
    "export": "exporting.columns",
    "export_sessions": "exporting.sessions",
    "publish": "publishing.publish",
    "train": "training.run",
    "evaluate": "evaluation.evaluate",
    "write_report": "report.write",
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
