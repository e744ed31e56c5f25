"""A command that works in a process of its own and reports itself line by line.

Belongs here: running it, passing its events on, and turning its end into an error. Does not
belong here: what the command does. Both the trainer and the worker of an evaluation load
torch, which stays out of the caller this way.
"""

import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.parent import child_of_this
from composer_pipeline.training.runs.events import parse

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
