"""Replicas of ``diloco_peer``: the same two with our DiLoCo and with torchft's.

The server that replicas are forked from loads this module once. torchft is given equal weights and
``init_sync=False``, as its documentation asks of them, one fragment, and gloo.
"""

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout

import torch
from diloco import Model, Text, adamw, seed_of, steps
from diloco_memory import memory
from diloco_overlap import replica
from peers import importable

from composer_pipeline.diloco.callback import DiLoCoCallback
from composer_pipeline.diloco.checkpoint import FILE, InnerCheckpoint
from composer_pipeline.diloco.log import OuterLog
from composer_pipeline.diloco.outer_optimizer import master, pseudo_gradient
from composer_pipeline.diloco.replica import Replica
from composer_pipeline.diloco.slots import claim
from composer_pipeline.diloco.spec import DiLoCoSpec

importable({"torch": "2.13.0", "torchft": "0.2.0"})
import torchft  # noqa: E402
import torchft.coordination  # noqa: E402
import torchft.local_sgd  # noqa: E402

REPLICAS, ROUNDS, H, BATCH, RATE, STEP_S = 2, 8, 25, 64, 2e-3, 0.05
OUTER = (0.4, 0.8)
#: Of the model whose sync is timed.
SHAPES = [(1000, 1000)] * 5
COUNT = 5_000_000
#: Seconds after which a silent replica is dead, with both tools.
DEAD_S = 5
COST_ROUNDS = 4
#: Steps of a round, seconds of a step, and the steps that overlap.
OVERLAPPED = (20, 0.2, 10)
WAIT = timedelta(seconds=60)


@dataclass(frozen=True)
class Orders:
    """One start of one replica: where it notes what it did, and when it dies."""

    where: str
    slot: int
    notes: str
    kill_at: int = -1
    gate: bool = True

    def note(self, **what: Any) -> None:
        """Append a line to the notes."""
        with Path(self.notes, f"{self.slot}.jsonl").open("a", encoding="utf-8") as out:
            out.write(json.dumps(what) + "\n")

    def wait(self) -> None:
        """Wait until both replicas are there: only so is their first round one of both."""
        Path(self.notes, f"ready-{self.slot}").touch()
        while self.gate and len(list(Path(self.notes).glob("ready-*"))) < REPLICAS:
            time.sleep(0.02)

    def step(self, at: int, model: Model, optimizer: torch.optim.Optimizer, text: Text) -> None:
        """Take the run's step ``at``, or die before it."""
        if at == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(STEP_S)
        self.note(at=at)
        steps(model, optimizer, [text.batch(seed_of(1, self.slot, at), BATCH)])


def begin() -> tuple[Model, torch.optim.Optimizer, Text]:
    """Return a replica's model and inner optimizer, the same in each, and the text."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Model()
    return model, adamw(model, RATE), Text.load()


def sha(model: torch.nn.Module) -> str:
    """Return a hash of the parameters' bits."""
    found = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()[:12]


def agreed(**changes: Any) -> DiLoCoSpec:
    """Return our spec: the defaults, but for sizes and what torchft is given too."""
    fields = {
        "rounds": ROUNDS, "inner_steps": H, "replicas": REPLICAS, "outer_lr": OUTER[0],
        "outer_momentum": OUTER[1], "heartbeat_timeout_s": DEAD_S,
    }  # fmt: skip
    return DiLoCoSpec.model_validate(fields | changes)


def ours(orders: Orders) -> None:
    """Train one slot through the Trainer's callback, its private state kept after each step."""
    model, optimizer, text = begin()
    slot = orders.slot
    log = OuterLog.open(orders.where, "run")
    callback = DiLoCoCallback(
        url=orders.where, run_id="run", slot=slot, spec=agreed(), attempt=claim(log, slot),
        on_commit=lambda round_, info: orders.note(round=round_, parts=len(info["included"])),
    )  # fmt: skip
    callback.keep(InnerCheckpoint(Path(orders.where, f"slot-{slot}", FILE), every=1))
    state: Any = SimpleNamespace(max_steps=0, num_input_tokens_seen=0)
    control: Any = SimpleNamespace(should_training_stop=False)
    given: dict[str, Any] = {"model": model, "optimizer": optimizer}
    nothing: Any = None
    orders.wait()
    callback.on_train_begin(nothing, state, control, **given)
    while not control.should_training_stop:
        callback.on_step_begin(nothing, state, control, **given)
        orders.step(callback.position(), model, optimizer, text)
        state.num_input_tokens_seen += 1
        callback.on_step_end(nothing, state, control, **given)
    callback.on_train_end(nothing, state, control, **given)
    orders.note(end=sha(model), loss=text.loss(model))


def manager_of(orders: Orders, state: Callable[[], Any], load: Callable[[Any], None]) -> Any:
    """Return torchft's manager of one replica."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=WAIT), load_state_dict=load, state_dict=state,
        min_replica_size=1, use_async_quorum=False, rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, lighthouse_addr=orders.where,
        replica_id=f"replica_{orders.slot}", hostname="127.0.0.1", init_sync=False,
    )  # fmt: skip
    manager.kept_store = store  # it must live as long
    return manager


def theirs(orders: Orders) -> None:
    """Train one replica through torchft's DiLoCo, as its documentation shows it."""
    model, inner, text = begin()
    outer = torch.optim.SGD(model.parameters(), lr=OUTER[0], momentum=OUTER[1], nesterov=True)

    def load(found: Mapping[str, Any]) -> None:
        model.load_state_dict(found["model"])
        inner.load_state_dict(found["inner"])

    manager = manager_of(
        orders, lambda: {"model": model.state_dict(), "inner": inner.state_dict()}, load
    )
    orders.wait()
    with torchft.local_sgd.DiLoCo(manager, [model], inner, outer, sync_every=H):
        while manager.current_step() < ROUNDS:
            first = manager.current_step() * H
            for at in range(first, first + H):
                orders.step(at, model, inner, text)
            parts = manager.num_participants()
            orders.note(round=manager.current_step(), parts=parts, sha=sha(model))
    orders.note(end=sha(model), loss=text.loss(model))
    manager.shutdown(wait=False)


# -- what a sync costs ---------------------------------------------------------------------


def loopback() -> int:
    """Return the bytes that this network namespace has sent to itself."""
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    raise ValueError("/proc/net/dev has no lo")


def measured(orders: Orders, sync: Callable[[], int]) -> None:
    """Note CPU seconds, peak memory above what was resident, bytes and seconds of a sync."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, resident, sent = time.process_time(), memory("VmRSS"), loopback()
    began = time.monotonic()
    own = sync()
    orders.note(
        still=time.monotonic() - began, cpu=time.process_time() - before,
        peak=memory("VmHWM") - resident, bytes=own, wire=loopback() - sent,
    )  # fmt: skip


def cost_ours(orders: Orders) -> None:
    """Sync five million parameters, with nothing trained."""
    torch.set_num_threads(1)
    model = {f"p{n}": torch.zeros(shape) for n, shape in enumerate(SHAPES)}
    spec = agreed(rounds=COST_ROUNDS, inner_steps=1, min_quorum=REPLICAS)
    one = Replica(OuterLog.open(orders.where, "run"), spec, orders.slot)
    one.join(model)
    while not one.finished:
        start = {name: master(tensor) for name, tensor in one.state.theta.items()}
        for name, tensor in model.items():
            tensor.copy_(start[name] + 1e-3 * (orders.slot + 1))

        def sync(start: dict[str, torch.Tensor] = start) -> int:
            sent = one.sync(pseudo_gradient(start, model), tokens=1).bytes_sent
            for name, tensor in model.items():
                tensor.copy_(one.state.theta[name])
            return sent

        measured(orders, sync)
    one.close()


def overlapped(orders: Orders) -> None:
    """Note what a sync of as many parameters takes while steps go on."""
    orders.note(**replica(orders.where, orders.slot, COUNT // 10**6, *OVERLAPPED))


def cost_theirs(orders: Orders, quantize: bool = False) -> None:
    """Sync as many parameters; the inner step, one subtraction, is in it."""
    torch.set_num_threads(1)
    model = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    outer = torch.optim.SGD(model.parameters(), lr=OUTER[0], momentum=OUTER[1], nesterov=True)
    manager = manager_of(orders, model.state_dict, model.load_state_dict)
    diloco = torchft.local_sgd.DiLoCo(
        manager, [model], inner, outer, sync_every=1, should_quantize=quantize
    )
    orders.wait()
    with diloco:
        for _ in range(COST_ROUNDS):
            for parameter in model:
                parameter.grad = torch.full_like(parameter, 1e-3 * (orders.slot + 1))

            def sync() -> int:
                inner.step()
                return 0

            measured(orders, sync)
    manager.shutdown(wait=False)


def cost_quantized(orders: Orders) -> None:
    """Ask torchft for its quantised all-reduce."""
    cost_theirs(orders, quantize=True)


def lighthouse() -> Any:
    """Return a lighthouse of torchft; its address is ``where`` of its replicas."""
    return torchft.coordination.LighthouseServer(
        bind="[::]:0", min_replicas=1, join_timeout_ms=1000, heartbeat_timeout_ms=1000 * DEAD_S
    )
