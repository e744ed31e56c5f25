"""What must hold before anything leaves this machine: every file that a commit carries is read.

Belongs here: refusals. Does not belong here: talking to the Hub (``publishing.hub``), which rows
there are (``publishing.selection``) and what is private (``redaction``).
"""

from composer_pipeline.publishing.gates.files import check_files
from composer_pipeline.publishing.gates.refused import PublishRefused
from composer_pipeline.publishing.gates.scan import Scanner

__all__ = ["PublishRefused", "Scanner", "check_files"]
