"""The facts of one file, under the names and definitions of the ground truth.

Belongs here: counting what ``traces.reading.records`` and ``traces.graph.turns`` found, and adding
up files. Does not belong here: deciding what a state or a root is.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from composer_pipeline.traces.graph import Trajectory
from composer_pipeline.traces.reading import LineStats

Facts = dict[str, Any]

REJECTION = "The user doesn't want to"
EXIT_CODE = "Exit code "

_SUMMED = [
    "bytes",
    "lines",
    "bad_lines",
    "glued_lines",
    "responses",
    "states",
    "states_active_path",
    "tool_calls",
    "tool_results",
    "tool_calls_without_result",
    "tool_errors",
    "tool_errors_user_rejection",
    "tool_errors_exit_code",
    "compactions",
    "compact_summaries",
    "branch_points",
    "roots",
    "dangling_parents",
    "states_with_repaired_prefix",
    "synthetic_assistant",
    "subagent_responses",
]


def facts_of(trajectory: Trajectory, stats: LineStats, *, subagent_responses: int = 0) -> Facts:
    """Count one file; the keys are those of the corpus' ``expected.json``.

    ``synthetic_assistant`` counts the main records that the client made up itself, such as
    "No response requested." or an API error: no model answered, so none is a response.
    """
    nodes = [n for n in trajectory.nodes if n.origin is None]
    responses = [n for n in nodes if n.kind == "response"]
    states = [n for n in nodes if n.is_state]
    calls = [call for node in responses for call in node.calls]
    errors = [str(error["content"]) for call in calls if (error := call.error)]
    answered = sum(call.answered for call in calls)
    active = trajectory.active_nodes()
    models: Counter[str] = Counter(model for node in responses for model in node.models)
    return {
        "bytes": stats.bytes,
        "lines": stats.lines,
        "bad_lines": stats.bad_lines,
        "glued_lines": stats.glued_lines,
        "versions": sorted(trajectory.versions),
        "models": dict(sorted(models.items())),
        "responses": len(responses),
        "states": len(states),
        "states_active_path": sum(trajectory.nodes[number].is_state for number in active),
        "tool_calls": len(calls),
        "tool_results": answered,
        "tool_calls_without_result": len(calls) - answered,
        "tool_errors": len(errors),
        "tool_errors_user_rejection": sum(text.startswith(REJECTION) for text in errors),
        "tool_errors_exit_code": sum(text.startswith(EXIT_CODE) for text in errors),
        "compactions": trajectory.compactions,
        "compact_summaries": sum(n.kind == "compact_summary" for n in nodes),
        "branch_points": trajectory.branch_points(),
        "roots": sum(n.parent is None for n in nodes),
        "dangling_parents": trajectory.dangling,
        "states_with_repaired_prefix": sum(n.repaired for n in states),
        "max_prefix_turns": max((n.depth for n in states), default=0),
        "synthetic_assistant": trajectory.synthetic,
        "subagent_responses": subagent_responses,
    }


def total_of(files: Iterable[Facts]) -> Facts:
    """Add up the facts of files: sums, unions of names, the longest prefix."""
    total: Facts = dict.fromkeys(_SUMMED, 0)
    versions: set[str] = set()
    models: Counter[str] = Counter()
    longest = 0
    for facts in files:
        for name in _SUMMED:
            total[name] += facts[name]
        versions.update(facts["versions"])
        models.update(facts["models"])
        longest = max(longest, facts["max_prefix_turns"])
    total["versions"] = sorted(versions)
    total["models"] = dict(sorted(models.items()))
    total["max_prefix_turns"] = longest
    return total
