"""Who may write a run folder: its lock, and moving a run aside.

Belongs here: one process at a time in a folder, and a new start that deletes nothing. Does not
belong here: what the files of a run say. The kernel releases the lock when its holder dies.
"""

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
    """Hold the folder's lock; the folder must exist.

    Raises:
        ComposerError: another process trains there, or has moved the folder meanwhile.
    """

    def busy() -> None:
        raise ComposerError(f"another process is training in {run_dir}; wait for it, or end it")

    with writing(f"run folder {run_dir}"):
        file = (run_dir / LOCK).open("w")
    with file:
        take_lock(file, busy)
        if not _same_file(file.fileno(), run_dir / LOCK):
            raise ComposerError(f"{run_dir} was moved aside by another process; start again")
        yield


def set_aside(run_dir: Path) -> Path | None:
    """Rename a run's folder to the first free ``<name>.<n>`` and return it.

    Nothing is deleted. ``None`` where there is no such folder.

    Raises:
        ComposerError: another process trains in the folder.
    """
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
    """Whether a path still leads to an open file: a lock on a moved file locks another folder."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


#: Files below this are read each time.
SMALL = 1 << 20
#: A file changed within this many seconds may change again without another time.
RACY_S = 2.0
#: Files of a model folder that say nothing about what it computes.
IGNORED = ("README.md", "LICENSE", "composer.json")

Kind = Literal["offline default", "folder", "hub", "run"]


@dataclass(frozen=True)
class Content:
    """What is behind a name in a recipe.

    ``name`` is for other machines: a Hub id or the offline default as it is, a folder by its
    last part. ``digest`` is ``commit:…`` of a Hub id and ``blake2b:…`` of files otherwise.
    ``licence`` is empty where it is not known.
    """

    name: str
    kind: Kind
    digest: str
    licence: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def model_content(name: str) -> Content:
    """Return what a recipe's ``model`` is now.

    The offline default is known by the file it is converted from; where its package is not
    installed the digest is empty, and loading it says what to install.

    Raises:
        InputError: no such folder, an adapter in place of a model, or the Hub refuses.
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
    """Return what a recipe's ``start_from`` is now.

    Raises:
        InputError: no such adapter.
    """
    folder = adapter_folder(name)
    if folder is None:
        return Content(name, "hub", f"commit:{commit_of(name, 'start_from')}")
    # The checkpoint of a run is better known by the run's name.
    said = folder.parent.name if folder.name == "checkpoint" else folder.name
    return Content(said, "folder", f"blake2b:{folder_digest(folder)}", _licence(folder))


def folder_digest(folder: Path) -> str:
    """Return a digest of names and bytes of a folder's own files; not of folders in it."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith(".") and path.name not in IGNORED:
            digest.update(f"{path.name}\0{file_digest(path)}\0".encode())
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Return a digest of a file's bytes; read once for as long as the file stays as it is."""
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
        with suppress(StorageError):  # only a cache
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
    """Return a finished run's recipe and its result.

    Raises:
        InputError: the folder holds no finished run.
    """
    if not (run_dir / RESULT).is_file():
        raise InputError(
            f"{run_dir} holds no finished training run: only such a one can be extended; one that"
            " was interrupted goes on with the command that began it"
        )
    result: dict[str, Any] = json.loads((run_dir / RESULT).read_text(encoding="utf-8"))
    return TrainingRecipe.load(run_dir / RECIPE), result


def run_content(name: str) -> Content:
    """Return what a recipe's ``extends`` is now: the last state that the run committed.

    Raises:
        InputError: it is no finished run.
    """
    run_dir = Path(name).expanduser()
    _, result = earlier(run_dir)
    return Content(run_dir.name, "run", f"sha256:{result['commits'][-1]['state_sha']}")


def extended(run_dir: str | Path, rounds: int) -> TrainingRecipe:
    """Return the recipe of a finished run, to be trained on to ``rounds`` rounds in all.

    It keeps the outer step of the earlier run, also where a longer one would have another by
    default.

    Raises:
        InputError: no finished run, or not more rounds than it has.
    """
    folder = Path(run_dir).expanduser().absolute()
    recipe, _ = earlier(folder)
    if rounds <= recipe.rounds:
        raise InputError(
            f"--rounds {rounds}: {folder.name} has {recipe.rounds} rounds already; say how many it"
            " shall have in all"
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
    """Return the recipe of the run that a recipe extends.

    Args:
        recipe: with its length resolved; its ``extends`` is set.
        base: digest of its model now.
        rows: digest of its training rows now.

    Raises:
        InputError: it differs from the earlier run in more than its length; names the field.
    """
    name = Path(recipe.extends).name
    before, result = earlier(Path(recipe.extends))
    if recipe.rounds <= before.rounds:
        raise InputError(
            f"recipe field diloco.rounds: {recipe.rounds}, and {name}, which it extends, has"
            f" {before.rounds} already"
        )
    same = {"model": (result["base"]["digest"], base), "rows": (result["dataset_sha"], rows)}
    for what, (then, now) in same.items():
        if then != now:
            raise InputError(
                f"{name} cannot be extended: its {what} have changed since; train anew, or with its"
                " adapter as start_from"
            )
    if outer_of(before) != outer_of(recipe):
        raise InputError(
            f"recipe fields diloco.outer_lr and diloco.outer_momentum are {outer_of(recipe)}, and"
            f" {name}, which it extends, has {outer_of(before)}: say so in the recipe"
        )
    then, now = json.loads(before.agreed()), json.loads(recipe.agreed())
    if odd := next((field for field in then if then[field] != now.get(field)), ""):
        raise InputError(
            f"recipe field {odd} is {now.get(odd)!r}, and {name}, which it extends, has"
            f" {then[odd]!r}: an extended run keeps what it began with; start_from begins another"
        )
    return before


#: The library's own code that decides what comes out of a training, below its folder.
LIBRARY = (
    "losses", "diloco", "training/rows.py", "training/build_rows.py", "training/windows.py",
    "training/chat_template.py", "training/window_text.py", "training/rewards.py",
    "training/models.py",
)  # fmt: skip


#: File of a run folder with what is behind the recipe's names, and what it holds:
#: field of the recipe to :class:`~composer_pipeline.training.runs.Content`.
CONTENTS = "contents.json"
Contents = dict[str, dict[str, str]]


def fingerprint(lake: Lake, recipe: TrainingRecipe, trainer: Trainer) -> str:
    """Return the identity of a run, 12 hexadecimal digits.

    It covers the recipe, the content of its model and of the adapter it starts from, the
    training rows, the code that trains, and the versions of the modules that the trainer
    says it needs.

    Raises:
        InputError: the trainer names code that is not there, or the model cannot be found.
    """
    for path in trainer.code():
        if not path.exists():
            raise InputError(f"trainer {trainer.name!r} names code that is not there: {path}")
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
    """Return what is behind the names in a recipe: ``model``, ``start_from``, ``extends``.

    Raises:
        InputError: one of them cannot be found.
    """
    found = {"model": model_content(recipe.model)}
    if recipe.start_from:
        found["start_from"] = adapter_content(recipe.start_from)
    if recipe.extends:
        found["extends"] = run_content(recipe.extends)
    return {name: content.to_dict() for name, content in found.items()}


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
    """Yield (name, file): files as they are, folders with every ``*.py`` below, by name.

    A name begins with that of the file or folder that was given, so that the same code in
    another place is the same code.
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
        path = lake.path(table, split=split).removeprefix(lake.root + "/")
        digest.update(f"\0{table}\0".encode())
        digest.update(lake.get_bytes(path) if lake.exists(path) else b"")
    return digest.hexdigest()


def simulated_rows(lake: Lake, recipe: TrainingRecipe, *, split: str = "train") -> dict[str, int]:
    """Return how many rows of each table that is trained on come from a simulated teacher."""
    out = {}
    for name in tables_of(recipe.channels):
        if "simulated" in TABLES[name].schema.names:
            rows = lake.rows(name, columns=["simulated"], split=split)
            out[name] = sum(bool(row["simulated"]) for row in rows)
    return out
