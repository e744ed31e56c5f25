"""A session as ATIF 1.8 trajectories (Agent Trajectory Interchange Format).

What ATIF has no field for is in ``extra``. To rebuild a prompt from the steps before its step: join
adjacent texts of one side by an empty line, and adjacent agent steps to one message if the first
has no call or no ``observation``; answer calls in their order, begin a result whose
``extra.is_error`` is true with ``[tool error] ``, and answer a call without a result with
``[no result: interrupted]``.

A path that was compacted or cleared continues in the document of ``continued_trajectory_ref``; an
abandoned branch is a document of its own, listed in ``extra.branches``. What a document repeats of
another is marked ``is_copied_context``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from composer_pipeline.chat.convert import offered_tools
from composer_pipeline.chat.tools import Toolset, Toolsets
from composer_pipeline.exporting.steps import PathSteps, SessionStep, StepCall, path_steps
from composer_pipeline.money import to_usd
from composer_pipeline.states.load import WholeSession
from composer_pipeline.states.state import TraceState

VERSION = "ATIF-v1.8"

NOTES = (
    "Private text was replaced by placeholders; thinking is left out. Session files do not record"
    " what the agent's own calls cost, so no step has cost_usd; metrics.extra.replay_usd is what"
    " teachers were paid for answering the same state. Only the agent's steps have times."
)

_OUTCOMES = (
    "error_kind", "followed_by_error", "followed_by_correction", "interrupted", "reverted",
    "tests_passed",
)  # fmt: skip

Document = dict[str, Any]


def documents(
    session: WholeSession, name: str, tools: Toolsets, paid: Mapping[str, int]
) -> dict[str, Document]:
    """Return the session's documents by file name without suffix; the first is called ``name``.

    ``paid`` is state id to the cost of its replies, in picodollars.
    """
    by_agent = {agent: path_steps(paths) for agent, paths in sorted(session.paths.items())}
    rows = {row["agent_id"]: row for row in session.rows}
    main = by_agent.pop("", [])
    found = _of_agent(session, main, name, "", tools, paid)
    where = {
        call.recorded: (document, step_id, call.id)
        for line, document in zip(main, found.values(), strict=True)
        for step_id, step in enumerate(line.steps, start=1)
        for call in step.calls
        if not line.copied[step_id - 1]
    }
    for agent, lines in by_agent.items():
        parts = _of_agent(session, lines, f"{name}.{agent}", agent, tools, paid)
        parent = (rows.get(agent) or {}).get("parent_call")
        if not found or not main:
            found |= parts
            continue
        document, step_id, call = where.get(parent or "", (next(iter(found.values())), 0, ""))
        document.setdefault("subagent_trajectories", []).extend(parts.values())
        if step_id:
            _refer(document["steps"][step_id - 1], call, next(iter(parts)), session.session_id)
    return found


def _of_agent(
    session: WholeSession,
    lines: list[PathSteps],
    name: str,
    agent: str,
    tools: Toolsets,
    paid: Mapping[str, int],
) -> dict[str, Document]:
    """Return the documents of one trajectory, the first with the given name."""
    marks = {"start": "", "continuation": "cont-", "branch": "branch-"}
    counts: Counter[str] = Counter()
    names = []
    for line in lines:
        number = counts[line.kind] = counts[line.kind] + 1
        names.append(f"{name}.{marks[line.kind]}{number}" if line.kind != "start" else name)
    versions = [
        v for row in session.rows for v in row["versions"] or () if row["agent_id"] == agent
    ]
    made = {}
    for at, (mine, line) in enumerate(zip(names, lines, strict=True)):
        document = _document(session, line, mine, tools, paid)
        document["agent"]["version"] = versions[0] if versions else "unknown"
        if agent:
            document["extra"]["agent_id"] = agent
        if at + 1 < len(lines) and lines[at + 1].kind == "continuation":
            document["continued_trajectory_ref"] = f"{names[at + 1]}.json"
        made[mine] = document
    if branches := [
        f"{n}.json" for n, line in zip(names, lines, strict=True) if line.kind == "branch"
    ]:
        made[name]["extra"]["branches"] = branches
    return made


def _document(
    session: WholeSession, line: PathSteps, name: str, tools: Toolsets, paid: Mapping[str, int]
) -> Document:
    states = line.states
    offered = tools.of(states[0])
    steps = [
        _step(n, step, copied, offered, tools, paid)
        for n, (step, copied) in enumerate(zip(line.steps, line.copied, strict=True), start=1)
    ]
    if line.kind != "start":
        # The first document has the system prompt already.
        steps[0]["is_copied_context"] = True
    models = Counter(state.model for state in states if state.model)
    agent: Document = {
        "name": "codex" if any("codex" in row["path"] for row in session.rows) else "claude-code",
        "version": "unknown",
        "tool_definitions": offered_tools(offered.tools),
        "extra": {"tools_source": offered.source},
    }
    if models:
        agent["model_name"] = models.most_common(1)[0][0]
    return {
        "schema_version": VERSION,
        "session_id": session.session_id,
        "trajectory_id": name,
        "agent": agent,
        "steps": steps,
        "notes": NOTES,
        "final_metrics": _final(states, len(steps), paid),
        "extra": {
            "day": session.day,
            "kind": line.kind,
            "fidelity": dict(sorted(Counter(state.fidelity for state in states).items())),
            "parser_version": states[0].parser_version,
            "project": states[0].project,
        },
    }


def _step(
    number: int,
    step: SessionStep,
    copied: bool,
    offered: Toolset,
    tools: Toolsets,
    paid: Mapping[str, int],
) -> Document:
    made: Document = {"step_id": number, "source": step.source, "message": step.text}
    if copied:
        made["is_copied_context"] = True
    if step.source == "system":
        made["extra"] = {"source": step.detail}
    if step.source != "agent":
        return made
    if step.calls:
        made["tool_calls"] = [
            {"tool_call_id": call.id, "function_name": call.name, "arguments": call.arguments}
            for call in step.calls
        ]
        if step.answered:
            made["observation"] = {"results": list(_results(step.calls))}
    if step.state is not None:
        made |= _of_state(step.state, paid)
        if (mine := tools.of(step.state)).digest != offered.digest:
            made["extra"]["tool_definitions"] = offered_tools(mine.tools)
    return made


def _results(calls: Iterable[StepCall]) -> Iterable[Document]:
    for call in calls:
        if call.result is not None:
            result: Document = {"source_call_id": call.id, "content": call.result}
            if call.is_error:
                result["extra"] = {"is_error": True}
            yield result


def _of_state(state: TraceState, paid: Mapping[str, int]) -> Document:
    extra: Document = {"state_id": state.state_id, "fidelity": state.fidelity, "turn": state.turn}
    for name in _OUTCOMES:
        if (value := getattr(state, name)) is not None:
            extra[name] = value
    made: Document = {"llm_call_count": 1, "extra": extra}
    if state.model:
        made["model_name"] = state.model
    if state.ts:
        made["timestamp"] = state.ts.isoformat()
    counts = {"prompt_tokens": state.input_tokens, "completion_tokens": state.output_tokens}
    metrics: Document = {name: count for name, count in counts.items() if count is not None}
    if state.state_id in paid:
        metrics["extra"] = {"replay_usd": to_usd(paid[state.state_id])}
    if metrics:
        made["metrics"] = metrics
    return made


def _final(states: list[TraceState], steps: int, paid: Mapping[str, int]) -> Document:
    final: Document = {
        "total_prompt_tokens": sum(state.input_tokens or 0 for state in states),
        "total_completion_tokens": sum(state.output_tokens or 0 for state in states),
        "total_steps": steps,
    }
    asked = [paid[state.state_id] for state in states if state.state_id in paid]
    if asked:
        final["extra"] = {"replay_usd": to_usd(sum(asked)), "states_replayed": len(asked)}
    return final


def _refer(step: Document, call: str, trajectory: str, session_id: str) -> None:
    """Refer from the result of the call that started a subagent to its trajectory."""
    reference = {"trajectory_id": trajectory, "session_id": session_id}
    results = step.setdefault("observation", {"results": []})["results"]
    mine = next((r for r in results if r["source_call_id"] == call), None)
    if mine is None:
        mine = {"source_call_id": call}
        results.append(mine)
    mine.setdefault("subagent_trajectory_ref", []).append(reference)
