"""Real agents against a scripted model: their session files, and the requests they sent.

Each agent runs headless in a home of its own, against a stand-in model server on 127.0.0.1
(:mod:`agents_drive`). The server plays scripted replies and records each request: the truth that
``--check`` compares each state of the session with.

    npm install --prefix agents/pi @mariozechner/pi-coding-agent@0.73.1
    python benchmarks/agents.py --agents agents --out real
    python benchmarks/agents.py --check --out real
"""

import argparse
import json
import re
import signal
import tempfile
from pathlib import Path
from typing import Any

from agents_drive import AGENTS, SECRET, Agent, Call, Reply, Unreachable, programs, record

from composer_pipeline.lake.store import Lake
from composer_pipeline.states.load import load_states
from composer_pipeline.traces.ingest import ingest

TESTS = "python3 -B -m unittest -q"
BUG, FIX = "    return a - b", "    return a + b"


def run(command: str) -> Call:
    """Return a call that runs a command."""
    return "run", {"command": command}


def edit(old: str, new: str, path: str = "calc.py") -> Call:
    """Return a call that edits a file."""
    return "edit", {"path": path, "old": old, "new": new}


def read(path: str) -> Call:
    """Return a call that reads a file."""
    return "read", {"path": path}


# -- the scenarios -------------------------------------------------------------------------


def plain(agent: Agent) -> None:
    """Commands and edits that succeed and fail, tests that fail and pass."""
    agent.prompt(
        "Fix calc.py and run its tests.",
        Reply("I read the file.", [read("calc.py")], "First I look."),
        Reply("", [run("ls")]),
        Reply("", [run("echo broken >&2; exit 3")]),
        Reply("The tests first.", [run(TESTS)]),
        Reply("", [edit("    return nothing like it", FIX)], "A guess."),
        Reply("", [edit(BUG, FIX)]),
        Reply("Again the tests.", [run(TESTS)]),
        Reply("add is right now."),
    )


#: Commands that fail, and others that only print words of a failure.
FAILING = """exit 1|exit 77|ls /nowhere|cat missing.txt|false|test -f gone
grep -q nothing notes.txt|python3 -c "raise SystemExit(2)"|python3 -c "import nothing_here"
sh -c "exit 9"|git checkout gone|python3 -c "print(1/0)"|no-such-program|cd gone && ls
set -e; false; true"""
FINE = """ls|cat notes.txt|wc -l notes.txt|true|git status --short|head -1 long.txt|sleep 0
echo "error: not really"|echo FAILED|printf "Exit code: 1\\n"|grep -c a notes.txt|test -d .
echo "Process exited with code 7"|echo "Command exited with code 3"|echo "npm ERR! no"
echo "1 failed, 2 passed" >/dev/null|echo "Traceback (most recent call last):"|cat long.txt"""


def exits(agent: Agent) -> None:
    """Commands that fail, and commands that do not, in turns."""
    failing, fine = (text.replace("\n", "|").split("|") for text in (FAILING, FINE))
    wrong = [run(f"{command} #fails {n}") for n in range(4) for command in failing]
    right = [run(f"{command} #{n}") for n in range(4) for command in fine]
    calls = [call for pair in zip(right, wrong, strict=False) for call in pair]
    calls += right[len(wrong) :]
    agent.prompt("Try them all.", *(Reply("", [call]) for call in calls), Reply("Tried."))


def resume(agent: Agent) -> None:
    """A second prompt in a second process."""
    agent.prompt("What is in notes.txt?", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
    agent.prompt(
        "And how many lines?", Reply("", [run("wc -l notes.txt")]), Reply("Two."), resume=True
    )


def parallel(agent: Agent) -> None:
    """Three calls of one response, one of which fails."""
    agent.prompt(
        "Read both files.",
        Reply("Both at once.", [read("calc.py"), read("notes.txt"), run("exit 4")]),
        Reply("Now I know both."),
    )


def secret(agent: Agent) -> None:
    """A key in a result and in an answer."""
    agent.prompt(
        "Which keys are set?", Reply("", [run("cat .env")]), Reply(f"The key is {SECRET}.")
    )


def failing(agent: Agent) -> None:
    """The first request fails."""
    agent.prompt(
        "Say hello.", Reply(error=500), Reply("Hello.", [run("echo hello")]), Reply("Said.")
    )


def interrupted(agent: Agent) -> None:
    """Ctrl-C while a call runs, then a resumed session."""
    agent.prompt("Wait a little.", Reply("I wait.", [run("sleep 30")]), stop=signal.SIGINT)
    agent.prompt("Go on.", Reply("I go on."), resume=True)


def killed(agent: Agent) -> None:
    """The same with a signal that nobody catches."""
    agent.prompt("Wait a little.", Reply("I wait.", [run("sleep 30")]), stop=signal.SIGKILL)
    agent.prompt("Go on.", Reply("", [run("ls")]), Reply("I go on."), resume=True)


def compaction(agent: Agent) -> None:
    """A compaction that the user asks for."""
    with agent.live() as live:
        live.say("Read the long file.", Reply("", [read("long.txt")]), Reply("It is long."))
        live.say("And the notes.", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
        live.compact()
        live.say("Read calc.py.", Reply("", [read("calc.py")]), Reply("It subtracts."))


def full(agent: Agent) -> None:
    """A compaction because the context is full."""
    agent.prompt("Read the notes.", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
    agent.prompt(
        "Read calc.py.",
        Reply("Nearly full.", [read("calc.py")], tokens=agent.of.full),
        Reply("", [run("ls")]),
        Reply("It subtracts."),
        resume=True,
    )


def back(agent: Agent) -> None:
    """The last turn is undone and another one made."""
    with agent.live() as live:
        live.say("Read the notes.", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
        live.say("The wrong way.", Reply("", [run("echo wrong")]), Reply("That was wrong."))
        live.back()
        live.say("The right way.", Reply("", [run("echo right")]), Reply("That was right."))


def fork(agent: Agent) -> None:
    """A fork that lacks the last turn."""
    with agent.live() as live:
        live.say("Read the notes.", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
        live.say("The first way.", Reply("", [run("echo first")]), Reply("That was the first."))
        live.fork()
        live.say("The second way.", Reply("", [run("echo second")]), Reply("The second."))


def denied(agent: Agent) -> None:
    """The user refuses a call."""
    with agent.live() as live:
        live.say(
            "Remove the notes.",
            Reply("I remove them.", [run("rm notes.txt")]),
            Reply("Then I leave them."),
            allow=False,
        )
        live.say("Remove them now.", Reply("", [run("rm notes.txt")]), Reply("They are gone."))


def stopped(agent: Agent) -> None:
    """The user stops a turn of an agent that stays open."""
    with agent.live() as live:
        live.say("Wait a little.", Reply("I wait.", [run("sleep 30")]), stop=True)
        live.say("Go on.", Reply("", [run("ls")]), Reply("I go on."))


def steered(agent: Agent) -> None:
    """A prompt while a call runs."""
    with agent.live() as live:
        live.say(
            "Take your time.",
            Reply("I do.", [run("sleep 2; echo slept")]),
            Reply("", [read("notes.txt")]),
            Reply("Alpha and beta."),
            steer="Read the notes as well.",
        )


def shell(agent: Agent) -> None:
    """A command of the user's own between two turns."""
    with agent.live() as live:
        live.say("Look around.", Reply("", [run("ls")]), Reply("Four files."))
        live.shell("echo by hand; false")
        live.say("What did I do?", Reply("", [run("ls")]), Reply("A command by hand."))


def terminal(agent: Agent) -> None:
    """A call that is refused, a turn undone and a compaction, typed into the terminal."""
    with agent.live(terminal=True) as live:
        live.say("Read the notes.", Reply("", [read("notes.txt")]), Reply("Alpha and beta."))
        live.say("Remove the notes.", Reply("I do.", [run("rm notes.txt")]), allow=False)
        live.say("The wrong way.", Reply("", [read("calc.py")]), Reply("That was wrong."))
        live.back()
        live.say("The right way.", Reply("", [read("calc.py")]), Reply("That was right."))
        live.compact()
        live.say("Once more.", Reply("", [run("ls")]), Reply("That was it."))


def subagent(agent: Agent) -> None:
    """A subagent is given a task."""
    task = {"task": "SUBTASK: count the lines of notes.txt."}
    result = "The notes have two lines."
    last = (
        Reply("", [("report", {"result": result})]) if "report" in agent.of.tools else Reply(result)
    )
    agent.server.sub_replies[:] = [Reply("I count.", [run("wc -l notes.txt")]), last]
    if "task" not in agent.of.tools:
        raise Unreachable("it has no subagents")
    calls = [Reply("", [(name, task)]) for name in agent.of.delegate.split()]
    agent.prompt("Let another agent count.", *calls, Reply("Two lines."))


SCENARIOS = [plain, resume, parallel, secret, failing, interrupted, compaction, full, back, fork]
SCENARIOS += [exits, denied, stopped, steered, shell, killed, terminal, subagent]


# -- the comparison ------------------------------------------------------------------------

#: Calls of the scripts that must be error turns; of tests and removals, the first.
FAILS = ("#fails", "exit 3", "exit 4", "nothing like it", "unittest", "rm notes")
Item = tuple[str, ...]


def heard(body: dict[str, Any]) -> tuple[str, list[Item]]:
    """Read a request: its system prompt, and its texts, calls and results in order."""
    if "contents" in body:
        system = "".join(part["text"] for part in body["systemInstruction"]["parts"])
        items = [item for content in body["contents"] for item in gemini_items(content)]
        return system, items
    messages = body.get("messages") or body["input"]
    messages = [each for each in messages if each.get("type") != "additional_tools"]
    system = body.get("instructions") or ""
    if not system and messages[0]["role"] in ("system", "developer"):
        system, messages = text_of(messages[0]["content"]), messages[1:]
    return system, [item for message in messages for item in message_items(message)]


def text_of(content: Any) -> str:
    """Return the text of a content that may be a list of parts."""
    if isinstance(content, list):
        return "\n".join(part.get("text") or f"({part['type']})" for part in content)
    return content or ""


def gemini_items(content: dict[str, Any]) -> list[Item]:
    """Read a content of generateContent."""
    found: list[Item] = []
    for part in content["parts"]:
        if part.get("thought"):
            continue
        if "functionCall" in part:
            found.append(called(part["functionCall"]["name"], part["functionCall"]["args"]))
        elif "functionResponse" in part:
            given = part["functionResponse"]["response"]
            shown = next(iter(given.values())) if len(given) == 1 else json.dumps(given)
            found.append(("result", shown))
        elif part.get("text"):
            found.append(("assistant" if content["role"] == "model" else "user", part["text"]))
    return found


def called(name: str, arguments: Any) -> Item:
    """Return a call with its arguments in one order."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {"input": arguments}
    return ("call", name.rpartition(".")[2], json.dumps(arguments, sort_keys=True))


def message_items(message: dict[str, Any]) -> list[Item]:
    """Read a message of chat completions or an item of Responses."""
    kind = message.get("type", "message")
    if kind.endswith("_output"):
        shown = message["output"] if "output" in message else json.dumps(message["tools"])
        return [("result", text_of(shown))]
    if kind.endswith("_call"):
        given = message.get("arguments", message.get("input"))
        return [called(message.get("name") or kind.removesuffix("_call"), given)]
    if kind in ("reasoning", "compaction", "configuration_update"):
        return []  # nothing that anybody can read
    if kind == "agent_message":
        parts = [part for part in message["content"] if "text" in part]  # the rest is encrypted
        return [("user", text_of(parts))]
    assert kind == "message", kind
    if message["role"] == "tool":
        return [("result", text_of(message["content"]))]
    role = "assistant" if message["role"] == "assistant" else "user"
    shown = text_of(message["content"])
    found: list[Item] = [(role, shown)] if shown else []
    for call in message.get("tool_calls") or []:
        found.append(called(call["function"]["name"], call["function"]["arguments"]))
    return found


def seen(messages: list[Any]) -> list[Item]:
    """Read the prefix of a state."""
    found: list[Item] = []
    for message in messages:
        for block in message["content"]:
            if block["type"] == "text":
                found.append((message["role"], block["text"]))
            elif block["type"] == "tool_use":
                found.append(called(block["name"], block["input"]))
            else:
                found.append(("result", text_of(block["content"])))
    return found


def normal(items: list[Item]) -> list[Item]:
    """Join adjacent texts of one role; blank lines, white space at ends and secrets are equal."""
    found: list[Item] = []
    for item in items:
        item = tuple(re.sub(rf"{SECRET}|\[SECRET_\w+\]", "[SECRET]", part) for part in item)
        if found and len(item) == 2 and item[0] == found[-1][0] != "result":
            item = (item[0], f"{found.pop()[1]}\n{item[1]}")
        found.append(item)
    return [(*item[:-1], re.sub(r"\n{2,}", "\n", item[-1].strip())) for item in found]


def difference(request: list[Item], state: list[Item]) -> str:
    """Return the first difference in one line; empty if there is none."""
    for at in range(max(len(request), len(state))):
        left, right = (items[at] if at < len(items) else ("nothing",) for items in (request, state))
        if left != right:
            where = next(
                (i for i, (a, b) in enumerate(zip(left[-1], right[-1], strict=False)) if a != b), 0
            )
            where = max(0, where - 30)
            cut = [(*item[:-1], item[-1][where : where + 110]) for item in (left, right)]
            return f"item {at} of {len(request)}: the request has {cut[0]}, the state {cut[1]}"
    return ""


def check(folder: Path) -> list[Any]:
    """Compare the states of one recorded scenario with its requests; return a row."""
    requests, answers = (
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("requests", "answers")
    )
    with tempfile.TemporaryDirectory() as at:
        lake = Lake(at)
        ingest(lake, [folder / "home"])
        states = list(load_states(lake))
        left = str(lake.rows("messages")).count(SECRET) + str(states).count(SECRET)
        unknown = [row["unknown_types"] for row in lake.rows("sessions")]
    notes = [f"{left} secrets left in the lake"] if left else []
    notes += [f"unknown: {each}" for each in unknown if each not in (None, "{}")]
    open_answers = [n for n, answer in enumerate(answers) if answer["kind"] != "side"]
    open_answers = [n for n in open_answers if not answers[n]["error"]]
    total, same, equal, systems, errors = len(open_answers), 0, 0, 0, 0
    once: set[str] = set()
    failing = set()
    for number in open_answers:
        given = json.dumps(answers[number]["calls"])
        for mark in FAILS:
            first = mark not in once or mark.startswith(("exit", "#"))
            if (
                mark in given
                and first
                and (mark != "rm notes" or folder.name in ("denied", "terminal"))
            ):
                once.add(mark)
                failing.add(number)
    for state in sorted(states, key=lambda state: (state.ts or 0, state.n_messages)):
        action = state.action
        made = normal([("assistant", action.text)] if action.text else [])
        made += normal([called(call.name, call.arguments) for call in action.tool_calls])
        prefix = normal(seen(state.messages))
        fits = [n for n in open_answers if answer_items(answers[n]) == made]
        equal += bool(fits)
        if not fits:
            notes.append(f"no answer is {str(made)[:200]}")
            fits = [n for n in open_answers if action.text and answers[n]["text"] == action.text]
        if not fits:
            continue
        found = {n: difference(normal(heard(requests[n])[1]), prefix) for n in fits}
        number = min(fits, key=lambda n: (bool(found[n]), n))
        open_answers.remove(number)
        same += not found[number]
        systems += state.system is not None and normal([("system", state.system)]) == normal(
            [("system", heard(requests[number])[0])]
        )
        if found[number]:
            notes.append(f"request {number} ({state.fidelity}): {found[number]}")
        errors += state.error_kind is not None and number in failing
        stopped = "sleep 30" in json.dumps(answers[number]["calls"])  # either is right
        if (state.error_kind is not None) != (number in failing) and not stopped:
            notes.append(f"request {number}: error_kind {state.error_kind}, {made[-1][-1][:60]}")
    notes += [f"request {n}: no state; {str(answers[n])[:150]}" for n in open_answers]
    row = [len(requests), total, len(states), same, equal, systems, f"{errors}/{len(failing)}"]
    return [*row, notes]


def answer_items(answer: dict[str, Any]) -> list[Item]:
    """Return what the model answered, as the items of an action."""
    text: list[Item] = [("assistant", answer["text"])] if answer["text"] else []
    return normal(text) + normal([called(*call) for call in answer["calls"]])


def compare(out: Path, only: set[str]) -> None:
    """Print a table of all recorded scenarios."""
    names = ["requests", "answers", "states", "prefixes", "actions", "systems", "errors"]
    print(f"{'agent':15}{'scenario':12}" + "".join(f"{name:>9}" for name in names))
    totals: dict[str, list[list[Any]]] = {}
    for file in sorted(out.glob("*/*/requests.jsonl")):
        agent, scenario = file.parts[-3:-1]
        if only <= {agent, scenario}:
            *row, notes = check(file.parent)
            totals.setdefault(agent, []).append(row)
            print(f"{agent:15}{scenario:12}" + "".join(f"{value!s:>9}" for value in row))
            kinds: dict[str, list[str]] = {}
            for note in notes:
                kinds.setdefault(re.sub(r"\d+", "", note), []).append(note)
            for alike in kinds.values():
                more = f" (and {len(alike) - 1} like it)" if alike[1:] else ""
                print(f"    {alike[0]}{more}")
    for agent, rows in totals.items():
        sums = [sum(column) for column in list(zip(*rows, strict=True))[:-1]]
        print(f"{agent:15}{f'all {len(rows)}':12}" + "".join(f"{value:>9}" for value in sums))


def main() -> None:
    """Record or check."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=Path, default=Path("agents"))
    parser.add_argument("--out", type=Path, default=Path("real"))
    parser.add_argument("--only", default="", help="agents or scenarios, separated by commas")
    parser.add_argument("--check", action="store_true", help="compare what is there")
    given = parser.parse_args()
    only = set(filter(None, given.only.split(",")))
    if given.check:
        compare(given.out, only)
        return
    at = programs(given.agents.resolve())
    for kind in AGENTS:
        if kind.name not in at:
            print(f"{kind.name}: not installed in {given.agents}")
            continue
        for scenario in SCENARIOS:
            if only <= {kind.name, scenario.__name__}:
                record(at[kind.name], kind, scenario, given.out)


if __name__ == "__main__":
    main()
