"""The processes of the chaos test: each replays, until it is done or killed.

Run by ``chaos_driver``. It imports everything once and forks a process for each JSON line on
its standard input, since a new interpreter for each of a hundred kills would take most of the
time. It tells ``{"pid"}`` of each and ``{"pid", "code"}`` when one has ended.
"""

import json
import os
import random
import select
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

from composer_pipeline.errors import ComposerError
from composer_pipeline.lake.store import Lake
from composer_pipeline.redaction.redact import find_secrets
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet

_LOOK_EVERY_S = 0.01


def work(options: dict[str, Any]) -> int:
    """Replay once; print ``ready``, then the report or the error as one JSON line."""
    teachers = TeacherSet.model_validate_json(Path(options["teachers"]).read_text())
    print("ready", flush=True)
    try:
        report = replay(
            Lake(options["lake"]),
            teachers,
            max_usd=Decimal(options["usd"]),
            run_id=options["run"],
            ledger=options["ledger"],
        )
    except ComposerError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    print(json.dumps(report.to_dict()), flush=True)
    return 0


def child(options: dict[str, Any]) -> None:
    """Become a worker: its output goes to its log, and it never returns."""
    code = 70
    try:
        log = os.open(options["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.setsid()
        random.seed()
        code = work(options)
    except BaseException:  # noqa: BLE001  it goes to the log, and the driver tells it
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Fork a worker for each line, and tell when one has ended, until the input ends."""
    find_secrets("")  # builds its tables
    out = os.fdopen(os.dup(1), "w")
    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], _LOOK_EVERY_S)
        if readable:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                pid = os.fork()
                if pid == 0:
                    child(json.loads(line))
                print(json.dumps({"pid": pid}), file=out, flush=True)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            ended = {"pid": pid, "code": os.waitstatus_to_exitcode(status)}
            print(json.dumps(ended), file=out, flush=True)


if __name__ == "__main__":
    main()
