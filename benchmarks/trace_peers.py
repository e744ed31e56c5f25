"""Other readers of Claude Code sessions: their releases, and how each is called."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

BUILD = Path(__file__).resolve().parent.parent / "build" / "bench-traces" / "peers"


@dataclass(frozen=True)
class Reader:
    """One release, and code for its own Python."""

    name: str
    version: str
    read: str
    messages: str = ""
    installs: tuple[tuple[str, ...], ...] = ()
    needs: tuple[int, int] = (3, 0)
    gathers: bool = False

    def files(self, folder: Path) -> list[Path]:
        """Return the session files that it is given."""
        found = sorted(folder.rglob("*.jsonl"))
        return [f for f in found if not (self.gathers and "subagents" in f.parts)]

    def python(self) -> str | Path:
        """Return the interpreter of its own environment, made once, or why there is none."""
        target = BUILD / f"{self.name}-{self.version}"
        python, whole = target / "bin" / "python", target / ".whole"
        if whole.exists():
            return python
        base = self._base()
        if base is None:
            return "not run: needs Python {}.{} or newer".format(*self.needs)
        shutil.rmtree(target, ignore_errors=True)
        steps = [[base, "-m", "venv", str(target)]]
        for wanted in self.installs or ((f"{self.name}=={self.version}",),):
            steps.append([str(python), "-m", "pip", "install", "--quiet", *wanted])
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = [line for line in done.stderr.splitlines() if "ERROR" in line]
                return f"not installable here: {lines[0][:110] if lines else 'no environment'}"
        whole.touch()
        return python

    def _base(self) -> str | None:
        """Return the interpreter to make the environment of, or ``None`` where there is none."""
        if sys.version_info[:2] >= self.needs:
            return sys.executable
        given = os.environ.get("COMPOSER_PEER_PYTHON")
        names = [f"python3.{minor}" for minor in range(self.needs[1], 20)]
        for candidate in [given] if given else names:
            path = shutil.which(candidate)
            # A shim of a version manager is found but does not run.
            if path and _version_of(path) >= self.needs:
                return path
        return None


def _version_of(python: str) -> tuple[int, ...]:
    code = "import sys; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


#: Of rows whose messages are OpenAI's, which ``row`` names.
_CHAT_MESSAGES = """
def text_of(content):
    if not isinstance(content, list):
        return str(content or "")
    return " ".join(str(b.get("text", "")) for b in content if isinstance(b, dict))

def messages(found):
    for m in [m for row in found for m in {row}]:
        yield dict(
            role=m["role"],
            text=text_of(m.get("content")),
            calls=[c["id"] for c in m.get("tool_calls") or ()],
            results=[m["tool_call_id"]] if m["role"] == "tool" else [],
        )
"""

READERS = (
    Reader(
        "teich",
        "0.3.6",
        """
from teich.converter import convert_traces_to_training_data
def read(file, root):
    return convert_traces_to_training_data(file)
""",
        _CHAT_MESSAGES.format(row="row['messages']"),
    ),
    Reader(
        "claude-code-log",
        "1.7.0",
        """
from claude_code_log.converter import load_transcript
def read(file, root):
    return load_transcript(file, silent=True)
""",
    ),
    Reader(
        "cc-session-core",
        "0.2.0",
        """
import cc_session_core as core
def read(file, root):
    return list(core.iter_records(file))
""",
        needs=(3, 12),
    ),
    Reader(
        "data-designer-engine",
        "0.9.7",
        """
from data_designer.config.seed_source import AgentRolloutFormat
from data_designer.engine.resources.agent_rollout.registry import get_format_handler
handler = get_format_handler(AgentRolloutFormat.CLAUDE_CODE)
def read(file, root):
    return handler.parse_file(root_path=root, relative_path=str(file.relative_to(root)))
""",
        _CHAT_MESSAGES.format(row="row.messages"),
        # Its configuration asks for certifi of 2026-10-19, which not every index has yet: what
        # the reader imports, within the ranges that the packages name.
        installs=(
            ("--no-deps", "data-designer-engine==0.9.7", "data-designer-config==0.9.7"),
            ("pydantic>=2.9.2,<3", "jinja2>=3.1.6,<4", "pyyaml>=6.0.1,<7", "requests>=2.33,<3",
             "rich>=13.7.1,<15"),
        ),
    ),
    Reader(
        "atif-sql",
        "0.4.0",
        """
from loguru import logger
from atif_converter.infrastructure.harbor_adapter import convert_session
logger.remove()
def read(file, root):
    return convert_session(file)
""",
        """
def messages(found):
    for s in found.trajectory["steps"]:
        calls = [c["tool_call_id"] for c in s.get("tool_calls") or ()]
        seen = (s.get("observation") or {}).get("results") or ()
        role = {"agent": "assistant"}.get(s["source"], s["source"])
        if not s["extra"].get("is_sidechain"):
            yield {"role": role, "text": str(s.get("message") or ""), "calls": calls,
                   "results": [r["source_call_id"] for r in seen if r.get("source_call_id")]}
""",
        needs=(3, 13),
        gathers=True,
    ),
)  # fmt: skip
