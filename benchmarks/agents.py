"""Real agents against a scripted model: their session files, and the requests they sent.

Each agent runs headless in a home of its own, against a stand-in model server on 127.0.0.1
(:mod:`agents_drive`). The server plays scripted replies and records each request: the truth that
``--check`` compares each state of the session with.

    npm install --prefix agents/pi @mariozechner/pi-coding-agent@0.73.1
    python benchmarks/agents.py --agents agents --out real
    python benchmarks/agents.py --check --out real
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agents_drive import AGENTS, SECRET, Agent, Call, Reply, Server, Unreachable

TESTS = "python3 -B -m unittest -q"
BUG, FIX = "    return a - b", "    return a + b"


def run(command: str) -> Call:
    return "run", {"command": command}


def edit(old: str, new: str, path: str = "calc.py") -> Call:
    return "edit", {"path": path, "old": old, "new": new}


def read(path: str) -> Call:
    return "read", {"path": path}


# -- the scenarios -------------------------------------------------------------------------

def plain(agent: Agent) -> None:
    agent.prompt(
        "Fix calc.py and run its tests.",
        Reply("I read the file.", [read("calc.py")], "First I look."),
        Reply("", [run("ls")]),
        Reply("", [run("echo broken >&2; exit 3")]),
        Reply("The tests first.", [run(TESTS)]),
        Reply("", [edit("    return a * b", FIX)], "A guess."),
        Reply("", [edit(BUG, FIX)]),
        Reply("Again the tests.", [run(TESTS)]),
        Reply("add is right now."),
    )


def resume(agent: Agent) -> None:
    agent.prompt("What is in notes.txt?", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
    agent.prompt(
        "And how many lines?", Reply("", [run("wc -l notes.txt")]), Reply("Two."), resume=True
    )


def parallel(agent: Agent) -> None:
    agent.prompt(
        "Read both files.",
        Reply("Both at once.", [read("calc.py"), read("notes.txt"), run("exit 4")]),
        Reply("Now I know both."),
    )


def secret(agent: Agent) -> None:
    agent.prompt(
        "Which keys are set?", Reply("", [run("cat .env")]), Reply(f"The key is {SECRET}.")
    )


def failing(agent: Agent) -> None:
    agent.prompt(
        "Say hello.", Reply(error=500), Reply("Hello.", [run("echo hello")]), Reply("Said.")
    )


def interrupted(agent: Agent) -> None:
    agent.prompt("Wait a little.", Reply("I wait.", [run("sleep 30")]), stop=True)
    agent.prompt("Go on.", Reply("I go on."), resume=True)


LIVE: dict[str, type[Live]] = {
    "pi": PiLive,
    "codex": CodexLive,
    "opencode": OpenCodeLive,
    "gemini": GeminiLive,
    "copilot": AcpLive,
}


def compaction(agent: Agent) -> None:
    with agent.live() as live:
        live.say("Read the long file.", Reply("", [read("long.txt")]), Reply("It is long."))
        live.say("And the notes.", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
        live.compact()
        live.say("Read calc.py.", Reply("", [read("calc.py")]), Reply("It subtracts."))


def full(agent: Agent) -> None:
    agent.prompt("Read the notes.", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
    agent.prompt(
        "Read calc.py.",
        Reply("Nearly full.", [read("calc.py")], tokens=agent.full),
        Reply("", [run("ls")]),
        Reply("It subtracts."),
        resume=True,
    )


def back(agent: Agent) -> None:
    with agent.live() as live:
        live.say("Read the notes.", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
        live.say("The wrong way.", Reply("", [run("echo wrong")]), Reply("That was wrong."))
        live.back()
        live.say("The right way.", Reply("", [run("echo right")]), Reply("That was right."))


def fork(agent: Agent) -> None:
    with agent.live() as live:
        live.say("Read the notes.", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
        live.say("The first way.", Reply("", [run("echo first")]), Reply("That was the first."))
        live.fork()
        live.say("The second way.", Reply("", [run("echo second")]), Reply("The second."))


def denied(agent: Agent) -> None:
    with agent.live() as live:
        live.say(
            "Remove the notes.",
            Reply("I remove them.", [run("rm notes.txt")]),
            Reply("Then I leave them."),
            allow=False,
        )
        live.say("Remove them now.", Reply("", [run("rm notes.txt")]), Reply("They are gone."))


def stopped(agent: Agent) -> None:
    with agent.live() as live:
        live.say("Wait a little.", Reply("I wait.", [run("sleep 30")]), stop=True)
        live.say("Go on.", Reply("", [run("ls")]), Reply("I go on."))


def subagent(agent: Agent) -> None:
    agent.server.sub_replies[:] = [
        Reply("I count.", [run("wc -l notes.txt")]), agent.report("The notes have two lines.")
    ]
    calls = agent.delegate("SUBTASK: count the lines of notes.txt.")
    agent.prompt(
        "Let another agent count.", *(Reply("", [call]) for call in calls), Reply("Two lines.")
    )


SCENARIOS = [plain, resume, parallel, secret, failing, interrupted, compaction, full, back, fork]
SCENARIOS += [denied, stopped, subagent]


def programs(folder: Path) -> dict[str, Path]:
    """Return where each agent's program is."""
    found = {file.name: file for file in folder.glob("*/node_modules/.bin/*")}
    return {agent.name: found[agent.program] for agent in AGENTS if agent.program in found}


def record(program: Path, kind: type[Agent], scenario: Callable[..., None], out: Path) -> None:
    """Play one scenario in a home of its own and keep what is left of it."""
    base = Path(tempfile.mkdtemp(prefix="agents-"))
    server = Server()
    try:
        agent = server.agent = kind(program, server, base / "at")
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
    for path in agent.data:
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


def main() -> None:
    """Record or check."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=Path, default=Path("agents"))
    parser.add_argument("--out", type=Path, default=Path("real"))
    parser.add_argument("--only", default="", help="agents or scenarios, separated by commas")
    parser.add_argument("--check", action="store_true", help="compare what is there")
    given = parser.parse_args()
    only = set(filter(None, given.only.split(",")))
    at = programs(given.agents)
    for kind in AGENTS:
        if kind.name not in at:
            print(f"{kind.name}: not installed in {given.agents}")
            continue
        for scenario in SCENARIOS:
            if not only or {kind.name, scenario.__name__} <= only or (
                len(only) == 1 and only & {kind.name, scenario.__name__}
            ):
                record(at[kind.name], kind, scenario, given.out)


if __name__ == "__main__":
    main()
