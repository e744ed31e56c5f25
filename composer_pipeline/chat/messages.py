"""An Anthropic-shaped prefix as OpenAI chat messages, and replies back as actions.

Belongs here: the invariants that make a converted prefix valid for every provider, the
neutral system prompt, names and ids on the wire. Does not belong here: which tools are
offered (``chat.tools``) and how a body is sent (``replay.provider.client``).

Two forms. *Chat form* keeps tool arguments as objects; the lake and TRL use it. *Wire form*
(:func:`wire_messages`) has them as JSON text, as the API wants them. Both keep the recorded
key order, because prompt caches and the request hash need the same bytes every time.

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

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.chat.builder import Builder, chat_call, merge_roles, short_name
from composer_pipeline.trace_states import TraceState

#: Part of every reply's provenance; raise it when the converted bytes change.
CONVERTER_VERSION = "1"


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
    if state.system:
        system, source = state.system, "recorded"
    else:
        # The session's own folder: the working directory of one response may move, and
        # would end the provider's prompt cache with it.
        system = SYSTEM_TEMPLATE.format(cwd=state.project or state.cwd or "unknown")
        source = SYSTEM_TEMPLATE_VERSION
    offered = [_renamed(tool) for tool in tools]
    recorded = builder.names | {str(tool["function"]["name"]) for tool in tools}
    names = {short_name(name): name for name in sorted(recorded)}
    return Conversion(
        messages=[{"role": "system", "content": system}, *builder.messages],
        tools=offered,
        tool_names=names,
        flags=dict(builder.flags),
        system_source=source,
    )


def action_message(action: Action) -> dict[str, Any]:
    """Return an action in chat form, rendered action-only.

    The text is left out where there are calls, so that a preference pair compares what was
    done and not how it was announced. Calls are numbered; recorded ids leak nothing.
    """
    if not action.tool_calls:
        return {"role": "assistant", "content": action.text}
    calls = [
        chat_call(f"call_{n}", call.name, call.arguments)
        for n, call in enumerate(action.tool_calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def wire_messages(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return chat-form messages as the API wants them.

    Arguments become JSON text, empty content beside calls becomes null, and the tool name,
    which only chat templates read, is left out of tool messages.
    """
    wire: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            wire.append({k: v for k, v in message.items() if k != "name"})
        elif message.get("tool_calls"):
            calls = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": _json_text(call["function"]["arguments"]),
                    },
                }
                for call in message["tool_calls"]
            ]
            content = message.get("content") or None
            wire.append({"role": "assistant", "content": content, "tool_calls": calls})
        else:
            wire.append(dict(message))
    return wire


def parse_reply_message(
    message: Mapping[str, Any], tool_names: Mapping[str, str] | None = None
) -> Action:
    """Read a reply's message as an action, with recorded tool names.

    Args:
        message: ``choices[0].message`` of a reply.
        tool_names: :attr:`Conversion.tool_names`, to undo shortened names.

    Raises:
        ValueError: no text and no call, or arguments that are not a JSON object.
    """
    names = tool_names or {}
    calls = []
    for call in message.get("tool_calls") or []:
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError("a tool call has no function name")
        raw = function.get("arguments")
        try:
            arguments = orjson.loads(raw or "{}") if isinstance(raw, str | None) else raw
        except orjson.JSONDecodeError as error:
            raise ValueError(f"arguments of {function['name']} are not JSON") from error
        if not isinstance(arguments, dict):
            raise ValueError(f"arguments of {function['name']} are not a JSON object")
        name = function["name"]
        calls.append(ToolCall(names.get(name, name), arguments, str(call.get("id") or "")))
    text = _content_text(message.get("content")).strip()
    if not calls and not text:
        raise ValueError("the reply has neither text nor a tool call")
    return Action(text=text, tool_calls=tuple(calls))


def _json_text(arguments: Any) -> str:
    try:
        return orjson.dumps(arguments).decode()
    except TypeError:  # an integer beyond 64 bits, which JSON allows
        return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False)


def _renamed(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {**tool["function"], "name": short_name(str(tool["function"]["name"]))}
    return {"type": "function", "function": function}


def _content_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [p.get("text") for p in content if isinstance(p, dict) and p.get("type") == "text"]
        return "".join(part for part in parts if isinstance(part, str))
    return ""
