"""One training process of a run: ``python -m trainers.replica``.

With ``--run-dir`` alone it is a supervisor's child: it reads ``recipe.yaml`` and ``data/`` of the
run folder, and DiLoCo's settings from the environment. With ``--log`` and ``--run-id`` it joins a
run from any machine and reads the log alone. Prints one JSON event a line. Exit codes are those of
``diloco.supervisor``: 2 for bad input and a dead channel, 4 for what would fail again (bad steps, a
full disk), 1 for what a restart may fix, 143 after SIGTERM, which lets a started upload finish.

``trainers.common.ranks`` starts a replica of several processes; only rank 0 joins, prints and
writes. What a replica trains with is ``build`` of ``trainers.<recipe.trainer>.trainer``.
"""

import argparse
import hashlib
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from composer_pipeline.diloco import inputs
from composer_pipeline.diloco.callback import DiLoCoCallback, Diverged
from composer_pipeline.diloco.checkpoint import FILE, InnerCheckpoint
from composer_pipeline.diloco.inputs import Inputs
from composer_pipeline.diloco.log import OuterLog, OuterLogError
from composer_pipeline.diloco.slots import claim, claim_free
from composer_pipeline.diloco.store import StoreFailed
from composer_pipeline.diloco.supervisor import (
    EXIT_BAD_INPUT,
    EXIT_WOULD_REPEAT,
    end_with_supervisor,
)
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import cache_dir, out_of_space
from composer_pipeline.training.events import line
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import write_recipe
from trainers.common.checkpoints import ChannelStates, earlier_state
from trainers.common.gradients import DeadChannel
from trainers.common.outer_log import AGREED, START, EventUploader, software
from trainers.common.outer_ranks import OverRanks
from trainers.common.policy import device_memory
from trainers.common.ranks import Ranks

#: Seconds between checks whether a run has started.
LOOK_S = 1.0


def folder_of(options: argparse.Namespace) -> Path:
    """Return the run's folder on this machine, by default in the cache."""
    if options.run_dir is not None:
        return Path(options.run_dir)
    place = hashlib.sha256(f"{options.log} {options.run_id}".encode()).hexdigest()[:12]
    return cache_dir() / "replicas" / f"{options.run_id}-{place}"


def join(options: argparse.Namespace) -> DiLoCoCallback | None:
    """Take a slot of a run and fill this machine's folder; ``None`` where the run is over."""
    log = OuterLog.open(options.log, options.run_id)
    there = _await(log, options.wait_s)
    spec, slot = there.agreement, options.slot
    if there.copy_of and not options.model:
        raise InputError(
            f"run {options.run_id} trains the model folder {there.copy_of!r} of the machine that"
            " started it: give this machine's copy with --model"
        )
    if log.last_round() >= spec.rounds:
        return None
    if slot is None:
        timeout, free = spec.heartbeat_timeout_s, range(there.here, spec.replicas)
        slot, attempt = claim_free(log, free, timeout_s=timeout, wait_s=2 * timeout)
    elif 0 <= slot < spec.replicas:
        attempt = options.attempt or claim(log, slot)
    else:
        raise InputError(f"--slot {slot} is outside of 0..{spec.replicas - 1}")
    callback = DiLoCoCallback(
        url=options.log, run_id=options.run_id, slot=slot, spec=spec, attempt=attempt,
        on_commit=lambda _, info: emit("commit", info),
    )  # fmt: skip
    callback.replica.graceful_exit.install()
    callback.replica.announce()  # nobody may leave this slot behind while it loads
    _fill(log, there, options)
    return callback


def _await(log: OuterLog, wait_s: float) -> Inputs:
    """Wait until the run has started, and return its inputs."""
    deadline = time.monotonic() + wait_s
    while (there := inputs.read(log)) is None:
        if time.monotonic() >= deadline:
            raise InputError(
                f"run {log.run_id} in {log.store.url} has not started; start it with"
                " composer-pipeline train and diloco.log in its recipe"
            )
        time.sleep(LOOK_S)
    return there


def _fill(log: OuterLog, there: Inputs, options: argparse.Namespace) -> None:
    """Download the run's files, and write the recipe with this machine's paths."""
    folder = folder_of(options)
    inputs.fetch(log, there, folder)
    recipe = TrainingRecipe.load(folder / AGREED)
    names: dict[str, Any] = {"model": options.model or recipe.model}
    if recipe.start_from == START:
        names["start_from"] = str(folder / START)
    place = {"log": options.log, "run_id": options.run_id}
    names["diloco"] = recipe.diloco.model_copy(update=place)
    write_recipe(recipe.model_copy(update=names), folder)


def main() -> int:
    """Train until the run's last round is committed; return the exit code."""
    options = _options()
    end_with_supervisor()
    try:
        with out_of_space(f"run folder {options.run_dir}"), device_memory("the replica"):
            ranks = Ranks.from_env()
            if not ranks.lead:
                follow(ranks)
            elif options.log:
                train_elsewhere(options, ranks)
            else:
                train(options.run_dir, ranks=ranks)
            ranks.leave()
    except ComposerError as error:
        print(f"error: {error}", flush=True)
        if isinstance(error, InputError | DeadChannel):
            return EXIT_BAD_INPUT
        # The other replicas may restore the log or a state to resume from; the store may recover.
        again = isinstance(error, OuterLogError | Diverged | StoreFailed)
        return 1 if again else EXIT_WOULD_REPEAT
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trainers.replica", description=__doc__)
    parser.add_argument("--run-dir", type=Path, help="folder of the run on this machine")
    parser.add_argument("--log", default="", help="folder or URL of the outer log")
    parser.add_argument("--run-id", default="", help="the run in the log")
    parser.add_argument("--slot", type=int, help="0-based slot; default: a free one")
    parser.add_argument("--attempt", type=int, help="1-based start of --slot, if claimed")
    parser.add_argument("--model", default="", help="this machine's copy of a base model folder")
    parser.add_argument("--wait-s", type=float, default=600.0, help="seconds to wait for the run")
    options = parser.parse_args()
    if bool(options.log) != bool(options.run_id):
        parser.error("--log and --run-id belong together")
    if options.attempt is not None and options.slot is None:
        parser.error("--attempt belongs to a --slot")
    if not options.log and options.run_dir is None:
        parser.error("one of --run-dir and --log is needed")
    return options


def train_elsewhere(options: argparse.Namespace, ranks: Ranks) -> None:
    """Join a run through its log alone, and train one of its slots."""
    callback = join(options)
    if callback is None:
        emit("over", {"run_id": options.run_id})
        ranks.share(None)
        return
    uploader = EventUploader(callback.replica.log, callback.slot, callback.replica.attempt)
    emit("joined", {"slot": callback.slot, "attempt": callback.replica.attempt})
    try:
        train(folder_of(options), callback, uploader, ranks)
        uploader.upload()
    except BaseException:
        callback.replica.leave()
        raise


def follow(ranks: Ranks) -> None:
    """Run a rank other than 0, which learns from rank 0 where the run is and what to train."""
    if (lead := ranks.share()) is None:
        return
    run_dir, slot, start = lead
    recipe = TrainingRecipe.load(run_dir / "recipe.yaml")
    outer = OverRanks(ranks, None)
    folder = run_dir / "replicas" / f"slot-{slot}"
    trainer, _ = _build(
        run_dir, recipe.model_copy(update={"report_to": ()}), ranks, folder, slot=slot,
        skip_steps=(start - 1) * recipe.diloco.inner_steps, callbacks=[outer],
        position=lambda: outer.position, ends_round=lambda: outer.ends_round,
    )  # fmt: skip
    outer.trainer = trainer
    trainer.train()


def train(
    run_dir: Path,
    callback: DiLoCoCallback | None = None,
    uploader: EventUploader | None = None,
    ranks: Ranks | None = None,
) -> None:
    """Train this replica, as its only process or as rank 0."""
    recipe, ranks = TrainingRecipe.load(run_dir / "recipe.yaml"), ranks or Ranks()
    if callback is None:
        callback = DiLoCoCallback.from_env(on_commit=lambda _, info: emit("commit", info))
        callback.replica.graceful_exit.install()
    replica = callback.replica
    mine = replica.spec.model_copy(update={"software": software(recipe)})
    if difference := replica.spec.difference(mine):
        raise InputError(f"run {replica.log.run_id} in {replica.log.store.url}: {difference}")
    start = callback.start_round()
    ranks.share((run_dir, replica.slot, start))
    folder = run_dir / "replicas" / f"slot-{callback.slot}"
    folder.mkdir(parents=True, exist_ok=True)

    def on_event(kind: str, step: int, numbers: dict[str, Any]) -> None:
        facts = {"slot": replica.slot, "step": step, "of": recipe.total_steps, **numbers}
        emit(kind, facts)
        if uploader is not None:
            uploader.add(line({"event": kind, "time": time.time(), **facts}))

    states = ChannelStates(
        run_dir, replica.slot, keep_all=recipe.keep_best, first=earlier_state(recipe),
        log=replica.log if recipe.diloco.log else None, uploader=uploader,
    )  # fmt: skip
    outer = OverRanks(ranks, callback)
    trainer, replica.base = _build(
        run_dir, recipe, ranks, folder, slot=callback.slot,
        skip_steps=(start - 1) * recipe.diloco.inner_steps,
        callbacks=[outer if ranks.several else callback],
        on_event=on_event, states=states, position=callback.position,
        ends_round=lambda: callback.ends_round,
    )  # fmt: skip
    outer.trainer = trainer

    def resumed(kind: str, facts: dict[str, Any]) -> None:
        on_event(kind, callback.position(), facts)

    if not trainer.cut:  # no rank holds whole parameters and moments
        file = folder / FILE
        callback.keep(
            InnerCheckpoint(file, every=recipe.checkpoint_every, trainer=trainer, on_event=resumed)
        )
    trainer.train()


def _build(
    run_dir: Path, recipe: TrainingRecipe, ranks: Ranks, folder: Path, **options: Any
) -> tuple[Any, str]:
    """Build a rank's trainer; return it and the identity of its base model."""
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    ranks.sharded = recipe.ranks.sharding == "fsdp2"
    build = import_module(f"trainers.{recipe.trainer}.trainer").build
    built: tuple[Any, str] = build(run_dir, recipe, ranks, folder, **options)
    return built


def emit(kind: str, numbers: dict[str, Any]) -> None:
    """Print one event for the supervisor."""
    print(line({"event": kind, **numbers}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
