"""Log-probabilities of the recorded actions under the base model, kept in the run folder. No torch.

``<run>/base/<channel>.arrow`` holds each row's id and lists of log p in nats, memory-mapped;
``base/parts/`` holds them while the pass runs, in parts that survive a kill:

* ``dpo``: [log p(chosen)], [log p(rejected)];
* ``grpo``: of each answer's tokens;
* ``sdpo``: of the failed action's tokens after the plain prompt, then [its sum], [its sum after
  the hinted prompt], [the target's sum], [the target's sum after the hinted prompt]; the last
  two are empty where no target is known.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from typing import Any, Generic, TypeVar

import msgspec

from composer_pipeline.errors import InputError
from composer_pipeline.training.recipe import TrainingRecipe
from composer_pipeline.training.rows import (
    ArrowRows,
    SomeRows,
    TrainingData,
    column_of,
    writing_rows,
)

T = TypeVar("T")
#: Lists of log-probabilities of one row.
Logps = list[list[float]]
#: Rows of one part: what a kill loses, and the interval of progress events; minutes on a CPU.
PART = 16
FOLDER, PARTS = "base", "parts"


class Score(msgspec.Struct, frozen=True):
    """A row's id and its lists of log-probabilities, in nats."""

    id: str
    logps: list[list[float]]


class _View(Mapping[str, T], Generic[T]):
    """Scores by id, converted on access."""

    def __init__(self, of: Mapping[str, Any], shape: Callable[[Any], T]) -> None:
        self._of, self._shape = of, shape

    def __getitem__(self, name: str) -> T:
        return self._shape(self._of[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def __len__(self) -> int:
        return len(self._of)


@dataclass(frozen=True)
class BaseScores:
    """Row id to lists of log-probabilities, by channel, as described above."""

    of: Mapping[str, Mapping[str, Logps]] = field(default_factory=dict)

    def references(self) -> Mapping[str, tuple[float, float]]:
        """Return pair id to log p(chosen), log p(rejected)."""
        return _View(self.of.get("dpo", {}), lambda lists: (lists[0][0], lists[1][0]))

    def answers(self) -> Mapping[str, Logps]:
        """Return state id to log p of each answer's tokens."""
        return self.of.get("grpo", {})

    def failed(self) -> Mapping[str, list[float]]:
        """Return state id to log p of the failed action's tokens."""
        return _View(self.of.get("sdpo", {}), lambda lists: lists[0])

    def gains(self) -> dict[str, float]:
        """Return state id to the hint's gain, in nats.

        (log p(target | hint) − log p(target)) − (log p(failed | hint) − log p(failed)); without
        a known target its part is 0, so that the hint must lower the failed action.
        """
        return {i: _gain(row) for i, row in self.of.get("sdpo", {}).items()}

    @staticmethod
    def load(run_dir: Path) -> "BaseScores":
        """Open the scores of a run folder, if any."""
        files = sorted((run_dir / FOLDER).glob("*.arrow"))
        return BaseScores({path.stem: _stored(path) for path in files})


def _stored(path: Path) -> Mapping[str, Logps]:
    """Return the scores in a file by id; only the ids are in memory."""
    rows = ArrowRows(path, Score)
    places = {name: i for i, name in enumerate(rows.column("id"))}
    return _View(places, lambda i: rows[i].logps)


def scored(recipe: TrainingRecipe) -> list[str]:
    """Return the channels of a recipe that need scores of the base model."""
    channels = recipe.channels
    needing = {"sdpo"} | ({"grpo"} if channels.grpo.recorded else set())
    needing |= {"dpo"} if channels.dpo.needs_reference else set()
    return [channel for channel in recipe.channels.weights() if channel in needing]


def is_scored(run_dir: Path, recipe: TrainingRecipe) -> bool:
    """Return True if every row that the recipe needs is scored."""
    return all(_whole(run_dir, channel).is_file() for channel in scored(recipe))


def parts(run_dir: Path, channel: str, rows: Sequence[Any]) -> Iterator[tuple[Path, Sequence[Any]]]:
    """Yield file and rows of each part that is not written yet."""
    if _whole(run_dir, channel).is_file():
        return
    for start in range(0, len(rows), PART):
        path = _part(run_dir, channel, start)
        if not path.is_file():
            yield path, rows[start : start + PART]


def write(path: Path, ids: Sequence[str], logps: Sequence[Logps]) -> None:
    """Write a part atomically."""
    with writing_rows(path, Score) as out:
        for name, lists in zip(ids, logps, strict=True):
            out.append(Score(name, lists))


def join(run_dir: Path, channel: str, rows: int) -> None:
    """Join the parts of all ``rows`` rows into one file, and delete them."""
    whole, starts = _whole(run_dir, channel), range(0, rows, PART)
    if not whole.is_file():
        with writing_rows(whole, Score) as out:
            for start in starts:
                out.copy(_part(run_dir, channel, start))
    for start in starts:
        _part(run_dir, channel, start).unlink(missing_ok=True)


def _whole(run_dir: Path, channel: str) -> Path:
    return run_dir / FOLDER / f"{channel}.arrow"


def _part(run_dir: Path, channel: str, start: int) -> Path:
    return run_dir / FOLDER / PARTS / f"{channel}-{start:08d}.arrow"


def _gain(row: Sequence[Sequence[float]]) -> float:
    _, plain, hinted, target, target_hinted = row
    failed = hinted[0] - plain[0]
    return (target_hinted[0] - target[0] if target else 0.0) - failed


def gate(
    recipe: TrainingRecipe, data: TrainingData, gains: Mapping[str, float]
) -> tuple[TrainingData, dict[str, float]]:
    """Return the data with the hints that pass, and the gate's numbers, with quartiles in nats.

    With ``channels.sdpo.hint_gain: false`` all hints are kept; raises where none passes.
    """
    if "sdpo" not in recipe.channels.weights() or not data.hints:
        return data, {}
    ids = column_of(data.hints, "id")
    kept = [i for i, name in enumerate(ids) if gains[name] > 0]
    values = sorted(gains[name] for name in ids)
    numbers = {"hints_seen": float(len(values)), "hints_kept_share": len(kept) / len(values)}
    quarters = quantiles(values, n=4) if len(values) > 1 else values * 3
    numbers |= {f"hint_gain_p{25 * (i + 1)}": value for i, value in enumerate(quarters)}
    if not recipe.channels.sdpo.hint_gain:
        return data, numbers
    if not kept:
        raise InputError(
            f"channel sdpo: none of {len(values)} hints helps the base model (gain at most"
            f" {values[-1]:.3g} nats): set channels.sdpo.weight to 0, use a larger model, or"
            " train on them anyway with channels.sdpo.hint_gain: false"
        )
    return msgspec.structs.replace(data, hints=SomeRows(data.hints, kept)), numbers
