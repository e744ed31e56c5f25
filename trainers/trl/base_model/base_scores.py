"""What the base model thinks of the recorded actions: log-probabilities, kept in the run folder.

Belongs here: the files, written in parts that survive a kill, and reading them. Does not belong
here: the model (``trainers.trl.base_model.base_pass``). Imports no torch.

``<run>/base/<channel>-<first row>.arrow`` holds, for each row, its id and lists of log p:

* ``dpo``: [log p(chosen)], [log p(rejected)];
* ``grpo``: of each answer's tokens;
* ``sdpo``: of the failed action's tokens behind the plain prompt, then [its sum], [its sum behind
  the hinted prompt], [the target's sum], [the target's sum behind the hinted prompt]; the last
  two are empty where no target is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from composer_pipeline.files import replace

SCHEMA = pa.schema([("id", pa.string()), ("logps", pa.list_(pa.list_(pa.float64())))])
#: Rows of one file.
PART = 64
FOLDER = "base"


@dataclass(frozen=True)
class BaseScores:
    """Row id to lists of log-probabilities, by channel; see the module for what they are."""

    of: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)

    def references(self) -> dict[str, tuple[float, float]]:
        """Return pair id to log p(chosen), log p(rejected)."""
        return {i: (row[0][0], row[1][0]) for i, row in self.of.get("dpo", {}).items()}

    def answers(self) -> dict[str, list[list[float]]]:
        """Return state id to log p of each answer's tokens."""
        return self.of.get("grpo", {})

    def failed(self) -> dict[str, list[float]]:
        """Return state id to log p of the failed action's tokens."""
        return {i: row[0] for i, row in self.of.get("sdpo", {}).items()}

    def gains(self) -> dict[str, float]:
        """Return state id to the hint's gain, in nats.

        (log p(target | hint) − log p(target)) − (log p(failed | hint) − log p(failed)); without
        a known target its part is 0, so that the hint must lower the failed action.
        """
        return {i: _gain(row) for i, row in self.of.get("sdpo", {}).items()}

    @staticmethod
    def load(run_dir: Path) -> "BaseScores":
        """Read all parts of a run folder; none is an empty result."""
        scores: dict[str, dict[str, list[list[float]]]] = {}
        for path in sorted((run_dir / FOLDER).glob("*.arrow")):
            rows = scores.setdefault(path.name.rsplit("-", 1)[0], {})
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_file(source).read_all()
                ids, values = table["id"].to_pylist(), table["logps"].to_pylist()
            rows |= dict(zip(ids, values, strict=True))
        return BaseScores(scores)


def parts(run_dir: Path, channel: str, rows: Sequence[Any]) -> Iterator[tuple[Path, Sequence[Any]]]:
    """Yield the file and the rows of each part that is not written yet."""
    for start in range(0, len(rows), PART):
        path = run_dir / FOLDER / f"{channel}-{start:08d}.arrow"
        if not path.is_file():
            yield path, list(rows[start : start + PART])


def write(path: Path, ids: Sequence[str], logps: Sequence[list[list[float]]]) -> None:
    """Write a part so that it appears whole or not at all."""
    table = pa.table({"id": list(ids), "logps": list(logps)}, schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, sink.getvalue().to_pybytes())


def _gain(row: Sequence[Sequence[float]]) -> float:
    _, plain, hinted, target, target_hinted = row
    failed = hinted[0] - plain[0]
    return (target_hinted[0] - target[0] if target else 0.0) - failed
