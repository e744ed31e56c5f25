"""The processes of one replica as they see each other.

Belongs here: joining the group, and moving objects and tensors in it. Does not belong here: what
is moved, and starting the processes (``trainers.trl.ranks.launch``).

accelerate and transformers are not told of the group: each rank is a trainer of one process, so
that nobody wraps the model, shards rows or averages gradients a second time.
"""

import datetime as dt
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from composer_pipeline.errors import InputError
from trainers.trl.ranks import RANK, RANKS, STORE

#: A rank may wait this long: rank 0 waits for other replicas meanwhile. That a rank has died is
#: seen at once by who started it.
PATIENCE = dt.timedelta(hours=4)
#: Bytes of small tensors that are summed together.
BUCKET = 64 * 2**20


class Ranks:
    """A replica's processes; alone by default, and then everything here returns at once.

    Args:
        rank: of this process, from 0; rank 0 leads: it alone speaks to log, disk and people.
        size: how many there are.

    Attributes:
        sharded: each rank keeps a part of the model's layers, so that every forward and backward
            waits for all ranks: they run the same number of each.
    """

    sharded = False

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Ranks":
        """Join the group that the environment names; alone where it names none.

        Raises:
            InputError: a variable is missing or malformed.
        """
        environ = os.environ if environ is None else environ
        if RANK not in environ:
            return cls()
        for name in (RANK, RANKS, STORE):
            if not environ.get(name) or (name != STORE and not environ[name].isdecimal()):
                raise InputError(f"the environment variable {name} is not set, or no number")
        rank, size = int(environ[RANK]), int(environ[RANKS])
        # transformers warns of every group that it has not made itself.
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
        """Whether every forward and backward is one of all ranks."""
        return self.sharded and self.several

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank."""
        if not self.several:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def share(self, value: Any = None) -> Any:
        """Return rank 0's value; what the others give is ignored."""
        if not self.several:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by their sums over the ranks; all ranks hold the same bits then."""
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

    def same(self, facts: Mapping[str, str]) -> None:
        """Refuse ranks that would not train the same thing.

        Args:
            facts: what must be equal, by a name for people.

        Raises:
            InputError: on every rank, where one differs from rank 0; names it and the fact.
        """
        first, *others = self.gather(dict(facts))
        for rank, other in enumerate(others, 1):
            for name in {**first, **other}:
                if first.get(name) != other.get(name):
                    raise InputError(
                        f"rank {rank} of {self.size} has other {name} than rank 0: all ranks of a"
                        " replica read one run folder and one model; start the run again"
                    )

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
