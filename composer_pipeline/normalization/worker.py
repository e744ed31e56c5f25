"""The process that runs data-juicer: ``python -m composer_pipeline.normalization.worker FOLDER``.

``FOLDER/settings.json`` holds :class:`WorkerSettings`. The first line of standard output names the
steps, or what is wrong with them. Each line of standard input is a :class:`Request` for files in
FOLDER and is answered by ``step`` lines and one ``done``. When standard input ends, so does the
process, and it removes FOLDER, which holds texts of sessions: the parent may have been killed.
"""

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

import msgspec
import pyarrow as pa

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.normalization.judge import Drop, Executor, Local, judge
from composer_pipeline.normalization.operators import (
    OperatorStep,
    WorkerSettings,
    describe,
    guard,
    load_steps,
)


class Request(msgspec.Struct, frozen=True):
    """Judge or map the rows of ``table`` with some steps and write the result to ``out``."""

    verb: Literal["judge", "map"]
    steps: list[int]
    table: str
    out: str


class Reply(msgspec.Struct, frozen=True):
    """A line of the worker: its steps, a finished step, the end of a request, or an error."""

    steps: list[OperatorStep] = []
    step: str = ""
    done: bool = False
    error: str = ""


class _Requests:
    """Lines of standard input, read by a thread, so that the parent's death is noticed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.busy = True
        self.lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        descriptor = sys.stdin.fileno()
        rest = b""
        while block := os.read(descriptor, 1 << 16):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self.lines.put(line)
        if self.busy:
            shutil.rmtree(self.folder, ignore_errors=True)
            os._exit(1)
        self.lines.put(b"")

    def next(self) -> bytes:
        """Return the next line, empty at the end."""
        self.busy = False
        line = self.lines.get()
        self.busy = True
        return line


def main(
    folder: str, connect: Callable[[WorkerSettings], AbstractContextManager[Executor]] | None = None
) -> None:
    """Answer requests until standard input ends; ``connect`` gives another place to run."""
    work = Path(folder)
    # data-juicer prints to standard output, which is the channel to the parent.
    out = sys.stdout.buffer
    sys.stdout = sys.stderr

    def say(reply: Reply) -> None:
        out.write(msgspec.json.encode(reply) + b"\n")
        out.flush()

    requests = _Requests(work)
    settings = msgspec.json.decode((work / "settings.json").read_bytes(), type=WorkerSettings)
    with ExitStack() as stack:
        try:
            executor: Executor = Local(settings.np)
            if connect is not None:  # before the guard, which refuses connections
                executor = stack.enter_context(connect(settings))
            guard()
            ops = load_steps(settings.steps, settings.custom_operator_paths)
            say(Reply(steps=describe(ops)))
            while line := requests.next():
                request = msgspec.json.decode(line, type=Request)
                _answer(work, request, ops, executor, say)
                assert "torch" not in sys.modules, "normalisation imported torch"
                say(Reply(done=True))
            shutil.rmtree(work, ignore_errors=True)
        except InputError as error:
            say(Reply(error=str(error)))


def _answer(work: Path, request: Request, ops: list[Any], executor: Executor, say: Any) -> None:
    with pa.memory_map(str(work / request.table), "rb") as source:
        table = pa.ipc.open_file(source).read_all()
    steps = [(index, ops[index]) for index in request.steps]
    if request.verb == "judge":
        drops: list[Drop] = judge(
            table, steps, executor=executor, report=lambda step: say(Reply(step=step))
        )
        (work / request.out).write_bytes(msgspec.json.encode(drops))
        return
    ((index, op),) = steps
    texts = table.column("text").to_pylist()
    new = executor.run(index, op, {op.text_key: texts}, len(texts))
    (work / request.out).write_bytes(msgspec.json.encode(new))
    say(Reply(step=f"{index}:{op._name}"))


WORKER = "composer_pipeline.normalization.worker"
#: Python's arguments for a worker, before the name of its folder.
COMMAND = ["-m", WORKER]

_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS")
#: A URL with a user and a password, as COMPOSER_LEDGER or a proxy may be.
_LOGIN = re.compile(r"://[^/@\s]+:[^/@\s]+@")


class Worker:
    """A process that runs data-juicer; it imports while the caller reads the lake."""

    def __init__(
        self, settings: WorkerSettings, recipe: str, report: Callable[[str], None] | None = None
    ) -> None:
        self.recipe, self.report = recipe, report
        self._folder = tempfile.TemporaryDirectory(prefix="composer-normalize-")
        self.work = Path(self._folder.name)
        (self.work / "settings.json").write_bytes(msgspec.json.encode(settings))
        with (self.work / "log").open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, *COMMAND, self._folder.name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=worker_env(),
            )
        self._steps: list[OperatorStep] = []

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
        # An idle worker ends with its input; a busy one is killed.
        self._child.stdin.close()
        try:
            self._child.wait(timeout=30 if kind is None else 0.1)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._folder.cleanup()

    def steps(self) -> list[OperatorStep]:
        """Return what the recipe's steps are."""
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
    """Return the environment without credentials, and with installation switched off."""
    env = {n: v for n, v in os.environ.items() if not (n.endswith(_SECRET) or _LOGIN.search(v))}
    env |= {"UV_OFFLINE": "1", "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}
    # glibc: keep freed memory for the next arrays instead of returning it to the system and
    # faulting it in again; saves an eighth of the CPU on 100,000 pairs.
    env |= {"MALLOC_MMAP_THRESHOLD_": "1000000000", "MALLOC_TRIM_THRESHOLD_": "4000000000"}
    return {**env, "RAY_USAGE_STATS_ENABLED": "0"}


if __name__ == "__main__":
    main(sys.argv[1])
