"""Joining a run from anywhere: ``python -m trainers.trl.replica --log URL --run-id ID``.

Belongs here: finding the run, taking a slot of it, and a folder of this machine with what the
log holds for it. Does not belong here: training (``trainers.trl.replica``) and beginning a run
(``trainers.trl.outer_log``).
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline.diloco import inputs
from composer_pipeline.diloco.callback import DiLoCoCallback
from composer_pipeline.diloco.inputs import Inputs
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.slots import claim, claim_free
from composer_pipeline.errors import InputError
from composer_pipeline.training.models import cache_dir
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.run import write_recipe
from trainers.trl.outer_log import AGREED, START

#: Pause between two looks for a run that has not begun.
LOOK_S = 1.0


@dataclass(frozen=True)
class Wanted:
    """Which run to join, and how.

    Attributes:
        url: folder or URL of the log.
        run_id: the run in it.
        slot: 0-based; ``None`` takes a free one.
        attempt: 1-based, where a supervisor has claimed it for this start of the slot.
        model: this machine's copy of the base model, where the run's is a folder.
        run_dir: folder for what this replica needs; ``None``: one in the cache.
        wait_s: seconds to wait for a run that has not begun.
    """

    url: str
    run_id: str
    slot: int | None = None
    model: str = ""
    run_dir: Path | None = None
    wait_s: float = 600.0
    attempt: int | None = None

    @property
    def folder(self) -> Path:
        """The folder of this machine: the same for the same run."""
        if self.run_dir is not None:
            return self.run_dir
        place = hashlib.sha256(f"{self.url} {self.run_id}".encode()).hexdigest()[:12]
        return cache_dir() / "replicas" / f"{self.run_id}-{place}"


def join(wanted: Wanted, on_commit: Callable[[int, dict[str, Any]], None]) -> DiLoCoCallback | None:
    """Take a slot of a run and fill this machine's folder; ``None`` where the run is over.

    The slot shows a sign of life from here on, so that nobody leaves it behind while it loads.

    Raises:
        InputError: there is no such run, it has no free slot, or it needs a copy of its model.
    """
    log = OuterLog.open(wanted.url, wanted.run_id)
    there = _await(log, wanted.wait_s)
    spec = there.agreement
    if there.copy_of and not wanted.model:
        raise InputError(
            f"run {wanted.run_id} trains the model folder {there.copy_of!r} of the machine that"
            " began it: give a copy of this machine with --model"
        )
    if log.last_round() >= spec.rounds:
        return None
    if wanted.slot is not None and not 0 <= wanted.slot < spec.replicas:
        raise InputError(f"--slot {wanted.slot} is outside of 0..{spec.replicas - 1}")
    if wanted.slot is not None:
        slot, attempt = wanted.slot, wanted.attempt or claim(log, wanted.slot)
    else:
        timeout = spec.heartbeat_timeout_s
        free = range(there.here, spec.replicas)
        slot, attempt = claim_free(log, free, timeout_s=timeout, wait_s=2 * timeout)
    callback = DiLoCoCallback(
        url=wanted.url, run_id=wanted.run_id, slot=slot, spec=spec, attempt=attempt,
        on_commit=on_commit,
    )  # fmt: skip
    callback.replica.leaving.install()
    callback.replica.announce()
    _fill(log, there, wanted)
    return callback


def _await(log: OuterLog, wait_s: float) -> Inputs:
    """Return what the run needs, as soon as it has begun.

    Raises:
        InputError: it has not begun after ``wait_s``.
    """
    deadline = time.monotonic() + wait_s
    while (there := inputs.read(log)) is None:
        if time.monotonic() >= deadline:
            raise InputError(
                f"run {log.run_id} in {log.store.url} has not begun; begin it with"
                " composer-pipeline train and diloco.log in its recipe"
            )
        time.sleep(LOOK_S)
    return there


def _fill(log: OuterLog, there: Inputs, wanted: Wanted) -> None:
    """Get the run's files, and write the recipe with this machine's paths."""
    folder = wanted.folder
    inputs.fetch(log, there, folder)
    recipe = TrainingRecipe.load(folder / AGREED)
    names: dict[str, Any] = {"model": wanted.model or recipe.model}
    if recipe.start_from == START:
        names["start_from"] = str(folder / START)
    names["diloco"] = recipe.diloco.model_copy(update={"log": wanted.url, "run_id": wanted.run_id})
    write_recipe(recipe.model_copy(update=names), folder)
