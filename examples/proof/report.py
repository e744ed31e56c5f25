"""What a run of the proof found: ``results.parquet``, ``summary.json`` and ``report.md``.

    python -m examples.proof.report proof            # rewrites the last two of a finished run
    python -m examples.proof.report --page           # prints docs/proof.md from the committed files

One contrast is primary and was named before any test world was made; the secondary ones stand or
fall together (Holm). Every sentence that claims something is chosen by the estimates of a summary:
what does not stand is said to be not shown. The whole grid is exploratory.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from composer_pipeline.errors import InputError
from composer_pipeline.evaluation.report import GROUPS, HARD
from composer_pipeline.evaluation.results import BASE, StateResult, measures_of, read_results
from composer_pipeline.files import replace
from composer_pipeline.lake.parquet import encode_parquet
from composer_pipeline.markdown import table
from examples.proof.arms import ARMS, INNER_STEPS
from examples.proof.statistics import Estimate, States, contrast, holm, loss_bound
from examples.proof.toolworld.world import NOISE
from examples.proof.train import rows_said

RESULTS, REPORT, NUMBERS, SUMMARY = "results.parquet", "report.md", "numbers.json", "summary.json"
#: The seed of the test world and the family of each mistake; written when a run starts.
TEST, RUNS = "test.json", "runs"
#: A step's time and memory beside TRL's trainers, where ``make proof-gpu`` measured it.
STEPS_BESIDE = "steps.md"
COMMITTED = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
#: What DiLoCo is compared with: the same rows in one process, a gradient for all of them.
DATA_PARALLEL = "shipped"
#: The setting of every contrast that may be claimed.
MAIN = "half-25shared-80"
MEASURE = "exact"
#: A claim needs as many seeds, and an arm may lose so much of what its base has right.
MIN_SEEDS, TOLERANCE = 3, 0.02
#: Family of the mistakes that are seen only later.
LATER = "later"


class Question(NamedTuple):
    """Two arms and the states at which they are compared: a kind, or a family of mistakes."""

    arm: str
    other: str
    states: str

    @property
    def name(self) -> str:
        """The question's name in a summary."""
        return f"{self.arm} - {self.other}, {self.states}"


PRIMARY = Question("shipped", "sft", "hard_uncovered")
SECONDARY = (
    Question("own", "flagged", HARD),
    Question("culprit", "flagged", HARD),
    Question("culprit", "flagged", LATER),
    Question("own", "culprit", HARD),
    Question("own-dpo", "culprit", HARD),
    Question("own", "shipped", HARD),
    Question("fixes", "sft", HARD),
    Question("shipped-own", "shipped", HARD),
    Question("shipped", "alpha-0", "hard_uncovered"),
    Question("shipped", BASE, "hard_uncovered"),
    Question("shipped", "sft-recorded", HARD),
    Question("sft", "sft-recorded", HARD),
)
#: How the page names arms and states; the report has ``Arm.what`` and the kinds themselves.
WORDS = {
    BASE: "the base",
    "sft-recorded": "SFT on what the agent did (placebo)",
    "sft": "SFT on the consensus",
    "shipped": "the shipped recipe",
    "alpha-0": "the shipped recipe without SDPO",
    "flagged": "hints at the flagged turn (no teacher)",
    "culprit": "hints at the culprit (no teacher)",
    "own": "hints at the culprit with SFT on the agent's own fixes (no teacher)",
    "fixes": "SFT on the agent's own fixes, without hints (no teacher)",
    "own-dpo": "hints at the culprit with DPO on the agent's own fixes (no teacher)",
    "shipped-own": "the shipped recipe with DPO on the agent's own fixes",
    HARD: "all mistakes",
    "hard_uncovered": "mistakes that no teacher was asked about",
    LATER: "edits whose failure is seen later",
}
_GUARDED = ("easy", "recovery")
_KINDS = ("hard_covered", "hard_uncovered", *_GUARDED)
#: Measures of the grid's first table behind the shares of right answers; at mistakes.
_VALUES = ("preference", "right_nll", "hint_gain", "kl")
#: Columns of the grid's second table.
_AGAINST = ((HARD, "sft"), (HARD, "shipped"), ("hard_uncovered", "sft"), ("hard_uncovered", BASE))
_REPLICAS = ((HARD, DATA_PARALLEL), ("easy", DATA_PARALLEL), ("recovery", DATA_PARALLEL))


@dataclass(frozen=True)
class Cell:
    """Results and numbers of one arm on one plan, by seed."""

    setting: str
    arm: str
    results: Mapping[int, list[StateResult]]
    numbers: Mapping[int, Mapping[str, float]]


class Spread(msgspec.Struct, frozen=True):
    """A mean over seeds, with the least and the largest of them."""

    mean: float
    least: float
    most: float


class Row(msgspec.Struct, frozen=True):
    """One arm in one setting."""

    seeds: int
    #: Share of right answers by kind of states and family of mistakes.
    right: dict[str, Spread]
    #: Other measures at mistakes.
    values: dict[str, Spread]
    #: Share lost of what the base has right.
    lost: dict[str, Estimate]
    #: By name of the question; exploratory.
    against: dict[str, Estimate]
    #: Means over seeds of ``numbers.json``.
    numbers: dict[str, float]


class Summary(msgspec.Struct, frozen=True):
    """All that the pages say."""

    #: Seed of the test world; ``None`` and development: choices were made on these sessions.
    seed: int | None
    development: bool
    student: str
    sessions: int
    #: Measured states by kind and family.
    states: dict[str, int]
    #: By name of the question, at :data:`MAIN`; what was not measured is missing.
    primary: dict[str, Estimate]
    secondary: dict[str, Estimate]
    #: By setting and arm.
    grid: dict[str, dict[str, Row]]


def collect(runs: Path) -> list[Cell]:
    """Return the finished arms below a folder of runs, the base among them."""
    found: dict[tuple[str, str], dict[int, list[StateResult]]] = defaultdict(dict)
    numbers: dict[tuple[str, str], dict[int, Mapping[str, float]]] = defaultdict(dict)
    for path in sorted(runs.glob(f"*/*/{RESULTS}")):
        setting, _, seed = path.parent.parent.name.rpartition("-seed")
        for arm, results in read_results(path).items():
            found[setting, arm][int(seed)] = results
        known = path.with_name(NUMBERS)
        if known.is_file():
            numbers[setting, path.parent.name][int(seed)] = json.loads(known.read_bytes())
    order = [BASE, *ARMS]
    keys = sorted(found, key=lambda key: (key[0] != MAIN, key[0], order.index(key[1])))
    return [Cell(*key, found[key], numbers[key]) for key in keys]


def write_report(out: Path, cells: Sequence[Cell], student: str = "") -> None:
    """Write ``results.parquet``, ``summary.json`` and ``report.md``."""
    path = out / TEST
    test = json.loads(path.read_bytes()) if path.is_file() else {}
    families = test.get("families", {})
    rows = [
        {"setting": cell.setting, "arm": cell.arm, "seed": seed, "state_id": r.state_id,
         "session_id": r.session_id, "kind": r.kind, "family": families.get(r.state_id, ""),
         "exact": r.judgement.exact, "logp_right": r.logp_right, "logp_wrong": r.logp_wrong,
         "logp_right_hinted": r.logp_right_hinted, "kl": r.kl, "answer": r.answer}
        for cell in cells
        for seed, results in cell.results.items()
        for r in results
    ]  # fmt: skip
    replace(out / RESULTS, encode_parquet(pa.Table.from_pylist(rows)))
    found = summarise(cells, test, student)
    written = json.dumps(_rounded(msgspec.to_builtins(found)), indent=1, ensure_ascii=False)
    replace(out / SUMMARY, written + "\n")
    beside = out / STEPS_BESIDE
    steps = beside.read_text(encoding="utf-8") if beside.is_file() else ""
    said = report(read_summary(out / SUMMARY))  # the figures as they are written
    replace(out / REPORT, "\n".join(filter(None, (said, steps))))


def read_summary(path: Path) -> Summary:
    """Return a ``summary.json``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is no summary of a run: {error}") from error


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def summarise(cells: Sequence[Cell], test: Mapping[str, Any], student: str = "") -> Summary:
    """Return all that the pages say of a run; ``test`` is its ``test.json``."""
    families = test.get("families", {})
    grid: dict[str, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        grid[cell.setting][cell.arm] = cell
    measured = next((some for cell in cells for some in cell.results.values()), [])
    names = (*_KINDS, *sorted({family for family in families.values() if family}))
    picked = {name: sum(map(_picked(name, families), measured)) for name in names}
    main = grid.get(MAIN, {})
    return Summary(
        seed=test.get("seed"),
        development=test.get("development", True),
        student=student,
        sessions=len({r.session_id for r in measured}),
        states=picked,
        primary=_asked(main, (PRIMARY,), families),
        secondary=_asked(main, SECONDARY, families),
        grid={
            setting: {arm: _summed_up(arm, inside, picked, families) for arm in inside}
            for setting, inside in grid.items()
        },
    )


def _picked(name: str, families: Mapping[str, str]) -> States:
    """Return whether a state is of a kind, or of a family of mistakes."""
    if name in GROUPS:
        return lambda r: r.kind in GROUPS[name]
    return lambda r: r.kind in GROUPS[HARD] and families.get(r.state_id) == name


def _asked(
    cells: Mapping[str, Cell], questions: Iterable[Question], families: Mapping[str, str]
) -> dict[str, Estimate]:
    found = {}
    for question in questions:
        one, other = cells.get(question.arm), cells.get(question.other)
        if one and other and one != other:
            states = _picked(question.states, families)
            estimate = contrast(one.results, other.results, measure=MEASURE, states=states)
            if estimate:
                found[question.name] = estimate
    return found


def _summed_up(
    arm: str, cells: Mapping[str, Cell], names: Iterable[str], families: Mapping[str, str]
) -> Row:
    cell, replicas = cells[arm], arm in ARMS and ARMS[arm].replicas
    right = {name: _spread(cell, MEASURE, _picked(name, families)) for name in names}
    values = {name: _spread(cell, name, _picked(HARD, {})) for name in _VALUES}
    lost: dict[str, Estimate] = {}
    if arm != BASE and BASE in cells:
        for kind in _GUARDED:
            bound = loss_bound(cell.results, cells[BASE].results, states=_picked(kind, {}))
            lost |= {kind: bound} if bound else {}
    asked = [Question(arm, other, kind) for kind, other in (*_AGAINST, *_REPLICAS * bool(replicas))]
    every = list(cell.numbers.values())
    keys = dict.fromkeys(key for each in every for key in each)
    return Row(
        seeds=len(cell.results),
        right={name: spread for name, spread in right.items() if spread},
        values={name: spread for name, spread in values.items() if spread},
        lost=lost,
        against=_asked(cells, (q for q in asked if q.other != arm), {}),
        numbers={key: fmean(each[key] for each in every if key in each) for key in keys},
    )


def _spread(cell: Cell, measure: str, states: States) -> Spread | None:
    means = []
    for results in cell.results.values():
        values = [
            v for r in results if states(r) and (v := measures_of(r).get(measure)) is not None
        ]
        means += [fmean(values)] if values else []
    return Spread(fmean(means), min(means), max(means)) if means else None


def claimed(found: Summary) -> dict[str, Estimate]:
    """Return the estimates that stand among all that were asked, on a test world."""
    p = {name: e.p for name, e in (found.primary | found.secondary).items() if e.p is not None}
    stand: set[str] = set()
    for asked in ((PRIMARY,), SECONDARY):  # what was not measured counts as asked
        stand |= holm({question.name: p.get(question.name, 1.0) for question in asked})
    return {
        name: e for name, e in (found.primary | found.secondary).items()
        if name in stand and e.excludes_zero and e.seeds >= MIN_SEEDS and not found.development
    }  # fmt: skip


def guard(found: Summary, lost: Estimate | None) -> str:
    """Return what may be said of a loss: within the tolerance, there, or not known."""
    if lost is None or lost.low is None or lost.high is None:
        return "not shown"
    if found.development or lost.seeds < MIN_SEEDS:
        return "not shown"
    if lost.high <= TOLERANCE:
        return f"within {100 * TOLERANCE:.0f} points"
    return "loses" if lost.low > 0 else "not shown"


def _points(e: Estimate) -> str:
    if e.low is None or e.high is None:
        return f"{100 * e.mean:+.1f} (no interval)"
    return f"{100 * e.mean:+.1f} ({100 * e.low:+.1f} to {100 * e.high:+.1f})"


def _loss(found: Summary, lost: Estimate | None) -> str:
    if lost is None:
        return ""
    most = "" if lost.high is None else f" (at most {100 * lost.high:.1f})"
    return f"{100 * lost.mean:.1f}{most}: {guard(found, lost)}"


def report(found: Summary) -> str:
    """Return ``report.md``."""
    stand = claimed(found)
    world = "development world: nothing is claimed" if found.development else "test world"
    parts = [
        "# Proof on the small world",
        f"{world.capitalize()}; seed {found.seed}, {found.sessions} sessions; states: "
        + ", ".join(f"{n} {name}" for name, n in found.states.items())
        + ". Differences are in points of right actions, with 95 % intervals over sessions and"
        " seeds (`examples/proof/statistics.py`).",
        *([found.student] if found.student else []),
        f"## What may be claimed ({_setting(MAIN)})",
        "The first is the primary contrast; Holm's method judges the others together. Bold:"
        f" stands, with at least {MIN_SEEDS} seeds, on a test world.",
    ]
    rows = []
    for question in (PRIMARY, *SECONDARY):
        if e := (found.primary | found.secondary).get(question.name):
            said = f"**{_points(e)}**" if question.name in stand else _points(e)
            p = "" if e.p is None else f"{e.p:.2g}"
            rows.append((question.name, said, p, e.units, e.seeds))
    parts.append(table(("contrast", "difference", "p", "sessions", "seeds"), rows))
    parts.append(
        "## The whole grid\n\nExploratory: nothing in these tables is claimed. A share is the mean"
        " over seeds [least-largest]; `lost` is the share that an arm gets wrong of what the base"
        " has right, with its bound, in points."
    )
    for setting, rows_of in found.grid.items():
        parts += [f"### {_setting(setting)}", *_tables(found, rows_of)]
    return "\n\n".join(parts) + "\n"


def _setting(name: str) -> str:
    coverage, _, rest = name.partition("-")
    shared, _, sessions = rest.partition("shared-")
    return f"{coverage} coverage, {shared} % of misconceptions shared, {sessions} sessions"


def _tables(found: Summary, rows: Mapping[str, Row]) -> list[str]:
    families = [name for name in found.states if name not in GROUPS]
    parts = [
        table(
            ("arm", "seeds", *_KINDS, *_VALUES),
            [(_named(arm), row.seeds, *(_said(row.right.get(name)) for name in _KINDS),
              *(_said(row.values.get(name)) for name in _VALUES)) for arm, row in rows.items()],
        ),
        table(
            ("arm", *(f"{name}, right" for name in families), *(f"{k}, lost" for k in _GUARDED)),
            [(_named(arm), *(_said(row.right.get(name)) for name in families),
              *(_loss(found, row.lost.get(kind)) for kind in _GUARDED))
             for arm, row in rows.items()],
        ),
        table(
            ("arm", *(f"{kind} - {other}" for kind, other in _AGAINST)),
            [(_named(arm), *_differences(arm, row, _AGAINST)) for arm, row in rows.items()],
        ),
    ]  # fmt: skip
    trained = [(_named(arm), *_trained(row.numbers)) for arm, row in rows.items() if row.numbers]
    if trained:
        head = ("arm", "rows", "left out", "hints that help", "s a step", "tokens/s", "peak GiB")
        parts.append(table(head, trained))
    spread = {arm: row for arm, row in rows.items() if "contributions" in row.numbers}
    if spread:
        heads = ("arm", "contributions", "bytes a replica sent", "data-parallel / H", "ratio")
        against = (f"{kind} - data-parallel" for kind, _ in _REPLICAS)
        parts.append(table((*heads, *against), [_sent(arm, row) for arm, row in spread.items()]))
    return parts


def _differences(arm: str, row: Row, against: Iterable[tuple[str, str]]) -> list[str]:
    found = [row.against.get(Question(arm, other, kind).name) for kind, other in against]
    return [_points(e) if e else "" for e in found]


def _trained(numbers: Mapping[str, float]) -> tuple[str, ...]:
    """Return what an arm was trained on and what a step took."""
    seconds, share = numbers.get("step_seconds"), numbers.get("hints_kept_share")
    took = ("", "", "") if seconds is None else (
        f"{seconds:.2f}", f"{numbers['step_tokens'] / seconds:,.0f}",
        f"{numbers['peak_memory_mib'] / 1024:.2f}",
    )  # fmt: skip
    return *rows_said(numbers), "" if share is None else f"{share:.0%}", *took


def _sent(arm: str, row: Row) -> tuple[str, ...]:
    numbers = row.numbers
    sent, each = numbers["bytes_sent"], numbers["bytes_data_parallel"] / INNER_STEPS
    return (
        _named(arm), f"{numbers['contributions']:.0%}", f"{sent:,.0f}", f"{each:,.0f}",
        f"{sent / each:.3f}", *_differences(arm, row, _REPLICAS),
    )  # fmt: skip


def _named(arm: str) -> str:
    return ARMS[arm].what if arm in ARMS else arm


def _said(spread: Spread | None) -> str:
    if spread is None:
        return ""
    mean = f"{spread.mean:.3f}"
    ends = f" [{spread.least:.3f}-{spread.most:.3f}]"
    return mean if spread.least == spread.most else mean + ends


_WORLD = """\
A session of Toolworld fixes one bug of a made-up project in four steps: read the file, edit a line,
run its test, run a check. The agent has twelve systematic mistakes in five families: a tool that is
not there, a wrong path, a wrong edit that is refused at once, one that is applied and fails only
steps later, and a wrong test. The trace shows what real ones show: the failed result or the user's
words, and a recovery. What is said about a mistake is wrong with probability {noise}. With
probability {shared} all three teachers share one misconception at a mistake, so that their
consensus is wrong. They were asked about half of the kinds of mistakes. Sessions go through the
whole pipeline and the real trainer; the student has 0.3 M parameters."""

_FROZEN = """\
Arms, rates, steps, the primary contrast and the list of the others were chosen on a development
world. The test sessions were made by seed {seed}, drawn when the run started. They share no prompt
and no session with development or training."""

_DEVELOPMENT = """\
**Nothing is claimed here:** this run measured the development world, on which choices are made."""

_COUNTED = """\
A figure is the share of states whose greedy answer is exactly the right action. Differences are
paired by state. Intervals cover other sessions and other seeds (other training sessions, another
model): on simulated grids without an effect they call at most 5 % significant, with 3, 5 or 8
seeds. One contrast was primary; Holm's method judges the other {others} together. A loss has the
wider of a t and a Clopper-Pearson bound; where nothing was lost, that is about other sessions for
the models of these seeds. Each bound holds by itself at 95 %."""

_LIMITS = (
    "Other mistakes, projects and agents: they are fixed here, not sampled.",
    "Larger models: the student is small, and was first taught to make these mistakes."
    " `make proof-gpu` was not run on a GPU.",
    "Hints at the flagged turn for a model that knows what to do with them: the student was taught"
    " to follow hints, and only where the mistake is made.",
    "Arms and settings that only the whole grid has: it is exploratory.",
)

_RUN = """\
```
make proof                                                      # the world above
make proof-real PROOF_ARGS="--sessions ~/.claude/projects"      # your sessions, without teachers
make proof-gpu PROOF_ARGS="--model DIR_OR_ID"                   # a larger model
python -m examples.proof.report --page > docs/proof.md          # this page, from the summaries
```

All tables: `benchmarks/results/proof.md`. This page is written from `proof.json` beside it."""


def page(found: Summary, real: str = "") -> str:
    """Return ``docs/proof.md``; ``real`` is its passage about real sessions."""
    said = [_sentence(found, question) for question in SECONDARY]
    shown, not_shown = (
        [line for line, stands in said if stands is which] for which in (True, False)
    )
    arms = found.grid.get(MAIN, {})
    rows = [
        (f"{WORDS[arm]} (`{arm}`)", *(_percent(arms[arm], kind) for kind in _KINDS[:2]),
         *(_loss(found, arms[arm].lost.get(kind)) for kind in _GUARDED))
        for arm in WORDS if arm in arms
    ]  # fmt: skip
    asked, not_asked, easy, recovery = (found.states.get(kind, 0) for kind in _KINDS)
    seeds = max((e.seeds for e in found.primary.values()), default=0)
    guards = [
        f"{kind} states {guard(found, arms[PRIMARY.arm].lost.get(kind))}"
        for kind in _GUARDED if PRIMARY.arm in arms
    ]  # fmt: skip
    parts = [
        "# Does it work?",
        f"**Question.** At {WORDS[PRIMARY.states]}, does {WORDS[PRIMARY.arm]} (SDPO, with SFT on"
        " the consensus and on the agent's own successes) teach a model more than"
        f" {WORDS[PRIMARY.other]}?",
        f"**Answer.** {_answer(found)}",
        f"**Measured** with {seeds} seeds on {found.sessions} sessions ({asked} mistakes that"
        f" teachers were asked about, {not_asked} that they were not, {easy} easy states,"
        f" {recovery} right after an error), in points of right actions, with 95 % intervals.",
        "![Differences between arms, in points](images/proof.svg)",
        "Differences in points, with 95 % intervals; the first is primary. A question mark:"
        " the interval excludes 0, but nothing is claimed.",
        "## What is shown",
        _list(shown or ["Of the secondary contrasts, none."]),
        "## What is not shown",
        _list([*not_shown, *_LIMITS]),
        "## What it costs",
        f"Easy and recovery: what an arm gets wrong where the base was right, in points. Up to"
        f" {100 * TOLERANCE:.0f} are allowed; `loses`: a loss is shown, and not that it is within"
        f" them; `not shown`: neither. {_first(WORDS[PRIMARY.arm])}:"
        f" {', '.join(guards) or 'not measured'}.",
        table(("arm", "right, asked", "right, not asked", "easy", "recovery"), rows),
        "## The world",
        _WORLD.format(noise=NOISE, shared=int(MAIN.split("-")[1].removesuffix("shared")) / 100),
        "## What was fixed before",
        _DEVELOPMENT if found.development else _FROZEN.format(seed=found.seed),
        "## How it was counted",
        _COUNTED.format(others=len(SECONDARY)),
        *(
            ("## Real sessions", _first(real.strip().removeprefix("**Real sessions.** ")))
            if real
            else ()
        ),
        "## Run it",
        _RUN,
    ]
    return "\n\n".join(parts) + "\n"


def _answer(found: Summary) -> str:
    e = found.primary.get(PRIMARY.name)
    if e is None:
        return "Not measured."
    arms = found.grid[MAIN]
    one, other = (_percent(arms[arm], PRIMARY.states) for arm in (PRIMARY.arm, PRIMARY.other))
    said = f"{one} against {other}, {_points(e)}."
    if PRIMARY.name not in claimed(found):
        return f"Not shown: {said}"
    return f"Yes, on this world: {said}" if e.mean > 0 else f"No, it teaches less: {said}"


def _sentence(found: Summary, question: Question) -> tuple[str, bool]:
    """Return what may be said of a secondary contrast, and whether it stands."""
    one, other, states = (WORDS[name] for name in question)
    e, stands = found.secondary.get(question.name), question.name in claimed(found)
    if e is None:
        return f"{_first(one)} against {other}, at {states}: not measured.", False
    if not stands:
        doubt = "; without 0, but too little for one of many" if e.excludes_zero else ""
        return f"{_first(one)} against {other}, at {states}: {_points(e)}{doubt}.", False
    verb = "gained over" if e.mean > 0 else "lost against"
    return f"{_first(one)} {verb} {other}, at {states}: {_points(e)}.", True


def _first(words: str) -> str:
    return words[0].upper() + words[1:]


def _percent(row: Row, states: str) -> str:
    return f"{100 * row.right[states].mean:.1f} %" if states in row.right else ""


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"* {line}" for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report of a finished run, or print the page."""
    parser = argparse.ArgumentParser(prog="python -m examples.proof.report", description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", default=Path("proof"))
    parser.add_argument("--page", action="store_true", help="print docs/proof.md")
    options = parser.parse_args(argv)
    try:
        if options.page:
            sys.stdout.write(committed_page())
        else:
            known = options.out / SUMMARY
            student = read_summary(known).student if known.is_file() else ""
            write_report(options.out, collect(options.out / RUNS), student)
    except InputError as error:
        sys.stderr.write(f"report: {error}\n")
        return 2
    return 0


def committed_page() -> str:
    """Return ``docs/proof.md`` from ``benchmarks/results/``."""
    from examples.proof.real_report import section

    real = COMMITTED / "proof-real.json"
    found = section(json.loads(real.read_bytes())) if real.is_file() else ""
    return page(read_summary(COMMITTED / "proof.json"), found)


if __name__ == "__main__":
    sys.exit(main())
