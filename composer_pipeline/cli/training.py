"""Commands of the training room: train, replicas, evaluate."""

import importlib.util
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console

from composer_pipeline.cli.common import (
    Bar,
    JsonOption,
    LakeOption,
    app,
    at_least,
    err,
    open_lake,
    show,
)
from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.settings import Settings, recipes_dir

if TYPE_CHECKING:
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
        recipe: training recipe (COMPOSER_TRAIN). Without one: default.yaml, which needs a GPU of
            24 GB; smollm2-cpu.yaml where there is no GPU.
        extend: folder of a finished run to go on from, in place of a recipe; it stays as it is.
        rounds: with --extend, how many rounds the run shall have in all.
        force: train again although a run of the same inputs exists; that is moved aside.
        merge: also write base and adapter as one model, to merged/ in the run folder.
        plan: train nothing; print rows, steps and predicted memory, and refuse what will not fit.
        probe: with --plan, time three real steps.
        memory_gib: with --plan, memory of one replica in place of what is here.
        model_config: with --plan, a config.json in place of the model; lengths are assumed.
    """
    from composer_pipeline.training.plan import plan as plan_run
    from composer_pipeline.training.run import train as run

    settings = Settings.from_env()
    longer = _extended(extend, rounds, recipe)
    store = open_lake(lake)
    if plan:
        # What is asked about another machine is no question of this one's devices.
        asked = (recipe or settings.train) if memory_gib else _recipe(recipe, settings)
        planned = plan_run(
            store,
            longer or asked,
            _run_root(settings, store),
            probe=probe,
            memory_gib=memory_gib,
            model_config=model_config or None,
        )
        show(planned.to_dict(), as_json, "train --plan")
        return
    if probe or memory_gib is not None or model_config:
        raise InputError("--probe, --memory-gib and --model-config belong to --plan")
    chosen = longer or _recipe(recipe, settings)
    with Bar() as progress:
        report = run(
            store,
            chosen,
            _run_root(settings, store),
            progress=progress,
            force=force,
            merge=merge,
        )
    show(report.to_dict(), as_json, "train")


def _extended(run_dir: str, rounds: int | None, recipe: str) -> "TrainingRecipe | None":
    """Return the recipe of a longer run, where one is asked for."""
    from composer_pipeline.training.runs import extended

    if bool(run_dir) != (rounds is not None):
        raise InputError("--extend and --rounds belong together")
    if rounds is None:
        return None
    if recipe:
        raise InputError("--extend goes on with the run's own recipe; leave --recipe out")
    return extended(run_dir, rounds)


def _recipe(given: str, settings: Settings) -> str:
    """Return the recipe to train; where nobody chose one, one that this machine can train."""
    from composer_pipeline.training.devices import devices

    if given or settings.train != Settings().train or devices():
        return given or settings.train
    path = recipes_dir() / "train" / "smollm2-cpu.yaml"
    err.print(
        f"no GPU here: the recipe is {path.name} (SmolLM2-135M, about half an hour on two cores);"
        f" {Path(settings.train).name} needs a GPU of 24 GB, --recipe asks for it all the same",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    return str(path)


def _run_root(settings: Settings, lake: Lake) -> Path:
    """The settings' rule, for the lake that --lake names."""
    return settings.model_copy(update={"lake": lake.url}).run_root


@app.command
def replicas(
    url: str, /, *, run_id: str = "", timeline: Path | None = None, as_json: JsonOption = False
) -> None:
    """Show a DiLoCo run: rounds, replicas, waits, bytes, and who is missing.

    Args:
        url: folder or URL of the outer log (diloco.log of the recipe, or outer/ of a run folder).
        run_id: the run, where there are several.
        timeline: a file for its picture so far (SVG); a finished run has one in report/.
    """
    from composer_pipeline.cli.training_views import show_replicas
    from composer_pipeline.diloco.views import only_run, overview

    if "://" not in url and not Path(url).is_dir():
        raise InputError(f"{url}: no such folder")
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
        states: an evaluation set (Parquet) in place of the validation split's states.
        per_kind: at most so many states of each kind.
        max_new_tokens: tokens of an answer at most; the recipe's max_completion_tokens.
        force: measure again although nothing has changed.
    """
    from composer_pipeline.cli.training_views import show_evaluation
    from composer_pipeline.evaluation.evaluate import TRAINED
    from composer_pipeline.evaluation.evaluate import evaluate as run
    from composer_pipeline.evaluation.report import table
    from composer_pipeline.training.run import prepare

    settings = Settings.from_env()
    store = open_lake(lake)
    prepared = prepare(store, _recipe(recipe, settings), _run_root(settings, store), begin=False)
    if not prepared.complete:
        raise InputError(f"{prepared.run_dir} holds no finished training run; run train first")
    with Bar() as progress:
        report = run(
            store,
            prepared.run_dir,
            states=states or None,
            per_kind=per_kind,
            max_new_tokens=max_new_tokens,
            force=force,
            progress=progress,
        )
    if as_json:
        show(report.to_dict(), as_json, "evaluate")
    else:
        rows = table(report.cells, TRAINED)
        show_evaluation(Console(), rows, report.to_dict(), str(report.folder))


_LAST_PORT = 65535


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

    An episode goes on for as long as each tool call is the recorded one.

    Args:
        split: only sessions of this split; without it, all but those of validation.
        max_steps: responses of an episode at most.
        student: model that is trained, as sessions name it: what it recorded is no target.
        host: address to listen at; another than 127.0.0.1 shows the lake to a network.
        port: to listen at; 0 is any free one.
    """
    store = open_lake(lake)
    if max_steps is not None:
        at_least(1, max_steps, "--max-steps")
    if at_least(0, port, "--port") > _LAST_PORT:
        raise InputError(f"--port must be at most {_LAST_PORT}, got {port}")
    if importlib.util.find_spec("openenv") is None:
        raise InputError("openenv is not installed: pip install 'composer-pipeline[environment]'")
    from composer_pipeline.environment.recorded import Traces

    traces = Traces(store, split=split, max_turns=max_steps, student=student)
    traces.drawn(0)  # a lake of which nothing can be replayed says so now
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
            f"cannot listen at {host}:{port} ({error.strerror}); choose another with --port"
        ) from error
    listener.listen(128)
    return listener
