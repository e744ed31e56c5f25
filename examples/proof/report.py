"""The results of the proof as one Parquet file and a page that a person reads.

A cell is the mean over seeds with the least and the largest of them. A difference is paired over
held-out sessions, with the seeds that both arms have averaged; what is printed in bold has an
interval (bootstrap, 95 %) that excludes zero, and nothing else is claimed.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pyarrow as pa

from composer_pipeline.evaluation.report import difference
from composer_pipeline.evaluation.results import BASE, StateResult, read_results
from composer_pipeline.files import replace
from composer_pipeline.lake.parquet import encode_parquet
from examples.proof.arms import ARMS, INNER_STEPS
from examples.proof.bars import MEASURE, Estimate

RESULTS, REPORT, NUMBERS = "results.parquet", "report.md", "numbers.json"
#: A step's time and memory beside TRL's trainers, where ``make proof-gpu`` measured it.
STEPS_BESIDE = "steps.md"
#: Columns of the first table behind the shares of right answers.
_VALUES: dict[str, Callable[[StateResult], float | None]] = {
    "exact": lambda r: float(r.judgement.exact),
    "preference": lambda r: None if r.logp_wrong is None else float(r.logp_right > r.logp_wrong),
    "NLL right": lambda r: -r.logp_right,
    "hint gain": lambda r: (
        None if r.logp_right_hinted is None else r.logp_right_hinted - r.logp_right
    ),
    "KL to base": lambda r: r.kl,
}
#: What DiLoCo is compared with: the same rows in one process, a gradient for all of them.
DATA_PARALLEL = "lean"
_KINDS = ("hard_covered", "hard_uncovered", "easy", "recovery")
#: Columns of the second table: kind of states, and the arm that is compared with.
_AGAINST = (
    ("hard_uncovered", "no-sdpo"), ("hard", "sft"), ("hard", "composer"),
    ("hard", "lean-consensus"), ("hard_uncovered", BASE), ("easy", BASE), ("recovery", BASE),
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """Results and numbers of one arm on one plan: of several seeds, in their order."""

    setting: str
    arm: str
    seeds: tuple[int, ...]
    results: tuple[list[StateResult], ...]
    numbers: tuple[dict[str, float], ...] = ()

    def against(self, other: "Cell", kind: str) -> Estimate | None:
        """Return the paired difference to another arm, over the seeds that both have."""
        mine, theirs = self._of(other.seeds), other._of(self.seeds)
        return difference(mine, theirs, kind, MEASURE) if mine and theirs else None

    def _of(self, seeds: Collection[int]) -> list[StateResult]:
        by_seed = zip(self.seeds, self.results, strict=True)
        return [result for seed, results in by_seed if seed in seeds for result in results]


def collect(runs: Path) -> list[Cell]:
    """Return the finished arms below a folder of runs, the base among them."""
    found: dict[tuple[str, str], dict[int, list[StateResult]]] = defaultdict(dict)
    numbers: dict[tuple[str, str], dict[int, dict[str, float]]] = defaultdict(dict)
    for path in sorted(runs.glob(f"*/*/{RESULTS}")):
        setting, _, seed = path.parent.parent.name.rpartition("-seed")
        for arm, results in read_results(path).items():
            found[setting, arm][int(seed)] = results
        known = path.with_name(NUMBERS)
        if known.is_file():
            numbers[setting, path.parent.name][int(seed)] = json.loads(known.read_bytes())
    order = [BASE, *ARMS]
    return [
        Cell(
            setting,
            arm,
            tuple(sorted(by_seed)),
            tuple(by_seed[s] for s in sorted(by_seed)),
            tuple(n for _, n in sorted(numbers[setting, arm].items())),
        )
        for (setting, arm), by_seed in sorted(
            found.items(), key=lambda item: (item[0][0], order.index(item[0][1]))
        )
    ]


def write_report(out: Path, cells: Sequence[Cell], student: str = "") -> None:
    """Write ``results.parquet`` and ``report.md``."""
    rows = [
        {"setting": cell.setting, "arm": cell.arm, "seed": seed, "state_id": r.state_id,
         "session_id": r.session_id, "kind": r.kind, "exact": r.judgement.exact,
         "logp_right": r.logp_right, "logp_wrong": r.logp_wrong,
         "logp_right_hinted": r.logp_right_hinted, "kl": r.kl, "answer": r.answer}
        for cell in cells
        for seed, results in zip(cell.seeds, cell.results, strict=True)
        for r in results
    ]  # fmt: skip
    replace(out / RESULTS, encode_parquet(pa.Table.from_pylist(rows)))
    beside = out / STEPS_BESIDE
    steps = beside.read_text(encoding="utf-8") if beside.is_file() else ""
    replace(out / REPORT, "\n".join(filter(None, (page(cells, student), steps))))


def page(cells: Sequence[Cell], student: str = "") -> str:
    """Return the report as Markdown; see :func:`write_report`."""
    parts = ["# Proof on the small world\n", (__doc__ or "").split("\n\n", 1)[1]]
    parts += [f"{student}\n"] if student else []
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    for setting in settings:
        inside = {cell.arm: cell for cell in cells if cell.setting == setting}
        parts += [f"## {_words(setting)}\n", _means(inside), _differences(inside)]
        parts += [_trained(inside)] if student else []
        parts += [_replicas(inside)] if DATA_PARALLEL in inside else []
    return "\n".join(parts)


def _words(setting: str) -> str:
    coverage, wrong, sessions = setting.split("-")
    return f"{coverage} coverage, {wrong.removesuffix('wrong')} of 3 wrong, {sessions} sessions"


def _means(cells: Mapping[str, Cell]) -> str:
    head = ["arm", "seeds", *_KINDS, *list(_VALUES)[1:]]
    lines = [_row(head), _row(["---"] * len(head))]
    for arm, cell in cells.items():
        numbers = [_seeds(cell, MEASURE, kind) for kind in _KINDS]
        numbers += [_seeds(cell, name) for name in list(_VALUES)[1:]]
        lines.append(_row([_named(arm), str(len(cell.seeds)), *numbers]))
    return "\n".join(lines) + "\n"


def _differences(cells: Mapping[str, Cell]) -> str:
    head = ["arm", *(f"{kind} - {other}" for kind, other in _AGAINST)]
    lines = [_row(head), _row(["---"] * len(head))]
    for arm, cell in cells.items():
        found = [
            cell.against(cells[other], kind) if other in cells and other != arm else None
            for kind, other in _AGAINST
        ]
        lines.append(_row([_named(arm), *map(_interval, found)]))
    return "\n".join(lines) + "\n"


def _trained(cells: Mapping[str, Cell]) -> str:
    """Return what each arm was trained on and what a step took; of the first seed's rows."""
    head = ["arm", "rows", "left out", "hints that help", "s a step", "tokens/s", "peak GiB"]
    lines = [_row(head), _row(["---"] * len(head))]
    for arm, cell in cells.items():
        if not cell.numbers:
            continue
        means = {k: fmean(n[k] for n in cell.numbers if k in n) for k in cell.numbers[0]}
        seconds, share = means.get("step_seconds"), means.get("hints_kept_share")
        took = ["", "", ""] if seconds is None else [
            f"{seconds:.2f}", f"{means['step_tokens'] / seconds:,.0f}",
            f"{means['peak_memory_mib'] / 1024:.2f}",
        ]  # fmt: skip
        kept = "" if share is None else f"{share:.0%}"
        lines.append(_row([_named(arm), *rows_said(cell.numbers[0]), kept, *took]))
    return "\n".join(lines) + "\n"


def rows_said(numbers: Mapping[str, float]) -> tuple[str, str]:
    """Return the rows that ``numbers.json`` says an arm had, and those left out."""
    rows, left = (
        ", ".join(f"{k}: {n:.0f}" for k, n in numbers.items() if k.startswith(name))
        for name in ("rows ", "left out, ")
    )
    return rows, left


def _replicas(cells: Mapping[str, Cell]) -> str:
    """Return DiLoCo's arms against the one that exchanges gradients after each step, if any."""
    spread = {arm: cell for arm, cell in cells.items() if arm in ARMS and ARMS[arm].replicas}
    if not spread:
        return ""
    kinds = ("hard", "easy", "recovery")
    head = ["arm", "contributions", "bytes a replica sent", "data-parallel / H", "ratio"]
    lines = [_row(head + [f"{kind} - data-parallel" for kind in kinds]), _row(["---"] * 8)]
    for arm, cell in spread.items():
        sent, all_steps, share = (
            sum(n[name] for n in cell.numbers) / len(cell.numbers)
            for name in ("bytes_sent", "bytes_data_parallel", "contributions")
        )
        each = all_steps / INNER_STEPS
        found = [_interval(cell.against(cells[DATA_PARALLEL], kind)) for kind in kinds]
        lines.append(
            _row([_named(arm), f"{share:.0%}", f"{sent:,.0f}", f"{each:,.0f}",
                  f"{sent / each:.3f}", *found])
        )  # fmt: skip
    return "\n".join(lines) + "\n"


def _named(arm: str) -> str:
    return ARMS[arm].what if arm in ARMS else arm


def _seeds(cell: Cell, measure: str, kind: str = "") -> str:
    """Return mean [least-largest] over seeds; of hard states where no kind is named."""
    value_of = _VALUES[measure]
    kinds = (kind,) if kind else ("hard_covered", "hard_uncovered")
    means = []
    for results in cell.results:
        values = [v for r in results if r.kind in kinds and (v := value_of(r)) is not None]
        means += [sum(values) / len(values)] if values else []
    if not means:
        return ""
    mean = f"{sum(means) / len(means):.3f}"
    return mean if len(means) == 1 else f"{mean} [{min(means):.3f}-{max(means):.3f}]"


def _interval(found: Estimate | None) -> str:
    if found is None or found.low is None or found.high is None:
        return ""
    said = f"{found.mean:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
    return f"**{said}**" if found.excludes_zero else said


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
