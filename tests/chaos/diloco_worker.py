"""One replica of ``diloco_driver``: a real process that may be killed at eight points.

The server that processes are forked from loads this module once: torch alone takes seconds.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

import msgspec  # noqa: E402
import obstore.store  # noqa: E402, F401
import torch  # noqa: E402

from composer_pipeline.diloco import rounds  # noqa: E402
from composer_pipeline.diloco.callback import DiLoCoCallback  # noqa: E402
from composer_pipeline.diloco.log import OuterLog  # noqa: E402
from composer_pipeline.diloco.outer_optimizer import OuterState, Step  # noqa: E402
from composer_pipeline.diloco.replica import Replica  # noqa: E402
from composer_pipeline.diloco.slots import claim  # noqa: E402
from composer_pipeline.diloco.spec import DiLoCoSpec  # noqa: E402
from composer_pipeline.errors import ComposerError  # noqa: E402
from tests.diloco.listings import Listings  # noqa: E402
from tests.diloco.toy_replica import Inner  # noqa: E402
from tests.diloco.trainee import drive  # noqa: E402

#: Where a process may be killed, in the order of a round; the last three are the committer's.
POINTS = (
    "joining", "inner", "before_delta", "after_delta", "after_contribution", "before_state",
    "after_state", "after_commit",
)  # fmt: skip
COMMITTER = POINTS[-3:]
#: Seconds of an inner step of a replica that is ten times slower.
STEP_S = 0.05


def _warm() -> None:
    """Load what torch loads at an optimizer's first step; no backward pass, as it forbids forks."""
    torch.set_num_threads(1)
    inner = Inner(0)
    for parameter in inner.parameters().values():
        parameter.grad = torch.zeros_like(parameter)
    inner.optimizer.step()


_warm()


@dataclass(frozen=True)
class Orders:
    """What one process does besides training.

    Attributes:
        kill_at: point and round at which it kills itself, once a run (``marks`` decides).
        stop_at: round in whose middle it stops itself (SIGSTOP) once.
        spoil: what becomes of its delta in round 3: ``nan``, ``huge``, ``truncated``, ``corrupt``.
        step_s: seconds that each inner step takes.
        hang_at: round in whose middle it does nothing any more.
        skew_s: seconds by which its clocks are wrong.
        watch: ends with its parent.
        nan_at: rounds in which its delta is not finite.
        listings: what is wrong with its listings: arguments of ``Listings``.
        upload_s: seconds that the upload of a delta takes.
        plain_momentum: its outer step is not Nesterov's, as in another version of the code.
        software: what it says that it computes with.
    """

    kill_at: tuple[str, int] = ("", 0)
    stop_at: int = 0
    spoil: str = ""
    step_s: float = 0.0
    hang_at: int = 0
    skew_s: float = 0.0
    watch: bool = False
    nan_at: tuple[int, ...] = ()
    listings: dict[str, float | str] = field(default_factory=dict)
    upload_s: float = 0.0
    plain_momentum: bool = False
    software: str = ""
    env: dict[str, str] = field(default_factory=dict)


class Points(OuterLog):
    """A log that tells ``reached`` of each point."""

    slot = 0
    orders = Orders()
    marks = Path()

    def reached(self, where: str, round_: int) -> None:
        """Kill this process where it is ordered to, if no other of the run was killed there."""
        if self.orders.kill_at == (where, round_) and once(self.marks / "killed"):
            (self.marks / "victim").write_text(json.dumps([self.slot, time.time()]))
            os.kill(os.getpid(), signal.SIGKILL)

    def members(self, *having: Any) -> Any:
        self.reached("joining", 0)
        return super().members(*having)

    def put_delta(self, round_: int, slot: int, data: Any) -> tuple[str, str]:
        self.reached("before_delta", round_)
        time.sleep(self.orders.upload_s)
        key, digest = super().put_delta(round_, slot, data)
        data = bytes(data)
        if round_ == SPOILED and self.orders.spoil == "truncated":
            self.store.put(key, data[:-7])
        if round_ == SPOILED and self.orders.spoil == "corrupt":
            self.store.put(key, data[:-1] + bytes([data[-1] ^ 1]))
        return key, digest

    def contribute(self, contribution: Any) -> bool:
        self.reached("after_delta", contribution.round)
        written = super().contribute(contribution)
        self.reached("after_contribution", contribution.round)
        return written

    def put_state(self, round_: int, data: Any) -> tuple[str, str]:
        if round_:
            self.reached("before_state", round_)
        return super().put_state(round_, data)

    def try_commit(self, commit: Any) -> bool:
        if commit.round:
            self.reached("after_state", commit.round)
        written = super().try_commit(commit)
        if commit.round:
            self.reached("after_commit", commit.round)
        return written


#: The round whose delta is spoiled: late enough for the norm guard to know others.
SPOILED = 3


def once(path: Path) -> bool:
    """Say whether this call made the file: one of many processes."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def spoil(kind: str, parameters: Mapping[str, torch.Tensor]) -> None:
    """Make parameters of which no change must be merged."""
    factor = {"nan": float("nan"), "huge": 1e6}.get(kind, 1.0)
    for parameter in parameters.values():
        parameter.data *= factor


def skew(seconds: float) -> None:
    """Make the Python clocks of this process wrong."""
    real = time.time
    time.time = lambda: real() + seconds


def other_code() -> None:
    """Give this process an outer step with plain momentum."""

    def merged(state: OuterState, deltas: Any, weights: Any, spec: DiLoCoSpec) -> Iterator[Step]:
        lr, momentum = spec.outer_step
        for name in sorted(state.theta):
            mean = sum((d[name] * w for d, w in zip(deltas, weights, strict=True)), torch.zeros(()))
            state.momentum[name].mul_(momentum).add_(mean)
            state.theta[name].sub_(state.momentum[name] * lr)
            yield state.step(name)

    rounds.merged_steps = merged  # type: ignore[attr-defined]


def one_replica(url: str, spec: str, slot: int, orders: Orders, marks: str) -> None:
    """Train one slot to the end of the run, and leave a line in ``marks`` on how it ended."""
    os.environ.update(orders.env)
    torch.set_num_threads(1)
    if orders.skew_s:
        skew(orders.skew_s)
    attempt = 0
    try:
        log = Points.open(url, "run")
        assert isinstance(log, Points)
        log.slot, log.orders, log.marks = slot, orders, Path(marks)
        agreed = DiLoCoSpec.from_json(spec, "spec")
        log.store.patience_s = agreed.store_patience_s
        if orders.listings:
            Listings(log.store, **orders.listings)  # type: ignore[arg-type]
        attempt = claim(log, slot)
        if orders.software:
            agreed = agreed.model_copy(update={"software": orders.software})
        replica = Replica(log, agreed, slot, attempt)
        if orders.plain_momentum:
            other_code()
        said = {"sha": _train(replica, orders)}
    except ComposerError as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    Path(marks, f"end-{slot}-{attempt}.json").write_text(json.dumps(said))


def _train(replica: Replica, orders: Orders) -> str:
    """Train through the callback of the Trainer; a round has 32 tokens."""
    inner, log, spec = Inner(replica.slot), replica.log, replica.spec
    assert isinstance(log, Points)
    parent = os.getppid() if orders.watch else None
    callback = DiLoCoCallback(
        url=log.store.url, run_id=log.run_id, slot=replica.slot, spec=spec, supervisor=parent
    )
    replica.watch, callback.replica = callback.replica.watch, replica

    def place() -> tuple[int, int]:
        """Return the round, from 1 on, and the step in it."""
        round_, number = divmod(callback.position(), spec.inner_steps)
        return round_ + 1, number

    def before() -> None:
        round_, number = place()
        time.sleep(orders.step_s)
        if number == 1:
            log.reached("inner", round_)
            while orders.hang_at == round_:
                replica.watch()
                time.sleep(STEP_S)
            if orders.stop_at == round_ and once(log.marks / "stopped"):
                (log.marks / "pid").write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGSTOP)

    def after() -> int:
        if not callback.ends_round:
            return 0
        round_, _ = place()
        kind = "nan" if round_ in orders.nan_at else orders.spoil * (round_ == SPOILED)
        spoil(kind, inner.parameters())
        return 32

    drive(callback, inner, before, after)
    return replica.sha


def orders_of(text: str) -> Orders:
    """Return the orders that a command line carries."""
    return msgspec.json.decode(text, type=Orders)


def main() -> None:
    """Run one replica as a child of a supervisor; ``CHAOS_ORDERS`` has its orders by slot."""
    env = os.environ
    slot = int(env["COMPOSER_DILOCO_SLOT"])
    orders = msgspec.json.decode(env["CHAOS_ORDERS"], type=dict[str, Orders])[str(slot)]
    Path(env["CHAOS_MARKS"], f"pid-{slot}").write_text(str(os.getpid()))
    one_replica(
        env["COMPOSER_DILOCO_URL"], env["COMPOSER_DILOCO_SPEC"], slot, orders, env["CHAOS_MARKS"]
    )


if __name__ == "__main__":
    main()
