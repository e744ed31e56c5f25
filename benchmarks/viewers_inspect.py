"""Claude Code sessions as one log of inspect_ai, for ``viewers.py``; runs in inspect_ai's Python.

    PYTHON benchmarks/viewers_inspect.py SESSIONS LOGS

One sample is one file, a subagent's too: its messages in the order of the file, its tokens, and as
a score how many of its tool calls failed. The conversion is ours: inspect_ai has none.
"""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalSample,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageTool,
    ChatMessageUser,
    Content,
    ContentImage,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall, ToolCallError


def records(file: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file that are messages; a broken line is skipped."""
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record.get("message"), dict) and record.get("type") in ("user", "assistant"):
            yield record


def of_type(kind: str, blocks: Any) -> list[dict[str, Any]]:
    """Return the blocks of a kind."""
    return [b for b in blocks if b["type"] == kind] if isinstance(blocks, list) else []


def contents(blocks: Any) -> list[Content]:
    """Return texts, thoughts and images."""
    if isinstance(blocks, str):
        return [ContentText(text=blocks)]
    found: list[Content] = []
    for block in blocks or ():
        if block["type"] == "text":
            found.append(ContentText(text=block["text"]))
        elif block["type"] == "thinking":
            found.append(ContentReasoning(reasoning=block["thinking"]))
        elif block["type"] == "image":
            source = block["source"]
            data = f"data:{source['media_type']};base64,{source['data']}"
            found.append(ContentImage(image=data))
    return found


def sample(file: Path) -> EvalSample:
    """Return the sample of a session file."""
    made: list[ChatMessage] = []
    names: dict[str, str] = {}
    answers: dict[str, ChatMessageAssistant] = {}
    usage: dict[str, dict[str, int]] = {}
    failed, times = 0, list[str]()
    for record in records(file):
        times.append(record["timestamp"])
        message, blocks = record["message"], record["message"].get("content")
        if record["type"] == "assistant":
            calls = [
                ToolCall(id=b["id"], function=b["name"], arguments=b["input"])
                for b in of_type("tool_use", blocks)
            ]
            names |= {call.id: call.function for call in calls}
            usage[message["id"]] = message.get("usage") or {}
            # A response is several records; they become one message.
            if message["id"] in answers:
                answer = answers[message["id"]]
                assert isinstance(answer.content, list)
                answer.content += contents(blocks)
                answer.tool_calls = [*(answer.tool_calls or ()), *calls]
            else:
                answers[message["id"]] = ChatMessageAssistant(
                    content=contents(blocks), tool_calls=calls, model=message.get("model")
                )
                made.append(answers[message["id"]])
            continue
        for block in of_type("tool_result", blocks):
            inner, wrong = contents(block.get("content")), bool(block.get("is_error"))
            failed += wrong
            text = "\n".join(part.text for part in inner if isinstance(part, ContentText))
            made.append(
                ChatMessageTool(
                    content=inner,
                    tool_call_id=block["tool_use_id"],
                    function=names.get(block["tool_use_id"]),
                    error=ToolCallError("unknown", text) if wrong else None,
                )
            )
        if said := contents(blocks):
            made.append(ChatMessageUser(content=said))
    tokens = ModelUsage(
        input_tokens=sum(each.get("input_tokens", 0) for each in usage.values()),
        output_tokens=sum(each.get("output_tokens", 0) for each in usage.values()),
        input_tokens_cache_read=sum(u.get("cache_read_input_tokens", 0) for u in usage.values()),
        input_tokens_cache_write=sum(
            u.get("cache_creation_input_tokens", 0) for u in usage.values()
        ),
    )
    tokens.total_tokens = tokens.input_tokens + tokens.output_tokens
    said = [m.text for m in made if isinstance(m, ChatMessageUser) and m.text]
    last = next((m for m in reversed(made) if isinstance(m, ChatMessageAssistant)), None)
    model = (last.model if last else None) or "unknown"
    return EvalSample(
        id=file.stem,
        epoch=1,
        input=said[0] if said else "",
        target="",
        messages=made,
        output=ModelOutput.from_content(model, last.text if last else ""),
        scores={"failed_calls": Score(value=failed)},
        model_usage={model: tokens},
        started_at=min(times, default=None),
        completed_at=max(times, default=None),
        total_time=seconds(min(times), max(times)) if times else None,
        metadata={"project": file.parent.name},
    )


def seconds(first: str, last: str) -> float:
    """Return the seconds between two times."""
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds()


def main() -> None:
    """Write the log."""
    sessions, logs = map(Path, sys.argv[1:])
    samples = [sample(file) for file in sorted(sessions.rglob("*.jsonl"))]
    log = EvalLog(
        status="success",
        eval=EvalSpec(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            task="sessions",
            task_id="sessions",
            run_id="sessions",
            eval_id="sessions",
            dataset=EvalDataset(name="sessions", samples=len(samples)),
            model="claude-code",
            config=EvalConfig(),
        ),
        stats=EvalStats(
            started_at=min(s.started_at for s in samples if s.started_at),
            completed_at=max(s.completed_at for s in samples if s.completed_at),
        ),
        samples=samples,
    )
    write_eval_log(log, str(logs / "2026-11-01T00-00-00+00-00_sessions_sessions.eval"))


if __name__ == "__main__":
    main()
