"""What must hold of a DiLoCo run after any fault; each breach is a sentence."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch

from composer_pipeline.diloco.codecs import decode_delta, decode_state, state_sha
from composer_pipeline.diloco.fragments import fragment_of
from composer_pipeline.diloco.log import Commit, OuterLog
from composer_pipeline.diloco.outer_optimizer import OuterState
from composer_pipeline.diloco.spec import DiLoCoSpec


def audit(
    log: OuterLog, spec: DiLoCoSpec, marks: Path, finished: int, refused: Sequence[str] = ()
) -> list[str]:
    """Return what is wrong.

    Args:
        log: of the run.
        spec: what it agreed on.
        marks: how each process ended, as ``diloco_worker`` leaves it.
        finished: how many slots must have come to the end.
        refused: what each of the others must have said, in part.
    """
    commits = log.commits()
    wrong = []
    if [commit.round for commit in commits] != list(range(spec.rounds + 1)):
        return [f"commits of rounds {[commit.round for commit in commits]}, not 0..{spec.rounds}"]
    keys = [e.key for e in log.store.list("rounds") if e.key.endswith("commit.json")]
    if len(keys) != len(set(keys)) or len(keys) != spec.rounds + 1:
        wrong.append(f"{len(keys)} commit objects for {spec.rounds} rounds")
    for before, commit in pairwise(commits):
        wrong += _round(log, before, commit)
    wrong += _arithmetic(log, spec, commits)
    ends = [json.loads(path.read_text()) for path in sorted(marks.glob("end-*.json"))]
    shas = {end["sha"] for end in ends if "sha" in end}
    errors = [end["error"] for end in ends if "error" in end]
    if sum("sha" in end for end in ends) < finished:
        wrong.append(f"{len(ends)} ends, {finished} slots should have come to the end; {errors}")
    wrong += [f"nobody said: {text}" for text in refused if not any(text in e for e in errors)]
    wrong += [e for e in errors if not any(text in e for text in refused)] if refused else []
    if shas - {commits[-1].state_sha}:
        wrong.append(f"replicas end with {len(shas)} states")
    return wrong


def _round(log: OuterLog, before: Commit, commit: Commit) -> list[str]:
    """Return what is wrong with one commit by itself."""
    wrong = []
    if commit.base_sha != before.state_sha:
        wrong.append(f"round {commit.round} is not on round {before.round}")
    if commit.empty and not commit.reasons:
        wrong.append(f"round {commit.round} is empty and gives no reason")
    made = {e.key: e.last_modified for e in log.store.list(f"rounds/{commit.round}")}
    at = made[f"rounds/{commit.round}/commit.json"]
    for slot in log.contributions(commit.round)[0]:
        offered = made[f"rounds/{commit.round}/contrib/{slot}.json"]
        # Within two seconds before the commit it may have come too late to be seen.
        if slot not in {*commit.slots, *commit.why} and (at - offered).total_seconds() > 2:
            wrong.append(f"round {commit.round} says nothing of replica {slot}'s contribution")
    return wrong


def _arithmetic(log: OuterLog, spec: DiLoCoSpec, commits: Sequence[Commit]) -> list[str]:
    """Compute every state again from the deltas, with tensors alone, and compare its hash.

    From the oldest whole state that garbage collection has left.
    """
    there = {entry.key for entry in log.store.list("state")}
    first = next(commit for commit in commits if commit.state_key in there)
    state = decode_state(log.read(first.state_key, first.state_sha, first.state_size))
    lr, mu = spec.outer_step
    for commit in commits[first.round + 1 :]:
        parts = fragment_of(state.theta, spec.fragments, commit.fragment)
        deltas = [
            decode_delta(log.read(part.key, part.sha256, part.size), parts)
            for part in commit.included
        ]
        theta: dict[str, torch.Tensor] = dict(state.theta)
        momentum = dict(state.momentum)
        for name in parts if deltas else ():
            mean = sum(
                (d[name] * part.weight for d, part in zip(deltas, commit.included, strict=True)),
                torch.zeros(()),
            )
            momentum[name] = mu * momentum[name] + mean
            theta[name] = theta[name] - lr * (mean + mu * momentum[name])
        state = OuterState(theta, momentum)
        if state_sha(state) != commit.state_sha:
            return [f"round {commit.round} is not the sum of its deltas"]
    return []
