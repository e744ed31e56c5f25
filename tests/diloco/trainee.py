"""One slot through the callback of a Trainer, without a Trainer: each step sleeps."""

import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from composer_pipeline.diloco.callback import DiLoCoCallback
from composer_pipeline.diloco.checkpoint import FILE, InnerCheckpoint
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.slots import claim
from composer_pipeline.diloco.spec import DiLoCoSpec
from tests.diloco.toy_replica import Inner
from tests.fixtures.waiting import DEADLINE_S


def kept_in(folder: str | Path, slot: int) -> Path:
    """Return the file of a slot's private state."""
    return Path(folder, f"slot-{slot}", FILE)


def drive(
    callback: DiLoCoCallback, inner: Inner, before: Callable[[], None],
    after: Callable[[], int] = lambda: 1,
) -> None:  # fmt: skip
    """Call a callback as a Trainer does, to the end of the run.

    ``before`` is called before each step, and ``after`` after it, which returns its tokens.
    """
    state: Any = SimpleNamespace(max_steps=0, num_input_tokens_seen=0)
    control: Any = SimpleNamespace(should_training_stop=False)
    given: dict[str, Any] = {"model": inner.net, "optimizer": inner.optimizer}
    nothing: Any = None
    callback.on_train_begin(nothing, state, control, **given)
    while not control.should_training_stop:
        callback.on_step_begin(nothing, state, control, **given)
        before()  # its time is the step's
        inner.steps(callback.position(), 1)
        callback.on_optimizer_step(nothing, state, control, **given)
        state.num_input_tokens_seen += after()
        callback.on_step_end(nothing, state, control, **given)
    callback.on_train_end(nothing, state, control, **given)


def trainee(folder: str, agreed: str, slot: int, step_s: float) -> None:
    """Train one slot to the end of the run; a token is a step.

    Its begun rounds are lines of ``steps-<slot>.txt``: attempt, round and the steps it has there.
    """
    log = OuterLog.open(folder, "run")
    inner, there = Inner(slot), DiLoCoSpec.from_json(agreed, "spec")
    callback = DiLoCoCallback(
        url=folder, run_id="run", slot=slot, spec=there, attempt=claim(log, slot)
    )
    callback.keep(InnerCheckpoint(kept_in(folder, slot), every=1))
    begun = 0

    def before() -> None:
        nonlocal begun
        replica = callback.replica
        if replica.round != begun:
            begun = replica.round
            with Path(folder, f"steps-{slot}.txt").open("a") as file:
                file.write(f"{replica.attempt} {begun} {replica.steps}\n")
        time.sleep(step_s)

    drive(callback, inner, before)


class Trainees:
    """Every slot of a run as a real process, with its seconds of a step; ended at the end.

    They are forked from a server that has loaded the module ``preload``.
    """

    def __init__(
        self, folder: str, spec: DiLoCoSpec, step_s: Sequence[float],
        preload: str = "tests.diloco.trainee",
    ) -> None:  # fmt: skip
        self._what, self._step_s = (folder, spec.model_dump_json()), step_s
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([preload])
        self._running: list[Any] = []

    def __enter__(self) -> Self:
        self._running = [self._started(slot) for slot in range(len(self._step_s))]
        return self

    def _started(self, slot: int) -> Any:
        args = *self._what, slot, self._step_s[slot]
        process = self._context.Process(target=trainee, args=args)
        process.start()
        return process

    def restart(self, slot: int) -> None:
        """Kill a slot (SIGKILL) and start it again."""
        self._running[slot].kill()
        self._running[slot].join()
        self._running[slot] = self._started(slot)

    def finish(self) -> None:
        """Wait until all have ended well."""
        for process in self._running:
            process.join(DEADLINE_S)
        assert [process.exitcode for process in self._running] == [0] * len(self._running)

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            process.join()
