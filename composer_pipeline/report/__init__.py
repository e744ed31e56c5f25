"""A dataset version as one HTML file that a person shows to a colleague.

Counting is left to the rooms that own the numbers; here they get words, order and a page. Does not
belong here: the card of a publication (``publishing.card``).
"""

from composer_pipeline.report.write import ReportFile, default_place, write_report

__all__ = ["ReportFile", "default_place", "write_report"]
