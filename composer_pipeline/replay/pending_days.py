"""Which days still have something to ask.

Belongs here: the question that a nightly schedule starts from. Does not belong here: which
states of such a day are worth asking (``replay.selection.curtailed``).
"""

from datetime import date, timedelta

from composer_pipeline.lake import Lake

#: Days that a schedule goes back. A state that no teacher can take, because it is too long
#: for all of them, would otherwise be tried every night for ever.
WINDOW_DAYS = 31


def pending_days(lake: Lake, today: date) -> list[str]:
    """Return the days, ascending, with a state that no teacher has answered yet.

    A control's answer does not count: it makes no vote.
    A session that grew after its day was replayed makes its day pending again, and so does
    a state that a ceiling refused. What was answered is not bought again.

    Args:
        lake: has ``states`` and ``replies``.
        today: the last day of the window, in UTC.
    """
    first = str(today - timedelta(days=WINDOW_DAYS))
    pending = []
    for day in lake.days("states"):
        if not first <= day <= str(today):
            continue
        states = set(lake.read("states", days=[day], columns=["state_id"])["state_id"].to_pylist())
        replies = lake.read("replies", days=[day], columns=["state_id", "control"]).to_pylist()
        if states - {row["state_id"] for row in replies if not row["control"]}:
            pending.append(day)
    return pending
