"""Train one recipe: ``python -m trainers.trl --recipe R --lake L --run-dir D``.

Belongs here: preparing the run folder, starting the replicas, gathering what they report,
and the result files. Does not belong here: training (``trainers.trl.replica``).

Works on its own and under Dagster Pipes. Exit codes: 0 done, 2 bad input, 1 anything else; both
with one sentence on standard error. A replica's own exit code decides whether it is started
again (``diloco.supervisor``). An interrupted run goes on at its last committed round. A run
whose rounds merged nothing has failed: its state is the untouched base.

Run folder: ``recipe.yaml`` ``contents.json`` (what is behind the recipe's names) ``data/``
``outer/`` (the outer log, unless ``diloco.log`` names another) ``replicas/`` ``metrics.jsonl``
``checkpoint/`` ``report/`` (the run over time) and, last of all, ``composer.json``, which makes it
complete.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from dagster_pipes import PipesEnvVarParamsLoader, open_dagster_pipes

from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.places.hf_jobs import HfJobs
from composer_pipeline.diloco.places.job import Place
from composer_pipeline.diloco.places.kubernetes_jobs import KubernetesJobs
from composer_pipeline.diloco.places.local import ReplicaCommand
from composer_pipeline.diloco.places.modal_sandboxes import ModalSandboxes
from composer_pipeline.diloco.supervisor import (
    RoundReport,
    SlotEnd,
    Supervisor,
    SupervisorReport,
    supervised,
)
from composer_pipeline.diloco.views import history
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import make_folder, out_of_space, writing
from composer_pipeline.lake.store import Lake
from composer_pipeline.parent import end_with_parent
from composer_pipeline.training import events
from composer_pipeline.training.build_rows import build, require_rows
from composer_pipeline.training.curves import round_losses
from composer_pipeline.training.devices import device_of_each, devices
from composer_pipeline.training.events import run_process
from composer_pipeline.training.model_card import CARD, card
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import repo_root, validate
from composer_pipeline.training.rows import TrainingData
from composer_pipeline.training.run import (
    CHECKPOINT,
    DATA,
    HELD_OUT,
    METRICS,
    RESULT,
    best_round,
    held_out_losses,
    summarise,
    write_json,
    write_recipe,
)
from composer_pipeline.training.runs import (
    CONTENTS,
    Contents,
    alone,
    contents,
    dataset_digest,
    simulated_rows,
    versions,
)
from trainers.trl.adapters import check_start
from trainers.trl.base_scores import BaseScores, gate, is_scored
from trainers.trl.outer_log import begin, gather, place, spec_of, take_over, take_up
from trainers.trl.sentences import sentence

LIVE_TEACHER = (
    "channels.sdpo.teacher is 'live': a model that teaches itself is known to lose what it could;"
    " 'frozen' or 'ema' is safer"
)
#: Events of replicas that people see too.
SAID = frozenset(
    {"step", "bad_step", "out_of_memory", "separate_forwards", "held_out", "resumed"}
    | {"inner_dropped"}
)
#: Seconds for replicas to leave after the last commit, also where they still look at held-out
#: rows, which on a CPU takes minutes.
LEAVE_S, LAST_LOOK_S = 60.0, 3600.0
#: Children load what this process has found: the same commit of a Hub id for all of them.
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def main(argv: list[str] | None = None) -> int:
    """Train and return the exit code."""
    parser = argparse.ArgumentParser(prog="trainers.trl", description=__doc__)
    parser.add_argument("--recipe", required=True, help="training recipe (YAML)")
    parser.add_argument("--lake", required=True, help="folder or URL of the lake")
    parser.add_argument("--run-dir", required=True, type=Path, help="folder of this run")
    options = parser.parse_args(argv)
    end_with_parent()
    # A polite kill runs the clean-up, which stops the replicas.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with _pipes() as pipes:
            recipe = TrainingRecipe.load(options.recipe)
            with out_of_space(f"run folder {options.run_dir}"):
                train(recipe, Lake(options.lake), options.run_dir, pipes)
    except ComposerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2 if isinstance(error, InputError) else 1
    return 0


def train(recipe: TrainingRecipe, lake: Lake, run_dir: Path, pipes: Any = None) -> dict[str, Any]:
    """Train a recipe in ``run_dir`` and return the content of ``composer.json``.

    Raises:
        InputError: recipe, data or model are unusable; before any model is loaded where
            a weighted channel has no row.
        ComposerError: replicas failed, no round merged anything, or another process trains
            in this folder.
    """
    trainer = validate(recipe)
    require_rows(lake, recipe)
    own_device = device_of_each(
        max(1, recipe.diloco.here), devices(), processes=recipe.ranks.processes
    )
    with writing(f"run folder {run_dir}"):
        make_folder(run_dir)
    with alone(run_dir):
        found = _same_contents(recipe, run_dir)
        check_start(recipe, found["model"])
        started, digest = time.monotonic(), dataset_digest(lake, recipe)
        resolved = resolve_model(recipe.model)  # also where the data are there: children look here
        take_up(recipe, run_dir, found, digest)
        data = _data(recipe, lake, run_dir, resolved)
        recipe = recipe.resolved(data.counts())
        write_recipe(recipe, run_dir)
        counts = {c: n for c, n in data.counts().items() if c in recipe.channels.weights()}
        _say(pipes, {"event": "data", **counts, "dropped": data.dropped})
        if recipe.channels.sdpo.weight and recipe.channels.sdpo.teacher == "live":
            _say(pipes, {"event": "warning", "text": LIVE_TEACHER})
        parts = {".": recipe}
        if recipe.eval_every is not None:
            parts[HELD_OUT] = _prepare_held_out(recipe, lake, run_dir, resolved)
        _base_pass(parts, run_dir, pipes, own_device[0])
        hints = _hints(recipe, data, run_dir, pipes)
        take_over(recipe, run_dir, found["model"]["digest"], digest)
        if begin(recipe, run_dir, found, digest) is not None:
            url, run_id = place(recipe, run_dir)
            _say(pipes, {"event": "joinable", "log": url, "run_id": run_id})
        with events.appending(run_dir / METRICS) as metrics:
            events.recover(metrics, run_dir / METRICS, sorted(run_dir.glob("replicas/slot-*.log")))
            report = _replicas(recipe, digest, run_dir, metrics, pipes, own_device)
            gather(recipe, run_dir, metrics, recipe.total_steps)
        require_merged(report.rounds)
        measured = held_out_losses(run_dir)
        kept = best_round(measured) if recipe.keep_best else recipe.rounds
        result = {
            "recipe": _public(recipe, found),
            "base_model": found["model"]["name"],
            "base": found["model"],
            "start_from": found.get("start_from"),
            "versions": versions(trainer),
            "dataset_sha": digest,
            "simulated": simulated_rows(lake, recipe),
            "rows": counts,
            "seen": data.seen,
            "dropped": data.dropped,
            "commits": [
                {"round": r.round, "merged": bool(r.included), "included": list(r.included),
                 "by": r.by, "tokens": r.tokens,
                 "rejected": {str(k): v for k, v in r.rejected.items()}, "state_sha": r.state_sha}
                for r in report.rounds
            ],
            "restarts": {str(slot): n for slot, n in report.restarts.items()},
            "metrics": {
                **hints,
                **summarise(recipe, run_dir, report.rounds, time.monotonic() - started),
                **{f"held_out_loss_round_{r}": loss for r, loss in sorted(measured.items())},
                "checkpoint_round": kept,
            },
        }  # fmt: skip
        _write_checkpoint(recipe, run_dir, result, kept)
        _draw(recipe, run_dir)
        write_json(run_dir / RESULT, result)
    if pipes is not None:
        pipes.report_asset_materialization(metadata=result["metrics"])
    _say(pipes, {"event": "done", "run_dir": str(run_dir)})
    return result


def _same_contents(recipe: TrainingRecipe, run_dir: Path) -> Contents:
    """Return what is behind the recipe's names, which must be what the run began with.

    Raises:
        InputError: a model or adapter has changed since.
    """
    found, path = contents(recipe), run_dir / CONTENTS
    if not path.is_file():
        write_json(path, found)
    elif (known := json.loads(path.read_text(encoding="utf-8"))) != found:
        field = next(name for name in {**known, **found} if known.get(name) != found.get(name))
        raise InputError(
            f"recipe field {field}: {getattr(recipe, field)!r} is not what run folder {run_dir}"
            " began with; train through composer-pipeline train, which gives it a run of its own"
        )
    return found


def _public(recipe: TrainingRecipe, found: Contents) -> dict[str, Any]:
    """Return the recipe with names for other machines in place of folders of this one."""
    names = {field: content["name"] for field, content in found.items()}
    return recipe.model_dump(mode="json") | names


def _write_checkpoint(
    recipe: TrainingRecipe, run_dir: Path, result: dict[str, Any], round_: int
) -> None:
    from trainers.trl.checkpoints import state_file, write_checkpoint

    included = next(c["included"] for c in result["commits"] if c["round"] == round_)
    states = state_file(
        run_dir, round_ * recipe.diloco.inner_steps, prefer=min(included, default=0)
    )
    files = {CARD: card(result), RESULT: json.dumps(result, indent=1, allow_nan=False)}
    target = run_dir / CHECKPOINT
    write_checkpoint(
        recipe, *place(recipe, run_dir), target, base=result["base"], files=files,
        round_=round_, states=states,
    )  # fmt: skip


def _draw(recipe: TrainingRecipe, run_dir: Path) -> None:
    """Leave the picture of the run: who trained, waited or was dead, bytes and losses."""
    from composer_pipeline.report.timeline import write_timeline

    log = OuterLog.open(*place(recipe, run_dir))
    log.store.patience_s = recipe.diloco.store_patience_s if recipe.diloco.log else 0.0
    losses = round_losses(run_dir, recipe.diloco.inner_steps)
    write_timeline(run_dir, history(log), losses)


def _data(recipe: TrainingRecipe, lake: Lake, run_dir: Path, resolved: str) -> TrainingData:
    if TrainingData.is_complete(run_dir / DATA):
        return TrainingData.load(run_dir / DATA)
    return build(lake, load_tokenizer(resolved), recipe, run_dir / DATA)


def _prepare_held_out(
    recipe: TrainingRecipe, lake: Lake, run_dir: Path, resolved: str
) -> TrainingRecipe:
    """Build the held-out rows and return the recipe that takes them."""
    from trainers.trl.held_out import prepare

    taking = prepare(lake, load_tokenizer(resolved), recipe, run_dir)
    write_recipe(taking, run_dir / HELD_OUT)
    return taking


def _hints(
    recipe: TrainingRecipe, data: TrainingData, run_dir: Path, pipes: Any
) -> dict[str, float]:
    """Return the numbers of the hint gate, and say them."""
    _, numbers = gate(recipe, data, BaseScores.load(run_dir).gains())
    if numbers:
        _say(pipes, {"event": "hints", **numbers})
    return numbers


def _base_pass(
    parts: Mapping[str, TrainingRecipe], run_dir: Path, pipes: Any, env: dict[str, str]
) -> None:
    """Let the base model score the rows of each part, in a process of its own, where it has not."""
    missing = [part for part, recipe in parts.items() if not is_scored(run_dir / part, recipe)]
    if not missing:
        return
    command = [sys.executable, "-m", "trainers.trl.base_pass"]
    run_process(
        [*command, "--run-dir", str(run_dir), *(f"--part={part}" for part in missing)],
        cwd=repo_root(),
        env={**OFFLINE, **supervised(), **env},
        what="the base pass",
        on_event=lambda event: _say(pipes, event),
    )


def _replicas(
    recipe: TrainingRecipe, data_plan: str, run_dir: Path, metrics: IO[bytes], pipes: Any,
    own_device: Sequence[dict[str, str]],
) -> SupervisorReport:  # fmt: skip
    options = recipe.diloco
    here, (url, run_id) = options.here, place(recipe, run_dir)
    arguments, processes = ["--run-dir", str(run_dir)], recipe.ranks.processes
    argv = [sys.executable, "-m", "trainers.trl.replica", *arguments]
    if processes > 1:
        launcher = ["trainers.trl.ranks", "--processes", str(processes), "--"]
        argv = [sys.executable, "-m", *launcher, *arguments]

    def on_log(slot: int, line: str) -> None:
        event = events.parse(line) if line.startswith('{"event"') else None
        if event is not None:
            event = events.strict({"time": time.time(), **event})
            events.append(metrics, event)
            if event.get("event") in SAID:
                _say(pipes, event)

    def on_round(report: RoundReport) -> None:
        included = list(report.included)
        _say(pipes, {"event": "round", "round": report.round, "of": recipe.rounds,
                     "included": included, "merged": bool(included), "bytes": report.bytes,
                     "tokens": report.tokens, "replicas": options.replicas,
                     "rejected": {str(k): v for k, v in report.rejected.items()}})  # fmt: skip

    def on_end(end: SlotEnd) -> None:
        event = {"event": "replica_ended", "time": time.time(), **asdict(end)}
        events.append(metrics, event)
        _say(pipes, event)

    return Supervisor(
        url=url,
        run_id=run_id,
        spec=spec_of(recipe, data_plan),
        commands=[
            ReplicaCommand(argv, {**OFFLINE, **env}, repo_root()) for env in own_device[:here]
        ],
        places=(places := _places(recipe, url, run_id)),
        elsewhere=options.replicas - here - len(places),
        run_dir=run_dir / "replicas",
        max_restarts=options.max_restarts,
        drain_s=LEAVE_S if recipe.eval_every is None else LAST_LOOK_S,
        on_round=on_round,
        on_log=on_log,
        on_end=on_end,
    ).run()


def _places(recipe: TrainingRecipe, url: str, run_id: str) -> list[Place]:
    """Return where each replica beyond those of this machine is started, if the recipe says."""
    options = recipe.diloco
    if options.place is None:
        return []
    there = options.place.model_dump(exclude={"kind"})
    kinds: dict[str, Callable[..., Place]] = {
        "hf-jobs": HfJobs, "kubernetes": KubernetesJobs, "modal": ModalSandboxes
    }  # fmt: skip
    return [kinds[options.place.kind](url, run_id, **there)] * (options.replicas - options.here)


def require_merged(rounds: Sequence[RoundReport]) -> None:
    """Refuse a run that has changed nothing.

    Raises:
        ComposerError: every round was committed empty; says why the first one was.
    """
    if any(round_.included for round_ in rounds):
        return
    reasons = [f"replica {slot}: {why}" for slot, why in sorted(rounds[0].rejected.items())]
    raise ComposerError(
        f"none of {len(rounds)} rounds merged anything, so the model is still the one it began"
        f" with ({'; '.join(reasons) or 'no replica contributed'}); change the recipe, for"
        " example learning_rate, or train anew with --force"
    )


def _say(pipes: Any, event: dict[str, Any]) -> None:
    """Print an event: one JSON line, or under Dagster one line for people and its log."""
    if pipes is None:
        print(events.line(event), flush=True)
    else:
        line = sentence(event)
        print(f"  {line}", flush=True)
        pipes.log.info(line)


@contextmanager
def _pipes() -> Iterator[Any]:
    """Yield the Pipes context, or ``None`` where Dagster did not start this process."""
    loader: Any = PipesEnvVarParamsLoader  # untyped upstream
    if not loader().is_dagster_pipes_process():
        yield None
        return
    with open_dagster_pipes() as context:
        yield context


if __name__ == "__main__":
    sys.exit(main())
