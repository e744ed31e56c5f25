"""One replica as several processes, its ranks: each runs a part of every step's rows.

All ranks draw the same windows, and a loss holds the normaliser of its whole window. So gradients
are summed over the ranks, never averaged, and the sum is that of one process.
"""

import argparse
import datetime as dt
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from composer_pipeline.diloco.supervisor import (
    EXIT_BAD_INPUT,
    EXIT_WOULD_REPEAT,
    end_with_supervisor,
    supervised,
)
from composer_pipeline.errors import InputError
from composer_pipeline.training.plan import VISIBLE
from trainers.common.rows import backbone_and_head

#: Environment variables of a rank: its number, how many there are, and their rendezvous file.
RANK, RANKS, STORE = "COMPOSER_RANK", "COMPOSER_RANKS", "COMPOSER_RANKS_STORE"


#: How long a rank may wait, as rank 0 waits for other replicas; the launcher sees a dead rank at
#: once.
PATIENCE = dt.timedelta(hours=4)
#: Bytes of small tensors that are summed together.
BUCKET = 64 * 2**20


class Ranks:
    """A replica's processes; a single one by default, where every method returns at once.

    ``sharded``: each rank holds a part of the model's layers, so that every forward and backward
    involves all ranks. Rank 0 alone talks to log, disk and people.
    """

    sharded = False

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Ranks":
        """Join the group that the environment names, if any."""
        environ = os.environ if environ is None else environ
        if RANK not in environ:
            return cls()
        for name in (RANK, RANKS, STORE):
            if not environ.get(name) or (name != STORE and not environ[name].isdecimal()):
                raise InputError(f"the environment variable {name} is not set, or no number")
        rank, size = int(environ[RANK]), int(environ[RANKS])
        # transformers warns of groups that it has not created itself.
        logging.getLogger("transformers.training_args").addFilter(
            lambda record: "parallel_mode" not in record.getMessage()
        )
        backend = "cpu:gloo"
        if torch.cuda.is_available():
            torch.cuda.set_device(0)  # each rank sees one device
            backend += ",cuda:nccl"
        dist.init_process_group(
            backend, store=dist.FileStore(environ[STORE], size), rank=rank, world_size=size,
            timeout=PATIENCE,
        )  # fmt: skip
        return cls(rank, size)

    @property
    def lead(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def several(self) -> bool:
        """Whether there are other ranks."""
        return self.size > 1

    @property
    def lockstep(self) -> bool:
        """Whether every forward and backward involves all ranks."""
        return self.sharded and self.several

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank."""
        if not self.several:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def share(self, value: Any = None) -> Any:
        """Return rank 0's value; the others' arguments are ignored."""
        if not self.several:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the ranks, bit-equal on all of them."""
        if not self.several:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            pieces = flat.split([tensor.numel() for tensor in bucket])
            for tensor, piece in zip(bucket, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))

    def copy(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of rank 0."""
        for tensor in tensors if self.several else ():
            whole = tensor.contiguous()
            dist.broadcast(whole, src=0)
            tensor.copy_(whole)

    def leave(self) -> None:
        """Wait for the others, and leave the group."""
        if self.several:
            dist.barrier()
            dist.destroy_process_group()


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors of one type and device together, up to ``BUCKET`` bytes."""
    kinds: dict[Any, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        kinds[tensor.dtype, tensor.device].append(tensor)
    for many in kinds.values():
        bucket, size = list[Tensor](), 0
        for tensor in many:
            if bucket and size + tensor.nbytes > BUCKET:
                yield bucket
                bucket, size = [], 0
            bucket.append(tensor)
            size += tensor.nbytes
        yield bucket


T = TypeVar("T")


def distribute(items: Sequence[T], sizes: Sequence[int], ranks: int) -> list[list[T]]:
    """Return each rank's items in their order, assigned largest first to the smallest load."""
    loads, owner = [0] * ranks, [0] * len(items)
    for i in sorted(range(len(items)), key=lambda i: -sizes[i]):
        rank = loads.index(min(loads))
        owner[i] = rank
        loads[rank] += sizes[i]
    return [[item for item, of in zip(items, owner, strict=True) if of == r] for r in range(ranks)]


def idle_share(loads: Sequence[int]) -> float:
    """Return the part of the ranks' time spent waiting for the busiest, by tokens."""
    return 1.0 - sum(loads) / len(loads) / max(loads) if any(loads) else 0.0


def shard(model: Any, ranks: Ranks) -> None:
    """Shard a bare model's layers over the ranks, each moved to the device as it is cut."""
    backbone, _ = backbone_and_head(model)
    layers = getattr(backbone, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise InputError(
            f"recipe field ranks.sharding: the layers of model {model.config.model_type} are not"
            " known; use ddp"
        )
    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (ranks.size,))
    inside = {id(p) for p in layers.parameters()}
    whole = {p for p in backbone.parameters() if id(p) not in inside}
    for module in (*layers, backbone):
        fully_shard(module, mesh=mesh, ignored_params=whole)
    for module in (*layers, backbone):
        module.set_gradient_divide_factor(1.0)
        # Gloo has no reduction with a pre-multiplied sum.
        module.set_force_sum_reduction_for_comms(True)
    # Sampling must continue until the last rank is done (transformers' synced_gpus).
    model._is_fsdp_managed_module = True


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, or all of an unsharded one."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is sharded."""
    return isinstance(tensor, DTensor)


def whole_copy(tensor: Tensor) -> Tensor:
    """Return a whole copy on the CPU; a collective call for sharded tensors."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return full.detach().cpu()


def set_local_part(tensor: Tensor, full: Tensor, ranks: Ranks) -> None:
    """Set this rank's part of a tensor from a whole one."""
    pieces: Sequence[Tensor] = full.chunk(ranks.size)
    own = local_part(tensor)
    if own.numel():  # with fewer rows than ranks the last ones have none
        own.copy_(pieces[ranks.rank])


POLL_S = 0.1
#: Seconds for other ranks to fail after a dead one, before exit codes are read.
SETTLE_S = 0.5
#: Seconds between SIGTERM and SIGKILL after a rank died; on request rank 0 may take longer.
PATIENCE_S = 5.0
EXIT_TERMINATED = 143
_LOOPBACK = "lo" if sys.platform.startswith("linux") else "lo0"


class _Terminated(Exception):
    """SIGTERM arrived."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ranks and return the replica's exit code."""
    parser = argparse.ArgumentParser(prog="trainers.common.ranks", description=__doc__)
    parser.add_argument("--processes", type=int, required=True, help="ranks of the replica")
    parser.add_argument("arguments", nargs="*", help="behind --: those of trainers.replica")
    options = parser.parse_args(argv)
    if options.processes < 1:
        parser.error(f"--processes must be at least 1, got {options.processes}")
    end_with_supervisor()
    command = [sys.executable, "-m", "trainers.replica", *options.arguments]
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        return launch(command, options.processes, Path(folder) / "store")


def launch(command: Sequence[str], size: int, store: Path) -> int:
    """Start ``size`` processes of a command and supervise them; return an exit code."""

    def terminate(*_: object) -> None:
        raise _Terminated

    signal.signal(signal.SIGTERM, terminate)
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(size):
            env = environment(os.environ, number, size, store)
            ranks.append(subprocess.Popen(list(command), env=env, stdin=subprocess.DEVNULL))
        while not any(rank.poll() for rank in ranks):
            if all(rank.poll() == 0 for rank in ranks):
                return 0
            time.sleep(POLL_S)
        time.sleep(SETTLE_S)
        codes = [rank.poll() for rank in ranks]
    except _Terminated:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for rank in ranks:
            _send(rank, signal.SIGTERM)
        for rank in ranks:  # the sender of SIGTERM kills what takes too long
            rank.wait()
        return EXIT_TERMINATED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        end(ranks)
    code, sentence = verdict(codes)
    if sentence:
        print(f"error: {sentence}", flush=True)
    return code


def environment(environ: Mapping[str, str], rank: int, size: int, store: Path) -> dict[str, str]:
    """Return a rank's variables: its place, device and parent."""
    own = {RANK: str(rank), RANKS: str(size), STORE: str(store), **supervised()}
    names = [name for name in environ.get(VISIBLE, "").split(",") if name.strip()]
    if len(names) >= size:
        own[VISIBLE] = names[rank]
    quiet = {"GLOO_SOCKET_IFNAME": _LOOPBACK, "NCCL_SOCKET_IFNAME": _LOOPBACK}
    return {**quiet, **environ, **own}


def verdict(codes: Sequence[int | None]) -> tuple[int, str]:
    """Return the replica's exit code, and a sentence if a rank was killed; ``None`` still ran."""
    size = len(codes)
    for rank, code in enumerate(codes):
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            return 1, (
                f"rank {rank} of {size} was ended by {name}, and the replica with it"
                + (": was there enough memory?" if name == "SIGKILL" else "")
            )
    failed = [code for code in codes if code]
    for code in (EXIT_BAD_INPUT, EXIT_WOULD_REPEAT):
        if code in failed:
            return code, ""
    return failed[0], ""


def end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    """End the processes that still run, with SIGTERM first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for rank in ranks:
            _send(rank, number)
        deadline = time.monotonic() + PATIENCE_S
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            time.sleep(POLL_S / 2)
    for rank in ranks:
        rank.wait()


def _send(rank: subprocess.Popen[bytes], number: int) -> None:
    if rank.poll() is None:
        rank.send_signal(number)


if __name__ == "__main__":
    sys.exit(main())
