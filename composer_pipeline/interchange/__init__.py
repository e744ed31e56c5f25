"""Whole sessions in the formats that other tools read: ATIF and Pi.

Belongs here: a session as steps, and steps as each format has them. Does not belong here: the
columns that trainers take (``preferences.export``), and publishing what is written here.
"""

from composer_pipeline.interchange.write import (
    FORMATS,
    SessionsReport,
    export_sessions,
    trace_files,
)

__all__ = ["FORMATS", "SessionsReport", "export_sessions", "trace_files"]
