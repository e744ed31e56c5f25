"""The loopback OpenRouter from the command line.

    python -m composer_pipeline.testing.openrouter --port 8399 --faults 0.2 --lifetime 600

prints one JSON line with its URL and serves the bundled sessions' script. With ``--teachers FILE``
it serves that file's models at its prices (``testing.openrouter.rehearsal``), and the line names a
copy of the file that asks it.

Belongs here: the options, and what the server is made of by them. Does not belong here: serving
(``testing.openrouter.server``).
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import FaultMix, parse_mix
from composer_pipeline.testing.openrouter.models import MODELS
from composer_pipeline.testing.openrouter.rehearsal import models_of, write_rehearsal
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import Script
from composer_pipeline.testing.sample_sessions.bundled import answers, sample_sessions_dir

KEY_VARIABLE = "COMPOSER_LOOPBACK_KEY"


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the lifetime is over; print one JSON line with the URL."""
    parser = argparse.ArgumentParser(
        prog="python -m composer_pipeline.testing.openrouter",
        epilog=f"Where {KEY_VARIABLE} is set, requests need that key.",
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--lifetime", type=float, default=3600.0, help="seconds")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    parser.add_argument("--jitter", type=float, default=0.0, help="up to so many seconds more")
    parser.add_argument("--sessions", type=Path, help="session folder; the bundled one")
    parser.add_argument(
        "--teachers", help="rehearse this teacher file: its models, prices, lengths"
    )
    parser.add_argument("--faults", type=float, default=0.0, help="share of requests, 0 to 1")
    parser.add_argument("--fault-seed", type=int, default=0)
    parser.add_argument("--fault-mix", help="NAME=WEIGHT,…; every kind when left out")
    parser.add_argument("--no-response-cache", action="store_true")
    parser.add_argument("--usage-lag", type=float, default=0.0, help="seconds")
    options = parser.parse_args(arguments)
    mix, teachers = None, None
    try:
        if options.teachers:
            teachers = TeacherSet.load(options.teachers)
        if options.faults:
            weights = parse_mix(options.fault_mix) if options.fault_mix else None
            mix = FaultMix(options.fault_seed, options.faults, weights)
    except InputError as error:
        parser.error(str(error))
    script = Script.from_sessions(options.sessions or sample_sessions_dir(), answers())
    server = LoopbackOpenRouter(
        script,
        models=models_of(teachers) if teachers else MODELS,
        port=options.port,
        lifetime=options.lifetime,
        api_key=os.environ.get(KEY_VARIABLE) or None,
        faults=mix,
        latency=options.latency,
        jitter=options.jitter,
        response_cache=not options.no_response_cache,
        usage_lag=options.usage_lag,
    )
    with server, tempfile.TemporaryDirectory(prefix="composer-rehearsal-") as folder:
        line: dict[str, Any] = {"url": server.url, "states": len(script.entries)}
        if teachers:
            copy = Path(folder, "teachers.yaml")
            write_rehearsal(teachers, server.url, copy, key_variable=KEY_VARIABLE)
            line["teachers"] = str(copy)
        print(json.dumps(line), flush=True)
        server.wait()
