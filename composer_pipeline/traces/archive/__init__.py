"""The raw bytes of session files, kept before anything looks at them.

Does not belong here: what the bytes mean (``traces.reading``).
"""

from composer_pipeline.traces.archive.blobs import open_archived
from composer_pipeline.traces.archive.harvest import days_changed, harvest, session_days
from composer_pipeline.traces.archive.integrity import shrunk_or_lost
from composer_pipeline.traces.archive.report import Harvested, HarvestReport

__all__ = [
    "HarvestReport",
    "Harvested",
    "days_changed",
    "harvest",
    "open_archived",
    "session_days",
    "shrunk_or_lost",
]
