"""Archived days to ``sessions``, ``messages``, ``chains`` and ``states``: the stage and its parts.

``parse_days`` is the stage, ``analyse`` the graph and the counts of one file, ``found_in`` what a
file holds, ``is_current`` what tells a day that has to be parsed again.
"""

from composer_pipeline.traces.parse.current import is_current, is_redacted
from composer_pipeline.traces.parse.days import ParseReport, parse_days
from composer_pipeline.traces.parse.files import Found, analyse, found_in
from composer_pipeline.traces.parse.groups import group_of

__all__ = [
    "Found",
    "ParseReport",
    "analyse",
    "found_in",
    "group_of",
    "is_current",
    "is_redacted",
    "parse_days",
]
