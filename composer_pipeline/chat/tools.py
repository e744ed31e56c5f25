"""Which tools a teacher is offered.

Belongs here: the choice of tools for a session. Does not belong here: their schemas
(``chat.tool_schemas``) and names on the wire (``chat.builder.short_name``).

Session files rarely record the tools. A recorded set (``prompt_snapshot``) always wins.
Otherwise a session is offered the tools it used and :data:`CORE`; agreement with an agent
is only possible on tools that the teacher has.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from composer_pipeline.chat.installed_tools import InstalledTools
from composer_pipeline.chat.kept_tools import nearest
from composer_pipeline.chat.tool_schemas import Toolset, tool_schemas
from composer_pipeline.trace_states import TraceState, Unseen


def session_tools(
    states: Sequence[TraceState], installed: Sequence[InstalledTools] = ()
) -> dict[str, Toolset]:
    """Choose the tools of each session, the same for all its states.

    One set for a session keeps the start of every request equal, which is what the
    provider's prompt cache needs. States must be all the states of their sessions.

    Args:
        states: of any number of sessions.
        installed: sets to choose from by each session's first version.
    """
    names: dict[str, set[str]] = {}
    inputs: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    recorded: dict[str, list[Any]] = {}
    versions: dict[str, str] = {}
    unseen = Unseen()
    for state in states:
        session = state.session_id
        if version := state.version:
            versions.setdefault(session, version)
        used = names.setdefault(session, set())
        known = inputs.setdefault(session, {})
        if state.tools:
            recorded.setdefault(session, state.tools)
        for call in state.action.tool_calls:
            used.add(call.name)
            known.setdefault(call.name, []).append(call.arguments)
        for content in (message.get("content") for message in unseen.of(state)):
            for block in content if isinstance(content, list) else []:
                if isinstance(block, dict) and block.get("type") == "tool_use":
                    used.add(str(block.get("name", "")))
    return {
        session: tool_schemas(
            {name for name in used if name},
            observed=inputs[session],
            recorded=recorded.get(session),
            installed=nearest(list(installed), versions.get(session)),
        )
        for session, used in names.items()
    }
