"""``make demo``: the whole graph in this process, on the bundled sessions, without a key.

The teachers answer over HTTP from a loopback server, so the wire, the ledger and the cache are
the real ones; every amount it prints is simulated and says so. With ``--teachers FILE`` and a key
in the environment the same graph buys real replies.
"""

import _thread
import argparse
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.repository_definition import SINGLETON_REPOSITORY_NAME
from dagster._core.instance.ref import InstanceRef
from dagster._core.remote_origin import RemoteRepositoryOrigin
from dagster._core.storage.tags import REPOSITORY_LABEL_TAG
from dagster._core.utils import make_new_run_id
from dagster._core.workspace.load import location_origins_from_yaml_paths
from rich.console import Console

from composer_pipeline.cli.common import Table
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.samples import sample_sessions_dir
from composer_pipeline.traces.discover import first_day
from examples.demo.nights import run_nights
from examples.demo.profile import DEMO_LAKE, demo_settings, loopback, repositories_file
from examples.demo.publication import publish_here
from examples.demo.repositories import sample_repositories

ROOT = Path(__file__).resolve().parents[2]
#: Minutes, not measurement: answers cut short.
SHORT_ANSWERS = {"ops": {"model_evaluation": {"config": {"max_new_tokens": 32}}}}
QUIET = {"loggers": {"console": {"config": {"log_level": "WARNING"}}}}

#: Exit code of a command that Ctrl-C has ended.
INTERRUPTED = 130
#: Seconds that a run has to end after Ctrl-C.
GRACE_S = 2

console = Console(soft_wrap=False)
_interrupted = threading.Event()
#: The run that is under way, if one is.
_running: list[tuple[dg.DagsterInstance, str]] = []


def main() -> None:
    """Run the demo; exit 2 for bad input, 1 when a stage fails."""
    options = _options()
    # Before there are children and threads, which inherit it: Ctrl-C is for one thread.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    threading.Thread(target=_end_on_interrupt, daemon=True).start()
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    settings = demo_settings(
        lake=options.lake,
        teachers=options.teachers,
        sessions=options.sessions,
        max_usd=options.max_usd,
    )
    # Only the days of these sessions: each day of the graph costs nine events.
    folder = Path(settings.sessions).expanduser()
    os.environ["COMPOSER_FIRST_DAY"] = first_day(settings.lake, [folder])
    if settings.last_day:
        os.environ["COMPOSER_LAST_DAY"] = settings.last_day
    try:
        run_demo(settings)
    except InputError as error:
        sys.exit(_say(error, 2))
    except ComposerError as error:
        sys.exit(_say(error, 1))
    finally:
        if _interrupted.is_set():
            os._exit(INTERRUPTED)


def _end_on_interrupt() -> None:
    """Wait for Ctrl-C; end the run that is under way, or after some seconds whatever is."""
    signal.sigwait({signal.SIGINT})
    _interrupted.set()
    sys.stderr.write("demo: interrupted; what is done stays, and make demo goes on from there\n")
    silent = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # Dagster would show the trace of whatever was interrupted
        os.dup2(silent, stream)
    _thread.interrupt_main()
    time.sleep(GRACE_S)
    for instance, run_id in _running:  # a training that has not ended: its slot must be free
        if run := instance.get_run_by_id(run_id):
            instance.report_run_canceled(run)
            instance.event_log_storage.free_concurrency_slots_for_run(run_id)
    os._exit(INTERRUPTED)


def _say(error: Exception, code: int) -> int:
    sys.stderr.write(f"demo: {error}\n")
    return code


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--lake", default="", help="default lake-demo")
    parser.add_argument("--sessions", default="", help="default: the bundled sessions")
    parser.add_argument("--teachers", default="", help="default recipes/teachers/demo.yaml")
    parser.add_argument("--max-usd", default="", help="ceiling of the replay run")
    return parser.parse_args()


def run_demo(settings: Settings, instance: dg.DagsterInstance | None = None) -> dict[str, Any]:
    """Run harvest, replay and train; print and return the summary."""
    # The graph reads the first and the last day when it is imported.
    from assets.definitions import build_defs
    from assets.partitions import day_ranges
    from assets.schedules import range_tags
    from composer_pipeline.traces.archive import session_days

    started = time.monotonic()
    settings = _with_repositories(settings)
    teachers = TeacherSet.load(settings.teachers)
    # Output is not captured, which takes four processes a step: it is in this terminal.
    module = "dagster._core.storage.noop_compute_log_manager"
    uncaptured = {"compute_logs": {"module": module, "class": "NoOpComputeLogManager"}}
    ref = InstanceRef.from_dir(str(ROOT), overrides=uncaptured)
    instance = instance or dg.DagsterInstance.from_ref(ref)
    with ExitStack() as stack:
        if teachers.endpoint.simulated:
            stack.enter_context(loopback())
            console.print(
                "[dim]Teachers: simulated, on a loopback server. No money is spent.[/dim]"
            )
        defs = build_defs(settings)
        days = sorted(session_days([Path(settings.sessions).expanduser()]))
        calls = 0
        for first, last in day_ranges(days):
            with _stage(f"harvest {first}..{last}"):
                _run(defs, "harvest", instance, range_tags(first, last))
            with _stage(f"replay  {first}..{last}"):
                done = _run(defs, "replay_and_pair", instance, range_tags(first, last))
                bought = instance.get_run_by_id(done.run_id)
                calls += int(bought.tags["composer/calls"]) if bought else 0
        with _stage("train   two replicas, then evaluation"):
            trained = _run(defs, "train", instance, {}, SHORT_ANSWERS)
        with _stage("publish the dataset, to a Hub on this machine"):
            published = publish_here(settings)
            _tell_published(instance, published)
    with _stage("nights  two, on the small world of the proof"):
        place = DEMO_LAKE if "://" in settings.lake else settings.lake
        told = run_nights(Path(f"{place}-nights").absolute())
        for night, page in told:
            said = f"  {night.night}: [bold]{night.outcome}[/bold], {night.why[0]}\n  {page}"
            console.print(said, soft_wrap=True, highlight=False)
    summary = _summary(settings, calls, _latest_metadata(trained))
    summary["published"] = published
    summary["nights"] = {page: night.outcome for night, page in told}
    summary["report"] = _latest_metadata(trained)["report"]["file"]
    summary["seconds"] = round(time.monotonic() - started, 1)
    _show(settings, teachers, summary)
    return summary


def _with_repositories(settings: Settings) -> Settings:
    """Make the sample repositories beside the lake, where the sessions are the bundled ones."""
    if settings.sessions != str(sample_sessions_dir()) or "://" in settings.lake:
        return settings
    file = sample_repositories(repositories_file(settings.lake).parent)
    return settings.model_copy(update={"repositories": str(file)})


def _tell_published(instance: dg.DagsterInstance, published: Mapping[str, Any]) -> None:
    """Show in Dagster what the command line published; the Hub of this machine is gone by then."""
    from assets.adopt import REPORTED_BY

    metadata = {name: published[name] for name in ("tag", "address", "card")}
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            "published_dataset",
            metadata={**metadata, REPORTED_BY: "make demo, whose Hub has ended"},
        )
    )


@contextmanager
def _stage(label: str) -> Iterator[None]:
    began = time.monotonic()
    console.print(f"[bold]{label}[/bold]")
    yield
    console.print(f"[dim]  done in {time.monotonic() - began:.0f} s[/dim]")


def _run(
    defs: dg.Definitions,
    job: str,
    instance: dg.DagsterInstance,
    tags: dict[str, str],
    config: Mapping[str, Any] | None = None,
) -> dg.ExecuteInProcessResult:
    (location,) = location_origins_from_yaml_paths([str(ROOT / "workspace.yaml")])
    repository = RemoteRepositoryOrigin(location, SINGLETON_REPOSITORY_NAME)
    run_id = make_new_run_id()
    _running[:] = [(instance, run_id)]
    result = defs.resolve_job_def(job).execute_in_process(
        run_id=run_id,
        instance=instance,
        tags={**tags, REPOSITORY_LABEL_TAG: repository.get_label()},
        run_config={**QUIET, **(config or {})},
        raise_on_error=False,
    )
    _running.clear()
    # A run of this process has no origin, and Dagster's pages of jobs show only runs with one.
    if run := instance.get_run_by_id(run_id):
        instance.run_storage.replace_job_origin(run, repository.get_job_origin(job))
    if not result.success:
        failed = [e for e in result.all_events if e.is_step_failure or e.is_failure]
        reasons = [str(e.message) for e in failed] + [
            str(e.step_failure_data.error.cause or e.step_failure_data.error)
            for e in failed
            if e.is_step_failure and e.step_failure_data.error
        ]
        raise ComposerError(f"job {job} failed: " + " | ".join(reasons)[:2000])
    return result


def _latest_metadata(result: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    events = [
        event.step_materialization_data.materialization
        for event in result.get_asset_materialization_events()
    ]
    return {event.asset_key.path[-1]: metadata_of(event) for event in events}


def metadata_of(event: dg.AssetMaterialization) -> dict[str, Any]:
    """Return an asset's metadata by name; numbers of the table of other numbers too."""
    found = {name: value.value for name, value in event.metadata.items()}
    rest = event.metadata.get("other_numbers")
    if isinstance(rest, dg.TableMetadataValue):
        found |= {str(row.data["number"]): row.data["value"] for row in rest.records}
    return found


def _summary(settings: Settings, calls: int, metadata: dict[str, Any]) -> dict[str, Any]:
    with Lake(settings.lake).duckdb() as con:
        return _read_summary(con, calls, metadata)


def _read_summary(con: Any, calls: int, metadata: dict[str, Any]) -> dict[str, Any]:
    def rows(sql: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = con.execute(sql).fetchall()
        return found

    def one(sql: str) -> Any:
        return rows(sql)[0][0]

    replies = {
        teacher: {
            "replies": n,
            "ok": ok,
            "picodollars": int(cost or 0),
        }
        for teacher, n, ok, cost in rows(
            "SELECT teacher, count(*), count(*) FILTER (status = 'ok'), sum(cost_picodollars)"
            " FROM replies GROUP BY teacher ORDER BY teacher"
        )
    }
    return {
        "sessions": one("SELECT count(DISTINCT session_id) FROM sessions"),
        "trajectories": one("SELECT count(*) FROM sessions"),
        "states": one("SELECT count(*) FROM states"),
        "error_turns": one("SELECT count(*) FROM states WHERE error_kind IS NOT NULL"),
        "redactions": one("SELECT sum(redactions) FROM messages"),
        "replies": replies,
        "calls": calls,
        "hints": one("SELECT count(*) FROM hints"),
        "edits": dict(
            rows(
                "SELECT CASE WHEN status <> 'known' THEN 'unknown' WHEN alive = lines THEN 'whole'"
                " WHEN 2 * alive < lines THEN 'gone' ELSE 'part' END, count(*)"
                " FROM outcomes WHERE horizon = 'commit' GROUP BY 1 ORDER BY 1 DESC"
            )
        ),
        "pairs": one("SELECT count(*) FROM pairs"),
        "fixups": one("SELECT count(*) FROM pairs WHERE source = 'fixup'"),
        "culprits": one(
            "SELECT count(DISTINCT culprit_state_id) FROM states WHERE verdict = 'revealed'"
        ),
        "kept": one("SELECT count(*) FROM normalized_pairs"),
        "dropped": one("SELECT count(DISTINCT pair_id) FROM drops"),
        "splits": dict(rows("SELECT split, count(*) FROM dataset_pairs GROUP BY split")),
        "grpo_groups": one("SELECT count(*) FROM dataset_groups"),
        "training": metadata.get("trained_model", {}),
        "evaluation": metadata.get("model_evaluation", {}),
        "peak_rss_gib": round(
            max(
                resource.getrusage(who).ru_maxrss
                for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            )
            / 2**20,
            2,
        ),
    }


def _show(settings: Settings, teachers: TeacherSet, summary: dict[str, Any]) -> None:
    label = " (simulated)" if teachers.endpoint.simulated else ""
    table = Table(title="composer-pipeline demo", title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("sessions", f"{summary['sessions']} ({summary['trajectories']} trajectories)")
    table.add_row(
        "states",
        f"{summary['states']}, {summary['error_turns']} of them error turns;"
        f" {summary['culprits']} edits broke something later",
    )
    edits = ", ".join(f"{number} {name}" for name, number in summary["edits"].items())
    table.add_row("edits, from git", f"{sum(summary['edits'].values())}: in the commit {edits}")
    table.add_row("redactions", str(summary["redactions"]))
    for name, row in summary["replies"].items():
        cost = f"${row['picodollars'] / 1e12:.6f}{label}"
        table.add_row(
            f"replies {name}",
            f"{row['ok']} usable of {row['replies']}, {cost}",
        )
    table.add_row("calls this time", str(summary["calls"]))
    table.add_row(
        "pairs",
        f"{summary['pairs']} ({summary['fixups']} from later fixes of the agent's own), hints"
        f" {summary['hints']}, groups {summary['grpo_groups']}",
    )
    table.add_row("normalised", f"{summary['kept']} kept, {summary['dropped']} dropped")
    table.add_row("splits", ", ".join(f"{k} {v}" for k, v in sorted(summary["splits"].items())))
    training = summary["training"]
    for title, words in training_rows(training):
        table.add_row(title, words)
    table.add_row(
        "DiLoCo",
        f"{training.get('rounds', 0)} rounds committed,"
        f" {training.get('rounds_with_all_replicas', 0)} of them with the contribution of"
        f" all {training.get('replicas', 0)} replicas",
    )
    for title, words in evaluation_rows(summary["evaluation"]):
        table.add_row(title, words)
    table.add_row("lake", settings.lake)
    table.add_row("dataset", f"{settings.lake}/dataset_pairs/split=train/part.parquet")
    checkpoint = Path(str(training.get("checkpoint", "")))
    inside = checkpoint.is_relative_to(Path.cwd())
    table.add_row("checkpoint", str(checkpoint.relative_to(Path.cwd()) if inside else checkpoint))
    published = summary["published"]
    table.add_row(
        "published",
        f"{sum(published['rows'].values())} rows, {published['changed']} files, one commit,"
        f" {published['tag']}; read back and compared",
    )
    table.add_row("report", str(summary["report"]))
    table.add_row("card", f"{published['card']} (from {published['address']})")
    table.add_row(
        "time, memory", f"{summary['seconds']} s, largest process {summary['peak_rss_gib']} GiB"
    )
    console.print(table)
    console.print("Next: [bold]make dev[/bold] (the Dagster UI on http://127.0.0.1:3000), and")
    console.print("      [bold].venv/bin/composer-pipeline ingest[/bold] (your own sessions; free)")


def evaluation_rows(evaluation: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the evaluation says of states that training never saw."""
    rows = []
    for title, key in (
        ("held out: right actions, agent wrong", "hard_canonical"),
        ("held out: right actions, easy", "easy_canonical"),
        ("held out: prefer right to wrong", "hard_preference"),
        ("held out: right action NLL, nats/token", "hard_right_nll"),
    ):
        before, after = evaluation.get(f"{key}_before"), evaluation.get(f"{key}_after")
        if before is not None and after is not None:
            rows.append((title, f"{before:.4f} -> {after:.4f}"))
    if rows:
        states, sessions = (evaluation.get(name, 0) for name in ("states", "sessions"))
        rows.append(("held out", f"{states} states of {sessions} sessions: too few to say more"))
    return rows


def training_rows(training: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what training says of itself, each number a function of the model."""
    rows = []
    if "hints_kept_share" in training:
        share, seen = training["hints_kept_share"], training["hints_seen"]
        rows.append(("hints that help", f"{share:.0%} of {seen:g} under the base model"))
    best, worst = (training.get(f"grpo_{side}_gain_last") for side in ("best", "worst"))
    if best is not None and worst is not None:
        rows.append(("grpo, last round", f"best answers {best:+.3f} nats, worst {worst:+.3f}"))
    for channel, unit in (("sdpo", "tokens"), ("dpo", "pairs"), ("sft", "tokens")):
        first, last = (training.get(f"{channel}_loss_{name}") for name in ("first", "last"))
        if first is not None and last is not None:
            active = training.get(f"{channel}_active", 0)
            rows.append((f"loss {channel}", f"{first:.4f} -> {last:.4f}, {active:g} {unit}"))
    return rows


if __name__ == "__main__":
    main()
