"""Stage 4: data-juicer over pairs, and a ledger of every dropped row.

Belongs here: reading a data-juicer recipe strictly, driving its operators over columns, the
process it runs in. Does not belong here: how pairs are made, or what is published.
"""

from composer_pipeline.normalize.stage import (
    normalize,
    normalized_origin,
    recipe_id_of,
    write_columns,
)

__all__ = [
    "normalize",
    "normalized_origin",
    "recipe_id_of",
    "write_columns",
]
