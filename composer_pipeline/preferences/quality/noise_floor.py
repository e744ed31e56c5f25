"""How often teachers differ from the agent beyond the agent's own noise, from rows of ``votes``.

Does not belong here: agreement of different raters (``preferences.quality.rater_agreement``).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from composer_pipeline.preferences.actions import Level
from composer_pipeline.preferences.agreement import level_of
from composer_pipeline.preferences.quality.rater_agreement import Measured, Row


@dataclass(frozen=True)
class NoiseFloor:
    """How often teachers differ from the agent beyond the agent's own noise.

    ``teacher`` is P(teacher's action differs from the agent's), ``resample`` P(an action
    sampled again from the agent's own family differs), ``excess`` their difference, all over
    the audited states: those with a reply of a control. A control of another family is taken
    at its word: then ``resample`` is that family's disagreement. ``error`` is the standard error of
    the excess.
    """

    teacher: Measured
    resample: Measured
    excess: Measured
    error: Measured


def noise_floor(rows: Iterable[Row]) -> NoiseFloor:
    """Measure the noise floor on the states that a control answered.

    Actions differ where the vote would not link them: beyond L1 if either changes
    something, beyond L2 elsewhere. Each state counts once, however many teachers it has.
    """
    teachers: list[float] = []
    controls: list[float] = []
    asked = 0
    for row in rows:
        differs: dict[bool, list[bool]] = {True: [], False: []}
        for at in range(1, len(row["raters"])):
            strict = row["mutates"][0] or row["mutates"][at]
            bound = Level.L1 if strict else Level.L2
            differs[row["controls"][at]].append(level_of(row, 0, at) > bound)
        asked += bool(differs[True])
        if differs[True] and differs[False]:
            teachers.append(_mean(differs[False]))
            controls.append(_mean(differs[True]))
    n = len(teachers)
    if not n:
        why = "no teacher answered a state that a control answered" if asked else ""
        missing = Measured(None, 0, f"not measured: {why or 'no control replies'}")
        return NoiseFloor(missing, missing, missing, missing)
    gaps = [a - b for a, b in zip(teachers, controls, strict=True)]
    excess = _mean(gaps)
    error = Measured(None, n, "not measured: one audited state")
    if n > 1:
        variance = sum((gap - excess) ** 2 for gap in gaps) / (n - 1)
        error = Measured(math.sqrt(variance / n), n)
    return NoiseFloor(
        Measured(_mean(teachers), n), Measured(_mean(controls), n), Measured(excess, n), error
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
