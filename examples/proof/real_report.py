"""What the real-session tier found, as a page that a person reads."""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from composer_pipeline.evaluation.report import difference, summarise
from composer_pipeline.evaluation.results import BASE, StateResult, read_results
from composer_pipeline.files import replace
from composer_pipeline.markdown import table
from examples.proof.bars import Estimate
from examples.proof.report import NUMBERS, REPORT, RESULTS, rows_said

DROPPED = "dropped.json"
#: SFT on what failed: what an arm gains over it is not the format of calls alone.
PLACEBO = "sft-failed"
WORDS = {
    BASE: "base",
    PLACEBO: "SFT on the failed action (placebo)",
    "sft": "SFT on the recovery",
    "dpo": "DPO, recovery over failed action",
    "sdpo": "SDPO, the error as hint",
    "all": "all three, DPO 0.2",
}
#: Measures that are shares, printed as percent.
_SHARES = frozenset({"canonical", "valid_call", "preference_per_token"})
_CASE, _AFTER = "hard_uncovered", "recovery"
_CASES = (
    "canonical", "valid_call", "preference_per_token", "margin", "right_nll", "hint_gain", "kl",
)  # fmt: skip
_INTERVALS = ("right_nll", "margin", "preference_per_token", "hint_gain")
_HARM = ("canonical", "right_nll")

_GLOSSARY = (
    "`canonical`: the greedy answer has the right action's effect. `valid_call`: it calls offered"
    " tools with arguments they take. `margin`: log p(right) - log p(failed), nats an action;"
    " `preference_per_token`: that is above 0, each side divided by its tokens. `right_nll`:"
    " -log p(right), nats a token. `hint_gain`: log p(right | the error) - log p(right), nats an"
    " action. `kl`: KL(model || base) over the right action, nats a token."
)


def write_report(out: Path, folds: Sequence[Path]) -> None:
    """Write ``report.md`` from the folds that are measured."""
    replace(out / REPORT, page(folds))


def page(folds: Sequence[Path]) -> str:
    """Return the report as Markdown."""
    results: dict[str, list[StateResult]] = defaultdict(list)
    dropped: Counter[str] = Counter()
    for fold in folds:
        dropped.update(json.loads((fold / DROPPED).read_bytes()))
        for arm, some in read_results(fold / RESULTS).items():
            results[arm] += some
    base = results[BASE]
    counts = {kind: [r for r in base if r.kind == kind] for kind in (_CASE, _AFTER)}
    said = "; ".join(
        f"{len(some)} {kind} states of {len({r.session_id for r in some})} sessions"
        for kind, some in counts.items()
    )
    lost = ", ".join(f"{n} {why}" for why, n in sorted(dropped.items())) or "none"
    parts = [
        "# Proof on real sessions",
        f"{len(folds)} folds, each held out once: {said}. Not measured: {lost}. In bold: the"
        " interval (paired bootstrap over sessions, 95 %; too few sessions have none) excludes"
        " zero; nothing else is claimed.",
        "## Error turns, where the right action is what the agent did later",
        _means(results, _CASE, _CASES),
        *(
            f"Difference to {WORDS[other]}:\n\n{_differences(results, _CASE, _INTERVALS, other)}"
            for other in (BASE, PLACEBO, "sft")
            if other in results
        ),
        "## Turns right behind an error: was anything unlearnt?",
        _means(results, _AFTER, _HARM),
        f"Difference to {WORDS[BASE]}:\n\n{_differences(results, _AFTER, _HARM, BASE)}",
        "## What was trained on",
        _trained(folds),
        _GLOSSARY,
    ]
    return "\n\n".join(parts) + "\n"


def _means(results: Mapping[str, Sequence[StateResult]], kind: str, names: Sequence[str]) -> str:
    cells = {
        (cell.arm, cell.measure): _number(cell.value.mean, cell.measure)
        for cell in summarise(results, base=BASE, resamples=1)
        if cell.kind == kind
    }
    rows = [(WORDS[arm], *(cells.get((arm, n), "") for n in names)) for arm in results]
    return table(("arm", *names), rows)


def _number(value: float, measure: str) -> str:
    return f"{100 * value:.1f} %" if measure in _SHARES else f"{value:.3f}"


def _differences(
    results: Mapping[str, Sequence[StateResult]], kind: str, names: Sequence[str], other: str
) -> str:
    rows = [
        (WORDS[arm], *(_said(difference(some, results[other], kind, n), n) for n in names))
        for arm, some in results.items()
        if arm != other
    ]
    return table(("arm", *names), rows)


def _said(found: Estimate | None, measure: str) -> str:
    if found is None:
        return ""
    scale, digits = (100, 1) if measure in _SHARES else (1, 3)
    mean = f"{scale * found.mean:+.{digits}f}"
    if found.low is None or found.high is None:
        return f"{mean} (no interval)"
    said = f"{mean} ({scale * found.low:+.{digits}f} to {scale * found.high:+.{digits}f})"
    return f"**{said}**" if found.excludes_zero else said


def _trained(folds: Sequence[Path]) -> str:
    rows = []
    for fold in folds:
        for arm in WORDS:
            path = fold / arm / NUMBERS
            if path.is_file():
                numbers = json.loads(path.read_bytes())
                share = numbers.get("hints_kept_share")
                rows.append(
                    (str(int(fold.name) + 1), WORDS[arm], *rows_said(numbers),
                     "" if share is None else f"{share:.0%}", f"{numbers['cpu_seconds']:,.0f}")
                )  # fmt: skip
    return table(("fold", "arm", "rows", "left out", "hints that help", "CPU s"), rows)
