"""ATIF 1.x (Agent Trajectory Interchange Format), whoever wrote it, and the package's own export.

A document is one context of one agent: a continuation and an abandoned branch are documents of
their own, subagents stand inside (``subagent_trajectories``). The agent is the one that the
document names. What the export keeps in ``extra`` is read back.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from composer_pipeline.files import mapping_at, mappings
from composer_pipeline.traces.messages import MISSING_RESULT
from composer_pipeline.traces.records import LineStats, PlainBlock, Record, blake, encode
from composer_pipeline.traces.source import (
    Conversation,
    TraceSource,
    call_block,
    content_blocks,
    content_text,
    document,
    result_block,
    text_block,
    text_or_none,
    total,
)

#: The newest version whose fields are known.
NEWEST = (1, 8)

_IDENTIFIER = re.compile(r"[\w.:-]{1,100}")
_VERSION = re.compile(r"ATIF-v(\d+)\.(\d+)")
_START = re.compile(rb'"schema_version"\s*:\s*"ATIF-v\d')
#: What harnesses write of a call that failed, where no field says it.
_FAILED = re.compile(
    r'^(?:.*<returncode>-?[1-9]\d*</returncode>|\s*"returncode": -?[1-9]\d*,'  # mini-swe-agent
    r"|\[(?:The c|C)ommand (?:finished|completed) with exit code -?[1-9]\d*\.?\]|\AERROR:\n"
    r"|\[exit_code\] -?[1-9]\d*$|\[error\] "  # Harbor, of Claude Code; above: OpenHands
    r"|<shellId: \S+ completed with exit code -?[1-9]\d*>|\AThe user rejected this tool call\."
    r"|Exit Code: -?[1-9]\d*$|\A\[Operation Cancelled\]"  # Gemini CLI; above: Copilot CLI
    r"|\A(?:Chunk ID: .*\n)?(?:Wall time: .*\n)?(?:Exit code:|Process exited with code) [1-9]\d*$"
    r"|\A(?:apply_patch verification|exec_command) failed: )",  # Codex CLI
    re.MULTILINE,
)
#: What one of these has, and the characters at either end of a result in which it stands.
_MARKS = ("code", "Code", "[error]", "ERROR:", "rejected", "Cancelled", "failed: ")
_END = 500
Json = dict[str, Any]


class _Trajectory:
    """Makes the records of one agent's documents."""

    def __init__(self, stats: LineStats, session: str, agent_id: str | None) -> None:
        self.conv = Conversation(stats)
        self.conv.session, self.conv.agent_id = session, agent_id
        self._model = ""
        self._digest = ""  # of the steps so far: ids of steps repeat in continued documents
        self._own = False  # the document is the package's export
        self._folder: str | None = None
        self._active: str | None = None  # the last response that was not abandoned
        self._uses: dict[str, int] = {}  # of a call's id: steps and documents may repeat it
        self._summary = False  # the next user's step is the summary of a compaction
        self.started: dict[str, str] = {}  # the trajectory of a subagent to the call of it

    def take(self, value: Json) -> Iterator[Record]:
        """Yield the records of a document."""
        agent, extra = mapping_at(value, "agent"), mapping_at(value, "extra")
        steps = mappings(value.get("steps"))
        conv = self.conv
        self._own = "parser_version" in extra
        self._digest = blake(conv.session, str(value.get("trajectory_id")))
        self._model = text_or_none(agent.get("model_name")) or ""
        version = text_or_none(agent.get("version"))
        conv.version = None if version == "unknown" else version
        conv.cwd = self._folder = _folder(agent, extra)
        conv.time = next((t for step in steps if (t := text_or_none(step.get("timestamp")))), None)
        conv.last = self._active = None
        if self._own and extra.get("kind") == "continuation":
            yield conv.compaction()
        begun = next((n for n, s in enumerate(steps) if s.get("source") != "system"), len(steps))
        yield from self._given(agent, steps[:begun])
        for number, step in enumerate(steps):
            conv.time = text_or_none(step.get("timestamp")) or conv.time
            self._digest = blake(self._digest, encode(step).decode())
            if number >= begun or _boundary(step):
                yield from self._step(step)
        if self._own and extra.get("kind") == "branch":  # the session went on from elsewhere
            conv.last = self._active
            yield conv.user([])

    def _given(self, agent: Json, steps: list[Json]) -> Iterator[Record]:
        """Yield the system prompt and the tools, if they are recorded ones."""
        told = [step for step in steps if self._is_recorded(step) and not _boundary(step)]
        system = "\n\n".join(filter(None, (content_text(step.get("message")) for step in told)))
        tools: list[Json] = []
        if not self._own or mapping_at(agent, "extra").get("tools_source") == "recorded":
            tools = mappings(agent.get("tool_definitions"))
        if system or tools:
            yield self.conv.snapshot(system or None, tools)

    def _is_recorded(self, step: Json) -> bool:
        """Return False for the prompt that the export puts where none was recorded."""
        return not self._own or mapping_at(step, "extra").get("source") == "recorded"

    def _step(self, step: Json) -> Iterator[Record]:
        source = step.get("source")
        if source == "agent":
            yield from self._agent(step)
        elif source == "user":
            summary, self._summary = self._summary, False
            if blocks := content_blocks(step.get("message")):
                yield self.conv.user(blocks, is_compact_summary=summary or None)
        elif source == "system":
            yield from self._system(step)
        else:
            self.conv.unknown(f"source/{source}")
        if source != "agent":
            yield from self._results(step, {})

    def _system(self, step: Json) -> Iterator[Record]:
        """Yield a compaction, another system prompt, or a notice."""
        text = content_text(step.get("message"))
        if _boundary(step):
            self._summary = True
            yield self.conv.compaction()
        elif not self._own:
            yield self.conv.user(text, is_meta=True)
        elif self._is_recorded(step):
            yield self.conv.snapshot(text)

    def _agent(self, step: Json) -> Iterator[Record]:
        conv = self.conv
        extra = mapping_at(step, "extra") if self._own else {}
        conv.cwd = text_or_none(extra.get("cwd")) or self._folder
        blocks, ids = content_blocks(step.get("message")), dict[str, str]()
        for call in mappings(step.get("tool_calls")):
            given = str(call.get("tool_call_id"))
            self._uses[given] = uses = self._uses.get(given, 0) + 1
            ids[given] = given if uses == 1 else f"{given}#{uses}"
            name = str(call.get("function_name") or "")
            blocks.append(call_block(ids[given], name, call.get("arguments")))
        asked = step.get("llm_call_count")
        fidelity = text_or_none(extra.get("fidelity"))
        if isinstance(asked, int) and asked > 1:
            conv.unknown("llm_call_count")
            fidelity = "repaired"
        if blocks:
            metrics = mapping_at(step, "metrics")
            yield conv.assistant(
                text_or_none(extra.get("message_id")) or f"atif:{self._digest}",
                blocks,
                model=text_or_none(step.get("model_name")) or self._model,
                tokens=(total(metrics, "prompt_tokens"), total(metrics, "completion_tokens")),
                copied=step.get("is_copied_context") is True or asked == 0,
                fidelity=fidelity,
            )
            if "state_id" in extra and extra.get("on_active_path") is not False:
                self._active = conv.last
        yield from self._results(step, ids)

    def _results(self, step: Json, ids: dict[str, str]) -> Iterator[Record]:
        """Yield the results of a step's calls, and what it shows without a call."""
        results = mappings(mapping_at(step, "observation").get("results"))
        named = {str(result.get("source_call_id")) for result in results}
        unnamed = (call for name, call in ids.items() if name not in named)
        blocks: list[PlainBlock] = []
        for result in results:
            name, text = result.get("source_call_id"), content_text(result.get("content"))
            call = ids.get(str(name)) or (next(unnamed, None) if name is None else str(name))
            for ref in mappings(result.get("subagent_trajectory_ref")):
                self.started.setdefault(str(ref.get("trajectory_id")), call or "")
            if call is None:
                blocks += [text_block(text)] if text else []
            elif text != MISSING_RESULT:
                blocks.append(result_block(call, text, failed=self._failed(result, text)))
        if blocks:
            meta = all(block["type"] == "text" for block in blocks) or None
            yield self.conv.user(blocks, is_meta=meta)

    def _failed(self, result: Json, text: str) -> bool:
        extra = mapping_at(result, "extra")
        flags = [extra.get("is_error"), extra.get("tool_result_is_error")]
        codes = [extra.get("exit_code"), mapping_at(extra, "shellExecution").get("exitCode")]
        told = [bool(value) for value in (*flags, *codes) if isinstance(value, int)]
        if isinstance(extra.get("success"), bool):
            told.append(not extra["success"])
        if told or self._own:
            return any(told)
        ends = text if len(text) < 2 * _END else f"{text[:_END]}\n{text[-_END:]}"
        return any(mark in ends for mark in _MARKS) and _FAILED.search(ends) is not None


class Atif(TraceSource):
    """Trajectories in ATIF, of any agent."""

    name = "atif"
    endings = (".json",)

    def recognises(self, head: Sequence[bytes]) -> bool:
        """Return True if a document names its version among its first fields."""
        data = b"".join(head)
        return data.lstrip().startswith(b"{") and _START.search(data) is not None

    def records(self, lines: Iterable[bytes], stats: LineStats) -> Iterator[Record]:
        """Yield the conversation as records, then those of the subagents inside."""
        value = document(lines, stats)
        if value is None:
            return
        found = _VERSION.match(str(value.get("schema_version")))
        if found is None or (int(found[1]), int(found[2])) > NEWEST:
            stats.unknown_types[f"atif/{value.get('schema_version')}"] += 1
        session, agent_id = _session_of(value)
        main = _Trajectory(stats, session, agent_id)
        yield from main.take(value)
        yield from _subagents(value, main, {})
        stats.agent = text_or_none(mapping_at(value, "agent").get("name")) or stats.agent


def _subagents(value: Json, above: _Trajectory, known: dict[str, _Trajectory]) -> Iterator[Record]:
    """Yield the subagents in a document; the parts of one are one trajectory."""
    for inner in mappings(value.get("subagent_trajectories")):
        trajectory = str(inner.get("trajectory_id"))
        name = text_or_none(mapping_at(inner, "extra").get("agent_id")) or trajectory
        if name not in known:
            known[name] = _Trajectory(above.conv.stats, above.conv.session, _name(name))
        known[name].conv.call = above.started.get(trajectory)
        yield from known[name].take(inner)
        yield from _subagents(inner, known[name], known)


def _session_of(value: Json) -> tuple[str, str | None]:
    """Return the session of a document, and the subagent that it is of."""
    own = text_or_none(value.get("session_id")) or text_or_none(value.get("trajectory_id"))
    own = own or f"atif:{blake(encode(value).decode())}"
    about = mapping_at(mapping_at(value, "agent"), "extra")
    parent = text_or_none(about.get("parent_session_id"))
    if parent:  # of Terminus
        return _name(parent), _name(own)
    agent_id = text_or_none(mapping_at(value, "extra").get("agent_id"))
    return _name(own), agent_id and _name(agent_id)


def _name(given: str) -> str:
    """Return a name as it is, or its hash where it is no identifier but a path or words."""
    return given if _IDENTIFIER.fullmatch(given) else f"atif:{blake(given)}"


def _folder(agent: Json, extra: Json) -> str | None:
    folders = mapping_at(agent, "extra").get("cwds")
    first = folders[0] if isinstance(folders, list) and folders else None
    return text_or_none(extra.get("project")) or text_or_none(first)


def _boundary(step: Json) -> bool:
    """Return True if the context begins anew here."""
    change = mapping_at(mapping_at(step, "extra"), "context_management")
    return change.get("type") == "compaction"
