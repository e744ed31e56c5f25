"""How often two models do the same: ``python -m examples.compare_two_models [A B]``.

Asks two of the teachers of ``recipes/teachers/demo.yaml`` about the bundled sessions, on a
loopback server, without a key. One sees on how many states they did the same, by level of
agreement (L0 the same words … L4 the same class, none), how often each did as the recorded
agent, and what each cost.
"""

import sys
from collections import Counter
from decimal import Decimal
from tempfile import TemporaryDirectory
from typing import Any

from composer_pipeline import Action, Lake, TeacherSet, compare, ingest, load_states, replay
from composer_pipeline.testing.samples import sample_sessions_dir
from examples.demo.profile import loopback


def as_json(action: Action) -> dict[str, Any]:
    """Return an action as ``compare`` takes it."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in action.tool_calls]
    return {"text": action.text, "tool_calls": calls}


def main(first: str, second: str) -> None:
    """Buy both models' replies and compare them state by state."""
    with TemporaryDirectory() as folder, loopback():
        lake = Lake(folder)
        ingest(lake, [sample_sessions_dir()])
        teachers = TeacherSet.load("recipes/teachers/demo.yaml")
        report = replay(lake, teachers, max_usd=Decimal(1), teachers=[first, second])
        replies = {
            (row["state_id"], row["teacher"]): Action.from_json(row["action"])
            for row in lake.rows("replies", columns=["state_id", "action"])
            if row["action"] is not None
        }
        levels: dict[str, Counter[str]] = {}
        for state in load_states(lake):
            did = {name: replies.get((state.state_id, name)) for name in (first, second)}
            sides = {"the agent": state.action, **did}
            for a, b in ((first, second), (first, "the agent"), (second, "the agent")):
                one, other = sides[a], sides[b]
                if one is not None and other is not None:
                    line = {"a": as_json(one), "b": as_json(other), "cwd": state.cwd}
                    found = levels.setdefault(f"{a} and {b}", Counter())
                    found[compare(line)["level"]] += 1
        for pair, found in levels.items():
            print(f"{pair}:", ", ".join(f"{level} {n}" for level, n in sorted(found.items())))
        for name, figures in report.by_teacher.items():
            usd = Decimal(figures.cost_picodollars) / 10**12
            print(f"{name}: {figures.replies} replies for {usd:.6f} USD (simulated)")


if __name__ == "__main__":
    main(*sys.argv[1:3] or ["careful", "contrarian"])
