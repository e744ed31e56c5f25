"""``metrics.jsonl``, the events of a run as JSON Lines, and running a command that prints events.

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
    """Return an event with its non-finite numbers replaced by ``None`` and named."""
    odd = sorted(k for k, v in value.items() if isinstance(v, float) and not math.isfinite(v))
    out = {k: None if k in odd else v for k, v in value.items()}
    return {**out, "non_finite": odd} if odd else out


def line(event: Mapping[str, Any]) -> str:
    """Return an event as one line of strict JSON, without the newline."""
    return json.dumps(strict(event), allow_nan=False)


def parse(text: str) -> dict[str, Any] | None:
    """Return the event of a line, or ``None`` if it is not a JSON object (a torn line)."""
    try:
        event = json.loads(text)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


@contextmanager
def appending(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for appending after its last complete line; a torn line is truncated."""
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
    """Append one event."""
    with writing(str(getattr(file, "name", "metrics"))):
        file.write(line(event).encode() + b"\n")
        file.flush()


def recover(file: IO[bytes], known: Path, logs: Iterable[Path]) -> int:
    """Append events of the replicas' logs that a kill kept out of the file; return how many."""
    # The file's events differ from those of the logs by ``time`` only.
    present = {_key(event) for event in read(known)}
    found = [strict(event) for log in logs for event in read(log) if "event" in event]
    missing = [event for event in found if _key(event) not in present]
    for event in missing:
        append(file, {"time": time.time(), **event})
    return len(missing)


def _key(event: Mapping[str, Any]) -> str:
    return json.dumps({k: v for k, v in event.items() if k != "time"}, sort_keys=True)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a file in order, without torn lines."""
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


#: Lines of output that an error shows where the command printed no ``error:`` line.
TAIL_LINES = 20


def run_process(
    command: Sequence[str],
    *,
    cwd: str | Path,
    env: Mapping[str, str],
    what: str,
    on_event: Callable[[dict[str, Any]], None],
) -> None:
    """Run a command and call ``on_event`` with each JSON object that it prints.

    A line ``error: …`` is the message of the error raised where the command fails: InputError for
    exit code 2, ComposerError for another. ``env`` is added to the caller's environment.
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
        reasons = [line.removeprefix("error: ") for line in tail if line.startswith("error: ")]
        message = (
            reasons[-1] if reasons else f"{what} ended with exit code {code}: {' | '.join(tail)}"
        )
        raise (InputError if code == 2 else ComposerError)(message)
