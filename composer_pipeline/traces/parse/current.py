"""Whether a day has to be parsed again.

Belongs here: comparing what is archived with what is parsed. Does not belong here: parsing
(``traces.parse.days``).
"""

from composer_pipeline.lake import Lake
from composer_pipeline.redaction import redaction_version
from composer_pipeline.traces.parse.files import is_trajectory
from composer_pipeline.versions import PARSER_VERSION


def is_current(lake: Lake, day: str) -> bool:
    """Say whether a day's partitions hold its archived files, as this parser writes them.

    A damaged file is none of this parser's: the day is parsed again from the archive.
    """
    if lake.damaged_file(day) or not all(
        lake.partitions(table, day=day) for table in Lake.FROM_ARCHIVE
    ):
        return False
    archived = {row["sha256"] for row in lake.rows("raw_files", days=[day]) if is_trajectory(row)}
    parsed = lake.read("sessions", days=[day], columns=["sha256"])["sha256"].to_pylist()
    parsers = lake.read("states", days=[day], columns=["parser_version"])["parser_version"]
    return (
        archived == set(parsed)
        and set(parsers.to_pylist()) <= {PARSER_VERSION}
        and is_redacted(lake, day)
    )


def is_redacted(lake: Lake, day: str) -> bool:
    """Say whether all rows of a parsed day were redacted by the rules of now.

    A day's sessions are written last, so a day that was interrupted is not.
    """
    if lake.damaged_file(day):
        return False
    for table in ("sessions", "messages"):
        versions = lake.read(table, days=[day], columns=["redaction_version"])
        if not set(versions["redaction_version"].to_pylist()) <= {redaction_version()}:
            return False
    return True
