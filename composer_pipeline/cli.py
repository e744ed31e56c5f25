"""The command line: parse options, call one stage function, print its report.

Belongs here: options, exit codes, output. Does not belong here: any logic of a stage.
With ``--json`` standard output holds one JSON object; progress goes to standard error.
Exit codes: 0 done, 2 bad usage or input, 3 budget exhausted, 1 anything else.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import App, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from composer_pipeline import __version__
from composer_pipeline.errors import BudgetExhausted, ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings

app = App(
    name="composer-pipeline",
    version=__version__,
    help="Claude Code sessions in, preference datasets and trained models out.",
)

LakeOption = Annotated[str, Parameter(name="--lake", help="Folder or fsspec URL (COMPOSER_LAKE).")]
JsonOption = Annotated[bool, Parameter(name="--json", negative="", help="One JSON object.")]
Report = Callable[[str, int, int], None]

err = Console(stderr=True)


def _lake(url: str) -> Lake:
    return Lake(url or Settings.from_env().lake)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    return value


def _print(report: Mapping[str, Any], as_json: bool, title: str) -> None:
    plain = _plain(report)
    if as_json:
        sys.stdout.write(json.dumps(plain, ensure_ascii=False) + "\n")
        return
    table = Table(title=title, show_header=False, title_justify="left")
    for key, value in plain.items():
        text = (
            json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
        )
        table.add_row(key, text)
    Console().print(table)


class _Bar:
    """A rich progress bar on a terminal; silent elsewhere."""

    def __enter__(self) -> Report:
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=err,
            disable=not err.is_terminal,
        )
        self.bar.__enter__()
        self.tasks: dict[str, Any] = {}

        def report(label: str, done: int, total: int) -> None:
            if label not in self.tasks:
                self.tasks[label] = self.bar.add_task(label, total=total or None)
            self.bar.update(self.tasks[label], completed=done, total=total or None)

        return report

    def __exit__(self, *exc: object) -> None:
        self.bar.__exit__(None, None, None)


def _usd(text: str, option: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise InputError(f"{option}: {text!r} is not an amount in USD") from error
    if not value.is_finite() or value <= 0:
        raise InputError(f"{option} must be above 0, got {text}")
    return value


@app.command
def ingest(
    paths: Sequence[Path],
    /,
    *,
    lake: LakeOption = "",
    per_file: Annotated[bool, Parameter(negative="")] = False,
    as_json: JsonOption = False,
) -> None:
    """Archive and parse session files or folders.

    Args:
        paths: JSONL files, or folders of them.
        per_file: report the counts of each file too.
    """
    from composer_pipeline.traces.ingest import ingest as run

    if not paths:
        raise InputError("ingest needs at least one PATH")
    with _Bar() as progress:
        report = run(_lake(lake), list(paths), progress=progress)
    out: dict[str, Any] = dict(report.totals)
    if per_file:
        out["by_file"] = report.by_file
    _print(out, as_json, "ingest")


@app.command
def states(*, session: str = "", lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """List states; with --json, one object a line.

    Args:
        session: only this session; the beginning of its id is enough.
    """
    from composer_pipeline.show import SHORT_ID
    from composer_pipeline.traces.load import load_states

    store = _lake(lake)
    wanted = store.query(
        "SELECT state_id FROM states WHERE starts_with(session_id, ?) ORDER BY ts, state_id",
        [session],
    )
    order = {state_id: number for number, (state_id,) in enumerate(wanted)}
    rows: list[dict[str, Any]] = [{}] * len(order)
    for found in load_states(store, state_ids=order):
        rows[order[found.state_id]] = {
            "state_id": found.state_id,
            "session_id": found.session_id,
            "message_id": found.message_id,
            "n_messages": found.n_messages,
            "tools": [call.name for call in found.action.tool_calls],
            "error_kind": found.error_kind,
        }
    if as_json:
        _lines(rows)
        return
    table = Table("state", "session", "messages", "tools", "error")
    for row in rows:
        tools, error = ", ".join(row["tools"]), row["error_kind"] or ""
        state_id, session_id = row["state_id"][:SHORT_ID], row["session_id"][:SHORT_ID]
        table.add_row(state_id, session_id, str(row["n_messages"]), tools, error)
    Console().print(table)


def _iso(value: datetime) -> str:
    return value.isoformat()


def _lines(rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        sys.stdout.write(json.dumps(row, ensure_ascii=False, default=_iso) + "\n")


@app.command
def sessions(*, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """List sessions and subagents with their counts; with --json, one object a line."""
    from composer_pipeline.show import session_table

    store = _lake(lake)
    with store.duckdb() as con:
        found = con.execute(
            """
            WITH hints AS (
              SELECT day, session_id, agent_id, count(hint) AS hints,
                     count(error_kind) AS error_turns FROM states GROUP BY ALL)
            SELECT s.day, s.session_id, s.agent_id, s.path, s.project, s.first_prompt, s.first_ts,
                   s.last_ts, s.models, s.versions, s.lines, s.bad_lines, s.responses, s.states,
                   s.states_active_path, s.tool_calls, s.tool_errors, s.compactions,
                   s.repaired_states,
                   coalesce(h.error_turns, 0) AS error_turns, coalesce(h.hints, 0) AS hints
            FROM sessions s LEFT JOIN hints h USING (day, session_id, agent_id)
            ORDER BY s.day, s.first_ts, s.session_id, s.agent_id, s.path
            """
        )
        names = [column[0] for column in found.description]
        rows = [dict(zip(names, row, strict=True)) for row in found.fetchall()]
    if as_json:
        _lines(rows)
    else:
        Console().print(session_table(rows))


@app.command
def state(state_id: str, /, *, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Show one state: what the agent saw, what it did, and what came of it.

    Args:
        state_id: as `states` lists it; an unambiguous beginning is enough.
    """
    from composer_pipeline.show import show_state
    from composer_pipeline.traces.following import following
    from composer_pipeline.traces.load import load_state

    store = _lake(lake)
    found = load_state(store, state_id)
    behind = following(store, found)
    if not as_json:
        show_state(Console(), found, behind)
        return
    out = {
        "state_id": found.state_id,
        "session_id": found.session_id,
        "message_id": found.message_id,
        "prefix": found.messages,
        "action": json.loads(found.action_json),
        "fidelity": found.fidelity,
        "on_active_path": found.on_active_path,
        "repaired": found.repaired,
        "error_kind": found.error_kind,
        "hint": found.hint,
        "next": behind,
    }
    _print(out, True, "")


@app.command
def plan(
    *,
    teachers: str = "",
    day: Sequence[str] = (),
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say what a replay would cost, before it costs anything.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        day: only these days (YYYY-MM-DD).
    """
    from composer_pipeline.replay.plan import plan as run
    from composer_pipeline.replay.teachers import TeacherSet

    settings = Settings.from_env()
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    report = run(_lake(lake), teacher_set, days=list(day) or None, ledger=settings.ledger or None)
    _print(report.to_dict(), as_json, "plan")


@app.command
def replay(
    *,
    teachers: str = "",
    max_usd: str = "",
    day: Sequence[str] = (),
    max_states: int = 0,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Buy the teachers' replies under a hard ceiling.

    Args:
        teachers: teacher file (COMPOSER_TEACHERS).
        max_usd: ceiling of this run in USD (COMPOSER_MAX_USD).
        day: only these days (YYYY-MM-DD).
        max_states: at most this many states; 0 is all.
    """
    from composer_pipeline.replay.engine import replay as run
    from composer_pipeline.replay.teachers import TeacherSet

    settings = Settings.from_env()
    ceiling = _usd(max_usd or settings.max_usd, "--max-usd")
    teacher_set = TeacherSet.load(teachers or settings.teachers)
    with _Bar() as progress:
        report = run(
            _lake(lake),
            teacher_set,
            max_usd=ceiling,
            days=list(day) or None,
            max_states=max_states or None,
            ledger=settings.ledger or None,
            progress=progress,
        )
    _print(report.to_dict(), as_json, "replay")
    if report.exhausted_scope:
        raise BudgetExhausted(
            f"budget exhausted in scope {report.exhausted_scope}; {len(report.not_bought)} replies"
            " were not bought, run again with a higher --max-usd to buy them"
        )


@app.command
def pairs(*, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Make hints from error turns, and pairs where teachers agree against the agent."""
    from composer_pipeline.preferences.hints import build_hints
    from composer_pipeline.preferences.pairs import build_pairs

    store = _lake(lake)
    days = store.days("states")
    if not days:
        raise InputError(f"lake {store.url} has no states; run ingest first")
    total: dict[str, Any] = {"states": 0, "pairs": 0, "by_tier": {}, "by_tool": {}, "hints": 0}
    for day in days:
        total["hints"] += build_hints(store, day).hints
        report = build_pairs(store, day)
        total["states"] += report.states
        total["pairs"] += report.pairs
        for name in ("by_tier", "by_tool"):
            for key, count in getattr(report, name).items():
                total[name][key] = total[name].get(key, 0) + count
    _print(total, as_json, "pairs")


@app.command
def compare(file: Path, /) -> None:
    """Print the level of agreement for each line {a, b, cwd, home, context} of a JSONL file.

    Args:
        file: JSONL file.
    """
    from composer_pipeline.preferences.agree import compare as run

    if not file.is_file():
        raise InputError(f"{file}: no such file")
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{file}:{number}: not JSON: {error.msg}") from error
        if not isinstance(record, dict):
            raise InputError(f"{file}:{number}: not a JSON object")
        sys.stdout.write(json.dumps(run(record), ensure_ascii=False) + "\n")


@app.command
def normalize(
    *,
    recipe: str = "",
    executor: str = "",
    columns: str = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Filter the pairs with a data-juicer recipe; every dropped row is recorded.

    Args:
        recipe: data-juicer recipe (COMPOSER_NORMALIZE).
        executor: default or ray, in place of the recipe's executor_type.
        columns: only write the flat columns that recipes judge, as JSON lines, to this file.
    """
    from composer_pipeline.preferences.normalize import normalize as run
    from composer_pipeline.preferences.normalize import write_columns

    store = _lake(lake)
    days = store.days("pairs")
    if not days:
        raise InputError(f"lake {store.url} has no pairs; run pairs first")
    if columns:
        rows = write_columns(store, days, columns)
        _print({"rows": rows, "file": columns}, as_json, "normalize")
        return
    path = recipe or Settings.from_env().normalize
    with _Bar() as progress:
        report = run(store, days, path, progress=progress, executor=executor)
    _print(
        {
            "kept": report.kept,
            "dropped": report.dropped,
            "by_op": report.by_op,
            "changed": report.changed,
        },
        as_json,
        "normalize",
    )


@app.command
def dataset(*, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Split by group of sessions and write the training columns."""
    from composer_pipeline.publishing.dataset import build_dataset

    report = build_dataset(_lake(lake))
    out = {
        "rows": report.rows,
        "splits": report.splits,
        "groups": report.groups,
        "grpo_groups": report.grpo_groups,
        "hints": report.hints,
        "drops": report.drops,
        "warning": report.warning,
    }
    _print(out, as_json, "dataset")


@app.command
def publish(
    *,
    repo: str,
    public: Annotated[bool, Parameter(negative="")] = False,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    allow_simulated: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Commit the dataset to the Hugging Face Hub, once; private unless --public.

    Args:
        repo: OWNER/NAME.
        public: create the repository public.
        dry_run: plan and check, commit nothing.
        allow_simulated: allow rows of simulated teachers; the card says so.
    """
    from composer_pipeline.publishing.publish import publish as run

    report = run(
        _lake(lake), repo, private=not public, dry_run=dry_run, allow_simulated=allow_simulated
    )
    _print(
        {"commit": report.commit, "files": report.files, "changed": report.changed},
        as_json,
        "publish",
    )


@app.command
def train(
    *,
    recipe: str = "",
    force: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run a trainer on the dataset.

    Args:
        recipe: training recipe (COMPOSER_TRAIN).
        force: train again although a finished run of the same inputs exists.
    """
    from composer_pipeline.training.run import train as run

    settings = Settings.from_env()
    store = _lake(lake)
    with _Bar() as progress:
        report = run(
            store,
            recipe or settings.train,
            _run_root(settings, store),
            progress=progress,
            force=force,
        )
    out = {"run_dir": report.run_dir, "checkpoint": report.checkpoint, "metrics": report.metrics}
    _print({**out, "reused": report.reused}, as_json, "train")


def _run_root(settings: Settings, lake: Lake) -> Path:
    """The settings' rule, for the lake that --lake names."""
    return settings.model_copy(update={"lake": lake.url}).run_root


@app.command
def evaluate(*, recipe: str = "", lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Measure a trained model on held-out sessions, before and after.

    Args:
        recipe: training recipe whose run is evaluated (COMPOSER_TRAIN).
    """
    from composer_pipeline.training.evaluate import evaluate as run
    from composer_pipeline.training.run import prepare

    settings = Settings.from_env()
    store = _lake(lake)
    prepared = prepare(store, recipe or settings.train, _run_root(settings, store))
    if not prepared.complete:
        raise InputError(f"{prepared.run_dir} holds no finished training run; run train first")
    _print({"metrics": run(store, prepared.run_dir).metrics}, as_json, "evaluate")


@app.command
def doctor(*, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """Check the environment, the keys (present or not), the recipes and the lake."""
    from composer_pipeline.doctor import run_checks

    checks = run_checks(_lake(lake), Settings.from_env())
    if as_json:
        _print({"checks": checks}, True, "doctor")
    else:
        table = Table("check", "status", "detail")
        for check in checks:
            table.add_row(check["name"], check["status"], check["detail"])
        Console().print(table)
    if any(check["status"] == "fail" for check in checks):
        raise ComposerError("doctor found a failing check")


tools_app = App(name="tools", help="Tool schemas of a user's own Claude Code installation.")
app.command(tools_app)


@tools_app.command(name="import")
def tools_import(
    path: Path, /, *, version: str = "", lake: LakeOption = "", as_json: JsonOption = False
) -> None:
    """Keep the tool schemas of an installation in the lake, for states not yet asked.

    Args:
        path: the installed npm package's folder, or its sdk-tools.d.ts.
        version: version of Claude Code, where no package.json tells it.
    """
    from composer_pipeline.replay.installed import keep, read_installation

    tools = read_installation(path, version)
    keep(_lake(lake), tools)
    report = {"version": tools.version, "tools": sorted(tools.parameters)}
    _print(report, as_json, "tools import")


@tools_app.command(name="list")
def tools_list(*, lake: LakeOption = "", as_json: JsonOption = False) -> None:
    """List the versions whose tool schemas the lake keeps."""
    from composer_pipeline.replay.installed import kept_sets

    kept = {item.version: len(item.parameters) for item in kept_sets(_lake(lake))}
    _print({"versions": kept}, as_json, "tools")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the contract's code."""
    try:
        app(
            list(arguments) if arguments is not None else None,
            exit_on_error=False,
            print_error=False,
        )
    except cyclopts.CycloptsError as error:
        _fail(str(error).strip().splitlines()[-1] or "bad usage", 2)
    except InputError as error:
        _fail(str(error), 2)
    except BudgetExhausted as error:
        _fail(str(error), 3)
    except ComposerError as error:
        _fail(str(error), 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"composer-pipeline: {message}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
