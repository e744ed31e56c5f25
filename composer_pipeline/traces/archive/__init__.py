"""The raw bytes of session files, kept before anything looks at them.

Does not belong here: what the bytes mean (``traces.reading``).
"""

from composer_pipeline.traces.archive.blobs import blob_name, open_archived, read_blob
from composer_pipeline.traces.archive.discover import files_below
from composer_pipeline.traces.archive.forgotten import Forgotten
from composer_pipeline.traces.archive.given_paths import STDIN
from composer_pipeline.traces.archive.harvest import days_changed, harvest, session_days
from composer_pipeline.traces.archive.integrity import forget_files, shrunk_or_lost
from composer_pipeline.traces.archive.plan import redact_manifest
from composer_pipeline.traces.archive.report import Harvested, HarvestReport

__all__ = [
    "STDIN",
    "Forgotten",
    "HarvestReport",
    "Harvested",
    "blob_name",
    "days_changed",
    "files_below",
    "forget_files",
    "harvest",
    "open_archived",
    "read_blob",
    "redact_manifest",
    "session_days",
    "shrunk_or_lost",
]
