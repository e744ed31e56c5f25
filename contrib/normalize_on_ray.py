"""``composer-pipeline normalize`` with data-juicer's operators run as tasks of a Ray cluster.

Run as ``python -m contrib.normalize_on_ray --recipe FILE --address auto``. The nodes need the same
installation. Which rows are dropped is decided as without Ray; only the work on values is spread.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.normalization import worker
from composer_pipeline.normalization.judge import Batch, Results, evaluate
from composer_pipeline.normalization.operators import WorkerSettings, guard, load_steps
from composer_pipeline.normalization.stage import NormalizeReport, normalize
from composer_pipeline.settings import Settings

#: Chunks a CPU of the cluster: enough that one slow chunk does not hold up the rest.
CHUNKS_PER_CPU = 4
#: Values of the smallest chunk worth a task.
CHUNK_VALUES = 200


class OnRay:
    """Runs operators as tasks of the connected Ray cluster."""

    def __init__(self, ray: Any, settings: WorkerSettings) -> None:
        self.ray = ray
        self.settings = ray.put(settings)
        self.task = ray.remote(_evaluate_chunk)
        self.cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))

    def run(self, index: int, op: Any, batch: Batch, count: int) -> Results:
        """See :class:`Executor`."""
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
def cluster(settings: WorkerSettings) -> Iterator[OnRay]:
    """Connect to the cluster of ``RAY_ADDRESS``, or start one where that is ``local``."""
    ray = importlib.import_module("ray")
    address = os.environ.get("RAY_ADDRESS") or "auto"
    local = address == "local"
    options: dict[str, Any] = {"num_cpus": settings.np, "include_dashboard": False}
    try:
        ray.init(
            address,
            log_to_driver=False,
            logging_level="error",
            **(options if local else {}),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        text = " ".join(str(error).split())[:200]
        raise InputError(f"Ray cluster {address!r}: {text}") from error
    try:
        yield OnRay(ray, settings)
    finally:
        ray.shutdown()


_LOADED: dict[bytes, list[Any]] = {}


def _evaluate_chunk(
    settings: WorkerSettings, index: int, batch: Batch, count: int
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


def normalize_on_ray(lake: Lake, recipe: str, address: str) -> NormalizeReport:
    """Normalise all days of pairs; ``address`` is ``auto``, ``local`` or that of a cluster."""
    os.environ["RAY_ADDRESS"] = address
    worker.COMMAND = ["-m", "contrib.normalize_on_ray", "--worker"]
    try:
        return normalize(lake, recipe)
    finally:
        worker.COMMAND = ["-m", worker.WORKER]


def main(arguments: Sequence[str] | None = None) -> int:
    """Normalise and print the report, or be the worker process; return the exit code."""
    settings = Settings.from_env()
    parser = argparse.ArgumentParser(prog="python -m contrib.normalize_on_ray")
    parser.add_argument("--recipe", default=settings.normalize)
    parser.add_argument("--lake", default=settings.lake)
    parser.add_argument("--address", default="auto", help="auto, local, or HOST:PORT")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        if given.worker:
            worker.main(given.worker, cluster)
            return 0
        report = normalize_on_ray(Lake(given.lake), given.recipe, given.address)
    except ComposerError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(report.to_dict()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
