"""Faults of every kind against DiLoCo replicas, which are real processes, killed for real.

    python tests/chaos/diloco_driver.py [--places folder s3] [--replicas 2 3 4] [--short]

Eight kill points in a round, on a folder and on S3 (moto), with 2, 3 and 4 replicas: the survivors
commit the round, the killed one is started again and comes to the same end. Then deltas that are
truncated, corrupt, not finite or huge; clocks that are an hour wrong; SIGSTOP; a replica ten times
slower; one that comes late; a full disk; refused credentials; all killed; the supervisor killed
while a replica waits; listings that are stale or lack entries; a heartbeat that somebody removes; a
slot that runs twice; an upload that takes longer than the grace time; other code, said or not.
Processes are forked from a server that has loaded torch. Exits 1 where
something is wrong; ``--patient`` leaves out the bars in seconds, for a busy machine.
"""

import argparse
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# The server that processes are forked from looks there for the module that it loads.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), str(HERE.parents[1])])
os.environ["OMP_NUM_THREADS"] = "1"
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import diloco_worker as worker  # noqa: E402
import msgspec  # noqa: E402
from diloco_audit import audit  # noqa: E402
from diloco_worker import COMMITTER, POINTS, STEP_S, Orders  # noqa: E402

from composer_pipeline.diloco.log import Commit, OuterLog  # noqa: E402
from composer_pipeline.diloco.spec import SNAPSHOT_EVERY, DiLoCoSpec  # noqa: E402

PLACES = ("folder", "s3")
HEARTBEAT_S, TAKEOVER_S, ORPHANS_S, PATIENCE_S = 1.5, 3.0, 10.0, 240.0
#: A round whose whole state is written, so that all points of a committer are passed.
KILLED_ROUND = SNAPSHOT_EVERY
#: What a replica says whose outer step has other bits, where no whole state is written.
NO_STATE = "no state that can be read leads to round"


def spec(replicas: int, **changes: Any) -> DiLoCoSpec:
    """Return the agreement of a run; the limits that no fault here should meet are far away."""
    return DiLoCoSpec.model_validate(
        {
            "rounds": 6, "inner_steps": 3, "kept_rounds": None, "replicas": replicas,
            "outer_lr": 0.7, "outer_momentum": 0.9,
            "heartbeat_timeout_s": HEARTBEAT_S, "takeover_s": 0.5,
            "join_timeout_s": PATIENCE_S, "grace_s": PATIENCE_S, "round_timeout_s": PATIENCE_S,
            "store_patience_s": 0.0, **changes,
        }
    )  # fmt: skip


@dataclass
class Fleet:
    """The processes of one run."""

    url: str
    agreed: DiLoCoSpec
    marks: Path
    running: dict[int, Any] = field(default_factory=dict)

    @property
    def log(self) -> OuterLog:
        """The run's log."""
        return OuterLog.open(self.url, "run")

    def start(self, slot: int, orders: Orders = Orders()) -> None:  # noqa: B008
        """Start a slot as a process."""
        environment = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
        orders.env.update(environment)
        process = multiprocessing.get_context("forkserver").Process(
            target=worker.one_replica,
            args=(self.url, self.agreed.model_dump_json(), slot, orders, str(self.marks)),
        )
        process.start()
        self.running[slot] = process

    def start_all(self, orders: Orders = Orders(), **of: Orders) -> None:  # noqa: B008
        """Start all slots; ``of`` has other orders for ``s<slot>``."""
        for slot in range(self.agreed.replicas):
            self.start(slot, of.get(f"s{slot}", orders))

    def kill_all(self) -> None:
        """End what runs."""
        for process in self.running.values():
            if process.is_alive() and process.pid:
                os.kill(process.pid, signal.SIGKILL)
            process.join()

    def join(self) -> None:
        """Wait until every process has ended."""
        until(lambda: not any(p.is_alive() for p in self.running.values()), "the replicas end")

    def commit(self, round_: int) -> Commit:
        """Wait for a commit."""
        log = self.log
        until(lambda: log.commit(round_), f"round {round_} is committed")
        found = log.commit(round_)
        assert found is not None
        return found


def until(check: Callable[[], object], what: str, within: float = PATIENCE_S) -> None:
    """Wait for something.

    Raises:
        TimeoutError: it did not come.
    """
    deadline = time.monotonic() + within
    while not check():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within:g} s: {what}")
        time.sleep(0.03)


@dataclass(frozen=True)
class Found:
    """What one run of the matrix showed: what is wrong, and the seconds that its fault cost."""

    wrong: list[str]
    seconds: float | None = None
    note: str = ""
    finished: int | None = None
    refused: tuple[str, ...] = ()


def killed_at(fleet: Fleet, point: str) -> Found:
    """Kill one replica at a point; the others commit the round; it comes back."""
    first = point == POINTS[0]
    order = Orders(kill_at=(point, 0 if first else KILLED_ROUND))
    if point in COMMITTER:
        fleet.start_all(order)
    else:
        fleet.start_all(s1=order)
    victim = fleet.marks / "victim"
    until(victim.exists, f"a replica is killed at {point}")
    died = time.monotonic()
    slot = msgspec.json.decode(until_text(victim))[0]
    if first:  # the others wait for it to join
        seconds = None
    else:
        fleet.commit(KILLED_ROUND)
        seconds = time.monotonic() - died
    fleet.running[slot].join()
    fleet.start(slot)
    fleet.join()
    return Found([], seconds)


def until_text(path: Path) -> str:
    """Return what a file says once it says anything."""
    until(lambda: path.read_text(), f"{path.name} is written")
    return path.read_text()


def spoiled(fleet: Fleet, how: str) -> Found:
    """One replica's delta of round 3 is spoiled: left out by name, and its next one is merged."""
    fleet.start_all(s1=Orders(spoil=how))
    fleet.join()
    commit, after = fleet.commit(worker.SPOILED), fleet.commit(worker.SPOILED + 1)
    wrong = []
    if [part.slot for part in commit.rejected] != [1]:
        wrong.append(f"round {commit.round} rejects {commit.reasons or 'nobody'}")
    if 1 not in (part.slot for part in after.included):
        wrong.append("the replica did not come back")
    return Found(wrong, None, commit.reasons)


def skewed(fleet: Fleet) -> Found:
    """Clocks an hour ahead and behind: nobody looks dead."""
    fleet.start_all(s0=Orders(skew_s=3600.0), s1=Orders(skew_s=-3600.0))
    fleet.join()
    short = [c.round for c in fleet.log.commits()[1:] if len(c.included) < fleet.agreed.replicas]
    return Found([f"rounds {short} lack a replica"] if short else [])


def stopped(fleet: Fleet) -> Found:
    """SIGSTOP in the middle of a round: the others go on, and it catches up after SIGCONT."""
    fleet.start_all(s1=Orders(stop_at=KILLED_ROUND))
    pid = fleet.marks / "pid"
    until(pid.exists, "a replica stops")
    died, number = time.monotonic(), int(until_text(pid))
    fleet.commit(KILLED_ROUND)
    seconds = time.monotonic() - died
    os.kill(number, signal.SIGCONT)
    fleet.join()
    return Found([], seconds)


def straggler(fleet: Fleet) -> Found:
    """One replica is ten times slower: left behind by the grace time, never waited for longer."""
    fleet.start_all(Orders(step_s=STEP_S), s1=Orders(step_s=10 * STEP_S))
    fleet.join()
    alone = sum(len(c.included) < fleet.agreed.replicas for c in fleet.log.commits()[1:])
    return Found([], None, f"{alone} of {fleet.agreed.rounds} rounds without it")


def late(fleet: Fleet) -> Found:
    """One replica starts when the others have two rounds: they do not wait, and it is merged."""
    for slot in range(fleet.agreed.replicas - 1):
        fleet.start(slot, Orders(step_s=STEP_S))
    fleet.commit(2)
    fleet.start(fleet.agreed.replicas - 1)
    fleet.join()
    last = fleet.agreed.replicas - 1
    merged = sum(last in (p.slot for p in c.included) for c in fleet.log.commits())
    return Found([] if merged else ["it was never merged"], None, f"merged in {merged} rounds")


def everyone(fleet: Fleet) -> Found:
    """Nobody is left out of a round, whatever the listings of all are."""
    short = [c.round for c in fleet.log.commits()[1:] if len(c.included) < fleet.agreed.replicas]
    return Found([f"rounds {short} lack a replica"] if short else [])


def listed(fleet: Fleet, **listings: float | str) -> Found:
    """All have listings of this kind."""
    fleet.start_all(Orders(listings=listings))
    fleet.join()
    return everyone(fleet)


def not_finite(fleet: Fleet) -> Found:
    """One replica's change is not finite in two rounds: left out by name, and only there."""
    fleet.start_all(s1=Orders(nan_at=(2, 4)))
    fleet.join()
    of = [c.round for c in fleet.log.commits()[1:] if 1 not in c.slots]
    return Found([] if of == [2, 4] else [f"replica 1 was left out of {of}"])


def forgotten(fleet: Fleet) -> Found:
    """Somebody removes the heartbeats of all in each round: to the others that is a leave."""
    fleet.start_all(Orders(step_s=STEP_S))
    for round_ in range(fleet.agreed.rounds):
        fleet.commit(round_)
        for entry in fleet.log.store.list("members"):
            fleet.log.store.delete(entry.key)
    fleet.join()
    return Found([])


def twice(fleet: Fleet) -> Found:
    """A second process of slot 0 comes while the first one trains: each round has one change."""
    fleet.start_all(Orders(step_s=STEP_S))
    fleet.commit(1)
    first = fleet.running[0]
    fleet.start(0, Orders(step_s=STEP_S))
    fleet.running[-1] = first
    fleet.join()
    of = {part.attempt for c in fleet.log.commits()[1:] for part in c.included if part.slot == 0}
    return Found([], None, f"merged starts of slot 0: {sorted(of)}", fleet.agreed.replicas + 1)


def slow_upload(fleet: Fleet) -> Found:
    """One replica's upload takes longer than the grace time: nobody waits for it."""
    fleet.start_all(Orders(step_s=STEP_S / 5), s1=Orders(step_s=STEP_S / 5, upload_s=1.2))
    fleet.join()
    merged = sum(1 in c.slots for c in fleet.log.commits())
    return Found([], None, f"merged in {merged} of {fleet.agreed.rounds} rounds")


def other_code(fleet: Fleet) -> Found:
    """One replica computes another outer step, and nobody knows: it ends, the others go on."""
    fleet.start_all(s1=Orders(plain_momentum=True))
    fleet.join()
    return Found([], None, "", fleet.agreed.replicas - 1, (NO_STATE,))


def other_software(fleet: Fleet) -> Found:
    """One replica says that it has other software, which would commit: refused at each start."""
    fleet.start(0, Orders(software="torch 2.13.0", step_s=5 * STEP_S))
    fleet.commit(0)
    for _ in range(2):
        fleet.start(1, Orders(software="torch 2.14.0", plain_momentum=True))
        fleet.running[1].join()
    fleet.join()
    merged = [c.round for c in fleet.log.commits()[1:] if 1 in c.slots or c.by == 1]
    said = "torch is 2.13.0 there and 2.14.0 here; finish the run with what is there"
    return Found([f"it is in {merged}"] if merged else [], None, "", 1, (said,))


def all_killed(fleet: Fleet) -> Found:
    """All are killed in round 3, and started again: they go on where they were."""
    fleet.start_all(Orders(hang_at=3))
    fleet.commit(2)
    before = fleet.log.commits()
    fleet.kill_all()
    fleet.start_all()
    fleet.join()
    kept = fleet.log.commits()[: len(before)] == before
    return Found([] if kept else ["commits of before are gone"])


def full_disk(fleet: Fleet) -> Found:
    """The disk is full for a while in round 2: the replicas wait, and nothing is lost."""
    folder = Path(fleet.url)
    fleet.start_all(Orders(step_s=STEP_S))
    fleet.commit(1)
    filler = folder.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"0" * 4096):
                pass
        except OSError:
            pass
    time.sleep(2.0)
    stuck = fleet.log.last_round()
    filler.unlink()
    fleet.join()
    return Found([], None, f"full after round {stuck}")


def refused(fleet: Fleet) -> Found:
    """The store refuses the credentials for a while in round 2 (403 for every request)."""
    import urllib.request

    def answer(allowed: int) -> None:
        request = urllib.request.Request(
            f"{os.environ['AWS_ENDPOINT_URL']}/moto-api/reset-auth",
            str(allowed).encode(), {"Content-Type": "text/plain"}, method="POST",
        )  # fmt: skip
        urllib.request.urlopen(request).read()

    fleet.start_all(Orders(step_s=STEP_S))
    fleet.commit(1)
    answer(0)
    time.sleep(2.0)
    answer(10**9)
    stuck = fleet.log.last_round()
    fleet.join()
    return Found([], None, f"refused after round {stuck}")


def orphans(fleet: Fleet) -> Found:
    """The supervisor is killed while one replica waits for another: both end by themselves."""
    orders = {"0": Orders(watch=True), "1": Orders(watch=True, hang_at=1)}
    env = {
        **os.environ,
        "CHAOS_ORDERS": msgspec.json.encode(orders).decode(),
        "CHAOS_MARKS": str(fleet.marks),
    }
    command = [sys.executable, __file__, "--supervise", fleet.url, fleet.agreed.model_dump_json()]
    supervisor = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        log = fleet.log
        until(lambda: log.contributions(1)[0], "a replica waits")
        pids = [int(until_text(fleet.marks / f"pid-{slot}")) for slot in (0, 1)]
    finally:
        supervisor.kill()
        supervisor.wait()
    died = time.monotonic()
    until(lambda: not any(_lives(pid) for pid in pids), "the orphans end")
    seconds = time.monotonic() - died
    said = [p.read_text() for p in fleet.marks.glob("end-*.json")]
    gone = re.compile(r"the supervisor of DiLoCo slot \d is gone")
    wrong = [] if all(map(gone.search, said)) else said
    # Another supervisor finds the run and sees it through.
    fleet.start_all()
    fleet.join()
    return Found(wrong, seconds)


def _lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def supervise(url: str, agreed: str) -> None:
    """Be a supervisor of real children."""
    from composer_pipeline.diloco.places.local import ReplicaCommand
    from composer_pipeline.diloco.supervisor import Supervisor

    there = DiLoCoSpec.from_json(agreed, "spec")
    command = ReplicaCommand([sys.executable, str(HERE / "diloco_worker.py")])
    Supervisor(
        url=url, run_id="run", spec=there, commands=[command] * there.replicas,
        run_dir=Path(os.environ["CHAOS_MARKS"]) / "children",
    ).run()  # fmt: skip


Scenario = Callable[[Fleet], Found]
SLOW: dict[str, dict[str, Any]] = {
    "slow upload": {},
    "slow upload, late_decay": {"late_decay": 0.5},
    "slow upload, equal-time": {"pace": "equal-time", "weights": "tokens"},
}


@dataclass(frozen=True)
class Case:
    """One run: its fault, where, and how many replicas; ``bar`` is in seconds."""

    name: str
    place: str
    replicas: int
    play: Scenario
    bar: float | None = None
    changes: dict[str, Any] = field(default_factory=dict)


def cases(places: Sequence[str], replicas: Sequence[int], *, short: bool) -> Iterator[Case]:
    """Yield the matrix; the short form has every fault once, and no process twice."""
    bar = HEARTBEAT_S + TAKEOVER_S
    for index, (place, many, point) in enumerate(product(places, replicas, POINTS)):
        if short and index % (len(POINTS) - 1):
            continue
        play: Scenario = lambda fleet, point=point: killed_at(fleet, point)  # type: ignore[misc]  # noqa: E731
        yield Case(f"killed: {point}", place, many, play, bar)
    for place in places[:1] if short else places:
        for point in ("before_state", "after_state"):
            do: Scenario = lambda fleet, point=point: killed_at(fleet, point)  # type: ignore[misc]  # noqa: E731
            # A whole state a round, so the dead one had begun to remove the one before the last.
            yield Case(f"collecting, killed: {point}", place, 3, do, bar, {"kept_rounds": 2})
        for point in ("inner", "after_contribution", "after_state"):
            if not short or point == "inner":
                do = lambda fleet, point=point: killed_at(fleet, point)  # type: ignore[misc]  # noqa: E731
                yield Case(f"fragments, killed: {point}", place, 3, do, bar, {"fragments": 2})
        for how in ("truncated", "corrupt", "nan", "huge"):
            do = lambda fleet, how=how: spoiled(fleet, how)  # type: ignore[misc]  # noqa: E731
            # It was rejected, and others live: two of three are a quorum.
            yield Case(f"delta: {how}", place, 3, do, None, {"min_quorum": 2})
        yield Case("clocks an hour wrong", place, 2, skewed)
        yield Case("SIGSTOP", place, 2, stopped, bar)
        yield Case("ten times slower", place, 2, straggler, None, {"grace_s": 1.0, "rounds": 8})
        yield Case("joins late", place, 3, late, None, {"join_timeout_s": 1.0, "rounds": 40})
        yield Case("no fault", place, 3, lambda fleet: listed(fleet))
        yield Case("not finite twice", place, 3, not_finite, None, {"min_quorum": 2})
        yield Case("listings 0.4 s stale", place, 2, lambda f: listed(f, stale_s=0.4))
        of_rounds: Scenario = lambda f: listed(f, stale_s=1.0, below="/rounds")  # noqa: E731
        yield Case("listings of rounds 1 s stale", place, 2, of_rounds)
        yield Case("listings lack entries", place, 2, lambda f: listed(f, drop=0.2))
        yield Case("heartbeats removed", place, 2, forgotten)
        yield Case("a slot runs twice", place, 2, twice)
        for name, changes in SLOW.items():
            yield Case(name, place, 3, slow_upload, None, {"grace_s": 0.5, **changes})
        yield Case("other outer step", place, 2, other_code)
        yield Case("other software", place, 2, other_software, None, {"join_timeout_s": 1.0})
        yield Case("all killed", place, 3, all_killed)
        yield Case("supervisor killed", place, 2, orphans, ORPHANS_S)
    if "folder" in places and os.geteuid() == 0:
        yield Case("full disk", "full", 2, full_disk, None, {"store_patience_s": PATIENCE_S})
    if "s3" in places:
        yield Case("credentials refused", "s3", 2, refused, None, {"store_patience_s": PATIENCE_S})


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[str], str]]:
    """Give names on a disk of half a megabyte (a tmpfs: only root may mount one)."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield lambda name: str(folder / name)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def run(case: Case, named: Callable[[str], str], folder: Path, number: int) -> Found:
    """Play one case and audit its log."""
    marks = folder / f"marks-{number}"
    marks.mkdir()
    fleet = Fleet(named(f"{number}"), spec(case.replicas, **case.changes), marks)
    try:
        found = case.play(fleet)
        finished = case.replicas if found.finished is None else found.finished
        wrong = [*found.wrong, *audit(fleet.log, fleet.agreed, marks, finished, found.refused)]
    except TimeoutError as error:
        return Found([str(error)])
    finally:
        fleet.kill_all()
    return Found(wrong, found.seconds, found.note)


def overlapped(case: Case) -> Case:
    """Return a case whose replicas train on for two of three steps while changes travel."""
    changes = {**case.changes, "overlap_steps": 2}
    return replace(case, name=f"{case.name}, overlap", changes=changes)


def main() -> int:
    """Play all cases, print a line for each, and return 1 where something is wrong."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    options.add_argument("--replicas", nargs="+", type=int, default=[2, 3, 4])
    options.add_argument("--short", action="store_true", help="a part of the matrix")
    options.add_argument("--patient", action="store_true", help="no bars in seconds")
    options.add_argument("--only", default="", help="cases whose name has this")
    options.add_argument("--record", type=Path, help="write the table there")
    options.add_argument("--supervise", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.supervise:
        supervise(*given.supervise)
        return 0
    # Not above: every forked process imports this module, and that one imports the lake.
    import ingest_driver

    multiprocessing.get_context("forkserver").set_forkserver_preload(["diloco_worker"])
    rows: list[tuple[Case, Found, list[str]]] = []
    begun = time.monotonic()
    every = [*cases(given.places, given.replicas, short=given.short)]
    both = (*every, *map(overlapped, every))
    if given.short:  # one of the two forms in turn
        both = tuple(overlapped(c) if at % 2 else c for at, c in enumerate(every))
    chosen = [c for c in both if given.only in c.name]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for place in dict.fromkeys(case.place for case in chosen):
            here = folder / place
            at = small_disk(here) if place == "full" else ingest_driver.place(place, here)
            with at as named:
                for case in (case for case in chosen if case.place == place):
                    found = run(case, named, folder, len(rows))
                    slow = found.seconds is not None and found.seconds > (case.bar or 1e9)
                    wrong = found.wrong + ["too slow"] * (slow and not given.patient)
                    rows.append((case, found, wrong))
                    took = time.monotonic() - begun
                    print(f"{took:5.0f} s  {line(case, found, wrong)}", flush=True)
    bad = sum(bool(wrong) for _, _, wrong in rows)
    took = time.monotonic() - begun
    print(f"{len(rows)} runs, {bad} with something wrong, {took:.0f} s")
    if given.record:
        from diloco_table import record

        record(given.record, [(c.name, c.place, c.replicas, c.bar, f.seconds, w, f.note)
                              for c, f, w in rows], took)  # fmt: skip
    return int(bool(bad))


def line(case: Case, found: Found, wrong: Sequence[str]) -> str:
    """Return a case as a line for people."""
    took = "" if found.seconds is None else f" {found.seconds:.1f} s (bar {case.bar:g} s)"
    said = "; ".join(wrong) or "well"
    note = f" [{found.note}]" if found.note else ""
    return f"{case.name}, {case.place}, {case.replicas} replicas:{took} {said}{note}"


if __name__ == "__main__":
    sys.exit(main())
