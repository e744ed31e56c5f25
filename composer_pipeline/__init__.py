"""composer-pipeline: agent traces in, preference data and trained models out.

The Python API is the flat list below (docs/api.md); each name is loaded when it is first used, so
that ``import composer_pipeline`` loads no other package. ``help(composer_pipeline.ingest)`` and so
on say the rest. A stage is ``stage(lake, ..., *, progress=None) -> Report``, with ``days=`` where
its tables have days, and ``Report.to_dict()`` is plain JSON. Recipes and teacher files are given as
objects, files, or the names of shipped ones, as on the command line.

    Lake, TraceState, Action, ToolCall        what everything speaks of
    TeacherSet, PreferenceRules               files that you write
    sample_sessions_dir                       the folder of the bundled sessions
    ingest, load_states, load_state           session files to states
    evaluate_outcomes, judge_outcomes         what became of the edits, and what foretold it
    plan, replay                              what a replay would cost; buy it
    build_hints, build_pairs, compare, explain
    write_statistics, read_statistics         agreement, noise, style, and what is refused
    sufficiency                               whether fewer teachers would have been enough
    normalize, build_dataset, export, export_sessions, write_report, publish
    train, evaluate, window_messages
    status, verify, reparse, forget, withdraw
    ComposerError, InputError, BudgetExhausted

See docs/architecture.md for the packages behind it.
"""

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from inspect import isfunction, signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from composer_pipeline.actions import Action as Action
    from composer_pipeline.actions import ToolCall as ToolCall
    from composer_pipeline.dataset.build import build_dataset as build_dataset
    from composer_pipeline.errors import BudgetExhausted as BudgetExhausted
    from composer_pipeline.errors import ComposerError as ComposerError
    from composer_pipeline.errors import InputError as InputError
    from composer_pipeline.evaluation.evaluate import evaluate as evaluate
    from composer_pipeline.exporting.columns import export as export
    from composer_pipeline.exporting.sessions import export_sessions as export_sessions
    from composer_pipeline.lake.store import Lake as Lake
    from composer_pipeline.maintenance.forget import forget as forget
    from composer_pipeline.maintenance.forget import reparse as reparse
    from composer_pipeline.maintenance.forget import withdraw as withdraw
    from composer_pipeline.maintenance.status import status as status
    from composer_pipeline.maintenance.verify import verify as verify
    from composer_pipeline.normalization.stage import normalize as normalize
    from composer_pipeline.preferences.explain import explain as explain
    from composer_pipeline.preferences.hints import build_hints as build_hints
    from composer_pipeline.preferences.pairs import build_pairs as build_pairs
    from composer_pipeline.preferences.quality import read_statistics as read_statistics
    from composer_pipeline.preferences.quality import write_statistics as write_statistics
    from composer_pipeline.preferences.rules import PreferenceRules as PreferenceRules
    from composer_pipeline.preferences.sufficiency import sufficiency as sufficiency
    from composer_pipeline.preferences.vote_rows import compare as compare
    from composer_pipeline.publishing.publish import publish as publish
    from composer_pipeline.report.write import write_report as write_report
    from composer_pipeline.states.load import load_state as load_state
    from composer_pipeline.states.load import load_states as load_states
    from composer_pipeline.states.state import TraceState as TraceState
    from composer_pipeline.survival.judge import judge_outcomes as judge_outcomes
    from composer_pipeline.survival.stage import evaluate_outcomes as evaluate_outcomes
    from composer_pipeline.teachers.plan import plan as plan
    from composer_pipeline.teachers.run import replay as replay
    from composer_pipeline.teachers.teachers import TeacherSet as TeacherSet
    from composer_pipeline.testing.samples import sample_sessions_dir as sample_sessions_dir
    from composer_pipeline.traces.ingest import ingest as ingest
    from composer_pipeline.training.run import train as train
    from composer_pipeline.training.windows import window_messages as window_messages

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
    "sample_sessions_dir": "testing.samples",
    "ingest": "traces.ingest",
    "evaluate_outcomes": "survival.stage",
    "judge_outcomes": "survival.judge",
    "plan": "teachers.plan",
    "replay": "teachers.run",
    "build_hints": "preferences.hints",
    "build_pairs": "preferences.pairs",
    "compare": "preferences.vote_rows",
    "explain": "preferences.explain",
    "write_statistics": "preferences.quality",
    "read_statistics": "preferences.quality",
    "sufficiency": "preferences.sufficiency",
    "normalize": "normalization.stage",
    "build_dataset": "dataset.build",
    "export": "exporting.columns",
    "export_sessions": "exporting.sessions",
    "publish": "publishing.publish",
    "train": "training.run",
    "evaluate": "evaluation.evaluate",
    "write_report": "report.write",
    "window_messages": "training.windows",
    "status": "maintenance.status",
    "verify": "maintenance.verify",
    "reparse": "maintenance.forget",
    "forget": "maintenance.forget",
    "withdraw": "maintenance.forget",
    "ComposerError": "errors",
    "InputError": "errors",
    "BudgetExhausted": "errors",
}

#: The names in the order of the stages. Not ``__all__``: ``help`` would print all of them whole.
API = tuple(_WHERE)


@cache
def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that says in one sentence that its first argument is no lake."""

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        from composer_pipeline.errors import InputError
        from composer_pipeline.lake.store import Lake

        lake = given[0] if given else named.get("lake")
        if not isinstance(lake, Lake):
            name, kind = function.__name__, type(lake).__name__
            raise InputError(f"{name}: lake must be a Lake, as in Lake('lake'), not {kind}")
        return function(*given, **named)

    return call


def __getattr__(name: str) -> Any:
    """Load a name of the API (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
    takes_lake = isfunction(found) and next(iter(signature(found).parameters), "") == "lake"
    return _checked(found) if takes_lake else found


def __dir__() -> list[str]:
    return sorted({*globals(), *API})
