"""Quality and speed of canonical actions and of the vote, beside simpler comparisons.

Measures precision and recall of "same" on the hand-labelled pairs, canonical actions a
second with cold caches, and a vote over many states with three teachers. CPU seconds on one
core. Usage: ``python benchmarks/preferences.py [--corpus DIR] [--states N]``.
"""

import argparse
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers import importable
from shared_corpus import source_files

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed
LABELLED = ROOT / "tests" / "preferences" / "actions" / "labelled"
PEERS = {"bashlex": "0.18"}
SETS = ("development", "held_out", "held_out_second")
SAME = {"L0", "L1"}
PRECISION, RECALL, ACCURACY = 0.98, 0.90, 0.90
ACTIONS_A_SECOND = 20_000
STATES, VOTE_SECONDS, VOTE_MEGABYTES = 100_000, 60.0, 2000.0

Bar = tuple[str, float, float, bool]  # name, measured, bar, higher is better
Judge = Callable[[dict[str, Any]], bool]


# -- simpler comparisons -----------------------------------------------------------


def naive(row: dict[str, Any]) -> bool:
    """Equal text where there are no calls, else equal calls in equal order."""
    a, b = row["a"], row["b"]
    if a["tool_calls"] or b["tool_calls"]:
        return bool(a["tool_calls"] == b["tool_calls"])
    return bool(a["text"] == b["text"])


def bfcl_string(text: str) -> str:
    """``standardize_string`` of the Berkeley Function-Calling Leaderboard's AST checker."""
    return re.sub(r"[ \,\.\/\-\_\*\^]", "", text).lower().replace("'", '"')


def bfcl(row: dict[str, Any]) -> bool:
    """Equal names and standardised arguments, calls matched without order."""

    def plain(value: Any) -> Any:
        if isinstance(value, str):
            return bfcl_string(value)
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return value

    def side(action: dict[str, Any]) -> Any:
        if not action["tool_calls"]:
            return bfcl_string(action["text"])
        calls = [[c["name"], plain(c["arguments"])] for c in action["tool_calls"]]
        return sorted(json.dumps(call, sort_keys=True) for call in calls)

    return bool(side(row["a"]) == side(row["b"]))


def bashlex_form(command: str) -> str | None:
    """The syntax tree of a command without positions; ``None`` where bashlex fails."""
    import bashlex

    def shape(node: Any) -> Any:
        parts = [shape(n) for n in [*getattr(node, "parts", []), *getattr(node, "list", [])]]
        values = [getattr(node, key, None) for key in ("word", "op", "pipe", "type", "input")]
        output = getattr(node, "output", None)
        output = shape(output) if hasattr(output, "kind") else output
        return [node.kind, [str(v) for v in values if v is not None], str(output), parts]

    try:
        return json.dumps([shape(node) for node in bashlex.parse(command)])
    except Exception:  # noqa: BLE001 - it raises many kinds, also AttributeError and IndexError
        return None


def bashlex_same(row: dict[str, Any]) -> bool:
    """Equal trees for Bash, JSON equality without cosmetic arguments for the rest."""

    def side(action: dict[str, Any]) -> Any:
        if not action["tool_calls"]:
            return action["text"].strip()
        found = []
        for call in action["tool_calls"]:
            args = {
                k: v for k, v in call["arguments"].items() if k not in ("description", "timeout")
            }
            if call["name"] == "Bash":
                command = str(args.get("command"))
                args["command"] = bashlex_form(command) or command
            found.append(json.dumps([call["name"], args], sort_keys=True))
        return sorted(found)

    return bool(side(row["a"]) == side(row["b"]))


# -- the labelled pairs ------------------------------------------------------------


@dataclass
class Score:
    """Counts of one comparison on one set of pairs."""

    said: int = 0
    true: int = 0
    hits: int = 0
    pairs: int = 0
    levels: int = 0
    false_mutating: int = 0
    misses: list[str] = field(default_factory=list)

    @property
    def precision(self) -> float:
        """Share of what was called the same that is."""
        return self.hits / self.said if self.said else 1.0

    @property
    def recall(self) -> float:
        """Share of what is the same that was called so."""
        return self.hits / self.true if self.true else 1.0


def labelled(name: str) -> list[dict[str, Any]]:
    """Return the pairs of one file that have one reading."""
    lines = (LABELLED / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if not row.get("stretch")]


def score(rows: list[dict[str, Any]], judge: Judge | None) -> Score:
    """Score a comparison; ours (levels too) where ``judge`` is ``None``."""
    from composer_pipeline.preferences.vote_rows import compare

    total = Score()
    for row in rows:
        want = row["level"]
        if judge is None:
            got = compare({key: row[key] for key in ("a", "b", "cwd", "home", "context")})["level"]
            total.levels += got == want or {got, want} <= SAME
            if (got in SAME) != (want in SAME):
                total.misses.append(f"{want} taken for {got}: {row['reason']}")
            said = got in SAME
        else:
            said = judge(row)
        same = want in SAME
        total.pairs += 1
        total.said += said
        total.true += same
        total.hits += said and same
        total.false_mutating += said and not same and bool(row["mutating"])
    return total


def quality() -> list[Bar]:
    """Print the table of all comparisons and return the bars of ours."""
    judges: dict[str, Judge | None] = {
        "ours (L0 or L1)": None,
        "string equality": naive,
        "BFCL standardisation": bfcl,
        f"bashlex {version('bashlex')}": bashlex_same,
    }
    sets = {name: labelled(name) for name in SETS}
    sets["all"] = [row for name in SETS for row in sets[name]]
    bars: list[Bar] = []
    for name, rows in sets.items():
        print(f"\nlabelled pairs, {name}: {len(rows)} (two-way readings left out)")
        print(f"{'':24} precision  recall  level  false same on mutating")
        for label, judge in judges.items():
            found = score(rows, judge)
            levels = f"{found.levels / found.pairs:6.3f}" if judge is None else "     -"
            print(
                f"{label:24} {found.precision:9.3f} {found.recall:7.3f} {levels}"
                f"  {found.false_mutating}"
            )
            if judge is not None:
                continue
            for miss in found.misses:
                print(f"    {miss}")
            if name != "all":
                bars += [
                    (f"precision of same, {name}", found.precision, PRECISION, True),
                    (f"recall of same, {name}", found.recall, RECALL, True),
                    (f"accuracy of the level, {name}", found.levels / found.pairs, ACCURACY, True),
                    (f"false same on mutating, {name}", float(found.false_mutating), 0.0, False),
                ]
    return bars


# -- speed -------------------------------------------------------------------------


def recorded_calls(folder: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (cwd, tool, arguments) of every tool call in session files."""
    for file in sorted(folder.rglob("*.jsonl")):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if '"tool_use"' not in line:
                continue
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            message = record.get("message") if isinstance(record, dict) else None
            content = message.get("content") if isinstance(message, dict) else None
            for block in content if isinstance(content, list) else ():
                if (
                    isinstance(block, dict)
                    and block.get("type") == "tool_use"
                    and isinstance(block.get("input"), dict)
                ):
                    yield str(record.get("cwd") or ""), str(block["name"]), block["input"]


def forget() -> None:
    """Empty every cache that depends on an input."""
    from composer_pipeline.preferences.actions import shell_meaning, shell_parse

    for function in (shell_meaning.effective, shell_meaning.canonical_line, shell_parse.parse):
        function.cache_clear()


def canonical_speed(calls: list[tuple[str, str, dict[str, Any]]]) -> tuple[float, int]:
    """Return canonical actions a CPU second, best of five with cold caches, and how many."""
    from composer_pipeline.actions import Action, ToolCall
    from composer_pipeline.preferences.actions.canonical import canonical
    from composer_pipeline.preferences.actions.shell_parse import Place
    from composer_pipeline.preferences.vote import home_of

    distinct = {
        json.dumps([name, args], sort_keys=True): (
            Action("", (ToolCall(name, args),)),
            Place(cwd, home_of(cwd)),
        )
        for cwd, name, args in calls
    }
    best = float("inf")
    for _ in range(5):
        forget()
        start = time.process_time()
        for action, place in distinct.values():
            canonical(action, place)
        best = min(best, time.process_time() - start)
    return len(distinct) / best, len(distinct)


def seconds_each(function: Callable[[str], object], commands: list[str]) -> float:
    """Return CPU microseconds a command."""
    start = time.process_time()
    for command in commands:
        function(command)
    return (time.process_time() - start) / len(commands) * 1e6


def speed(calls: list[tuple[str, str, dict[str, Any]]], what: str) -> list[Bar]:
    """Print the speeds and return their bars."""
    from composer_pipeline.preferences.actions import shell_meaning, shell_parse

    pairs = [row for name in SETS for row in labelled(name)]
    of_pairs = [
        (row["cwd"], call["name"], call["arguments"])
        for row in pairs
        for side in "ab"
        for call in row[side]["tool_calls"]
    ]
    bars: list[Bar] = []
    print("\ncanonical actions, distinct inputs, cold caches, best of 5")
    for label, found in ((what, calls), ("the labelled pairs", of_pairs)):
        rate, distinct = canonical_speed(found)
        share = sum(name == "Bash" for _, name, _ in found) / len(found)
        print(f"{label:48} {rate:9,.0f} /s  ({distinct:,} actions, {share:.0%} Bash)")
        bars.append((f"canonical actions/s, {label}", rate, ACTIONS_A_SECOND, True))
    commands = sorted({str(args.get("command")) for _, name, args in calls if name == "Bash"})
    place = shell_parse.Place("/home/user/project", "/home/user")
    parser = shell_parse._parser()
    forget()
    ours = seconds_each(lambda c: shell_meaning.canonical_line(c, place), commands)
    floor = seconds_each(lambda c: parser.parse(c.encode("utf-8", "surrogatepass")), commands)
    peer = seconds_each(bashlex_form, commands)
    failed = sum(bashlex_form(command) is None for command in commands)
    unread = sum(not shell_parse.parse(command).parsed for command in commands)
    print(f"\n{len(commands):,} distinct commands of {what}")
    print(f"{'ours: whole canonical form':36} {ours:7.1f} us  fails on {unread}")
    print(f"{'tree-sitter alone, tree not read':36} {floor:7.1f} us")
    print(
        f"{'bashlex ' + version('bashlex') + ': parse':36} {peer:7.1f} us  fails on {failed}"
        f"  ({peer / ours:.1f} x ours)"
    )
    return bars


# -- the vote ----------------------------------------------------------------------


def prefix(path: str, text: str) -> list[dict[str, Any]]:
    """Return a talk of 43 messages in which a file is read and 20 commands are run."""
    use = {"type": "tool_use", "id": "r", "name": "Read", "input": {"file_path": path}}
    numbered = "\n".join(f"{n:6}→{line}" for n, line in enumerate(text.split("\n"), start=1))
    talk: list[dict[str, Any]] = [
        {"role": "user", "content": "Please fix the totals in the cart and run the tests."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "r",
                                      "content": numbered}]},
    ]  # fmt: skip
    for n in range(20):
        run = {"type": "tool_use", "id": f"b{n}", "name": "Bash", "input": {"command": "pytest -q"}}
        talk.append({"role": "assistant", "content": [run]})
        talk.append(
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": f"b{n}", "content": "ok"}],
            }
        )
    return talk


def synthetic_states(count: int) -> Iterator[tuple[Any, list[Any]]]:
    """Yield states with three teachers' replies, made of the labelled pairs."""
    from composer_pipeline.actions import Action, ToolCall
    from composer_pipeline.preferences.eligibility import Reply
    from tests.fixtures.states import made_state

    def made(side: dict[str, Any], name: str) -> Any:
        text = json.dumps(side).replace("/home/ana/shop", name)
        data = json.loads(text)
        calls = tuple(ToolCall(c["name"], c["arguments"]) for c in data["tool_calls"])
        return Action(data["text"], calls)

    rows = [row for name in SETS for row in labelled(name)]
    pattern = ("aba", "bba", "bbb", "bbx", "xxb", "bxy", "aab", "xbb")
    for n in range(count):
        row, other, third = (rows[(n * k + s) % len(rows)] for k, s in ((1, 0), (7, 3), (11, 5)))
        cwd = f"/home/ana/shop{n}"
        sides = {"a": row["a"], "b": row["b"], "x": other["a"], "y": third["b"]}
        replies = [
            Reply(f"t{i}", f"family{i}", f"m{i}", made(sides[letter], cwd), 100, 10 * i)
            for i, letter in enumerate(pattern[n % len(pattern)])
        ]
        context = row["context"] or {}
        path, text = next(iter(context.items()), ("/home/ana/shop/lib.py", "x = 1\ny = 2"))
        messages = prefix(path.replace("/home/ana/shop", cwd), text)
        state = made_state(
            action=made(row["a"], cwd), messages=messages, cwd=cwd, model="claude-sonnet-4-5"
        )
        yield state, replies


def vote_run(count: int) -> dict[str, Any]:
    """Vote on ``count`` states with cold caches for each; return seconds, memory, tiers."""
    from composer_pipeline.preferences.vote import vote

    tiers: Counter[str] = Counter()
    winners = 0
    spent = 0.0
    batch: list[tuple[Any, list[Any]]] = []
    states = synthetic_states(count)
    done = 0
    while done < count:
        batch = [pair for _, pair in zip(range(min(1000, count - done)), states, strict=False)]
        start = time.process_time()
        for state, replies in batch:
            forget()
            outcome = vote(state, replies)
            tiers[outcome.tier] += 1
            winners += outcome.winner is not None
        spent += time.process_time() - start
        done += len(batch)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": spent, "peak_mb": peak, "tiers": dict(tiers), "winners": winners}


def agreement(count: int) -> list[Bar]:
    """Run the vote in a process of its own, print it and return its bars."""
    command = [sys.executable, str(Path(__file__).resolve()), "--child", str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    seconds = found["seconds"]
    print(f"\nvote: {count:,} states x 3 teachers, caches emptied before each state")
    print(f"{'CPU seconds':24} {seconds:8.1f}   ({seconds / count * 1e6:.0f} us a state)")
    print(f"{'peak memory':24} {found['peak_mb']:8.0f} MB")
    print(f"{'states with a winner':24} {found['winners']:8,}   tiers {found['tiers']}")
    return [
        ("CPU seconds of 100,000 votes", seconds / count * STATES, VOTE_SECONDS, False),
        ("MB of the vote", found["peak_mb"], VOTE_MEGABYTES, False),
    ]


def main() -> int:
    """Measure and print; return 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corpus", type=Path, help="folder of session files")
    parser.add_argument("--states", type=int, default=STATES)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(vote_run(options.child)))
        return 0
    importable(PEERS)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    versions = ", ".join(f"{name} {version(name)}" for name in ("tree-sitter-bash", "bashlex"))
    print(f"{platform.machine()}, Python {platform.python_version()}, one core; {versions}")
    bars = quality()
    folder, what = source_files(options.corpus)
    bars += speed(list(recorded_calls(folder)), what)
    bars += agreement(options.states)
    return verdict(bars)


def verdict(bars: list[Bar]) -> int:
    """Print the bars and the worst of them; return 1 where one is missed."""
    print()
    ratios: list[tuple[float, str]] = []
    for name, measured, bar, higher in bars:
        # A bar of zero that is kept leaves no ratio.
        ratio = measured / bar if higher else bar / measured if measured else float("inf")
        word = "met" if ratio >= 1 else "MISSED"
        sign = ">=" if higher else "<="
        print(f"{name:56} {measured:12,.3f}  bar {sign} {bar:,g}: {word}")
        ratios.append((ratio, f"{name} is {measured:,.3f} (bar {sign} {bar:,g})"))
    worst, sentence = min(ratios)
    verb = "met" if worst >= 1 else "MISSED"
    print(f"\nworst ratio: {worst:.2f} of its bar: {sentence}: {verb}")
    return 0 if worst >= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
