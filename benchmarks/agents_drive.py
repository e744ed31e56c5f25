"""Five agents, headless, against a stand-in model server that plays scripted replies.

The server speaks three protocols, records every request and listens on 127.0.0.1 only.
:mod:`agents` says what is played, and compares.
"""

import fcntl
import json
import os
import pty
import queue
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

SECRET = "AKIAZ7QK3VN5RT2WLX4B"
FILES = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "import unittest\n\nfrom calc import add\n\n\nclass Add(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(add(2, 2), 4)\n",
    "notes.txt": "alpha\nbeta\n",
    ".env": f"AWS_ACCESS_KEY_ID={SECRET}\n",
    "long.txt": "".join(f"line {number} of a long file\n" for number in range(2000)),
}

Call = tuple[str, dict[str, Any]]
Calls = list[tuple[str, str, Any]]  # id, name, arguments


@dataclass
class Reply:
    """What the model answers once: a text, calls, thinking, or an HTTP error."""

    text: str = ""
    calls: list[Call] = field(default_factory=list)
    thinking: str = ""
    error: int = 0
    tokens: int = 1000  # how long it says that the request was


class Server(ThreadingHTTPServer):
    """Answers model requests with the replies of a script and records both."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.agent: Agent
        self.replies: list[Reply] = []
        self.sub_replies: list[Reply] = []
        self.requests: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answer(self, body: dict[str, Any]) -> tuple[int, Reply, Calls]:
        """Take the next reply for a request and record both."""
        with self.lock:
            number = len(self.requests)
            self.requests.append(body)
            kind = self.agent.kind(body)
            queue = {"main": self.replies, "sub": self.sub_replies}.get(kind)
            if queue is None:
                reply = Reply(f"Summary {number}: the work on calc.py so far.")
            else:
                reply = queue.pop(0) if queue else Reply(f"No reply was scripted for {number}.")
            known = re.findall(r'agent_id\\*": ?\\*"([^"\\]+)', json.dumps(body))
            given = {"agent_id": known[-1] if known else ""}
            calls = [
                (f"call_{number:04}_{index}", *self.agent.tool(name, {**given, **call}))
                for index, (name, call) in enumerate(reply.calls)
            ]
            made = [call[1:] for call in calls]
            answer = {"kind": kind, "text": reply.text, "calls": made, "error": reply.error}
            self.answers.append(answer)
            return number, reply, calls


class Handler(BaseHTTPRequestHandler):
    """One request of an agent."""

    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer the list of models; nothing else is there."""
        self.send(200, "application/json", json.dumps({"object": "list", "data": []}).encode())

    def do_POST(self) -> None:
        """Answer a model request."""
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        make = next((WIRES[end] for end in WIRES if self.path.split("?")[0].endswith(end)), None)
        if make is None:
            self.send(404, "application/json", b"{}")
            return
        body = json.loads(data)
        number, reply, calls = self.server.answer(body)
        if reply.error:
            failure = {"error": {"message": "The stand-in fails here.", "code": reply.error}}
            self.send(reply.error, "application/json", json.dumps(failure).encode())
            return
        self.send(200, *make(reply, calls, body, number))

    def send(self, status: int, kind: str, payload: bytes) -> None:
        """Send a whole answer."""
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        with suppress(OSError):  # the agent was stopped
            self.wfile.write(payload)


Body = dict[str, Any]
Wire = Callable[[Reply, Calls, Body, int], tuple[str, bytes]]


def _events(items: list[Any], *, named: bool = False) -> tuple[str, bytes]:
    lines = []
    for item in items:
        name = f"event: {item['type']}\n" if named else ""
        lines.append(f"{name}data: {item if isinstance(item, str) else json.dumps(item)}\n\n")
    return "text/event-stream", "".join(lines).encode()


def _responses(reply: Reply, calls: Calls, body: Body, number: int) -> tuple[str, bytes]:
    """OpenAI's Responses, streamed."""
    items: list[dict[str, Any]] = []
    if reply.thinking:
        summary = [{"type": "summary_text", "text": reply.thinking}]
        items.append(
            {
                "type": "reasoning",
                "id": f"rs_{number}",
                "summary": summary,
                "encrypted_content": "x",
            }
        )
    if reply.text:
        content = [{"type": "output_text", "text": reply.text, "annotations": []}]
        items.append(
            {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}
        )
    for call_id, name, arguments in calls:
        space, _, name = name.rpartition(".")
        item = {"id": f"fc_{call_id}", "call_id": call_id, "name": name, "status": "completed"}
        if space:
            item["namespace"] = space
        if name == "tool_search":
            items.append(
                {"type": "tool_search_call", "execution": "client", "arguments": arguments}
                | {"call_id": call_id, "status": "completed"}
            )
        elif isinstance(arguments, str):
            items.append({"type": "custom_tool_call", "input": arguments, **item})
        else:
            items.append({"type": "function_call", "arguments": json.dumps(arguments), **item})
    if body["input"][-1].get("type") == "compaction_trigger":
        items = [{"type": "compaction", "id": f"cmp_{number}", "encrypted_content": "sealed"}]
    usage = {"input_tokens": reply.tokens, "output_tokens": 20, "total_tokens": reply.tokens + 20}
    whole = {"id": f"resp_{number}", "object": "response", "status": "completed", "usage": usage}
    stream: list[Any] = [{"type": "response.created", "response": {"id": f"resp_{number}"}}]
    for index, item in enumerate(items):
        for step in ("added", "done"):
            stream.append(
                {"type": f"response.output_item.{step}", "output_index": index, "item": item}
            )
    stream.append({"type": "response.completed", "response": {**whole, "output": items}})
    return _events(stream, named=True)


def _completions(reply: Reply, calls: Calls, body: Body, number: int) -> tuple[str, bytes]:
    """OpenAI's chat completions, streamed or whole."""
    made = [
        {"index": index, "id": call_id, "type": "function"}
        | {"function": {"name": name, "arguments": json.dumps(arguments)}}
        for index, (call_id, name, arguments) in enumerate(calls)
    ]
    usage = {
        "prompt_tokens": reply.tokens,
        "completion_tokens": 20,
        "total_tokens": reply.tokens + 20,
    }
    base = {"id": f"chatcmpl-{number}", "created": int(time.time()), "model": body["model"]}
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.thinking:
        message["reasoning_content"] = reply.thinking
    if made:
        message["tool_calls"] = made
    finish = {"index": 0, "finish_reason": "tool_calls" if made else "stop"}
    if not body.get("stream"):
        choices = [{**finish, "message": message}]
        whole = {**base, "object": "chat.completion", "choices": choices, "usage": usage}
        return "application/json", json.dumps(whole).encode()
    part = {**base, "object": "chat.completion.chunk"}
    choice = {"index": 0, "delta": message, "finish_reason": None}
    return _events(
        [
            {**part, "choices": [choice]},
            {**part, "choices": [{**finish, "delta": {}}], "usage": usage},
            "[DONE]",
        ]
    )


def _gemini(reply: Reply, calls: Calls, body: Body, number: int) -> tuple[str, bytes]:
    """Gemini's generateContent, streamed or whole."""
    parts: list[dict[str, Any]] = []
    if reply.thinking:
        parts.append({"text": reply.thinking, "thought": True})
    if reply.text:
        parts.append({"text": reply.text})
    parts += [
        {"functionCall": {"id": call_id, "name": name, "args": arguments}}
        for call_id, name, arguments in calls
    ]
    usage = {
        "promptTokenCount": reply.tokens,
        "candidatesTokenCount": 20,
        "totalTokenCount": reply.tokens + 20,
    }
    candidate = {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
    whole = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "stand-in"}
    return "text/event-stream", f"data: {json.dumps(whole)}\n\n".encode()


def _gemini_whole(reply: Reply, calls: Calls, body: Body, number: int) -> tuple[str, bytes]:
    """Gemini's generateContent in one piece."""
    return "application/json", _gemini(reply, calls, body, number)[1].strip()[6:]


WIRES: dict[str, Wire] = {
    "/responses": _responses,
    "/chat/completions": _completions,
    ":streamGenerateContent": _gemini,
    ":generateContent": _gemini_whole,
}


class Unreachable(Exception):
    """The agent has no way to this without a terminal."""


# -- the agents ----------------------------------------------------------------------------

#: What agents ask for a summary with, the tools still in the request.
SUMMARISE = (
    "CONTEXT CHECKPOINT COMPACTION|a new <state_snapshot>|Tools are unavailable in this"
    "|compaction_trigger"
)
#: How the prompt of a subagent begins.
SUBTASK = re.compile(r'"(text|content|encrypted_content)": "[^"]{0,300}SUBTASK')


def filled(template: Any, given: Mapping[str, str]) -> Any:
    """Return a template with the names in braces replaced."""
    if isinstance(template, str):
        return re.sub(r"\{(\w+)\}", lambda match: given.get(match[1], match[0]), template)
    if isinstance(template, list):
        return [filled(each, given) for each in template]
    if isinstance(template, dict):
        return {name: filled(value, given) for name, value in template.items()}
    return template


@dataclass(frozen=True)
class Kind:
    """How one agent is configured and called; templates name what :func:`filled` is given."""

    name: str
    program: str  #: below ``node_modules/.bin``
    data: list[str]  #: what it leaves, below its home
    variables: dict[str, str]
    files: dict[str, Any]  #: its configuration, below its home
    tools: dict[str, tuple[str, Any]]  #: the calls of scripts as its own: name and arguments
    full: int  #: tokens of a request that leave no room
    head: str = "-p"  #: arguments of a headless call, around those of a resumed one
    again: str = "--continue"
    tail: str = ""
    delegate: str = "task"  #: the calls that give a task to a subagent, one a response


class Agent:
    """One agent with a home of its own."""

    def __init__(self, kind: Kind, program: Path, server: Server, home: Path) -> None:
        self.of, self.server, self.home, self.work = kind, server, home, home / "work"
        self.command = str(program)
        given = {"url": f"http://127.0.0.1:{server.server_port}", "work": str(self.work)}
        self.env = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home / "tmp")}
        self.env |= {"LANG": "C.UTF-8", "TERM": "dumb", "NO_COLOR": "1", "STANDIN_KEY": "none"}
        self.env |= filled(kind.variables, given)
        files = {f"work/{name}": text for name, text in FILES.items()} | kind.files
        for path, template in (files | {"tmp/empty": ""}).items():
            self.write(path, filled(template, given))
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(self.work)]
        for step in (["init", "-q"], ["add", "calc.py"], ["commit", "-qm", "Begin"]):
            subprocess.run([*git, *step], env=self.env, check=True, capture_output=True)

    def write(self, path: str, value: Any) -> None:
        """Write a file of the home, JSON unless it is a text."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value if isinstance(value, str) else json.dumps(value))

    def log(self, text: str) -> None:
        """Keep what the agent printed."""
        with (self.home / "stdout.txt").open("a") as file:
            file.write(text)

    def live(self, *, terminal: bool = False) -> "_Live":
        """Start the agent so that it stays open."""
        live = (TERMINALS if terminal else LIVE).get(self.of.name)
        if live is None:
            raise Unreachable("it is not driven through a terminal")
        return live(self)

    def kind(self, body: dict[str, Any]) -> str:
        """Return what a request is: ``main``, ``sub`` or ``side`` (a title, a summary)."""
        last = (body.get("messages") or body.get("input") or body["contents"])[-1]
        no_tools = "input" not in body and not body.get("tools")
        if no_tools or re.search(SUMMARISE, json.dumps(last)):
            return "side"
        return "sub" if SUBTASK.search(json.dumps(body)) else "main"

    def tool(self, name: str, given: dict[str, str]) -> tuple[str, Any]:
        """Return the agent's name and arguments of a script's call."""
        given = {"file": str(self.work / given.get("path", "")), **given}
        given |= {f"{name}_json": json.dumps(value) for name, value in given.items()}
        name, template = self.of.tools[name]
        return name, filled(template, given)

    def start(self, arguments: Iterable[str], **options: Any) -> subprocess.Popen[str]:
        """Start the program in its work folder, in a process group of its own."""
        return subprocess.Popen(
            [self.command, *arguments],
            cwd=self.work,
            env=self.env,
            stderr=(self.home / "stderr.txt").open("a"),
            text=True,
            start_new_session=True,
            **{"stdout": subprocess.PIPE, **options},
        )

    def prompt(self, prompt: str, *replies: Reply, resume: bool = False, stop: int = 0) -> None:
        """Run one headless call; ``stop`` is a signal to send once the last reply is out."""
        self.server.replies[:] = replies
        again = self.of.again if resume else ""
        arguments = f"{self.of.head} {again} {self.of.tail}".split()
        process = self.start([*arguments, prompt], stdin=subprocess.DEVNULL)
        out = "(it did not end in time)"
        try:
            if stop:
                wait(lambda: not self.server.replies)
                time.sleep(3)
                os.killpg(process.pid, stop)
            out, _ = process.communicate(timeout=8 if stop else 120)
        except (subprocess.TimeoutExpired, TimeoutError):
            pass
        finally:
            end(process)
        self.log(f"{out}\n(exit code {process.returncode})\n")


def wait(ready: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something holds."""
    until = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.05)


def end(process: subprocess.Popen[str]) -> None:
    """End a process that was started here, with its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


#: pi has no permissions and no command line for its tree: an extension has both.
PI_EXTENSION = """
import * as fs from "node:fs";
export default function (pi) {
  pi.on("tool_call", async () => {
    const deny = fs.existsSync(process.env.HOME + "/deny");
    if (deny) return { block: true, reason: "Blocked by user" };
  });
  pi.registerCommand("back", {
    description: "Go back to an entry",
    handler: async (id, ctx) => { await ctx.navigateTree(id, { summarize: true }); },
  });
}
"""


PI_MODEL = {"id": "stand-in", "contextWindow": 20000, "maxTokens": 4000, "reasoning": True}
PI_PROVIDER = {"baseUrl": "{url}/v1", "api": "openai-completions", "apiKey": "none"}
PI = Kind(
    name="pi",
    program="pi",
    data=[".pi/agent/sessions"],
    full=18000,
    head="-p --provider standin --model stand-in",
    variables={"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
    files={
        ".pi/agent/models.json": {"providers": {"standin": {**PI_PROVIDER, "models": [PI_MODEL]}}},
        ".pi/agent/extensions/back.js": PI_EXTENSION,
        ".pi/agent/settings.json": {"compaction": {"reserveTokens": 4000, "keepRecentTokens": 300}},
    },
    tools={
        "run": ("bash", {"command": "{command}"}),
        "read": ("read", {"path": "{path}"}),
        "edit": ("edit", {"path": "{path}", "edits": [{"oldText": "{old}", "newText": "{new}"}]}),
    },
)

CODEX_CONFIG = """
model = "MODEL"
model_provider = "standin"
model_auto_compact_token_limit = 8000
check_for_update_on_startup = false
[analytics]
enabled = false
[features]
enable_request_compression = false
[model_providers.standin]
name = "PROVIDER"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "STANDIN_KEY"
request_max_retries = 1
stream_max_retries = 1
[projects."{work}"]
trust_level = "trusted"
"""
PATCH = "*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch"


CODEX = Kind(
    name="codex",
    program="codex",
    data=[".codex/sessions", ".codex/archived_sessions"],
    full=9000,
    head="exec",
    again="resume --last",
    tail="--dangerously-bypass-approvals-and-sandbox",
    variables={},
    files={
        ".codex/config.toml": CODEX_CONFIG.replace("MODEL", "gpt-5.5").replace("PROVIDER", "other")
    },
    tools={
        "run": ("exec_command", {"cmd": "{command}"}),
        "read": ("exec_command", {"cmd": "cat {path}"}),
        "edit": ("apply_patch", PATCH),
        "search": ("tool_search", {"query": "spawn_agent wait_agent"}),
        "task": ("multi_agent_v1.spawn_agent", {"message": "{task}"}),
        "wait": ("multi_agent_v1.wait_agent", {"targets": ["{agent_id}"], "timeout_ms": 20000}),
    },
    delegate="search task wait",
)
#: Codex with a model of this year: tools in JavaScript, compactions that only OpenAI reads.
CODEX_NEWEST = replace(
    CODEX,
    name="codex-newest",
    files={
        ".codex/config.toml": CODEX_CONFIG.replace("MODEL", "gpt-6.2-sol").replace(
            "PROVIDER", "OpenAI"
        )
    },
    tools={
        "run": ("exec", 'text(await tools.exec_command({"cmd": {command_json}}))'),
        "read": ("exec", 'text(await tools.exec_command({"cmd": "cat {path}"}))'),
        "edit": ("exec", f"text(await tools.apply_patch({json.dumps(PATCH)}))"),
        "task": (
            "collaboration.spawn_agent",
            {"task_name": "count", "message": "{task}", "fork_turns": "none"},
        ),
        "wait": ("collaboration.wait_agent", {"timeout_ms": 20000}),
    },
    delegate="task wait",
)

OPENCODE_PROVIDER = {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "{url}/v1", "apiKey": "none"},
    "models": {"stand-in": {"name": "Stand-in", "limit": {"context": 40000, "output": 4000}}},
}
OPENCODE = Kind(
    name="opencode",
    program="opencode",
    data=[f".local/share/opencode/opencode.db{end}" for end in ("", "-wal", "-shm")],
    full=39000,
    head="run",
    variables={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    },
    files={
        ".config/opencode/opencode.json": {
            "provider": {"standin": OPENCODE_PROVIDER},
            "model": "standin/stand-in",
            "small_model": "standin/stand-in",
            "autoupdate": False,
            "share": "disabled",
            "permission": {"bash": {"*": "allow", "rm *": "ask"}},
        }
    },
    tools={
        "run": ("bash", {"command": "{command}", "description": "Runs a command"}),
        "read": ("read", {"filePath": "{file}"}),
        "edit": ("edit", {"filePath": "{file}", "oldString": "{old}", "newString": "{new}"}),
        "task": (
            "task",
            {"description": "Count lines", "prompt": "{task}", "subagent_type": "general"},
        ),
    },
)
GEMINI = Kind(
    name="gemini",
    program="gemini",
    data=[".gemini/tmp", ".gemini/projects.json"],
    full=600000,
    head="--approval-mode yolo -m gemini-2.5-pro",
    again="--resume latest",
    tail="-p",
    variables={
        "GEMINI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": "{url}",
        "GEMINI_TELEMETRY_ENABLED": "false",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    },
    files={
        ".gemini/settings.json": {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "general": {"enableAutoUpdate": False},
            "privacy": {"usageStatisticsEnabled": False},
        }
    },
    tools={
        "run": ("run_shell_command", {"command": "{command}", "description": "Runs a command"}),
        "read": ("read_file", {"file_path": "{file}"}),
        "edit": (
            "replace",
            {"file_path": "{file}", "old_string": "{old}", "new_string": "{new}"}
            | {"instruction": "Correct the sum."},
        ),
        "task": ("invoke_agent", {"agent_name": "generalist", "prompt": "{task}"}),
        "report": ("complete_task", {"result": {"response": "{result}"}}),
    },
)
COPILOT = Kind(
    name="copilot",
    program="copilot-linux-x64",
    data=[".copilot/session-state"],
    full=60000,
    head="--allow-all",
    tail="-p",
    variables={
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
        "COPILOT_PROVIDER_BASE_URL": "{url}/v1",
        "COPILOT_PROVIDER_API_KEY": "none",
        "COPILOT_MODEL": "stand-in",
        "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": "60000",
    },
    files={},
    tools={
        "run": ("bash", {"command": "{command}", "description": "Runs a command"}),
        "read": ("view", {"path": "{file}"}),
        "edit": ("edit", {"path": "{file}", "old_str": "{old}", "new_str": "{new}"}),
        "task": (
            "task",
            {"name": "count", "prompt": "{task}", "agent_type": "task", "mode": "sync"}
            | {"description": "Count"},
        ),
    },
)
AGENTS = [PI, CODEX, CODEX_NEWEST, OPENCODE, GEMINI, COPILOT]


# -- agents that stay open -----------------------------------------------------------------


class _Live:
    """An agent that talks JSON lines; the base class speaks JSON-RPC."""

    start: tuple[str, ...] = ()
    open: Callable[[], None]
    decide: Callable[[dict[str, Any]], Any]  # answers a request of the agent for permission
    begin: Callable[[str], None]  # gives it a prompt
    stop: Callable[[], None]
    finish: Callable[[], None]  # waits for the end of the turn

    def __init__(self, agent: Agent) -> None:
        self.agent, self.allow, self.number = agent, True, 0
        self.got: queue.Queue[dict[str, Any]] = queue.Queue()
        self.process = self.run()
        threading.Thread(target=self.read, daemon=True).start()
        try:
            self.open()
        except BaseException:
            end(self.process)
            raise

    def __enter__(self) -> "_Live":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            time.sleep(1)
        end(self.process)

    def run(self) -> subprocess.Popen[str]:
        """Start the agent."""
        return self.agent.start(self.start, stdin=subprocess.PIPE)

    def read(self) -> None:
        """Read what it says until it ends."""
        assert self.process.stdout
        for line in self.process.stdout:
            self.agent.log(line)
            if not line.startswith("{"):
                continue
            message = json.loads(line)
            if "method" in message and "id" in message:
                self.send({"id": message["id"], "result": self.decide(message)})
            self.got.put(message)

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def until(self, ready: Callable[[dict[str, Any]], Any], seconds: float = 60) -> Any:
        """Return the next message for which something holds."""
        stop_at = time.monotonic() + seconds
        while True:
            try:
                message = self.got.get(timeout=max(0.0, stop_at - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if ready(message):
                return message

    def request(self, method: str, **params: Any) -> int:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        return self.number

    def ask(self, method: str, **params: Any) -> Any:
        """Call a method and return its result."""
        return self.result(self.request(method, **params))

    def result(self, number: int) -> Any:
        message = self.until(lambda m: m.get("id") == number and "method" not in m)
        if "error" in message:
            raise Unreachable(f"{message['error']}"[:200])
        return message["result"]

    def say(
        self,
        prompt: str,
        *replies: Reply,
        allow: bool = True,
        stop: bool = False,
        steer: str = "",
    ) -> None:
        """Prompt and wait for the end of the turn; ``stop`` interrupts its last call."""
        server = self.agent.server
        server.replies[:] = replies
        self.allow = allow
        self.begin(prompt)
        if steer:
            wait(lambda: len(server.replies) < len(replies))
            time.sleep(0.5)
            self.steer(steer)
        if stop:
            wait(lambda: not server.replies)
            time.sleep(2)
            self.stop()
        self.finish()

    def unreachable(self) -> None:
        raise Unreachable("no command for it without a terminal")

    compact = back = fork = unreachable  # back: undo the last turn; fork: go on without it

    def steer(self, prompt: str) -> None:
        """Prompt while the agent works."""
        self.unreachable()

    def shell(self, command: str) -> None:
        """Run a command of the user's own."""
        self.unreachable()


class _PiLive(_Live):
    start = (
        "--mode",
        "rpc",
        "--provider",
        "standin",
        "--model",
        "stand-in",
    )

    def open(self) -> None:
        self.ask("get_state")

    def ask(self, method: str, **params: Any) -> Any:
        self.number += 1
        number = self.number
        self.send({"id": number, "type": method, **params})
        message = self.until(lambda m: m.get("type") == "response" and m.get("id") == number)
        if not message["success"]:
            raise Unreachable(message["error"])
        return message.get("data")

    def begin(self, prompt: str) -> None:
        if self.allow:
            (self.agent.home / "deny").unlink(missing_ok=True)
        else:
            self.agent.write("deny", "")
        self.ask("prompt", message=prompt)

    def finish(self) -> None:
        quiet = 0
        while quiet < 3:
            time.sleep(0.2)
            state = self.ask("get_state")
            quiet = 0 if state["isStreaming"] or state["isCompacting"] else quiet + 1

    def stop(self) -> None:
        self.ask("abort")

    def compact(self) -> None:
        self.ask("compact")

    def steer(self, prompt: str) -> None:
        self.ask("steer", message=prompt)

    def shell(self, command: str) -> None:
        self.ask("bash", command=command)
        self.ask("set_thinking_level", level="high")

    def last_prompt(self) -> str:
        return str(self.ask("get_fork_messages")["messages"][-1]["entryId"])

    def back(self) -> None:
        self.begin(f"/back {self.last_prompt()}")
        self.finish()

    def fork(self) -> None:
        self.ask("fork", entryId=self.last_prompt())


class _CodexLive(_Live):
    start = ("app-server",)
    thread = ""

    def open(self) -> None:
        self.turns: list[str] = []
        self.ask("initialize", clientInfo={"name": "rig", "version": "1"})
        self.send({"method": "initialized"})
        given = {"cwd": str(self.agent.work), "sandbox": "danger-full-access"}
        self.thread = self.ask("thread/start", approvalPolicy="untrusted", **given)["thread"]["id"]

    def decide(self, request: dict[str, Any]) -> Any:
        return {"decision": "accept" if self.allow else "decline"}

    def begin(self, prompt: str) -> None:
        given = [{"type": "text", "text": prompt}]
        turn = self.ask("turn/start", threadId=self.thread, input=given)["turn"]["id"]
        self.turns.append(turn)

    def finish(self) -> None:
        self.until(lambda m: m.get("method") == "turn/completed")

    def stop(self) -> None:
        self.ask("turn/interrupt", threadId=self.thread, turnId=self.turns[-1])

    def compact(self) -> None:
        self.ask("thread/compact/start", threadId=self.thread)
        self.finish()

    def steer(self, prompt: str) -> None:
        given = {"threadId": self.thread, "expectedTurnId": self.turns[-1]}
        self.ask("turn/steer", **given, input=[{"type": "text", "text": prompt}])

    def shell(self, command: str) -> None:
        self.ask("thread/shellCommand", threadId=self.thread, command=command)
        self.finish()

    def back(self) -> None:
        self.ask("thread/revert", threadId=self.thread, beforeTurnId=self.turns.pop())

    def fork(self) -> None:
        made = self.ask("thread/fork", threadId=self.thread, lastTurnId=self.turns[-2])
        self.thread = made["thread"]["id"]


class _AcpLive(_Live):
    """The Agent Client Protocol."""

    start: tuple[str, ...] = ("--acp",)
    session = ""

    def open(self) -> None:
        self.ask("initialize", protocolVersion=1, clientCapabilities={})
        self.session = self.ask("session/new", cwd=str(self.agent.work), mcpServers=[])["sessionId"]

    def decide(self, request: dict[str, Any]) -> Any:
        wanted = "allow_once" if self.allow else "reject_once"
        options = request["params"]["options"]
        option = next(option for option in options if option["kind"] == wanted)
        return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}

    def begin(self, prompt: str) -> None:
        given = [{"type": "text", "text": prompt}]
        self.turn = self.request("session/prompt", sessionId=self.session, prompt=given)

    def finish(self) -> None:
        self.result(self.turn)

    def stop(self) -> None:
        self.send({"method": "session/cancel", "params": {"sessionId": self.session}})

    def compact(self) -> None:
        self.say("/compact")


class _GeminiLive(_AcpLive):
    start = ("--acp", "-m", "gemini-2.5-pro")
    compact = _Live.unreachable


class _OpenCodeLive(_Live):
    """The HTTP server of OpenCode."""

    start = (
        "serve",
        "--port",
        "0",
    )
    session = url = ""

    def open(self) -> None:
        log = self.agent.home / "stdout.txt"
        wait(lambda: log.exists() and "listening on " in log.read_text())
        self.url = log.read_text().split("listening on ")[1].split()[0]
        self.session = self.ask("/session")["id"]

    def ask(self, method: str, **params: Any) -> Any:
        data = None if method.startswith("GET ") else json.dumps(params).encode()
        request = urllib.request.Request(
            self.url + method.removeprefix("GET "), data, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=90) as answer:
            return json.loads(answer.read() or b"null")

    def begin(self, prompt: str) -> None:
        parts = [{"type": "text", "text": prompt}]
        self.turn = threading.Thread(
            target=self.ask, args=(f"/session/{self.session}/message",), kwargs={"parts": parts}
        )
        self.turn.start()

    def finish(self) -> None:
        while self.turn.is_alive():
            self.turn.join(0.3)
            for request in self.ask("GET /permission"):
                reply = "once" if self.allow else "reject"
                self.ask(f"/permission/{request['id']}/reply", reply=reply)

    def stop(self) -> None:
        self.ask(f"/session/{self.session}/abort")

    def compact(self) -> None:
        self.ask(f"/session/{self.session}/summarize", providerID="standin", modelID="stand-in")

    def steer(self, prompt: str) -> None:
        self.ask(f"/session/{self.session}/prompt_async", parts=[{"type": "text", "text": prompt}])

    def shell(self, command: str) -> None:
        self.ask(f"/session/{self.session}/shell", agent="build", command=command)

    def last_prompt(self) -> str:
        messages = self.ask(f"GET /session/{self.session}/message")
        return str([m["info"]["id"] for m in messages if m["info"]["role"] == "user"][-1])

    def back(self) -> None:
        self.ask(f"/session/{self.session}/revert", messageID=self.last_prompt())

    def fork(self) -> None:
        given = {"messageID": self.last_prompt()}
        self.session = self.ask(f"/session/{self.session}/fork", **given)["id"]


ESCAPES = r"\x1b\[[0-9;?<>=]*[a-zA-Z]"


class _Terminal(_Live):
    """An agent on a terminal of its own, typed into."""

    start: tuple[str, ...] = ("-m", "gemini-2.5-pro")
    ready, trust = "Type your message", ""
    compress = "/compress"
    #: The last turn, the conversation only, an empty prompt.
    rewind: tuple[str, ...] = ("\x1b[A", "\r", "\r", "\x15")

    def run(self) -> subprocess.Popen[str]:
        self.end, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        self.agent.env |= {"TERM": "xterm-256color"}
        options = {"stdin": terminal, "stdout": terminal}
        process = self.agent.start(self.start, **options)
        os.close(terminal)
        return process

    def read(self) -> None:
        with suppress(OSError):  # its end
            while data := os.read(self.end, 1 << 16):
                self.agent.log(data.decode(errors="replace"))

    def open(self) -> None:
        log = self.agent.home / "stdout.txt"
        wait(lambda: log.exists() and self.ready in re.sub(ESCAPES, "", log.read_text()))
        self.keys("", self.trust)

    def keys(self, *keys: str, pause: float = 2) -> None:
        for key in keys:
            os.write(self.end, key.encode())
            time.sleep(pause)

    def begin(self, prompt: str) -> None:
        self.keys(*prompt, pause=0.01)
        self.keys("", "\r", pause=0.6)

    def finish(self) -> None:
        if not self.allow:
            self.keys("", "\x1b")
            return
        wait(lambda: not self.agent.server.replies)
        time.sleep(2)

    def back(self) -> None:
        self.begin("/rewind")
        self.keys("", *self.rewind)

    def compact(self) -> None:
        self.begin(self.compress)
        time.sleep(4)


class _CopilotTerminal(_Terminal):
    start = ()
    ready, trust = "enter to select", "\r"
    compress = "/compact"
    rewind = ("\r", "\r", "\x15")


LIVE: dict[str, type[_Live]] = {
    "pi": _PiLive,
    "codex": _CodexLive,
    "codex-newest": _CodexLive,
    "opencode": _OpenCodeLive,
    "gemini": _GeminiLive,
    "copilot": _AcpLive,
}
TERMINALS: dict[str, type[_Live]] = {"gemini": _Terminal, "copilot": _CopilotTerminal}


# -- the recordings ------------------------------------------------------------------------


def programs(folder: Path) -> dict[str, Path]:
    """Return where each agent's program is."""
    found = {file.name: file for file in folder.glob("*/node_modules/.bin/*")}
    return {agent.name: found[agent.program] for agent in AGENTS if agent.program in found}


def record(program: Path, kind: Kind, scenario: Callable[..., None], out: Path) -> None:
    """Play one scenario in a home of its own and keep what is left of it."""
    base = Path(tempfile.mkdtemp(prefix="agents-"))
    server = Server()
    try:
        agent = server.agent = Agent(kind, program, server, base / "at")
        began = time.monotonic()
        try:
            scenario(agent)
        except TimeoutError:
            print(f"{kind.name} {scenario.__name__}: it did not come to its end")
        except Unreachable as why:
            print(f"{kind.name} {scenario.__name__}: {why}")
            return
        print(
            f"{kind.name} {scenario.__name__}: {len(server.requests)} requests,"
            f" {len(server.replies)} replies unused, {time.monotonic() - began:.1f} s"
        )
        keep(agent, out / kind.name / scenario.__name__)
    finally:
        server.shutdown()
        server.server_close()
        shutil.rmtree(base, ignore_errors=True)


def keep(agent: Agent, out: Path) -> None:
    """Copy the agent's data and write the requests."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for path in agent.of.data:
        source = agent.home / path
        if source.is_dir():
            shutil.copytree(source, out / "home" / path, symlinks=True)
        elif source.exists():
            (out / "home" / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, out / "home" / path)
    for name, values in (("requests", agent.server.requests), ("answers", agent.server.answers)):
        lines = [json.dumps(value, ensure_ascii=False) + "\n" for value in values]
        (out / f"{name}.jsonl").write_text("".join(lines))
    for name in ("stdout.txt", "stderr.txt"):
        if (agent.home / name).exists():
            shutil.copy2(agent.home / name, out / name)
