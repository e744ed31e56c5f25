"""The sessions of the first states, decided on columns, are those of the states themselves."""

import datetime as dt
import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from composer_pipeline.teachers.questions import sessions_of_first

_BEGIN = dt.datetime(2026, 11, 20, tzinfo=dt.UTC)


def rows_of(rng: random.Random) -> pa.Table:
    """Return states of a few sessions: equal times, no time, and some of them twice."""
    number = rng.randint(1, 40)
    names = [f"s{rng.randrange(30):02d}" for _ in range(number)]
    return pa.table(
        {
            "state_id": pa.array(names, pa.string()),
            "session_id": pa.array([f"session-{rng.randrange(12)}" for _ in names], pa.string()),
            "project": pa.array([rng.choice(["mine", "theirs", ""]) for _ in names], pa.string()),
            "on_active_path": pa.array([rng.random() < 0.7 for _ in names], pa.bool_()),
            "error_kind": pa.array(
                [rng.choice([None, None, "tool_error", ""]) for _ in names], pa.string()
            ),
            "verdict": pa.array(
                [rng.choice([None, "mistake", "user_choice"]) for _ in names], pa.string()
            ),
            "caused_error": pa.array(
                [rng.choice([None, None, None, "tests"]) for _ in names], pa.string()
            ),
            "ts": pa.array(
                [
                    rng.choice([None, _BEGIN + dt.timedelta(microseconds=rng.randrange(20))])
                    for _ in names
                ],
                pa.timestamp("us", "UTC"),
            ),
        }
    )


@pytest.mark.parametrize("seed", range(200))
def test_they_are_those_of_the_first_states(seed: int) -> None:
    rng = random.Random(seed)
    table = rows_of(rng)
    sessions = None if rng.random() < 0.5 else {f"session-{n}" for n in range(0, 12, 2)}
    active, number = rng.random() < 0.5, rng.randint(1, 12)
    admits: Callable[[str], bool] = lambda name: name != "theirs"  # noqa: E731
    # A later row of a state takes the place of an earlier one, as in a dict of states.
    last = {row["state_id"]: row for row in table.to_pylist()}
    mine = [
        row
        for row in last.values()
        if (sessions is None or row["session_id"] in sessions)
        and admits(row["project"])
        and (row["on_active_path"] or not active)
    ]
    mine.sort(
        key=lambda row: (
            row["caused_error"] is None
            and (row["error_kind"] is None or row["verdict"] == "mistake"),
            row["ts"].timestamp() if row["ts"] else 0.0,
            row["state_id"],
        )
    )
    found = sessions_of_first(
        number, table, sessions=sessions, admits=admits, only_on_active_path=active
    )
    assert found == {row["session_id"] for row in mine[:number]}
