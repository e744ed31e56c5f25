"""What the real-session tier can see, what it found, and what may be said of it.

The primary contrast is named here, before any run; every other difference stands with Holm among
the others. Intervals are over groups of sessions and over seeds (:mod:`examples.proof.statistics`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
import numpy as np

from composer_pipeline.evaluation.results import BASE, SHARES, StateResult, measures_of
from composer_pipeline.evaluation.states import Kind
from composer_pipeline.markdown import table
from examples.proof.statistics import LEVEL, MIN_UNITS, Results, contrast, equal_units, holm
from examples.proof.train import rows_said

#: Kinds of states: cases, and questions that have nothing to do with them.
CASE: Kind = "hard_uncovered"
QUESTION: Kind = "easy"
#: SFT on what failed: what an arm gains over it is not the format of calls alone.
PLACEBO, SHIPPED = "sft-failed", "shipped"
WORDS = {
    BASE: "base",
    PLACEBO: "SFT on the failed action (placebo)",
    "sft": "SFT on the right action",
    "dpo": "DPO, right over failed action",
    "sdpo": "SDPO, the error as hint",
    SHIPPED: "shipped (SDPO + SFT)",
}


class Contrast(NamedTuple):
    """A difference of two arms in a measure at a kind of states."""

    one: str
    other: str
    measure: str = "right_nll"
    kind: str = CASE


#: The one question of this tier.
PRIMARY = Contrast(SHIPPED, "sft")
SECONDARY = (
    Contrast(SHIPPED, "sft", "canonical"),
    Contrast(SHIPPED, "sft", "margin"),
    *(Contrast(arm, PLACEBO) for arm in ("sft", "dpo", "sdpo", SHIPPED)),
    *(Contrast(arm, BASE) for arm in WORDS if arm != BASE),
    *(Contrast(arm, BASE, kind=QUESTION) for arm in WORDS if arm != BASE),
)
_MEANS = ("right_nll", "margin", "preference_per_token", "canonical", "kl")
#: Assumed before a run: the SD of a session's difference in nats a token (of two arms of an earlier
#: run on 13 sessions), how alike cases of one group are, and the power wanted.
SPREAD, ALIKE, POWER = 0.015, 0.2, 0.8
_DISCORDANT = (0.10, 0.15)


def power(cases: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return what (session, group) of each case lets a run see, by the assumptions above."""
    from scipy.stats import norm, t

    def likelihood(units: float) -> float:
        degrees = max(units - 1, 1.0)
        return float((t.ppf(0.975, degrees) + t.ppf(POWER, degrees)) * SPREAD / sqrt(units))

    size = len(cases)
    sessions = Counter(session for session, _ in cases)
    groups = Counter(group for _, group in cases)
    effect = 1 + (sum(n * n for n in groups.values()) / size - 1) * ALIKE
    seen = {}
    for share in _DISCORDANT:
        least = float(norm.ppf(0.975) + norm.ppf(POWER)) * sqrt(share * effect / size)
        seen[f"{share:.0%}"] = least if least <= share else None
    equal = {
        unit: equal_units(np.array(list(sizes.values()), dtype=np.float64))
        for unit, sizes in (("sessions", sessions), ("groups", groups))
    }
    return {
        "cases": size, "sessions": len(sessions), "groups": len(groups),
        "largest_group": max(groups.values()) / size, "design_effect": effect,
        "equal_units": equal, "likelihood": {k: likelihood(n) for k, n in equal.items()},
        "success": seen,
    }  # fmt: skip


def power_said(found: Mapping[str, Any]) -> str:
    """Return the power as a table and the assumptions behind it."""
    rows = [
        (f"likelihood, by {unit}", f"SD {SPREAD} nats a token of a unit's difference",
         f"{found['equal_units'][unit]:.1f} of equal size", f"{least:.3f} nats a token")
        for unit, least in found["likelihood"].items()
    ] + [
        ("greedy success", f"{share} discordant, {ALIKE} alike in a group",
         f"{found['cases'] / found['design_effect']:.1f} independent cases",
         "none" if least is None else f"{100 * least:.0f} points")
        for share, least in found["success"].items()
    ]  # fmt: skip
    return (
        f"{found['cases']} cases of {found['sessions']} sessions in {found['groups']} groups; the"
        f" largest group holds {found['largest_group']:.0%} of the cases.\n\n"
        + table(("what", "assumed", "worth", f"least difference seen ({POWER:.0%} power)"), rows)
    )


def summarise(
    results: Mapping[str, Results], groups: Mapping[str, str], facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the figures of a run: ``facts`` with means and contrasts; nothing of a session.

    ``results`` is arm to seed to results, ``groups`` state id of a case to its group.
    """
    seeds = range(max(map(len, results.values())))
    arms = {**results, BASE: dict.fromkeys(seeds, results[BASE][0])}
    measures = [name for name in _MEANS if name != "canonical" or facts["plan"]["greedy"]]
    wanted = [
        c
        for c in (PRIMARY, *SECONDARY)
        if c.one in arms and c.other in arms and c.measure in measures
    ]
    found: list[dict[str, Any]] = []
    for c in wanted:
        estimate = contrast(
            arms[c.one], arms[c.other], measure=c.measure,
            states=lambda r, kind=c.kind: r.kind == kind,  # type: ignore[misc]
            unit=lambda r: groups.get(r.state_id, r.state_id),
        )  # fmt: skip
        if estimate is not None:
            found.append({**c._asdict(), **msgspec.to_builtins(estimate)})
    rest = [row for row in found if not _is(row, PRIMARY)]
    stand = holm({str(i): row["p"] for i, row in enumerate(rest) if row["p"] is not None})
    for row in found:
        row["stands"] = row["p"] is not None and row["p"] < LEVEL
    for i, row in enumerate(rest):
        row["stands"] = str(i) in stand
    means = {
        kind: {arm: _means([r for some in by.values() for r in some if r.kind == kind], measures)
               for arm, by in results.items()}
        for kind in (CASE, QUESTION)
    }  # fmt: skip
    return {**facts, "means": means, "contrasts": found}


def page(found: Mapping[str, Any]) -> str:
    """Return the report as Markdown."""
    plan, lost = found["plan"], ", ".join(f"{n} {why}" for why, n in sorted(found["lost"].items()))
    origins = ", ".join(f"{n} {origin}" for origin, n in sorted(found["origins"].items()))
    rest = [c for c in found["contrasts"] if not _is(c, PRIMARY)]
    parts = [
        "# Proof on real sessions",
        f"{found['found']} states at which the session shows the right action; {lost or 'none'}"
        f" left out. The rest are cases ({origins}), in {plan['folds']} folds by group of sessions,"
        f" each held out once. Window {plan['prompt']:,} tokens of prompt and {plan['answer']:,} of"
        f" answer; {plan['steps']} steps of {plan['rows']} rows a channel; {plan['dtype']};"
        f" {plan['seeds']} seeds of the primary contrast's arms, one of the others.",
        "## What a run of this size can see",
        f"By assumptions made before it.\n\n{power_said(found['power'])}",
        "## Primary contrast",
        f"{verdict(found)}{_seen(found)}",
        "## The other contrasts",
        "A negative difference in `right_nll` is the first arm's gain. Bold: stands with Holm among"
        " these. One seed: about that one model.",
        table(
            ("difference", "at", "measure", "mean (95 %)", "p", "units", "seeds"), map(_row, rest)
        ),
        *(
            part
            for kind, about in ((CASE, "Cases"), (QUESTION, "Questions of reasoning-gym"))
            if any(found["means"][kind].values())
            for part in (f"## Means: {about}", _means_table(found["means"][kind]))
        ),
        "## What was trained on",
        _trained(found["trained"]),
        "`right_nll`: -log p(right), nats a token. `margin`: log p(right) - log p(failed), nats an"
        " action; `preference_per_token`: that is above 0, each side divided by its tokens."
        " `canonical`: the greedy answer has the right action's effect. `kl`: KL(model || base)"
        " over the right action, nats a token.",
    ]
    return "\n\n".join(parts) + "\n"


def verdict(found: Mapping[str, Any]) -> str:
    """Return what the primary contrast shows, or what it is a null of."""
    c = _get(found, PRIMARY)
    if c is None:
        return f"Not run: it needs the arms {PRIMARY.one} and {PRIMARY.other}."
    what = f"{WORDS[c['one']]} against {WORDS[c['other']]}, -log p(right action): {_span(c)} nats a"
    what += f" token, over {c['units']} groups of sessions and {c['seeds']} seeds. "
    if c["p"] is None:
        return f"{what}No interval, and so no claim: fewer than {MIN_UNITS} groups."
    if c["stands"]:
        side = "more" if c["mean"] < 0 else "less"
        return f"{what}It shows that the shipped loss makes the right action {side} likely."
    moved = found["means"][CASE][SHIPPED]["kl"]
    return (
        f"{what}A null of SDPO's share beside SFT on the same right actions: a gain of more than"
        f" {max(0.0, -c['low']):.3f} and a loss of more than {max(0.0, c['high']):.3f} are"
        " excluded, smaller ones are not. It is about this model and window and a short training"
        f" (KL to the base {moved:.3f} nats a token)."
    )


def _seen(found: Mapping[str, Any]) -> str:
    c = _get(found, PRIMARY)
    if c is None or c["p"] is None:
        return ""
    least = (c["high"] - c["low"]) / 2 * (1 + 0.84 / 1.96)
    return (
        f" By this interval, and not by an assumed SD, such a run sees {least:.3f} nats a token"
        f" with {POWER:.0%} power."
    )


def section(found: Mapping[str, Any]) -> str:
    """Return the passage of ``docs/proof.md``, its claims chosen by the figures."""
    plan, power_ = found["plan"], found["power"]
    seen = [share for share, least in power_["success"].items() if least is not None]
    success = "" if seen else "; no difference in greedy success"
    said = [
        f"**Real sessions.** {power_['cases']} cases of {power_['sessions']} sessions in"
        f" {power_['groups']} groups, {plan['model'].rpartition('/')[2]}, {plan['prompt']:,}"
        f" tokens of prompt, {plan['steps']} steps of {plan['rows']} rows. By its power table such"
        f" a run sees {power_['likelihood']['groups']:.3f} nats a token{success}.",
        verdict(found),
    ]
    if c := _get(found, Contrast("sft", PLACEBO)):
        told = "is told apart" if c["stands"] else "is not told apart"
        said.append(f"SFT on the right action {told} from SFT on the failed one ({_span(c)}).")
    asked = [c for c in found["contrasts"] if c["kind"] == QUESTION]
    if harmed := [WORDS[c["one"]] for c in asked if c["stands"] and c["mean"] > 0]:
        said.append(f"Worse than the base on reasoning-gym: {', '.join(harmed)}.")
    elif asked:
        most = max(c["high"] if c["high"] is not None else c["mean"] for c in asked)
        said.append(
            f"On {asked[0]['units']} questions of reasoning-gym no arm is told apart for the worse"
            f" from the base (at most {most:+.3f} nats a token)."
        )
    return " ".join(said) + "\n"


def _get(found: Mapping[str, Any], wanted: Contrast) -> Mapping[str, Any] | None:
    return next((c for c in found["contrasts"] if _is(c, wanted)), None)


def _is(c: Mapping[str, Any], wanted: Contrast) -> bool:
    return all(c[name] == value for name, value in wanted._asdict().items())


def _span(c: Mapping[str, Any]) -> str:
    scale, digits = (100, 1) if c["measure"] in SHARES else (1, 3)
    mean, *ends = (
        "" if c[end] is None else f"{scale * c[end]:+.{digits}f}" for end in ("mean", "low", "high")
    )
    return f"{mean} ({ends[0]} to {ends[1]})" if all(ends) else f"{mean} (no interval)"


def _row(c: Mapping[str, Any]) -> tuple[Any, ...]:
    span = f"**{_span(c)}**" if c["stands"] else _span(c)
    at = "questions" if c["kind"] == QUESTION else "cases"
    p = "" if c["p"] is None else f"{c['p']:.3f}".replace("0.000", "< 0.001")
    name = f"{WORDS[c['one']]} - {WORDS[c['other']]}"
    return name, at, c["measure"], span, p, c["units"], c["seeds"]


def _means(some: Sequence[StateResult], measures: Sequence[str]) -> dict[str, float]:
    values = [measures_of(result) for result in some]
    held = {name: [v[name] for v in values if name in v] for name in measures}
    return {name: fmean(numbers) for name, numbers in held.items() if numbers}


def _means_table(means: Mapping[str, Mapping[str, float]]) -> str:
    names = [name for name in _MEANS if any(name in found for found in means.values())]
    rows = [
        (WORDS[arm], *(_number(found[n], n) if n in found else "" for n in names))
        for arm, found in means.items()
    ]
    return table(("arm", *names), rows)


def _number(value: float, measure: str) -> str:
    return f"{100 * value:.1f} %" if measure in SHARES else f"{value:.3f}"


def _trained(arms: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    rows = []
    for arm, runs in arms.items():
        kept = [run["hints_kept_share"] for run in runs if "hints_kept_share" in run]
        rows.append(
            (WORDS[arm], len(runs), "; ".join(dict.fromkeys(rows_said(run)[0] for run in runs)),
             "; ".join(filter(None, dict.fromkeys(rows_said(run)[1] for run in runs))),
             f"{fmean(kept):.0%}" if kept else "", f"{sum(r['cpu_seconds'] for r in runs):,.0f}")
        )  # fmt: skip
    return table(
        ("arm", "trainings", "rows to draw from", "left out", "hints that help", "CPU s"), rows
    )
