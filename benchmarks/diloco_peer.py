"""DiLoCo beside torchft's: the same two replicas, model, batches, H and outer step.

    python benchmarks/diloco_peer.py [--record]

not

Everything runs in a network namespace of its own (``unshare``), so that the bytes of its loopback
are those of the replicas, which are forked from a server that has loaded torch.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pages
import torch
from diloco_peer_replicas import (
    BATCH,
    COST_ROUNDS,
    COUNT,
    DEAD_S,
    OUTER,
    OVERLAPPED,
    REPLICAS,
    ROUNDS,
    STEP_S,
    H,
    Orders,
    cost_ours,
    cost_quantized,
    cost_theirs,
    lighthouse,
    ours,
    overlapped,
    theirs,
)

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "diloco_peer.md"
#: The step of the run before which a replica is killed: in the middle of the third round.
KILL_AT = 2 * H + H // 2


# -- arms ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What both replicas noted, and the exit codes of each replica's starts."""

    notes: tuple[list[dict[str, Any]], ...]
    codes: tuple[list[int], ...]

    def all(self, key: str, slot: int | None = None) -> list[Any]:
        """Return the notes of a kind."""
        chosen = self.notes if slot is None else (self.notes[slot],)
        return [note[key] for notes in chosen for note in notes if key in note]

    @property
    def merged(self) -> int:
        """Inner steps in the first replica's model, by the tool's own account."""
        return H * sum(self._parts().values())

    @property
    def with_both(self) -> int:
        """Rounds of the first replica's model that both contributed to."""
        return sum(parts == REPLICAS for parts in self._parts().values())

    def _parts(self) -> dict[int, int]:
        """Return how many replicas each round of the first replica merged; the last start's."""
        return {n["round"]: n["parts"] for n in self.notes[0] if "round" in n}


def play(tool: Callable[[Orders], None], killed: tuple[int, ...] = (), again: str = "") -> Run:
    """Run two replicas to their end."""
    context = multiprocessing.get_context("forkserver")
    light = lighthouse() if tool in (theirs, cost_theirs, cost_quantized) else None
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as notes:
        port = light.address().rpartition(":")[2] if light else ""
        where = f"http://127.0.0.1:{port}" if light else folder

        def start(slot: int, kill_at: int = -1, gate: bool = True) -> Any:
            orders = Orders(where, slot, notes, kill_at, gate)
            process = context.Process(target=tool, args=(orders,))
            process.start()
            return process

        first = [start(s, KILL_AT if s in killed else -1) for s in range(REPLICAS)]
        for slot in killed:
            first[slot].join()
        if again == "after the other":
            first[0].join()
        second = {slot: start(slot, gate=False) for slot in killed if again}
        for process in [*first, *second.values()]:
            process.join(300)
            process.kill()
            process.join()
        if light:
            light.shutdown()
        files = [Path(notes, f"{slot}.jsonl") for slot in range(REPLICAS)]
        lines = [f.read_text(encoding="utf-8").splitlines() for f in files]
        codes = [
            [p.exitcode for p in (first[s], second.get(s)) if p is not None]
            for s in range(REPLICAS)
        ]
        return Run(tuple([json.loads(li) for li in own] for own in lines), tuple(codes))


def cost_row(name: str, tool: Callable[[Orders], None]) -> str:
    """Return what a sync costs; the first, which makes connections, is left out."""
    run = play(tool)
    later = [n for notes in run.notes for n in [n for n in notes if "cpu" in n][1:]]
    own = statistics.median(n["bytes"] for n in later)
    # The counter is of both replicas, which send at the same time.
    sent = own or statistics.median(n["wire"] for n in later) / REPLICAS
    cpu, still = (statistics.median(n[key] for n in later) for key in ("cpu", "still"))
    peak = max(n["peak"] for n in later) / (4 * COUNT)
    return f"| {name} | {cpu:.2f} | {peak:.2f} | {sent / COUNT:.3f} | {still:.2f} |"


def overlapped_row() -> str:
    """Return what a sync costs while training goes on."""
    run = play(overlapped)
    cpu, still = (statistics.fmean(run.all(key)) for key in ("cpu", "still"))
    return f"| composer-pipeline, overlapped | {cpu:.2f} | | | {still:.2f} |"


def fault_row(case: str, name: str, run: Run, note: str = "") -> str:
    """Return how a run went."""
    ends, losses = run.all("end"), run.all("loss")
    equal = "yes" if len(ends) == REPLICAS and len(set(ends)) == 1 else "**no**"
    trained = len(run.all("at"))
    codes = ", ".join("/".join(map(str, codes)) for codes in run.codes)
    loss = " and ".join(sorted({f"{loss:.4f}" for loss in losses}))
    return (
        f"| {case} | {name} | {run.with_both} of {ROUNDS} | {run.merged} of {trained} |"
        f" {BATCH * (trained - run.merged):,} | {equal} | {loss} | {codes} | {note} |"
    )


def faults() -> list[str]:
    """Return the rows of all cases."""
    rows = []
    alone = play(theirs, (1,))
    for case, killed, again in (
        ("no fault", (), ""),
        ("one killed, started again at once", (1,), "at once"),
        ("both killed, started again", (0, 1), "at once"),
        ("one killed, started again after the other's end", (1,), "after the other"),
    ):
        for name, tool in (("composer-pipeline", ours), ("torchft 0.2.0", theirs)):
            run = play(tool, killed, again)
            note = ""
            if tool is theirs and again == "at once" and killed == (1,):
                note = twice(run, alone)
            rows.append(fault_row(case, name, run, note))
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def twice(run: Run, alone: Run) -> str:
    """Say whether the restarted replica's first contribution was the other's once more."""
    state = {n["round"]: n["sha"] for n in alone.notes[0] if "round" in n}
    back = [n["round"] for n in run.notes[1] if "round" in n and n["round"] > KILL_AT // H]
    after = {n["round"]: n["sha"] for n in run.notes[0] if "round" in n}
    if not back:
        return "never back"
    same = after.get(back[0]) == state.get(back[0])
    said = "the same bits as without the replica" if same else "other bits than without it"
    return f"back in round {back[0]}, whose result has {said}"


def page(costs: list[str], cases: list[str]) -> str:
    """Return the recorded page."""
    setting = (
        f"`make bench-diloco-peer`: two processes on one machine, torch {torch.__version__}, outer"
        f" step {OUTER[0]}/{OUTER[1]} (Nesterov). torchft: lighthouse, `Manager`,"
        " `ProcessGroupGloo` over 127.0.0.1, one fragment, `init_sync=False`,"
        " `min_replica_size=1`. composer-pipeline: a log in a folder. No GPU and no network between"
        " machines were at hand."
    )
    steps, step_s, overlap = OVERLAPPED
    sync = (
        f"A sync of {COUNT / 1e6:.1f} million parameters, fp32, median of the second to the"
        f" {COST_ROUNDS}th of each replica; ours writes the delta to disk and reads the other's,"
        " torchft sends it to the other's memory. *Still* is how long training waits for it."
        f" Overlapped: means of rounds of {steps} steps of {step_s:g} s through the Trainer's"
        f" callback, with `overlap_steps: {overlap}`; the CPU seconds include the steps'."
    )
    runs = (
        f"{ROUNDS} rounds of H = {H} on the model of `diloco.md`; a kill is SIGKILL in the middle"
        f" of round 3, a replica counts as dead after {DEAD_S} s; a step takes {STEP_S:g} s and"
        " what it computes. *Steps*: inner steps in the first replica's model, by the tool's own"
        f" account, of those that all starts trained. *Tokens lost*: the others', {BATCH} a step."
        " Equal, loss: of both replicas. Exit codes: of each start, -9 is the kill."
    )
    return "\n".join(
        [
            "# DiLoCo beside torchft",
            "",
            textwrap.fill(setting, 100),
            "",
            textwrap.fill(sync, 100),
            "",
            "| tool | CPU seconds of a replica | peak above resident, fp32 sizes |"
            " bytes a parameter sent | still, s |",
            "|---|---:|---:|---:|---:|",
            *costs,
            "",
            textwrap.fill(runs, 100),
            "",
            "| case | tool | rounds with both | steps | tokens lost | equal at the end |"
            " held-out loss | exit codes | |",
            "|---|---|---:|---:|---:|---|---|---|---|",
            *cases,
            "",
        ]
    )


def inside() -> int:
    """Start this script again in a network namespace of its own."""
    command = [sys.executable, __file__, "--inside", *sys.argv[1:]]
    script = 'ip link set lo up && hostname localhost && exec "$@"'
    unshare = ["unshare", "--map-root-user", "--net", "--uts", "sh", "-c", script, "sh"]
    # The server that replicas are forked from looks there alone.
    environment = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent}"}
    return subprocess.run([*unshare, *command], check=False, env=environment).returncode


def main() -> int:
    """Measure, print and perhaps record."""
    parser = pages.options(__doc__, RESULTS)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside:
        return inside()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["diloco_peer_replicas"])
    costs = [
        cost_row("composer-pipeline", cost_ours),
        overlapped_row(),
        cost_row("torchft 0.2.0", cost_theirs),
        cost_row("torchft 0.2.0, `should_quantize=True`", cost_quantized),
    ]
    print(*costs, sep="\n", file=sys.stderr, flush=True)
    text = page(costs, faults())
    pages.show(text, RESULTS, given)
    return 0


if __name__ == "__main__":
    sys.exit(main())
