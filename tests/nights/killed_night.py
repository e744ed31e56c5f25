"""A night that is killed before one of its writes to the lake, in a process of its own."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from composer_pipeline.lake.store import Lake
from tests.nights.made import House, Learner

put = Lake.put_stream


@contextmanager
def before_write(number: int, stop: Callable[[], None]) -> Iterator[list[str]]:
    """Call ``stop`` in place of a write to the lake, counted from 0; yield the names written."""
    names: list[str] = []

    def counted(lake: Lake, name: str, data: Any) -> None:
        if len(names) == number:
            stop()
        names.append(name)
        put(lake, name, data)

    with patch.object(Lake, "put_stream", counted):
        yield names


def main(folder: Path, day: str, number: int) -> None:
    """Run a night of a house, and kill this process before a write."""
    here = House(Lake(folder / "lake"), Learner(folder / "runs"))
    with before_write(number, lambda: os.kill(os.getpid(), signal.SIGKILL)):
        here.night(day)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
