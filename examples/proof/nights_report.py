"""``make proof-nights``: runs the streams of ``nights``, and tells what they found.

    python -m examples.proof.nights_report                # five seeds, drawn when a run starts
    python -m examples.proof.nights_report --development  # for choosing: known sessions
    python -m examples.proof.nights_report --page         # docs/nights-measured.md from the record

Every sentence of the page that says that something holds is chosen by the figures.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
import numpy as np

from composer_pipeline.charts import lines
from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.evaluation.states import EvaluationState
from composer_pipeline.files import replace
from composer_pipeline.markdown import table
from examples.proof import nights
from examples.proof.nights import ARMS, NIGHTS, PHASE, RUNS, Tested, Told, planned, read_told
from examples.proof.report import COMMITTED, TEST
from examples.proof.run import Test, drawn
from examples.proof.statistics import Estimate, estimate

SUMMARY = "nights.json"
RECORDED = COMMITTED / "nights_stream.json"
DOCS = COMMITTED.parents[1] / "docs"
PAGE, PICTURES = "nights-measured.md", "images"
KINDS = ("hard", "easy", "recovery")
#: A night is good if its parent is wrong at so many of the mistakes that it brings, and has nothing
#: new if it is wrong at less than :data:`KNOWN`; at states that are in no night.
GOOD, KNOWN = 0.5, 0.1
#: A night of these kinds must be refused.
BAD = ("poisoned", "wrong majority")
#: The bars of the benchmark, in shares.
MAY_LOSE, REFUSED, PROMOTED, NOISE = 0.005, 0.95, 0.80, 0.05
Picked = np.ndarray[tuple[int, int], np.dtype[np.bool_]]
WORDS = {"none": "no gate", "gate": "gates", "buffer": "gates and old rows"}


class Decisions(msgspec.Struct, frozen=True):
    """Nights of one sort, how many of them were promoted, and what stopped the others."""

    nights: int
    promoted: int
    by: dict[str, int]


class Noise(msgspec.Struct, frozen=True):
    """Tests of candidates that are no better: share of answers changed, and what was promoted."""

    tests: int
    changed: float
    promoted: int
    months: int
    months_promoted: int


class Summary(msgspec.Struct, frozen=True):
    """All that the page says.

    Attributes:
        seed: of the test world; with ``development`` choices were made on it.
        development: whether it was known before.
        seeds: streams.
        states: measured states by kind.
        cpu_seconds: of data and arms.
        right: arm, kind: mean share of right actions after each night, the first model's first.
        brought: arm, night: hard states right, of the kinds of mistakes that nights have brought.
        against: arm, night: that, minus that of the arm without gates.
        against_all: the same of all hard states.
        kept: arm, kind: final minus first.
        decisions: arm, sort of night to what was decided.
        alone: arm, kind of night to what the gates decide where no canary holds it.
        noise: what was tested of parents with noise on their weights.
        simulated: changed sessions a test to the share of months that promote.
    """

    seed: int
    development: bool
    seeds: int
    states: dict[str, int]
    cpu_seconds: float
    right: dict[str, dict[str, list[float]]]
    brought: dict[str, dict[str, float]]
    against: dict[str, dict[str, Estimate]]
    against_all: dict[str, dict[str, Estimate]]
    kept: dict[str, dict[str, Estimate]]
    decisions: dict[str, dict[str, Decisions]]
    alone: dict[str, dict[str, Decisions]]
    noise: Noise
    simulated: dict[str, float]


class _Streams:
    """What all seeds' arms told, as arrays of seeds x states after each night."""

    def __init__(self, out: Path, seeds: Sequence[int], states: Sequence[EvaluationState]) -> None:
        self.seeds, self.states = seeds, states
        self.told = {
            arm: [read_told(out / RUNS / str(seed) / arm) for seed in seeds] for arm in ARMS
        }
        self.kinds = np.array([state.kind.partition("_")[0] for state in states])
        self.bugs = np.array([_bug(state) for state in states])
        names = sorted({state.session_id for state in states})
        self.sessions = np.array([names.index(state.session_id) for state in states])

    def right(self, arm: str, night: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
        """Return 1 where an arm is right after a night: seeds x states."""
        return np.array([_bits(told[night].right) for told in self.told[arm]])

    def of(self, kind: str) -> Picked:
        """Return which states are of a kind: seeds x states."""
        return np.tile(self.kinds == kind, (len(self.seeds), 1))

    def brought(self, night: int) -> Picked:
        """Return which hard states are of mistakes that a night up to this one brought."""
        bugs = [[bug for each in planned(seed)[:night] for bug in each.bugs] for seed in self.seeds]
        seen: Picked = np.array([np.isin(self.bugs, some) for some in bugs])
        return self.of("hard") & seen

    def mean(self, picked: Picked, arm: str, night: int) -> float:
        """Return the share of some states that an arm has right after a night."""
        return float(((self.right(arm, night) * picked).sum(1) / picked.sum(1)).mean())

    def contrast(self, picked: Picked, one: tuple[str, int], other: tuple[str, int]) -> Estimate:
        """Return the difference at some states between two (arm, night); all seeds count alike."""
        each = picked * (picked.sum(1).mean() / picked.sum(1, keepdims=True))
        change = (self.right(*one) - self.right(*other)) * each
        sums = np.array([np.bincount(self.sessions, row) for row in change])
        counts = np.bincount(self.sessions, each.mean(0)).astype(np.float64)
        return estimate(sums[:, counts > 0], counts[counts > 0], share=True)

    def wrong(self, arm: str, at: int, each: Told) -> float:
        """Return the share of a night's mistakes that its parent makes."""
        plan = planned(self.seeds[at])[each.number - 1]
        mine = (self.kinds == "hard") & np.isin(self.bugs, plan.bugs)
        rights = {told.current: told.right for told in self.told[arm][at]}
        return 1 - float(_bits(rights[each.parent])[mine].mean())

    def sorted(self, arm: str) -> dict[str, list[Told]]:
        """Return an arm's nights by sort: kind, and of usual nights how much was to be learnt."""
        found: dict[str, list[Told]] = {
            name: [] for name in ("good", "something new", "nothing new", *BAD, "no data")
        }
        for at, told in enumerate(self.told[arm]):
            for each in told[1:]:
                name: str = each.kind
                if name == "usual":
                    wrong = self.wrong(arm, at, each)
                    name = "good" if wrong >= GOOD else "something new"
                    name = "nothing new" if wrong < KNOWN else name
                found[name].append(each)
        return found


def _bits(text: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([float(digit) for digit in text])


def _bug(state: EvaluationState) -> int:
    said = re.search(r"Fix b(\d+) in", str(state.messages))
    assert said is not None
    return int(said.group(1))


def summarise(
    out: Path, seeds: Sequence[int], test: Test, states: Sequence[EvaluationState]
) -> Summary:
    """Return all that the page says of a finished run."""
    streams = _Streams(out, seeds, states)
    gated = [arm for arm in ARMS if arm != "none"]
    fifth = range(PHASE, NIGHTS + 1, PHASE)
    of = {kind: streams.of(kind) for kind in KINDS}
    sorts = {arm: streams.sorted(arm) for arm in ARMS}
    tested = [
        each for seed in seeds
        for each in msgspec.json.decode(
            (out / RUNS / str(seed) / nights.NOISE_FILE).read_bytes(), type=list[Tested]
        )
    ]  # fmt: skip
    spent = sum(each.seconds for arm in streams.told.values() for told in arm for each in told)
    data = sum(float((out / nights.DATA / str(seed) / nights.SPENT).read_text()) for seed in seeds)
    return Summary(
        seed=test.seed,
        development=test.development,
        seeds=len(seeds),
        states={kind: int((streams.kinds == kind).sum()) for kind in KINDS},
        cpu_seconds=spent + data,
        right={
            arm: {
                kind: [streams.mean(of[kind], arm, night) for night in range(NIGHTS + 1)]
                for kind in KINDS
            }
            for arm in ARMS
        },
        brought={
            arm: {str(night): streams.mean(streams.brought(night), arm, night) for night in fifth}
            for arm in ARMS
        },
        against={
            arm: {
                str(night): streams.contrast(streams.brought(night), (arm, night), ("none", night))
                for night in fifth
            }
            for arm in gated
        },
        against_all={
            arm: {
                str(night): streams.contrast(of["hard"], (arm, night), ("none", night))
                for night in fifth
            }
            for arm in gated
        },
        kept={
            arm: {kind: streams.contrast(of[kind], (arm, NIGHTS), (arm, 0)) for kind in KINDS}
            for arm in ARMS
        },
        decisions={
            arm: {
                name: _decided(some, lambda each: each.outcome, lambda each: each.by)
                for name, some in sorts[arm].items()
            }
            for arm in gated
        },
        alone={
            arm: {
                name: _decided(
                    sorts[arm][name], lambda each: each.alone, lambda each: each.alone_by
                )
                for name in BAD
            }
            for arm in gated
        },
        noise=_noise(tested),
        simulated={str(changed): nights.simulated(changed) for changed in (5, 10, 20)},
    )


def _decided(
    some: Iterable[Told], outcome: Callable[[Told], str], by: Callable[[Told], tuple[str, ...]]
) -> Decisions:
    some = list(some)
    stopped = Counter(
        f"{outcome(each)}: {', '.join(by(each))}" if by(each) else outcome(each)
        for each in some if outcome(each) != "promoted"
    )  # fmt: skip
    return Decisions(len(some), len(some) - stopped.total(), dict(stopped.most_common()))


def _noise(tested: Sequence[Tested]) -> Noise:
    promoted = [each.seed for each in tested if each.promoted]
    months = len({each.seed for each in tested})
    changed = fmean(each.changed for each in tested)
    return Noise(len(tested), changed, len(promoted), months, len(set(promoted)))


def write_summary(
    out: Path, seeds: Sequence[int], test: Test, states: Sequence[EvaluationState]
) -> None:
    """Write ``nights.json`` of a finished run, and print its page."""
    found = summarise(out, seeds, test, states)
    text = msgspec.json.format(msgspec.json.encode(_rounded(msgspec.to_builtins(found))))
    replace(out / SUMMARY, text.decode() + "\n")
    print(page(read_summary(out / SUMMARY)))


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def read_summary(path: Path) -> Summary:
    """Return a ``nights.json``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is no summary of a run: {error}") from error


def _points(e: Estimate) -> str:
    if e.low is None or e.high is None:
        return f"{100 * e.mean:+.1f} (no interval)"
    return f"{100 * e.mean:+.1f} ({100 * e.low:+.1f} to {100 * e.high:+.1f})"


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole} ({part / whole:.0%})" if whole else "none"


def bars(found: Summary) -> list[tuple[str, str, bool]]:
    """Return each bar, what was measured, and whether it is reached."""
    rows = []
    for arm in found.decisions:
        kept = [found.kept[arm][kind] for kind in ("easy", "recovery")]
        said = ", ".join(f"{kind} {_points(found.kept[arm][kind])}" for kind in KINDS[1:])
        rows.append((
            f"{WORDS[arm]}: easy and recovery within {100 * MAY_LOSE} points of the first model",
            said, all(e.mean >= -MAY_LOSE for e in kept),
        ))  # fmt: skip
        for what, by_night in (
            ("of the mistakes brought so far", found.against[arm]),
            ("of all mistakes, also those that no night has brought", found.against_all[arm]),
        ):
            missed = [night for night, e in by_night.items() if (e.low or 0) <= 0]
            more = f"; not at night {', '.join(missed)}" if missed else ""
            rows.append((
                f"{WORDS[arm]}: more right than without gates at every fifth night, {what}",
                f"{len(by_night) - len(missed)} of {len(by_night)} nights{more}", not missed,
            ))  # fmt: skip
        sorts = found.decisions[arm]
        bad = [sorts[name] for name in BAD]
        asked = sum(each.nights for each in bad)
        refused = asked - sum(each.promoted for each in bad)
        rows.append((
            f"{WORDS[arm]}: poisoned and wrong-majority nights refused in {REFUSED:.0%}",
            _of(refused, asked), refused >= REFUSED * asked,
        ))  # fmt: skip
        good = sorts["good"]
        rows.append((
            f"{WORDS[arm]}: good nights promoted in {PROMOTED:.0%}",
            _of(good.promoted, good.nights), good.promoted >= PROMOTED * good.nights,
        ))  # fmt: skip
    most = max(found.simulated.values())
    e = found.noise
    rows.append(
        (
            f"noise: at most {NOISE:.0%} of months promote any",
            f"at most {most:.1%} of {nights.MONTHS:,} simulated months; of candidates that are"
            f" their parent with noise, {_of(e.promoted, e.tests)}",
            most <= NOISE and not e.promoted,
        )
    )
    return rows


def page(found: Summary) -> str:
    """Return ``docs/nights-measured.md``."""
    reached = [name for name, _, ok in bars(found) if ok]
    world = (
        "**Development world: these are the sessions that choices were made on.**"
        if found.development
        else "The test sessions and the seeds follow from a number that was drawn when the run"
        f" started ({found.seed})."
    )
    first = found.right["none"]
    parts = [
        "# Thirty nights, measured",
        f"`make proof-nights`: {NIGHTS} nights on the small world of [the proof](proof.md),"
        f" {found.seeds} seed{'s' * (found.seeds > 1)}, {found.states['hard']} sessions that are"
        " in no night"
        f" ({', '.join(f'{n} {kind}' for kind, n in found.states.items())} states);"
        f" {found.cpu_seconds / 60:.0f} CPU minutes. {world} {len(reached)} of the"
        f" {len(bars(found))} bars are reached.",
        table(
            ("bar", "measured", "reached"),
            [(name, said, "yes" if ok else "**no**") for name, said, ok in bars(found)],
        ),
        "Differences are in points of right actions, with 95 % intervals over sessions and seeds.",
        "## The stream",
        _STREAM,
        "## Right actions, night by night",
        f"Mean over seeds, in per cent; the first model has {_percents(first, 0)}. Thin lines:"
        f" night {nights.POISONED} is poisoned, night {nights.EMPTY} has no session, at night"
        f" {nights.MAJORITY} all teachers share a misconception. At nights that are not promoted a"
        " line is level.",
        *(
            f"![Right actions at {kind} states after each night, in per cent]"
            f"({PICTURES}/nights-{kind}.svg)"
            for kind in KINDS
        ),
        table(
            ("after night", *(f"{WORDS[arm]}: {kind}" for kind in KINDS for arm in found.right)),
            [
                (
                    night,
                    *(
                        f"{100 * found.right[arm][kind][night]:.1f}"
                        for kind in KINDS for arm in found.right
                    ),
                )
                for night in range(0, NIGHTS + 1, PHASE)
            ],
        ),
        _BROUGHT,
        table(
            (
                "after night", *(f"{WORDS[arm]}: right" for arm in found.brought),
                *(f"{WORDS[arm]} against no gate" for arm in found.against),
            ),
            [
                (
                    night,
                    *(f"{100 * by[night]:.1f}" for by in found.brought.values()),
                    *(_points(by[night]) for by in found.against.values()),
                )
                for night in found.brought["none"]
            ],
        ),
        "The same of all hard states, also those of mistakes that no night has brought:",
        table(
            ("after night", *(f"{WORDS[arm]} against no gate" for arm in found.against_all)),
            [
                (night, *(_points(by[night]) for by in found.against_all.values()))
                for night in found.brought["none"]
            ],
        ),
        "The last model against the first:",
        table(
            ("arm", *KINDS),
            [
                (WORDS[arm], *(_points(kept[kind]) for kind in KINDS))
                for arm, kept in found.kept.items()
            ],
        ),
        "## What was decided",
        f"A usual night is *good* if its parent makes at least {GOOD:.0%} of the mistakes that the"
        f" night brings, at sessions that are in no night, and has *nothing new* below"
        f" {KNOWN:.0%}.",
        table(
            ("arm", "night", "promoted", "what stopped the others"),
            [
                (WORDS[arm], name, _of(each.promoted, each.nights), _stopped(each))
                for arm, sorts in found.decisions.items()
                for name, each in sorts.items()
            ],
        ),
        "The gates alone, where no canary may hold a night (on a copy of the lake):",
        table(
            ("arm", "night", "promoted", "what stopped the others"),
            [
                (WORDS[arm], name, _of(each.promoted, each.nights), _stopped(each))
                for arm, sorts in found.alone.items()
                for name, each in sorts.items()
            ],
        ),
        "## Noise",
        _NOISE,
        f"{found.noise.tests} tests in {found.noise.months} months; {found.noise.changed:.1%} of"
        f" the answers changed; {found.noise.promoted} promoted.",
        f"Simulated, {nights.MONTHS:,} months of {NIGHTS} tests each, whatever changed for better"
        " or worse with equal chance:",
        table(
            ("sessions with another answer", "months that promote one"),
            [(n, f"{share:.2%}") for n, share in found.simulated.items()],
        ),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


_STREAM = f"""\
* Each night has {nights.SESSIONS} sessions; {nights.HELD_OUT:.0%} of the groups with one first
  prompt are held out. Every {PHASE} nights the mistakes are of another kind, which the model
  makes until it is trained, and no kind comes again. At {nights.SHARED} % of the mistakes all
  teachers are wrong in the same way. Teachers are asked about all mistakes, and about half of the
  other states.
* Night {nights.MAJORITY} is the *wrong majority*: all teachers are wrong in the same way at every
  mistake, and what the agent did later is right. It is the last night of its kind of mistakes, so
  that no later night repairs what it teaches; that favours the gates. Night {nights.POISONED} is
  *poisoned*: whatever a step asks for, a check alone works in its log, and teachers do that.
  Night {nights.EMPTY} has no session.
* The data are those of the product: ingest, replay from simulated teachers, hints, pairs,
  normalisation, dataset. Each night is one `run_night` with the shipped rules, which trains
  the shipped terms for {nights.EPOCHS:g} passes over its rows at {nights.RATE:g} from the current
  version. Training and measuring run in the same process, and tables that are the same every night
  are read once. A night whose hints no longer help the current model trains without SDPO.
* *No gate* trains on the night's rows alone, and promotes every model. *Gates* is what
  `run_night` decides, without old rows; *gates and old rows* is what is shipped.
* Numbers of sessions, passes and rate were chosen on development sessions. A first recording was
  stopped in its second seed, in which gains of two training rows refused all later nights; that
  seed then served development, and the rule that a loss of gains has to be seen is from it. That
  of few gains it has to be certain is from four development seeds, as are rate and passes. That
  all new states are tested, not mistakes alone, is from two seeds of an earlier recording, and that
  what is wrong in few sessions adds up is from one seed of the next; they then served development
  too."""
_BROUGHT = """\
Of the mistakes that nights have brought so far, which is the usual measure of learning one thing
after the other (average accuracy over the tasks seen, Lopez-Paz and Ranzato 2017):"""
_NOISE = f"""\
Candidates that are no better than their parent: the last model of *gates and old rows* with
Gaussian noise on its weights ({nights.SIGMA} standard deviations of each tensor), tested as at the
last night."""


def _percents(right: Mapping[str, Sequence[float]], night: int) -> str:
    return ", ".join(f"{100 * right[kind][night]:.1f} {kind}" for kind in KINDS)


def _stopped(each: Decisions) -> str:
    return "; ".join(f"{why}: {n}" for why, n in each.by.items())


def pictures(found: Summary) -> dict[str, str]:
    """Return file name to SVG: right actions by night, one picture a kind."""
    made = {}
    for kind in KINDS:
        series = {
            WORDS[arm]: [(float(night), 100 * share) for night, share in enumerate(by[kind])]
            for arm, by in found.right.items()
        }
        every = [share for points in series.values() for _, share in points]
        marks = {
            f"night {number}: {what}": [(float(number), min(every)), (float(number), max(every))]
            for number, what in nights.KINDS.items()
        }
        made[f"nights-{kind}.svg"] = lines(
            series, unit=f"right at {kind} states, %", x_unit="night", thin=marks
        )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Run the streams and write ``nights.json``, or write the page from the recorded run.

    Exit 2 for bad input, 1 when a night fails.
    """
    parser = argparse.ArgumentParser(prog="make proof-nights", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("proof-nights"))
    parser.add_argument("--development", action="store_true", help="known sessions, for choosing")
    parser.add_argument(
        "--seeds", type=int, default=nights.SEEDS, help=f"how many ({nights.SEEDS})"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--page", action="store_true", help="write docs/nights-measured.md")
    options = parser.parse_args(argv)
    out: Path = options.out
    try:
        if options.page:
            found = read_summary(RECORDED)
            replace(DOCS / PAGE, page(found))
            for name, svg in pictures(found).items():
                replace(DOCS / PICTURES / name, svg)
        else:
            test, states = drawn(out / TEST, nights.TEST_SESSIONS, development=options.development)
            seeds = [test.seed + k for k in range(1, options.seeds + 1)]
            nights.in_processes(out, seeds, states, options.jobs)
            write_summary(out, seeds, test, states)
    except ComposerError as error:
        sys.stderr.write(f"proof-nights: {error}\n")
        return 2 if isinstance(error, InputError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
