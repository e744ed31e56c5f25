"""What a tokenizer's chat template takes, found out before any row is rendered.

Belongs here: the training template that TRL ships for a model, and the form of messages that a
template renders truly. Does not belong here: budgets (``training.windows.policy``).

Templates differ: some take one call a message (and raise, or silently leave out the second),
some want arguments as text, some put an assistant's text behind the results of its calls, some
open a reasoning block that a recorded action does not have. Small conversations with known words
are rendered in every form, and the first form that shows all of them in their order is used.
"""

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import orjson

from composer_pipeline.training.window_text import Dropped, Message, Texts, calls_of, tool_call

#: Put before a template that would otherwise open a reasoning block; it stays with the tokenizer.
NO_THINKING = "{%- set enable_thinking = false -%}"


@dataclass(frozen=True)
class Form:
    """How messages are written for a template.

    ``one_call``: parallel calls become calls one after another, each with its result; of an
    action the first call is taken. The calls of one response were made without seeing each
    other's results, so this is what an agent would do that makes one call at a time.
    ``text_beside_calls``: an assistant's text is kept where it made calls too.
    ``arguments_as_text``: arguments are JSON text and not a mapping.
    """

    one_call: bool = False
    text_beside_calls: bool = True
    arguments_as_text: bool = False

    def history(self, messages: Sequence[Message]) -> list[Message]:
        """Return plain messages in this form, arguments still mappings."""
        out: list[Message] = []
        at = 0
        while at < len(messages):
            message = messages[at]
            at += 1
            calls = message.get("tool_calls") or []
            if calls and not self.text_beside_calls:
                message = {**message, "content": ""}
            if len(calls) < 2 or not self.one_call:
                out.append(message)
                continue
            for number, call in enumerate(calls):
                if at >= len(messages) or messages[at]["role"] != "tool":
                    break
                content = message["content"] if number == 0 else ""
                out += [{**message, "content": content, "tool_calls": [call]}, messages[at]]
                at += 1
        return out

    def action(self, message: Message) -> Message:
        """Return an action in this form."""
        calls = message.get("tool_calls") or []
        if not calls:
            return message
        content = message["content"] if self.text_beside_calls else ""
        return {**message, "content": content, "tool_calls": calls[:1] if self.one_call else calls}

    def written(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages as the template gets them."""
        if not self.arguments_as_text:
            return list(messages)
        return [
            {**message, "tool_calls": [_as_text(call) for call in message["tool_calls"]]}
            if message.get("tool_calls")
            else message
            for message in messages
        ]


class ChatTemplate:
    """Renders plain messages with a tokenizer's template, in the form that it takes.

    Args:
        tokenizer: a fast tokenizer; its template is replaced by the one for training.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.form = Form()
        _use_training_template(tokenizer)
        own = tokenizer.chat_template
        best = (-1, own, self.form)
        for thinking, beside, one, as_text in product((own, NO_THINKING + own), *[(0, 1)] * 3):
            tokenizer.chat_template = thinking
            self.form = Form(bool(one), not beside, bool(as_text))
            passed = sum(self._renders(probe, action) for probe, action in _probes())
            if passed > best[0]:
                best = (passed, thinking, self.form)
            if passed == len(_probes()):
                break
        _, tokenizer.chat_template, self.form = best

    def shows_calls(self) -> bool:
        """Say whether a call and its result stand in what is rendered."""
        history = [{"role": "user", "content": "task0"}, _calls("a"), _result("a")]
        try:
            text = self.render(history, [], open_=False)
        except Dropped:
            return False
        return all(word in text for word in _words(history))

    def render(self, messages: Sequence[Message], tools: Sequence[Any], *, open_: bool) -> str:
        """Return the template's text; ``open_`` ends it with the assistant's header.

        Raises:
            Dropped: the template refuses the messages; says why.
        """
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                self.form.written(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=open_,
            )
        except (TemplateError, TypeError, ValueError) as error:
            said = str(error).partition("\n")[0][:80] or type(error).__name__
            raise Dropped(f"chat template refuses it: {said}") from error
        return text

    def response(self, window: Sequence[Message], tools: Sequence[Any], action: Message) -> str:
        """Return the text of an action behind a window whose assistant's header is open.

        Raises:
            Dropped: the template refuses it, or rendering it changes what stands before it.
        """
        head = self.render(window, tools, open_=True)
        full = self.render([*window, action], tools, open_=False)
        if full.startswith(head):
            return full[len(head) :]
        # Some templates take back the reasoning of earlier turns once a turn is over. The model
        # is asked behind ``head`` all the same, so what it says is what follows the last header.
        header = head.removeprefix(self.render(window, tools, open_=False))
        if header in ("", head) or header not in full:
            raise Dropped("chat template is not prefix preserving")
        return full[full.rindex(header) + len(header) :]

    def _renders(self, probe: list[Message], action: Message) -> bool:
        """Say whether all words of a probe are shown, in their order, and the action's behind."""
        history = self.form.history(probe)
        try:
            text = self.render(history, [], open_=True)
            said = self.response(history, [], self.form.action(action))
        except Dropped:
            return False
        places = [text.find(word) for word in _words(history)]
        return (
            -1 not in places
            and places == sorted(places)
            and all(word in said for word in _words([self.form.action(action)]))
        )


def _use_training_template(tokenizer: Any) -> None:
    """Give a tokenizer the template for training, if TRL ships one for it.

    What ``trl.chat_template_utils.get_training_chat_template`` does, from the files that it reads:
    importing it costs four seconds and 200 MB.
    """
    found = importlib.util.find_spec("trl")
    folders = found.submodule_search_locations if found else None
    for folder in folders or ():
        for training in Path(folder).glob("chat_templates/*_training.jinja"):
            plain = training.with_name(training.name.replace("_training", ""))
            if plain.is_file() and plain.read_text(encoding="utf-8") == tokenizer.chat_template:
                tokenizer.chat_template = training.read_text(encoding="utf-8")
                return


def _as_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return tool_call(function["name"], orjson.dumps(function["arguments"]).decode())


def _words(messages: Sequence[Message]) -> list[str]:
    """Return the words of probes in the order in which they must appear."""
    words: list[str] = []
    for message in messages:
        words += [message["content"]] if message["content"] else []
        for call in message.get("tool_calls") or ():
            words += [call["function"]["name"], *call["function"]["arguments"].values()]
    return words


def _calls(*names: str, text: str = "") -> Message:
    made = [tool_call(f"tool{n}", {"key": f"value{n}"}) for n in names]
    return {"role": "assistant", "content": text, "tool_calls": made}


def _result(name: str) -> Message:
    return {"role": "tool", "name": f"tool{name}", "content": f"result{name}"}


def _probes() -> list[tuple[list[Message], Message]]:
    start = [{"role": "system", "content": "rules0"}, {"role": "user", "content": "task0"}]
    one = [*start, _calls("a", text="thought0"), _result("a")]
    two = [*one, _calls("b"), _result("b")]
    both = [*start, _calls("a", "b", text="thought0"), _result("a"), _result("b")]
    text = {"role": "assistant", "content": "answer0"}
    asked = [*one, text, {"role": "user", "content": "task1"}]
    return [
        (start, _calls("c")), (start, text), (one, _calls("c")), (one, text), (two, _calls("c")),
        (both, _calls("c")), (one, _calls("c", "d")), (asked, _calls("c")), (asked, text),
    ]  # fmt: skip


def offered_tools(
    texts: Texts, tools: Sequence[Any], messages: Sequence[Message], budget: int
) -> list[Any]:
    """Return all tools as fully as the budget allows; a budget of 0 is none.

    Whole schemas, then argument names and types, then names alone, then as many as fit: those
    used last in ``messages`` first, so that nothing depends on the action to come.

    Args:
        texts: counts tokens.
        tools: schemas in chat form.
        messages: plain messages of the prompt.
        budget: tokens of all schemas together.
    """
    if budget == 0:
        return []
    for offer in (
        [_whole(t) for t in tools],
        [_slim(t) for t in tools],
        [_slim(t, bare=True) for t in tools],
    ):
        if sum(texts.count(json.dumps(tool)) for tool in offer) <= budget:
            return offer
    used = {name: at for at, message in enumerate(messages) for name, _ in calls_of(message)}
    order = sorted(tools, key=lambda tool: -used.get(_name(tool), -1))
    kept: set[str] = set()
    for tool in order:
        budget -= texts.count(json.dumps(_slim(tool, bare=True)))
        if budget < 0:
            break
        kept.add(_name(tool))
    return [_slim(tool, bare=True) for tool in tools if _name(tool) in kept]


def _name(tool: Any) -> str:
    return str(tool.get("function", tool).get("name"))


def _slim(tool: Any, *, bare: bool = False) -> Any:
    """Return a tool schema with argument names and types only, or with its name only."""
    given = {} if bare else tool.get("function", tool).get("parameters") or {}
    properties = {
        key: {"type": value.get("type", "string") if isinstance(value, dict) else "string"}
        for key, value in (given.get("properties") or {}).items()
    }
    return _whole({"name": _name(tool), "parameters": {"type": "object", "properties": properties}})


def _whole(tool: Any) -> dict[str, Any]:
    """Return a schema with every field that templates take for granted."""
    function = tool.get("function", tool)
    parameters = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    whole = {**function, "description": function.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": whole}
