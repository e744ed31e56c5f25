"""A run's events as lines for people.

Belongs here: one sentence an event. Does not belong here: what happens and who hears of it
(``trainers.trl.__main__``).
"""

import signal
from collections.abc import Callable
from typing import Any

Event = dict[str, Any]
#: What a step's line says, and how it calls it: each number depends on the model.
STEP_NUMBERS = {
    "grpo_best_gain": "grpo best",
    "grpo_worst_gain": "worst",
    "sdpo_loss": "sdpo",
    "dpo_loss": "dpo",
    "sft_loss": "sft",
    "grad_norm": "gradient",
}


def sentence(event: Event) -> str:
    """Return an event of ``python -m trainers.trl`` as one line."""
    return _SAID[event["event"]](event)


def _step(event: Event) -> str:
    numbers = {name: event.get(key) for key, name in STEP_NUMBERS.items()}
    said = ", ".join(f"{n} {value:+.4f}" for n, value in numbers.items() if value is not None)
    if odd := event.get("non_finite"):
        said += f" not finite: {', '.join(odd)}"
    return f"replica {event['slot']} step {event['step']}/{event['of']}: {said}"


def _bad_step(event: Event) -> str:
    return f"replica {event['slot']} step {event['step']}: dropped, {event['reason']}"


def _out_of_memory(event: Event) -> str:
    size = event["micro_batch_tokens"]
    return f"replica {event['slot']}: out of memory, goes on with micro_batch_tokens {size}"


def _separate_forwards(event: Event) -> str:
    return f"replica {event['slot']}: rows share no forward: {event['reason']}"


def _round(event: Event) -> str:
    number = f"round {event['round']}/{event['of']}"
    if not event["merged"]:
        why = "; ".join(f"replica {slot}: {why}" for slot, why in event["rejected"].items())
        return f"{number} merged nothing ({why})"
    away = sorted({*range(event["replicas"])} - {*event["included"]})
    said = [f"{number} committed by replicas {', '.join(map(str, event['included']))}"]
    said += [f"{event['tokens']:,} tokens, {event['bytes']:,} bytes"]
    for slot in away:
        reason = event["rejected"].get(str(slot))
        said.append(f"replica {slot}: {reason}" if reason else f"replica {slot} is missing")
    return "; ".join(said)


def _replica_ended(event: Event) -> str:
    code, went = event["code"], f"replica {event['slot']}"
    if code < 0:  # it had no time to say why
        went += f" was killed ({signal.Signals(-code).name})"
    else:
        went += f" ended with {code} ({event['sentence']})"
    restart = event["restart"]
    return f"{went}; restart {restart}" if restart else f"{went} and is not started again"


def _base(event: Event) -> str:
    return f"base model: {event['done']} of {event['of']} rows of {event['channel']} scored"


def _hints(event: Event) -> str:
    share, seen = event["hints_kept_share"], event["hints_seen"]
    return f"hints: {share:.0%} of {seen:g} help the base model more than they help its mistake"


def _held_out(event: Event) -> str:
    return f"round {event['round']}: loss on held-out rows {event['loss']:.4f}"


def _resumed(event: Event) -> str:
    return f"replica {event['slot']} goes on in round {event['round']} after {event['inner']} steps"


def _inner_dropped(event: Event) -> str:
    return (
        f"replica {event['slot']} begins at the last commit with new moments; what it had kept does"
        f" not fit: {event['reason']}"
    )


def _data(event: Event) -> str:
    dropped = sum(event["dropped"].values())
    return (
        f"{event.get('grpo', 0)} groups, {event.get('sdpo', 0)} hints and"
        f" {event.get('dpo', 0)} pairs fit their windows, {dropped} rows dropped"
    )


_SAID: dict[str, Callable[[Event], str]] = {
    "step": _step,
    "bad_step": _bad_step,
    "out_of_memory": _out_of_memory,
    "separate_forwards": _separate_forwards,
    "round": _round,
    "replica_ended": _replica_ended,
    "base": _base,
    "hints": _hints,
    "held_out": _held_out,
    "resumed": _resumed,
    "inner_dropped": _inner_dropped,
    "data": _data,
    "joinable": lambda event: (
        "others join with: python -m trainers.trl.replica"
        f" --log {event['log']} --run-id {event['run_id']}"
    ),
    "warning": lambda event: f"warning: {event['text']}",
    "done": lambda event: f"done: {event['run_dir']}",
}
