"""Normalise pairs with a data-juicer recipe: ``pairs`` -> ``normalized_pairs`` + ``drops``.

Belongs here: the flat text columns that the operators judge, the call of the worker,
and the writing of what was kept and of what was dropped. Does not belong here: running
an operator (``preferences.normalize_worker``, a process of its own, because importing
data-juicer has global effects) and making pairs (``preferences.agree``).

Every row of ``pairs`` comes out exactly once, in ``normalized_pairs`` or in ``drops``
with the step, the statistic, its value and the bound that it broke. A day is judged
on its own, so the result does not depend on which days are run together.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.lake.schemas import NORMALIZED_PAIRS, PAIRS
from composer_pipeline.lake.store import Lake
from composer_pipeline.preferences.normalize_recipe import COLUMNS, NormalizeRecipe

Progress = Callable[[str, int, int], None]

STAGE = "normalize"
TAIL_CHARS = 2000


@dataclass(frozen=True)
class NormalizeReport:
    """What a normalisation did.

    ``by_op`` maps ``index:operator`` to dropped rows; ``by_day`` maps a day to its
    ``rows``, ``kept`` and ``dropped``.
    """

    rows: int
    kept: int
    dropped: int
    by_op: dict[str, int]
    recipe_id: str
    by_day: dict[str, dict[str, int]]


class Drop(msgspec.Struct, frozen=True):
    """One row that a step dropped; ``row`` counts from 0 over the narrow table."""

    row: int
    step: str
    op: str
    field: str
    stat: str
    value: str
    bound: str


class WorkerResult(msgspec.Struct, frozen=True):
    """What the worker says: the drops, or one sentence about a recipe it cannot run."""

    rows: int = 0
    drops: list[Drop] = []
    error: str = ""


def action_text(messages: list[dict[str, Any]]) -> str:
    """Return the text that operators judge: prose, then each call as name and arguments."""
    parts = []
    for message in messages:
        if content := message.get("content"):
            parts.append(_content(content))
        for call in message.get("tool_calls") or ():
            function = call["function"]
            parts.append(f"{function['name']} {_json(function['arguments'])}")
    return "\n".join(parts)


def narrow_row(row: dict[str, Any]) -> dict[str, str]:
    """Return the flat columns of one pair (see :data:`COLUMNS`).

    Raises:
        InputError: the pair has no prompt, chosen or rejected message.
    """
    for name in ("pair_id", "prompt", "chosen", "rejected"):
        if row[name] is None:
            raise InputError(f"table pairs: pair {row['pair_id']} has null in column {name}")
    chosen, rejected = action_text(row["chosen"]), action_text(row["rejected"])
    called = any(message.get("tool_calls") for message in row["chosen"])
    state = _json([row["prompt"], row["tools"]])
    state_key = hashlib.blake2b(state.encode(), digest_size=16).hexdigest()
    return {
        "pair_id": row["pair_id"],
        "state_key": state_key,
        "prompt_tail_text": _tail(row["prompt"]),
        "chosen_text": chosen,
        "rejected_text": rejected,
        "chosen_prose": "" if called else chosen,
        # A JSON list: its brackets keep data-juicer's strip() away from the texts.
        "pair_text": _json([state_key, chosen, rejected]),
    }


def normalize(
    lake: Lake,
    days: Iterable[str] | None,
    recipe_path: str | Path,
    *,
    progress: Progress | None = None,
) -> NormalizeReport:
    """Run a recipe over the pairs of some days and replace those days' results.

    Args:
        lake: the lake; reads ``pairs``, writes ``normalized_pairs`` and ``drops``
            (stage ``normalize``). A day that never had a pair is left without files.
        days: UTC days; all days of ``pairs`` when ``None``.
        recipe_path: data-juicer YAML.
        progress: called with (operator, steps done, steps).

    Raises:
        InputError: a bad recipe (unknown operator, parameter or column, an operator that
            needs the network, a model or an API, or that changes the text), a null in a
            text column, or data-juicer is not installed.
        ComposerError: the worker died.
    """
    recipe = NormalizeRecipe.load(recipe_path)
    recipe_id = recipe.recipe_id(recipe_path)
    wanted = lake.days("pairs") if days is None else sorted(set(days))
    known = set(lake.days("pairs")) | set(lake.days("normalized_pairs"))
    wanted = [day for day in wanted if day in known]
    tables: dict[str, pa.Table] = {}
    narrow: list[dict[str, str]] = []
    for day in wanted:
        table = lake.read("pairs", days=[day])
        tables[day] = table
        for row in lake.rows("pairs", days=[day], columns=_NARROW_SOURCE):
            narrow.append({**narrow_row(row), "day": day})
    result = run_worker(narrow, recipe, recipe_path, progress=progress)
    if result.rows != len(narrow):
        raise ComposerError(f"normalize lost rows: {len(narrow)} in, {result.rows} judged")
    dropped = {drop.row: drop for drop in result.drops}
    if len(dropped) != len(result.drops):
        raise ComposerError("normalize dropped a row twice")
    by_day: dict[str, dict[str, int]] = {}
    start = 0
    for day, table in tables.items():
        rows = table.num_rows
        kept = _write_day(lake, day, table, range(start, start + rows), dropped, recipe_id)
        by_day[day] = {"rows": rows, "kept": kept, "dropped": rows - kept}
        start += rows
    kept = sum(counts["kept"] for counts in by_day.values())
    if kept + len(dropped) != len(narrow):
        raise ComposerError(f"normalize lost rows: {len(narrow)} in, {kept} + {len(dropped)} out")
    return NormalizeReport(
        rows=len(narrow),
        kept=kept,
        dropped=len(dropped),
        by_op=dict(sorted(Counter(drop.step for drop in dropped.values()).items())),
        recipe_id=recipe_id,
        by_day=by_day,
    )


_NARROW_SOURCE = ("pair_id", "prompt", "chosen", "rejected", "tools")


def _write_day(
    lake: Lake,
    day: str,
    table: pa.Table,
    rows: range,
    dropped: dict[int, Drop],
    recipe_id: str,
) -> int:
    positions = [i for i, row in enumerate(rows) if row not in dropped]
    plain = table.select(PAIRS.schema.names).take(pa.array(positions, pa.int64()))
    recipe = pa.array([recipe_id] * plain.num_rows, pa.string())
    out = plain.append_column("recipe", recipe).cast(NORMALIZED_PAIRS.schema)
    pair_ids = table.column("pair_id").to_pylist()
    state_ids = table.column("state_id").to_pylist()
    ledger = [
        {
            "pair_id": pair_ids[i],
            "state_id": state_ids[i],
            "step": drop.step,
            "op": drop.op,
            "field": drop.field,
            "stat": drop.stat,
            "value": drop.value,
            "bound": drop.bound,
        }
        for i, row in enumerate(rows)
        if (drop := dropped.get(row)) is not None
    ]
    lake.write("drops", ledger, stage=STAGE, day=day)
    lake.write("normalized_pairs", out, day=day)
    return len(positions)


def run_worker(
    narrow: list[dict[str, str]],
    recipe: NormalizeRecipe,
    recipe_path: str | Path,
    *,
    progress: Progress | None = None,
) -> WorkerResult:
    """Judge the narrow rows in a process of its own and return what it dropped.

    The process gets no credential of ours in its environment, opens no connection and
    installs nothing.

    Raises:
        InputError: the recipe cannot be run.
        ComposerError: the process died.
    """
    columns = {name: [row[name] for row in narrow] for name in (*COLUMNS, "day")}
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    with tempfile.TemporaryDirectory(prefix="composer-normalize-") as folder:
        work = Path(folder)
        with (
            pa.OSFile(str(work / "rows.arrow"), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
        (work / "steps.json").write_bytes(msgspec.json.encode(recipe.steps()))
        with (work / "log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "composer_pipeline.preferences.normalize_worker", folder],
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=_worker_env(),
                text=True,
            )
            try:
                assert child.stdout is not None
                for line in child.stdout:
                    if progress is not None and line.startswith("step\t"):
                        _, label, done, total = line.rstrip("\n").split("\t")
                        progress(label, int(done), int(total))
                code = child.wait()
            finally:
                child.kill()
                child.communicate()
        if code != 0:
            lines = (work / "log").read_text(errors="replace").strip().splitlines() or ["no output"]
            raise ComposerError(f"the normalize worker ended with code {code}: {lines[-1][:300]}")
        result = msgspec.json.decode((work / "result.json").read_bytes(), type=WorkerResult)
    if result.error:
        raise InputError(f"recipe {recipe_path}: {result.error}")
    return result


def _worker_env() -> dict[str, str]:
    """Ours without credentials, and with installing switched off for pip and uv."""
    secret = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS")
    env = {name: value for name, value in os.environ.items() if not name.endswith(secret)}
    return {**env, "UV_OFFLINE": "1", "PIP_NO_INDEX": "1", "HF_HUB_OFFLINE": "1"}


def _tail(messages: list[dict[str, Any]]) -> str:
    """The last :data:`TAIL_CHARS` characters of the prompt's messages."""
    parts: list[str] = []
    length = 0
    for message in reversed(messages):
        text = action_text([message])
        parts.append(text)
        length += len(text) + 1
        if length >= TAIL_CHARS:
            break
    return "\n".join(reversed(parts))[-TAIL_CHARS:]


def _content(content: Any) -> str:
    return content if isinstance(content, str) else _json(content)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
