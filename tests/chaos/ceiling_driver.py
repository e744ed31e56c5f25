"""A backfill whose runs are killed, retried and executed again stays below what was typed.

    python tests/chaos/ceiling_driver.py        20 random schedules (make chaos-ceiling)
    python tests/chaos/ceiling_driver.py --schedules 1 --chunks 4 --again 1         a short form

Each chunk of the backfill is a process of its own, three at once. About half are killed at a
random moment of their purchases with SIGKILL and retried, as run retries do. Then runs are
executed again, which takes the backfill's tags from them, and at last the whole backfill is,
undisturbed. At every sampled moment the ledger's scope and the provider's bill are at most what
was typed; in the end no other scope of this kind has spent anything, and a (teacher, day) is
materialised exactly where all of its replies are paid for.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import ceiling_worker
import dagster as dg
import yaml
from dagster._core.storage.tags import TAGS_TO_MAYBE_OMIT_ON_RETRY

from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import recipes_dir
from composer_pipeline.states.load import load_states
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from tests.fixtures.lake_states import write_sessions

FIRST = date(2026, 11, 1)
DAYS_A_CHUNK, STATES_A_DAY = 2, 10
AT_ONCE, RETRIES, AGAIN = 3, 2, 3
#: About what one reply costs; the ceilings are drawn around what all of them cost.
REPLY_USD = Decimal("0.00024")
LOOK_EVERY_S = 0.05
ROOT_BACKFILL, BACKFILL = "dagster/root_backfill_id", "dagster/backfill"


@dataclass
class Run:
    """One process, and what becomes of it."""

    chunk: tuple[str, str]
    tags: Mapping[str, str]
    #: How many replies are billed, to whomever, until it is killed; ``None`` lives to its end.
    life: int | None
    retries: int = 0
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    began: int | None = None
    process: "multiprocessing.process.BaseProcess | None" = None


class Schedule:
    """One random schedule on a lake, an instance and a provider of its own."""

    def __init__(self, root: Path, seed: int, chunks: int, again: int) -> None:
        self.root, self.random, self.again = root, random.Random(seed), again
        self.days = [str(FIRST + timedelta(days=n)) for n in range(chunks * DAYS_A_CHUNK)]
        self.chunks = [
            (self.days[n], self.days[n + DAYS_A_CHUNK - 1])
            for n in range(0, len(self.days), DAYS_A_CHUNK)
        ]
        self.lake = Lake(root / "lake")
        for number, day in enumerate(self.days):
            write_sessions(self.lake, sessions=1, turns=STATES_A_DAY, day=day, first=number)
        data = yaml.safe_load((recipes_dir() / "teachers" / "demo.yaml").read_text())
        data["teachers"] = [
            teacher | {"prompt_cache": "none", "max_tokens": 80, "concurrency": 2}
            for teacher in data["teachers"]
            if teacher["name"] in ceiling_worker.NAMES
        ]
        (root / "teachers.yaml").write_text(yaml.safe_dump(data))
        everything = REPLY_USD * STATES_A_DAY * len(self.days) * len(ceiling_worker.NAMES)
        share = Decimal(self.random.randint(30, 90)) / 100
        self.usd = (everything * share).quantize(Decimal("0.000001"))
        self.backfill = f"bf{seed}"
        self.instance = ceiling_worker.instance_of(root)
        self.running: list[Run] = []
        self.kills = self.started = 0
        self.faults: list[str] = []
        self.most = Decimal(0)

    def play(self, server: LoopbackOpenRouter) -> None:
        """Start, kill, retry and execute again; note every moment above the ceiling."""
        self.server = server
        queue = [self._run(chunk, {BACKFILL: self.backfill}) for chunk in self.chunks]
        done = []
        while queue or self.running:
            while queue and len(self.running) < AT_ONCE:
                self._start(queue.pop(0))
            for ended in self._look():
                done.append(ended)
                if ended.life is not None and ended.retries < RETRIES:
                    queue.append(self._again(ended, going_on=True))
        for _ in range(self.again):
            again = self._again(self.random.choice(done), going_on=False)
            self._start(again)
            while self.running:
                done += self._look()
        tags = {BACKFILL: f"{self.backfill}-again", ROOT_BACKFILL: self.backfill}
        whole = Run((self.days[0], self.days[-1]), tags, None)
        self._start(whole)
        while self.running:
            self._look()
        if self._status(whole) != dg.DagsterRunStatus.SUCCESS:
            self.faults.append(f"the last run ended as {self._status(whole)}")

    def _run(self, chunk: tuple[str, str], tags: Mapping[str, str], retries: int = 0) -> Run:
        dies = self.random.random() < 0.5
        calls = DAYS_A_CHUNK * STATES_A_DAY * len(ceiling_worker.NAMES)
        return Run(chunk, tags, self.random.randint(0, calls) if dies else None, retries)

    def _again(self, run: Run, *, going_on: bool) -> Run:
        """Return what Dagster starts for a run again, with the tags that it then has."""
        parent = self.instance.get_run_by_id(run.id)
        tags = dict(parent.tags if parent else run.tags)
        kept = {
            name: value
            for name, value in tags.items()
            if name not in TAGS_TO_MAYBE_OMIT_ON_RETRY or (going_on and name == BACKFILL)
        }
        root = tags.get("dagster/root_run_id", run.id)
        kept |= {"dagster/root_run_id": root, "dagster/parent_run_id": run.id}
        return self._run(run.chunk, kept, run.retries + 1)

    def _start(self, run: Run) -> None:
        context = multiprocessing.get_context("forkserver")
        arguments = (self.root, self.server.url, run.id, run.chunk, str(self.usd), run.tags)
        run.process = context.Process(target=ceiling_worker.work, args=arguments)
        run.process.start()
        self.running.append(run)
        self.started += 1

    def _status(self, run: Run) -> dg.DagsterRunStatus | None:
        found = self.instance.get_run_by_id(run.id)
        return found.status if found else None

    def _look(self) -> list[Run]:
        """Wait a moment, kill who is due, compare the books; return the runs that ended."""
        time.sleep(LOOK_EVERY_S)
        self._compare()
        ended = []
        for run in self.running:
            assert run.process is not None
            if run.life is not None and run.began is None and self.instance.has_run(run.id):
                run.began = self._bills()
            due = run.life is not None and run.began is not None
            if (
                due
                and self._bills() - (run.began or 0) >= (run.life or 0)
                and run.process.is_alive()
                and run.process.pid
            ):
                os.kill(run.process.pid, signal.SIGKILL)
                run.process.join()
            if not run.process.is_alive():
                self.kills += run.process.exitcode == -signal.SIGKILL
                if run.process.exitcode == 0:
                    run.life = None  # it was quicker
                ended.append(run)
        self.running = [run for run in self.running if run not in ended]
        return ended

    def _bills(self) -> int:
        return len(self.server.account.by_generation)

    def _compare(self) -> None:
        billed = Decimal(self.server.account.billed()) / 10**12
        self.most = max(self.most, billed)
        if billed > self.usd:
            self.faults.append(f"the provider has billed {billed} USD of {self.usd}")
        if not (Path(self.lake.root) / "ledger.db").exists():
            return
        with Ledger(Path(self.lake.root) / "ledger.db") as ledger:
            for name, held in ledger.status().items():
                sums = Decimal(held.spent + held.reserved + held.unknown) / 10**12
                if name == f"backfill:{self.backfill}" and sums > self.usd:
                    self.faults.append(f"{name} holds {sums} USD of {self.usd}")

    def audit(self) -> str:
        """Compare what was paid for with what is green; return one line."""
        paid = green = 0
        with Ledger(Path(self.lake.root) / "ledger.db") as ledger:
            scopes = ledger.status()
            for name, held in scopes.items():
                other = name.startswith(("root:", "backfill:")) and not name.endswith(self.backfill)
                if other and held.spent + held.held:
                    self.faults.append(f"{name} has spent {held.spent} picodollars of its own")
            for teacher in ceiling_worker.NAMES:
                key = dg.AssetKey(["teacher_replies", teacher])
                made = self.instance.get_materialized_partitions(key)
                for day in self.days:
                    whole = ledger.answered(teacher, day) == STATES_A_DAY
                    paid, green = paid + whole, green + (day in made)
                    if whole != (day in made):
                        self.faults.append(
                            f"{teacher} {day}: fully paid is {whole}, green is {day in made}"
                        )
        share = self.most / self.usd
        return (
            f"{self.started} processes, {self.kills} killed; typed {self.usd} USD, billed"
            f" {self.most:.6f} ({share:.0%}); {paid} of {len(self.days) * 2} partitions fully paid,"
            f" {green} green; {len(self.faults)} faults"
        )


def main() -> None:
    """Play the schedules; exit 1 where one was overspent or a paid day is not green."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--schedules", type=int, default=20)
    parser.add_argument("--chunks", type=int, default=9)
    parser.add_argument("--again", type=int, default=AGAIN, help="executions of a run again")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", default="", help="the Markdown file to write")
    options = parser.parse_args()
    here = Path(__file__).resolve().parent
    os.environ["PYTHONPATH"] = f"{here}{os.pathsep}{here.parents[1]}"  # of the fork server
    multiprocessing.get_context("forkserver").set_forkserver_preload(["ceiling_worker"])
    bad, lines = 0, []
    for seed in range(options.seed, options.seed + options.schedules):
        with tempfile.TemporaryDirectory(prefix="ceiling-") as folder:
            schedule = Schedule(Path(folder), seed, options.chunks, options.again)
            script = Script.from_states(load_states(schedule.lake), {})
            with LoopbackOpenRouter(
                script, lifetime=3600, flaky_faults=False, latency=0.03, jitter=0.05
            ) as server:
                schedule.play(server)
            lines.append(f"schedule {seed}: {schedule.audit()}")
            print(lines[-1], flush=True)
            for fault in schedule.faults[:5]:
                print(f"  {fault}", flush=True)
            bad += bool(schedule.faults)
            schedule.instance.dispose()
    good = options.schedules - bad
    told = f"within the ceiling, and every paid day green: {good} of {options.schedules}"
    print(told)
    if options.record:
        text = "# One ceiling over a backfill whose runs are killed\n\n"
        text += f"`make chaos-ceiling`: {told}.\n\n"
        Path(options.record).write_text(text + "".join(f"- {line}\n" for line in lines))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
