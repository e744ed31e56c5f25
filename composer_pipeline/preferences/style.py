"""Separability: the AUC with which a classifier that sees only style tells chosen from rejected.

Chosen actions are written by teachers and rejected ones by the agent, so a model may learn the
author in place of the better action. Which tool or file was chosen is the preference itself, and no
feature.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from composer_pipeline.actions import chat_calls
from composer_pipeline.files import strings
from composer_pipeline.preferences.rules import Separability

FEATURES = (
    "log_length", "has_text", "calls", "arguments", "keys_sorted", "keys_reversed",
    "keys_as_usual", "single_quotes", "double_quotes", "newlines", "spaces", "absolute_paths",
    "final_newline", "non_ascii",
)  # fmt: skip
_ABSOLUTE = re.compile(r"(?:^|[\s=\"'(])(?:/|~/)[\w.-]")
#: Points of a ROC curve that a figure needs.
_POINTS = 60


def style_of(
    messages: Sequence[Mapping[str, Any]], usual: Mapping[str, tuple[str, ...]]
) -> list[float]:
    """Return the numbers of an action, in the order of :data:`FEATURES`."""
    text = "".join(str(message.get("content") or "") for message in messages)
    calls = chat_calls(*messages)
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
        _share(
            [order == [k for k in usual.get(name, ()) if k in order] for name, order in several]
        ),
        body.count("'") / size,
        body.count('"') / size,
        body.count("\n") / size,
        body.count(" ") / size,
        float(len(_ABSOLUTE.findall(body))),
        float(body.endswith("\n")),
        sum(not char.isascii() for char in body) / size,
    ]


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.5


def _usual_orders(sides: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, tuple[str, ...]]:
    """Return tool to its keys by their most common position over all actions."""
    positions: dict[str, dict[str, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    for messages in sides:
        for name, arguments in chat_calls(*messages):
            for position, key in enumerate(arguments):
                positions[name][key][position] += 1

    def most_common(counts: Counter[int]) -> int:
        return min(counts, key=lambda position: (-counts[position], position))

    return {
        name: tuple(sorted(of, key=lambda key: (most_common(of[key]), key)))
        for name, of in positions.items()
    }


@dataclass(frozen=True)
class Separation:
    """The result; ``auc`` is ``None`` if ``note`` says why nothing was measured.

    ``error`` is the standard error of the AUC (Hanley and McNeil 1982), ``roc`` points of
    (false positive rate, true positive rate), ``weights`` the standardized coefficients of a
    fit on everything.
    """

    auc: float | None
    pairs: int
    sessions: int
    note: str = ""
    error: float | None = None
    roc: tuple[tuple[float, float], ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)


def separability(rows: Sequence[Mapping[str, Any]], rules: Separability) -> Separation:
    """Measure how well style tells chosen from rejected in pairs.

    A logistic regression over :data:`FEATURES` predicts each action from a fit on the other
    folds. A session is in one fold only, and both sides of a pair in the same one.
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
    sides = [row[side] for row in rows for side in ("chosen", "rejected")]
    usual = _usual_orders(sides)
    data = [style_of(messages, usual) for messages in sides]
    labels = [1, 0] * len(rows)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    scores = cross_val_predict(
        model,
        data,
        labels,
        groups=[row["session_id"] for row in rows for _ in range(2)],
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
    """Return the standard error of an AUC with ``n`` of each class (Hanley and McNeil, eq. 1)."""
    both, one = auc / (2 - auc), 2 * auc**2 / (1 + auc)
    spread = auc * (1 - auc) + (n - 1) * (both - auc**2 + one - auc**2)
    return math.sqrt(max(0.0, spread)) / n
