"""The loopback OpenRouter from the command line.

    python -m composer_pipeline.testing.openrouter --port 8399 --faults 0.2 --lifetime 600

prints one JSON line with its URL and serves the script of the bundled sessions. With
``--teachers FILE`` it serves that file's models at its prices, and the line names a copy of the
file with this server as endpoint. With ``--lake LAKE`` too, it answers from the sessions of that
lake, and the line names the file with the truth (``testing.rehearsal``).
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import yaml

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.teachers import TeacherSet
from composer_pipeline.testing.openrouter.faults import FaultMix, parse_mix
from composer_pipeline.testing.openrouter.models import MODELS, SimulatedModel
from composer_pipeline.testing.openrouter.server import LoopbackOpenRouter
from composer_pipeline.testing.personas import PersonaName, Script
from composer_pipeline.testing.rehearsal import Rehearsal
from composer_pipeline.testing.samples import answers, sample_sessions_dir

#: Voting teachers take these in turn, so that some agree against the agent and some do not.
_VOTERS: tuple[PersonaName, ...] = ("careful", "steady", "contrarian")
_PER_TOKEN = 1_000_000


def models_of(teachers: TeacherSet) -> list[SimulatedModel]:
    """Return a simulated model for each model of a teacher file."""
    personas = cycle(_VOTERS)
    found: dict[str, SimulatedModel] = {}
    for teacher in teachers.teachers:
        persona = "contrarian" if teacher.control else next(personas)
        model = SimulatedModel(
            slug=teacher.model,
            persona=persona,
            prompt=teacher.max_price.prompt / _PER_TOKEN,
            completion=teacher.max_price.completion / _PER_TOKEN,
            context_length=teacher.context_length,
            distillable=not teacher.control,
        )
        found.setdefault(teacher.model, model)
    return list(found.values())


def write_rehearsal(teachers: TeacherSet, url: str, out: Path, *, key_variable: str) -> None:
    """Write a copy of a teacher file with the loopback server as its only endpoint."""
    body = teachers.model_dump(mode="json", exclude={"defaults"}, exclude_none=True)
    name = f"{teachers.endpoint.name[:50]}-rehearsal"
    body["endpoint"] = {
        "name": name, "base_url": url, "simulated": True, "api_key_env": key_variable,
        "recovery_cache_s": teachers.endpoint.recovery_cache_s,
    }  # fmt: skip
    for teacher in body["teachers"]:
        teacher.pop("endpoint", None)
        teacher.pop("price", None)
    TeacherSet.model_validate(body)
    text = yaml.safe_dump(body, sort_keys=False, allow_unicode=True)
    out.write_text(f"# A rehearsal: simulated teachers, no money.\n{text}", encoding="utf-8")


KEY_VARIABLE = "COMPOSER_LOOPBACK_KEY"


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the lifetime is over; print one JSON line with the URL."""
    parser = argparse.ArgumentParser(
        prog="python -m composer_pipeline.testing.openrouter",
        epilog=f"If {KEY_VARIABLE} is set, requests need that key.",
    )
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--lifetime", type=float, default=3600.0, help="seconds")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    parser.add_argument("--lake", help="with --teachers: answer from the sessions of this lake")
    parser.add_argument("--seed", type=int, default=0, help="of the answers from the lake")
    parser.add_argument(
        "--truth", type=argparse.FileType("a"), help="keep the truth of these answers in this file"
    )
    parser.add_argument(
        "--teachers", help="rehearse this teacher file: its models, prices, lengths"
    )
    parser.add_argument("--faults", type=float, default=0.0, help="share of requests, 0 to 1")
    parser.add_argument("--fault-seed", type=int, default=0)
    parser.add_argument("--fault-mix", help="NAME=WEIGHT,…; default: every kind")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="composer-rehearsal-") as folder:
        mix, teachers = None, None
        try:
            if options.teachers:
                teachers = TeacherSet.load(options.teachers)
            if options.faults:
                weights = parse_mix(options.fault_mix) if options.fault_mix else None
                mix = FaultMix(options.fault_seed, options.faults, weights)
            if options.lake and (teachers is None or not Lake(options.lake).is_there()):
                what = f"and {options.lake} is not one" if teachers else "and --teachers"
                raise InputError(f"--lake needs a lake, {what}")
            if options.truth and not options.lake:
                raise InputError("--truth needs --lake")
        except InputError as error:
            parser.error(str(error))
        script = Script.from_sessions(sample_sessions_dir(), answers())
        if options.lake and teachers:
            truth = options.truth or Path(folder, "truth.jsonl").open("a")  # noqa: SIM115
            lake = Lake(options.lake)
            script = Rehearsal(script, lake, teachers.teachers, truth, options.seed)
        server = LoopbackOpenRouter(
            script,
            models=models_of(teachers) if teachers else MODELS,
            port=options.port,
            lifetime=options.lifetime,
            api_key=os.environ.get(KEY_VARIABLE) or None,
            faults=mix,
            latency=options.latency,
            keep_bodies=False,
        )
        with server:
            line: dict[str, Any] = {"url": server.url, "states": script.states}
            if teachers:
                copy = Path(folder, "teachers.yaml")
                write_rehearsal(teachers, server.url, copy, key_variable=KEY_VARIABLE)
                line["teachers"] = str(copy)
            if options.lake:
                line["truth"] = truth.name
            print(json.dumps(line), flush=True)
            server.wait()
