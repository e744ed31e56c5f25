"""The chaos test: processes that replay against one ceiling are killed, again and again.

    python tests/chaos/chaos_driver.py            every round (make chaos)
    python tests/chaos/chaos_driver.py --short sqlite|postgres     what CI runs

A round: a lake, a ledger and a provider that harms every fourth request, changes its prices
and keeps its own accounts. Workers are real processes that call ``replay``; one of them is
killed with SIGKILL whenever some tens of requests have come in, and started again. Where
ceilings bind they are raised only when every worker has been refused. Work that is over
before its kills is continued with more sessions, so a fast machine kills as often as a slow
one. When nothing is in flight any more, the ledger is swept with what the provider says the
key has used, one more replay fetches what was paid for and not received, and the books must
be equal.
"""

import argparse
import json
import os
import platform
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import httpx
from chaos_audit import (
    Truth,
    Watch,
    bodies_billed,
    difference,
    files_with,
    generations_in,
)
from chaos_figures import FULL, PROCESSES, RECORD, SHORT, Figures, Round, table
from chaos_fleet import Fleet, Worker

from composer_pipeline.lake.store import Lake
from composer_pipeline.money import Pico, to_pico, to_usd
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.sweep import sweep
from composer_pipeline.teachers.ledger.values import SweepMismatch
from composer_pipeline.teachers.questions import Questions
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import MIX, FaultMix
from composer_pipeline.testing.openrouter.models import MODELS, SimulatedModel
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from tests.fixtures.lake_states import write_sessions

ROOT = Path(__file__).parents[2]
#: A call that nobody answers is given up after this.
READ_TIMEOUT_S = 6.0
LATENCY_S, JITTER_S = 0.05, 0.15
#: A key's usage knows of a bill after this; a sweep waits longer than that.
USAGE_LAG_S, GRACE_S = 0.15, 0.8
MANAGEMENT_VARIABLE = "COMPOSER_CHAOS_MANAGEMENT_KEY"
#: How many dearest calls fit under the first ceiling, and how many more with every step.
STEP_CALLS = 4
#: Guards against a round that never ends; no machine should come near them.
MOST_STEPS, MOST_SECONDS = 400, 900
AMPLE_USD = Decimal(50)
#: Sessions that are added where the work was over before the kills.
MORE_SESSIONS = 4


class Stage:
    """One round's lake, ledger, provider and processes."""

    def __init__(self, plan: Round, folder: Path, ledger: str) -> None:
        self.plan, self.folder, self.target = plan, folder, ledger
        self.random = random.Random(plan.seed)
        self.figures = Figures(plan)
        self.key = f"sk-or-chaos-{secrets.token_hex(16)}"
        self.management_key = f"sk-or-manage-{secrets.token_hex(16)}"
        logs = folder / "logs"
        logs.mkdir()
        self.lake = Lake(folder / "lake")
        write_sessions(self.lake, sessions=plan.sessions, turns=plan.turns)
        self.mix = FaultMix(plan.seed, plan.faults)
        self.server = LoopbackOpenRouter(
            Script.from_states(load_states(self.lake), {}),
            api_key=self.key,
            faults=self.mix,
            latency=LATENCY_S,
            jitter=JITTER_S,
            flaky_faults=False,
            response_cache=plan.cache,
            usage_lag=USAGE_LAG_S,
            management_key=self.management_key if plan.minted else None,
            keep_bodies=False,
            lifetime=1800,
        )
        self.env = {**os.environ, "COMPOSER_LOOPBACK_KEY": self.key, "PYTHONPATH": str(ROOT)}
        self.env.pop("COMPOSER_OPENROUTER_URL", None)
        if plan.minted:
            self.env[MANAGEMENT_VARIABLE] = self.management_key
        self.workers: dict[int, Worker] = {}
        self.usd = AMPLE_USD
        self.fleet = Fleet(self.env, logs)
        self.prices_passed_the_cap = False
        self.sessions = plan.sessions

    def prepare(self) -> None:
        """Write the teacher file for the server's port, and set the first ceilings."""
        data = TeacherSet.load(ROOT / "recipes" / "teachers" / "demo.yaml").model_dump()
        data["endpoint"]["base_url"] = self.server.url
        data["endpoint"]["recovery_cache_s"] = 86_400 if self.plan.cache else 0
        if self.plan.minted:
            data["endpoint"]["provisioning_key_env"] = MANAGEMENT_VARIABLE
        else:
            data["endpoint"]["dedicated_key"] = True
        quick = {
            "attempts": 6,
            "backoff_s": 0.02,
            "backoff_cap_s": 0.2,
            "read_timeout_s": READ_TIMEOUT_S,
            "drain_s": 5,
            # Far beyond what a generation takes: on a busy machine a lost one may still run,
            # and the same bytes would then be a second purchase.
            "recover_after_s": 20 * (LATENCY_S + JITTER_S),
            "sweep_grace_s": GRACE_S,
        }
        data["limits"] |= quick
        teachers = TeacherSet.model_validate(data)
        self.teachers = self.folder / "teachers.json"
        self.teachers.write_text(teachers.model_dump_json())
        self.models = {teacher.name: teacher.model for teacher in teachers.teachers}
        questions = Questions(self.lake, teachers)
        amounts = [
            questions.build(s, t).amount for s in questions.states for t in teachers.teachers
        ]
        self.step = max(amounts) * STEP_CALLS
        self.truth = Truth(self.server, self.models)
        self.set_ceilings(self.step if self.plan.bound else None)

    def set_ceilings(self, pico: int | None) -> None:
        """Bind the global scope, the dearest teacher and (through max_usd) the run."""
        usd = None if pico is None else Decimal(to_usd(pico))
        today = datetime.now(UTC).strftime("%Y-%m-%d")
        with Ledger(self.target) as ledger:
            ledger.do(operations.set_ceiling("global", usd))
            ledger.do(
                operations.set_ceiling("teacher:steady", None if usd is None else usd * 6 / 10)
            )
            ledger.do(
                operations.set_ceiling(f"day:{today}", None if usd is None else usd * 11 / 10)
            )
        self.usd = AMPLE_USD if usd is None else usd * 9 / 10

    def secrets(self) -> list[str]:
        """Return every key that must be in no file."""
        minted = [key.secret for key in self.server.account.keys.values()]
        return [self.key, self.management_key, *filter(None, minted), *self.server.account.deleted]

    # -- processes -------------------------------------------------------------------

    def run_id(self, place: int) -> str:
        return f"chaos-{place}" if self.plan.own_runs else "chaos"

    def start(self, place: int) -> Worker:
        """Start a process in a place."""
        options = {
            "lake": self.lake.root,
            "teachers": str(self.teachers),
            "ledger": self.target,
            "usd": str(self.usd),
            "run": self.run_id(place),
        }
        self.workers[place] = self.fleet.start(place, options)
        return self.workers[place]

    def storm(self, until: float) -> None:
        """Run, kill, restart and raise ceilings until all work is done."""
        places = range(self.plan.processes)
        for place in places:
            self.start(place)
        done: set[int] = set()
        refused: set[int] = set()
        next_kill = self.server.requests + self.random.randint(5, 25)
        next_price = time.monotonic() + 1
        step = 1
        while len(done) < len(places) or not self.enough():
            if len(done) == len(places):
                self.add_work()
                done.clear()
                for place in places:
                    self.start(place)
            if time.monotonic() > until:
                self.figures.notes.append("the round took too long and was ended")
                break
            time.sleep(0.003)
            busy = [w for w in self.workers.values() if w.at_work()]
            self.figures.processes = max(self.figures.processes, len(busy))
            if busy and self.figures.kills < self.plan.kills and self.server.requests >= next_kill:
                self.kill(self.random.choice(busy))
                next_kill = self.server.requests + self.random.randint(5, 40)
            if time.monotonic() > next_price:
                next_price = time.monotonic() + self.change_prices()
            for worker in [w for w in self.workers.values() if w.code is not None]:
                del self.workers[worker.place]
                state = self.judge(worker)
                if state == "again":
                    self.start(worker.place)
                else:
                    (done if state == "done" else refused).add(worker.place)
            if refused and not self.workers:
                self.figures.steps_that_bound += 1
                if step >= MOST_STEPS:
                    self.figures.notes.append("the ceiling was raised too often")
                    break
                self.check_bound(step)
                step += 1
                self.set_ceilings(self.step * step)
                for place in refused | done:
                    self.start(place)
                refused, done = set(), set()
        self.figures.steps = step if self.plan.bound else 0
        for worker in self.workers.values():
            self.fleet.kill(worker)
        self.workers.clear()

    def enough(self) -> bool:
        """Say whether the round has seen what it is there to see."""
        injected = sum(count > 0 for count in self.mix.injected.values())
        return (
            self.figures.kills >= self.plan.kills
            and self.figures.processes >= PROCESSES
            and injected >= self.plan.classes * (len(MIX) + 1)
        )

    def add_work(self) -> None:
        """Give the processes more to do; nobody works meanwhile."""
        write_sessions(self.lake, MORE_SESSIONS, self.plan.turns, first=self.sessions)
        self.sessions += MORE_SESSIONS

    def kill(self, worker: Worker) -> None:
        """End a process as a power cut does, and start another one in its place."""
        self.figures.kills += self.fleet.kill(worker)
        time.sleep(self.random.random() * 0.1)
        self.start(worker.place)

    def judge(self, worker: Worker) -> str:
        """Say what the end of a process means: done, refused (by a ceiling), or again."""
        report = worker.report()
        if worker.code != 0 or "not_bought" not in report:
            error = str(report.get("error"))
            if "refuses the account" not in error and "cannot be reached" not in error:
                self.figures.notes.append(f"a worker failed: {error[:300]}")
            return "again"
        why = {item["why"] for item in report["not_bought"]}
        if any(reason.startswith("budget exhausted") for reason in why):
            return "refused"
        return "again" if why else "done"

    def change_prices(self) -> float:
        """Change a model's prices, sometimes above what the teacher file allows for a while."""
        model = self.random.choice(MODELS)
        factor = self.random.choice(["0.5", "0.8", "1", "1.05", "3"])
        self.price(model, Decimal(factor))
        self.prices_passed_the_cap = self.prices_passed_the_cap or factor == "3"
        return 0.3 if factor == "3" else 0.8

    def price(self, model: SimulatedModel, factor: Decimal) -> None:
        prompt, completion = model.prompt * factor, model.completion * factor
        self.server.set_price(model.slug, prompt=prompt, completion=completion)

    def calm(self) -> None:
        """End the faults and give every model its first price."""
        self.server.faults = None
        for model in MODELS:
            self.price(model, Decimal(1))

    # -- the end ---------------------------------------------------------------------

    def quiet(self) -> None:
        """Wait until the provider generates nothing any more and knows all its bills."""
        while self.server.generating:
            time.sleep(0.02)
        time.sleep(USAGE_LAG_S + 0.05)

    def usage(self) -> int:
        """Ask the provider what the key has used, in picodollars."""
        headers = {"Authorization": f"Bearer {self.key}"}
        reply = httpx.get(f"{self.server.url}/key", headers=headers, timeout=120)
        return to_pico(json.loads(reply.text, parse_float=Decimal)["data"]["usage"])

    def sweep(self, ledger: Ledger) -> tuple[int, int]:
        """Sweep all that was paid; return unknown money before and after.

        Where each run makes its own keys, only a run can read them: every run is started
        once more and sweeps.
        """
        self.quiet()
        ledger.do(operations.adopt_dead())
        before = ledger.status()["global"].unknown
        if self.plan.minted:
            self.alone()
        else:
            try:
                ledger.do(sweep("global", Pico(self.usage()), Pico(0)))
            except SweepMismatch as error:
                self.figures.notes.append(str(error))
        return before, ledger.status()["global"].unknown

    def alone(self) -> bool:
        """Let one process of each run work in peace; say whether nothing is left to do."""
        self.calm()
        states = []
        for place in range(self.plan.processes if self.plan.own_runs else 1):
            worker = self.start(place)
            self.fleet.wait(worker)
            states.append(self.judge(worker))
            self.workers.clear()
        return set(states) == {"done"}

    def check_bound(self, step: int) -> None:
        """At a ceiling that binds: exact after a sweep, and what was paid is in the lake."""
        if step not in (1, 3):
            return
        with Ledger(self.target) as ledger:
            self.sweep(ledger)
            self.alone()
            self.sweep(ledger)
            self.server.faults = self.mix
            self.compare(ledger)
        self.figures.lost_while_bound += self.lost()

    def compare(self, ledger: Ledger) -> None:
        """Compare the swept ledger with all bills, scope by scope."""
        error, uncovered = difference(
            Truth(self.server, self.models),
            ledger.status(),
            shared_key=self.plan.own_runs and not self.plan.minted,
        )
        self.figures.ledger_error = max(self.figures.ledger_error, error)
        self.figures.uncovered = max(self.figures.uncovered, uncovered)

    def lost(self) -> int:
        """Count the billed bodies without a reply in the lake."""
        held = generations_in(self.lake)
        return sum(not (ids & held) for ids in bodies_billed(self.server).values())

    def finish(self) -> None:
        """Sweep, lift the ceilings, let one process finish, and compare everything."""
        figures = self.figures
        with Ledger(self.target) as ledger:
            figures.unknown_before, _ = self.sweep(ledger)
            self.set_ceilings(None)
            figures.complete = self.alone()
            _, figures.unknown_after = self.sweep(ledger)
            self.compare(ledger)
            swept = "SELECT id FROM event WHERE kind = 'swept'"
            figures.sweeps = len(ledger._store.read(swept)[1])
        figures.truth = self.server.billed
        figures.requests, figures.hits = self.server.requests, self.server.hits
        figures.bills = len(self.server.bills)
        figures.duplicates = self.server.duplicate_bills()
        figures.billed_bodies = len(bodies_billed(self.server))
        figures.in_lake = figures.billed_bodies - self.lost()
        figures.faults = sorted(name for name, count in self.mix.injected.items() if count)
        figures.faults += ["prices"] * self.prices_passed_the_cap


@contextmanager
def place_for_ledger(plan: Round, folder: Path) -> Iterator[str]:
    """Yield where a round's ledger is: a file, or a database server of its own."""
    if plan.store == "sqlite":
        yield str(folder / "lake" / "ledger.db")
        return
    from tests.fixtures.postgres import PostgresServer

    with PostgresServer() as server:
        yield server.database()


def run_round(plan: Round) -> Figures:
    """Run one round in a folder of its own, and return what it found."""
    folder = Path(tempfile.mkdtemp(prefix="composer-chaos-"))
    started = time.monotonic()
    try:
        with place_for_ledger(plan, folder) as target:
            stage = Stage(plan, folder, target)
            with stage.server, stage.fleet:
                stage.prepare()
                watched = Ledger(target)
                watch = Watch(watched, stage.truth)
                watch.start()
                try:
                    stage.storm(started + MOST_SECONDS)
                    stage.finish()
                finally:
                    watch.stop()
                    watched.close()
                figures = stage.figures
                figures.samples = watch.samples
                figures.overspend = watch.overspend
                figures.most_unknown = watch.most_unknown
                figures.uncovered = max(figures.uncovered, watch.uncovered)
            figures.leaks = files_with(stage.secrets(), folder)
        figures.seconds = time.monotonic() - started
        return figures
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Run the rounds, print the table, and return 1 when a bar was missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", choices=sorted(SHORT), help="the form for CI")
    parser.add_argument("--only", help="rounds whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="added to every round's seed")
    parser.add_argument("--record", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    results = []
    for plan in SHORT[options.short] if options.short else FULL:
        if options.only and options.only not in plan.name:
            continue
        results.append(run_round(plan))
        last = results[-1]
        print(f"{plan.name}: {last.seconds:.0f} s {last.misses()}", file=sys.stderr, flush=True)
    misses = [f"{f.round.name}: {miss}" for f in results for miss in f.misses()]
    seen = {name for figures in results for name in figures.faults}
    # A fault of weight 0 is only for those who name it: it would end a round, or a question.
    wanted = {"prices", *(name for name, (_, weight) in MIX.items() if weight)}
    # Some classes are rare on purpose; the short form is too short to see half of them.
    if len(seen) < (len(wanted) * 2 // 5 if options.short or options.only else len(wanted)):
        misses.append(f"fault classes that never came: {', '.join(sorted(wanted - seen))}")
    kills = sum(f.kills for f in results)
    verdict = [f"MISSED {miss}" for miss in misses]
    verdict.append(
        f"{kills} kills in {len(results)} rounds, {len(seen)} of {len(wanted)} fault classes;"
        f" bars missed: {len(misses)}"
    )
    print("\n".join([table(results), "", *verdict]))
    if options.record:
        options.record.write_text(
            RECORD.format(
                kills=kills,
                cores=os.cpu_count(),
                load=f"{os.getloadavg()[0]:.0f}",
                python=platform.python_version(),
                faults=len(seen),
                table=table(results),
                verdict="\n".join(verdict),
            )
        )
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
