"""A few rows of a table as a person reads them, where they are, and how to ask for more.

Does not belong here: whole states and pairs on a terminal (``cli.views``), Dagster (``assets``).
"""

from composer_pipeline.previews.tables import preview
from composer_pipeline.previews.text import cut, printable, side_by_side
from composer_pipeline.previews.where import place_of, query_of, row_count

__all__ = ["cut", "place_of", "preview", "printable", "query_of", "row_count", "side_by_side"]
