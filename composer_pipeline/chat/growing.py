"""The prefixes of a chain as chat messages, each message converted once.

Belongs here: following a chain from state to state. Does not belong here: how one prefix is
converted (``chat.messages``), whose result this equals.

A session of a thousand turns has a thousand prefixes, each a little longer than the one before.
Converting each from its beginning takes time that grows with the square of the session.
"""

from typing import Any

from composer_pipeline.chat.builder import Builder, merge_roles
from composer_pipeline.chat.messages import system_message
from composer_pipeline.trace_states import TraceState


class GrowingChain:
    """Converts the states of one chain, best in the order of their lengths.

    Messages that two states have in common are the same objects.
    """

    def __init__(self) -> None:
        self._restart("")

    def _restart(self, system: str) -> None:
        self._system = {"role": "system", "content": system}
        self._builder = Builder()
        #: So many messages of the chain are in the builder, and no later one changes that.
        self._fed = 0

    @property
    def settled(self) -> int:
        """How many messages at the beginning stay as they are, however the chain goes on."""
        # A text that follows is joined to the last message.
        return max(1, len(self._builder.messages))

    def at(self, state: TraceState) -> tuple[list[dict[str, Any]], bool]:
        """Return ``to_chat(state).messages``, and whether the prefix holds the action itself."""
        system = system_message(state)[0]
        messages = state.messages
        if len(messages) < self._fed or system != self._system["content"]:
            self._restart(system)
        rest = messages[self._fed :]
        merged = merge_roles(rest)
        for message in merged[:-1]:
            _feed(self._builder, message)
        # What follows in the chain may belong to the last message of this prefix.
        self._fed += len(rest) - _last_run(rest)
        builder = _copy(self._builder)
        for message in merged[-1:]:
            _feed(builder, message)
        builder.close_calls({})
        own = any(
            call.id and (call.id in builder.seen or call.id in self._builder.seen)
            for call in state.action.tool_calls
        )
        return [self._system, *builder.messages], own


def _feed(builder: Builder, message: dict[str, Any]) -> None:
    if message["role"] == "assistant":
        builder.assistant(message["content"])
    else:
        builder.user(message["content"])


def _last_run(messages: list[dict[str, Any]]) -> int:
    """Return how many messages at the end become one."""
    agent = [message.get("role") == "assistant" for message in messages]
    count = 0
    while count < len(agent) and agent[-1 - count] == agent[-1]:
        count += 1
    return count


def _copy(builder: Builder) -> Builder:
    """Return a builder that goes on from here; it counts what comes from now on alone."""
    twin = Builder()
    twin.messages = list(builder.messages)
    twin._pending = list(builder._pending)
    twin._calls, twin._images = builder._calls, builder._images
    return twin
