"""Running operators on a Ray cluster.

Belongs here: the start and end of the connection, and the tasks. Does not belong here: what
a task does with its values, which is the same as on one machine (``normalize.judge``).

Stock data-juicer's Ray executor shares statistics between fields as its local one does, and
refuses deduplicators. Here only the work on values goes to the cluster, in chunks; which
rows are dropped is decided in the process that has them all, so the kept rows are those
of a local run. Every node needs composer-pipeline with its ``normalize`` extra, and the
files of own operators under the same paths.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from composer_pipeline.errors import InputError
from composer_pipeline.normalize.judge import Batch, Results, evaluate
from composer_pipeline.normalize.operators import Settings, guard, load_steps

#: Chunks a CPU of the cluster: enough that one slow chunk does not hold up the rest.
CHUNKS_PER_CPU = 4
#: Values of the smallest chunk worth a task.
CHUNK_VALUES = 200


class OnRay:
    """Runs operators as tasks of the connected Ray cluster."""

    def __init__(self, ray: Any, settings: Settings) -> None:
        self.ray = ray
        self.settings = ray.put(settings)
        self.task = ray.remote(_evaluate_chunk)
        self.cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def run(self, index: int, op: Any, batch: Batch, count: int) -> Results:
        """See :class:`composer_pipeline.normalize.judge.Executor`."""
        chunks = max(1, min(self.cpus * CHUNKS_PER_CPU, count // CHUNK_VALUES))
        edges = np.linspace(0, count, chunks + 1).astype(int).tolist()
        tasks = [
            self.task.remote(
                self.settings,
                index,
                {name: values[low:high] for name, values in batch.items()},
                high - low,
            )
            for low, high in pairwise(edges)
        ]
        out: Results = []
        for results, error in self.ray.get(tasks):
            if error:
                raise InputError(error)
            out += results
        return out


@contextmanager
def cluster(settings: Settings) -> Iterator[OnRay]:
    """Connect to the cluster of a recipe, or start a local one for ``ray_address: local``.

    Raises:
        InputError: there is no such cluster.
    """
    ray = importlib.import_module("ray")
    local = settings.ray_address == "local"
    options: dict[str, Any] = {"num_cpus": settings.np, "include_dashboard": False}
    try:
        ray.init(
            settings.ray_address,
            log_to_driver=False,
            logging_level="error",
            **(options if local else {}),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"ray_address {settings.ray_address!r}: {text}") from error
    try:
        yield OnRay(ray, settings)
    finally:
        ray.shutdown()


_LOADED: dict[bytes, list[Any]] = {}


def _evaluate_chunk(
    settings: Settings, index: int, batch: Batch, count: int
) -> tuple[Results, str]:
    """A task: (results, one sentence if the operator failed)."""
    key = repr(settings).encode()
    try:
        if key not in _LOADED:
            guard()
            _LOADED[key] = load_steps(settings.steps, settings.custom_operator_paths)
        return evaluate(_LOADED[key][index], batch, count), ""
    except InputError as error:
        return [], str(error)
