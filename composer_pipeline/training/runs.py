"""Run folders: locks, fingerprints, the content of models behind names, and extended runs."""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import yaml

from composer_pipeline.errors import ComposerError, InputError, StorageError
from composer_pipeline.files import replace, take_lock, writing
from composer_pipeline.lake.schema import TABLES
from composer_pipeline.lake.store import Lake
from composer_pipeline.training.models import (
    CONVERSION,
    GGUF,
    SMOLLM2,
    adapter_folder,
    cache_dir,
    commit_of,
    gguf_folder,
    model_folder,
)
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.registry import Trainer
from composer_pipeline.training.rows import tables_of

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


RECIPE, RESULT = "recipe.yaml", "composer.json"


def earlier(run_dir: Path) -> tuple[TrainingRecipe, dict[str, Any]]:
    """Return a finished run's recipe and its result."""
    if not (run_dir / RESULT).is_file():
        raise InputError(
            f"{run_dir} holds no finished training run, and only a finished one can be extended;"
            " an interrupted one continues with the command that started it"
        )
    result: dict[str, Any] = json.loads((run_dir / RESULT).read_text(encoding="utf-8"))
    return TrainingRecipe.load(run_dir / RECIPE), result


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
    "training/models.py",
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
    digest.update(recipe.model_dump_json().encode())
    digest.update(dataset_digest(lake, recipe).encode())
    digest.update(json.dumps([contents(recipe), versions(trainer)]).encode())
    library = Path(__file__).parents[1]
    for name, path in files_of([*(library / part for part in LIBRARY), *trainer.code()]):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def contents(recipe: TrainingRecipe) -> Contents:
    """Return the contents of a recipe's ``model``, ``start_from`` and ``extends``."""
    found = {"model": model_content(recipe.model)}
    if recipe.start_from:
        found["start_from"] = adapter_content(recipe.start_from)
    if recipe.extends:
        found["extends"] = run_content(recipe.extends)
    return {name: asdict(content) for name, content in found.items()}


def versions(trainer: Trainer) -> dict[str, str]:
    """Return the installed versions of the modules that a trainer needs."""
    out = {}
    for module in sorted(trainer.capabilities().modules):
        try:
            out[module] = version(module)
        except PackageNotFoundError:
            out[module] = ""
    return out


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


def simulated_rows(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> dict[str, int]:
    """Return, by table that is trained on, how many rows come from a simulated teacher."""
    out = {}
    for name in tables_of(recipe.channels):
        if "simulated" in TABLES[name].schema.names:
            rows = lake.rows(name, columns=["simulated"], split=split)
            out[name] = sum(bool(row["simulated"]) for row in rows)
    return out
