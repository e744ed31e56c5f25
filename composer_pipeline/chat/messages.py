"""An Anthropic-shaped prefix as OpenAI chat messages.

Belongs here: the invariants that make a converted prefix valid for every provider, and
the neutral system prompt. Does not belong here: which tools are offered (``chat.tools``), and
the wire's own form and its replies (``chat.wire_form``).

What is changed on the way is counted in :attr:`Conversion.flags`:

* every call is answered exactly once, right after it: ``synthetic_result`` for a call that
  was interrupted, ``orphan_result`` for a result without a call (it becomes user text);
* ``tool_error``: the result's text starts with :data:`ERROR_PREFIX`;
* ``image_dropped``, ``block_dropped``: a placeholder or nothing stands for the block;
* ``text_after_call``: text that followed a call was moved before it;
* ``ends_with_assistant``: the agent spoke twice in a row;
* ``action_in_prefix``: the prefix holds the action itself and must not be sent.

Thinking is dropped without a flag: its signatures mean nothing to another family, and its
text would contaminate the vote.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from composer_pipeline.chat.builder import Builder, merge_roles, short_name
from composer_pipeline.trace_states import TraceState
from composer_pipeline.versions import CONVERTER_VERSION

SYSTEM_TEMPLATE_VERSION = "template@1"
SYSTEM_TEMPLATE = (
    "You are a coding agent that works in a user's repository through tools.\n"
    "Do the next step of the task: call the tools that it needs, or answer in text when the"
    " task is done or you need to ask.\n"
    "Working directory: {cwd}\n"
    "Platform: unknown"
)


class Conversion(msgspec.Struct, frozen=True):
    """A prefix in chat form.

    ``tool_names`` maps the names on the wire to the recorded ones; ``flags`` counts what
    had to be changed; ``system_source`` is ``recorded`` or the template's version.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    tool_names: dict[str, str]
    flags: dict[str, int]
    system_source: str
    version: str = CONVERTER_VERSION


def to_chat(state: TraceState, *, tools: Sequence[Mapping[str, Any]] = ()) -> Conversion:
    """Convert a state's prefix to chat messages, system prompt first.

    Args:
        state: the state.
        tools: tool schemas in OpenAI form, with recorded names.
    """
    builder = Builder()
    for message in merge_roles(state.messages):
        if message["role"] == "assistant":
            builder.assistant(message["content"])
        else:
            builder.user(message["content"])
    builder.close_calls({})
    if any(call.id and call.id in builder.seen for call in state.action.tool_calls):
        builder.flags["action_in_prefix"] += 1
    if builder.messages and builder.messages[-1]["role"] == "assistant":
        builder.flags["ends_with_assistant"] += 1
    system, source = system_message(state)
    offered = offered_tools(tools)
    recorded = builder.names | {str(tool["function"]["name"]) for tool in tools}
    names = {short_name(name): name for name in sorted(recorded)}
    return Conversion(
        messages=[{"role": "system", "content": system}, *builder.messages],
        tools=offered,
        tool_names=names,
        flags=dict(builder.flags),
        system_source=source,
    )


def system_message(state: TraceState) -> tuple[str, str]:
    """Return the system prompt of a state, and where it is from."""
    if state.system:
        return state.system, "recorded"
    # The session's own folder: the working directory of one response may move, and
    # would end the provider's prompt cache with it.
    text = SYSTEM_TEMPLATE.format(cwd=state.project or state.cwd or "unknown")
    return text, SYSTEM_TEMPLATE_VERSION


def offered_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return tools with names that every provider accepts."""
    return [_renamed(tool) for tool in tools]


def _renamed(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {**tool["function"], "name": short_name(str(tool["function"]["name"]))}
    return {"type": "function", "function": function}
