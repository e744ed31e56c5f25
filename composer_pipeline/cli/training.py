"""The commands train, replicas, evaluate and environment, and their tables."""

import importlib.util
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from composer_pipeline.cli.common import (
    Bar,
    JsonOption,
    LakeOption,
    Table,
    app,
    at_least,
    check_port,
    err,
    open_lake,
    show,
)
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings, recipes_dir

if TYPE_CHECKING:
    from composer_pipeline.diloco.views import RunOverview, SlotReport
    from composer_pipeline.training.recipe import TrainingRecipe


@app.command
def train(
    *,
    recipe: str = "",
    extend: str = "",
    rounds: int | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
    merge: Annotated[bool, Parameter(negative="")] = False,
    plan: Annotated[bool, Parameter(negative="")] = False,
    probe: Annotated[bool, Parameter(negative="")] = False,
    memory_gib: float | None = None,
    model_config: str = "",
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run a trainer on the dataset.

    Args:
        recipe: training recipe (COMPOSER_TRAIN). Default: default.yaml, which needs a GPU of
            24 GB, or smollm2-cpu.yaml without a GPU.
        extend: folder of a finished run to continue, instead of a recipe; it is not changed.
        rounds: with --extend, the total number of rounds.
        force: train again even if a run of the same inputs exists; that run is moved aside.
        merge: also write base and adapter as one model, to merged/ in the run folder.
        plan: do not train; print rows, steps and predicted memory, and fail if they do not fit.
        probe: with --plan, time three real steps.
        memory_gib: with --plan, memory of one replica instead of this machine's.
        model_config: with --plan, a config.json instead of the model; lengths are assumed.
    """
    from composer_pipeline.training.plan import plan as plan_run
    from composer_pipeline.training.run import train as run

    settings = Settings.from_env()
    longer = _extended(extend, rounds, recipe)
    store = open_lake(lake)
    if plan:
        # A plan for another machine does not depend on this one's devices.
        given = (recipe or settings.train) if memory_gib else recipe_of(recipe, settings)
        planned = plan_run(
            store, longer or given, run_root_of(settings, store), probe=probe,
            memory_gib=memory_gib, model_config=model_config or None,
        )  # fmt: skip
        show(planned.to_dict(), as_json, "train --plan")
        return
    if probe or memory_gib is not None or model_config:
        raise InputError("--probe, --memory-gib and --model-config need --plan")
    chosen = longer or recipe_of(recipe, settings)
    with Bar() as progress:
        report = run(
            store, chosen, run_root_of(settings, store), progress=progress, force=force, merge=merge
        )
    show(report.to_dict(), as_json, "train")


def _extended(run_dir: str, rounds: int | None, recipe: str) -> "TrainingRecipe | None":
    from composer_pipeline.training.run import extended

    if bool(run_dir) != (rounds is not None):
        raise InputError("--extend and --rounds need each other")
    if rounds is None:
        return None
    if recipe:
        raise InputError("--extend continues with the run's own recipe; leave --recipe out")
    return extended(run_dir, rounds)


def recipe_of(given: str, settings: Settings) -> str:
    """Return the recipe of an option: without a choice, one that this machine can train."""
    from composer_pipeline.training.plan import devices

    if given or settings.train != Settings().train or devices():
        return given or settings.train
    path = recipes_dir() / "train" / "smollm2-cpu.yaml"
    err.print(
        f"no GPU here: the recipe is {path.name} (SmolLM2-135M, about half an hour on two cores);"
        f" {Path(settings.train).name} needs a GPU of 24 GB, choose it with --recipe",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    return str(path)


def run_root_of(settings: Settings, lake: Lake) -> Path:
    """Return the folder of training runs for a lake."""
    return settings.model_copy(update={"lake": lake.url}).run_root


@app.command
def replicas(
    url: str, /, *, run_id: str = "", timeline: Path | None = None, as_json: JsonOption = False
) -> None:
    """Show a DiLoCo run: rounds, replicas, waits, bytes, and missing replicas.

    Args:
        url: a run's folder, or folder or URL of the outer log (diloco.log of the recipe).
        run_id: the run, if the log has several.
        timeline: write the run's timeline so far to this file (SVG); a finished run has it in
            report/.
    """
    from composer_pipeline.diloco.views import only_run, overview
    from composer_pipeline.training.recipe import TrainingRecipe
    from composer_pipeline.training.run import RECIPE

    if "://" not in url and not Path(url).is_dir():
        raise InputError(f"{url}: no such folder")
    if (Path(url) / RECIPE).is_file():
        shared = (options := TrainingRecipe.load(Path(url) / RECIPE).diloco).log
        run_id = run_id or options.run_id or (Path(url).absolute().name if shared else "")
        url = shared or str(Path(url) / "outer")
    report = overview(url, only_run(url, run_id))
    if timeline is not None:
        from composer_pipeline.diloco.log import OuterLog
        from composer_pipeline.diloco.views import history
        from composer_pipeline.diloco.views import timeline as draw
        from composer_pipeline.files import replace

        replace(timeline, draw(history(OuterLog.open(url, report.run_id))))
    if as_json:
        show(report.to_dict(), as_json, "replicas")
    else:
        show_replicas(Console(), report)


@app.command
def evaluate(
    *,
    recipe: str = "",
    states: str = "",
    per_kind: int | None = None,
    max_new_tokens: int | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
    lake: LakeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Measure a trained model and its base on states that training never saw.

    Args:
        recipe: training recipe whose run is evaluated (COMPOSER_TRAIN).
        states: an evaluation set (Parquet) instead of the validation split's states.
        per_kind: states of each kind, at most.
        max_new_tokens: tokens of an answer, at most; default: the recipe's max_completion_tokens.
        force: measure again even if nothing changed.
    """
    from composer_pipeline.evaluation.evaluate import TRAINED
    from composer_pipeline.evaluation.evaluate import evaluate as run
    from composer_pipeline.evaluation.report import table
    from composer_pipeline.training.run import prepare

    settings = Settings.from_env()
    store = open_lake(lake)
    prepared = prepare(
        store, recipe_of(recipe, settings), run_root_of(settings, store), begin=False
    )
    if not prepared.complete:
        raise InputError(f"{prepared.run_dir} holds no finished training run; run train first")
    with Bar() as progress:
        report = run(
            store, prepared.run_dir, states=states or None, per_kind=per_kind,
            max_new_tokens=max_new_tokens, force=force, progress=progress,
        )  # fmt: skip
    if as_json:
        show(report.to_dict(), as_json, "evaluate")
    else:
        rows = table(report.cells, TRAINED)
        show_evaluation(Console(), rows, report.to_dict(), str(report.folder))


@app.command
def environment(
    *,
    split: str = "",
    max_steps: int | None = None,
    student: str = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    lake: LakeOption = "",
) -> None:
    """Serve recorded sessions as an OpenEnv environment, until interrupted.

    An episode continues as long as each tool call is the recorded one.

    Args:
        split: only sessions of this split; default: all except those of validation.
        max_steps: responses of an episode, at most.
        student: the trained model, as sessions name it: what it recorded is no target.
        host: address to listen on; any other than 127.0.0.1 exposes the lake to a network.
        port: port to listen on; 0 is any free one.
    """
    store = open_lake(lake)
    if max_steps is not None:
        at_least(1, max_steps, "--max-steps")
    check_port(port)
    if importlib.util.find_spec("openenv") is None:
        raise InputError("openenv is not installed: pip install 'composer-pipeline[environment]'")
    from composer_pipeline.environment.recorded import Traces

    traces = Traces(store, split=split, max_turns=max_steps, student=student)
    traces.drawn(0)  # fails early for a lake of which nothing can be replayed
    with _listener(host, port) as listener:
        from composer_pipeline.environment.server import serve

        at = f"http://{host}:{listener.getsockname()[1]}"
        serve(
            traces,
            listener,
            lambda: err.print(f"{len(traces)} states at {at}", markup=False, highlight=False),
        )


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on {host}:{port} ({error.strerror}); choose another --port"
        ) from error
    listener.listen(128)
    return listener


def show_evaluation(
    console: Console, rows: Sequence[Sequence[str]], report: Mapping[str, Any], where: str
) -> None:
    """Print an evaluation: rows of ``evaluation.report.table``, and the report as a mapping."""
    from composer_pipeline.evaluation.report import HEAD

    grid = Table(title=f"evaluate: {report['split']}", title_justify="left", keys=2)
    for name in HEAD:
        grid.add_column(name, justify="left" if name in HEAD[:2] else "right")
    before = ""
    for row in rows:
        if before and row[0] != before:
            grid.add_section()
        cells = ["" if row[0] == before else row[0], *row[1:]]
        grid.add_row(*map(Text, cells))  # brackets are not markup
        before = row[0]
    console.print(grid)
    counts = ", ".join(f"{count} {kind}" for kind, count in report["states"].items())
    console.print(Text(f"{counts}, of {report['sessions']} sessions"))
    if report["dropped"]:
        dropped = ", ".join(f"{count} {reason}" for reason, count in report["dropped"].items())
        console.print(Text(f"left out: {dropped}"))
    for sentence in report["worse"]:
        console.print(Text(f"worse than its base on {sentence}", style="bold red"))
    for sentence in report["unknown"]:
        console.print(Text(f"not known whether it is worse on {sentence}", style="yellow"))
    console.print(Text(f"report: {where}", style="dim"))


def show_replicas(console: Console, run: "RunOverview") -> None:
    """Print the progress of a run and its missing replicas."""
    title = f"run {run.run_id}: {run.done} of {run.rounds} rounds"
    heads = ("slot", "state", "machine", "starts", "seen", "merged", "left out", "steps")
    table = Table(*heads, "a step", "tokens", "sent", "waited", title=title, title_justify="left")
    for slot in run.slots:
        table.add_row(*_row(slot, run.done))
    console.print(table)
    lines = [f"{run.tokens:,} tokens, {_size(run.stored_bytes)} in {run.url}"]
    if run.empty:
        lines.append(f"rounds that merged nothing: {', '.join(map(str, run.empty))}")
    if run.missing:
        slots = ", ".join(map(str, run.missing))
        lines.append(f"missing: {slots} (a round needs {run.min_quorum} of {len(run.slots)})")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _row(slot: "SlotReport", done: int) -> tuple[str, ...]:
    return (
        str(slot.slot),
        slot.state,
        slot.host or "-",
        str(slot.attempts),
        "-" if slot.seen_s is None else f"{slot.seen_s:,.0f} s ago",
        f"{slot.merged} of {done}",
        str(slot.rejected),
        f"{slot.steps:,}",
        "-" if slot.step_s is None else f"{slot.step_s:,.2f} s",
        f"{slot.tokens:,}",
        _size(slot.bytes_sent),
        f"{slot.wait_s:,.1f} s",
    )


def _size(count: int) -> str:
    return f"{count / 1e6:,.2f} MB"
