"""How good is the data? Statistics, rater agreement, separability, repeats, lost rows.

Does not belong here: rules that drop rows (``preferences.pairs``).
"""

from composer_pipeline.preferences.quality.figures import (
    agreement_figure,
    agreement_table,
    alpha_table,
    funnel_figure,
    reason_table,
    separability_figure,
)
from composer_pipeline.preferences.quality.near_duplicates import near_duplicates
from composer_pipeline.preferences.quality.quality_rows import ALL, Quality
from composer_pipeline.preferences.quality.row_accounting import leaks
from composer_pipeline.preferences.quality.shingles import shingles_of
from composer_pipeline.preferences.quality.statistics import measured_on_dataset, write_statistics
from composer_pipeline.preferences.quality.verdicts import Verdict, verdicts

__all__ = [
    "ALL",
    "Quality",
    "Verdict",
    "agreement_figure",
    "agreement_table",
    "alpha_table",
    "funnel_figure",
    "leaks",
    "measured_on_dataset",
    "near_duplicates",
    "reason_table",
    "separability_figure",
    "shingles_of",
    "verdicts",
    "write_statistics",
]
