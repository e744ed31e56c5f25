"""Asking teachers and surviving anything: order, windows, retries, the run and its report.

Does not belong here: what a call may cost (``replay.provider``), the arithmetic of ceilings
(``replay.ledger``) and which states are worth asking (``replay.selection``).
"""

from composer_pipeline.replay.engine.replies import redacted_row, write_replies
from composer_pipeline.replay.engine.report import OnDay, OnProgress, ReplayReport, Snapshot
from composer_pipeline.replay.engine.run import replay
from composer_pipeline.replay.rebuild import rebuild

__all__ = [
    "OnDay",
    "OnProgress",
    "ReplayReport",
    "Snapshot",
    "rebuild",
    "redacted_row",
    "replay",
    "write_replies",
]
