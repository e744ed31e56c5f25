"""A person's verdicts on error turns, and how well the computed ones agree with them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from composer_pipeline.errors import InputError
from composer_pipeline.files import json_objects
from composer_pipeline.lake.store import Lake
from composer_pipeline.reports import Report

#: The verdicts, in the order of the keys 1 to 6 of ``composer-pipeline label``.
VERDICTS = ("mistake", "revealed", "preexisting", "not_an_error", "user_choice", "unclear")
#: A culprit counts as visible within so many messages before the error turn.
VISIBLE_MESSAGES = 16
#: Labels that are a guess.
_GUESS = 1

Label = Mapping[str, Any]


@dataclass(frozen=True)
class Share(Report):
    """A count of a whole."""

    hits: int = 0
    of: int = 0

    @property
    def value(self) -> float | None:
        """The share in [0, 1]; ``None`` of nothing."""
        return self.hits / self.of if self.of else None

    def __str__(self) -> str:
        return f"{self.value:.3f} ({self.hits} of {self.of})" if self.of else "none"


@dataclass(frozen=True)
class LabelScores(Report):
    """Computed verdicts beside a person's.

    ``three_classes`` joins all but *mistake* and *revealed*. ``culprit_right`` is of the culprits
    named where the person says *revealed* too, ``visible_found`` of those within sixteen messages.
    ``hints_stand`` is the share of hints that stand where a person finds the mistake.
    """

    accuracy: Share
    three_classes: Share
    precision_mistake: Share
    recall_mistake: Share
    precision_revealed: Share
    recall_revealed: Share
    culprit_right: Share
    visible_found: Share
    hints_stand: Share


def read_labels(path: Path) -> list[dict[str, Any]]:
    """Return the labels of a JSONL file: ``state_id`` and ``verdict``, the last of a state counts.

    Optional keys are ``culprit`` (index of a message of the state's chain, or ``earlier``),
    ``culprit_state_id`` and ``sure`` (1 is a guess).

    Raises:
        InputError: the file is missing, or a line is no label.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    found: dict[str, dict[str, Any]] = {}
    for number, row in json_objects(path, path.read_text(encoding="utf-8")):
        state_id, verdict = row.get("state_id"), row.get("verdict")
        if not isinstance(state_id, str) or verdict not in VERDICTS:
            raise InputError(
                f"{path}:{number}: a label needs a state_id and a verdict, one of"
                f" {', '.join(VERDICTS)}"
            )
        found[state_id] = row
    return list(found.values())


def score(lake: Lake, labels: list[dict[str, Any]], *, guesses: bool = True) -> LabelScores:
    """Compare the verdicts of a lake with a person's; labels of absent states are left out.

    Args:
        lake: reads ``states``.
        labels: as :func:`read_labels` returns them.
        guesses: count labels that the person was not sure of.
    """
    columns = ["state_id", "chain_id", "n_messages", "verdict", "culprit_state_id"]
    states = {row["state_id"]: row for row in lake.iter_rows("states", columns=columns)}
    rows = [
        (label, states[label["state_id"]])
        for label in labels
        if label["state_id"] in states and (guesses or label.get("sure") != _GUESS)
    ]
    return scores(rows, states)


def scores(
    rows: Sequence[tuple[Label, Mapping[str, Any]]], states: Mapping[str, Mapping[str, Any]]
) -> LabelScores:
    """Score pairs of a label and its row of ``states``; ``states`` are all rows by id."""
    pairs = [(_given(state), label["verdict"]) for label, state in rows]
    named, right, visible, seen, stand, hints = [0] * 6
    for label, state in rows:
        given = _given(state)
        culprit = states.get(state["culprit_state_id"] or "")
        is_right = culprit is not None and _is_culprit(label, state, culprit)
        hints += culprit is not None
        stand += is_right and given == label["verdict"]
        if label["verdict"] != "revealed":
            continue
        near = isinstance(label.get("culprit"), int)
        visible += near
        if given == "revealed" and culprit is not None:
            named += 1
            right += is_right
            seen += is_right and near
    return LabelScores(
        accuracy=Share(sum(a == b for a, b in pairs), len(pairs)),
        three_classes=Share(sum(_three(a) == _three(b) for a, b in pairs), len(pairs)),
        **{
            f"{what}_{verdict}": Share(
                sum(a == b == verdict for a, b in pairs),
                sum((a if what == "precision" else b) == verdict for a, b in pairs),
            )
            for verdict in ("mistake", "revealed")
            for what in ("precision", "recall")
        },
        culprit_right=Share(right, named),
        visible_found=Share(seen, visible),
        hints_stand=Share(stand, hints),
    )


def _given(state: Mapping[str, Any]) -> str:
    return str(state["verdict"] or "not_an_error")


def _three(verdict: str) -> str:
    return verdict if verdict in ("mistake", "revealed") else "other"


def _is_culprit(label: Label, state: Mapping[str, Any], culprit: Mapping[str, Any]) -> bool:
    if label["verdict"] == "mistake":
        return culprit is state or bool(culprit["state_id"] == state["state_id"])
    if (known := label.get("culprit_state_id")) is not None:
        return bool(culprit["state_id"] == known)
    at = culprit["n_messages"] if culprit["chain_id"] == state["chain_id"] else -1
    wanted = label.get("culprit")
    if wanted == "earlier":
        return bool(at < state["n_messages"] - VISIBLE_MESSAGES)
    return bool(at == wanted)


def rows_of(found: LabelScores) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each score."""
    for name, value in found.__dict__.items():
        yield name.replace("_", " "), str(value)
