"""What a replay would cost, before it costs anything.

Belongs here: estimates of the questions that are still open, and what other ways of asking
them would cost. Does not belong here: the model of prompt caches and votes
(``replay.plan.prompt_cache``), bounds (``replay.provider.bounds.worst_case``) and spending.
Planning sends no session, needs no key and writes nothing.
"""

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from composer_pipeline.lake import Lake
from composer_pipeline.money import PICO
from composer_pipeline.replay.catalogue import Catalogue, fetch
from composer_pipeline.replay.ledger import existing_ledger, ledger_target
from composer_pipeline.replay.plan.history import Agreement, measure_agreement, measure_replies
from composer_pipeline.replay.plan.strategies import Strategy, TeacherPlan, Work, pricing_of
from composer_pipeline.replay.questions import Questions
from composer_pipeline.replay.selection import (
    CurtailedSelector,
    DaysFirst,
    Decide,
    Price,
    ask_order,
)
from composer_pipeline.replay.teachers import TeacherSet
from composer_pipeline.reports import Progress, Report

__all__ = ["Plan", "Strategy", "TeacherPlan", "plan", "selector_for"]


class Plan(msgspec.Struct, Report):
    """What would be asked. ``expected_usd`` is an estimate, ``worst_usd`` a bound.

    ``strategies`` compares ways of asking the same open questions: ``naive`` (every prompt in
    full), ``chain`` (sessions in order, so that beginnings are read from the
    prompt cache), ``chain_exact`` and ``chain_student`` (and curtailed voting), and
    ``selected``, which is what the teacher file asks for and ``expected_usd`` says. The
    bound is what the ledger would reserve if nothing ever came back.
    """

    states: int
    calls: int
    cached: int
    expected_usd: Decimal
    worst_usd: Decimal
    by_teacher: dict[str, TeacherPlan]
    strategies: dict[str, Strategy] = msgspec.field(default_factory=dict)
    agreement: Agreement = Agreement()
    selection: dict[str, Any] = msgspec.field(default_factory=dict)
    catalogue: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; USD amounts are numbers for display."""
        data = super().to_dict()
        data["expected_usd"] = float(self.expected_usd)
        data["worst_usd"] = float(self.worst_usd)
        return data


def plan(
    lake: Lake,
    teacher_set: TeacherSet,
    *,
    days: Sequence[str] | None = None,
    sessions: Collection[str] | None = None,
    teachers: Sequence[str] | None = None,
    max_states: int | None = None,
    only_on_active_path: bool = False,
    ledger: str | os.PathLike[str] | None = None,
    prices: Mapping[str, Price] | None = None,
    catalogue: Catalogue | None = None,
    decide: Decide | None = None,
    agreement: tuple[float, float] | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Count the calls that a replay would make, and their cost.

    Args:
        lake: has the states, and the replies that calibrate the estimate.
        teacher_set: who would be asked.
        days: as for ``replay``.
        sessions: as for ``replay``.
        teachers: as for ``replay``.
        max_states: as for ``replay``.
        only_on_active_path: as for ``replay``.
        ledger: path or URL of the ledger; in the lake when ``None``. It is not created.
        prices: model -> USD per token of (prompt, completion), instead of a catalogue.
        catalogue: asked from the endpoint when both are ``None``, and the teacher file's
            caps where it cannot be asked.
        decide: the vote, to measure agreement on the lake's replies; the assumed agreement
            where ``None``.
        agreement: (p, q) to assume instead of measuring; see ``replay.plan.prompt_cache``.
        progress: called as ("plan", states done, all states) after each session.

    Raises:
        InputError: as for ``replay``, except for the key and the ceiling.
    """
    questions = Questions(
        lake,
        teacher_set,
        days=days,
        sessions=sessions,
        teachers=teachers,
        max_states=max_states,
        only_on_active_path=only_on_active_path,
    )
    if catalogue is None and prices is None:
        catalogue = fetch(teacher_set, questions.teachers)
    at_the_router = teacher_set.at_the_router(questions.teachers)
    verdicts = catalogue.verdicts(at_the_router) if catalogue else {}
    pricings = {
        teacher.name: pricing_of(
            teacher, verdicts.get(teacher.name), prices, teacher_set.endpoint_of(teacher).api
        )
        for teacher in questions.teachers
    }
    opened = existing_ledger(ledger_target(lake, ledger))
    measured = measure_replies(lake, questions.days)
    with opened or contextlib.nullcontext():
        work = Work(questions, measured, opened, pricings, verdicts)
        work.count(progress)
    order = ask_order(
        questions.teachers,
        {name: (p.base.of("prompt"), p.base.of("completion")) for name, (p, _) in pricings.items()},
    )
    asked = [t for name in order for t in questions.teachers if t.name == name]
    asked = [t for t in asked if not work.by_teacher[t.name].stop]
    if agreement is not None:
        found = Agreement(agreement[0], agreement[1], "given")
    elif decide is not None:
        found = measure_agreement(
            lake, questions.states, asked, decide, teacher_set.selection.curtail
        )
    else:
        found = Agreement()
    strategies = work.cost(asked, found, decide)
    parts = work.by_teacher.values()
    return Plan(
        states=len(questions.states),
        calls=sum(part.calls for part in parts),
        cached=sum(part.cached for part in parts),
        expected_usd=sum(part.expected_picodollars for part in parts) / PICO,
        worst_usd=sum(part.worst_picodollars for part in parts) / PICO,
        by_teacher=work.by_teacher,
        strategies=strategies,
        agreement=found,
        selection=work.selected,
        catalogue=catalogue.sha256[:16] if catalogue else "",
    )


def selector_for(
    teacher_set: TeacherSet,
    decide: Decide,
    *,
    teachers: Sequence[str] | None = None,
    days_first: DaysFirst = "",
) -> CurtailedSelector | None:
    """Return the selector that a teacher file asks for; ``None`` where it asks for everything.

    It orders teachers as the plan does, by the catalogue's prices.

    Args:
        teacher_set: the teacher file.
        decide: the vote.
        teachers: names of teachers; all when ``None``.
        days_first: which day is asked to its end first; as for ``replay``.

    Raises:
        InputError: an unknown teacher.
    """
    if not teacher_set.selection.active:
        return None
    asked = teacher_set.select(None if teachers is None else list(teachers))
    catalogue = fetch(teacher_set, asked)
    verdicts = catalogue.verdicts(teacher_set.at_the_router(asked)) if catalogue else {}
    pricings = {
        t.name: pricing_of(t, verdicts.get(t.name), None, teacher_set.endpoint_of(t).api)[0].base
        for t in asked
    }
    return CurtailedSelector(
        teacher_set.selection,
        decide,
        prices={name: (p.of("prompt"), p.of("completion")) for name, p in pricings.items()},
        days_first=days_first,
    )
