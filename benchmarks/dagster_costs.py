"""What Dagster costs: definitions, the graph beside the bare stages, backfills, pages.

Definitions are loaded in a process of their own. The graph is run in process, checks included, on
the bundled sessions and on the shared corpus where a checkout has it, and beside it the same stage
functions are called directly; CPU seconds of this process are compared. Pages are asked as the web
server asks: GraphQL against an instance in which every daily asset has events for 730 days.

Usage: ``python benchmarks/dagster_costs.py [--record FILE]``.
"""

import argparse
import json
import logging
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DAGSTER_DISABLE_TELEMETRY", "1")

import dagster as dg  # noqa: E402
from dagster._core.execution.backfill import PartitionBackfill  # noqa: E402
from dagster._core.remote_origin import InProcessCodeLocationOrigin  # noqa: E402
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin  # noqa: E402
from dagster._core.workspace.context import WorkspaceProcessContext  # noqa: E402
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget  # noqa: E402
from dagster._daemon.backfill import execute_backfill_iteration  # noqa: E402
from dagster_graphql.test.utils import execute_dagster_graphql  # noqa: E402
from shared_corpus import source_files  # noqa: E402

import assets.partitions  # noqa: E402

DAYS = 730
DAYS_OF_BENCH = dg.DailyPartitionsDefinition(
    start_date=str(date.today() - timedelta(days=DAYS - 1)), timezone="UTC", end_offset=1
)
#: A process of its own runs the graph, on days that begin with the first session as a user's do:
#: a harvest of a new instance tells it every day without sessions, once.
GRAPH = "--graph"
if GRAPH not in sys.argv:
    assets.partitions.DAYS = DAYS_OF_BENCH  # before the assets take it

from assets.definitions import build_defs  # noqa: E402
from assets.partitions import day_ranges  # noqa: E402
from assets.schedules import range_tags  # noqa: E402
from composer_pipeline import TeacherSet, build_hints, build_pairs, ingest, replay  # noqa: E402
from composer_pipeline.lake.store import Lake  # noqa: E402
from composer_pipeline.settings import Settings  # noqa: E402
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter  # noqa: E402
from composer_pipeline.testing.personas import Script  # noqa: E402
from composer_pipeline.testing.samples import answers, sample_sessions_dir  # noqa: E402
from composer_pipeline.traces.archive import session_days  # noqa: E402
from examples.demo.profile import demo_settings, loopback  # noqa: E402
from examples.demo.run import QUIET  # noqa: E402

LOAD = """
import resource
import assets.definitions
assets.definitions.build_defs()
used = resource.getrusage(resource.RUSAGE_SELF)
status = open("/proc/self/status").read()
print(used.ru_utime + used.ru_stime, int(status.split("VmHWM:")[1].split()[0]) / 1024)
"""
FREE_DAYS = 62
#: Where there is such a folder: thousands of events are written, and disks are not measured.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
QUERIES = {
    "partitions of an asset": """{ assetNodeOrError(assetKey: {path: ["trace_states"]}) {
        ... on AssetNode { partitionStats { numMaterialized numPartitions } assetPartitionStatuses {
          ... on TimePartitionStatuses { ranges { startKey endKey status } } } } } }""",
    # What the page asks every few seconds of the boxes that it shows (AssetGraphLiveQuery).
    "lineage": """{ assetNodes(loadMaterializations: true) { id opNames assetKey { path }
        dependencyKeys { path } assetMaterializations(limit: 1) { timestamp runId stepKey }
        assetObservations(limit: 1) { timestamp runId stepKey }
        assetChecksOrError { ... on AssetChecks { checks { name canExecuteIndividually
          executionForLatestMaterialization { id runId status timestamp evaluation { severity } }
          partitionStatuses { ... on AssetCheckDefaultPartitionStatuses { failedPartitions }
            ... on AssetCheckTimePartitionStatuses { ranges { startKey endKey status } } } } } }
        partitionStats { numMaterialized numMaterializing numPartitions numFailed } }
      assetsLatestInfo(assetKeys: [%s]) { id unstartedRunIds inProgressRunIds
        latestRun { id status startTime endTime } } }""",
    "plots of an asset": """{ assetOrError(assetKey: {path: ["trace_states"]}) { ... on Asset {
        assetMaterializations(limit: 100) { partition timestamp metadataEntries { label
          ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue }
        } } } } }""",
    "runs": """{ runsOrError(limit: 25) {
        ... on Runs { results { runId status tags { key value } } } } }""",
}


def cpu() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def definitions() -> tuple[float, float]:
    """Return (CPU seconds, MB) of a process that builds the definitions: the best of three."""
    found = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", LOAD], capture_output=True, text=True, check=True, cwd=ROOT
        )
        seconds, megabytes = done.stdout.split()
        found.append((float(seconds), float(megabytes)))
    return min(found)


def timed(what: Callable[[], Any]) -> float:
    """Return the CPU seconds of a call."""
    begun = cpu()
    what()
    return cpu() - begun


def by_dagster(settings: Settings, days: list[str], instance: dg.DagsterInstance) -> None:
    """Harvest, replay, pairs and normalisation as nights do: a run of each job a range of days."""
    defs = build_defs(settings)
    for job in ("harvest", "replay_and_pair"):
        for first, last in day_ranges(days, days):
            result = defs.resolve_job_def(job).execute_in_process(
                instance=instance, tags=range_tags(first, last), run_config=QUIET
            )
            assert result.success, job


def by_hand(settings: Settings, days: list[str]) -> None:
    """The same stages as plain calls, without Dagster and without checks."""
    from composer_pipeline import normalize
    from composer_pipeline.preferences.quality import write_statistics

    lake = Lake(settings.lake)
    ingest(lake, [Path(settings.sessions)])
    build_hints(lake, days=days)
    replay(lake, TeacherSet.load(settings.teachers), max_usd=Decimal(1000), days=days)
    build_pairs(lake, days=days)
    write_statistics(lake, days=days)
    normalize(lake, settings.normalize, days=days)


class Graph(NamedTuple):
    """CPU seconds of one pass over some sessions: by Dagster, by hand, and what there was."""

    dagster: float
    hand: float
    states: int
    replies: int
    runs: int


def graph_beside_hand(sessions: Path, turns: int) -> Graph:
    """Run :func:`graph_and_hand` in a process of its own, from first to last session."""
    days = sorted(session_days([sessions]))
    env = {**os.environ, "COMPOSER_FIRST_DAY": days[0], "COMPOSER_LAST_DAY": days[-1]}
    done = subprocess.run(
        [sys.executable, __file__, GRAPH, str(sessions), "--turns", str(turns)],
        capture_output=True, text=True, check=True, env=env,
    )  # fmt: skip
    return Graph(*json.loads(done.stdout.splitlines()[-1]))


def graph_and_hand(folder: Path, sessions: Path, turns: int) -> Graph:
    """Return what the last of so many turns took; the provider's thread is not counted."""
    days = sorted(session_days([sessions]))
    script = Script.from_sessions(sessions, answers())
    with LoopbackOpenRouter(script, api_key="bench", flaky_faults=False, keep_bodies=False) as own:
        env = {"COMPOSER_OPENROUTER_URL": own.url, "COMPOSER_LOOPBACK_KEY": "bench"}
        (thread,) = (t for t in threading.enumerate() if t.name == "loopback-openrouter")
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        with mock.patch.dict(os.environ, env):
            for turn in range(turns):
                home = new(folder, f"home-{turn}")
                one, two = (
                    demo_settings(
                        lake=str(folder / f"{who}-{turn}"), sessions=str(sessions), max_usd="1000"
                    )
                    for who in ("dagster", "hand")
                )
                with dg.instance_for_test(temp_dir=str(home)) as instance:
                    theirs = time.clock_gettime(clock)
                    by_graph = timed(partial(by_dagster, one, days, instance))
                    by_graph -= time.clock_gettime(clock) - theirs
                theirs = time.clock_gettime(clock)
                direct = timed(partial(by_hand, two, days)) - (time.clock_gettime(clock) - theirs)
    lake = Lake(two.lake)
    rows = {table: lake.read(table).num_rows for table in ("states", "replies")}
    assert rows == {table: Lake(one.lake).read(table).num_rows for table in rows}
    return Graph(by_graph, direct, rows["states"], rows["replies"], 2 * len(day_ranges(days, days)))


def new(folder: Path, name: str) -> Path:
    """Make a folder below ``folder``."""
    made = folder / name
    made.mkdir()
    return made


def week_without_sessions(folder: Path) -> tuple[float, float]:
    """Return (wall, CPU) seconds of a paid run over seven days that hold nothing."""
    settings = demo_settings(lake=str(folder / "empty"), max_usd="5")
    defs = build_defs(settings)
    today = date.today()
    tags = range_tags(str(today - timedelta(days=6)), str(today))
    with loopback(), dg.instance_for_test(temp_dir=str(new(folder, "week"))) as instance:
        begun, used = time.monotonic(), cpu()
        result = defs.resolve_job_def("replay_and_pair").execute_in_process(
            instance=instance, tags=tags, run_config=QUIET
        )
        assert result.success
        return time.monotonic() - begun, cpu() - used


@contextmanager
def workspace(folder: Path, name: str, **settings: str) -> Iterator[Any]:
    """Yield what the web server and the daemon see of the code location."""
    overrides = {
        "run_launcher": {"module": "dagster._core.test_utils", "class": "MockedRunLauncher"}
    }
    target = LoadableTargetOrigin(
        module_name="assets.definitions", attribute="defs", working_directory=str(ROOT)
    )
    os.environ.update({f"COMPOSER_{key.upper()}": value for key, value in settings.items()})
    with (
        dg.instance_for_test(temp_dir=str(new(folder, name)), overrides=overrides) as instance,
        WorkspaceProcessContext(
            instance, InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(target))
        ) as process,
    ):
        yield process


def free_backfill(folder: Path) -> int:
    """Return the runs that the daemon's code starts for 62 days of all free stages."""
    days = DAYS_OF_BENCH.get_partition_keys()[-FREE_DAYS:]
    keys = [dg.AssetKey(name) for name in ("raw_sessions", "trace_states", "error_hints")]
    with workspace(folder, "backfill", lake=str(folder / "none")) as process:
        instance = process.instance
        backfill = PartitionBackfill.from_asset_partitions(
            backfill_id="bench0001", asset_graph=process.create_request_context().asset_graph,
            partition_names=days, asset_selection=keys, backfill_timestamp=time.time(), tags={},
            dynamic_partitions_store=instance, all_partitions=False, title=None, description=None,
            run_config=None,
        )  # fmt: skip
        instance.add_backfill(backfill)
        for _ in range(3):
            for error in execute_backfill_iteration(process, logging.getLogger("bench")) or ():
                assert error is None, error
        return int(instance.get_runs_count())


def queries(folder: Path) -> dict[str, float]:
    """Return the wall seconds of each query with every day of every asset filled, the best of 3."""
    with workspace(folder, "pages", lake=str(folder / "none")) as process:
        context = process.create_request_context()
        for key in sorted(context.asset_graph.materializable_asset_keys):
            daily = context.asset_graph.get(key).is_partitioned
            for day in DAYS_OF_BENCH.get_partition_keys() if daily else [None]:
                process.instance.report_runless_asset_event(
                    dg.AssetMaterialization(
                        key, partition=day, metadata={"dagster/partition_row_count": 5, "cost": 0.1}
                    )
                )
        keys = ", ".join(
            f"{{path: {json.dumps(key.path)}}}"
            for key in sorted(context.asset_graph.materializable_asset_keys)
        )
        found = {}
        for name, query in QUERIES.items():
            query = query.replace("%s", keys)
            walls = []
            for _ in range(3):
                begun = time.monotonic()
                answer = execute_dagster_graphql(process.create_request_context(), query)
                walls.append(time.monotonic() - begun)
                assert not answer.errors, answer.errors
            found[name] = min(walls)
        return found


def table(rows: list[tuple[str, str, str, bool]]) -> str:
    """Return the figures beside their bars, as Markdown."""
    lines = ["| what | measured | bar | |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {got} | {bar} | {'' if ok else 'missed'} |" for what, got, bar, ok in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", default="")
    parser.add_argument(GRAPH, type=Path, help="only the graph beside its stages, as JSON")
    parser.add_argument("--turns", type=int, default=2, help="of which the last is counted")
    options = parser.parse_args()
    if options.graph:
        with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
            print(json.dumps(graph_and_hand(Path(scratch), options.graph, options.turns)))
        return
    rows: list[tuple[str, str, str, bool]] = []

    def add(what: str, value: float, unit: str, bar: float) -> None:
        rows.append((what, f"{value:.2f} {unit}", f"{bar:g} {unit}", value <= bar))
        print("|", " | ".join(rows[-1][:3]), "|", flush=True)

    with tempfile.TemporaryDirectory(dir=MEMORY) as scratch:
        folder = Path(scratch)
        seconds, megabytes = definitions()
        add("definitions", seconds, "CPU s", 1.0)
        add("definitions", megabytes, "MB", 150)
        corpus, what = source_files(None)
        bundled = graph_beside_hand(sample_sessions_dir(), 2)
        graphs = {"the bundled sessions": bundled}
        if corpus != sample_sessions_dir():
            graphs[what] = graph_beside_hand(corpus, 1)  # what is done once is little of it
        for name, graph in graphs.items():
            ratio = graph.dagster / graph.hand
            add(
                f"the graph in process beside its stages called directly, {name}",
                ratio,
                "x CPU",
                1.3,
            )
        wall, used = week_without_sessions(folder)
        add("a paid week without sessions", wall, "s", 3)
        add("runs of 62 free days", free_backfill(folder), "runs", 2)
        for what, wall in queries(folder).items():
            add(f"query: {what}, {DAYS} days of every daily asset", wall, "s", 0.5)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    passes = "\n".join(
        f"- {name}: {graph.states} states, {graph.replies} replies; {graph.dagster:.1f} CPU s in"
        f" {graph.runs} runs, checks included, and {graph.hand:.1f} called directly"
        for name, graph in graphs.items()
    )
    text = f"""# What Dagster costs

`make bench-dagster` on {machine}, dagster {dg.__version__}. The provider's thread is not counted:

{passes}

A run over a week without sessions took {used:.2f} CPU s: that is what a run costs by itself. The
machine's load was {os.getloadavg()[0]:.1f}; wall seconds, and less so CPU seconds, grow with it.
Pages in a browser are not measured here.

{table(rows)}
"""
    if options.record:
        Path(options.record).write_text(text)


if __name__ == "__main__":
    main()
