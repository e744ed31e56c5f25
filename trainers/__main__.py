"""Train one recipe: ``python -m trainers --recipe R --lake L --run-dir D``, also under Dagster.

Prepares the run folder, starts the replicas and writes the results. Exit codes: 0 done, 2 bad
input, 1 anything else. An interrupted run resumes at its last committed round; a run in which no
round merged anything has failed. ``composer.json`` is written last and makes the folder complete.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from dagster_pipes import PipesEnvVarParamsLoader, open_dagster_pipes

from composer_pipeline.diloco.log import Commit, OuterLog
from composer_pipeline.diloco.places.job import Place
from composer_pipeline.diloco.places.local import ReplicaCommand
from composer_pipeline.diloco.supervisor import (
    SlotEnd,
    Supervisor,
    SupervisorReport,
    supervised,
)
from composer_pipeline.diloco.views import history, write_timeline
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import folder_mode, make_folder, out_of_space, writing
from composer_pipeline.lake.store import Lake
from composer_pipeline.parent import end_with_parent
from composer_pipeline.training import events
from composer_pipeline.training.events import run_process
from composer_pipeline.training.model_card import CARD, card
from composer_pipeline.training.models import load_tokenizer, resolve_model
from composer_pipeline.training.plan import device_of_each, devices
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import repo_root, validate
from composer_pipeline.training.rows import TrainingData, build, require_rows, rows_of_tables
from composer_pipeline.training.run import (
    CHECKPOINT,
    CONTENTS,
    DATA,
    HELD_OUT,
    METRICS,
    RESULT,
    Contents,
    alone,
    best_round,
    contents,
    dataset_digest,
    held_out_losses,
    result_of,
    round_losses,
    summarise,
    write_json,
    write_recipe,
)
from trainers.common.adapters import check_start
from trainers.common.base_scores import BaseScores, gate, is_scored
from trainers.common.outer_log import begin, gather, place, spec_of, take_over, take_up

LIVE_TEACHER = (
    "channels.sdpo.teacher is 'live': a model that teaches itself is known to lose what it could;"
    " 'frozen' or 'ema' is safer"
)
#: Events of replicas that are also shown to the user.
SHOWN = {
    "step", "bad_step", "out_of_memory", "separate_forwards", "held_out", "resumed",
    "inner_dropped",
}  # fmt: skip
#: Seconds for replicas to exit after the last commit; longer where they still evaluate held-out
#: rows, which takes minutes on a CPU.
LEAVE_S, LAST_LOOK_S = 60.0, 3600.0
HELD_OUT_SPLIT = "validation"
#: Module and class of each ``diloco.place.kind``.
PLACES = {
    "hf-jobs": ("hf_jobs", "HfJobs"),
    "kubernetes": ("kubernetes_jobs", "KubernetesJobs"),
    "modal": ("modal_sandboxes", "ModalSandboxes"),
    "monarch": ("monarch_actors", "MonarchActors"),
}
#: Children load the snapshot that this process resolved: one commit of a Hub id for all.
OFFLINE = {"HF_HUB_OFFLINE": "1"}


def main(argv: list[str] | None = None) -> int:
    """Train and return the exit code."""
    parser = argparse.ArgumentParser(prog="trainers", description=__doc__)
    parser.add_argument("--recipe", required=True, help="training recipe (YAML)")
    parser.add_argument("--lake", required=True, help="folder or URL of the lake")
    parser.add_argument("--run-dir", required=True, type=Path, help="folder of this run")
    options = parser.parse_args(argv)
    end_with_parent()
    # SIGTERM runs the clean-up, which stops the replicas.
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
    """Train a recipe in ``run_dir`` and return the content of ``composer.json``."""
    validate(recipe)
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
        resolved = resolve_model(recipe.model)  # children are offline and read this cache
        take_up(recipe, run_dir, found, digest)
        data = _data(recipe, lake, run_dir, resolved)
        recipe = recipe.resolved(data.counts())
        if devices():
            from trainers.trl.plan import require_devices

            require_devices(recipe, data, resolved)
        write_recipe(recipe, run_dir)
        counts = {c: n for c, n in data.counts().items() if c in recipe.channels.weights()}
        _say(pipes, {"event": "data", **counts, "dropped": data.dropped})
        if recipe.channels.sdpo.weight and recipe.channels.sdpo.teacher == "live":
            _say(pipes, {"event": "warning", "text": LIVE_TEACHER})
        parts = {".": recipe}
        if recipe.eval_every is not None:
            parts[HELD_OUT] = held_out_recipe(recipe, lake, run_dir, load_tokenizer(resolved))
            write_recipe(parts[HELD_OUT], run_dir / HELD_OUT)
        _base_pass(parts, run_dir, pipes, own_device[0])
        _, hints = gate(recipe, data, BaseScores.load(run_dir).gains())
        if hints:
            _say(pipes, {"event": "hints", **hints})
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
        numbers = summarise(recipe, run_dir, report.rounds, time.monotonic() - started)
        held = {f"held_out_loss_round_{r}": loss for r, loss in sorted(measured.items())}
        metrics_ = {**hints, **numbers, **held, "checkpoint_round": kept}
        result = {
            **result_of(
                lake, recipe, found, dataset_sha=digest, rows=counts, metrics=metrics_
            ),
            "seen": data.seen,
            "dropped": data.dropped,
            "commits": [
                {"round": r.round, "merged": bool(r.included), "included": list(r.slots),
                 "by": r.by, "tokens": r.tokens,
                 "rejected": {str(k): v for k, v in r.why.items()}, "state_sha": r.state_sha}
                for r in report.rounds
            ],
            "restarts": {str(slot): n for slot, n in report.restarts.items()},
        }  # fmt: skip
        _write_checkpoint(recipe, run_dir, result, kept)
        _draw(recipe, run_dir)
        write_json(run_dir / RESULT, result)
    if pipes is not None:
        pipes.report_asset_materialization(metadata=result["metrics"])
    _say(pipes, {"event": "done", "run_dir": str(run_dir)})
    return result


def _same_contents(recipe: TrainingRecipe, run_dir: Path) -> Contents:
    """Return the content behind the recipe's names; it must not have changed since the start."""
    found, path = contents(recipe), run_dir / CONTENTS
    if not path.is_file():
        write_json(path, found)
    elif (known := json.loads(path.read_text(encoding="utf-8"))) != found:
        field = next(name for name in {**known, **found} if known.get(name) != found.get(name))
        raise InputError(
            f"recipe field {field}: {getattr(recipe, field)!r} has changed since run folder"
            f" {run_dir} was started; composer-pipeline train starts a new run folder for it"
        )
    return found


def _write_checkpoint(
    recipe: TrainingRecipe, run_dir: Path, result: dict[str, Any], round_: int
) -> None:
    from trainers.common.checkpoints import state_file, write_checkpoint

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
    log = OuterLog.open(*place(recipe, run_dir))
    log.store.patience_s = recipe.diloco.store_patience_s if recipe.diloco.log else 0.0
    write_timeline(run_dir, history(log), round_losses(run_dir, recipe.diloco.inner_steps))


def _data(recipe: TrainingRecipe, lake: Lake, run_dir: Path, resolved: str) -> TrainingData:
    if TrainingData.is_complete(run_dir / DATA):
        return TrainingData.load(run_dir / DATA)
    return build(lake, load_tokenizer(resolved), recipe, run_dir / DATA)


def held_out_recipe(
    recipe: TrainingRecipe, lake: Lake, run_dir: Path, tokenizer: Any
) -> TrainingRecipe:
    """Build ``<run>/held-out/data`` and return the recipe whose only step takes those rows.

    A channel without held-out rows is turned off; SDPO's teacher is the model before training.
    """
    seen = rows_of_tables(lake, recipe, HELD_OUT_SPLIT)
    if recipe.lora.r == 0:
        seen["sdpo"] = 0  # its teacher would be another copy of the whole model
    if not any(seen.values()):
        raise InputError(
            f"recipe field eval_every: lake {lake.url} has no held-out row"
            f" (split={HELD_OUT_SPLIT}) for any channel; leave eval_every out, or build the dataset"
            " with a validation share"
        )
    wanted = taking(recipe, {channel: recipe.eval_rows if n else 0 for channel, n in seen.items()})
    folder = run_dir / HELD_OUT / "data"
    data = (
        TrainingData.load(folder)
        if TrainingData.is_complete(folder)
        else build(lake, tokenizer, wanted, folder, split=HELD_OUT_SPLIT)
    )
    counts = data.counts()
    return taking(
        recipe, {c: min(recipe.eval_rows, counts[c]) if seen.get(c) else 0 for c in counts}
    )


def taking(recipe: TrainingRecipe, rows: Mapping[str, int]) -> TrainingRecipe:
    """Return a recipe of one step that takes this many rows of each channel."""
    sizes: dict[str, dict[str, Any]] = {
        "grpo": {"groups_per_step": rows.get("grpo", 0), "source": "recorded"},
        "sdpo": {
            "rows_per_step": rows.get("sdpo", 0), "teacher": "frozen", "hint_gain": False,
        },
        "dpo": {"pairs_per_step": rows.get("dpo", 0)},
        "sft": {"rows_per_step": rows.get("sft", 0)},
    }  # fmt: skip
    channels = recipe.channels
    changed = {}
    for name, fields in sizes.items():
        channel = getattr(channels, name)
        weight = channel.weight if rows.get(name) else 0.0
        changed[name] = channel.model_copy(update={**fields, "weight": weight})
    once = {"replicas": 1, "rounds": 1, "inner_steps": 1, "min_quorum": 1}
    return recipe.model_copy(
        update={
            "channels": channels.model_copy(update=changed),
            "diloco": recipe.diloco.model_copy(update=once),
            "steps": None,
            "epochs": None,
            "data": recipe.data.model_copy(update={"max_dropped_share": 1.0}),
        }
    )


def _base_pass(
    parts: Mapping[str, TrainingRecipe], run_dir: Path, pipes: Any, env: dict[str, str]
) -> None:
    """Score the rows of each unscored part with the base model, in a process of its own."""
    missing = [part for part, recipe in parts.items() if not is_scored(run_dir / part, recipe)]
    if not missing:
        return
    command = [sys.executable, "-m", "trainers.common.base_pass"]
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
    url, run_id = place(recipe, run_dir)
    arguments, processes = ["--run-dir", str(run_dir)], recipe.ranks.processes
    python = recipe.backend.python or sys.executable
    argv = [python, "-m", "trainers.replica", *arguments]
    if processes > 1:
        launcher = ["trainers.common.ranks", "--processes", str(processes), "--"]
        argv = [python, "-m", *launcher, *arguments]
    commands = [ReplicaCommand(argv, {**OFFLINE, **env}, repo_root()) for env in own_device]
    actors, logs = commands[options.children :], run_dir / "replicas"

    def on_log(slot: int, line: str) -> None:
        event = events.parse(line) if line.startswith('{"event"') else None
        if event is not None:
            event = events.strict({"time": time.time(), **event})
            events.append(metrics, event)
            if event.get("event") in SHOWN:
                _say(pipes, event)

    def on_round(commit: Commit) -> None:
        _say(pipes, {"event": "round", "round": commit.round, "of": recipe.rounds,
                     "included": list(commit.slots), "merged": bool(commit.included),
                     "bytes": commit.bytes, "tokens": commit.tokens, "replicas": options.replicas,
                     "rejected": {str(k): v for k, v in commit.why.items()}})  # fmt: skip

    def on_end(end: SlotEnd) -> None:
        event = {"event": "replica_ended", "time": time.time(), **asdict(end)}
        events.append(metrics, event)
        _say(pipes, event)

    return Supervisor(
        url=url,
        run_id=run_id,
        spec=spec_of(recipe, data_plan),
        commands=commands[: options.children],
        places=(places := _places(recipe, url, run_id, actors, logs)),
        elsewhere=options.replicas - options.children - len(places),
        run_dir=logs,
        max_restarts=options.max_restarts,
        drain_s=LEAVE_S if recipe.eval_every is None else LAST_LOOK_S,
        on_round=on_round,
        on_log=on_log,
        on_end=on_end,
    ).run()


def _places(
    recipe: TrainingRecipe, url: str, run_id: str, actors: Sequence[ReplicaCommand], logs: Path
) -> list[Place]:
    """Return the place of each replica that the recipe does not start as a child process."""
    options = recipe.diloco
    if options.place is None:
        return []
    # Imported only when named: each brings a service's client.
    module, name = PLACES[options.place.kind]
    kind = getattr(import_module(f"composer_pipeline.diloco.places.{module}"), name)
    if options.place.kind == "monarch":
        return [kind(command, logs) for command in actors]
    there = kind(url, run_id, **options.place.model_dump(exclude={"kind"}))
    return [there] * (options.replicas - options.here)


def require_merged(rounds: Sequence[Commit]) -> None:
    """Raise where every round was committed empty."""
    if any(round_.included for round_ in rounds):
        return
    reasons = [f"replica {slot}: {why}" for slot, why in sorted(rounds[0].why.items())]
    raise ComposerError(
        f"none of {len(rounds)} rounds merged anything, so the model is unchanged"
        f" ({'; '.join(reasons) or 'no replica contributed'}); change the recipe, for example"
        " learning_rate, or train again with --force"
    )


def _say(pipes: Any, event: dict[str, Any]) -> None:
    """Print an event as a JSON line; under Dagster as a sentence, also to its log."""
    if pipes is None:
        print(events.line(event), flush=True)
    else:
        line = sentence(event)
        print(f"  {line}", flush=True)
        pipes.log.info(line)


@contextmanager
def _pipes() -> Iterator[Any]:
    """Yield the Pipes context, or ``None`` outside Dagster."""
    loader: Any = PipesEnvVarParamsLoader  # untyped upstream
    if not loader().is_dagster_pipes_process():
        yield None
        return
    with open_dagster_pipes() as context:
        yield context


Event = dict[str, Any]
#: Metrics in a step's line and their short names; all of them depend on the model.
STEP_NUMBERS = {
    "grpo_best_gain": "grpo best",
    "grpo_worst_gain": "worst",
    "sdpo_loss": "sdpo",
    "dpo_loss": "dpo",
    "sft_loss": "sft",
    "grad_norm": "gradient",
}


def sentence(event: Event) -> str:
    """Return an event as one line for people."""
    return _SENTENCES[event["event"]](event)


def _step(event: Event) -> str:
    numbers = {name: event.get(key) for key, name in STEP_NUMBERS.items()}
    text = ", ".join(f"{n} {value:+.4f}" for n, value in numbers.items() if value is not None)
    if odd := event.get("non_finite"):
        text += f" not finite: {', '.join(odd)}"
    return f"replica {event['slot']} step {event['step']}/{event['of']}: {text}"


def _round(event: Event) -> str:
    number = f"round {event['round']}/{event['of']}"
    if not event["merged"]:
        why = "; ".join(f"replica {slot}: {why}" for slot, why in event["rejected"].items())
        return f"{number} merged nothing ({why})"
    away = sorted({*range(event["replicas"])} - {*event["included"]})
    parts = [f"{number} committed by replicas {', '.join(map(str, event['included']))}"]
    parts += [f"{event['tokens']:,} tokens, {event['bytes']:,} bytes"]
    for slot in away:
        reason = event["rejected"].get(str(slot))
        parts.append(f"replica {slot}: {reason}" if reason else f"replica {slot} is missing")
    return "; ".join(parts)


def _replica_ended(event: Event) -> str:
    code, went = event["code"], f"replica {event['slot']}"
    if code < 0:  # a signal left it no time for a sentence
        went += f" was killed ({signal.Signals(-code).name})"
    else:
        went += f" ended with {code} ({event['sentence']})"
    restart = event["restart"]
    return f"{went}; restart {restart}" if restart else f"{went} and is not started again"


_SENTENCES: dict[str, Callable[[Event], str]] = {
    "step": _step,
    "round": _round,
    "replica_ended": _replica_ended,
    "bad_step": lambda e: f"replica {e['slot']} step {e['step']}: dropped, {e['reason']}",
    "out_of_memory": lambda e: (
        f"replica {e['slot']}: out of memory, continues with micro_batch_tokens"
        f" {e['micro_batch_tokens']}"
    ),
    "separate_forwards": lambda e: (
        f"replica {e['slot']}: rows do not share forwards: {e['reason']}"
    ),
    "base": lambda e: f"base model: {e['done']} of {e['of']} rows of {e['channel']} scored",
    "hints": lambda e: (
        f"hints: {e['hints_kept_share']:.0%} of {e['hints_seen']:g} help the base model more than"
        " they help its mistake"
    ),
    "held_out": lambda e: f"round {e['round']}: loss on held-out rows {e['loss']:.4f}",
    "resumed": lambda e: (
        f"replica {e['slot']} resumes in round {e['round']} after {e['inner']} steps"
    ),
    "inner_dropped": lambda e: (
        f"replica {e['slot']} starts from the last commit with new optimizer state; its own state"
        f" does not fit: {e['reason']}"
    ),
    "data": lambda e: (
        f"{e.get('grpo', 0)} groups, {e.get('sdpo', 0)} hints and {e.get('dpo', 0)} pairs fit"
        f" their windows, {sum(e['dropped'].values())} rows dropped"
    ),
    "joinable": lambda e: (
        f"others join with: python -m trainers.replica --log {e['log']} --run-id {e['run_id']}"
    ),
    "warning": lambda e: f"warning: {e['text']}",
    "done": lambda e: f"done: {e['run_dir']}",
}


if __name__ == "__main__":
    os.umask(0o777 & ~folder_mode())  # what libraries write is as private as the lake
    sys.exit(main())
