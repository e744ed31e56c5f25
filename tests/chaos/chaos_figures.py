"""What a round of the chaos test found, its bars, and the table."""

from collections.abc import Sequence

import msgspec

#: Most bills for a body that had been billed before, as a share of all bills, while the
#: provider keeps replies for us.
DUPLICATES = 0.005
#: Fewest processes that must have worked at one moment.
PROCESSES = 3


class Round(msgspec.Struct, frozen=True):
    """What one round is: where the ledger is, what binds, how often it is killed."""

    name: str
    store: str
    cache: bool
    bound: bool
    kills: int
    sessions: int
    turns: int
    processes: int = 3
    #: Whether every process is a run of its own; they share the global ceiling.
    own_runs: bool = False
    #: Whether each run makes keys of its own. They die with a process, and so does the
    #: provider's response cache, which belongs to the key.
    minted: bool = False
    faults: float = 0.25
    seed: int = 0
    #: Share of the fault classes that must have come before there is no more work.
    classes: float = 0.0


FULL = (
    Round("sqlite", "sqlite", cache=True, bound=False, kills=30, sessions=40, turns=8),
    Round("sqlite bound", "sqlite", True, True, 20, 24, 8, seed=1),
    Round("sqlite no cache", "sqlite", False, False, 15, 20, 8, seed=2),
    Round("sqlite bound, no cache", "sqlite", False, True, 10, 12, 8, seed=3),
    Round("three runs", "sqlite", True, True, 10, 12, 8, own_runs=True, seed=4),
    Round("a key a run", "sqlite", True, True, 10, 12, 8, own_runs=True, minted=True, seed=10),
    Round("postgres", "postgres", True, False, 20, 24, 8, seed=5),
    Round("postgres bound", "postgres", True, True, 15, 20, 8, processes=4, seed=6),
    Round("postgres no cache", "postgres", False, True, 10, 12, 8, seed=7),
)
#: Little work to begin with: what the kills need is added.
SHORT = {
    "sqlite": (Round("sqlite", "sqlite", True, True, 12, 6, 6, seed=8, classes=0.4),),
    "postgres": (Round("postgres", "postgres", True, True, 6, 4, 6, seed=9, classes=0.4),),
}


class Figures(msgspec.Struct):
    """What came of it; money in picodollars."""

    round: Round
    processes: int = 0
    kills: int = 0
    faults: list[str] = msgspec.field(default_factory=list)
    requests: int = 0
    bills: int = 0
    hits: int = 0
    duplicates: int = 0
    samples: int = 0
    overspend: int = 0
    uncovered: int = 0
    truth: int = 0
    ledger_error: int = 0
    most_unknown: int = 0
    sweeps: int = 0
    unknown_before: int = 0
    unknown_after: int = 0
    steps: int = 0
    steps_that_bound: int = 0
    billed_bodies: int = 0
    in_lake: int = 0
    lost_while_bound: int = 0
    complete: bool = False
    leaks: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0

    @property
    def recoverable(self) -> bool:
        """Whether a paid reply can be fetched again after a kill."""
        return self.round.cache and not self.round.minted

    def misses(self) -> list[str]:
        """Return every bar that was missed, each as one sentence."""
        found = list(self.notes)
        exact = {
            "overspend": self.overspend,
            "money that the ledger did not cover at a sampled moment": self.uncovered,
            "ledger - truth after the sweep": self.ledger_error,
            "unknown after the sweep": self.unknown_after,
            "billed bodies without a reply in the lake": self.billed_bodies - self.in_lake,
        }
        found += [f"{what}: {value}, not 0" for what, value in exact.items() if value]
        if self.recoverable and self.lost_while_bound:
            found.append(f"{self.lost_while_bound} paid replies not recovered under the ceiling")
        if self.recoverable and self.duplicates > DUPLICATES * self.bills:
            share = self.duplicates / max(1, self.bills)
            found.append(f"duplicate bills: {self.duplicates} ({share:.2%}), bar {DUPLICATES:.1%}")
        if self.kills < self.round.kills:
            found.append(f"kills: {self.kills} of {self.round.kills}; the work was over too soon")
        if self.processes < PROCESSES:
            found.append(f"processes at once: {self.processes}, not {PROCESSES}")
        if self.round.bound and not self.steps_that_bound:
            found.append("the ceiling never bound")
        if not self.complete:
            found.append("the work was not finished after the last ceiling was lifted")
        found += [f"the key is in {path}" for path in self.leaks]
        return found


def table(results: Sequence[Figures]) -> str:
    """Return the figures as a Markdown table, one column a round."""
    rows: list[tuple[str, list[str]]] = [
        ("ledger", [f.round.store for f in results]),
        ("response cache", ["on" if f.round.cache else "off" for f in results]),
        ("ceilings", ["bind" if f.round.bound else "ample" for f in results]),
        ("runs", ["one each" if f.round.own_runs else "one" for f in results]),
        ("keys", ["made by each run" if f.round.minted else "one" for f in results]),
        ("processes at once", [str(f.processes) for f in results]),
        ("kill -9", [str(f.kills) for f in results]),
        ("fault classes", [str(len(f.faults)) for f in results]),
        ("requests", [str(f.requests) for f in results]),
        ("bills", [str(f.bills) for f in results]),
        ("free hits", [str(f.hits) for f in results]),
        (
            "duplicate bills",
            [f"{f.duplicates} ({f.duplicates / max(1, f.bills):.2%})" for f in results],
        ),
        ("ceilings that bound", [f"{f.steps_that_bound} of {f.steps}" for f in results]),
        ("moments sampled", [str(f.samples) for f in results]),
        ("overspend, any scope, any moment (p$)", [str(f.overspend) for f in results]),
        ("truth not covered, any moment (p$)", [str(f.uncovered) for f in results]),
        ("most unknown at a moment (p$)", [str(f.most_unknown) for f in results]),
        ("sweeps that settled something", [str(f.sweeps) for f in results]),
        ("unknown before the last sweep (p$)", [str(f.unknown_before) for f in results]),
        ("unknown after the last sweep (p$)", [str(f.unknown_after) for f in results]),
        ("provider's bill (p$)", [str(f.truth) for f in results]),
        ("ledger - bill (p$)", [str(f.ledger_error) for f in results]),
        (
            "billed bodies, in the lake",
            [f"{f.billed_bodies}, {f.in_lake}" for f in results],
        ),
        ("paid, not recovered while bound", [str(f.lost_while_bound) for f in results]),
        ("files with the key", [str(len(f.leaks)) for f in results]),
        ("seconds", [f"{f.seconds:.0f}" for f in results]),
    ]
    names = [f.round.name for f in results]
    lines = [f"| | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    lines += [f"| {label} | {' | '.join(cells)} |" for label, cells in rows]
    return "\n".join(lines)


RECORD = """# Chaos test: recorded results

`make chaos`: {kills} kills with SIGKILL in all; {cores} cores, load average {load} at the end,
Python {python}. Processes replay synthetic sessions against the loopback provider, which injects
a fault into every fourth request with {faults} classes of faults (prices that pass the cap among
them), delays the usage of a key and keeps its own accounts. Money is in picodollars (p$, 1e-12
USD); a call costs about 1.3e8 p$ and takes 50 to 200 ms.

{table}

{verdict}

"Truth not covered" is the provider's bill minus what the ledger charges (spent, reserved and
unknown), where that is above 0, in the worst scope of the worst moment sampled. A sweep knows
the sum of a key's bill, not its parts: a teacher's scope, and a run's where several runs share
the key, is held to cover the truth, every other scope to equal it. Without a response cache,
or where each run makes its own keys (which die with the process that made them, and the cache
with the key), a reply that was lost on its way is bought again: those duplicates are counted,
not judged.
"""
