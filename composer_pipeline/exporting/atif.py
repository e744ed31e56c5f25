"""A session as ATIF 1.8 trajectories (Agent Trajectory Interchange Format).

What ATIF has no field for is in ``extra``. To rebuild a prompt from the steps before its step: join
adjacent texts of one side by an empty line, and adjacent agent steps to one message if the first
has no call or no ``observation``; answer calls in their order, begin a result whose
``extra.is_error`` is true with ``[tool error] ``, and answer a call without a result with
``[no result: interrupted]``.

A path that was compacted or cleared continues in the document of ``continued_trajectory_ref``; an
abandoned branch is a document of its own, listed in ``extra.branches``. What a document repeats of
another is marked ``is_copied_context``.

``ingest`` reads the files back to the same states, prefixes and actions. What is lost: the ids of
calls; pictures and other blocks that are no text (``[image 1]``); the order of texts and calls in
one message; what tells a prompt from context that the client adds in the user's role, and a summary
from a prompt; responses that only thought (a correction after one falls to the state before); that
the user stopped an agent whose model is not told of it; from where on a set of tools was recorded;
characters of a tool's name that providers refuse.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from composer_pipeline.chat.convert import offered_tools
from composer_pipeline.chat.tools import Toolset, Toolsets
from composer_pipeline.exporting.steps import (
    PathSteps,
    SessionStep,
    StepCall,
    harness_of,
    path_steps,
)
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
#: What a path's kind adds to the name of its file, with its number.
_SUFFIXES = {"start": "", "continuation": ".cont-", "branch": ".branch-"}

Document = dict[str, Any]


def documents(
    session: WholeSession, name: str, tools: Toolsets, paid: Mapping[str, int]
) -> dict[str, Document]:
    """Return the session's documents by file name without suffix; the first is called ``name``.

    ``paid`` is state id to the cost of its replies, in picodollars.
    """
    maker = _Maker(session, tools, paid)
    by_agent = {agent: path_steps(paths) for agent, paths in sorted(session.paths.items())}
    parents = {row["agent_id"]: row["parent_call"] for row in session.rows}
    main = by_agent.pop("", [])
    found = maker.trajectory(main, name, "")
    # Recorded id of a call to the document, the step and the call that started a subagent.
    started = {
        call.recorded: (document, document["steps"][number], call.id)
        for path, document in zip(main, found.values(), strict=True)
        for number, step in enumerate(path.steps)
        for call in step.calls
        if not path.copied[number]
    }
    for agent, paths in by_agent.items():
        parts = maker.trajectory(paths, f"{name}.{agent}", agent)
        if not found or not main:
            found |= parts
            continue
        first = next(iter(found.values()))
        document, step, call = started.get(parents.get(agent) or "", (first, None, ""))
        document.setdefault("subagent_trajectories", []).extend(parts.values())
        if step:
            _refer(step, call, next(iter(parts)), session.session_id)
    return found


class _Maker:
    """Makes the documents of one session."""

    def __init__(self, session: WholeSession, tools: Toolsets, paid: Mapping[str, int]) -> None:
        self._session, self._tools, self._paid = session, tools, paid

    def trajectory(self, paths: Sequence[PathSteps], name: str, agent: str) -> dict[str, Document]:
        """Return the documents of one trajectory, the first with the given name."""
        counts: Counter[str] = Counter()
        names = []
        for path in paths:
            counts[path.kind] += 1
            number = "" if path.kind == "start" else str(counts[path.kind])
            names.append(f"{name}{_SUFFIXES[path.kind]}{number}")
        rows = [row for row in self._session.rows if row["agent_id"] == agent]
        versions = [version for row in rows for version in row["versions"] or ()]
        made = {}
        for at, (own, path) in enumerate(zip(names, paths, strict=True)):
            made[own] = document = self._document(path, own)
            document["agent"]["version"] = versions[0] if versions else "unknown"
            if agent:
                document["extra"]["agent_id"] = agent
            if at + 1 < len(paths) and paths[at + 1].kind == "continuation":
                document["continued_trajectory_ref"] = f"{names[at + 1]}.json"
        files = [f"{n}.json" for n, path in zip(names, paths, strict=True) if path.kind == "branch"]
        if files:
            made[name]["extra"]["branches"] = files
        return made

    def _document(self, path: PathSteps, name: str) -> Document:
        states = path.states
        offered = self._tools.of(states[0])
        steps = [
            self._step(n, step, copied, offered)
            for n, (step, copied) in enumerate(zip(path.steps, path.copied, strict=True), start=1)
        ]
        if path.kind != "start":
            # The first document has the system prompt already.
            steps[0]["is_copied_context"] = True
        agent: Document = {
            "name": harness_of(self._session),
            "version": "unknown",
            "tool_definitions": offered_tools(offered.tools),
            "extra": {"tools_source": offered.source},
        }
        if models := Counter(state.model for state in states if state.model):
            agent["model_name"] = models.most_common(1)[0][0]
        return {
            "schema_version": VERSION,
            "session_id": self._session.session_id,
            "trajectory_id": name,
            "agent": agent,
            "steps": steps,
            "notes": NOTES,
            "final_metrics": self._totals(states, len(steps)),
            "extra": {
                "day": self._session.day,
                "kind": path.kind,
                "fidelity": dict(sorted(Counter(state.fidelity for state in states).items())),
                "parser_version": states[0].parser_version,
                "project": states[0].project,
            },
        }

    def _step(self, number: int, step: SessionStep, copied: bool, offered: Toolset) -> Document:
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
            made |= self._of_state(step.state)
            own = self._tools.of(step.state)
            if own.digest != offered.digest:
                made["extra"]["tool_definitions"] = offered_tools(own.tools)
        return made

    def _of_state(self, state: TraceState) -> Document:
        values = {
            name: getattr(state, name)
            for name in ("state_id", "message_id", "fidelity", "turn", *_OUTCOMES)
        }
        if state.cwd != state.project:
            values["cwd"] = state.cwd
        if not state.on_active_path:
            values["on_active_path"] = False
        extra = {name: value for name, value in values.items() if value is not None}
        made: Document = {"llm_call_count": 1, "extra": extra}
        if state.model:
            made["model_name"] = state.model
        if state.ts:
            made["timestamp"] = state.ts.isoformat()
        counts = {"prompt_tokens": state.input_tokens, "completion_tokens": state.output_tokens}
        metrics: Document = {name: count for name, count in counts.items() if count is not None}
        if state.state_id in self._paid:
            metrics["extra"] = {"replay_usd": to_usd(self._paid[state.state_id])}
        if metrics:
            made["metrics"] = metrics
        return made

    def _totals(self, states: Sequence[TraceState], steps: int) -> Document:
        totals: Document = {
            "total_prompt_tokens": sum(state.input_tokens or 0 for state in states),
            "total_completion_tokens": sum(state.output_tokens or 0 for state in states),
            "total_steps": steps,
        }
        costs = [self._paid[state.state_id] for state in states if state.state_id in self._paid]
        if costs:
            totals["extra"] = {"replay_usd": to_usd(sum(costs)), "states_replayed": len(costs)}
        return totals


def _results(calls: Sequence[StepCall]) -> Iterator[Document]:
    for call in calls:
        if call.result is not None:
            error = {"extra": {"is_error": True}} if call.is_error else {}
            yield {"source_call_id": call.id, "content": call.result, **error}


def _refer(step: Document, call: str, trajectory: str, session_id: str) -> None:
    """Refer from the result of the call that started a subagent to its trajectory."""
    results = step.setdefault("observation", {"results": []})["results"]
    result = next((r for r in results if r["source_call_id"] == call), None)
    if result is None:
        result = {"source_call_id": call}
        results.append(result)
    reference = {"trajectory_id": trajectory, "session_id": session_id}
    result.setdefault("subagent_trajectory_ref", []).append(reference)
