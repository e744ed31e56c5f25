"""A command whose whole family ends with one signal, however this process was started."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

#: Ctrl-C, ``kill``, and a terminal that was closed.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: Seconds that runs and servers have to end after a signal.
GRACE_S = 60


def run_group(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    started: Callable[["subprocess.Popen[bytes]"], None] = lambda _: None,
) -> int:
    """Run a command until it ends or this process is asked to end; return its exit code."""
    ended = False

    def note(_number: int, _frame: object) -> None:
        nonlocal ended
        ended = True

    # Before the child starts: a script's `&` ignores SIGINT, which a child would inherit.
    for number in SIGNALS:
        signal.signal(number, note)
    process = subprocess.Popen(
        command, cwd=cwd, env=dict(env), start_new_session=True, pass_fds=pass_fds
    )
    started(process)
    while process.poll() is None and not ended:
        time.sleep(0.2)
    _end(process, os.killpg)
    return process.wait()


def _end(process: "subprocess.Popen[bytes]", kill: Callable[[int, int], None]) -> None:
    deadline = time.monotonic() + GRACE_S
    with suppress(ProcessLookupError):
        kill(process.pid, signal.SIGINT)
        while time.monotonic() < deadline:
            process.poll()  # without it the ended leader would count as one that is left
            kill(process.pid, 0)
            time.sleep(0.1)
        kill(process.pid, signal.SIGKILL)
