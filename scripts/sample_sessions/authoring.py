"""A small builder that writes sessions as Claude Code 2.1.x writes them.

Everything is a function of the session's slug: the same script gives the same bytes.
In every string ``§`` stands for the session's working directory and ``¤`` for the
home folder.
"""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from composer_pipeline.actions import Action, ToolCall
from scripts.sample_sessions.calls import Call, Project
from scripts.sample_sessions.working_folder import WorkingFolder

REJECTED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it"
    " was a file edit, the new_string was NOT written to the file). To tell you how to proceed,"
    " the user said:\n"
)
STOPPED = REJECTED.split(" To tell you")[0] + " STOP."
CANCELLED = "<tool_use_error>Sibling tool call errored</tool_use_error>"

Record = dict[str, Any]


def _hash(*parts: object) -> "hashlib.blake2b":
    return hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=16)


def _token(prefix: str, *parts: object) -> str:
    alphabet = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
    number = int.from_bytes(_hash(prefix, *parts).digest(), "big")
    out = ""
    while len(out) < 21:
        number, rest = divmod(number, len(alphabet))
        out += alphabet[rest]
    return prefix + out


@dataclass
class _Trajectory:
    """The growing record list of a main session or of one subagent."""

    agent_id: str = ""
    records: list[Record] = field(default_factory=list)
    leaf: str | None = None


class Session:
    """One session under construction."""

    def __init__(
        self,
        slug: str,
        project: Project,
        start: str,
        *,
        branch: str = "main",
        version: str = "2.1.274",
        model: str = "claude-sonnet-5",
    ) -> None:
        self.slug, self.project, self.branch = slug, project, branch
        self.version, self.model = version, model
        self.session_id = str(uuid.UUID(bytes=_hash("session", slug).digest(), version=4))
        self.clock = datetime.fromisoformat(start).replace(tzinfo=UTC)
        self.main = _Trajectory()
        self.at = self.main
        self.subagents: dict[str, tuple[_Trajectory, Record]] = {}
        self.answers: dict[str, Action] = {}
        self.recorded: dict[str, Action] = {}
        self.folder = WorkingFolder(project)
        self.cut_tail = 0
        self.glue_before: set[str] = set()
        self.final_newline = True
        self._count = 0
        self._context = 9_000
        self._wire: dict[str, dict[str, Any]] = {}

    # -- what happens in a session -----------------------------------------------

    def user(self, text: str, **extra: Any) -> str:
        """A human prompt; returns its uuid, a place to rewind to."""
        if self.at is self.main and not self.main.records:
            self._snapshot()
        return self._add({"type": "user", "message": {"role": "user", "content": text}, **extra})

    def step(self, call: Call, say: str = "", *, think: str = "", better: Any = None) -> str:
        """A response with one tool call, and its result. Returns the message id."""
        return self.steps([call], say, think=think, better=better)

    def steps(
        self,
        calls: Sequence[Call],
        say: str = "",
        *,
        think: str = "",
        better: Any = None,
        shape: int = 1,
    ) -> str:
        """A response with parallel calls."""
        message_id, texts = self._open(say, think)
        used = []
        leaf = self.at.leaf
        for index, call in enumerate(calls):
            args = self._fill(dict(call.args))
            tool_id = _token("toolu_01", self.slug, self._count)
            block = {"type": "tool_use", "id": tool_id, "name": call.name, "input": args}
            last = index == len(calls) - 1
            if shape == 1:
                self.at.leaf = leaf
            use = self._segment(message_id, block, stop="tool_use" if last else None, tool=tool_id)
            leaf = use
            for tick in range(call.progress):
                self._progress(call.name, tool_id, tick)
            if shape == 1:
                self.at.leaf = use
            self._result(call, args, tool_id, use)
            used.append(ToolCall(call.name, args, tool_id))
        self._close(message_id, Action("\n".join(texts), tuple(used)), better)
        return message_id

    def say(self, text: str, *, think: str = "", better: Any = None) -> str:
        """A response of text only, which ends the agent's turn."""
        message_id, _ = self._open(text, think, stop="end_turn")
        self._close(message_id, Action(self._fill(text)), better)
        return message_id

    def stopped(self, call: Call, say: str = "", *, better: Any = None) -> str:
        """A call that the user interrupted without a word; a prompt should follow."""
        message_id = self.step(Call(call.name, call.args, STOPPED, True), say, better=better)
        self._add(_text_user("[Request interrupted by user for tool use]"))
        return message_id

    def interrupted(self) -> None:
        """The user pressed escape between two responses."""
        self._add(_text_user("[Request interrupted by user]"))

    def rewind(self, place: str) -> None:
        """Continue from an earlier record, leaving what came after on a dead branch."""
        self.at.leaf = place

    def compact(self, summary: str) -> None:
        """A compaction: a boundary without a parent, then the summary."""
        boundary = {
            "type": "system",
            "subtype": "compact_boundary",
            "content": "Conversation compacted",
            "isMeta": False,
            "level": "info",
            "logicalParentUuid": self.at.leaf,
            "compactMetadata": {"trigger": "auto", "preTokens": self._context},
        }
        self.at.leaf = None
        self._add(boundary)
        self._context = 6_000
        self._add(
            {
                "type": "user",
                "message": {"role": "user", "content": summary},
                "isVisibleInTranscriptOnly": True,
                "isCompactSummary": True,
            }
        )

    def attachment(self, kind: str, *, rendered: str = "", **data: Any) -> None:
        """A late-2026 attachment; ``rendered`` is what the model saw of it."""
        extra = {"rendered": rendered, "renderedRole": "user"} if rendered else {}
        self._add({"type": "attachment", "attachment": {"type": kind, **data}, **extra})

    def system(self, subtype: str, **data: Any) -> None:
        """A system record, transparent for the conversation."""
        self._add({"type": "system", "subtype": subtype, "level": "info", **data})

    def start_subagent(self, call: Call, say: str = "") -> None:
        """The agent starts a subagent; what follows happens inside until it returns."""
        message_id, texts = self._open(say, "")
        args = self._fill(dict(call.args))
        tool_id = _token("toolu_01", self.slug, self._count)
        block = {"type": "tool_use", "id": tool_id, "name": call.name, "input": args}
        use = self._segment(message_id, block, stop="tool_use", tool=tool_id)
        self._close(message_id, Action("\n".join(texts), (ToolCall(call.name, args, tool_id),)))
        agent_id = "a" + _hash("agent", self.slug, len(self.subagents)).hexdigest()[:6]
        meta = {
            "agentType": args["subagent_type"],
            "description": args["description"],
            "toolUseId": tool_id,
            "model": self.model,
            "spawnDepth": 1,
        }
        self.at = _Trajectory(agent_id)
        self.subagents[agent_id] = (self.at, meta)
        self._pending = (call, args, tool_id, use)
        self.user(args["prompt"])

    def end_subagent(self, report: str) -> None:
        """The subagent's last response, and its result in the parent."""
        self.say(report)
        agent_id = self.at.agent_id
        self.at = self.main
        call, args, tool_id, use = self._pending
        self._result(call.gives(report), args, tool_id, use, agent_id=agent_id)

    def wire(self, message_id: str, index: int, arguments: Mapping[str, Any]) -> None:
        """Record what the model emitted where the client stored a normalised input."""
        call = self.recorded[message_id].tool_calls[index]
        given = self._fill(dict(arguments))
        self._wire[call.id] = given
        calls = list(self.recorded[message_id].tool_calls)
        calls[index] = ToolCall(call.name, given, call.id)
        self.recorded[message_id] = Action(self.recorded[message_id].text, tuple(calls))
        for record in self.main.records:
            block = record.get("message", {}).get("content", [{}])[0]
            if isinstance(block, dict) and block.get("id") == call.id:
                record["wireToolInputs"] = {call.id: given}

    def fork(self, slug: str, upto: str, start: str) -> "Session":
        """Resume in a new file that begins with copies of the records up to ``upto``."""
        other = Session(
            slug, self.project, start, branch=self.branch, version=self.version, model=self.model
        )
        for record in self.main.records:
            if "uuid" not in record:
                continue
            copied = json.loads(json.dumps(record))
            copied["forkedFrom"] = {"sessionId": self.session_id, "messageUuid": record["uuid"]}
            copied["sessionId"] = other.session_id
            other.main.records.append(copied)
            if record["uuid"] == upto:
                break
        other.main.leaf = upto
        other.folder = self.folder.copy()
        return other

    # -- how it is written ---------------------------------------------------------

    def render(self) -> dict[str, bytes]:
        """Return path below ``projects`` to bytes, the subagents' files included."""
        folder = "".join(c if c.isascii() and c.isalnum() else "-" for c in self.project.cwd)
        base = f"{folder}/{self.session_id}"
        lines: list[str] = []
        for record in self.main.records:
            glued = record.get("uuid") in self.glue_before
            if glued:
                lines[-1] = lines[-1].rstrip("\n")
            lines.append(_line(record))
        data = "".join(lines)
        if self.cut_tail:
            data = data[: -self.cut_tail]
        elif not self.final_newline:
            data = data.rstrip("\n")
        out = {f"{base}.jsonl": data.encode()}
        for agent_id, (trajectory, meta) in self.subagents.items():
            stem = f"{base}/subagents/agent-{agent_id}"
            out[f"{stem}.jsonl"] = "".join(map(_line, trajectory.records)).encode()
            out[f"{stem}.meta.json"] = _line(meta).encode()
        return out

    def _fill(self, value: Any) -> Any:
        if isinstance(value, str):
            return value.replace("§", self.project.cwd).replace("¤", self.project.home)
        if isinstance(value, Mapping):
            return {key: self._fill(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._fill(item) for item in value]
        return value

    def _tick(self, low: float, high: float) -> str:
        share = int.from_bytes(_hash("t", self.slug, self._count).digest()[:2], "big") / 65535
        self.clock += timedelta(milliseconds=int(1000 * (low + share * (high - low))))
        return self.clock.strftime("%Y-%m-%dT%H:%M:%S.") + f"{self.clock.microsecond // 1000:03d}Z"

    def _add(self, record: Record, low: float = 1, high: float = 6) -> str:
        self._count += 1
        name = str(uuid.UUID(bytes=_hash("uuid", self.slug, self._count).digest(), version=4))
        side = {"agentId": self.at.agent_id} if self.at.agent_id else {}
        self.at.records.append(
            {
                "parentUuid": self.at.leaf,
                "isSidechain": bool(self.at.agent_id),
                "userType": "external",
                "entrypoint": "cli",
                "cwd": self.project.cwd,
                "sessionId": self.session_id,
                "version": self.version,
                "gitBranch": self.branch,
                **side,
                **self._fill(record),
                "uuid": name,
                "timestamp": self._tick(low, high),
            }
        )
        self.at.leaf = name
        return name

    def _snapshot(self) -> None:
        name = str(uuid.UUID(bytes=_hash("snapshot", self.slug).digest(), version=4))
        stamp = self._tick(0, 1)
        shot = {"messageId": name, "trackedFileBackups": {}, "timestamp": stamp}
        self.main.records.append(
            {
                "type": "file-history-snapshot",
                "messageId": name,
                "snapshot": shot,
                "isSnapshotUpdate": False,
            }
        )

    def _open(self, say: str, think: str, stop: str | None = None) -> tuple[str, list[str]]:
        message_id = _token("msg_01", self.slug, self._count)
        self._context += 350
        if think:
            sign = _hash("sign", message_id).hexdigest()
            self._segment(message_id, {"type": "thinking", "thinking": think, "signature": sign})
        if say:
            self._segment(message_id, {"type": "text", "text": say}, stop=stop)
        return message_id, [self._fill(say)] if say else []

    def _segment(
        self, message_id: str, block: Record, *, stop: str | None = None, tool: str = ""
    ) -> str:
        size = len(json.dumps(block)) // 4
        usage = {
            "input_tokens": 4,
            "cache_creation_input_tokens": 350,
            "cache_read_input_tokens": self._context,
            "output_tokens": size if stop else 1,
        }
        message = {
            "model": self.model,
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "content": [block],
            "stop_reason": stop,
            "usage": usage,
        }
        self._context += size
        request = _token("req_011C", message_id)
        wait = 1 + min(size / 40, 20)
        return self._add(
            {"type": "assistant", "message": message, "requestId": request}, wait, wait + 4
        )

    def _close(self, message_id: str, action: Action, better: Any = None) -> None:
        self.recorded[message_id] = action
        if better is not None:
            self.answers[message_id] = self._action(better)

    def _action(self, better: Any) -> Action:
        if isinstance(better, str):
            return Action(self._fill(better))
        calls = [better] if isinstance(better, Call) else list(better)
        return Action("", tuple(ToolCall(c.name, self._fill(dict(c.args))) for c in calls))

    def _progress(self, name: str, tool_id: str, tick: int) -> None:
        kind = {"Bash": "bash_progress"}.get(name, "mcp_progress")
        data = {"type": kind, "elapsedTimeSeconds": 2 + 3 * tick, "output": ""}
        self._add(
            {"type": "progress", "data": data, "toolUseID": f"{name}-{tick}",
             "parentToolUseID": tool_id}
        )  # fmt: skip

    def _result(
        self, call: Call, args: dict[str, Any], tool_id: str, use: str, *, agent_id: str = ""
    ) -> None:
        text, error = call.result, call.error
        if text is None:
            text, error = self.folder.answer(call.name, args)
        text = self._fill(text)
        self._context += len(text) // 4
        block: Record = {"tool_use_id": tool_id, "type": "tool_result", "content": text}
        if error:
            block["is_error"] = True
        self.at.leaf = use if not call.progress else self.at.leaf
        extra: Record = {"toolUseResult": f"Error: {text}" if error else None}
        if call.name == "Bash" and not error:
            extra["toolUseResult"] = {"stdout": text, "stderr": "", "interrupted": False}
        elif agent_id:
            extra["toolUseResult"] = {"status": "completed", "agentId": agent_id}
        elif not error:
            extra = {}
        message = {"role": "user", "content": [block]}
        self._add(
            {"type": "user", "message": message, **extra, "sourceToolAssistantUUID": use}, 0.1, 3
        )


def _text_user(text: str) -> Record:
    return {
        "type": "user",
        "message": {"role": "user", "content": [{"type": "text", "text": text}]},
    }


def _line(record: Record) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
