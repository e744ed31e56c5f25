"""The model registry of a lake: versions with their evaluation, and which of them is current.

``models/versions/<number>.json`` describes a version and never changes. ``models/current`` names
the version that is served and every move before; it is replaced as a whole, so that a reader sees
the old version or the new one. Weights stay in the folder of their training run.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.lake.store import Lake
from composer_pipeline.publishing.publish import publish_model
from composer_pipeline.reports import Report
from composer_pipeline.training.run import folder_digest

_Kind = TypeVar("_Kind")

FOLDER, CURRENT, PUBLISHED = "models/versions", "models/current", "models/published"


class ModelVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version: what it was made from, how it was measured and what was decided.

    Attributes:
        number: 0 is the model before the first night.
        night: the day of the night that made it.
        parent: the version that it was trained from.
        base: model of the recipe.
        weights: folder of the adapter, or of the whole model; empty for the base itself.
        digest: hash of the weights' files.
        recipe: name of the training recipe.
        data: build of the dataset, and rows, new and old, by what they are.
        window: limits of prompts and answers under which it was measured, as JSON.
        canonical: hash of a state's content (no id, which would outlive a forgotten session) to 1
            where its answer was right in effect, else 0.
        decision: ``first``, or the night's outcome: ``promoted``, ``not better``, ``worse``.
        why: sentences.
        story: the night that made it, as ``night.Night``.
        made: when, as ISO 8601 in UTC.
    """

    number: int
    night: str
    base: str
    weights: str
    decision: str
    made: str
    parent: int | None = None
    digest: str = ""
    recipe: str = ""
    data: dict[str, Any] = {}
    window: str = ""
    canonical: dict[str, float] = {}
    why: tuple[str, ...] = ()
    story: dict[str, Any] = {}


class Move(msgspec.Struct, frozen=True):
    """One move of the pointer: to which version, when, by whom and why."""

    to: int
    at: str
    by: Literal["night", "promote", "rollback"]
    why: str = ""


class Current(msgspec.Struct, frozen=True):
    """What ``models/current`` holds: the served version, its base and weights, and all moves."""

    version: int
    base: str
    weights: str
    moves: tuple[Move, ...]

    def rolled_back(self) -> set[int]:
        """Return the versions that a rollback left and nothing promoted since."""
        left: set[int] = set()
        before = 0
        for move in self.moves:
            if move.by == "rollback":
                left.add(before)
            left.discard(move.to)
            before = move.to
        return left


class _Published(msgspec.Struct):
    """What a repository on the Hub has: tags, and the version on its main."""

    tags: set[int] = set()
    main: int = 0


class ModelsReport(Report, msgspec.Struct):
    """The versions of a lake, and the number of the current one."""

    current: int
    versions: list[ModelVersion]
    moves: list[Move]


def current(lake: Lake) -> Current | None:
    """Return the pointer, or ``None`` before the first night."""
    if not lake.exists(CURRENT):
        return None
    return decoded(lake, CURRENT, Current)


def versions(lake: Lake) -> list[ModelVersion]:
    """Return all versions, by number."""
    return [decoded(lake, name, ModelVersion) for name in _names(lake)]


def version_of(lake: Lake, number: int) -> ModelVersion:
    """Return one version."""
    name = _name(number)
    if not lake.exists(name):
        known = len(_names(lake))
        there = f"there are 0 to {known - 1}" if known else "run a night first"
        raise InputError(f"lake {lake.url} has no model version {number}: {there}")
    return decoded(lake, name, ModelVersion)


def report(lake: Lake) -> ModelsReport:
    """Return all versions and moves."""
    pointer = current(lake)
    if pointer is None:
        raise InputError(f"lake {lake.url} has no model yet; run a night first")
    return ModelsReport(pointer.version, versions(lake), list(pointer.moves))


def add(lake: Lake, version: ModelVersion) -> ModelVersion:
    """Store a version under the next free number, and return it."""
    with lake.locked("models"):
        version = msgspec.structs.replace(version, number=len(_names(lake)))
        lake.put_bytes(_name(version.number), msgspec.json.format(msgspec.json.encode(version)))
        return version


def move(lake: Lake, number: int, by: Literal["night", "promote", "rollback"], why: str) -> Current:
    """Make a version the current one; nothing changes where it is already."""
    with lake.locked("models"):
        return _move(lake, version_of(lake, number), by, why)


def follow(lake: Lake, version: ModelVersion, why: str) -> bool:
    """Make a night's version current if its parent still is; return False if another one is.

    A version that was current before stays as it was left: a night that is finished again moves
    nothing back.
    """
    with lake.locked("models"):
        pointer = current(lake)
        if pointer is None or version.number in {step.to for step in pointer.moves}:
            return pointer is not None
        if pointer.version != version.parent:
            return False
        _move(lake, version, "night", why)
        return True


def lineage(lake: Lake, number: int) -> set[int]:
    """Return a version, its parent, and so on up to the first."""
    found, one = set[int](), version_of(lake, number)
    while one.parent is not None and one.number not in found:
        found.add(one.number)
        one = version_of(lake, one.parent)
    return found | {one.number}


def promote(lake: Lake, number: int, why: str = "") -> Current:
    """Make a version the current one by hand, whatever its night decided.

    Raises:
        InputError: there is no such version, or its weights are gone.
    """
    found = version_of(lake, number)
    check_weights(found)
    return move(lake, number, "promote", why)


def rollback(lake: Lake, why: str = "") -> Current:
    """Make the version before the current one current again; rows of what it leaves are set aside.

    Raises:
        InputError: there is no earlier version, or its weights are gone.
    """
    with lake.locked("models"):
        pointer = current(lake)
        if pointer is None:
            raise InputError(f"lake {lake.url} has no model yet; run a night first")
        # The version that is left may have been reached by hand: its parent is not what was served.
        stack: list[int] = []
        for step in pointer.moves:
            if step.by == "rollback":
                stack.pop()
            else:
                stack.append(step.to)
        if len(stack) < 2:
            raise InputError(f"version {pointer.version} is the first: there is none before it")
        found = version_of(lake, stack[-2])
        check_weights(found)
        return _move(lake, found, "rollback", why)


def publish_versions(lake: Lake, repo: str, *, allow_simulated: bool = False) -> list[int]:
    """Make a model repository on the Hub follow the registry; return what was sent.

    ``main`` holds the current version; every other one is on the branch ``refused``, and each has
    the tag ``v<number>``. Version 0 is no model of ours. ``models/published`` says what was sent.

    Raises:
        InputError, PublishRefused, ComposerError: as ``publishing.publish.publish_model``.
    """
    if current(lake) is None:
        return []
    found = report(lake)
    every: dict[str, _Published] = {}
    if lake.exists(PUBLISHED):
        every = msgspec.json.decode(lake.get_bytes(PUBLISHED), type=dict[str, _Published])
    mine, sent = every.setdefault(repo, _Published()), list[int]()
    for version in sorted(found.versions, key=lambda v: (v.number == found.current, v.number)):
        here = version.number == found.current
        known = mine.main == version.number if here else version.number in mine.tags
        if version.number and not known and Path(version.weights).is_dir():
            publish_model(
                version.weights, repo, version=version.number, promoted=here,
                allow_simulated=allow_simulated,
            )  # fmt: skip
            mine.tags.add(version.number)
            mine.main = version.number if here else mine.main
            lake.put_bytes(PUBLISHED, msgspec.json.encode(every))
            sent.append(version.number)
    return sent


def check_weights(version: ModelVersion) -> None:
    """Raise InputError if a version's weights are gone or not what its night made."""
    folder = Path(version.weights)
    if not version.digest or (folder.is_dir() and folder_digest(folder) == version.digest):
        return
    what = "were changed" if folder.is_dir() else "are gone"
    raise InputError(
        f"the weights of model version {version.number} {what} ({folder}); restore the folder, or"
        " promote another version"
    )


def _move(lake: Lake, found: ModelVersion, by: Any, why: str) -> Current:
    pointer = current(lake)
    if pointer is not None and pointer.version == found.number:
        return pointer
    made = Move(found.number, datetime.now(UTC).isoformat(timespec="seconds"), by, why)
    moved = Current(
        found.number, found.base, found.weights, (*(pointer.moves if pointer else ()), made)
    )
    lake.put_bytes(CURRENT, msgspec.json.format(msgspec.json.encode(moved)))
    return moved


def _name(number: int) -> str:
    return f"{FOLDER}/{number:06d}.json"


def _names(lake: Lake) -> list[str]:
    return listed(lake, FOLDER)


def listed(lake: Lake, folder: str) -> list[str]:
    """Return the JSON files of a folder of a lake, sorted, relative to its root."""
    found: Iterable[str] = lake.fs.glob(f"{lake.root}/{folder}/*.json")
    return sorted(f"{folder}/{str(path).rpartition('/')[2]}" for path in found)


def decoded(lake: Lake, name: str, kind: type[_Kind]) -> _Kind:
    """Return what a JSON file of a lake holds; raise InputError if it is nothing of that kind."""
    try:
        return msgspec.json.decode(lake.get_bytes(name), type=kind)
    except msgspec.MsgspecError as error:
        raise InputError(f"{lake.url}/{name}: {error}") from error
