"""Archived days to ``sessions``, ``messages``, ``chains`` and ``states``: the stage and its parts.

``parse_days`` is the stage, ``analyse`` the graph and the counts of one file, ``is_current``
what tells a day that has to be parsed again.
"""

from composer_pipeline.traces.parse.current import is_current, is_redacted
from composer_pipeline.traces.parse.days import ParseReport, parse_days
from composer_pipeline.traces.parse.files import analyse
from composer_pipeline.traces.parse.groups import group_of

__all__ = ["ParseReport", "analyse", "group_of", "is_current", "is_redacted", "parse_days"]
