"""Training runs: their folders and fingerprints, running a trainer, and reading what it recorded.

A run is identified by its recipe, the bytes of its training rows and the code that trains. The
same inputs give the same folder: a complete one is reused, an interrupted one continues from its
last committed round. The trainer runs in its own process, so that the same command works under
Dagster Pipes, in a pod, or by hand.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import yaml
from packaging.requirements import Requirement

from composer_pipeline.charts import lines
from composer_pipeline.errors import ComposerError, InputError, StorageError
from composer_pipeline.files import cache_dir, make_folder, replace, take_lock, writing
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Progress, Report
from composer_pipeline.training.events import read, run_process
from composer_pipeline.training.models import (
    CONVERSION,
    GGUF,
    SMOLLM2,
    adapter_folder,
    commit_of,
    gguf_folder,
    model_folder,
)
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import (
    TRAINERS,
    Merger,
    Trainer,
    carried,
    installed,
    repo_root,
    validate,
)
from composer_pipeline.training.rows import require_rows, tables_of

RECIPE, DATA, METRICS, RESULT = "recipe.yaml", "data", "metrics.jsonl", "composer.json"
CHECKPOINT, MERGED, HELD_OUT = "checkpoint", "merged", "held-out"
LOCK = ".lock"


@contextmanager
def alone(run_dir: Path) -> Iterator[None]:
    """Hold the lock of an existing run folder; the kernel releases it when the process dies."""

    def busy() -> None:
        raise ComposerError(f"another process is training in {run_dir}; wait for it, or stop it")

    with writing(f"run folder {run_dir}"):
        file = (run_dir / LOCK).open("w")
    with file:
        take_lock(file, busy)
        if not _same_file(file.fileno(), run_dir / LOCK):
            raise ComposerError(f"{run_dir} was moved aside by another process; start again")
        yield


def set_aside(run_dir: Path) -> Path | None:
    """Rename a run's folder to the first free ``<name>.<n>``; return it, or ``None`` if absent."""
    if not run_dir.is_dir():
        return None
    with alone(run_dir):
        number = 1
        while (old := run_dir.with_name(f"{run_dir.name}.{number}")).exists():
            number += 1
        with writing(f"run folder {run_dir.parent}"):
            run_dir.rename(old)
        return old


def _same_file(descriptor: int, path: Path) -> bool:
    # A lock on a file that was moved protects another folder.
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


#: Bytes below which a file is read each time.
SMALL = 1 << 20
#: A file changed within so many seconds may change again without a new modification time.
RACY_S = 2.0
#: Files of a model folder that do not affect what it computes.
IGNORED = ("README.md", "LICENSE", "composer.json")

Kind = Literal["offline default", "folder", "hub", "run"]


@dataclass(frozen=True)
class Content:
    """What a name in a recipe refers to."""

    #: A Hub id or the offline default unchanged, a folder by its last part.
    name: str
    kind: Kind
    #: ``commit:…`` of a Hub id, else ``blake2b:…`` of the files.
    digest: str
    #: Empty if unknown.
    licence: str = ""


def model_content(name: str) -> Content:
    """Return the current content of a recipe's ``model``.

    The digest of the offline default is that of the file it is converted from, and empty without
    its package.
    """
    if name == SMOLLM2:
        source = gguf_folder()
        digest = f"{file_digest(source / GGUF)}-v{CONVERSION}" if source else ""
        return Content(name, "offline default", f"blake2b:{digest}", "apache-2.0")
    folder = model_folder(name)
    if folder is None:
        return Content(name, "hub", f"commit:{commit_of(name)}")
    return Content(folder.name, "folder", f"blake2b:{folder_digest(folder)}", _licence(folder))


def adapter_content(name: str) -> Content:
    """Return the current content of a recipe's ``start_from``."""
    folder = adapter_folder(name)
    if folder is None:
        return Content(name, "hub", f"commit:{commit_of(name, 'start_from')}")
    # A run's checkpoint goes by the run's name.
    label = folder.parent.name if folder.name == "checkpoint" else folder.name
    return Content(label, "folder", f"blake2b:{folder_digest(folder)}", _licence(folder))


def folder_digest(folder: Path) -> str:
    """Return a digest of the names and bytes of a folder's own files, without sub-folders."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.name not in IGNORED:
            digest.update(f"{path.name}\0{file_digest(path)}\0".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Return a digest of a file's bytes, cached while the file is unchanged."""
    stat = path.stat()
    if stat.st_size < SMALL:
        return _digest(path)
    key = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
    place = hashlib.blake2b(str(path.absolute()).encode(), digest_size=16).hexdigest()
    known = cache_dir() / "digests" / f"{place}.json"
    with suppress(OSError, ValueError):
        found = json.loads(known.read_text(encoding="utf-8"))
        if found["key"] == key:
            return str(found["digest"])
    digest = _digest(path)
    if time.time() - max(stat.st_mtime, stat.st_ctime) > RACY_S:
        with suppress(StorageError):  # a cache only
            replace(known, json.dumps({"key": key, "digest": digest}))
    return digest


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _licence(folder: Path) -> str:
    """Return the licence that a model card in the folder names."""
    with suppress(OSError, yaml.YAMLError, UnicodeDecodeError):
        head = (folder / "README.md").read_text(encoding="utf-8").split("---\n")
        front = yaml.safe_load(head[1]) if len(head) > 2 and not head[0] else None
        if isinstance(front, dict):
            return str(front.get("license") or "")
    return ""


def earlier(run_dir: Path) -> tuple[TrainingRecipe, dict[str, Any]]:
    """Return a finished run's recipe and its result."""
    if not (run_dir / RESULT).is_file():
        raise InputError(
            f"{run_dir} holds no finished training run, and only a finished one can be extended;"
            " an interrupted one continues with the command that started it"
        )
    return TrainingRecipe.load(run_dir / RECIPE), finished(run_dir)


def run_content(name: str) -> Content:
    """Return the content of a recipe's ``extends``: the last state that the run committed."""
    run_dir = Path(name).expanduser()
    _, result = earlier(run_dir)
    return Content(run_dir.name, "run", f"sha256:{result['commits'][-1]['state_sha']}")


def extended(run_dir: str | Path, rounds: int) -> TrainingRecipe:
    """Return the recipe that continues a finished run up to ``rounds`` rounds in total.

    It keeps the outer step of the earlier run even where the default for more rounds differs.
    """
    folder = Path(run_dir).expanduser().absolute()
    recipe, _ = earlier(folder)
    if rounds <= recipe.rounds:
        raise InputError(
            f"--rounds {rounds}: {folder.name} already has {recipe.rounds} rounds; give the total"
            " number of rounds"
        )
    lr, momentum = outer_of(recipe)
    changed = {
        "rounds": rounds, "run_id": "", "outer_lr": lr, "outer_momentum": momentum,
    }  # fmt: skip
    diloco = recipe.diloco.model_copy(update=changed)
    update = {"extends": str(folder), "diloco": diloco, "steps": None, "epochs": None}
    return recipe.model_copy(update=update)


def outer_of(recipe: TrainingRecipe) -> tuple[float, float]:
    """Return the outer learning rate and momentum of a recipe whose length is known."""
    return recipe.diloco.agreement(recipe.rounds).outer_step


def require_continues(recipe: TrainingRecipe, base: str, rows: str) -> TrainingRecipe:
    """Return the earlier run's recipe; raise InputError if more than the length differs.

    ``recipe`` has its length resolved; ``base`` and ``rows`` are the current digests of its model
    and training rows.
    """
    name = Path(recipe.extends).name
    before, result = earlier(Path(recipe.extends))
    if recipe.rounds <= before.rounds:
        raise InputError(
            f"recipe field diloco.rounds: {recipe.rounds}, but {name}, which it extends,"
            f" already has {before.rounds}"
        )
    same = {"model": (result["base"]["digest"], base), "rows": (result["dataset_sha"], rows)}
    for what, (then, now) in same.items():
        if then != now:
            raise InputError(
                f"{name} cannot be extended: its {what} changed since; train from the start, or"
                " with its adapter as start_from"
            )
    if outer_of(before) != outer_of(recipe):
        raise InputError(
            f"recipe fields diloco.outer_lr and diloco.outer_momentum are {outer_of(recipe)}, but"
            f" {name}, which it extends, has {outer_of(before)}; set them in the recipe"
        )
    then, now = json.loads(before.agreed()), json.loads(recipe.agreed())
    if odd := next((field for field in then if then[field] != now.get(field)), ""):
        raise InputError(
            f"recipe field {odd} is {now.get(odd)!r}, but {name}, which it extends, has"
            f" {then[odd]!r}; an extended run keeps its settings, start_from begins a new run"
        )
    return before


#: Code of the library that affects the result of a training, relative to its folder.
LIBRARY = (
    "losses", "diloco", "training/rows.py", "training/windows.py",
    "training/chat_template.py", "training/window_text.py", "training/rewards.py",
    "training/models.py", "window.py",
)  # fmt: skip


#: File of a run folder with the content behind the recipe's names: field to :class:`Content`.
CONTENTS = "contents.json"
Contents = dict[str, dict[str, str]]


def fingerprint(lake: Lake, recipe: TrainingRecipe, trainer: Trainer) -> str:
    """Return the fingerprint of a run, 12 hexadecimal digits.

    It covers the recipe, the content of its model and adapter, the training rows, the code that
    trains, and the versions of the modules that the trainer needs.
    """
    for path in trainer.code():
        if not path.exists():
            raise InputError(f"trainer {trainer.name!r} names code that does not exist: {path}")
    digest = hashlib.blake2b(digest_size=6)
    # Another path of the same packages gives the same run.
    digest.update(recipe.model_dump_json(exclude={"backend": {"python"}}).encode())
    digest.update(dataset_digest(lake, recipe).encode())
    digest.update(json.dumps([contents(recipe), versions(recipe, trainer)]).encode())
    digest.update(code_digest(trainer).encode())
    return digest.hexdigest()


def code_digest(trainer: Trainer) -> str:
    """Return a hash of the sources that decide a training's numbers, whatever their line ends."""
    digest, library = hashlib.blake2b(digest_size=8), Path(__file__).parents[1]
    for name, path in files_of([*(library / part for part in LIBRARY), *trainer.code()]):
        source = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def contents(recipe: TrainingRecipe) -> Contents:
    """Return the contents of a recipe's ``model``, ``start_from`` and ``extends``."""
    found = {"model": model_content(recipe.model)}
    if recipe.start_from:
        found["start_from"] = adapter_content(recipe.start_from)
    if recipe.extends:
        found["extends"] = run_content(recipe.extends)
    return {name: asdict(content) for name, content in found.items()}


def versions(recipe: TrainingRecipe, trainer: Trainer) -> dict[str, str]:
    """Return the versions of the packages that a trainer needs, in its interpreter."""
    names = sorted(Requirement(text).name for text in trainer.needs(recipe).requirements)
    return installed(recipe.backend.python, names)


def files_of(code: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Yield (name, file) of given files and of every ``*.py`` below given folders.

    Names are relative, so that the same code in another place has the same fingerprint.
    """
    for given in code:
        if given.is_dir():
            for path in sorted(given.rglob("*.py")):
                yield f"{given.name}/{path.relative_to(given).as_posix()}", path
        else:
            yield given.name, given


def dataset_digest(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> str:
    """Return a hash of the Parquet bytes of a split of the weighted channels' tables."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update("\0".join(sorted(recipe.channels.weights())).encode())
    for table in tables_of(recipe.channels):
        path = lake.file_name(table, split=split)
        digest.update(f"\0{table}\0".encode())
        digest.update(lake.get_bytes(path) if lake.exists(path) else b"")
    return digest.hexdigest()


def runs_on(lake: Lake, run_root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield folder and result of the finished runs on the current dataset, by name."""
    for path in sorted(run_root.glob(f"*/{RESULT}")):
        try:
            result = finished(path.parent)
            recipe = TrainingRecipe.model_validate(result["recipe"])
        except (InputError, ValueError, KeyError):
            continue  # of another version, or half written: not a run on this dataset
        if dataset_digest(lake, recipe) == result.get("dataset_sha"):
            yield path.parent, result


def simulated_rows(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> dict[str, int]:
    """Return, by table that is trained on, how many rows come from a simulated teacher."""
    out = {}
    for name in tables_of(recipe.channels):
        if "simulated" in TABLES[name].schema.names:
            rows = lake.rows(name, columns=["simulated"], split=split)
            out[name] = sum(bool(row["simulated"]) for row in rows)
    return out


#: Numbers that show a channel's progress, taken at the first and the last round.
PROGRESS: dict[str, tuple[str, ...]] = {
    "grpo": ("grpo_best_gain", "grpo_worst_gain"),
    "sdpo": ("sdpo_loss",),
    "dpo": ("dpo_loss", "dpo_accuracy"),
    "sft": ("sft_loss",),
}
#: Fields of a step event that are not metrics.
_NOT_METRICS = frozenset({"event", "time", "slot", "step", "of"})


class _Round(Protocol):
    @property
    def included(self) -> Sequence[object]: ...


@dataclass(frozen=True)
class PreparedRun:
    """A checked run: the command that trains it, and where."""

    command: list[str]
    #: Added to the caller's environment.
    env: dict[str, str]
    cwd: str
    run_dir: Path
    complete: bool


@dataclass(frozen=True)
class TrainReport(Report):
    """A finished run.

    ``reused`` is True where nothing was trained by this call; ``merged`` is the folder with base
    and adapter as one model, if there is one.
    """

    run_dir: Path
    checkpoint: Path
    metrics: dict[str, float]
    reused: bool
    merged: Path | None = None


def prepare(
    lake: Lake, recipe: TrainingRecipe | str | Path, run_root: str | Path, *, begin: bool = True
) -> PreparedRun:
    """Check a recipe against trainer and lake, and return its run.

    With ``begin`` the recipe is written into a run folder that has none.
    """
    if not isinstance(recipe, TrainingRecipe):
        recipe = TrainingRecipe.load(recipe)
    recipe = _absolute(recipe)
    trainer = validate(recipe)
    require_rows(lake, recipe)
    run_dir = Path(run_root).absolute() / f"{recipe.name}-{fingerprint(lake, recipe, trainer)}"
    complete = (run_dir / RESULT).is_file()
    if begin and not complete:
        make_folder(run_dir)
        # The recipe of a run that has begun has its length resolved.
        if not (run_dir / RECIPE).is_file():
            write_recipe(recipe, run_dir)
    command = trainer.command(sys.executable, run_dir / RECIPE, lake.url, run_dir)
    return PreparedRun(list(command), environment(recipe), str(repo_root()), run_dir, complete)


def _merge_command(run_dir: Path) -> list[str]:
    recipe = TrainingRecipe.load(run_dir / RECIPE)
    trainer = TRAINERS.get(recipe.trainer, "recipe field trainer")
    if not isinstance(trainer, Merger):
        raise InputError(f"recipe field trainer: {trainer.name!r} writes no merged weights")
    if not recipe.lora.r:
        raise InputError("recipe field lora.r: 0 trains the whole model, there is nothing to merge")
    return list(trainer.merge_command(sys.executable, run_dir))


def _absolute(recipe: TrainingRecipe) -> TrainingRecipe:
    # The trainer's working directory is not the caller's.
    names = {"model": recipe.model, "start_from": recipe.start_from, "extends": recipe.extends}
    folders = {field: Path(name).expanduser() for field, name in names.items() if name}
    found: dict[str, Any] = {f: str(p.absolute()) for f, p in folders.items() if p.is_dir()}
    if recipe.backend.python:  # not resolved: the link of a virtual environment is the environment
        python = str(Path(recipe.backend.python).expanduser().absolute())
        found["backend"] = recipe.backend.model_copy(update={"python": python})
    if recipe.diloco.log and "://" not in recipe.diloco.log:
        log = str(Path(recipe.diloco.log).expanduser().absolute())
        found["diloco"] = recipe.diloco.model_copy(update={"log": log})
    return recipe.model_copy(update=found)


def train(
    lake: Lake,
    recipe: TrainingRecipe | str | Path,
    run_root: str | Path,
    *,
    progress: Progress | None = None,
    force: bool = False,
    merge: bool = False,
) -> TrainReport:
    """Train a recipe in a process of its own, or return the finished run of the same inputs.

    Args:
        lake: holds the dataset tables with split=train.
        recipe: a recipe, or the path of its YAML file.
        run_root: folder of all runs.
        progress: called as (label, done, total): rows of a channel that the base model has
            scored, then steps of all replicas.
        force: train again; a run of the same inputs is moved to ``<folder>.<n>``.
        merge: also write base and adapter as one model.

    Raises:
        InputError: the recipe is wrong, its trainer does not support it, or a weighted channel has
            no row.
        ComposerError: training failed, or another process is training in the run folder.
    """
    run = prepare(lake, recipe, run_root)
    if force:
        set_aside(run.run_dir)
        run = prepare(lake, recipe, run_root)
    merging = _merge_command(run.run_dir) if merge else []
    if not run.complete:
        _execute(run, progress)
    if merging and not (run.run_dir / MERGED).is_dir():
        run_process(merging, cwd=run.cwd, env=run.env, what="merging", on_event=lambda _: None)
    return report(run.run_dir, reused=run.complete)


def report(run_dir: str | Path, *, reused: bool = False) -> TrainReport:
    """Read a finished run."""
    run_dir = Path(run_dir)
    result = finished(run_dir)
    for channel in TrainingRecipe.model_validate(result["recipe"]).channels.weights():
        if not result["metrics"].get(f"{channel}_active"):
            raise ComposerError(f"{run_dir}: channel {channel} is on and was trained on nothing")
    merged = run_dir / MERGED
    return TrainReport(
        run_dir,
        run_dir / CHECKPOINT,
        result["metrics"],
        reused,
        merged if merged.is_dir() else None,
    )


def finished(run_dir: Path) -> dict[str, Any]:
    """Return the content of a finished run's ``composer.json``."""
    if not (run_dir / RESULT).is_file():
        raise InputError(f"{run_dir} holds no finished training run")
    result: dict[str, Any] = json.loads((run_dir / RESULT).read_text(encoding="utf-8"))
    try:
        msgspec.convert(result, Result)
    except msgspec.ValidationError as error:
        raise InputError(f"{run_dir / RESULT}: {error}") from error
    return result


class Result(msgspec.Struct):
    """What ``composer.json`` holds at least; a trainer may add more.

    ``recipe`` has public names in place of this machine's paths; ``rows`` are those used, by
    channel; ``metrics`` has ``<channel>_active``, the tokens (pairs for ``dpo``) that a channel was
    trained on, for each channel that is on.
    """

    recipe: dict[str, Any]
    base: dict[str, str]
    dataset_sha: str
    rows: dict[str, int]
    versions: dict[str, str]
    fidelity: dict[str, dict[str, str]]
    metrics: dict[str, float]
    commits: list[dict[str, Any]] = []


def result_of(
    lake: Lake,
    recipe: TrainingRecipe,
    found: Contents,
    *,
    dataset_sha: str,
    rows: Mapping[str, int],
    metrics: Mapping[str, float],
) -> dict[str, Any]:
    """Return what ``composer.json`` must hold (:class:`Result`); ``found`` is ``contents``.

    ``dataset_sha`` is the ``dataset_digest`` of before the rows were read: the lake may change
    while a run trains.
    """
    trainer = TRAINERS.get(recipe.trainer, "recipe field trainer")
    names = {field: content["name"] for field, content in found.items()}
    public = recipe.model_dump(mode="json", exclude={"backend": {"python"}})
    return {
        "recipe": public | names,
        "base_model": found["model"]["name"],
        "base": found["model"],
        "start_from": found.get("start_from"),
        "versions": versions(recipe, trainer),
        "fidelity": {name: asdict(how) for name, how in carried(trainer, recipe).items()},
        "dataset_sha": dataset_sha,
        "simulated": simulated_rows(lake, recipe),
        "rows": dict(rows),
        "metrics": dict(metrics),
    }


def about(run_dir: Path) -> dict[str, str]:
    """Return model, dataset, recipe and rounds of a finished run as text."""
    result = finished(run_dir)
    base, start = result["base"], result.get("start_from")
    commits = result.get("commits", ())
    recipe, rows = TrainingRecipe.model_validate(result["recipe"]), result["rows"]
    replicas = recipe.diloco.replicas
    merged = sum(bool(commit["merged"]) for commit in commits)
    weights = ", ".join(f"{name} {weight:g}" for name, weight in recipe.channels.weights().items())
    kinds = {name: how["fidelity"] for name, how in result["fidelity"].items()}
    return {
        "base_model": f"{base['name']} ({base['digest']})",
        **({"started_from": f"{start['name']} ({start['digest']})"} if start else {}),
        "dataset_hash": result["dataset_sha"],
        "dataset_rows": ", ".join(f"{name} {count}" for name, count in rows.items()),
        "recipe": f"{recipe.name}: {weights}; {recipe.total_steps} steps of each of"
        f" {replicas} replicas, learning rate {recipe.learning_rate:g}, seed {recipe.seed}",
        "trainer": f"{recipe.trainer}: {', '.join(f'{n} {kind}' for n, kind in kinds.items())}",
        **({"diloco_rounds": f"{merged} of {len(commits)} merged"} if commits else {}),
    }


def environment(recipe: TrainingRecipe) -> dict[str, str]:
    """Return the variables to add to a trainer's environment."""
    paths = [str(repo_root()), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TQDM_DISABLE": "1",  # steps are reported as events
    }
    local = recipe.model == SMOLLM2 or Path(recipe.model).expanduser().is_dir()
    if local and (not recipe.start_from or Path(recipe.start_from).expanduser().is_dir()):
        env["HF_HUB_OFFLINE"] = "1"
    if recipe.threads:
        env["OMP_NUM_THREADS"] = str(recipe.threads)
    return env


def write_recipe(recipe: TrainingRecipe, run_dir: Path) -> None:
    """Write the complete recipe into the run folder."""
    text = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)
    replace(run_dir / RECIPE, text)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON atomically."""
    replace(path, json.dumps(value, indent=1, allow_nan=False))


def read_steps(run_dir: Path) -> dict[tuple[int, int], dict[str, float]]:
    """Return the finite numbers of each (slot, step); a repeated step counts once."""
    steps = {}
    for event in read(run_dir / METRICS):
        if event.get("event") == "step":
            numbers = {k: float(v) for k, v in event.items() if _is_number(k, v)}
            steps[event["slot"], event["step"]] = numbers
    return steps


def _is_number(name: str, value: object) -> bool:
    return name not in _NOT_METRICS and isinstance(value, (int, float))


def summarise(
    recipe: TrainingRecipe, run_dir: Path, rounds: Sequence[_Round], seconds: float
) -> dict[str, float]:
    """Return a run's numbers.

    ``<key>_first`` and ``<key>_last`` are means over the steps of all replicas in the first and
    last round, since a single step has few rows; ``<channel>_active`` is a sum over the run
    (tokens; pairs for DPO); ``seconds`` counts from the last start.
    """
    steps = read_steps(run_dir)
    inner = recipe.diloco.inner_steps
    numbers: dict[str, float] = {}
    for channel in recipe.channels.weights():
        for key in PROGRESS[channel]:
            for name, first in (("first", 1), ("last", recipe.total_steps - inner + 1)):
                window = range(first, first + inner)
                values = [v[key] for (_, s), v in steps.items() if s in window and key in v]
                if values:
                    numbers[f"{key}_{name}"] = sum(values) / len(values)
        active = f"{channel}_active"
        numbers[active] = sum(v.get(active, 0.0) for v in steps.values())
    for key in ("tokens", "peak_memory_mib"):
        values = [v[key] for v in steps.values() if key in v]
        if values:
            numbers[key] = max(values) if key == "peak_memory_mib" else sum(values)
    replicas = recipe.diloco.replicas
    return {
        **numbers,
        "rounds": len(rounds),
        "rounds_merged": sum(bool(r.included) for r in rounds),
        "rounds_with_all_replicas": sum(len(r.included) == replicas for r in rounds),
        "replicas": replicas,
        "steps": recipe.total_steps,
        "seconds": round(seconds, 1),
    }


def held_out_losses(run_dir: Path) -> dict[int, float]:
    """Return the held-out loss by round; a round that was measured again counts once."""
    found = (event for event in read(run_dir / METRICS) if event["event"] == "held_out")
    return {event["round"]: event["loss"] for event in found if event["loss"] is not None}


def best_round(measured: Mapping[int, float]) -> int:
    """Return the round with the lowest held-out loss, the earliest of equals."""
    if not measured:
        raise ComposerError(
            "recipe field keep_best: no round was measured on held-out rows; train with --force"
        )
    return min(sorted(measured), key=measured.__getitem__)


#: Curve to the number of a step that it shows. GRPO's loss at ratio 1 says nothing about the
#: model, so the gain of its best answers is shown.
CURVES = {
    "grpo best gain": "grpo_best_gain", "sdpo": "sdpo_loss", "dpo": "dpo_loss", "sft": "sft_loss",
}  # fmt: skip
Points = list[tuple[float, float]]


def replica_curves(run_dir: Path) -> dict[str, dict[int, Points]]:
    """Return (step, value) of each channel that has values, by replica."""
    found: dict[str, dict[int, Points]] = {}
    steps = sorted(read_steps(run_dir).items()) if (run_dir / METRICS).is_file() else []
    for name, key in CURVES.items():
        for (slot, step), row in steps:
            if key in row:
                found.setdefault(name, {}).setdefault(slot, []).append((step, row[key]))
    return found


def channel_curves(run_dir: Path) -> dict[str, Points]:
    """Return (step, mean over replicas) for each channel that has values."""
    return {name: _mean_curve(by_slot) for name, by_slot in replica_curves(run_dir).items()}


def _mean_curve(by_slot: Mapping[int, Points]) -> Points:
    return _means(point for points in by_slot.values() for point in points)


def _means(points: Iterable[tuple[float, float]]) -> Points:
    """Return each x with the mean of its values."""
    values: dict[float, list[float]] = {}
    for x, value in points:
        values.setdefault(x, []).append(value)
    return [(x, sum(v) / len(v)) for x, v in sorted(values.items())]


def curve_charts(run_dir: Path) -> dict[str, str]:
    """Return a chart of each channel, its replicas thin, and of the held-out loss."""
    charts = {}
    for name, replicas in replica_curves(run_dir).items():
        thin = {f"replica {slot}": points for slot, points in replicas.items()}
        unit = "nats; thin: each replica" if len(thin) > 1 else "nats"
        charts[name] = lines({name: _mean_curve(replicas)}, unit=unit, x_unit="step", thin=thin)
    if held := held_out_curve(run_dir):
        charts["held out"] = lines({"held out": held}, unit="nats", x_unit="round")
    return charts


def held_out_curve(run_dir: Path) -> Points:
    """Return (round, held-out loss); empty if none was measured."""
    if not (run_dir / METRICS).is_file():
        return []
    return [*sorted(held_out_losses(run_dir).items())]


def round_losses(run_dir: Path, inner_steps: int) -> dict[str, dict[int, float]]:
    """Return each channel's mean number by round, its replicas' too, and the held-out loss."""
    by_replica = replica_curves(run_dir)
    curves = {name: _mean_curve(replicas) for name, replicas in by_replica.items()}
    for name, replicas in by_replica.items():
        curves |= {f"{name}, replica {slot}": points for slot, points in replicas.items()}
    found: dict[str, dict[int, float]] = {}
    for name, points in curves.items():
        of_rounds = _means(((int(step) - 1) // inner_steps + 1, value) for step, value in points)
        found[name] = {int(round_): value for round_, value in of_rounds}
    if held := held_out_curve(run_dir):
        found["held out"] = {int(round_): loss for round_, loss in held}
    return found


def _execute(run: PreparedRun, progress: Progress | None) -> None:
    seen: dict[int, int] = {}
    replicas = TrainingRecipe.load(run.run_dir / RECIPE).diloco.replicas

    def forward(event: dict[str, Any]) -> None:
        if progress is None:
            return
        if event.get("event") == "base":
            progress(f"base model, {event['channel']}", event["done"], event["of"])
        elif "step" in event:
            seen[event["slot"]] = event["step"]
            progress("train", sum(seen.values()), event["of"] * replicas)

    try:
        run_process(run.command, cwd=run.cwd, env=run.env, what="training", on_event=forward)
    except InputError:
        raise
    except ComposerError as error:
        raise ComposerError(f"{error} (run folder {run.run_dir})") from error
