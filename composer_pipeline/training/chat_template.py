"""Chat templates: the form of messages that one accepts, rendering, and parsing of answers.

Templates differ: some take one call a message (and raise, or silently drop the second), some want
arguments as text, some put an assistant's text after the results of its calls, some open a
reasoning block that a recorded action does not have. Small conversations with known words are
rendered in every form, and the first form that shows all words in order is used.
"""

import copy
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import orjson

from composer_pipeline.actions import chat_calls
from composer_pipeline.errors import InputError
from composer_pipeline.training.window_text import Dropped, Texts, tool_call
from composer_pipeline.window import Message

#: Prepended to a template that would otherwise open a reasoning block.
NO_THINKING = "{%- set enable_thinking = false -%}"


@dataclass(frozen=True)
class Form:
    """How messages are written for a template."""

    #: Parallel calls become consecutive calls, each with its result; of an action only the first
    #: is kept. The calls of one response were made without seeing each other's results.
    one_call: bool = False
    #: An assistant's text is kept where it also made calls.
    text_beside_calls: bool = True
    #: Arguments are JSON text, not a mapping.
    arguments_as_text: bool = False

    def history(self, messages: Sequence[Message]) -> list[Message]:
        """Return plain messages in this form; arguments stay mappings."""
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
        """Return messages as they are passed to the template."""
        if not self.arguments_as_text:
            return list(messages)
        return [
            {**message, "tool_calls": [_as_text(call) for call in message["tool_calls"]]}
            if message.get("tool_calls")
            else message
            for message in messages
        ]


class ChatTemplate:
    """Renders plain messages with a tokenizer's template, which becomes its training template."""

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
        """Return True if rendered text contains a call and its result."""
        history = [{"role": "user", "content": "task0"}, _calls("a"), _result("a")]
        try:
            text = self.render(history, [], open_=False)
        except Dropped:
            return False
        return all(word in text for word in _words(history))

    def render(self, messages: Sequence[Message], tools: Sequence[Any], *, open_: bool) -> str:
        """Return the template's text; ``open_`` ends it with the assistant's header."""
        from jinja2 import TemplateError

        try:
            text: str = self.tokenizer.apply_chat_template(
                self.form.written(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=open_,
            )
        except (TemplateError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0][:80] or type(error).__name__
            raise Dropped(f"chat template rejects it: {reason}") from error
        return text

    def response(
        self, window: Sequence[Message], tools: Sequence[Any], action: Message, head: str
    ) -> str:
        """Return the text of an action after a window; ``head`` is its text with an open header."""
        full = self.render([*window, action], tools, open_=False)
        if full.startswith(head):
            return full[len(head) :]
        # Some templates remove the reasoning of earlier turns once a turn is over. The model is
        # still prompted with ``head``, so its answer is what follows the last header.
        header = head.removeprefix(self.render(window, tools, open_=False))
        if header in ("", head) or header not in full:
            raise Dropped("chat template is not prefix preserving")
        return full[full.rindex(header) + len(header) :]

    def _renders(self, probe: list[Message], action: Message) -> bool:
        history = self.form.history(probe)
        try:
            text = self.render(history, [], open_=True)
            answer = self.response(history, [], self.form.action(action), text)
        except Dropped:
            return False
        places = [text.find(word) for word in _words(history)]
        return (
            -1 not in places
            and places == sorted(places)
            and all(word in answer for word in _words([self.form.action(action)]))
        )


def _use_training_template(tokenizer: Any) -> None:
    # As trl.chat_template_utils.get_training_chat_template, from the files that it reads:
    # importing it costs four seconds and 200 MB.
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
    second = [*one, text, {"role": "user", "content": "task1"}]
    return [
        (start, _calls("c")), (start, text), (one, _calls("c")), (one, text), (two, _calls("c")),
        (both, _calls("c")), (one, _calls("c", "d")), (second, _calls("c")), (second, text),
    ]  # fmt: skip


class AnswerReader:
    """Parses a model's answers, token ids, into chat messages with the grammar that TRL ships."""

    def __init__(self, tokenizer: Any) -> None:
        self._reader = _with_grammar(tokenizer)

    @property
    def end(self) -> int:
        """The id that ends an answer."""
        return int(self._reader.eos_token_id)

    def ended(self, answer: Sequence[int]) -> bool:
        """Return True if an answer ends with the end token and was not cut off."""
        return bool(answer) and answer[-1] == self.end

    def message(
        self, answer: Sequence[int], prompt: Sequence[int], tools: Sequence[Any] | None = None
    ) -> dict[str, Any]:
        """Return an answer as an assistant message; what is no tool call is text."""
        from trl import chat_template_utils as templates

        # Templates whose arguments have no types need the schemas of the tools offered.
        message: dict[str, Any] = templates.parse_response(
            self._reader, list(answer), prefix=list(prompt), tools=list(tools) if tools else None
        )
        return message


def _with_grammar(tokenizer: Any) -> Any:
    """Return a copy of the tokenizer that parses answers."""
    from trl import chat_template_utils as templates

    known = copy.deepcopy(tokenizer)
    known.chat_template = tokenizer.chat_template.removeprefix(NO_THINKING)
    for name, text in vars(templates).items():
        # TRL's training templates write answers like the templates that they were derived from.
        if name.endswith("_training_chat_template") and text == known.chat_template:
            plain = name.replace("_training_chat_template", "_chat_template")
            known.chat_template = getattr(templates, plain)
    try:
        return templates.add_response_schema(known)
    except ValueError as error:
        own = getattr(tokenizer, "response_template", None) or getattr(
            tokenizer, "response_schema", None
        )
        if own:
            return known
        raise InputError(
            "answers in this model's chat template cannot be parsed: trl has no grammar for it"
        ) from error


def offered_tools(
    texts: Texts, tools: Sequence[Any], messages: Sequence[Message], budget: int
) -> list[Any]:
    """Return the tools in as much detail as a token budget allows; a budget of 0 offers none.

    Whole schemas, then argument names and types, then names only, then as many names as fit, the
    most recently used in ``messages`` first, so that nothing depends on the action to come.
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
    used = {name: at for at, message in enumerate(messages) for name, _ in chat_calls(message)}
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
    given = {} if bare else tool.get("function", tool).get("parameters") or {}
    properties = {
        key: {"type": value.get("type", "string") if isinstance(value, dict) else "string"}
        for key, value in (given.get("properties") or {}).items()
    }
    return _whole({"name": _name(tool), "parameters": {"type": "object", "properties": properties}})


def _whole(tool: Any) -> dict[str, Any]:
    """Return a schema with every field that templates require."""
    function = tool.get("function", tool)
    parameters = {"type": "object", "properties": {}, **(function.get("parameters") or {})}
    whole = {**function, "description": function.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": whole}
