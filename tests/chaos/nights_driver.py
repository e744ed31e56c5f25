"""Nights that go wrong, through the real schedules, queue, monitor and run processes.

    python tests/chaos/nights_driver.py         every step and every trouble (make chaos-nights)
    python tests/chaos/nights_driver.py --only bucket-away teacher-away+parser-raised

The first run of a job is killed with SIGKILL before or after one of its steps; or a teacher is
absent, or the bucket, for one night; or the parser's version is raised after one; ``+`` joins
troubles of one night. Two nights later the lake has to hold what that of undisturbed nights holds,
every cent that the provider billed is that of one reply in it, no run was queued for longer than
two minutes and no process is left.
"""

import argparse
import logging
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
# The graph's days are made of these when it is imported.
os.environ.update(COMPOSER_FIRST_DAY="2026-11-16", COMPOSER_LAST_DAY="2026-11-19")
os.environ.update(COMPOSER_ENV_FILE=os.devnull, DAGSTER_DISABLE_TELEMETRY="1")

import nights_worker  # noqa: E402
import yaml  # noqa: E402
from nights_daemon import Nights, nights  # noqa: E402

from composer_pipeline.lake.store import Lake  # noqa: E402
from composer_pipeline.settings import recipes_dir  # noqa: E402
from composer_pipeline.teachers.ledger import operations  # noqa: E402
from composer_pipeline.teachers.ledger.ledger import Ledger  # noqa: E402
from composer_pipeline.testing.openrouter.faults import Fault, SeenRequest  # noqa: E402
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter  # noqa: E402
from composer_pipeline.testing.personas import Script  # noqa: E402
from composer_pipeline.testing.samples import answers, sample_sessions_dir  # noqa: E402
from composer_pipeline.versions import PARSER_VERSION  # noqa: E402
from examples.demo.profile import demo_settings, to_env  # noqa: E402
from tests.fixtures.lake_content import content  # noqa: E402

#: Of two days that do not touch, so that a night has two runs of each job.
SESSIONS = ("4665de3c", "8d11c10f")
NIGHT, TEACHERS, ABSENT = date(2026, 11, 20), ("careful", "steady", "contrarian"), "contrarian"
TROUBLES = ("teacher-away", "bucket-away", "parser-raised")
QUEUED_S = 120


@dataclass
class Outcome:
    """What a scenario left: the lake's content, what it needed, and what is wrong."""

    content: dict[str, Any]
    billed: int
    steps: list[tuple[str, str]]
    killed: int
    queued_s: float
    faults: list[str]


class Scene:
    """A lake, a provider and the nights over it; one scenario is played once."""

    def __init__(self, root: Path, sessions: Path, away: "Bucket | None" = None) -> None:
        self.root, self.bucket, self.absent = root, away, False
        self.marker = uuid.uuid4().hex
        data = yaml.safe_load((recipes_dir() / "teachers" / "demo.yaml").read_text())
        data["teachers"] = [t for t in data["teachers"] if t["name"] in TEACHERS]
        (root / "teachers.yaml").write_text(yaml.safe_dump(data))
        self.ledger = root / "books.db"
        self.settings = demo_settings(
            lake=away.new_lake() if away else str(root / "lake"),
            teachers=str(root / "teachers.yaml"), sessions=str(sessions), max_usd="5",
        ).model_copy(update={"ledger": str(self.ledger)})  # fmt: skip

    def fault(self, asked: SeenRequest) -> Fault | None:
        """Answer as a provider that does not list a model, while it is absent."""
        gone = self.absent and ABSENT in asked.model
        return Fault("unavailable", code="model_not_found") if gone else None

    def play(self, scenario: str) -> Outcome:
        """Three nights, the first of which is as the scenario says."""
        with Ledger(self.ledger) as ledger:
            ledger.do(operations.set_ceiling("global", Decimal(5)))
        script = Script.from_sessions(sample_sessions_dir(), answers())
        with LoopbackOpenRouter(
            script, api_key="key", flaky_faults=False, lifetime=3600, faults=self.fault
        ) as server:
            env = to_env(self.settings) | {
                "COMPOSER_OPENROUTER_URL": server.url, "COMPOSER_LOOPBACK_KEY": "key",
                "COMPOSER_NIGHTS": self.marker, **(self.bucket.env if self.bucket else {}),
            }  # fmt: skip
            with nights(self.root, env, NIGHT) as daemon:
                self._first_night(daemon, scenario)
                daemon.night()
                daemon.night()
                return self._outcome(daemon, scenario, server.billed)

    def _first_night(self, daemon: Nights, scenario: str) -> None:
        troubles = scenario.split("+")
        for trouble in troubles:
            when, _, where = trouble.partition(":")
            job, _, step = where.partition("/")
            if step:
                daemon.launcher.kills[job] = (step, when)
        self.absent = "teacher-away" in troubles
        self._parser(daemon, f"{PARSER_VERSION}-old" if "parser-raised" in troubles else "")
        if scenario == "bucket-away":
            assert self.bucket is not None
            with self.bucket.away():
                daemon.night()
        else:
            daemon.night()
        self.absent = False
        self._parser(daemon, "")

    def _parser(self, daemon: Nights, version: str) -> None:
        daemon.launcher.parser = version or PARSER_VERSION
        nights_worker.parse_as(daemon.launcher.parser)  # of the schedules, which ask here

    def _outcome(self, daemon: Nights, scenario: str, billed: int) -> Outcome:
        lake, faults = Lake(self.settings.lake), []
        found = content(lake, self.ledger)
        killed, queued = daemon.launcher.killed(), daemon.queued_s()
        if found["money"] != (0, 0, 0):
            faults.append(f"(beyond the replies, reserved, unknown) is {found['money']}")
        kept = sum(row["cost_picodollars"] or 0 for row in lake.rows("replies"))
        if billed != kept:
            faults.append(f"the provider billed {billed} picodollars, the replies cost {kept}")
        if queued > QUEUED_S:
            faults.append(f"a run was queued for {queued:.0f} s")
        if killed != scenario.count(":"):
            faults.append(f"{killed} processes were killed")
        if bool(daemon.failed_ticks) != (scenario == "bucket-away"):
            faults.append(f"ticks that failed: {daemon.failed_ticks}")
        alive = [p.pid for p in daemon.launcher.processes.values() if p.is_alive()]
        if alive := [*alive, *with_variable(self.marker)]:
            faults.append(f"processes are left: {alive}")
        return Outcome(found, billed, daemon.steps(), killed, queued, faults)


class Bucket:
    """A bucket of moto's that can be away."""

    def __init__(self) -> None:
        import boto3
        from moto.server import ThreadedMotoServer

        self._make = ThreadedMotoServer
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, self._port = self._server.get_host_and_port()
        self.env = {
            "AWS_ENDPOINT_URL": f"http://{host}:{self._port}", "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
        }  # fmt: skip
        os.environ.update(self.env)
        self._client = boto3.client("s3", endpoint_url=self.env["AWS_ENDPOINT_URL"])
        self._client.create_bucket(Bucket="lakes")

    def new_lake(self) -> str:
        return f"s3://lakes/{uuid.uuid4().hex}"

    @contextmanager
    def away(self) -> Iterator[None]:
        """Nobody listens; what the bucket holds is there again afterwards."""
        self._server.stop()
        try:
            yield
        finally:
            self._server = self._make(ip_address="127.0.0.1", port=self._port, verbose=False)
            self._server.start()

    def stop(self) -> None:
        self._server.stop()


def with_variable(marker: str) -> list[int]:
    """Return the processes that were started with the variable of a scene, but for this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            there = marker.encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if there and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


def copy_sessions(folder: Path, days: int) -> None:
    """Put the sessions of so many days into a folder; archives hold its name."""
    for path in sorted(sample_sessions_dir().glob("*/*")):
        if path.name.startswith(SESSIONS[:days]):
            to = folder / path.parent.name / path.name
            to.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if path.is_dir() else shutil.copy)(path, to)


def play(scenario: str, sessions: Path, bucket: Callable[[], Bucket]) -> Outcome:
    """Play one scenario in a folder of its own."""
    away = bucket() if scenario == "bucket-away" else None
    with tempfile.TemporaryDirectory(prefix="nights-") as folder:
        return Scene(Path(folder), sessions, away).play(scenario)


def scenarios(steps: list[tuple[str, str]]) -> list[str]:
    """Return every scenario there is for the steps of undisturbed nights."""
    kills = [f"{when}:{job}/{step}" for job, step in steps for when in nights_worker.EVENTS]
    return [*TROUBLES, *kills]


def main() -> None:
    """Play them; exit 1 where a night was not made good."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", nargs="*", default=[], help="scenarios; all without it")
    parser.add_argument("--days", type=int, default=2, help="days that hold sessions: 1 or 2")
    parser.add_argument("--list", action="store_true", help="name the scenarios, and end")
    parser.add_argument("--record", default="", help="the Markdown file to write")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = f"{HERE}{os.pathsep}{HERE.parents[1]}"  # of the fork server
    multiprocessing.get_context("forkserver").set_forkserver_preload(nights_worker.PRELOAD)
    forkserver.ensure_running()  # before there is a scene, whose variable it would carry
    opened: list[Bucket] = []
    logging.disable(logging.CRITICAL)  # a failed tick is told with its trace, and so are requests

    def bucket() -> Bucket:
        if not opened:
            opened.append(Bucket())
        return opened[0]

    with tempfile.TemporaryDirectory(prefix="sessions-") as folder:
        copy_sessions(Path(folder), options.days)
        bad = _all(options, lambda scenario: play(scenario, Path(folder), bucket), parser.error)
    for one in opened:
        one.stop()
    sys.exit(1 if bad else 0)


def _all(
    options: argparse.Namespace, played: Callable[[str], Outcome], refuse: Callable[[str], Any]
) -> int:
    """Play what was asked for, print and record it; return how many scenarios went wrong."""
    calm = played("undisturbed")
    assert not calm.faults, calm.faults
    every = scenarios(calm.steps)
    if options.list:
        print("\n".join(every))
        return 0
    if unknown := {part for one in options.only for part in one.split("+")} - set(every):
        refuse(f"no such scenario: {', '.join(sorted(unknown))}")
    lines, bad, longest, began = [], 0, 0.0, time.monotonic()
    for scenario in options.only or every:
        at = time.monotonic()
        found = played(scenario)
        faults = list(found.faults)
        faults += [f"{t} differs" for t, rows in calm.content.items() if found.content[t] != rows]
        if found.billed != calm.billed:
            faults.append(f"billed {found.billed} picodollars, undisturbed {calm.billed}")
        longest, bad = max(longest, found.queued_s), bad + bool(faults)
        lines.append(f"{scenario}: {'; '.join(faults) or 'healed'} ({time.monotonic() - at:.0f} s)")
        print(lines[-1], flush=True)
    told = (
        f"healed by the two nights after: {len(lines) - bad} of the {len(lines)} played, of"
        f" {len(every)} that there are; the longest queue {longest:.0f} s, with what the monitor of"
        " slots waits"
    )
    print(told)
    if options.record:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, {time.monotonic() - began:.0f} s"
        text = f"# Nights that heal\n\n`make chaos-nights` on {machine}; days with sessions:"
        text += f" {options.days}. {told}.\n\n"
        Path(options.record).write_text(text + "".join(f"- {line}\n" for line in lines))
    return bad


if __name__ == "__main__":
    main()
