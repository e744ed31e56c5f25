"""What a replay would cost, before it costs anything.

Belongs here: estimates. Does not belong here: bounds (``replay.wire.worst_case``) and
spending. Planning sends no session, needs no key and writes nothing.
"""

import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import httpx
import msgspec

from composer_pipeline.lake.store import Lake
from composer_pipeline.replay.ledger import existing_ledger, ledger_target
from composer_pipeline.replay.money import PICO, to_pico
from composer_pipeline.replay.questions import BYTES_PER_TOKEN, Questions
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.replay.wire import read_json

#: Completion tokens that a reply is expected to take.
EXPECTED_COMPLETION_TOKENS = 400

#: USD per token for (prompt, completion).
Prices = Mapping[str, tuple[Decimal, Decimal]]


class TeacherPlan(msgspec.Struct):
    """One teacher in a plan. ``prices``: ``catalogue``, or ``caps`` of the teacher file."""

    calls: int = 0
    cached: int = 0
    skipped: int = 0
    refused: int = 0
    expected_picodollars: int = 0
    worst_picodollars: int = 0
    prices: str = "caps"


class Plan(msgspec.Struct):
    """What would be asked. ``expected_usd`` is an estimate, ``worst_usd`` a bound.

    The estimate takes four bytes a token, 400 completion tokens a reply and no discount for
    cached prompts. The bound is what the ledger would reserve if nothing ever came back.
    """

    states: int
    calls: int
    cached: int
    expected_usd: Decimal
    worst_usd: Decimal
    by_teacher: dict[str, TeacherPlan]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; USD amounts are numbers for display."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        data["expected_usd"] = float(self.expected_usd)
        data["worst_usd"] = float(self.worst_usd)
        return data

    def to_json(self) -> str:
        """Return :meth:`to_dict` as one JSON object."""
        return msgspec.json.encode(self.to_dict()).decode()


def plan(
    lake: Lake,
    teacher_set: TeacherSet,
    *,
    days: Sequence[str] | None = None,
    teachers: Sequence[str] | None = None,
    max_states: int | None = None,
    only_on_active_path: bool = False,
    ledger: str | os.PathLike[str] | None = None,
    prices: Prices | None = None,
) -> Plan:
    """Count the calls that a replay would make, and their cost.

    Args:
        lake: has the states.
        teacher_set: who would be asked.
        days: as for ``replay``.
        teachers: as for ``replay``.
        max_states: as for ``replay``.
        only_on_active_path: as for ``replay``.
        ledger: path or URL of the ledger; in the lake when ``None``. It is not created.
        prices: prices of the models; asked from the endpoint when ``None``, and the
            teacher file's caps where it cannot be asked.

    Raises:
        InputError: as for ``replay``, except for the key and the ceiling.
    """
    questions = Questions(
        lake,
        teacher_set,
        days=days,
        teachers=teachers,
        max_states=max_states,
        only_on_active_path=only_on_active_path,
    )
    opened = existing_ledger(ledger_target(lake, ledger))
    known = catalogue_prices(teacher_set) if prices is None else prices
    by_teacher = {teacher.name: TeacherPlan() for teacher in questions.teachers}
    try:
        seen: set[str] = set()
        for state in questions.states:
            for teacher in questions.teachers:
                figures = by_teacher[teacher.name]
                question = questions.build(state, teacher)
                if question.key in seen or (opened and opened.has_reply(question.key)):
                    figures.cached += 1
                elif question.refuse:
                    figures.refused += 1
                elif question.skip:
                    figures.skipped += 1
                else:
                    cap = teacher.max_price
                    caps = (cap.prompt / 1_000_000, cap.completion / 1_000_000)
                    prompt, completion = known.get(teacher.model, caps)
                    figures.prices = "catalogue" if teacher.model in known else "caps"
                    figures.calls += 1
                    seen.add(question.key)
                    tokens = len(question.body) // BYTES_PER_TOKEN
                    expected = prompt * tokens + completion * min(
                        EXPECTED_COMPLETION_TOKENS, teacher.max_tokens
                    )
                    figures.expected_picodollars += min(to_pico(expected), question.amount)
                    figures.worst_picodollars += question.amount
    finally:
        if opened:
            opened.close()
    parts = by_teacher.values()
    return Plan(
        states=len(questions.states),
        calls=sum(part.calls for part in parts),
        cached=sum(part.cached for part in parts),
        expected_usd=sum(part.expected_picodollars for part in parts) / PICO,
        worst_usd=sum(part.worst_picodollars for part in parts) / PICO,
        by_teacher=by_teacher,
    )


def catalogue_prices(teacher_set: TeacherSet) -> dict[str, tuple[Decimal, Decimal]]:
    """Ask the endpoint for its models' prices; empty where it cannot be reached."""
    try:
        response = httpx.get(f"{teacher_set.endpoint.url()}/models", timeout=5)
    except httpx.HTTPError:
        return {}
    data = read_json(response.content) if response.status_code == 200 else None
    models = data.get("data") if isinstance(data, dict) else None
    prices = {}
    for model in models if isinstance(models, list) else []:
        pricing = model.get("pricing") if isinstance(model, dict) else None
        if isinstance(pricing, dict):
            try:
                prices[str(model.get("id"))] = (
                    Decimal(str(pricing["prompt"])),
                    Decimal(str(pricing["completion"])),
                )
            except (KeyError, ArithmeticError):
                continue
    return prices
