"""``metrics.jsonl``: the events of a run, one strict JSON object a line.

Belongs here: writing lines that every JSON reader takes, and reading a file whose writer was
killed. Does not belong here: which events there are (``trainers``) and their sums
(``training.run``).

JSON has no NaN and no infinity: such a number is written as ``null``, and the event's
``non_finite`` names its field.
"""

import json
import math
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.files import writing
from composer_pipeline.parent import child_of_this


def strict(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event with ``null`` for every number that is not finite, and their names."""
    odd = sorted(k for k, v in value.items() if isinstance(v, float) and not math.isfinite(v))
    out = {k: None if k in odd else v for k, v in value.items()}
    return {**out, "non_finite": odd} if odd else out


def line(event: Mapping[str, Any]) -> str:
    """Return an event as one line of strict JSON, without its end."""
    return json.dumps(strict(event), allow_nan=False)


def parse(text: str) -> dict[str, Any] | None:
    """Return the event of a line, or ``None`` for one that is no JSON object: a torn one."""
    try:
        event = json.loads(text)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


@contextmanager
def appending(path: Path) -> Iterator[IO[bytes]]:
    """Open the file behind its last whole line; what a kill tore off is cut away.

    Raises:
        StorageError: the file cannot be written.
    """
    with writing(str(path)):
        file = path.open("ab+")
        try:
            _cut_torn_line(file)
        except OSError:
            file.close()
            raise
    with file:
        yield file


def append(file: IO[bytes], event: Mapping[str, Any]) -> None:
    """Write one event behind the others.

    Raises:
        StorageError: the file cannot be written; what was in it is whole.
    """
    with writing(str(getattr(file, "name", "metrics"))):
        file.write(line(event).encode() + b"\n")
        file.flush()


def recover(file: IO[bytes], known: Path, logs: Iterable[Path]) -> int:
    """Append what replicas said and nobody took down, because a kill came first; return how many.

    Args:
        file: as from :func:`appending`.
        known: the same file's path: its events differ from the replicas' by ``time`` alone.
        logs: output of replicas.
    """
    there = {_key(event) for event in read(known)}
    found = [strict(event) for log in logs for event in read(log) if "event" in event]
    missing = [event for event in found if _key(event) not in there]
    for event in missing:
        append(file, {"time": time.time(), **event})
    return len(missing)


def _key(event: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in event.items() if k != "time"}, sort_keys=True)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in the order of the file; lines that a kill has torn are left out."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            event = parse(text)
            if event is not None:
                yield event


def _cut_torn_line(file: IO[bytes]) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    last = next(iter(deque(file, maxlen=1)), b"")
    if last.endswith(b"\n") or not last:
        return
    if parse(last.decode(errors="replace")) is None:
        file.truncate(size - len(last))
    else:
        file.write(b"\n")


#: Lines of output that an error shows where the command said none itself.
TAIL_LINES = 20


def run_process(
    command: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    what: str,
    on_event: Callable[[dict[str, Any]], None],
) -> None:
    """Run a command to its end.

    Args:
        command: program and arguments. A line of its output that is a JSON object is an
            event; a line ``error: …`` says why it fails.
        cwd: its working directory.
        env: variables besides the caller's own.
        what: what ended, in the error where the command said nothing: ``training``.
        on_event: called with each event.

    Raises:
        InputError: the command exited with 2.
        ComposerError: it exited with another code but 0.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **env, **child_of_this()},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                event = parse(line) if line.startswith('{"') else None
                if event is not None:
                    on_event(event)
                else:
                    tail.append(line.strip())
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
    if code:
        said = [line.removeprefix("error: ") for line in tail if line.startswith("error: ")]
        message = said[-1] if said else f"{what} ended with exit code {code}: {' | '.join(tail)}"
        raise (InputError if code == 2 else ComposerError)(message)
