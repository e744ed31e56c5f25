"""The process that runs data-juicer: ``python -m composer_pipeline.normalize.worker FOLDER``.

Belongs here: the protocol with the stage. Does not belong here: the lake, and what is done
with a request (``normalize.operators`` and ``normalize.judge``).

``FOLDER/settings.json`` holds :class:`Settings`. The first line of standard output says what
the steps are, or what is wrong with them. Then each line of standard input is a
:class:`Request` for files in FOLDER, and is answered by ``step`` lines and one ``done``. When
standard input ends, so does the process, in the middle of its work if need be, and it removes
FOLDER: that holds texts of sessions, and its parent may have been killed.
"""

import importlib
import os
import queue
import shutil
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.normalize.judge import Drop, Executor, Local, judge
from composer_pipeline.normalize.operators import Settings, Step, describe, guard, load_steps


class Request(msgspec.Struct, frozen=True):
    """Judge or map the rows of ``table`` with some steps, and write the answer to ``out``."""

    verb: Literal["judge", "map"]
    steps: list[int]
    table: str
    out: str


class Reply(msgspec.Struct, frozen=True):
    """A line of the worker: what the steps are, a step that is done, all done, or an error."""

    steps: list[Step] = []
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


def main(folder: str) -> None:
    """Answer requests until standard input ends."""
    work = Path(folder)
    # data-juicer prints where it likes; our one channel to the parent stays clean.
    out = sys.stdout.buffer
    sys.stdout = sys.stderr

    def say(reply: Reply) -> None:
        out.write(msgspec.json.encode(reply) + b"\n")
        out.flush()

    requests = _Requests(work)
    settings = msgspec.json.decode((work / "settings.json").read_bytes(), type=Settings)
    with ExitStack() as stack:
        try:
            executor: Executor = Local(settings.np)
            if settings.executor == "ray":
                # Before the guard: connecting is what Ray is for. Tasks have a guard each.
                on_ray = importlib.import_module("composer_pipeline.normalize.on_ray")
                executor = stack.enter_context(on_ray.cluster(settings))
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


if __name__ == "__main__":
    main(sys.argv[1])
