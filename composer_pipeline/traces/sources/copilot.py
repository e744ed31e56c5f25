"""The event logs of Copilot CLI: ``events.jsonl`` of a session.

A prefix is what Copilot makes of the events when it resumes a session, which is what it had sent:
``transformedContent`` of prompts, ``content`` of results. Not recorded are the tools and what a
``session.truncation`` left out of a request.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from composer_pipeline.files import mapping, mapping_at, mappings
from composer_pipeline.traces.records import LineStats, Record
from composer_pipeline.traces.source import (
    Conversation,
    TraceSource,
    call_block,
    first_object,
    home,
    objects,
    result_block,
    text_block,
    text_or_none,
    total,
)

Item = dict[str, Any]

#: The newest version of the format that this reader knows.
VERSION = 1

#: What the model sees for a call that was stopped.
INTERRUPTED = "The execution of this tool, or a previous tool was interrupted."

# Events that add to what the model sees.
_SEEN = frozenset({"user.message", "system.notification", "session.mode_notice_delivered"})
# Known events that add nothing to it.
_SILENT = re.compile(
    r"(?:assistant|auto_mode_switch|capabilities|commands?|elicitation|exit_plan_mode|external_tool"
    r"|factory|hook|mcp|mcp_app|model|pending_messages|permission|sampling|session_limits_exhausted"
    r"|subagent|tool|tool_search|ui|user_input)\..*"
    r"|session\.(?:auto_.*|autopilot_.*|background_.*|binary_asset|canvas\..*|completion_receipt"
    r"|context_changed|custom_.*|error|extensions.*|fusion_.*|handoff|idle|info|managed_settings_.*"
    r"|mcp_.*|mode_changed|model_change|permissions_changed|plan_changed|remote_steerable_changed"
    r"|schedule_.*|session_limits_changed|shutdown|skills_loaded|task_complete|title_changed"
    r"|todos_changed|tools_updated|usage_.*|warning|workspace_file_changed)"
)
_EXITED = re.compile(r"<(?:shellId: .* completed|exited) with exit code (-?\d{1,10})>\s*$")

# Errors of edits as the log has them, and as the model saw them.
_EDIT_ERRORS = {
    "No match found": "No match found: old_str not found in {}; no changes made;"
    " you might want to try again with correct old_str",
    "Multiple matches found": "Multiple matches found for old_str in {}; no changes made;"
    " you might want to try again and be more specific with old_str",
}

# How much of the user's messages Copilot repeats beside a summary.
_CHARS, _MESSAGES, _OF_THE_END, _CUT = 30_000, 20, 0.8, "...<truncated>..."


class _Agent:
    """The conversation of the main agent or of a subagent, event by event."""

    def __init__(self, conv: Conversation) -> None:
        self.conv = conv
        self.context: list[Item] = []  # the events that the model sees
        self.skills: dict[str, Item] = {}
        self._prompts: list[str] = []
        self._open: dict[str, Any] = {}  # calls without a result, and their arguments
        self._waiting: list[Item] = []  # what stands after the results of the open calls
        self._stopped = False
        self._left = False  # resumed: open calls get their results now or never
        self._checkpoint: int | None = None
        self._chunk: tuple[Any, str] = (None, "")

    def take(self, event: Item, data: Item, model: str, usage: Item) -> Iterator[Record]:
        """Take an event that adds to what the model sees, or that changes it."""
        kind = event["type"]
        if self._left and kind != "tool.execution_complete":
            yield from self._settled()
        if kind == "tool.execution_complete":
            yield from self._result(event, data)
        elif kind == "assistant.message":
            if data.get("apiCallId") is None or data.get("apiCallId") != self._chunk[0]:
                yield from self._settled()
            yield from self._response(event, data, model, usage)
        elif kind == "abort":
            yield from self._settled()
            self._stopped = True
        elif kind == "session.resume":
            self._left = not (data.get("sessionWasActive") or data.get("continuePendingWork"))
        elif kind == "session.compaction_start":
            self._checkpoint = len(self.context)
        elif self._open:
            self._waiting.append(event)
        else:
            yield from self._other(event, data)

    def _other(self, event: Item, data: Item) -> Iterator[Record]:
        """Yield what does not belong to a response."""
        kind, conv = event["type"], self.conv
        if kind in _SEEN:
            yield from self._user(event, data)
        elif kind == "session.compaction_complete":
            begun, self._checkpoint = self._checkpoint, None
            summary = text_or_none(data.get("summaryContent"))
            if data.get("success") is True and summary:
                yield from self._compaction(event, data, summary, begun)
        else:  # session.context_cleared
            conv.last, self.context = None, []
            if first := text_or_none(data.get("initialMessage")):
                yield conv.user(first)

    def _user(self, event: Item, data: Item, *, copied: bool = False) -> Iterator[Record]:
        content = text_or_none(data.get("content")) or ""
        source = text_or_none(data.get("source")) or "user"
        below = self.conv.agent_id is not None
        human = event["type"] == "user.message" and not content.startswith("<system_notification>")
        human = human and (source == "user" or (below and source.startswith("agent-")))
        if mapping_at(data, "kind").get("type") == "instruction_discovered":
            return
        self.context.append(event)
        before, text, after = _prompt(data, content)
        if human and not copied:
            if source == "user":
                self._prompts.append(content)
            if self._stopped:
                yield from self.conv.stopped(self.conv.last, text)
            self._stopped = False
        for part, meta in ((before, True), (text, not human), (after, True)):
            if part.strip():
                yield self.conv.user(part, is_meta=meta or None)

    def _response(
        self, event: Item, data: Item, model: str, usage: Item, copy: str = ""
    ) -> Iterator[Record]:
        blocks: list[Item] = []
        if text := text_or_none(data.get("content")):
            blocks.append(text_block(text))
        for call in mappings(data.get("toolRequests")):
            if name := text_or_none(call.get("toolCallId")):
                tool, given = text_or_none(call.get("name")) or "", call.get("arguments")
                encoded = call.get("type") != "custom"
                blocks.append(call_block(name, tool, given, encoded=encoded))
                self._open[name] = blocks[-1]["input"]
        key = text_or_none(data.get("messageId")) or text_or_none(event.get("id")) or ""
        if data.get("chunkCount") is not None:  # one response in several messages
            if data.get("apiCallId") != self._chunk[0]:
                self._chunk = data.get("apiCallId"), key
            key = self._chunk[1]
        self.context.append(event)
        yield self.conv.assistant(
            f"copilot:{key}{copy}",
            blocks,
            model=text_or_none(data.get("model")) or model,
            tokens=(total(usage, "inputTokens"), total({**usage, **data}, "outputTokens")),
            copied=bool(copy),
        )

    def _result(self, event: Item, data: Item) -> Iterator[Record]:
        call = text_or_none(data.get("toolCallId"))
        if data.get("isUserRequested") is True:
            return
        if call is None or call not in self._open:
            self.conv.unknown("result without a call")
            return
        shown = text_or_none(mapping_at(data, "result").get("content")) or ""
        success = data.get("success") is True
        given = self._open.pop(call)
        error = mapping_at(data, "error")
        if not success:
            said = text_or_none(error.get("message")) or shown or "Tool execution failed"
            shown = _whole_error(said, data, given)
        code = mapping_at(data, "shellExecution").get("exitCode")
        if code is None and (exited := _EXITED.search(shown)):
            code = int(exited[1])
        self.context.append(event)
        failed = bool(code) or (not success and error.get("code") != "interrupted")
        yield self.conv.user([result_block(call, shown, failed=failed)])
        if not self._open:
            yield from self.waiting()

    def _settled(self) -> Iterator[Record]:
        """Answer the open calls as Copilot does when they were stopped."""
        calls, self._open, self._left = list(self._open), {}, False
        if calls:
            data = {"success": True, "result": {"content": INTERRUPTED}}
            for call in calls:
                given = {**data, "toolCallId": call}
                self.context.append({"type": "tool.execution_complete", "data": given})
            yield self.conv.user([result_block(call, INTERRUPTED) for call in calls])
        yield from self.waiting()

    def waiting(self) -> Iterator[Record]:
        """Yield what waited for results."""
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            yield from self._other(event, mapping_at(event, "data"))

    def _compaction(
        self, event: Item, data: Item, summary: str, begun: int | None
    ) -> Iterator[Record]:
        """Begin anew with the summary and what came after the compaction had begun."""
        conv, context = self.conv, self.context
        at = len(context) if begun is None else begun
        while 0 < at < len(context) and context[at]["type"] == "tool.execution_complete":
            at -= 1  # results stay with their calls
        self.context, conv.fidelity = [], None
        yield conv.compaction()
        whole = data.get("trigger") == "manual" and "checkpointNumber" not in data
        text = _summary(whole, self._prompts, summary, self.skills)
        yield conv.user(text, is_compact_summary=True)
        for kept in context[at:]:
            given = mapping_at(kept, "data")
            if kept["type"] == "assistant.message":
                yield from self._response(kept, given, "", {}, f":{event.get('id')}")
            elif kept["type"] == "tool.execution_complete":
                yield from self._result(kept, given)
            else:
                yield from self._user(kept, given, copied=True)


class _Log:
    """The events of one file, shared out among its agents."""

    def __init__(self, stats: LineStats) -> None:
        self.main = _Agent(Conversation(stats))
        self.agents: dict[str, _Agent] = {}
        self.model = ""
        self._calls: dict[str, str | None] = {}
        self._usage: dict[str, Item] = {}

    def take(self, event: Item) -> Iterator[Record]:
        """Take one event; yield its records."""
        kind, data = text_or_none(event.get("type")), mapping_at(event, "data")
        conv = self.main.conv
        conv.time = text_or_none(event.get("timestamp")) or conv.time
        agent = self._agent(event, data)
        if kind == "session.start":
            conv.session = text_or_none(data.get("sessionId")) or conv.session
            conv.version = text_or_none(data.get("copilotVersion"))
            if isinstance(version := data.get("version"), int) and version > VERSION:
                conv.unknown(f"version {version}")
        if context := data.get("context") if kind != "session.context_changed" else data:
            conv.cwd = text_or_none(mapping(context).get("cwd")) or conv.cwd
        if agent is self.main:
            model = text_or_none(data.get("selectedModel")) or text_or_none(data.get("newModel"))
            self.model = model or self.model
        yield from self._records(agent, kind, event, data)

    def _agent(self, event: Item, data: Item) -> _Agent:
        call = text_or_none(data.get("parentToolCallId"))
        name = text_or_none(event.get("agentId")) or call
        if name is None:
            return self.main
        if event.get("type") == "subagent.started":
            self._calls[name] = text_or_none(data.get("toolCallId"))
        agent, main = self.agents.get(name), self.main.conv
        if agent is None:
            conv = Conversation(main.stats)
            conv.agent_id, conv.call = name, call or self._calls.get(name)
            agent = self.agents[name] = _Agent(conv)
        conv = agent.conv
        conv.session, conv.version = main.session, main.version
        conv.cwd, conv.time = main.cwd, main.time
        return agent

    def _records(
        self, agent: _Agent, kind: str | None, event: Item, data: Item
    ) -> Iterator[Record]:
        usage = mapping_at(data, "usage") or data
        if kind == "system.message" and data.get("role") in (None, "system"):
            if system := text_or_none(data.get("content")):
                yield agent.conv.snapshot(system)
        elif kind == "skill.invoked":
            name = text_or_none(data.get("name")) or ""
            agent.skills.pop(name, None)
            agent.skills[name] = data
        elif kind == "session.truncation":
            agent.conv.fidelity = "repaired"
        elif kind in ("session.usage_record", "assistant.usage"):
            self._usage[str(usage.get("apiCallId"))] = usage
        elif kind in _TAKEN:
            known = self._usage.get(str(data.get("apiCallId")), {})
            yield from agent.take(event, data, self.model, known)
        elif kind != "session.start" and not _SILENT.fullmatch(kind or ""):
            agent.conv.unknown(kind)


_TAKEN = _SEEN | {
    "assistant.message", "tool.execution_complete", "abort", "session.resume",
    "session.compaction_start", "session.compaction_complete", "session.context_cleared",
}  # fmt: skip


def _whole_error(error: str, data: Item, given: Item) -> str:
    """Return an error as the model saw it; the log shortens those of edits."""
    metrics = mapping_at(mapping_at(data, "toolTelemetry"), "metrics")
    whole = _EDIT_ERRORS.get(error, "").format(given.get("path"))
    return whole if len(whole) == metrics.get("resultForLlmLength") else error


def _prompt(data: Item, content: str) -> tuple[str, str, str]:
    """Return what stands before the user's words, the words, and what stands after them."""
    whole = text_or_none(data.get("transformedContent")) or content
    before, words, after = f"\n\n{whole}\n\n".partition(f"\n\n{content}\n\n")
    if not words:
        before, content, after = "", whole, ""
    files = [item.get("taggedFilesEntry") for item in mappings(data.get("attachments"))]
    if named := [entry for entry in files if isinstance(entry, str)]:
        after = "\n".join([after, "<tagged_files>", *named, "</tagged_files>"])
    return before.strip("\n"), content, after.strip("\n")


def _summary(whole: bool, prompts: list[str], summary: str, skills: dict[str, Item]) -> str:
    """Return the message that stands for what was compacted."""
    text = "The" if whole else "Some of the"
    text += " conversation history has been summarized to free up context.\n"
    if prompts:
        text += (
            "\nYou were originally given instructions from a user over one or more turns."
            f" Here were the user messages:\n{_asked(prompts)}\n"
        )
    text += f"\nHere is a summary of the prior context:\n<summary>\n{summary}\n</summary>\n"
    if skills:
        *before, last = skills.values()
        lines = [f"## Most recent skill: {last.get('name')}", f"Path: {last.get('path')}", ""]
        lines += ["Continue to follow these instructions:", "", str(last.get("content"))]
        if before:
            lines += ["", "## Previously used skills", _SKILLS]
            lines += [f"- {skill.get('name')}: {skill.get('path')}" for skill in before]
        text += "\n\n<invoked_skills>\n" + "\n".join(lines) + "\n</invoked_skills>"
    return text


_SKILLS = (
    "These skills were used earlier in the session."
    " Re-read the skill file if you need to reactivate one:"
)


def _asked(prompts: list[str]) -> str:
    """Return the user's messages as Copilot repeats them: all, or the first and the last ones."""
    omitted, first, last = 0, prompts, list[str]()
    if len(prompts) == 1:
        first = [_cut(prompts[0], _CHARS)]
    elif sum(map(len, prompts)) > _CHARS or len(prompts) > _MESSAGES:
        chars = int(_CHARS * (1 - _OF_THE_END))
        last = _fitting(prompts[::-1], _CHARS - chars, int(_MESSAGES * _OF_THE_END))[::-1]
        rest = prompts[: len(prompts) - len(last)]
        first = _fitting(rest, chars, int(_MESSAGES * (1 - _OF_THE_END)))
        omitted = len(rest) - len(first)
    note = [f"... {omitted} messages omitted ..."] if omitted else []
    framed = [
        [f"<user_message>\n{text}\n</user_message>" for text in part] for part in (first, last)
    ]
    return "\n".join([*framed[0], *note, *framed[1]])


def _fitting(prompts: list[str], chars: int, most: int) -> list[str]:
    """Return the first messages that fit, at least a part of one."""
    found: list[str] = []
    for text in prompts[:most]:
        if len(text) > chars:
            break
        found.append(text)
        chars -= len(text)
    return found or [_cut(text, chars) for text in prompts[:1]]


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - len(_CUT)] + _CUT


class Copilot(TraceSource):
    """The event logs of Copilot CLI."""

    name = "copilot"

    def folders(self) -> list[Path]:
        """Return the folder of all sessions."""
        return [home("COPILOT_HOME", ".copilot") / "session-state"]

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True if the first line that is an object is an event."""
        first = first_object(head)
        kind = text_or_none(first.get("type")) or ""
        return kind.startswith(("session.", "user.")) and isinstance(first.get("data"), dict)

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the conversation as records; an undecodable line is counted."""
        log = _Log(stats)
        for event in objects(lines, stats):
            yield from log.take(event)
        for agent in (log.main, *log.agents.values()):
            yield from agent.waiting()
