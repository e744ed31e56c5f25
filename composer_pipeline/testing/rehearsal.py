"""A rehearsal: simulated teachers answer from a lake's own sessions, and the truth is kept aside.

Of each state a seed decides what was right: what the session itself shows as the fix; in a drawn
share of the others what a neighbouring state did; else what the agent did.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, TextIO

import orjson

from composer_pipeline.actions import PATH_ARGUMENTS, Action, ToolCall
from composer_pipeline.chat.convert import GrowingChain, wire_messages
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.pairs import own_fixes
from composer_pipeline.states.load import WholeSession, whole_sessions
from composer_pipeline.states.state import TraceState
from composer_pipeline.teachers.questions import BYTES_PER_TOKEN, Cutter
from composer_pipeline.teachers.teachers import Teacher
from composer_pipeline.testing.personas import PersonaName, Script, prefix_key

#: Share of the states without a fix of their own in which a neighbour's action is the right one.
BETTER_SHARE = 0.1
#: What a teacher gives -> the bounds between which its family's weight is drawn. Teachers share one
#: ``mistake`` at a state. What a state does not have is replaced by the recorded action.
WEIGHTS = {
    "better": (0.36, 0.52), "recorded": (0.10, 0.14), "mistake": (0.05, 0.10),
    "near_miss": (0.12, 0.18), "neighbour": (0.08, 0.14), "prose": (0.03, 0.06),
}  # fmt: skip
#: Added to the weight of the recorded action for a control, the agent's own model.
_CONTROL = 4.0
_PROSE = (
    "Before I go on with `{}`, should it be done this way at all?",
    "I can't help with `{}`.",
    "Nothing is left to do about `{}`.",
)


class Rehearsal(Script):
    """Answers states outside the script from the lake, and writes a line for each to ``truth``.

    A line has ``state_id``, ``teacher``, ``family``; ``gave``, a key of :data:`WEIGHTS`;
    ``source`` of the better action: ``fixup``, ``recovery``, ``drawn`` or empty; and ``right``.
    What is asked again has the same line again.
    """

    def __init__(
        self, script: Script, lake: Lake, teachers: Sequence[Teacher], truth: TextIO, seed: int = 0
    ) -> None:
        super().__init__(script.entries)
        self._lake, self._truth, self._seed = lake, truth, seed
        self._teachers = {teacher.name: teacher for teacher in teachers}
        #: Sessions by their name on the wire, read when they are first asked about.
        self._unread: dict[str, list[tuple[str, str]]] = {}
        #: (session, prefix) -> state, source and the actions that can be given.
        self._known: dict[tuple[str, str], tuple[str, str, dict[str, list[Action]]]] = {}
        rows = lake.select("SELECT session_id, day, count(*) AS n FROM states GROUP BY ALL")
        for row in rows:
            name = hashlib.sha256(row["session_id"].encode()).hexdigest()[:32]
            self._unread.setdefault(name, []).append((row["day"], row["session_id"]))
        self.states = sum(row["n"] for row in rows)

    def outside(self, persona: PersonaName, body: Mapping[str, Any], key: str) -> Action:
        """Return a teacher's answer about a state of the lake, else the generic one."""
        name, _, teacher = str(body.get("session_id")).partition("-")
        for day, session_id in self._unread.pop(name, ()):
            tools = len(orjson.dumps(body.get("tools") or []))
            windows = {who.window for who in self._teachers.values() if who.window}
            rooms = [window * BYTES_PER_TOKEN - tools for window in windows]
            for session in whole_sessions(self._lake, days=[day], sessions=[session_id]):
                self._read(name, session, rooms)
        if (name, key) not in self._known or teacher not in self._teachers:
            return super().outside(persona, body, key)
        return self._answer(*self._known[name, key], self._teachers[teacher])

    def _read(self, name: str, session: WholeSession, rooms: Sequence[int]) -> None:
        """Decide about each state of a session what was right and what is a common mistake.

        ``rooms`` are bytes to which teachers' windows cut the messages.
        """
        fixes = {s.state_id: (fix, why["source"]) for s, fix, why in own_fixes(session.states)}
        for paths in session.paths.values():
            prefixes: dict[str, list[str]] = {}
            cutter = Cutter()
            for path in paths:
                chain = GrowingChain()
                for state in path.states:
                    messages, _ = chain.at(state)
                    wire = wire_messages(messages)
                    size = len(orjson.dumps(wire))
                    cuts = (cutter.cut(messages, room) or [] for room in rooms if size > room)
                    prefixes[state.state_id] = [
                        prefix_key(wire),
                        *(prefix_key(wire_messages(cut)) for cut in cuts),
                    ]
            states = [state for path in paths for state in path.states]
            states.sort(key=lambda state: (str(state.ts or ""), state.n_messages))
            calls = [call for state in states for call in state.action.tool_calls]
            given = (call.arguments.get(name) for call in calls for name in PATH_ARGUMENTS)
            files = sorted({file for file in given if isinstance(file, str)})
            for at, state in enumerate(states):
                around = states[max(0, at - 2) : at + 3]
                found = self._pools(state, around, files, *fixes.get(state.state_id, (None, "")))
                for key in prefixes[state.state_id]:
                    self._known.setdefault((name, key), found)

    def _pools(
        self, state: TraceState, around: Sequence[TraceState], files: Sequence[str],
        better: Action | None, source: str,
    ) -> tuple[str, str, dict[str, list[Action]]]:  # fmt: skip
        draw = self._draw(state.state_id)
        own = Action("", state.action.tool_calls).words()
        near = [Action("", other.action.tool_calls) for other in around]
        near = [action for action in near if action.words() not in ("", own)]
        if better is None and near and draw.random() < BETTER_SHARE:
            better, source = draw.choice(near), "drawn"
        misses = [near_miss(state.action, files, draw) for _ in range(4)]
        pools = {
            "recorded": [state.action],
            "better": [better] if better else [],
            "near_miss": [action for action in misses if action],
            "neighbour": near,
            "prose": [Action(text.format(" ".join(own.split())[:80])) for text in _PROSE],
        }
        wrong = [a for a in (*pools["near_miss"], *near) if a not in pools["better"]]
        pools["mistake"] = [draw.choice(wrong)] if wrong else []
        return state.state_id, source, pools

    def _answer(
        self, state_id: str, source: str, pools: Mapping[str, list[Action]], teacher: Teacher
    ) -> Action:
        of_family, draw = self._draw(teacher.family), self._draw(state_id, teacher.name)
        weights = {name: of_family.uniform(*bounds) for name, bounds in WEIGHTS.items()}
        weights["recorded"] += _CONTROL * teacher.control
        (gave,) = draw.choices(list(weights), list(weights.values()))
        gave = gave if pools[gave] else "recorded"
        action = draw.choice(pools[gave])
        gave = "better" if action in pools["better"] else gave
        row = {"state_id": state_id, "teacher": teacher.name, "family": teacher.family}
        right = gave == ("better" if pools["better"] else "recorded")
        line = json.dumps(row | {"gave": gave, "source": source, "right": right})
        self._truth.write(f"{line}\n")
        self._truth.flush()
        return action

    def _draw(self, *of: str) -> Random:
        return Random("\n".join([str(self._seed), *of]))  # noqa: S311


def near_miss(action: Action, files: Sequence[str], draw: Random) -> Action | None:
    """Return the action with an argument of its first call changed; ``None`` if none can be."""
    changes: list[dict[str, Any]] = []
    for call in action.tool_calls[:1]:
        for name, value in call.arguments.items():
            if name in PATH_ARGUMENTS and (others := [file for file in files if file != value]):
                changes.append({name: draw.choice(others)})
            elif name == "command" and "\n" not in str(value):
                changes.append({name: f"{value} | tail -{draw.randrange(3, 90)}"})
            elif isinstance(value, str) and (less := value.rstrip().rpartition("\n")[0]):
                changes.append({name: less})
        if call.name == "Read":
            changes.append({"offset": draw.randrange(2, 400), "limit": draw.randrange(20, 150)})
        if changes:
            changed = ToolCall(call.name, call.arguments | draw.choice(changes))
            return Action(action.text, (changed, *action.tool_calls[1:]))
    return None
