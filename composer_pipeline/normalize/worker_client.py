"""The stage's end of the worker process: start it, ask it, end it.

Belongs here: the child process, its environment and its folder. Does not belong here: what
is asked (``normalize.stage``).
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import msgspec
import pyarrow as pa

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.normalize.judge import Drop
from composer_pipeline.normalize.operators import Settings, Step
from composer_pipeline.normalize.worker import Reply, Request

WORKER = "composer_pipeline.normalize.worker"

_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS")
#: A URL with a user and a password, as COMPOSER_LEDGER or a proxy may be.
_LOGIN = re.compile(r"://[^/@\s]+:[^/@\s]+@")


class Worker:
    """A process that runs data-juicer; it imports while the caller reads the lake.

    It gets no credential of ours in its environment, opens no connection and installs
    nothing. Its folder, which holds texts, is private and removed with it.

    Args:
        settings: the steps and where they run.
        recipe: the recipe's name in errors.
        report: called with the label of each step that is done.
    """

    def __init__(
        self, settings: Settings, recipe: str, report: Callable[[str], None] | None = None
    ) -> None:
        self.recipe, self.report = recipe, report
        self._folder = tempfile.TemporaryDirectory(prefix="composer-normalize-")
        self.work = Path(self._folder.name)
        (self.work / "settings.json").write_bytes(msgspec.json.encode(settings))
        with (self.work / "log").open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", WORKER, self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=worker_env(),
            )
        self._steps: list[Step] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        # An idle worker ends with its input (and lets go of Ray); any other is in our way.
        self._child.stdin.close()
        try:
            self._child.wait(timeout=30 if kind is None else 0.1)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._folder.cleanup()

    def steps(self) -> list[Step]:
        """Return what the recipe's steps are.

        Raises:
            InputError: the recipe cannot be run; names it, the operator and the parameter.
            ComposerError: the process died.
        """
        if not self._steps:
            self._steps = self._reply().steps
        return self._steps

    def judge(self, steps: Sequence[int], table: pa.Table) -> list[Drop]:
        """Return every row that some steps drop; see ``normalize.judge.judge``."""
        return msgspec.json.decode(self._ask("judge", steps, table), type=list[Drop])

    def map(self, step: int, texts: Sequence[str]) -> list[str]:
        """Return the texts after one mapper."""
        table = pa.table({"text": pa.array(texts, pa.string())})
        new = msgspec.json.decode(self._ask("map", [step], table), type=list[str])
        if len(new) != len(texts):
            raise ComposerError(f"normalize lost texts: {len(texts)} in, {len(new)} out")
        return new

    def _ask(self, verb: str, steps: Sequence[int], table: pa.Table) -> bytes:
        self.steps()
        request = msgspec.convert(
            {"verb": verb, "steps": list(steps), "table": "rows.arrow", "out": "out.json"}, Request
        )
        path = self.work / request.table
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(msgspec.json.encode(request) + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            self._died()
        while not (reply := self._reply()).done:
            if self.report is not None:
                self.report(reply.step)
        out = self.work / request.out
        data = out.read_bytes()
        out.unlink()
        return data

    def _reply(self) -> Reply:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            self._died()
        reply = msgspec.json.decode(line, type=Reply)
        if reply.error:
            raise InputError(f"recipe {self.recipe}: {reply.error}")
        return reply

    def _died(self) -> NoReturn:
        code = self._child.wait()
        log = (self.work / "log").read_text(errors="replace")
        lines = log.strip().splitlines() or ["no output"]
        raise ComposerError(f"the normalize worker ended with code {code}: {lines[-1][:300]}")


def worker_env() -> dict[str, str]:
    """Ours without credentials, and with installing switched off for pip and uv."""
    env = {n: v for n, v in os.environ.items() if not (n.endswith(_SECRET) or _LOGIN.search(v))}
    env |= {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}
    # glibc: keep what arrays of a day's texts were in for the next ones, instead of giving it
    # back to the system and faulting it in again; an eighth of the CPU on 100,000 pairs.
    env |= {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000"}
    return {**env, "RAY_USAGE_STATS_ENABLED": "0"}
