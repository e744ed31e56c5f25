"""Whom to ask first: how much of what the agent got wrong a little money finds, and the plan.

    python benchmarks/questions.py [--record] [FOLDER]

FOLDER holds session files (default: the shared corpus, else that part is left out). No teacher is
asked where the truth is known: these are orders of states and costs of votes. Prints Markdown, and
the bars; ``--record`` writes it to ``benchmarks/results/questions.md``. Exits 1 where a bar is
missed. No text of a session is printed.
"""

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from shared_corpus import source_files  # noqa: E402

from composer_pipeline import ingest  # noqa: E402
from composer_pipeline.lake.store import Lake  # noqa: E402
from composer_pipeline.preferences.vote import VoteDecision  # noqa: E402
from composer_pipeline.settings import recipes_dir  # noqa: E402
from composer_pipeline.states.load import load_states, whole_sessions  # noqa: E402
from composer_pipeline.states.state import TraceState  # noqa: E402
from composer_pipeline.teachers.plan import plan, selector_for  # noqa: E402
from composer_pipeline.teachers.plan_model import SessionOutline, typical_prices  # noqa: E402
from composer_pipeline.teachers.questions import BYTES_PER_TOKEN, Questions  # noqa: E402
from composer_pipeline.teachers.run import replay  # noqa: E402
from composer_pipeline.teachers.selection import (  # noqa: E402
    Asking,
    Price,
    ask_order,
    by_day,
    choose,
    vote_usd,
)
from composer_pipeline.teachers.teachers import Teacher, TeacherSet  # noqa: E402
from composer_pipeline.teachers.value import (  # noqa: E402
    BASE,
    SPREAD,
    WEIGHTS,
    PairModel,
    features,
    fit,
    prompt_bytes,
)
from composer_pipeline.testing.openrouter.command import (  # noqa: E402
    KEY_VARIABLE,
    models_of,
    write_rehearsal,
)
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter  # noqa: E402
from composer_pipeline.testing.personas import Script  # noqa: E402
from composer_pipeline.testing.rehearsal import Rehearsal  # noqa: E402
from composer_pipeline.testing.samples import answers, sample_sessions_dir  # noqa: E402
from examples.proof.toolworld.world import (  # noqa: E402
    sessions,
    training_random,
    write_files,
    write_session,
)
from tests.teachers.worlds import asked_until  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "questions.md"
DEFAULT = recipes_dir() / "teachers" / "default.yaml"
#: Share of the full cost -> the least share of the wrong states that should be asked for it.
BARS = {0.02: 0.60, 0.05: 0.80}
BAR_PER_DOLLAR, BAR_BILL, BAR_PLAN_S, BAR_COVERED = 5.0, 0.10, 20.0, (0.93, 0.97)
SEEDS = 20
TOOLWORLD_SESSIONS = 400
#: States of each set of days that the engine really asks about.
ASKED_STATES = 300
#: States of a simulated lake -> how many such lakes.
WORLDS = {360: 1000, 1440: 200}
#: Share of the states about which the first, second, ... family is asked with ``curtail: exact``,
#: as measured in the part of plan and bill: of five, two that agree can still be outvoted.
EXACT = (1.0, 1.0, 1.0, 0.64, 0.17)
#: The weights and groups of states before value per dollar (c732b079).
FORMER = {
    "corrected": 4.0, "reverted": 4.0, "caused": 3.0, "failed": 3.0, "tests_failed": 3.0,
    "interrupted": 2.0, "repeated": 2.0, "edits": 1.0,
}  # fmt: skip
GROUPS = 4

lines: list[str] = []
bars: list[tuple[str, bool]] = []


def say(text: str = "") -> None:
    """Print a line, and keep it for the record."""
    print(text, flush=True)
    lines.append(text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table."""
    say()
    for row in (head, ["---"] * len(head), *rows):
        say(f"| {' | '.join(row)} |")
    say()


def hold(name: str, *, held: bool) -> None:
    """Note whether a bar holds."""
    bars.append((name, held))


@dataclass
class World:
    """States, which of them the agent got wrong, and what asking about each costs."""

    name: str
    states: list[TraceState]
    #: What is counted -> its states; the first is what weights are fitted on.
    wrong: dict[str, set[str]]
    teachers: TeacherSet
    #: Bytes of the bodies that would be sent, (windowed, in full).
    sent: dict[str, tuple[int, int]]
    sizes: dict[str, int] = field(init=False)
    found: dict[str, frozenset[str]] = field(init=False)
    chosen: list[TraceState] = field(init=False)

    def __post_init__(self) -> None:
        """Read what the orders need of each state, once."""
        self.sizes = prompt_bytes(self.states)
        self.found = {s.state_id: features(s) for s in self.states}
        self.chosen = choose(self.states, self.teachers.selection)[0]

    def unruled(self) -> "World":
        """Return the same world where no rule leaves a state out."""
        every = replace(self)
        every.chosen = self.states
        return every

    def vote(self, *, full: bool, sent: bool = False, exact: bool = False) -> dict[str, float]:
        """Return what a vote on each state costs.

        By its messages or by the bodies as ``sent``; two families, or as many as ``exact`` asks.
        """
        teachers, prices = priced(self.teachers.teachers, full=full)
        decide = VoteDecision()
        sizes = {s: pair[full] for s, pair in self.sent.items()} if sent else self.sizes
        if exact:
            asked = list(zip(teachers, EXACT, strict=True))
            return {
                s: sum(share * vote_usd(size, [t], decide, prices, "student") for t, share in asked)
                for s, size in sizes.items()
            }
        return {s: vote_usd(size, teachers, decide, prices, "student") for s, size in sizes.items()}

    def everything(self, *, full: bool, sent: bool = False) -> float:
        """Return what asking every teacher about every state costs."""
        teachers, prices = priced(self.teachers.teachers, full=full)
        sizes = [pair[full] for pair in self.sent.values()] if sent else self.sizes.values()
        return sum(
            vote_usd(n, [t], VoteDecision(), prices, "student") for n in sizes for t in teachers
        )


def priced(teachers: Sequence[Teacher], *, full: bool) -> tuple[list[Teacher], dict[str, Price]]:
    """Return the teachers as they are asked, and the typical prices up to each cap."""
    prices: dict[str, Price] = {}
    for teacher in teachers:
        listed, cap = typical_prices()[1][teacher.model], teacher.max_price
        prompt, completion = listed.of("prompt"), listed.of("completion")
        prices[teacher.name] = (
            min(prompt, cap.prompt) / 1_000_000,
            min(completion, cap.completion) / 1_000_000,
        )
    update = {"prompt": "full"} if full else {}
    by_name = {t.name: t.model_copy(update=update) for t in teachers}
    return [by_name[name] for name in ask_order(teachers, prices)], prices


def half_of(session_id: str) -> int:
    """Return 0 or 1 for a session, by hash."""
    return blake2b(session_id.encode(), digest_size=1).digest()[0] & 1


def fitted(world: World) -> dict[str, float]:
    """Return the chance of each state, by the weights of the other half of the sessions."""
    wrong = next(iter(world.wrong.values()))
    models = []
    for half in (0, 1):
        votes: dict[frozenset[str], tuple[int, int]] = {}
        for state in world.states:
            if half_of(state.session_id) == half:
                number, pairs = votes.get(kind := world.found[state.state_id], (0, 0))
                votes[kind] = number + 1, pairs + (state.state_id in wrong)
        models.append(fit(votes))
    return {
        s.state_id: models[1 - half_of(s.session_id)].chance(world.found[s.state_id])
        for s in world.states
    }


def in_days(states: Sequence[TraceState]) -> list[TraceState]:
    """Return the states day by day, a session's states together."""
    when = {s.state_id: ts.timestamp() if (ts := s.ts) else 0.0 for s in states}
    first: dict[str, float] = {}
    for state in states:
        at = when[state.state_id]
        first[state.session_id] = min(at, first.get(state.session_id, at))

    def place(state: TraceState) -> tuple[Any, ...]:
        own = when[state.state_id], state.n_messages, state.state_id
        return first[state.session_id], state.session_id, *own

    return [s for day in by_day(states, "oldest") for s in sorted(day, key=place)]


def grouped(world: World) -> list[TraceState]:
    """Return the order before value per dollar: sessions by their mean value, in quarters."""
    groups: dict[str, list[TraceState]] = {}
    for state in in_days(world.chosen):
        groups.setdefault(state.session_id, []).append(state)

    def mean(states: list[TraceState]) -> float:
        return sum(FORMER[n] for s in states for n in world.found[s.state_id]) / len(states)

    ranked = sorted(groups.values(), key=lambda g: (-mean(g), g[0].session_id))
    size = max(1, -(-len(ranked) // GROUPS))
    quarters = [
        [state for session in ranked[at : at + size] for state in session]
        for at in range(0, len(ranked), size)
    ]
    return [state for quarter in quarters for state in in_days(quarter)]


def orders_of(world: World, wrong: set[str]) -> dict[str, tuple[list[list[TraceState]], bool]]:
    """Return name -> (orders to take the mean of, whether prompts are sent in full)."""
    usd, chosen = world.vote(full=False), world.chosen
    hand = {s: PairModel().chance(found) for s, found in world.found.items()}
    best = sorted(chosen, key=lambda s: (s.state_id not in wrong, usd[s.state_id]))
    return {
        "random": ([random.Random(n).sample(chosen, len(chosen)) for n in range(SEEDS)], False),
        "day order, full prompts": ([in_days(chosen)], True),
        "day order": ([in_days(chosen)], False),
        "former grouping": ([grouped(world)], False),
        "value per dollar, hand-set": ([Asking.by_value(chosen, hand, usd).states], False),
        "value per dollar, fitted": ([Asking.by_value(chosen, fitted(world), usd).states], False),
        "(who knows the truth)": ([best], False),
    }


def bought(order: Sequence[TraceState], usd: Mapping[str, float], most: float) -> tuple[int, float]:
    """Return how many states of an order an amount pays for, and what they cost."""
    spent = 0.0
    for at, state in enumerate(order):
        if spent + usd[state.state_id] > most:
            return at, spent
        spent += usd[state.state_id]
    return len(order), spent


def measure(
    world: World, what: str, *, sent: bool = False, exact: bool = False
) -> dict[str, list[float]]:
    """Return order -> shares of the wrong asked at each budget, then two figures at the first.

    These are the wrong states per USD and the share of the asked that are wrong.
    """
    wrong = world.wrong[what]
    full, cut = (world.everything(full=x, sent=sent) for x in (True, False))
    budgets = [share * cost for cost in (full, cut) for share in BARS]
    usd = {way: world.vote(full=way, sent=sent, exact=exact) for way in (True, False)}
    found: dict[str, list[float]] = {}
    for name, (orders, way) in orders_of(world, wrong).items():
        rows = []
        for order in orders:
            cells, more = [], []
            for most in budgets:
                number, spent = bought(order, usd[way], most)
                hits = sum(s.state_id in wrong for s in order[:number])
                cells.append(hits / len(wrong))
                more += [hits / spent, hits / number] if number else [0.0, 0.0]
            rows.append([*cells, *more[:2]])
        found[name] = [float(x) for x in np.mean(rows, axis=0)]
    return found


def score(world: World) -> None:
    """Print a world's tables, and hold its bars."""
    full, cut = world.everything(full=True), world.everything(full=False)
    votes = {way: sum(world.vote(full=way).values()) for way in (True, False)}
    limits = {t.name: t.context_length for t in world.teachers.teachers}
    beyond = sum(n / BYTES_PER_TOKEN > min(limits.values()) for n in world.sizes.values())
    shortened = sum(
        n / BYTES_PER_TOKEN > (t.window or n) for n in world.sizes.values()
        for t in world.teachers.teachers[:1]
    )  # fmt: skip
    say(f"### {world.name}")
    say()
    say(
        f"{len(world.states)} states in {len({s.session_id for s in world.states})} sessions,"
        f" {len(world.chosen)} after the rules of `skip`. Everything: ${full:.2f} in full,"
        f" ${cut:.2f} in windows ({shortened} prompts are longer than one; {beyond} longer than the"
        f" shortest context); one vote on every state: ${votes[True]:.2f} and ${votes[False]:.2f}."
    )
    kept = {s.state_id for s in world.chosen}
    for at, what in enumerate(world.wrong):
        wrong = world.wrong[what]
        if not wrong:
            say(f"\n**{what}**: none.")
            continue
        seen = sum(bool(world.found[s]) for s in wrong)
        say(
            f"\n**{what}**: {len(wrong)} states, {len(wrong - kept)} of them left out by a rule,"
            f" {seen} with a feature."
        )
        tables = {"": measure(world, what)}
        if what.startswith("wrong"):
            shares = ", ".join(f"{share:g}" for share in EXACT)
            tables[f"a vote as `curtail: exact` asks, families' shares {shares}"] = measure(
                world, what, exact=True
            )
        if at == 0:
            tables["the cost by the bodies as sent, tools included"] = measure(
                world, what, sent=True
            )
            tables["without the rules of `skip`"] = measure(world.unruled(), what)
        for title, found in tables.items():
            if title:
                say(f"The same, {title}:")
            per = {name: found[name][4] for name in found}
            days = [per["day order, full prompts"], per["day order"]]
            rows = [
                [name, *(f"{x:.0%}" for x in cells[:4]), f"{cells[5]:.0%}", f"{per[name]:,.1f}",
                 *(f"{per[name] / base:.1f} x" if base else "–" for base in days)]
                for name, cells in found.items()
            ]  # fmt: skip
            table(
                ["order", "2 % of full", "5 % of full", "2 % of windowed", "5 % of windowed",
                 "of those asked at 2 % of full are wrong", "wrong per USD then",
                 "x day order, full prompts", "x day order"],
                rows,
            )  # fmt: skip
        if what.startswith("wrong"):
            judge(f"{world.name}, {what}", tables[""])


def judge(name: str, found: Mapping[str, Sequence[float]]) -> None:
    """Hold the bars of part 1."""
    for way in ("hand-set", "fitted"):
        cells = found[f"value per dollar, {way}"]
        for at, (budget, bar) in enumerate(BARS.items()):
            best = found["(who knows the truth)"][at]
            hold(
                f"{name}, {way}: {budget:.0%} of the full cost asks {cells[at]:.0%} (bar {bar:.0%};"
                f" who knows the truth {best:.0%})",
                held=cells[at] >= bar,
            )
        for base in ("day order, full prompts", "day order"):
            other = found[base][4]
            times = cells[4] / other if other else float("inf")
            hold(
                f"{name}, {way}: {times:.1f} x the wrong states per USD of {base}"
                f" (bar {BAR_PER_DOLLAR:.0f} x)",
                held=times >= BAR_PER_DOLLAR,
            )


def bodies(lake: Lake, teachers: TeacherSet) -> dict[str, tuple[int, int]]:
    """Return the bytes of each state's body, in a window and in full."""
    questions = Questions(lake, teachers)
    teacher = questions.teachers[0]
    found = {}
    for chain in questions.chains():
        session = SessionOutline(questions)
        for row in chain:
            outlines = session.of(row.whole, {None, teacher.window})
            cut, whole = (session.size(outlines[w], teacher) for w in (teacher.window, None))
            found[row.state_id] = cut, whole
    return found


def world_of(
    name: str, lake: Lake, teachers: TeacherSet, wrong: Callable[[list[TraceState]], Any]
) -> World:
    """Return the world of a lake."""
    states = list(load_states(lake))
    return World(name, states, wrong(states), teachers, bodies(lake, teachers))


def toolworld(folder: Path, teachers: TeacherSet) -> World:
    """Return the small world, whose right actions are known."""
    drawn = sessions(training_random(1), TOOLWORLD_SESSIONS)
    written = [write_session(one, f"toolworld-{i}") for i, one in enumerate(drawn)]
    write_files(written, folder / "projects")
    lake = Lake(folder / "lake")
    ingest(lake, [folder / "projects"])
    truth = {m: step for one in written for m, step in one.truth.items()}

    def wrong(states: list[TraceState]) -> dict[str, set[str]]:
        return {"wrong": {s.state_id for s in states if truth[s.message_id].failed}}

    return world_of("Toolworld", lake, teachers, wrong)


def samples(folder: Path, teachers: TeacherSet) -> World:
    """Return the bundled sessions; the script has better actions."""
    lake, better = Lake(folder / "lake"), answers()
    ingest(lake, [sample_sessions_dir()])

    def wrong(states: list[TraceState]) -> dict[str, set[str]]:
        return {"wrong": {s.state_id for s in states if s.message_id in better}}

    return world_of("Sample sessions", lake, teachers, wrong)


class Sources(Rehearsal):
    """A rehearsal that only decides, for every state, where its better action is from."""

    def decide_all(self) -> dict[str, str]:
        """Return state -> ``fixup``, ``recovery``, ``drawn`` or empty."""
        self.sources: dict[str, str] = {}
        for session in whole_sessions(self._lake):
            self._read(session.session_id, session, ())
            self._known.clear()
        return self.sources

    def _pools(self, state: TraceState, *rest: Any) -> Any:
        found = super()._pools(state, *rest)
        self.sources[state.state_id] = found[1]
        return found


def corpus(lake: Lake, teachers: TeacherSet) -> World:
    """Return the shared corpus with a rehearsal's truth, and with its own labels."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        sources = Sources(Script(), lake, teachers.teachers, nowhere).decide_all()

    def wrong(states: list[TraceState]) -> dict[str, set[str]]:
        own = {s for s, source in sources.items() if source in ("fixup", "recovery")}
        drawn = {s for s, source in sources.items() if source == "drawn"}
        culprits = {s.state_id for s in states if s.caused_error not in (None, s.state_id)}
        culprits |= {s.culprit_state_id for s in states if s.culprit_state_id}
        return {
            "wrong, own fix or drawn": own | drawn,
            "wrong, the session's own fix": own,
            "wrong, drawn: no feature can see these": drawn,
            "verdict *mistake* (a feature reads it)": {
                s.state_id for s in states if s.verdict == "mistake"
            },
            "culprits (a feature reads it)": culprits & {s.state_id for s in states},
        }

    return world_of("Shared corpus", lake, teachers, wrong)


def day_sets(lake: Lake) -> list[list[str]]:
    """Return three disjoint sets of days with about :data:`ASKED_STATES` states each."""
    counts: dict[str, int] = {}
    for row in lake.read("states", columns=["state_id"]).to_pylist():
        counts[row["day"]] = counts.get(row["day"], 0) + 1
    most = min(ASKED_STATES, sum(counts.values()) // 3)
    sets: list[list[str]] = [[], [], []]
    sizes = [0, 0, 0]
    for day, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        at = sizes.index(min(sizes))
        if sizes[at] + count <= 1.3 * most:
            sets[at].append(day)
            sizes[at] += count
    return [sorted(days) for days in sets]


def beside(one: float, other: float) -> str:
    """Return how much more one is than the other."""
    return f"{one / other - 1:+.1%}" if other else "–"


def bill(make: Callable[[], Lake], folder: Path, first_way: str) -> None:
    """Ask a first part, plan the rest, ask it, and compare; ``first_way`` curtails the first."""
    lake = make()
    default = TeacherSet.load(DEFAULT)
    first, second, third = day_sets(lake)
    os.environ[KEY_VARIABLE] = "loopback"
    decide, rows = VoteDecision(), []
    with (folder / "truth.jsonl").open("w", encoding="utf-8") as truth:
        script = Rehearsal(Script(), lake, default.teachers, truth)
        with LoopbackOpenRouter(
            script, models=models_of(default), api_key="loopback", keep_bodies=False
        ) as server:
            write_rehearsal(
                default, server.url, folder / "teachers.yaml", key_variable=KEY_VARIABLE
            )
            asked = TeacherSet.load(folder / "teachers.yaml")
            assert all(teacher.window for teacher in asked.teachers)
            section = asked.selection.model_copy(update={"curtail": first_way})
            for days in (first, second, third):
                measuring = days == first
                now = asked.model_copy(update={"selection": section}) if measuring else asked
                planned = first if measuring else sorted({*first, *days})
                found = plan(lake, now, days=planned, decide=decide)
                alone = float(plan(lake, now, days=days, decide=decide).expected_usd)
                ceiling = Decimal(1000)
                if days == third:
                    ceiling = round(Decimal(found.expected_usd) / 3, 4)
                    found = plan(lake, now, days=planned, decide=decide, max_usd=ceiling)
                before = server.billed
                report = replay(
                    lake, now, max_usd=ceiling, days=days, selector=selector_for(lake, now, decide)
                )
                paid = (server.billed - before) / 1e12
                replied = lake.read("replies", days=days, columns=["state_id"]).to_pylist()
                states = len({row["state_id"] for row in replied})
                limit = float(ceiling) if days == third else None
                point = next(point for point in found.curve if point.usd == limit)
                expected = float(found.expected_usd)
                name = "measured" if measuring else "a third" if days == third else "the rest"
                rows.append(
                    [name, f"{report.states}", f"{report.calls}", f"${expected:.4f}",
                     f"${point.spent:.4f}", f"${alone:.4f}", f"${paid:.4f}",
                     "–" if days == third else beside(expected, paid),
                     "–" if days == third else beside(alone, paid), beside(point.spent, paid),
                     str(point.states), str(states)]
                )  # fmt: skip
                if measuring:
                    left = plan(lake, now, days=first, decide=decide)
                    before = server.billed
                    selector = selector_for(lake, now, decide)
                    replay(lake, now, max_usd=ceiling, days=first, selector=selector)
                    again = (server.billed - before) / 1e12
                if days == third:
                    said = point.states, states
                if days == second:
                    agreed = found.agreement
                    for what, usd in (("expected_usd", expected), ("curve", point.spent)):
                        hold(
                            f"plan after a first part with `curtail: {first_way}`: {what}"
                            f" {beside(usd, paid)} of the bill (bar {BAR_BILL:.0%})",
                            held=abs(usd - paid) <= BAR_BILL * paid,
                        )
    say(f"First part with `curtail: {first_way}`; the rest as in the file (`exact`).")
    table(
        ["part", "states", "calls", "expected_usd", "curve", "expected, planned alone", "bill",
         "expected beside bill", "alone beside bill", "curve beside bill", "states in the curve",
         "states asked"], rows,
    )  # fmt: skip
    say(
        f"The first part again, when it was asked: plan expects ${float(left.expected_usd):.4f}"
        f" for {left.curve[-1].states} states, a second replay is billed ${again:.4f}. Of a third"
        f" of what was expected, the curve promised {said[0]} states and {said[1]} were asked"
        f" ({beside(said[1], said[0])})."
    )
    say(
        f"Agreement: p = {agreed.p}, q = {agreed.q} ({agreed.source}, {agreed.states} states),"
        f" shares {agreed.shares}."
    )
    say()


def plan_seconds(lake: Lake) -> None:
    """Hold the CPU time of ``plan --max-usd 20``, a process of its own."""
    command = [sys.executable, "-m", "composer_pipeline.cli", "plan", "--lake", str(lake.url)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(
        [*command, "--teachers", str(DEFAULT), "--max-usd", "20"], check=True, cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    wall = time.monotonic() - began
    number = len(lake.read("states", columns=["state_id"]))
    say(f"`plan --max-usd 20` on {number} states: {cpu:.1f} CPU s, {wall:.1f} s.")
    hold(f"plan --max-usd 20: {cpu:.1f} CPU s (bar {BAR_PLAN_S:.0f})", held=cpu <= BAR_PLAN_S)


def coverage(every: Sequence[TraceState]) -> None:
    """Hold how often the interval of the pairs that were left has the truth."""
    found = {s.state_id: features(s) for s in every}
    teachers = TeacherSet.load(DEFAULT).teachers[:2]
    rows = []
    kinds = ("any state alike", "by features, hand-set model", "by features, known model")
    for number, kind in [(number, kind) for number in WORLDS for kind in kinds]:
        states, worlds = every[:number], WORLDS[number]
        draws = np.random.default_rng(7)
        inside = below = 0
        off, asked = [], []
        for _ in range(worlds):
            truth = PairModel(
                float(draws.normal(BASE, SPREAD)),
                {name: float(draws.normal(value, SPREAD)) for name, value in WEIGHTS.items()},
            )
            alike, room = draws.uniform(0.05, 0.5), int(len(states) * draws.uniform(0.28, 0.89))
            chance = {
                s.state_id: alike if kind == kinds[0] else truth.chance(found[s.state_id])
                for s in states
            }
            pairs = {state for state, p in chance.items() if draws.random() < p}
            model = truth if kind == kinds[2] else PairModel()
            selector, begun = asked_until(states, room, pairs, teachers, model)
            report, left = selector.report(), len(pairs - begun)
            low, high = report.left_low, report.left_high
            assert low is not None
            assert high is not None
            assert report.left_pairs is not None
            inside += low <= left <= high
            below += left < low
            off.append((report.left_pairs - left) / report.left)
            asked.append(report.drawn)
        share, (least, most) = inside / worlds, BAR_COVERED
        rows.append(
            [str(len(states)), kind, f"{np.mean(asked):.0f}", f"{inside} of {worlds} ({share:.1%})",
             str(below), str(worlds - inside - below), f"{np.mean(off):+.2%}"]
        )  # fmt: skip
        hold(
            f"interval of the pairs left, {len(states)} states, {kind}: {share:.1%}"
            f" (bar {least:.0%} to {most:.0%})",
            held=least <= share <= most,
        )
    table(
        ["states", "pairs", "drawn, mean", "interval has the truth", "truth below", "truth above",
         "mean error of the rest"],
        rows,
    )  # fmt: skip


def main() -> int:
    """Run everything; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("folder", type=Path, nargs="?")
    options = parser.parse_args()
    os.environ.pop("COMPOSER_LEDGER", None)
    began = time.monotonic()
    teachers = TeacherSet.load(DEFAULT)
    source, what = source_files(options.folder)
    is_there = "sample" not in what
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)

        def lake(name: str) -> Lake:
            (scratch / name).mkdir()
            here = Lake(scratch / name / "lake")
            ingest(here, [source])
            return here

        say("# Questions")
        say()
        say(ABOUT.format(date=typical_prices()[0], seeds=SEEDS))
        say("## Where the agent is wrong")
        say()
        first = toolworld(scratch / "toolworld", teachers)
        score(first)
        score(samples(scratch / "samples", teachers))
        whole = lake("whole")
        if is_there:
            score(corpus(whole, teachers))
        else:
            say("### Shared corpus\n\nNot run: the shared corpus is absent.\n")
        say("## Plan beside bill, in windows")
        say()
        say(
            f"Sets of days of {what}, about {ASKED_STATES} states each, with the teachers of the"
            " default file at their caps on the loopback provider, which bills cached reads at a"
            " tenth of a prompt token. On the first part tokens and agreement are measured; *the"
            " rest* is planned together with it, of which nothing should be left to ask, and then"
            " asked without a binding ceiling; *a third* has a third of what was expected. *Planned"
            " alone* names only the days of the part: a plan measures on the days that it is given."
        )
        say()
        for way in ("off", "exact"):
            (scratch / way).mkdir()
            bill(lambda way=way: lake(f"bill-{way}"), scratch / way, way)  # type: ignore[misc]
        say("## Time of a plan")
        say()
        plan_seconds(whole)
        say()
        say("## Coverage of the estimate of what was left")
        say()
        say(
            "Lakes of Toolworld's states, each with its own truth and its own ceiling (28 to 89 %"
            " of the states). Pairs come to any state alike (5 to 50 %), or with a chance that"
            " follows the features, drawn as the prior says; the order is by the hand-set model or"
            " by that chance. 200 lakes tell 95 % from 92 or 98 % and no better, 1,000 from 93.6 or"
            " 96.4 %. The estimate is a little high where few states were drawn and pairs are rare:"
            " that is Jeffreys' prior."
        )
        coverage(first.states)
    say("## Bars")
    say()
    for name, held in bars:
        say(f"- {'holds' if held else '**missed**'}: {name}")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if options.record:
        RESULT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(not all(held for _, held in bars))


ABOUT = """\
`make bench-questions`. The truth of each state is known, so nobody is asked: an order of the states
and an amount say which states are asked, and the figure is the share of the wrong ones among all
wrong ones. The full cost is every teacher of `recipes/teachers/default.yaml` asked about every
state with its whole prompt, at the typical prices of `recipes/prices.yaml` ({date}) up to the
file's caps, four bytes a token, 400 completion tokens, nothing cached, contexts aside. A state that
is asked costs a vote: the two cheapest families, in windows of 16,384 tokens except where it says
full prompts. Sizes are the recorded messages, as in the product (`vote_usd`, `prompt_bytes`). Of
five families `exact` asks three at least, so that a real vote costs more than this; one table for
each world says what is left then. An order is asked up to the first state that the amount does not
pay for. Random is the mean of {seeds} seeds; *day order* has sessions of a day in time order;
*former grouping* is the order before value per dollar; *fitted*: weights of the other half of the
sessions (split by a hash of the session), on the truth as if votes had found it. *Who knows the
truth* asks the wrong states before the others, the cheapest first: no order finds more for the
amount, so it bounds what any order could reach. A session's own fix is found where the verdict says
*mistake* or an edit caused an error, and features read both, so that such states are easy by
construction; drawn states are wrong by chance, so that only their price tells them apart.
"""

if __name__ == "__main__":
    sys.exit(main())
