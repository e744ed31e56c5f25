"""Cost of a replay: in full, chained, and with curtailed votes; and the bill that comes of it.

    python benchmarks/replay_cost.py [FOLDER]

FOLDER holds session files (default: the unpacked shared corpus in ``../shared/corpus``, else the
bundled sample sessions). First, a simulation on the bodies that would really be sent: how much of
each prompt an earlier one of its session had, and what that makes at given prices. Then the
engine asks the loopback provider, which bills with prompt caches, about three disjoint sets of
days: a first one in full, on which tokens and agreement are measured, and a second one with
curtailed voting and a third one in full, whose bills are compared with what ``plan`` expected.
Prints tables and the bars; exits 1 where one is missed. No text of a session is printed.

Prices are those of ``recipes/teachers/default.yaml`` at half of its caps: nobody looked them
up. Shares of the naive price hardly depend on them; they depend on the price of a cached read.
"""

import os
import shutil
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

from rich.console import Console
from rich.table import Table

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.vote import VoteDecision
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.catalogue import Prices, Pricing
from composer_pipeline.teachers.plan import CACHE_MINIMUM_TOKENS, plan, selector_for
from composer_pipeline.teachers.plan_model import (
    DEFAULT_P,
    DEFAULT_Q,
    EXPECTED_COMPLETION_TOKENS,
    PrefixReuse,
    SessionOutline,
    Tariff,
    asked_shares,
    expected_cost,
)
from composer_pipeline.teachers.questions import BYTES_PER_TOKEN, Questions, too_long
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import URL_VARIABLE, Teacher, TeacherSet
from composer_pipeline.testing.openrouter.models import SimulatedModel
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.ingest import ingest

BAR_SHARE, BAR_ERROR = 0.30, 0.05
CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"
READS = ("0.10", "0.25", "0.50")
#: States of each set of days that the engine really asks about.
ASKED_STATES = 300
#: Share of the states for which two teachers know something better than the agent.
BETTER_SHARE = 40

console = Console(width=110)


@contextmanager
def sessions(argument: str | None) -> Iterator[Path]:
    """Yield a folder of session files."""
    if argument:
        yield Path(argument)
    elif CORPUS.is_dir():
        folder = Path(tempfile.mkdtemp(prefix="replay-cost-"))
        try:
            for archive in sorted(CORPUS.glob("*.tar*")):
                with tarfile.open(archive) as file:
                    file.extractall(folder, filter="data")
            yield folder if any(folder.rglob("*.jsonl")) else CORPUS
        finally:
            shutil.rmtree(folder)
    else:
        yield sample_sessions_dir()


def halved(teacher: Teacher, read: str) -> Prices:
    """Return a teacher's prices: half of its caps, and a cached read at a share of a prompt."""
    prompt = teacher.max_price.prompt / 2_000_000
    completion = teacher.max_price.completion / 2_000_000
    return Prices(prompt, completion, input_cache_read=prompt * Decimal(read))


def reuse_of(questions: Questions) -> tuple[PrefixReuse, int, float]:
    """Return what prompts share in the order of asking, sessions, and a body's other bytes."""
    teacher = questions.teachers[0]
    found = PrefixReuse(minimum_bytes=CACHE_MINIMUM_TOKENS * BYTES_PER_TOKEN)
    sessions = states = rest = 0
    for chain in questions.chains():
        session, ends = SessionOutline(questions), []
        for row in chain:
            outline = session.of(row.whole)[None]
            size = session.size(outline, teacher)
            refused = outline.has_action or questions.has_secret(outline.state)
            if not refused and not too_long(teacher, size):
                ends.append((outline.node, 0))
                rest += size - session.reach[outline.node]
        found.add_session(ends, session.parents, session.reach)
        sessions += bool(ends)
        states += len(ends)
    return found, sessions, rest / max(1, states)


def cost(
    found: PrefixReuse, teachers: Sequence[Teacher], shares: Sequence[float], read: str, rest: float
) -> tuple[float, float]:
    """Return (naive, asked with these shares) in USD for teachers, the cheapest first."""
    naive = asked = 0.0
    for teacher, share in zip(teachers, shares, strict=True):
        tariff = Tariff(
            Pricing(halved(teacher, read)), float(BYTES_PER_TOKEN),
            float(EXPECTED_COMPLETION_TOKENS), True, rest,
        )  # fmt: skip
        naive += expected_cost(found, tariff, cached=False)
        asked += expected_cost(found, tariff, share=share)
    return naive, asked


def simulate(lake: Lake) -> float:
    """Print the simulation; return the share of naive that is held against the bar."""
    default = TeacherSet.load(recipes_dir() / "teachers" / "default.yaml")
    questions = Questions(lake, default)
    began = time.process_time()
    found, sessions, rest = reuse_of(questions)
    states = sum(sum(band.states) for band in found.bands)
    total = sum(sum(band.bytes) for band in found.bands)
    shared = sum(sum(held) for band in found.bands for held in band.shared.values())
    console.print(
        f"{states} states in {sessions} sessions; {total / 1e6:,.0f} MB of"
        f" prompts, {shared / total:.1%} of them in an earlier prompt of the session"
        f" ({time.process_time() - began:.1f} CPU s)"
    )
    cheapest = sorted(default.teachers, key=lambda t: (t.max_price.prompt, t.name))
    table = Table("teachers", "cached read", "naive", "chain", "+ exact", "+ student")
    held = 0.0
    for count in (3, 5):
        teachers = cheapest[:count]
        for read in READS:
            cells, naive = [], 0.0
            for way in ("off", "exact", "student"):
                shares = asked_shares(count, way, p=DEFAULT_P, q=DEFAULT_Q)
                naive, usd = cost(found, teachers, shares, read, rest)
                cells.append(f"{usd / naive:.1%}")
                if (count, read, way) == (3, "0.25", "exact"):
                    held = usd / naive
            table.add_row(str(count), f"{read} of prompt", f"${naive:,.2f}", *cells)
    console.print(table)
    sensitivity = Table("p", *[f"q = {q}" for q in (0.2, 0.5, 0.8)])
    for p in (0.3, 0.5, DEFAULT_P, 0.8):
        row = []
        for q in (0.2, DEFAULT_Q, 0.8):
            parts = []
            for way in ("exact", "student"):
                shares = asked_shares(3, way, p=p, q=q)
                naive, usd = cost(found, cheapest[:3], shares, "0.25", rest)
                parts.append(f"{usd / naive:.1%}")
            row.append(" / ".join(parts))
        sensitivity.add_row(f"{p:g}", *row)
    console.print("share of naive, exact / student curtailing, 3 teachers, cached read 0.25:")
    console.print(sensitivity)
    return held


def loopback_set() -> tuple[TeacherSet, list[SimulatedModel]]:
    """Three teachers on the loopback provider, the cheapest always with the agent."""
    demo = TeacherSet.load(recipes_dir() / "teachers" / "demo.yaml").model_dump()
    names = ("contrarian", "careful", "steady")
    demo["teachers"] = [t for t in demo["teachers"] if t["name"] in names]
    models = []
    for name, prompt in zip(names, ("0.00000012", "0.0000003", "0.0000004"), strict=True):
        teacher = next(t for t in demo["teachers"] if t["name"] == name)
        teacher |= {"context_length": 400_000, "max_price": {"prompt": "1", "completion": "4"}}
        models.append(
            SimulatedModel(
                teacher["model"], name, Decimal(prompt), Decimal(prompt) * 4,  # type: ignore[arg-type]
                context_length=400_000, input_cache_read=Decimal(prompt) / 4,
            )
        )  # fmt: skip
    return TeacherSet.model_validate(demo), models


def day_sets(lake: Lake) -> list[list[str]]:
    """Return three disjoint sets of days with about :data:`ASKED_STATES` states each."""
    counts: dict[str, int] = {}
    for row in lake.read("states", columns=["state_id"]).to_pylist():
        counts[row["day"]] = counts.get(row["day"], 0) + 1
    sets: list[list[str]] = [[], [], []]
    sizes = [0, 0, 0]
    for day, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        at = sizes.index(min(sizes))
        if sizes[at] + count <= 1.3 * ASKED_STATES:
            sets[at].append(day)
            sizes[at] += count
    return [sorted(days) for days in sets]


def reproduce(lake: Lake) -> list[float]:
    """Print plan beside bill; return the relative errors."""
    teachers, models = loopback_set()
    first, second, third = day_sets(lake)
    states = list(load_states(lake, days=[*first, *second, *third]))
    better = Action(tool_calls=(ToolCall("Bash", {"command": "make verify-everything"}),))
    poor = {s.message_id: better for s in states if int(s.state_id[:4], 16) % 100 < BETTER_SHARE}
    decide = VoteDecision()
    table = Table("days", "asked", "states", "calls", "plan", "bill", "error", "of naive")
    errors = []
    script = Script.from_states(states, poor)
    with LoopbackOpenRouter(script, models=models, keep_bodies=False) as server:
        os.environ[URL_VARIABLE] = server.url
        for days, curtail in ((first, "off"), (second, "exact"), (third, "off")):
            section = {"curtail": curtail, "audit_share": 0.03}
            asked = TeacherSet.model_validate(teachers.model_dump() | {"selection": section})
            measured = sorted({*first, *days}) if days != first else days
            expected = plan(lake, asked, days=measured, decide=decide)
            before, began = server.billed, time.process_time()
            report = replay(
                lake, asked, max_usd=Decimal(1000), days=days,
                selector=selector_for(lake, asked, decide),
            )  # fmt: skip
            bill = (server.billed - before) / 1e12
            wrong = float(expected.expected_usd) / bill - 1
            naive = expected.strategies["naive"].usd
            if days == second:
                agreement = expected.agreement
            if days != first:  # the calibration's own plan knows no tokens yet
                errors.append(abs(wrong))
            title = "calibration" if days == first else "predicted"
            table.add_row(
                f"{title} ({len(days)})", curtail,
                str(report.states), str(report.calls), f"${float(expected.expected_usd):.4f}",
                f"${bill:.4f}", f"{wrong:+.2%}", f"{bill / naive:.1%}",
            )  # fmt: skip
            console.print(f"{title}: {time.process_time() - began:.0f} CPU s", style="dim")
    console.print(table)
    console.print(
        f"measured on the calibration days: p = {agreement.p}, q = {agreement.q}"
        f" ({agreement.source}, {agreement.states} states, {agreement.disagreements} against),"
        f" shares asked {agreement.shares}"
    )
    return errors


def main() -> int:
    """Run both parts; return the exit code."""
    os.environ.pop("COMPOSER_LEDGER", None)
    argument = sys.argv[1] if len(sys.argv) > 1 else None
    with sessions(argument) as folder, tempfile.TemporaryDirectory() as scratch:
        lake = Lake(Path(scratch) / "lake")
        ingest(lake, [folder])
        share = simulate(lake)
        errors = reproduce(lake)
    worst = max(errors)
    ok = share <= BAR_SHARE and worst <= BAR_ERROR
    console.print(
        f"{'OK' if ok else 'MISSED'}: chain + exact curtailing costs {share:.1%} of naive"
        f" (bar {BAR_SHARE:.0%}); the bill is within {worst:.2%} of the plan (bar {BAR_ERROR:.0%})"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
