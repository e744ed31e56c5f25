"""What a trivial classifier can tell between chosen and rejected actions.

Belongs here: the cross-validated AUC. Does not belong here: the features
(``preferences.quality.style_features``) and the bound of the check (``preferences.rules``).

Chosen actions are written by teachers and rejected ones by the agent, so a model may learn
whose hand it was instead of what was better. The features see only style: how long, with or
without text, how many calls, in which order keys stand, how strings are quoted and paths
spelled. Which tool or file was chosen is the preference itself, and no feature.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.files import strings
from composer_pipeline.preferences.rules import Separability

FEATURES = (
    "log_length",
    "has_text",
    "calls",
    "arguments",
    "keys_sorted",
    "keys_reversed",
    "keys_as_usual",
    "single_quotes",
    "double_quotes",
    "newlines",
    "spaces",
    "absolute_paths",
    "final_newline",
    "non_ascii",
)


_ABSOLUTE = re.compile(r"(?:^|[\s=\"'(])(?:/|~/)[\w.-]")


def style_of(
    messages: Sequence[Mapping[str, Any]], usual: Mapping[str, tuple[str, ...]]
) -> list[float]:
    """Return the numbers of an action, in the order of :data:`FEATURES`."""
    text = "".join(str(message.get("content") or "") for message in messages)
    calls = _calls(messages)
    keys = [(name, list(arguments)) for name, arguments in calls]
    body = "\n".join([s for _, arguments in calls for s in strings(arguments)] or [text])
    size = max(1, len(body))
    several = [(name, order) for name, order in keys if len(order) > 1]
    return [
        math.log1p(len(text) + sum(len(json.dumps(a)) for _, a in calls)),
        float(bool(text.strip())),
        float(len(calls)),
        float(sum(len(order) for _, order in keys)),
        _share([order == sorted(order) for _, order in several]),
        _share([order == sorted(order, reverse=True) for _, order in several]),
        _share([_in_order(order, usual.get(name, ())) for name, order in several]),
        body.count("'") / size,
        body.count('"') / size,
        body.count("\n") / size,
        body.count(" ") / size,
        float(len(_ABSOLUTE.findall(body))),
        float(body.endswith("\n")),
        sum(not char.isascii() for char in body) / size,
    ]


def usual_orders(sides: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, tuple[str, ...]]:
    """Return tool to its keys by their mean position over all actions, chosen or not."""
    places: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for messages in sides:
        for name, arguments in _calls(messages):
            for position, key in enumerate(arguments):
                places[name][key].append(position)
    return {
        name: tuple(sorted(of, key=lambda key: (_most_common(of[key]), key)))
        for name, of in places.items()
    }


def _most_common(values: Sequence[int]) -> int:
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))


def _in_order(keys: Sequence[str], usual: Sequence[str]) -> bool:
    return list(keys) == [key for key in usual if key in keys]


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.5


def _calls(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for message in messages
        for call in message.get("tool_calls") or ()
    ]


#: Points of a ROC curve that a figure needs.
_POINTS = 60


@dataclass(frozen=True)
class Separation:
    """The result; ``auc`` is ``None`` where ``note`` says why nothing was measured.

    ``error`` is the standard error of the AUC (Hanley and McNeil 1982), ``roc`` points of
    (false positive rate, true positive rate), ``weights`` the standardised coefficients of a
    fit on everything: which feature gives the source away.
    """

    auc: float | None
    pairs: int
    sessions: int
    note: str = ""
    error: float | None = None
    roc: tuple[tuple[float, float], ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)


def separability(rows: Sequence[Mapping[str, Any]], rules: Separability) -> Separation:
    """Measure how well style tells chosen from rejected.

    A logistic regression over :data:`FEATURES` predicts each action from a fit on the other
    folds. A session is in one fold only, and both sides of a pair in the same one.

    Args:
        rows: pairs with ``session_id``, ``chosen`` and ``rejected`` (chat messages).
        rules: folds, and the fewest pairs and sessions that give a number.
    """
    sessions = len({row["session_id"] for row in rows})
    if len(rows) < rules.min_pairs:
        why = f"not measured: {len(rows)} pairs, fewer than {rules.min_pairs}"
        return Separation(None, len(rows), sessions, why)
    if sessions < max(rules.min_sessions, 2):
        why = f"not measured: {sessions} sessions, fewer than {rules.min_sessions}"
        return Separation(None, len(rows), sessions, why)
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.metrics import roc_auc_score, roc_curve
        from sklearn.model_selection import GroupKFold, cross_val_predict
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        why = "not measured: needs pip install 'composer-pipeline[statistics]'"
        return Separation(None, len(rows), sessions, why)
    sides = [(row[side], row["session_id"]) for row in rows for side in ("chosen", "rejected")]
    usual = usual_orders([messages for messages, _ in sides])
    data = [style_of(messages, usual) for messages, _ in sides]
    labels = [1, 0] * len(rows)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    scores = cross_val_predict(
        model,
        data,
        labels,
        groups=[session for _, session in sides],
        cv=GroupKFold(min(rules.folds, sessions)),
        method="decision_function",
    )
    auc = float(roc_auc_score(labels, scores))
    wrong, right, _ = roc_curve(labels, scores)
    points = list(zip(map(float, wrong), map(float, right), strict=True))
    step = max(1, math.ceil(len(points) / _POINTS))
    fit = model.fit(data, labels)[-1]
    return Separation(
        auc,
        len(rows),
        sessions,
        error=_error(auc, len(rows)),
        roc=(*points[:-1:step], points[-1]),
        weights=dict(zip(FEATURES, map(float, fit.coef_[0]), strict=True)),
    )


def _error(auc: float, n: int) -> float:
    """Standard error of an AUC with ``n`` of each class (Hanley and McNeil 1982, eq. 1)."""
    both, one = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (n - 1) * (both - auc**2 + one - auc**2)
    return math.sqrt(max(0.0, spread)) / n
